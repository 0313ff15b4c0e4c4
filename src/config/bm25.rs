//! How texts become BM25 vectors.

/// How texts become BM25 vectors. A collection that lacks an option was made with its default.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bm25Options {
    /// What is a word.
    pub tokenizer: Tokenizer,
    /// Language of the stemmer and the stopwords: `english`, `german`… or `none`
    /// for neither.
    pub language: String,
    /// Words that do not count, besides those of the language.
    pub stopwords: Vec<String>,
    /// Whether the lead of a chunk, such as `[chunking] lead` makes it, counts as its words.
    pub lead: bool,
    /// Whether a word with an accent and the same word without it are one.
    pub ascii_folding: bool,
    /// Term frequency saturation.
    pub k: f64,
    /// Length normalisation, 0 to 1.
    pub b: f64,
    /// Expected words in a chunk.
    pub avg_len: f64,
}

impl Default for Bm25Options {
    fn default() -> Self {
        Self {
            tokenizer: Tokenizer::Word,
            language: "english".into(),
            stopwords: Vec::new(),
            lead: false,
            ascii_folding: false,
            k: 1.2,
            b: 0.75,
            avg_len: 256.0,
        }
    }
}

/// What is a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tokenizer {
    /// Letters and numbers in a row; pairs of letters where a script has no spaces.
    Word,
    /// What the engine's dictionaries take for a word; no stemmer.
    Multilingual,
}

/// Own stopwords at most: a server gets them with every text.
const MAX_STOPWORDS: usize = 200;

/// Characters of an own stopword at most.
const MAX_STOPWORD: usize = 40;

/// The languages for which both engines have a stemmer and stopwords. A server treats any other
/// word as "none" without an error.
pub(super) const LANGUAGES: [&str; 29] = [
    "arabic",
    "azerbaijani",
    "basque",
    "bengali",
    "catalan",
    "chinese",
    "danish",
    "dutch",
    "english",
    "finnish",
    "french",
    "german",
    "greek",
    "hebrew",
    "hinglish",
    "hungarian",
    "indonesian",
    "italian",
    "japanese",
    "kazakh",
    "nepali",
    "norwegian",
    "portuguese",
    "romanian",
    "russian",
    "slovene",
    "spanish",
    "swedish",
    "turkish",
];

/// No stemmer and no stopwords.
pub const NO_LANGUAGE: &str = "none";

impl Bm25Options {
    /// The error says which option is invalid and what to write instead.
    pub fn check(&self) -> Result<(), String> {
        if self.language != NO_LANGUAGE && !LANGUAGES.contains(&self.language.as_str()) {
            return Err(format!(
                "storage.qdrant.bm25.language {:?} is unknown: use \"none\" or one of {}",
                self.language,
                LANGUAGES.join(", ")
            ));
        }
        if self.stopwords.len() > MAX_STOPWORDS {
            return Err(format!(
                "storage.qdrant.bm25.stopwords has {} words: a server gets them with every text, so \
                 {MAX_STOPWORDS} is the most",
                self.stopwords.len()
            ));
        }
        if let Some(word) = self.stopwords.iter().find(|word| !is_word(word)) {
            return Err(format!(
                "storage.qdrant.bm25.stopwords has {word:?}: use words of letters and numbers, of up \
                 to {MAX_STOPWORD} characters"
            ));
        }
        if !(self.k.is_finite() && self.k >= 0.0) {
            return Err(format!(
                "storage.qdrant.bm25.k is {}: use a number from 0 up, 1.2 is usual",
                self.k
            ));
        }
        if !(0.0..=1.0).contains(&self.b) {
            return Err(format!(
                "storage.qdrant.bm25.b is {}: use a number from 0 to 1, 0.75 is usual",
                self.b
            ));
        }
        if !(self.avg_len.is_finite() && self.avg_len > 0.0) {
            return Err(format!(
                "storage.qdrant.bm25.avg_len is {}: use the words of a usual chunk, like 256",
                self.avg_len
            ));
        }
        Ok(())
    }
}

fn is_word(text: &str) -> bool {
    text.chars().any(char::is_alphanumeric) && text.chars().count() <= MAX_STOPWORD
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn options_that_no_engine_can_store_are_refused_by_name() {
        assert_eq!(Bm25Options::default().check(), Ok(()));
        assert_eq!(
            Bm25Options {
                language: "none".into(),
                ..Bm25Options::default()
            }
            .check(),
            Ok(())
        );
        let wrong = [
            (
                "language",
                Bm25Options {
                    language: "klingon".into(),
                    ..Bm25Options::default()
                },
            ),
            (
                "stopwords",
                Bm25Options {
                    stopwords: vec!["note".into(), "...".into()],
                    ..Bm25Options::default()
                },
            ),
            (
                "bm25.stopwords",
                Bm25Options {
                    stopwords: vec!["note".into(); 201],
                    ..Bm25Options::default()
                },
            ),
            (
                "bm25.k",
                Bm25Options {
                    k: f64::NAN,
                    ..Bm25Options::default()
                },
            ),
            (
                "bm25.b",
                Bm25Options {
                    b: 1.5,
                    ..Bm25Options::default()
                },
            ),
            (
                "avg_len",
                Bm25Options {
                    avg_len: 0.0,
                    ..Bm25Options::default()
                },
            ),
        ];
        for (key, options) in wrong {
            let message = options.check().unwrap_err();
            assert!(message.contains(key), "{message} does not name {key}");
        }
    }
}
