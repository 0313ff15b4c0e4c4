//! The words of a query and of texts, by which a passage is chosen: without stopwords, each by its stem, as BM25
//! compares them.

pub mod languages;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use languages::{Counts, LanguageSet, Languages};
use qdrant_rust_stemmers::{Algorithm, Stemmer};

use crate::config::{Bm25Options, Tokenizer};
use crate::unicode;

/// Makes terms of texts.
pub struct Terms {
    ascii_folding: bool,
    stopwords: HashSet<&'static str>,
    own_stopwords: HashSet<String>,
    /// Notes may be written in other languages than the one that BM25 has.
    languages: Languages,
    stemmer: Option<Stemmer>,
}

impl Terms {
    /// With the stemmer and the stopwords that the index has for these options.
    pub fn new(options: &Bm25Options) -> Self {
        let (code, algorithm) = match options.language.as_str() {
            "arabic" => ("ar", Some(Algorithm::Arabic)),
            "azerbaijani" => ("az", None),
            "danish" => ("da", Some(Algorithm::Danish)),
            "dutch" => ("nl", Some(Algorithm::Dutch)),
            "english" => ("en", Some(Algorithm::English)),
            "finnish" => ("fi", Some(Algorithm::Finnish)),
            "french" => ("fr", Some(Algorithm::French)),
            "german" => ("de", Some(Algorithm::German)),
            "greek" => ("el", Some(Algorithm::Greek)),
            "hungarian" => ("hu", Some(Algorithm::Hungarian)),
            "indonesian" => ("id", None),
            "italian" => ("it", Some(Algorithm::Italian)),
            "kazakh" => ("kk", None),
            "nepali" => ("ne", None),
            "norwegian" => ("no", Some(Algorithm::Norwegian)),
            "portuguese" => ("pt", Some(Algorithm::Portuguese)),
            "romanian" => ("ro", Some(Algorithm::Romanian)),
            "russian" => ("ru", Some(Algorithm::Russian)),
            "slovene" => ("sl", None),
            "spanish" => ("es", Some(Algorithm::Spanish)),
            "swedish" => ("sv", Some(Algorithm::Swedish)),
            "turkish" => ("tr", Some(Algorithm::Turkish)),
            _ => ("", None),
        };
        let stopwords = stop_words::lookup(code).unwrap_or_default();
        // Its words have no accents and no stems, see `index::keywords`.
        let is_multilingual = matches!(options.tokenizer, Tokenizer::Multilingual);
        let ascii_folding = options.ascii_folding || is_multilingual;
        Self {
            ascii_folding,
            stopwords: stopwords.iter().copied().collect(),
            own_stopwords: options
                .stopwords
                .iter()
                .flat_map(|word| unicode::words(word, ascii_folding))
                .collect(),
            languages: Languages::new(ascii_folding),
            stemmer: algorithm.filter(|_| !is_multilingual).map(Stemmer::create),
        }
    }

    /// The terms of a text, in its order, each with where it is. Function words of the text's own language are none.
    pub fn of(&self, text: &str) -> Vec<(Range<usize>, String)> {
        let words = unicode::located_words(text, self.ascii_folding);
        let language = self.language(&words);
        let words = words
            .into_iter()
            .filter(|(_, word)| !self.languages.of(word).has(language));
        words
            .filter_map(|(range, word)| Some((range, self.term(&word)?)))
            .collect()
    }

    /// The language that has the most function words of a text.
    fn language(&self, words: &[(Range<usize>, Cow<str>)]) -> Option<usize> {
        let mut seen = HashSet::new();
        let mut counts = Counts::default();
        for (_, word) in words {
            let languages = self.languages.of(word);
            if !languages.is_empty() && seen.insert(&**word) {
                counts.add(languages);
            }
        }
        counts.most()
    }

    /// The term that a word is, whatever the language of its text; `None` for a stopword.
    fn term(&self, word: &str) -> Option<String> {
        let is_stopword = self.stopwords.contains(word)
            || self.own_stopwords.contains(word)
            || languages::is_japanese_function_word(word);
        let stem = || match &self.stemmer {
            Some(stemmer) => stemmer.stem(word).into_owned(),
            None => word.to_owned(),
        };
        (!is_stopword).then(stem)
    }
}

/// Finds the terms of a query in texts. It looks a word up once: texts share most of theirs.
pub struct Finder<'t> {
    terms: &'t Terms,
    query: HashSet<String>,
    /// With what the terms of the query begin.
    first: Vec<char>,
    /// What words are that may be terms of the query; `None` for another.
    words: HashMap<String, Option<(String, LanguageSet)>>,
}

impl<'t> Finder<'t> {
    pub fn new(terms: &'t Terms, query: &[(Range<usize>, String)]) -> Self {
        let query = query.iter().map(|(_, term)| term.clone());
        let query: HashSet<String> = query.collect();
        Self {
            terms,
            first: query
                .iter()
                .filter_map(|term| term.chars().next())
                .collect(),
            query,
            words: HashMap::new(),
        }
    }

    /// Stems begin as their words do, but for accents and Arabic: most words need no stem.
    fn may_be_term(&self, word: &str) -> bool {
        let first = word.chars().next();
        first.is_none_or(|first| !unicode::is_plain(first) || self.first.contains(&first))
    }

