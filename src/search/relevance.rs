//! How sure ELF is that a note answers a query: 0 to 1, comparable across queries, collections and
//! models. It orders nothing.
//!
//! There are two kinds of evidence. One is how far the cosine lies above those of texts that have nothing
//! to do with each other; the best of many chunks has a greater one by chance. The other is how much of the
//! rarity of the query's words the chunk covers.
//! `docs/inside/quality.md` has the figures.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::ranking::{dot, unit};

/// Below it, a note is a weak hit.
pub const WEAK: f32 = 0.3;

/// So many of the best notes say how rare a word is, whatever the limit of the search: the relevance
/// must not depend on it.
pub const JUDGED: usize = 10;

/// Fewer notes than this are no background.
const MIN_NOTES: usize = 16;

/// A deviation of cosines below this counts as this: notes that repeat each other have next to none.
const MIN_DEVIATION: f32 = 0.01;

/// Chunks of a greater cosine are copies of each other, and not unrelated.
const COPY: f32 = 0.999;

/// The greatest of n normal values lies about sqrt(2 ln n) deviations above their mean (Cramér 1946). Cosines are not
/// independent, so that this share of it is left.
const BY_CHANCE: f32 = 0.75;

/// The logits are for the best of so many chunks, and of fewer.
const USUAL_CHUNKS: u64 = 500;

/// What a word that none of the best notes has weighs: the query may only ask with it.
const MISSING: f32 = 0.5;

/// What a word with a digit weighs: it is mostly an id.
const ID: f32 = 3.0;

/// The logit of the relevance: of each deviation of the cosine, of all words, and without either. It is less if none of
/// the best notes has a word of the query: mostly it is no word of any language.
const OF_DEVIATION: f32 = 3.0;
const OF_WORDS: f32 = 6.0;
const OF_NOTHING: f32 = -5.6;
const OF_UNKNOWN_WORDS: f32 = -2.0;

/// The same of a query without a vector.
const OF_WORDS_ALONE: f32 = 8.0;
const OF_NO_WORDS: f32 = -3.2;

/// The cosines of chunks of different notes: texts that, as a rule, have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Background {
    mean: f32,
    deviation: f32,
}

impl Background {
    /// The background of these vectors, each of another note. `None` if they are too few.
    pub fn of(vectors: &[Vec<f32>]) -> Option<Self> {
        if vectors.len() < MIN_NOTES {
            return None;
        }
        let vectors: Vec<Vec<f32>> = vectors.iter().map(|vector| unit(vector)).collect();
        let behind = |i: usize| vectors[i + 1..].iter().map(move |other| (i, other));
        let pairs = (0..vectors.len()).flat_map(behind);
        let cosines = pairs.map(|(i, other)| dot(&vectors[i], other));
        let cosines: Vec<f32> = cosines.filter(|cosine| *cosine < COPY).collect();
        if cosines.is_empty() {
            return None;
        }
        let n = cosines.len() as f32;
        let mean = cosines.iter().sum::<f32>() / n;
        let variance = cosines.iter().map(|c| (c - mean).powi(2)).sum::<f32>() / n;
        Some(Self {
            mean,
            deviation: variance.sqrt().max(MIN_DEVIATION),
        })
    }

    /// The same before the best of so many chunks.
    pub fn before_best_of(self, chunks: u64) -> Self {
        let more = extreme(chunks.max(USUAL_CHUNKS)) - extreme(USUAL_CHUNKS);
        Self {
            mean: self.mean + BY_CHANCE * more * self.deviation,
            ..self
        }
    }

    /// How many deviations a cosine lies above the mean; 0 below it.
    fn height(&self, cosine: f32) -> f32 {
        ((cosine - self.mean) / self.deviation).max(0.0)
    }
}

/// How many deviations the greatest of so many values lies above their mean, about.
fn extreme(values: u64) -> f32 {
    (2.0 * (values as f32).ln()).sqrt()
}

/// What a search knows beside the words.
#[derive(Debug, Clone, Copy)]
pub enum Cosines {
    /// The query has a vector, and the cosines stand before this background.
    Before(Background),
    /// The query has a vector, but there are too few notes for a background: ELF cannot tell.
    Unknown,
    /// The query has no vector.
    None,
}

/// The relevance of a chunk with this cosine that covers this share of the query's words ([`Words::covered`]).
pub fn relevance(cosines: Cosines, cosine: Option<f32>, covered: Option<f32>) -> Option<f32> {
    let of_unknown = covered.map_or(OF_UNKNOWN_WORDS, |_| 0.0);
    let covered = covered.unwrap_or(0.0);
    let logit = match cosines {
        Cosines::Before(background) => {
            let height = cosine.map_or(0.0, |cosine| background.height(cosine));
            OF_DEVIATION * height + OF_WORDS * covered + OF_NOTHING + of_unknown
        }
        Cosines::None => OF_WORDS_ALONE * covered + OF_NO_WORDS,
        Cosines::Unknown => return None,
    };
    Some(1.0 / (1.0 + (-logit).exp()))
}

/// Whether a note is no weak hit, as far as ELF can tell.
pub fn is_near(relevance: Option<f32>) -> bool {
    relevance.is_none_or(|relevance| relevance >= WEAK)
}

/// The words of a query.
pub struct Words {
    /// What each weighs.
    weights: HashMap<String, f32>,
    /// Whether one of the best notes has one.
    are_known: bool,
}

