//! The tokenizer of a model, used to count.

use sha2::{Digest, Sha256};

use super::pieces;
use super::scanner::Scanner;
use super::words::Words;

/// A tokenizer that never truncates and never pads.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    fingerprint: String,
    special_tokens: usize,
    words: Option<Words>,
    scanner: Option<Scanner>,
    has_independent_pieces: bool,
}

/// A token of a text.
pub(super) struct Token {
    /// Its first byte in the text. Tokens of one character share its range; characters that the
    /// tokenizer drops are in none.
    pub(super) start: usize,
    /// After its last byte.
    pub(super) end: usize,
    /// Whether the pre-tokenizer has split the text before it.
    pub(super) begins_piece: bool,
}

/// Why a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is not a tokenizer, or one of a kind that is not supported.
    #[error("failed to parse the tokenizer.json: {0}")]
    Parse(String),
    /// The tokenizer failed on a text.
    #[error("failed to tokenize {bytes} bytes of text: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
}

impl Tokenizer {
    /// The tokenizer that a `tokenizer.json` describes. Its own truncation and
    /// padding are disabled: they would hide text from the count.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        let parse = |error: tokenizers::Error| TokenizerError::Parse(error.to_string());
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(parse)?;
        inner
            .with_padding(None)
            .with_truncation(None)
            .map_err(parse)?;

        // Every common post-processor adds the same tokens to every text. One that
        // does not would silently make counts wrong.
        let added = |text: &str| -> Result<usize, TokenizerError> {
            let with = inner.encode_fast(text, true).map_err(parse)?.len();
            let without = inner.encode_fast(text, false).map_err(parse)?.len();
            Ok(with - without)
        };
        let special_tokens = added("")?;
        if added("a text")? != special_tokens {
            return Err(TokenizerError::Parse(
                "its post_processor adds a different number of tokens to different texts".into(),
            ));
        }
        Ok(Self {
            fingerprint: format!("{:x}", Sha256::digest(json)),
            special_tokens,
            words: Words::of(&inner),
            scanner: Scanner::new(&inner, json),
            has_independent_pieces: pieces::are_independent(&inner),
            inner,
        })
    }

    /// SHA-256 of the `tokenizer.json`, in hexadecimal.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Tokens that the tokenizer adds to every text, like `[CLS]` and `[SEP]`.
    pub fn special_tokens(&self) -> usize {
        self.special_tokens
    }

    /// Whether the count of a text is the sum over its words (see the `words` module).
    /// Chunking is then several times faster.
    pub fn is_word_local(&self) -> bool {
        self.words.is_some()
    }

    /// Tokens of `text` as it is sent: special tokens included.
    pub fn count(&self, text: &str) -> Result<usize, TokenizerError> {
        Ok(self.count_plain(text)? + self.special_tokens)
    }

    /// Tokens of `text` itself.
    pub(super) fn count_plain(&self, text: &str) -> Result<usize, TokenizerError> {
        if let Some(tokens) = self.words.as_ref().and_then(|words| words.count_all(text)) {
            return Ok(tokens);
        }
        if let Some(scanner) = &self.scanner
            && let Some(tokens) = scanner.count(text, |word| self.library_tokens(word))?
        {
            return Ok(tokens);
        }
        let encoding = self.inner.encode_fast(text, false);
        Ok(encoding.map_err(|error| encode_error(text, &error))?.len())
    }

    /// The tokens of `text` itself, in its order.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<Token>, TokenizerError> {
        if let Some(scanner) = &self.scanner
            && let Some(tokens) = scanner.tokens(text, |word| self.library_tokens(word))?
        {
            return Ok(tokens);
        }
        self.library_tokens(text)
    }

    fn library_tokens(&self, text: &str) -> Result<Vec<Token>, TokenizerError> {
        let encoding = self.inner.encode(text, false);
        let encoding = encoding.map_err(|error| encode_error(text, &error))?;
        let mut last = None;
        let tokens = encoding.get_offsets().iter().zip(encoding.get_word_ids());
        let token = |(&(start, end), &piece): (&(usize, usize), &Option<u32>)| {
            let before = std::mem::replace(&mut last, piece);
            Token {
                start,
                end,
                begins_piece: piece.is_some() && before.is_some() && before != piece,
            }
        };
        Ok(tokens.map(token).collect())
    }

    /// Tokens of `text` before the piece that begins at `position`; `None` if none begins there.
    pub(super) fn count_before_piece(
        &self,
        text: &str,
        position: usize,
    ) -> Result<Option<usize>, TokenizerError> {
        let tokens = self.tokens(text)?;
        let at = tokens.iter().position(|token| token.start >= position);
        Ok(at.filter(|&at| {
            // Some tokenizers leave the space out of the offsets.
            let begins = tokens[at].begins_piece && tokens[at].start <= position + 1;
            begins && at > 0 && tokens[at - 1].end <= position
        }))
    }

    /// Whether a chunk can be counted from the counts of the running text (see `pieces`).
    pub(super) fn has_independent_pieces(&self) -> bool {
        self.has_independent_pieces
    }

    pub(super) fn words(&self) -> Option<&Words> {
        self.words.as_ref()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("fingerprint", &self.fingerprint)
            .field("special_tokens", &self.special_tokens)
            .field("word_local", &self.is_word_local())
            .finish_non_exhaustive()
    }
}

fn encode_error(text: &str, error: &tokenizers::Error) -> TokenizerError {
    TokenizerError::Encode {
        bytes: text.len(),
        reason: error.to_string(),
    }
}