    fn look_up(&mut self, word: &str) -> Option<(String, LanguageSet)> {
        if let Some(known) = self.words.get(word) {
            return known.clone();
        }
        let term = self.terms.term(word);
        let term = term.filter(|term| self.query.contains(term));
        let term = term.map(|term| (term, self.terms.languages.of(word)));
        self.words.insert(word.to_owned(), term.clone());
        term
    }

    /// The terms of a text, of those that the query has.
    pub fn find(&mut self, text: &str) -> Vec<(Range<usize>, String)> {
        let words = unicode::located_words(text, self.terms.ascii_folding);
        let mut found = Vec::new();
        for (range, word) in &words {
            if self.may_be_term(word)
                && let Some((term, languages)) = self.look_up(word)
            {
                found.push((range.clone(), term, languages));
            }
        }
        // Mostly no term is a function word of any language.
        if found.iter().any(|(.., languages)| !languages.is_empty()) {
            let language = self.terms.language(&words);
            found.retain(|(.., languages)| !languages.has(language));
        }
        found
            .into_iter()
            .map(|(range, term, _)| (range, term))
            .collect()
    }
}

/// What each term of a query weighs: the more, the fewer of the texts have it. That is the idf of BM25 (Robertson,
/// Zaragoza 2009) over these texts.
pub fn weights<'t>(
    query: &[(Range<usize>, String)],
    texts: impl IntoIterator<Item = &'t [(Range<usize>, String)]>,
) -> HashMap<String, f32> {
    let mut with: HashMap<&str, f32> = HashMap::new();
    for (_, term) in query {
        with.insert(term, 0.0);
    }
    let mut all = 0.0;
    for text in texts {
        all += 1.0;
        let of_text: HashSet<&str> = text.iter().map(|(_, term)| term.as_str()).collect();
        for term in of_text {
            with.entry(term).and_modify(|texts| *texts += 1.0);
        }
    }
    let idf = |with: f32| (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
    let weights = query
        .iter()
        .map(|(_, term)| (term.clone(), idf(with[term.as_str()])));
    weights.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(language: &str, text: &str) -> Vec<String> {
        let options = Bm25Options {
            language: language.into(),
            ..Bm25Options::default()
        };
        let terms = Terms::new(&options).of(text).into_iter();
        terms.map(|(_, term)| term).collect()
    }

    #[test]
    fn stopwords_go_and_forms_of_a_word_are_one() {
        assert_eq!(terms("english", "The keys of the houses"), ["key", "hous"]);
        assert_eq!(
            terms("english", "a key, the house"),
            terms("english", "Keys? Houses!")
        );
        assert_eq!(
            terms("german", "die Schlüssel des Hauses"),
            terms("german", "Schlüssel Haus")
        );
        assert_eq!(terms("none", "the keys"), ["the", "keys"]);
    }

    #[test]
    fn function_words_of_the_texts_own_language_are_no_terms() {
        assert_eq!(
            terms("english", "Wie sichere ich die Datenbank vor dem Umzug?"),
            ["sicher", "datenbank", "umzug"]
        );
        assert_eq!(
            terms("english", "Qui a la clé de la maison ?"),
            ["clé", "maison"]
        );
        assert_eq!(
            terms("german", "How do I back up the database?"),
            ["back", "databas"]
        );
        // Two words are no proof: to die is no article.
        assert_eq!(terms("english", "die hard"), ["die", "hard"]);
        assert_eq!(terms("english", "鍵はどこですか"), ["鍵は", "はど", "こで"]);
    }

    #[test]
    fn what_is_found_of_a_query_are_the_terms_of_the_text_that_it_has() {
        let terms = Terms::new(&Bm25Options::default());
        let query = terms.of("Wo ist der Schlüssel? die keys of the house, 鍵");
        let mut finder = Finder::new(&terms, &query);
        for text in [
            "The key to the houses, and the keys.",
            "Wie man die Häuser und die Schlüssel findet.",
            "die hard, key",
            "鍵はどこですか",
            "",
        ] {
            let mut of_text = terms.of(text);
            of_text.retain(|(_, term)| query.iter().any(|(_, of_query)| of_query == term));
            assert_eq!(finder.find(text), of_text, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_stem_begins_as_its_word_does_if_that_is_plain(
            words in proptest::collection::vec("[a-z]{1,9}[éüß]?[a-z]{0,4}|[а-яё]{1,9}|[の-んア-ン一-三]{1,4}", 1..30),
            language in proptest::sample::select(vec![
                "danish", "dutch", "english", "finnish", "french", "german", "hungarian", "italian", "norwegian",
                "portuguese", "romanian", "russian", "spanish", "swedish", "turkish",
            ]),
        ) {
            let options = Bm25Options { language: language.into(), ..Bm25Options::default() };
            let terms = Terms::new(&options);
            let text = words.join(" ");
            let query = terms.of(&words[..words.len().div_ceil(2)].join(" "));
            let mut of_text = terms.of(&text);
            of_text.retain(|(_, term)| query.iter().any(|(_, of_query)| of_query == term));
            proptest::prop_assert_eq!(Finder::new(&terms, &query).find(&text), of_text);
        }
    }

    #[test]
    fn a_rare_term_weighs_more() {
        let of = |text: &str| Terms::new(&Bm25Options::default()).of(text);
        let texts = ["kitchen clock", "kitchen table", "kitchen"].map(of);
        let weights = weights(&of("kitchen clock"), texts.iter().map(Vec::as_slice));
        assert!(weights["clock"] > 3.0 * weights["kitchen"], "{weights:?}");
    }
}
