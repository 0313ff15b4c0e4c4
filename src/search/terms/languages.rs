//! Function words of the language in which a text is written. They say nothing about what it is about.

use std::collections::{HashMap, HashSet};

use crate::unicode;

/// So many different function words show a language: one may be a name, or a word of another language.
const ENOUGH: u32 = 2;

/// The function words of many languages.
pub struct Languages {
    /// The languages of each, as bits.
    words: HashMap<String, u64>,
}

/// A language, as a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Language(u64);

impl Languages {
    /// `ascii_folding`: as in the words that are looked up.
    pub fn new(ascii_folding: bool) -> Self {
        // This list has English nouns.
        let codes = stop_words::available_languages().iter();
        let codes = codes.filter(|code| **code != "hinglish").take(64);
        let mut words: HashMap<String, u64> = HashMap::new();
        for (number, code) in codes.enumerate() {
            for word in stop_words::lookup(code).unwrap_or_default() {
                let mut word = unicode::words(word, ascii_folding);
                // A part of `don't` is no function word.
                if let (Some(word), true) = (word.pop(), word.is_empty()) {
                    *words.entry(word).or_default() |= 1 << number;
                }
            }
        }
        Self { words }
    }

    /// The language of a text: that of the most of its function words.
    pub fn of<'w>(&self, words: impl Iterator<Item = &'w str>) -> Option<Language> {
        let mut counts = [0_u32; 64];
        for word in words.collect::<HashSet<_>>() {
            let mut languages = self.words.get(word).copied().unwrap_or_default();
            while languages > 0 {
                counts[languages.trailing_zeros() as usize] += 1;
                languages &= languages - 1;
            }
        }
        let most = *counts.iter().max()?;
        let number = counts.iter().position(|count| *count == most)?;
        (most >= ENOUGH).then_some(Language(1 << number))
    }

    /// Whether a language has this function word.
    pub fn has(&self, language: Language, word: &str) -> bool {
        let languages = self.words.get(word).copied().unwrap_or_default();
        languages & language.0 > 0
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
