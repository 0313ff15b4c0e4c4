//! Finds the tokens of a word as BERT's tokenizers would make them, without making them.
//!
//! What the normalizer and the pre-tokenizer do with a character does not depend on its neighbours
//! (see `words`), so the library is asked once for each character. The model then takes the longest
//! entry of the vocabulary that the rest of a word begins with, which a walk along a trie finds. To
//! have the library encode a word takes about fifty times as long, and in a language that the
//! vocabulary hardly knows, most words are new.

use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer,
};
use unicode_normalization_alignments::char::canonical_combining_class;

use super::characters::{Characters, Letters};
use super::trie::Trie;

/// The vocabulary and the characters of one tokenizer.
pub(super) struct Counter {
    normalizer: BertNormalizer,
    characters: Characters<Becomes>,
    vocabulary: Vocabulary,
    /// They are matched in the text before anything else.
    added_tokens: Vec<String>,
}

struct Vocabulary {
    trie: Trie,
    /// A longer word is one unknown token.
    max_word_chars: usize,
}

/// What normalizer and pre-tokenizer make of a character.
#[derive(Debug, Clone)]
enum Becomes {
    Letter(char),
    /// A word of its own, of one token.
    Word,
    Nothing,
    Several(Box<[Part]>),
    /// An added token may begin here.
    Bracket(Part),
    /// Normalisation may move it, so its neighbours matter.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Part {
    Letter(char),
    Word,
    Break,
}

impl Counter {
    pub(super) fn new(
        normalizer: BertNormalizer,
        model: &WordPiece,
        added_tokens: Vec<String>,
    ) -> Self {
        Self {
            normalizer,
            characters: Characters::new(),
            vocabulary: Vocabulary {
                trie: Trie::new(
                    model.get_vocab().keys().map(String::as_str),
                    &model.continuing_subword_prefix,
                ),
                max_word_chars: model.max_input_chars_per_word,
            },
            added_tokens,
        }
    }

    /// Calls `each` with the first byte of every token of a word between separators, and the byte
    /// behind its last. `None` if the tokenizer itself must look at the word: it has an added token,
    /// or a character that normalisation may move.
    pub(super) fn tokens(
        &self,
        text: &str,
        letters: &mut Letters,
        mut each: impl FnMut(usize, usize),
    ) -> Option<()> {
        letters.clear();
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            let mut push = |part: Part| match part {
                Part::Letter(letter) => letters.push(letter, start, end),
                Part::Word => {
                    self.vocabulary.take_word(letters, &mut each);
                    each(start, end);
                }
                Part::Break => self.vocabulary.take_word(letters, &mut each),
            };
            match self.becomes(c) {
                Becomes::Letter(letter) => push(Part::Letter(*letter)),
                Becomes::Word => push(Part::Word),
                Becomes::Nothing => {}
                Becomes::Several(parts) => parts.iter().copied().for_each(push),
                Becomes::Bracket(part) => {
                    let rest = &text[start..];
                    if self
                        .added_tokens
                        .iter()
                        .any(|token| rest.starts_with(token))
                    {
                        return None;
                    }
                    push(*part);
                }
                Becomes::Unknown => return None,
            }
        }
        self.vocabulary.take_word(letters, &mut each);
        Some(())
    }

    fn becomes(&self, c: char) -> &Becomes {
        self.characters
            .get_or_init(c, || self.parts(c).unwrap_or(Becomes::Unknown))
    }

    fn parts(&self, c: char) -> Option<Becomes> {
        let mut normalized = NormalizedString::from(c.to_string());
        self.normalizer.normalize(&mut normalized).ok()?;
        let may_move = |c: char| canonical_combining_class(c) != 0;
        if normalized.get().chars().any(may_move) {
            return None;
        }
        let parts: Option<Box<[Part]>> = normalized.get().chars().map(part).collect();
        let parts = parts?;
        if self.added_tokens.iter().any(|token| token.starts_with(c)) {
            return match *parts {
                [part] => Some(Becomes::Bracket(part)),
                _ => None,
            };
        }
        Some(match *parts {
            [] => Becomes::Nothing,
            [Part::Letter(letter)] => Becomes::Letter(letter),
            // An ideograph gets spaces around it.
            [Part::Word] | [Part::Break, Part::Letter(_), Part::Break] => Becomes::Word,
            _ => Becomes::Several(parts),
        })
    }
}

