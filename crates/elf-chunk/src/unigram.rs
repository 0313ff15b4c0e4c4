//! Finds the tokens of a word as XLM-RoBERTa's kind of Unigram tokenizers would make them, without
//! making them.
//!
//! Such a tokenizer normalises the text, splits it at whitespace, writes `▁` before each word, and
//! takes the tokens of the word whose scores have the largest sum (Viterbi). So a word's tokens do not
//! depend on its neighbours:
//!
//! - *The normalizer* maps single characters, except that some compose with the ones before, and that
//!   a `Precompiled` one looks at a grapheme as a whole. The library is asked once for each character
//!   by itself. A word with a character that may compose, or is no grapheme by itself beside
//!   others, is left to the library. Whitespace does neither, except with a mark that follows it: then the
//!   library gets all of the text.
//! - *Added tokens* are looked for by the caller in the text. Normalisation may make one as well, in a word
//!   that it changes: such words are searched.

use serde::Deserialize;
use tokenizers::models::unigram::Unigram as Model;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;
use tokenizers::{ModelWrapper, NormalizedString, Normalizer, Tokenizer};
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};
use unicode_segmentation::UnicodeSegmentation;

use super::characters::{Characters, Letters};
use super::pieces;
use super::tokenizer::Token;
use super::trie::{HEAD, TAIL, Trie};

/// What stands before a word.
const MARK: char = '▁';

/// What an unknown character scores below the worst entry, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The vocabulary and the characters of one tokenizer.
pub(super) struct Unigram {
    normalizer: NormalizerWrapper,
    characters: Characters<Becomes>,
    /// Looked for in words that the normalizer changes.
    added_tokens: Vec<String>,
    trie: Trie,
    /// The score of the entry that ends at each node of the trie.
    scores: Vec<f64>,
    /// The score of the mark alone, if it is an entry.
    mark: Option<f64>,
    /// The node of the entry that stands for what is unknown, from both roots.
    unknown_nodes: [Option<usize>; 2],
    unknown_score: f64,
}

/// What the normalizer makes of a character.
#[derive(Debug, Clone)]
enum Becomes {
    Letter(char),
    Letters(Box<[char]>),
    Nothing,
    /// Words end here.
    Space,
    /// What it becomes depends on its neighbours.
    Unknown,
    /// Also on whitespace before it.
    Mark,
}

/// What the library does not tell of its model.
#[derive(Deserialize)]
struct File {
    model: ModelOfFile,
}

#[derive(Deserialize)]
struct ModelOfFile {
    unk_id: Option<usize>,
}

/// Memory that is used again for each word.
#[derive(Debug, Default)]
struct Buffer {
    letters: Letters,
    /// The best way to each place between letters.
    best: Vec<Way>,
}

#[derive(Debug, Clone, Copy)]
struct Way {
    score: f64,
    /// Where the last token of the way begins.
    begin: usize,
    is_unknown: bool,
}

impl Unigram {
    /// `None` if the tokenizer that `json` describes is of another kind.
    pub(super) fn new(tokenizer: &Tokenizer, json: &[u8]) -> Option<Self> {
        let ModelWrapper::Unigram(model) = tokenizer.get_model() else {
            return None;
        };
        let normalizer = tokenizer.get_normalizer()?;
        if !splits_words(tokenizer.get_pre_tokenizer()?) || !is_by_character(normalizer) {
            return None;
        }
        let added_tokens = tokenizer.get_added_tokens_decoder();
        let contents = added_tokens.values().map(|token| token.content.clone());
        let added_tokens: Vec<String> = contents.collect();
        if added_tokens
            .iter()
            .any(|token| token.contains(char::is_whitespace))
        {
            return None;
        }
        let file: File = serde_json::from_slice(json).ok()?;
        Self::of_model(model, file.model.unk_id?, normalizer.clone(), added_tokens)
    }

