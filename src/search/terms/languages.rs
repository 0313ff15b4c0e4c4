//! Function words of the language in which a text is written. They say nothing about what it is about.

use std::collections::HashMap;

use crate::unicode;

/// So many different function words show a language: one may be a name, or a word of another language.
const ENOUGH: u32 = 2;

/// The function words of many languages.
pub struct Languages {
    words: HashMap<String, LanguageSet>,
    /// Bytes of the longest one.
    longest: usize,
}

/// Up to 64 languages, as bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LanguageSet(u64);

impl LanguageSet {
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn has(self, language: Option<usize>) -> bool {
        language.is_some_and(|number| self.0 & (1 << number) > 0)
    }
}

impl Languages {
    /// `ascii_folding`: as in the words that are looked up.
    pub fn new(ascii_folding: bool) -> Self {
        // This list has English nouns.
        let codes = stop_words::available_languages().iter();
        let codes = codes.filter(|code| **code != "hinglish").take(64);
        let mut words: HashMap<String, LanguageSet> = HashMap::new();
        for (number, code) in codes.enumerate() {
            for word in stop_words::lookup(code).unwrap_or_default() {
                let mut word = unicode::words(word, ascii_folding);
                // A part of `don't` is no function word.
                if let (Some(word), true) = (word.pop(), word.is_empty()) {
                    words.entry(word).or_default().0 |= 1 << number;
                }
            }
        }
        let longest = words.keys().map(String::len).max().unwrap_or_default();
        Self { words, longest }
    }

    /// The languages that have this function word.
    pub fn of(&self, word: &str) -> LanguageSet {
        let known = (word.len() <= self.longest).then(|| self.words.get(word));
        known.flatten().copied().unwrap_or_default()
    }
}

/// How many different function words of each language a text has.
pub struct Counts([u32; 64]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Counts {
    pub fn add(&mut self, LanguageSet(mut languages): LanguageSet) {
        while languages > 0 {
            self.0[languages.trailing_zeros() as usize] += 1;
            languages &= languages - 1;
        }
    }

    /// The number of the language with the most, if they are enough to show it.
    pub fn most(&self) -> Option<usize> {
        let most = *self.0.iter().max()?;
        let number = self.0.iter().position(|count| *count == most)?;
        (most >= ENOUGH).then_some(number)
    }
}

/// Whether a word of the index, which is two letters of Japanese at most, consists of function words.
pub fn is_japanese_function_word(word: &str) -> bool {
    const PAIRS: [&str; 42] = [
        "から", "まで", "より", "ので", "のに", "ます", "です", "した", "して", "する", "いる",
        "ある", "こと", "もの", "ため", "よう", "など", "これ", "それ", "あれ", "どれ", "この",
        "その", "あの", "どの", "ここ", "そこ", "どこ", "なぜ", "った", "って", "ない", "なる",
        "れる", "られ", "せる", "たい", "だけ", "しか", "すか", "ませ", "ださ",
    ];
    if word.is_empty() || !word.chars().all(is_hiragana) {
        return false;
    }
    PAIRS.contains(&word) || word.chars().all(is_particle)
}

pub fn is_hiragana(c: char) -> bool {
    matches!(c, '\u{3041}'..='\u{3096}')
}

/// Whether a letter alone is a function word of Japanese or Chinese, as nearly always at the end of a word.
pub fn is_particle(c: char) -> bool {
    matches!(
        c,
        'の' | 'は'
            | 'を'
            | 'が'
            | 'に'
            | 'で'
            | 'と'
            | 'も'
            | 'へ'
            | 'や'
            | 'な'
            | 'だ'
            | '的'
            | '了'
            | '是'
    )
}