impl Vocabulary {
    /// Removes the letters so far and calls `each` with their tokens.
    fn take_word(&self, letters: &mut Letters, each: &mut impl FnMut(usize, usize)) {
        let len = letters.word.len();
        if len == 0 {
            return;
        }
        let is_known =
            len <= self.max_word_chars && self.trie.split(&letters.word, &mut letters.ends);
        if !is_known {
            // All of the word is one unknown token.
            letters.ends.clear();
            letters.ends.push(len);
        }
        let mut begin = 0;
        for &end in &letters.ends {
            let (start, behind) = letters.bytes_of(begin..end);
            each(start, behind);
            begin = end;
        }
        letters.clear();
    }
}

/// What the pre-tokenizer does with a normalised character: a split on both sides keeps it, and
/// leaves out whitespace.
fn part(c: char) -> Option<Part> {
    let mut text = PreTokenizedString::from(format!("a{c}a"));
    BertPreTokenizer.pre_tokenize(&mut text).ok()?;
    let splits = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
    match splits.len() {
        1 => Some(Part::Letter(c)),
        2 => Some(Part::Break),
        _ => Some(Part::Word),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;
    use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

    use super::super::trained;
    use super::*;

    /// A tokenizer with this normalizer and a small vocabulary, and its counter.
    fn pair(normalizer: BertNormalizer) -> (Tokenizer, Counter) {
        let mut tokenizer = trained::wordpiece().raw().clone();
        tokenizer.with_normalizer(Some(normalizer)).unwrap();
        let ModelWrapper::WordPiece(model) = tokenizer.get_model() else {
            panic!("it is a WordPiece model");
        };
        let added = tokenizer.get_added_tokens_decoder();
        let contents = added
            .values()
            .map(|token: &AddedToken| token.content.clone());
        let counter = Counter::new(normalizer, model, contents.collect());
        (tokenizer, counter)
    }

    fn tokens(counter: &Counter, word: &str) -> Option<Vec<(usize, usize)>> {
        let mut tokens = Vec::new();
        let each = |start, end| tokens.push((start, end));
        counter.tokens(word, &mut Letters::default(), each)?;
        Some(tokens)
    }

    fn of_library(tokenizer: &Tokenizer, word: &str) -> Vec<(usize, usize)> {
        let encoding = tokenizer.encode(word, false).unwrap();
        encoding.get_offsets().to_vec()
    }

    #[test]
    fn every_character_has_the_tokens_of_the_library() {
        let (tokenizer, counter) = pair(BertNormalizer::default());
        let mut counted = 0;
        // Planes 0 and 1; the others have ideographs, and much that is unassigned.
        for c in (0..0x2_0000).filter_map(char::from_u32) {
            let word = format!("sto{c}rm");
            if let Some(tokens) = tokens(&counter, &word) {
                assert_eq!(tokens, of_library(&tokenizer, &word), "{:x}", c as u32);
                counted += 1;
            }
        }
        assert!(counted > 125_000, "{counted}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn every_word_has_the_tokens_of_the_library(
            word in "(\\PC|[a-zA-Z]{1,6}|[\\p{M}]{1,3}|[\\p{Lu}\\p{P}\\p{Han}]{1,3}|\\[SEP|SEP\\]|\\[SEP\\]|[\u{0}-\u{9f}]){0,12}|[a-z]{98,102}",
            clean in any::<bool>(),
            ideographs in any::<bool>(),
            strip in any::<Option<bool>>(),
            lowercase in any::<bool>(),
        ) {
            let (tokenizer, counter) = pair(BertNormalizer::new(clean, ideographs, strip, lowercase));
            if let Some(tokens) = tokens(&counter, &word) {
                prop_assert_eq!(tokens, of_library(&tokenizer, &word));
            }
        }
    }
}
