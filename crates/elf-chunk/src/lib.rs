#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! [`Tokenizer`] counts as the model does. [`Chunker`] splits: `window` measures
//! the text ahead in tokens, `cuts` finds where sentences, clauses and words
//! end (`scripts`: words without spaces between them), `greedy` decides where a chunk ends, or `landmarks` where an edit must move few of them.
//!
//! A text with structure first gets an `outline`, by `markdown` (with `builder`, `mask`, `depth`, `math`, `exclude` and `badges`),
//! `paragraphs` or `separators`. Then `choice` decides where a chunk ends. `leads` makes what stands before
//! a chunk, `overlap` what it repeats. `languages` knows better than UAX #29 where sentences end, `wraps` which
//! line breaks are inside one, `intros` which lines say little without the next one (`lines` tells both where lines end).
//!
//! `words` tells for which tokenizers counting word by word is exact, `pieces` for which a chunk's count
//! follows from that of the running text. `wordpiece` finds the tokens of such words without the library,
//! and `scanner` those of a text: for byte-level BPE with `pattern` and `bpe`, for Unigram with `unigram`.
//! They share `trie` and `characters`.

mod auto;
mod badges;
mod bpe;
mod builder;
mod characters;
mod choice;
mod chunker;
mod cuts;
mod depth;
mod exclude;
mod greedy;
mod intros;
mod landmarks;
mod languages;
mod leads;
mod lines;
mod markdown;
mod mask;
mod math;
mod nfc;
mod outline;
mod overlap;
mod paragraphs;
mod pattern;
mod pieces;
mod prose;
mod scanner;
mod scripts;
mod segment;
mod sentences;
mod separators;
mod settings;
mod split;
mod tokenizer;
mod trie;
mod unigram;
mod window;
mod wordpiece;
mod words;
mod wraps;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod cases;
#[cfg(test)]
mod language_tests;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod structure_tests;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod trained;

pub use chunker::Chunker;
pub use nfc::composed;
pub use outline::{Excluded, Heading, Span, Why};
pub use prose::sentences;
pub use scripts::words;
pub use settings::{BlockKind, Boundaries, Settings, Strategy};
pub use split::{Split, check_cuts};
pub use tokenizer::{Tokenizer, TokenizerError};

/// A slice of a note's text that is embedded and found on its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Chunk {
    /// UTF-8 byte offset of the first byte in the note's text.
    pub start: usize,
    /// UTF-8 byte offset after the last byte.
    pub end: usize,
    /// Tokens of the chunk exactly as it is sent to the model: document prefix, lead and special
    /// tokens included.
    pub tokens: usize,
    /// The line of its lead, as an index that [`Split::lead_line`] knows.
    #[serde(skip)]
    pub line: Option<usize>,
    /// Text before the chunk that is sent with it: the header of the table that it continues, or the
    /// leading cells of that, or a heading that stands apart from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeat: Option<Span>,
    /// The larger piece of the text that it was cut from, if the text has such pieces.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Span>,
}

/// Why a text has no chunks.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// The settings leave no room for text.
    #[error(
        "max_tokens = {max_tokens} is too small: {special_tokens} special tokens and \
         {prefix_tokens} of the document prefix leave less than {least} for the text; set it to {} \
         or more",
        special_tokens + prefix_tokens + least
    )]
    NoRoom {
        /// The configured size of a chunk.
        max_tokens: usize,
        /// Tokens that the tokenizer adds to every text.
        special_tokens: usize,
        /// Tokens of the prefix.
        prefix_tokens: usize,
        /// The fewest tokens that must remain for the text.
        least: usize,
    },
    /// One character alone exceeds a chunk.
    #[error(
        "the character at byte {offset} alone takes {tokens} tokens, more than \
         max_tokens = {max_tokens} allows: raise it, or change the text"
    )]
    Indivisible {
        /// Byte offset of the character.
        offset: usize,
        /// Its tokens, as it would be sent.
        tokens: usize,
        /// The configured size of a chunk.
        max_tokens: usize,
    },
    /// No chunk has a token of its text.
    #[error(
        "its text at {start}..{end} has no token left after the tokenizer's normalisation \
         (only control or invisible characters?)"
    )]
    NoTokens {
        /// Byte offset of the first chunk.
        start: usize,
        /// Byte offset behind the last.
        end: usize,
    },
    /// A cut of an application is no place to cut.
    #[error("cut {index} at byte {offset} {reason}")]
    Cut {
        /// Its place in the list.
        index: usize,
        /// Bytes from the start of the text.
        offset: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The tokenizer could not encode the text.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}
