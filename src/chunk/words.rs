//! Tokenizers that look at one word at a time.
//!
//! For the tokenizers of the BERT family (BertNormalizer, BertPreTokenizer,
//! WordPiece) the tokens of a text are the tokens of its words, one after the
//! other, so that a word has to be encoded only once and a chunk's count is a
//! sum. Why that is exact, for a text cut at a position `p` between two tokens
//! where one of the two neighbouring characters is *isolating* (see
//! [`Words::isolating`]):
//!
//! 1. *Added tokens* (`[SEP]`) are matched first, leftmost-longest, in the raw
//!    text. No match contains `p` (it would be a token around `p`). A match
//!    that begins before `p` ends before it, so the search starts afresh at `p`
//!    in both cases. No added token looks at its neighbours (`lstrip`,
//!    `rstrip`, `single_word` are refused below), and none contains whitespace,
//!    so a cut at whitespace needs no knowledge of the tokens at all.
//! 2. *The normalizer* maps or removes single characters, except for NFD, which
//!    sorts runs of combining marks. The isolating character is not one, is not
//!    removed, and so ends such a run.
//! 3. *The pre-tokenizer* splits at whitespace, around punctuation and (through
//!    the normalizer's spaces) around ideographs. The isolating character stays
//!    one of these under the normalizer, so there is a split at `p` in any case,
//!    and all other splits depend on single characters.
//! 4. *WordPiece* sees one split at a time.
//! 5. The post-processor adds a constant, which `Tokenizer` checks.
//!
//! A property test compares the sums with real counts.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokenizers::Model;
use tokenizers::models::ModelWrapper;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

/// Longer words are rare and seldom repeat: real token offsets are worth their cost.
const MAX_REMEMBERED_BYTES: usize = 32;

/// A token that spans more is cut into pieces: BERT makes one `[UNK]` of any
/// word over 100 characters, Unigram of any run of unknown ones, and a megabyte
/// of base64 would be one token.
pub(super) const MAX_UNIT_BYTES: usize = 64;

/// A word of more tokens is handled token by token, so that a small chunk can
/// be cut inside it. Not above the least room of a chunk.
pub(super) const MAX_TOKENS_OF_A_WORD: usize = 8;

/// Words in one memo at most: a few megabytes. Frequent words are among the first.
const MAX_REMEMBERED_WORDS: usize = 1 << 15;

/// Searching a word for more added tokens than this costs more than it saves.
const MAX_ADDED_TOKENS: usize = 16;

/// What is known about a word-local tokenizer.
pub(super) struct Words {
    lowercase: bool,
    added_tokens: Vec<String>,
    ideographs_apart: bool,
    /// Each is used by one text at a time, so that texts chunked in parallel do not
    /// wait for each other.
    memos: Mutex<Vec<Memo>>,
}

/// Token counts of words seen before.
#[derive(Default)]
pub(super) struct Memo(HashMap<Box<str>, u8>);

impl Words {
    /// `None` if the tokenizer may look beyond a word.
    pub(super) fn of(tokenizer: &tokenizers::Tokenizer) -> Option<Self> {
        let Some(NormalizerWrapper::BertNormalizer(normalizer)) = tokenizer.get_normalizer() else {
            return None;
        };
        let Some(PreTokenizerWrapper::BertPreTokenizer(_)) = tokenizer.get_pre_tokenizer() else {
            return None;
        };
        let ModelWrapper::WordPiece(model) = tokenizer.get_model() else {
            return None;
        };

        // Without the unknown token, one unknown word makes the whole text fail.
        model.token_to_id(&model.unk_token)?;

        let plain = tokenizer.get_added_tokens_decoder().values().all(|token| {
            !token.lstrip
                && !token.rstrip
                && !token.single_word
                && !token.normalized
                && token.content.len() <= MAX_UNIT_BYTES
                && !token.content.contains(char::is_whitespace)
        });
        if !plain {
            return None;
        }
        let added_tokens = tokenizer.get_added_tokens_decoder();
        Some(Self {
            lowercase: normalizer.lowercase,
            added_tokens: added_tokens
                .values()
                .map(|token| token.content.clone())
                .collect(),
            ideographs_apart: normalizer.handle_chinese_chars,
            memos: Mutex::default(),
        })
    }

