//! A text that is split.

use std::borrow::Cow;

use super::leads::before;
use super::nfc::composed;
use super::outline::{Excluded, Heading, Outline};
use super::{Chunk, ChunkError};

/// Whether an application may cut `text` at these byte offsets: at characters, each behind the one before it. 0 and the
/// length of the text are no cuts, and are allowed.
pub fn check_cuts(text: &str, cuts: &[usize]) -> Result<(), ChunkError> {
    let mut before = None;
    for (index, &offset) in cuts.iter().enumerate() {
        let is_wrong = match offset {
            _ if offset > text.len() => Some("lies behind the end of the text"),
            _ if !text.is_char_boundary(offset) => Some("lies inside a character"),
            _ if before >= Some(offset) => Some("does not lie behind the cut before it"),
            _ => None,
        };
        if let Some(reason) = is_wrong {
            return Err(ChunkError::Cut {
                index,
                offset,
                reason,
            });
        }
        before = Some(offset);
    }
    Ok(())
}

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
    lines: Vec<String>,
}

impl<'t> Split<'t> {
    pub(super) fn new(
        text: &'t str,
        chunks: Vec<Chunk>,
        outline: Outline,
        lines: Vec<String>,
    ) -> Self {
        Self {
            text,
            chunks,
            excluded: outline.excluded,
            headings: outline.headings,
            lines,
        }
    }

    /// The chunk's own text.
    pub fn text(&self, chunk: &Chunk) -> &'t str {
        &self.text[chunk.start..chunk.end]
    }

    /// The first line of a chunk's lead, in NFC, without what the chunk repeats; empty if it has none.
    pub fn lead_line(&self, chunk: &Chunk) -> &str {
        chunk.line.map_or("", |index| self.lines[index].as_str())
    }

    /// What is sent between the document prefix and the chunk's text: a line, then what the chunk repeats.
    /// Empty if it has neither.
    pub fn lead(&self, chunk: &Chunk) -> String {
        before(self.text, self.lead_line(chunk), chunk.repeat)
    }

    /// What is sent behind the document prefix, in NFC: the lead, then the text.
    /// [`Chunk::tokens`] counts it with the prefix and special tokens.
    pub fn input(&self, chunk: &Chunk) -> Cow<'t, str> {
        let text = composed(self.text(chunk));
        let before = self.lead(chunk);
        if before.is_empty() {
            return text;
        }
        Cow::Owned(before + &text)
    }
}
