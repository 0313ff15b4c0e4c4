//! The texts that a call has still to send.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Input;
use super::ceiling::Split;
use super::failing::{Answers, History};
use super::in_flight::Ticket;

/// A text with the ticket that obliges the call to embed it.
pub type Text<'a> = (&'a Input<'a>, Ticket<'a>);

/// The texts of one call that are in no request, in the order in which they are sent.
#[derive(Default)]
pub struct Queue<'a>(VecDeque<Part<'a>>);

/// Texts with the same history. A request never holds texts of two parts.
pub struct Part<'a> {
    pub texts: VecDeque<Text<'a>>,
    pub history: History,
    /// The refused request that they were part of.
    pub split: Option<Arc<Split>>,
}

impl<'a> Part<'a> {
    /// The same texts, in requests with at most `most` texts, and with fewer than this one.
    pub fn split(mut self, most: usize) -> Self {
        let texts = self.texts.len();
        self.split = Some(Arc::new(Split::of(texts)));
        self.history.most = most.min(texts - 1).max(1);
        self.history.failed = false;
        self
    }

    /// The same texts, in requests of half the size at most.
    pub fn halved(self) -> Self {
        let half = self.texts.len() / 2;
        self.split(half)
    }

    pub fn tokens(&self) -> Vec<usize> {
        self.texts.iter().map(|(input, _)| input.tokens).collect()
    }
}

impl<'a> Queue<'a> {
    /// Adds a text, behind those that are sent before it.
    pub fn push(&mut self, text: Text<'a>, history: History) {
        let alike = |part: &&mut Part| part.split.is_none() && part.history == history;
        if let Some(part) = self.0.iter_mut().rev().find(alike) {
            return part.texts.push_back(text);
        }
        let part = Part {
            texts: VecDeque::from([text]),
            history,
            split: None,
        };
        let is_later = |other: &Part| history.is_sent_before(&other.history);
        let at = self.0.iter().position(is_later).unwrap_or(self.0.len());
        self.0.insert(at, part);
    }

    pub fn push_front(&mut self, part: Part<'a>) {
        self.0.push_front(part);
    }

    pub fn push_back(&mut self, part: Part<'a>) {
        self.0.push_back(part);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a text waits that goes apart, or one that does not.
    pub fn has(&self, apart: bool, now: Answers) -> bool {
        let goes = |part: &Part| part.history.goes_apart(now) == apart;
        self.0.iter().any(goes)
    }

    /// Takes the texts of the next request, of those that go apart or of the others. `fits` says
    /// how many of texts with these tokens it may hold; it holds one at least. `None` when there
    /// is none.
    pub fn take(
        &mut self,
        apart: bool,
        now: Answers,
        fits: impl FnOnce(&mut dyn Iterator<Item = usize>) -> usize,
    ) -> Option<Part<'a>> {
        let goes = |part: &Part| part.history.goes_apart(now) == apart;
        let at = self.0.iter().position(goes)?;
        let first = &mut self.0[at];
        let fitting = fits(&mut first.texts.iter().map(|(input, _)| input.tokens));
        let count = fitting.min(first.history.most).clamp(1, first.texts.len());
        if count == first.texts.len() {
            return self.0.remove(at);
        }
        Some(Part {
            texts: first.texts.drain(..count).collect(),
            history: first.history,
            split: first.split.clone(),
        })
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Text<'a>> {
        self.0.drain(..).flat_map(|part| part.texts)
    }
}