    /// Whitespace that the tokenizer splits at. BERT's normalizer takes the other three
    /// characters for control characters and removes them, so that the words on both
    /// sides become one.
    pub(super) fn separates(c: char) -> bool {
        c.is_whitespace() && !matches!(c, '\u{b}' | '\u{c}' | '\u{85}')
    }

    /// Whether the tokenizer certainly splits around `c`: a separator, punctuation
    /// or an ideograph. The punctuation beyond ASCII is what ends sentences and
    /// clauses; a character that is missing here only costs one more count.
    pub(super) fn isolating(&self, c: char) -> bool {
        Self::separates(c)
            || c.is_ascii_punctuation()
            || matches!(
                c,
                '«' | '»'
                    | '،'
                    | '؛'
                    | '؟'
                    | '।'
                    | '–'
                    | '—'
                    | '‘'
                    | '’'
                    | '“'
                    | '”'
                    | '…'
                    | '、'
                    | '。'
                    | '「'
                    | '」'
                    | '『'
                    | '』'
                    | '！'
                    | '，'
                    | '：'
                    | '；'
                    | '？'
            )
            || (self.ideographs_apart
                && matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'))
    }

    /// Whether `word` is short enough to be looked up whole.
    pub(super) fn is_short(word: &str) -> bool {
        word.len() <= MAX_REMEMBERED_BYTES
    }

    /// Whether `word` may be counted in parts, because no added token can lie across
    /// two of them. An isolating character is then one token: in the vocabulary or
    /// unknown.
    pub(super) fn may_be_split(&self, word: &str) -> bool {
        self.added_tokens.len() <= MAX_ADDED_TOKENS
            && !self
                .added_tokens
                .iter()
                .any(|token| word.contains(token.as_str()))
    }

    /// Tokens of a word of ASCII punctuation and vocabulary entries: one each.
    /// `None` if it has to be encoded. WordPiece takes the longest entry that
    /// the word begins with, which is the word itself if it is one.
    pub(super) fn count_known(&self, model: &WordPiece, word: &str) -> Option<usize> {
        if !word.is_ascii() || !self.may_be_split(word) {
            return None;
        }
        let mut tokens = 0;
        for part in word.split_inclusive(|c: char| c.is_ascii_punctuation()) {
            let letters = part.trim_end_matches(|c: char| c.is_ascii_punctuation());
            tokens += part.len() - letters.len();
            if letters.is_empty() {
                continue;
            }
            let known = letters.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && match self.lowercase {
                    true => model.token_to_id(&letters.to_ascii_lowercase()),
                    false => model.token_to_id(letters),
                }
                .is_some();
            if !known {
                return None;
            }
            tokens += 1;
        }
        Some(tokens)
    }

    /// Tokens of a word between separators, if it is one to remember: from the
    /// memo, else from `count`. `None` for a word that has to be looked at token
    /// by token.
    pub(super) fn count<E>(
        &self,
        memo: &mut Memo,
        word: &str,
        count: impl FnOnce() -> Result<usize, E>,
    ) -> Result<Option<usize>, E> {
        if !Self::is_short(word) {
            return Ok(None);
        }
        if let Some(&tokens) = memo.0.get(word) {
            return Ok(Some(usize::from(tokens)).filter(|&tokens| tokens <= MAX_TOKENS_OF_A_WORD));
        }
        let tokens = count()?;
        if memo.0.len() < MAX_REMEMBERED_WORDS {
            // A remembered word has at most as many tokens as bytes, or so many
            // that the exact number does not matter.
            memo.0
                .insert(word.into(), u8::try_from(tokens).unwrap_or(u8::MAX));
        }
        Ok(Some(tokens).filter(|&tokens| tokens <= MAX_TOKENS_OF_A_WORD))
    }

    pub(super) fn borrow_memo(&self) -> Memo {
        self.memos
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()
            .unwrap_or_default()
    }

    pub(super) fn return_memo(&self, memo: Memo) {
        self.memos
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(memo);
    }
}
