//! What both engines get to make BM25 vectors of: texts as their tokenizers need them, and stopwords.

use std::borrow::Cow;

use serde_json::{Value, json};
use unicode_normalization_alignments::UnicodeNormalization;

use crate::config::{Bm25Options, NO_LANGUAGE, Tokenizer};
use crate::unicode;

/// A note's or a query's text as the tokenizer needs it.
pub(super) fn prepared<'t>(text: &'t str, options: &Bm25Options) -> Cow<'t, str> {
    match options.tokenizer {
        Tokenizer::Word => unicode::for_keywords(text, options.ascii_folding),
        Tokenizer::Multilingual => Cow::Owned(for_dictionaries(text)),
    }
}

/// The language whose stemmer an engine uses; `None` for no stemmer. Qdrant's multilingual tokenizer
/// stems no word of a text that it takes for Japanese, so that `pumps` there would not be the stemmed
/// `pump` of a query.
pub(super) fn stemmed_language(options: &Bm25Options) -> Option<&str> {
    let is_stemmed = options.tokenizer == Tokenizer::Word && options.language != NO_LANGUAGE;
    is_stemmed.then_some(options.language.as_str())
}

/// The stopwords as both engines take them: those of the language and the own ones, in the form in
/// which the tokenizer compares them.
pub(super) fn stopwords(options: &Bm25Options) -> Value {
    let languages: Vec<&str> = match options.language.as_str() {
        NO_LANGUAGE => Vec::new(),
        language => vec![language],
    };
    let custom: Vec<String> = options
        .stopwords
        .iter()
        .flat_map(|word| words(&prepared(word, options)))
        .collect();
    json!({ "languages": languages, "custom": custom })
}

/// The last of the Latin letters in Unicode's first blocks.
const LAST_LATIN: char = '\u{24f}';

fn words(prepared: &str) -> Vec<String> {
    let words = prepared.split(|c: char| !c.is_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// A text for a tokenizer that knows the words of languages: in lower case, without accents, and with
/// its numbers as letters.
///
/// Qdrant's tokenizer (1.18.3, `tokenizers/multilingual.rs`) takes no number for a word. Its way with
/// Latin letters depends on the language of the whole text: in Japanese, `TR2200` is the word `TR` and
/// `café` keeps its accent, elsewhere `TR2200` and `cafe` are the words. What it gets from here is the
/// same word in every text.
fn for_dictionaries(text: &str) -> String {
    let unmarked = text
        .nfkd()
        .map(|(c, _)| c)
        .filter(|c| !unicode::is_accent(*c) && !unicode::is_invisible(*c));
    let mut prepared = String::with_capacity(text.len());
    let mut before = None;
    for c in unmarked.nfc().map(|(c, _)| c).flat_map(char::to_lowercase) {
        let is_latin = c <= LAST_LATIN;
        if is_latin && !c.is_alphanumeric() {
            prepared.push(' ');
            before = None;
            continue;
        }
        if before.is_some_and(|was_latin| was_latin != is_latin) {
            prepared.push(' ');
        }
        before = Some(is_latin);
        match c.to_digit(10) {
            // Two letters that stand together in no word.
            Some(digit) => prepared.extend(['q', char::from(b'a' + digit as u8)]),
            None => prepared.push(c),
        }
    }
    prepared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_word_of_letters_wherever_it_stands() {
        for text in [
            "警報GX-5521が",
            "警報ＧＸ－５５２１が",
            "\"gx 55\u{ad}21\"",
            "GX\u{2011}5521",
        ] {
            let words: Vec<String> = words(&for_dictionaries(text));
            for word in ["gx", "qfqfqcqb"] {
                assert!(words.iter().any(|w| w == word), "{text}: {words:?}");
            }
        }
        assert_eq!(for_dictionaries("TR2200"), "trqcqcqaqa");
    }

    #[test]
    fn accents_go_and_other_scripts_stay_whole() {
        assert_eq!(for_dictionaries("Brûlé Bru\u{302}le\u{301}"), "brule brule");
        assert_eq!(for_dictionaries("警報が出たら弁を"), "警報が出たら弁を");
        assert_eq!(for_dictionaries("각하 ガ"), "각하 ガ");
        assert_eq!(for_dictionaries("Straße"), "straße");
    }

    #[test]
    fn own_stopwords_have_the_form_of_the_words() {
        let mut options = Bm25Options {
            stopwords: vec!["Note".into(), "E.G.".into(), "Café".into(), "42".into()],
            ..Bm25Options::default()
        };
        let custom = |options: &Bm25Options| stopwords(options)["custom"].clone();
        assert_eq!(custom(&options), json!(["note", "e", "g", "café", "42"]));
        options.ascii_folding = true;
        assert_eq!(custom(&options), json!(["note", "e", "g", "cafe", "42"]));
        options.tokenizer = Tokenizer::Multilingual;
        assert_eq!(custom(&options), json!(["note", "e", "g", "cafe", "qeqc"]));
        assert_eq!(stopwords(&options)["languages"], json!(["english"]));
    }
}
