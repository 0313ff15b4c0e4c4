//! A text that is split.

use std::borrow::Cow;

use super::Chunk;
use super::leads::before;
use super::nfc::composed;
use super::outline::{Excluded, Heading, Outline};

/// The chunks of a text, and what is known about them.
#[derive(Debug, Clone)]
pub struct Split<'t> {
    text: &'t str,
    /// In the order of the text. All text that is in none is whitespace, or excluded.
    pub chunks: Vec<Chunk>,
    /// What the settings leave out, in the order of the text, nothing twice.
    pub excluded: Vec<Excluded>,
    /// The headings of a Markdown text that does not fit one chunk.
    pub headings: Vec<Heading>,
    contexts: Vec<String>,
}

impl<'t> Split<'t> {
    pub(super) fn new(
        text: &'t str,
        chunks: Vec<Chunk>,
        outline: Outline,
        contexts: Vec<String>,
    ) -> Self {
        Self {
            text,
            chunks,
            excluded: outline.excluded,
            headings: outline.headings,
            contexts,
        }
    }

    /// The chunk's own text.
    pub fn text(&self, chunk: &Chunk) -> &'t str {
        &self.text[chunk.start..chunk.end]
    }

    /// The context of a chunk, in NFC; empty if it has none.
    pub fn context(&self, chunk: &Chunk) -> &str {
        chunk
            .context
            .map_or("", |index| self.contexts[index].as_str())
    }

    /// What is sent between the document prefix and the chunk's text: a line of context, then what the chunk
    /// repeats. Empty if it has neither.
    pub fn lead(&self, chunk: &Chunk) -> String {
        before(self.text, self.context(chunk), chunk.repeat)
    }

    /// What is sent behind the document prefix, in NFC: a line of context, then what the chunk repeats,
    /// then its text. [`Chunk::tokens`] counts it with the prefix and special tokens.
    pub fn input(&self, chunk: &Chunk) -> Cow<'t, str> {
        let text = composed(self.text(chunk));
        let before = self.lead(chunk);
        if before.is_empty() {
            return text;
        }
        Cow::Owned(before + &text)
    }
}