impl Words {
    /// The terms of a query, weighed by the terms of the best chunks.
    pub fn new(weights: &HashMap<String, f32>, best: &[Vec<(Range<usize>, String)>]) -> Self {
        let found: HashSet<&String> = best.iter().flatten().map(|(_, term)| term).collect();
        let weight = |(term, idf): (&String, &f32)| {
            let is_missing = !found.contains(term);
            let of_missing = if is_missing { MISSING } else { 1.0 };
            let of_id = if term.contains(char::is_numeric) {
                ID
            } else {
                1.0
            };
            (term.clone(), idf * of_missing * of_id)
        };
        Self {
            weights: weights.iter().map(weight).collect(),
            are_known: weights.keys().any(|term| found.contains(term)),
        }
    }

    /// The share of the query's words that a chunk has, 0 to 1: of the terms of its context, those inside of `chunk`.
    /// `None` if it has none, and the best notes neither.
    pub fn covered(&self, terms: &[(Range<usize>, String)], chunk: Range<usize>) -> Option<f32> {
        let inside = terms.iter().filter(|(at, _)| chunk.contains(&at.start));
        let found: HashSet<&str> = inside.map(|(_, term)| term.as_str()).collect();
        let all: f32 = self.weights.values().sum();
        let weights = found.iter().filter_map(|term| self.weights.get(*term));
        let covered = weights.fold(0.0, |sum, weight| sum + weight);
        match covered > 0.0 {
            true => Some(covered / all),
            false => self.are_known.then_some(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::config::Bm25Options;
    use crate::search::terms::{self, Terms};

    const BACKGROUND: Background = Background {
        mean: 0.2,
        deviation: 0.1,
    };

    fn with(cosine: f32, covered: f32) -> f32 {
        relevance(Cosines::Before(BACKGROUND), Some(cosine), Some(covered)).unwrap()
    }

    fn covered(query: &str, texts: &[&str]) -> Vec<Option<f32>> {
        let of = Terms::new(&Bm25Options::default());
        let query = of.of(query);
        let texts: Vec<_> = texts.iter().map(|text| of.of(text)).collect();
        let weights = terms::weights(&query, texts.iter().map(Vec::as_slice));
        let words = Words::new(&weights, &texts);
        texts
            .iter()
            .map(|terms| words.covered(terms, 0..9999))
            .collect()
    }

    #[test]
    fn either_evidence_is_enough_and_neither_is_weak() {
        assert!(with(0.25, 0.1) < WEAK);
        assert!(with(0.6, 0.0) > 0.9);
        assert!(with(0.2, 1.0) > 0.5);
        assert!(
            with(-1.0, 1.0) > 0.5,
            "a far vector does not outweigh the exact words"
        );
        assert!(relevance(Cosines::None, None, Some(1.0)).unwrap() > 0.9);
        assert!(relevance(Cosines::None, None, Some(0.1)).unwrap() < WEAK);
        assert_eq!(relevance(Cosines::Unknown, Some(0.9), Some(1.0)), None);
    }

    #[test]
    fn the_background_is_of_pairs_and_of_no_scale() {
        let axis = |i: usize, length: f32| {
            let mut vector = vec![0.0; 32];
            vector[i] = length;
            vector
        };
        let apart: Vec<_> = (0..20).map(|i| axis(i, 1.0 + i as f32)).collect();
        let background = Background::of(&apart).unwrap();
        assert_eq!(
            (background.mean, background.deviation),
            (0.0, MIN_DEVIATION)
        );
        let copies = |n| std::iter::repeat_n(axis(0, 3.0), n);
        assert_eq!(Background::of(&copies(20).collect::<Vec<_>>()), None);
        let mostly_copies: Vec<_> = copies(20).chain([axis(1, 1.0)]).collect();
        assert_eq!(Background::of(&mostly_copies).unwrap().mean, 0.0);
        assert_eq!(Background::of(&apart[..MIN_NOTES - 1]), None);
    }

    #[test]
    fn a_note_with_the_only_id_is_no_weak_hit_however_it_is_asked_for() {
        let mut texts = vec!["what is the matter"; 9];
        texts.push("ERR-4417: the gauge is frozen");
        for query in [
            "ERR-4417",
            "err 4417",
            "what does ERR-4417 mean?",
            "wofür steht ERR-4417",
        ] {
            let covered = covered(query, &texts);
            assert!(
                with(0.25, covered[9].unwrap()) > WEAK,
                "{query}: {covered:?}"
            );
            assert!(
                with(0.2, covered[0].unwrap()) < WEAK,
                "{query}: {covered:?}"
            );
        }
        let of_another = covered("flutter of err panels in supersonic flow", &texts);
        assert!(with(0.2, of_another[9].unwrap()) < WEAK, "{of_another:?}");
        assert_eq!(covered("the", &texts)[0], None);
        assert_eq!(covered("gauge", &texts)[0], Some(0.0));
    }

    #[test]
    fn the_best_of_many_chunks_and_words_that_no_note_has_need_a_greater_cosine() {
        let of = |chunks, covered| {
            let cosines = Cosines::Before(BACKGROUND.before_best_of(chunks));
            relevance(cosines, Some(0.4), covered).unwrap()
        };
        assert_eq!(of(USUAL_CHUNKS, Some(0.0)), with(0.4, 0.0));
        assert_eq!(of(0, Some(0.0)), of(USUAL_CHUNKS, Some(0.0)));
        assert!(of(1_000_000, Some(0.0)) < of(USUAL_CHUNKS, Some(0.0)));
        assert!(of(USUAL_CHUNKS, None) < WEAK && of(USUAL_CHUNKS, Some(0.0)) > WEAK);
    }
}