    fn of_model(
        model: &Model,
        unknown: usize,
        normalizer: NormalizerWrapper,
        added_tokens: Vec<String>,
    ) -> Option<Self> {
        if model.byte_fallback() || model.alpha.is_some_and(|alpha| alpha != 0.0) {
            return None;
        }
        let entries: Vec<(&str, f64)> = model
            .iter()
            .map(|(entry, score)| (&**entry, *score))
            .collect();
        let mark = MARK.to_string();
        let trie = Trie::new(entries.iter().map(|(entry, _)| *entry), &mark);
        let mut scores = vec![f64::NAN; trie.nodes()];
        let mut unigram = Self {
            normalizer,
            characters: Characters::new(),
            added_tokens,
            mark: None,
            unknown_nodes: [None; 2],
            unknown_score: model.min_score - UNKNOWN_PENALTY,
            trie,
            scores: Vec::new(),
        };
        // The last of two equal entries counts.
        for (id, (entry, score)) in entries.into_iter().enumerate() {
            let heads = unigram.trie.node_of(HEAD, entry);
            let tail = entry.strip_prefix(MARK);
            if tail == Some("") {
                unigram.mark = Some(score);
            }
            let tails = tail.and_then(|tail| unigram.trie.node_of(TAIL, tail));
            for (root, node) in [(HEAD, heads), (TAIL, tails)] {
                let Some(node) = node else { continue };
                scores[node] = score;
                if id == unknown {
                    unigram.unknown_nodes[root] = Some(node);
                }
            }
        }
        unigram.scores = scores;
        Some(unigram)
    }

    /// Calls `each` with the tokens of a text. Returns false if the library must make all of them; it
    /// makes those of a single word with `library`.
    pub(super) fn scan<E>(
        &self,
        text: &str,
        mut library: impl FnMut(&str) -> Result<Vec<Token>, E>,
        mut each: impl FnMut(Token),
    ) -> Result<bool, E> {
        let mut buffer = Buffer::default();
        let mut is_behind_token = false;
        let mut begin = 0;
        loop {
            let Some(word) = self.read_word(text, begin, &mut buffer.letters) else {
                return Ok(false);
            };
            if word.is_unknown {
                for (place, token) in library(&text[begin..word.end])?.into_iter().enumerate() {
                    each(Token {
                        start: begin + token.start,
                        end: begin + token.end,
                        begins_piece: token.begins_piece || (place == 0 && is_behind_token),
                    });
                    is_behind_token = true;
                }
            } else if !buffer.letters.word.is_empty() {
                self.split(&mut buffer, |start, end, begins_word| {
                    each(Token {
                        start,
                        end,
                        begins_piece: begins_word && is_behind_token,
                    });
                });
                is_behind_token = true;
            }
            match text[word.end..].chars().next() {
                Some(space) => begin = word.end + space.len_utf8(),
                None => return Ok(true),
            }
        }
    }

    /// Fills `letters` with the word that begins here. `None` if it composes with the whitespace before.
    fn read_word(&self, text: &str, begin: usize, letters: &mut Letters) -> Option<Word> {
        letters.clear();
        let (mut is_unknown, mut is_changed) = (false, false);
        let mut end = text.len();
        for (offset, c) in text[begin..].char_indices() {
            let start = begin + offset;
            let behind = start + c.len_utf8();
            match self.becomes(c) {
                Becomes::Letter(letter) => {
                    letters.push(*letter, start, behind);
                    is_changed |= *letter != c;
                }
                Becomes::Letters(several) => {
                    several
                        .iter()
                        .for_each(|&letter| letters.push(letter, start, behind));
                    is_changed = true;
                }
                Becomes::Nothing => is_changed = true,
                Becomes::Space => {
                    end = start;
                    break;
                }
                Becomes::Mark if offset == 0 && begin > 0 => return None,
                Becomes::Unknown | Becomes::Mark => is_unknown = true,
            }
        }
        if is_changed && !is_unknown {
            let word: String = letters.word.iter().collect();
            is_unknown = self
                .added_tokens
                .iter()
                .any(|token| word.contains(token.as_str()));
        }
        Some(Word { end, is_unknown })
    }

    fn becomes(&self, c: char) -> &Becomes {
        self.characters.get_or_init(c, || self.find_out(c))
    }

    fn find_out(&self, c: char) -> Becomes {
        let text = c.to_string();
        let joins = |before: &str, after: &str| {
            let both = [before, after].concat();
            both.graphemes(true).count() == 1
        };
        if joins(" ", &text) {
            return Becomes::Mark;
        }
        let mut normalized = NormalizedString::from(text.as_str());
        if self.normalizer.normalize(&mut normalized).is_err() {
            return Becomes::Unknown;
        }
        let normalized = normalized.get();
        let composes = |text: &str| {
            is_nfc_quick(text.chars()) != IsNormalized::Yes
                || text.chars().any(|c| canonical_combining_class(c) != 0)
        };
        let is_alone = !joins("a", &text) && !joins(&text, "a") && !joins(&text, &text);
        let letters: Box<[char]> = normalized.chars().collect();
        match *letters {
            [] if is_alone => Becomes::Nothing,
            [..] if letters.iter().all(|c| c.is_whitespace()) => Becomes::Space,
            [..] if !is_alone
                || composes(normalized)
                || letters.iter().any(|&c| c.is_whitespace() || c == MARK) =>
            {
                Becomes::Unknown
            }
            [letter] => Becomes::Letter(letter),
            [..] => Becomes::Letters(letters),
        }
    }

