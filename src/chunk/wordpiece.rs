//! Counts the tokens of a word as BERT's tokenizers would make them, without making them.
//!
//! What the normalizer and the pre-tokenizer do with a character does not depend on its neighbours
//! (see `words`), so the library is asked once for each character. The model then takes the longest
//! entry of the vocabulary that the rest of a word begins with, which a walk along a trie finds. To
//! have the library encode a word takes about fifty times as long, and most words of a language
//! that the vocabulary hardly knows are new.

use std::collections::HashMap;
use std::sync::OnceLock;

use foldhash::fast::FixedState;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    Model, NormalizedString, Normalizer, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer,
};
use unicode_normalization_alignments::char::canonical_combining_class;

/// Characters that are looked up together, when a text has the first of them.
const PAGE: usize = 128;
const PAGES: usize = (char::MAX as usize + 1) / PAGE;

/// The vocabulary and the characters of one tokenizer.
pub(super) struct Counter {
    normalizer: BertNormalizer,
    pages: Box<[OnceLock<Page>]>,
    trie: Trie,
    /// A longer word is one unknown token.
    max_word_chars: usize,
    /// They are matched in the text before anything else.
    added_tokens: Vec<String>,
}

type Page = Box<[Becomes; PAGE]>;

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
    /// Fails on no vocabulary.
    pub(super) fn new(
        normalizer: BertNormalizer,
        model: &WordPiece,
        added_tokens: Vec<String>,
    ) -> Self {
        Self {
            normalizer,
            pages: std::iter::repeat_with(OnceLock::new).take(PAGES).collect(),
            trie: Trie::of(model),
            max_word_chars: model.max_input_chars_per_word,
            added_tokens,
        }
    }

    /// Tokens of a word between separators. `None` if the tokenizer itself must count it: it has
    /// an added token, or a character that normalisation may move. `letters` is a buffer.
    pub(super) fn count(&self, word: &str, letters: &mut Vec<char>) -> Option<usize> {
        letters.clear();
        let mut tokens = 0;
        for (offset, c) in word.char_indices() {
            match self.becomes(c) {
                Becomes::Letter(letter) => letters.push(*letter),
                Becomes::Word => tokens += self.take_word(letters) + 1,
                Becomes::Nothing => {}
                Becomes::Several(parts) => {
                    tokens += parts
                        .iter()
                        .map(|part| self.push(*part, letters))
                        .sum::<usize>();
                }
                Becomes::Bracket(part) => {
                    let rest = &word[offset..];
                    if self
                        .added_tokens
                        .iter()
                        .any(|token| rest.starts_with(token))
                    {
                        return None;
                    }
                    tokens += self.push(*part, letters);
                }
                Becomes::Unknown => return None,
            }
        }
        Some(tokens + self.take_word(letters))
    }

    fn push(&self, part: Part, letters: &mut Vec<char>) -> usize {
        match part {
            Part::Letter(letter) => {
                letters.push(letter);
                0
            }
            Part::Word => self.take_word(letters) + 1,
            Part::Break => self.take_word(letters),
        }
    }

    /// The tokens of the letters so far, which it removes.
    fn take_word(&self, letters: &mut Vec<char>) -> usize {
        if letters.is_empty() {
            return 0;
        }
        let tokens = match letters.len() > self.max_word_chars {
            true => None,
            false => self.trie.count(letters),
        };
        letters.clear();
        tokens.unwrap_or(1)
    }

    fn becomes(&self, c: char) -> &Becomes {
        let place = c as usize;
        let page = self.pages[place / PAGE].get_or_init(|| {
            let first = place / PAGE * PAGE;
            Box::new(std::array::from_fn(|n| self.look_up(first + n)))
        });
        &page[place % PAGE]
    }

    fn look_up(&self, code_point: usize) -> Becomes {
        let c = u32::try_from(code_point).ok().and_then(char::from_u32);
        c.and_then(|c| self.parts(c)).unwrap_or(Becomes::Unknown)
    }

    fn parts(&self, c: char) -> Option<Becomes> {
        let mut normalized = NormalizedString::from(c.to_string());
        self.normalizer.normalize(&mut normalized).ok()?;
        let is_ordered = |c: char| canonical_combining_class(c) != 0;
        if normalized.get().chars().any(is_ordered) {
            return None;
        }
        let parts: Option<Box<[Part]>> = normalized.get().chars().map(part).collect();
        let parts = parts?;
        let begins_token = |token: &String| token.starts_with(c);
        if self.added_tokens.iter().any(begins_token) {
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

/// The vocabulary, character by character.
#[derive(Default)]
struct Trie {
    /// From a node and a character to the next node.
    edges: HashMap<u64, Edge, FixedState>,
}

#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    /// Whether an entry ends here.
    ends: bool,
}

/// Where the first entry of a word begins.
const HEAD: u32 = 0;
/// Where the entries that continue a word begin.
const TAIL: u32 = 1;

impl Trie {
    fn of(model: &WordPiece) -> Self {
        let mut trie = Self::default();
        for entry in model.get_vocab().into_keys() {
            if let Some(tail) = entry.strip_prefix(&model.continuing_subword_prefix) {
                trie.insert(TAIL, tail);
            }
            trie.insert(HEAD, &entry);
        }
        trie
    }

    fn insert(&mut self, root: u32, entry: &str) {
        let mut node = root;
        let mut chars = entry.chars().peekable();
        while let Some(c) = chars.next() {
            let next = u32::try_from(self.edges.len()).expect("a vocabulary fits memory") + 2;
            let edge = self.edges.entry(key(node, c)).or_insert(Edge {
                to: next,
                ends: false,
            });
            edge.ends |= chars.peek().is_none();
            node = edge.to;
        }
    }

    /// Tokens of a word; `None` if a part of it is unknown, which makes all of it unknown.
    fn count(&self, word: &[char]) -> Option<usize> {
        let (mut tokens, mut done, mut root) = (0, 0, HEAD);
        while done < word.len() {
            done += self.longest(root, &word[done..])?;
            tokens += 1;
            root = TAIL;
        }
        Some(tokens)
    }

    /// Characters of the longest entry that `rest` begins with.
    fn longest(&self, root: u32, rest: &[char]) -> Option<usize> {
        let mut node = root;
        let mut longest = None;
        for (place, c) in rest.iter().enumerate() {
            let Some(edge) = self.edges.get(&key(node, *c)) else {
                break;
            };
            if edge.ends {
                longest = Some(place + 1);
            }
            node = edge.to;
        }
        longest
    }
}

fn key(node: u32, c: char) -> u64 {
    u64::from(node) << 21 | u64::from(c)
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

    #[test]
    fn every_character_counts_as_in_the_library() {
        let (tokenizer, counter) = pair(BertNormalizer::default());
        let mut letters = Vec::new();
        let mut counted = 0;
        // Planes 0 and 1; the others have ideographs, and much that is unassigned.
        for c in (0..0x2_0000).filter_map(char::from_u32) {
            let word = format!("sto{c}rm");
            let expected = tokenizer.encode_fast(word.as_str(), false).unwrap().len();
            let Some(tokens) = counter.count(&word, &mut letters) else {
                continue;
            };
            assert_eq!(tokens, expected, "{:x}", c as u32);
            counted += 1;
        }
        assert!(counted > 125_000, "{counted}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn every_word_counts_as_in_the_library(
            word in "(\\PC|[a-zA-Z]{1,6}|[\\p{M}]{1,3}|[\\p{Lu}\\p{P}\\p{Han}]{1,3}|\\[SEP|SEP\\]|\\[SEP\\]|[\u{0}-\u{9f}]){0,12}|[a-z]{98,102}",
            clean in any::<bool>(),
            ideographs in any::<bool>(),
            strip in any::<Option<bool>>(),
            lowercase in any::<bool>(),
        ) {
            let (tokenizer, counter) = pair(BertNormalizer::new(clean, ideographs, strip, lowercase));
            if let Some(tokens) = counter.count(&word, &mut Vec::new()) {
                let expected = tokenizer.encode_fast(word.as_str(), false).unwrap().len();
                prop_assert_eq!(tokens, expected);
            }
        }
    }
}
