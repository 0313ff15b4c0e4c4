//! Text → chunks. Knows no database and no network (but for the tokenizer's
//! one-time download).
//!
//! [`Tokenizer`] counts as the model does. [`Chunker`] cuts: `window` measures
//! the text ahead in tokens, `cuts` finds where sentences, clauses and words
//! end, `chunker` decides. `words` says for which tokenizers counting word by
//! word is exact, and remembers the words.

mod chunker;
mod cuts;
mod tokenizer;
mod window;
mod words;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod trained;

pub use chunker::Chunker;
pub use tokenizer::{Tokenizer, TokenizerError};

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

/// Why a text has no chunks.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The settings leave no room for text.
    #[error(
        "chunking.max_tokens = {max_tokens} is too small: {special_tokens} special tokens and \
         {prefix_tokens} of providers.embedding.document_prefix leave less than {least} for the \
         text; set it to {} or more",
        special_tokens + prefix_tokens + least
    )]
    NoRoom {
        /// What is configured.
        max_tokens: usize,
        /// What the tokenizer adds to every text.
        special_tokens: usize,
        /// What the prefix takes.
        prefix_tokens: usize,
        /// The least that must be left.
        least: usize,
    },
    /// One character is more than a chunk may hold.
    #[error(
        "the character at byte {offset} alone takes {tokens} tokens; \
         chunking.max_tokens = {max_tokens} is too small for it"
    )]
    Indivisible {
        /// Where it begins.
        offset: usize,
        /// What it takes, as it would be sent.
        tokens: usize,
        /// What is configured.
        max_tokens: usize,
    },
    /// The tokenizer could not encode the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