    /// Calls `each` with the first byte of every token of the word in `buffer`, the byte behind its last,
    /// and whether it is the first.
    fn split(&self, buffer: &mut Buffer, mut each: impl FnMut(usize, usize, bool)) {
        let Buffer { letters, best } = buffer;
        self.find_best(&letters.word, best);

        // Unknown characters beside each other are one token.
        let mut place = best.len() - 1;
        let mut is_unknown = false;
        letters.ends.clear();
        while place > 0 {
            let way = best[place];
            if !(is_unknown && way.is_unknown) {
                letters.ends.push(place);
            }
            is_unknown = way.is_unknown;
            place = way.begin;
        }
        let mut begin = 0;
        for &end in letters.ends.iter().rev() {
            // The mark has the bytes of the first letter.
            let (first, behind) = letters.bytes_of(begin.max(1) - 1..(end - 1).max(1));
            each(first, behind, begin == 0);
            begin = end;
        }
    }

    /// Fills `best` with the best ways through the mark and the letters of a word. Equal ways: the one
    /// found first, as in the library.
    fn find_best(&self, word: &[char], best: &mut Vec<Way>) {
        let none = Way {
            score: f64::NEG_INFINITY,
            begin: usize::MAX,
            is_unknown: false,
        };
        best.clear();
        best.resize(word.len() + 2, none);
        let offer = |best: &mut [Way], end: usize, way: Way| {
            if best[end].begin == usize::MAX || way.score > best[end].score {
                best[end] = way;
            }
        };
        best[0].score = 0.0;
        for begin in 0..=word.len() {
            let so_far = best[begin].score;
            let mut has_single = false;
            let (root, rest) = match begin {
                0 => (TAIL, word),
                _ => (HEAD, &word[begin - 1..]),
            };
            if begin == 0
                && let Some(score) = self.mark
            {
                has_single = true;
                let way = Way {
                    score: score + so_far,
                    begin,
                    is_unknown: false,
                };
                offer(best, 1, way);
            }
            self.trie.each_prefix(root, rest, |letters, node| {
                let end = match begin {
                    0 => letters + 1,
                    _ => begin + letters,
                };
                has_single |= end == begin + 1;
                let way = Way {
                    score: self.scores[node] + so_far,
                    begin,
                    is_unknown: self.unknown_nodes[root] == Some(node),
                };
                offer(best, end, way);
            });
            if !has_single {
                let way = Way {
                    score: self.unknown_score + so_far,
                    begin,
                    is_unknown: true,
                };
                offer(best, begin + 1, way);
            }
        }
    }
}

/// A word that was read.
struct Word {
    /// The byte behind its last: whitespace, or the text's end.
    end: usize,
    /// The library must make its tokens.
    is_unknown: bool,
}

/// Whether words are split at whitespace and get a mark.
fn splits_words(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    let PreTokenizerWrapper::Sequence(all) = pre_tokenizer else {
        return false;
    };
    let [
        PreTokenizerWrapper::WhitespaceSplit(_),
        PreTokenizerWrapper::Metaspace(metaspace),
    ] = all.as_ref()
    else {
        return false;
    };
    metaspace.get_split()
        && metaspace.get_replacement() == MARK
        && metaspace.get_prepend_scheme() == PrependScheme::Always
}

/// Whether what becomes of a character does not depend on others, with the exceptions above.
fn is_by_character(normalizer: &NormalizerWrapper) -> bool {
    let all = match normalizer {
        NormalizerWrapper::Sequence(all) => all.as_ref(),
        one => std::slice::from_ref(one),
    };
    let blanks_last = |normalizer| pieces::is_replacement_of_blanks(normalizer, Some(" "));
    match all {
        [one] => is_one_by_character(one),
        [one, blanks] => is_one_by_character(one) && blanks_last(blanks),
        _ => false,
    }
}

fn is_one_by_character(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::NFC(_) | NormalizerWrapper::NFKC(_) => true,
        NormalizerWrapper::Precompiled(_) => {
            // This is one grapheme.
            let mut line_break = NormalizedString::from("\r\n");
            normalizer.normalize(&mut line_break).is_ok()
                && !line_break.get().is_empty()
                && line_break.get().chars().all(char::is_whitespace)
        }
        _ => false,
    }
}
