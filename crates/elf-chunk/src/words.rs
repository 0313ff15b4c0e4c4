//! Tokenizers that look at one word at a time.
//!
//! For the tokenizers of the BERT family (BertNormalizer, BertPreTokenizer,
//! WordPiece) the tokens of a text are the tokens of its words, one after the
//! other. So a word has to be encoded only once, and a chunk's count is a sum.
//! Why that is exact, for a text cut at a position `p` between two tokens
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

use tokenizers::Model;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::characters::Letters;
use super::tokenizer::Token;
use super::wordpiece::Counter;

/// Longer words are rare: real token offsets are worth their cost.
const MAX_SHORT_BYTES: usize = 32;

/// A token that spans more is cut into pieces: else a megabyte of base64 would be
/// one token. BERT makes one `[UNK]` of any word over 100 characters, Unigram of
/// any run of unknown ones.
pub(super) const MAX_UNIT_BYTES: usize = 64;

/// A word of more tokens is handled token by token, so that a small chunk can
/// be cut inside it. Not above the least room of a chunk.
pub(super) const MAX_TOKENS_OF_A_WORD: usize = 8;

/// Searching a word for more added tokens than this costs more than it saves.
const MAX_ADDED_TOKENS: usize = 16;

/// What is known about a word-local tokenizer.
pub(super) struct Words {
    added_tokens: Vec<String>,
    ideographs_apart: bool,
    counter: Counter,
}

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
        let added_tokens = added_tokens.values().map(|token| token.content.clone());
        let added_tokens: Vec<String> = added_tokens.collect();
        Some(Self {
            counter: Counter::new(*normalizer, model, added_tokens.clone()),
            added_tokens,
            ideographs_apart: normalizer.handle_chinese_chars,
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

    /// Whether `word` is short enough to be counted whole.
    pub(super) fn is_short(word: &str) -> bool {
        word.len() <= MAX_SHORT_BYTES
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

    /// The number of tokens of a word between separators, as the `wordpiece` counter or else `count`
    /// finds it. `None` for a word that has to be looked at token by token.
    pub(super) fn count<E>(
        &self,
        word: &str,
        letters: &mut Letters,
        count: impl FnOnce() -> Result<usize, E>,
    ) -> Result<Option<usize>, E> {
        if !Self::is_short(word) {
            return Ok(None);
        }
        let mut tokens = 0;
        let tokens = match self.counter.tokens(word, letters, |_, _| tokens += 1) {
            Some(()) => tokens,
            None => count()?,
        };
        Ok(Some(tokens).filter(|&tokens| tokens <= MAX_TOKENS_OF_A_WORD))
    }

    /// The number of tokens of a text. `None` if the tokenizer itself must make them.
    pub(super) fn count_all(&self, text: &str) -> Option<usize> {
        let mut letters = Letters::default();
        let mut tokens = 0;
        for word in text.split(Self::separates) {
            self.counter
                .tokens(word, &mut letters, |_, _| tokens += 1)?;
        }
        Some(tokens)
    }

    /// The tokens of a word between separators. `None` if the tokenizer itself must make them.
    pub(super) fn tokens(&self, word: &str, letters: &mut Letters) -> Option<Vec<Token>> {
        let mut tokens = Vec::new();
        let each = |start, end| {
            tokens.push(Token {
                start,
                end,
                begins_piece: false,
            });
        };
        self.counter.tokens(word, letters, each)?;
        Some(tokens)
    }
}
