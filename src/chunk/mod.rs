//! Text → chunks. Knows no database and no network (but for the tokenizer's
//! one-time download).

/// A slice of a note's text that is embedded and found on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Chunk {
    /// UTF-8 byte offset of the first byte in the note's text.
    pub start: usize,
    /// UTF-8 byte offset behind the last byte.
    pub end: usize,
    /// Tokens of the chunk exactly as it is sent to the model: document prefix
    /// and special tokens included.
    pub tokens: usize,
}
