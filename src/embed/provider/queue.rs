//! The texts that a call has still to send.

use std::collections::VecDeque;

use super::Input;
use super::in_flight::Ticket;

/// A text with the ticket that obliges the call to embed it.
pub type Text<'a> = (&'a Input<'a>, Ticket<'a>);

/// The texts of one call that are in no request, in the order in which they are sent.
#[derive(Default)]
pub struct Queue<'a>(VecDeque<Part<'a>>);

/// Texts with the same history. A request never holds texts of two parts.
pub struct Part<'a> {
    pub texts: VecDeque<Text<'a>>,
    /// The most texts that one request may hold.
    pub most: usize,
    /// Whether the provider failed on exactly these texts, perhaps by chance.
    pub failed: bool,
    /// The count of answers before the first request with these texts that timed out.
    pub timed_out: Option<u64>,
}

impl<'a> Part<'a> {
    /// The same texts, in requests of half the size at most.
    pub fn halved(mut self) -> Self {
        self.most = (self.texts.len() / 2).max(1);
        self.failed = false;
        self
    }

    /// Tokens of each text.
    pub fn tokens(&self) -> Vec<usize> {
        self.texts.iter().map(|(input, _)| input.tokens).collect()
    }
}

impl<'a> Queue<'a> {
    /// Adds a text that was never sent.
    pub fn push(&mut self, text: Text<'a>) {
        match self.0.back_mut() {
            Some(part) if part.most == usize::MAX => part.texts.push_back(text),
            _ => self.0.push_back(Part {
                texts: VecDeque::from([text]),
                most: usize::MAX,
                failed: false,
                timed_out: None,
            }),
        }
    }

    /// Texts that go before all others.
    pub fn push_front(&mut self, part: Part<'a>) {
        self.0.push_front(part);
    }

    /// Texts that go after all others.
    pub fn push_back(&mut self, part: Part<'a>) {
        self.0.push_back(part);
    }

    /// Whether no text waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the texts of the next request. `fits` says how many of texts with
    /// these tokens it may hold; it holds one at least. `None` when the queue is empty.
    pub fn take(
        &mut self,
        fits: impl FnOnce(&mut dyn Iterator<Item = usize>) -> usize,
    ) -> Option<Part<'a>> {
        let first = self.0.front_mut()?;
        let fitting = fits(&mut first.texts.iter().map(|(input, _)| input.tokens));
        let count = fitting.min(first.most).clamp(1, first.texts.len());
        if count == first.texts.len() {
            return self.0.pop_front();
        }
        Some(Part {
            texts: first.texts.drain(..count).collect(),
            ..*first
        })
    }

    /// Takes everything.
    pub fn drain(&mut self) -> impl Iterator<Item = Text<'a>> {
        self.0.drain(..).flat_map(|part| part.texts)
    }
}
