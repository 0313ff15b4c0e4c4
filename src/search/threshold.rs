//! Leaves out notes that are near the query neither in meaning nor by keyword.
//!
//! The limits begin strict. As long as too few notes pass, they relax in equal steps, down to a
//! floor. Cosines and BM25 scores are compared with them, because the fused score is comparable
//! within one search only. But the BM25 score of the only note with an exact word is low in a
//! small collection or for a short query: a note with the query's rare words passes whatever its
//! score.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use utoipa::ToSchema;

use crate::config;

/// From the strict limits to the floor.
const STEPS: u8 = 4;

/// A note with this share of the words of the query passes, see [`shares_of_words`]. No note has it for questions
/// about something else, see `docs/inside/quality.md`.
const MOST_WORDS: f32 = 0.6;

/// What a word that no compared note has weighs: the query may only ask with it.
const MISSING_WORD: f32 = 0.5;

/// What a word with a digit weighs: it is mostly an id.
const ID: f32 = 3.0;

/// How near a note is to the query in both ways, or has to be in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Nearness {
    /// The cosine; `null` if no note has one.
    pub dense: Option<f32>,
    /// The BM25 score.
    pub bm25: f32,
}

/// A note that is compared with the limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    pub nearness: Nearness,
    /// Its share of the query's words.
    pub words: f32,
}

/// The limits that at least `enough` of these notes pass, as strict as possible; the floor if too
/// few pass it. The most that is enough are the notes that the request wants. The first note, for
/// which there is the most evidence, is among them unless it is below the floor.
pub fn limits(settings: &config::Threshold, wanted: usize, notes: &[Compared]) -> Nearness {
    let enough = settings.enough.min(wanted);
    let floor = limits_at(settings, STEPS);
    let first = notes.first().filter(|first| floor.let_pass(first));
    let is_enough = |limits: &Nearness| {
        let passing = notes.iter().filter(|note| limits.let_pass(note));
        passing.count() >= enough && first.is_none_or(|first| limits.let_pass(first))
    };
    (0..STEPS)
        .map(|step| limits_at(settings, step))
        .find(is_enough)
        .unwrap_or(floor)
}

fn limits_at(settings: &config::Threshold, step: u8) -> Nearness {
    let share = f64::from(step) / f64::from(STEPS);
    let between = |strict: f64, floor: f64| (strict + (floor - strict) * share) as f32;
    Nearness {
        dense: Some(between(settings.dense, settings.dense_floor)),
        bm25: between(settings.bm25, settings.bm25_floor),
    }
}

/// The best of these notes in each of the two ways.
pub fn nearest(notes: &[Compared]) -> Option<Nearness> {
    let notes = notes.iter().map(|note| note.nearness);
    notes.reduce(|a, b| Nearness {
        dense: a.dense.into_iter().chain(b.dense).reduce(f32::max),
        bm25: a.bm25.max(b.bm25),
    })
}

impl Nearness {
    /// Whether a note reaches one of these limits, or has the words of the query.
    pub fn let_pass(&self, note: &Compared) -> bool {
        let Compared { nearness, words } = note;
        words >= &MOST_WORDS
            || nearness.bm25 >= self.bm25
            || nearness.dense >= self.dense && nearness.dense.is_some()
    }
}

/// How much of the words of a query each text has, 0 to 1. A word weighs the more, the fewer of the
/// texts have it: the idf of BM25 (Robertson, Zaragoza 2009) over these texts, so that it does not
/// depend on the size of the collection.
pub fn shares_of_words(query: &[String], texts: &[Vec<String>]) -> Vec<f32> {
    let query: HashSet<&str> = query.iter().map(String::as_str).collect();
    let has = |words: &Vec<String>| -> HashSet<&str> {
        let words = words.iter().map(String::as_str);
        words.filter_map(|word| query.get(word).copied()).collect()
    };
    let found: Vec<HashSet<&str>> = texts.iter().map(has).collect();
    let mut texts_with: HashMap<&str, usize> = HashMap::new();
    for word in found.iter().flatten() {
        *texts_with.entry(word).or_default() += 1;
    }
    let weight = |word: &&str| {
        let with = texts_with.get(word).copied().unwrap_or(0) as f32;
        let idf = (1.0 + (texts.len() as f32 - with + 0.5) / (with + 0.5)).ln();
        let of_missing = if with == 0.0 { MISSING_WORD } else { 1.0 };
        let of_id = if word.contains(char::is_numeric) {
            ID
        } else {
            1.0
        };
        idf * of_missing * of_id
    };
    let all: f32 = query.iter().map(weight).sum();
    let share = |words: &HashSet<&str>| match words.is_empty() {
        true => 0.0,
        false => words.iter().map(weight).sum::<f32>() / all,
    };
    found.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: config::Threshold = config::Threshold {
        enough: 2,
        dense: 0.5,
        dense_floor: 0.3,
        bm25: 20.0,
        bm25_floor: 12.0,
    };

    fn note(dense: Option<f32>, bm25: f32) -> Compared {
        Compared {
            nearness: Nearness { dense, bm25 },
            words: 0.0,
        }
    }

    fn notes(scores: &[(f32, f32)]) -> Vec<Compared> {
        let near = |(dense, bm25): &(f32, f32)| note(Some(*dense), *bm25);
        scores.iter().map(near).collect()
    }

    fn passing(notes: &[Compared]) -> usize {
        let limits = limits(&SETTINGS, 10, notes);
        notes.iter().filter(|note| limits.let_pass(note)).count()
    }

    #[test]
    fn limits_relax_until_enough_notes_pass() {
        // Two pass the strict limits, each in its own way: the third is left out.
        assert_eq!(passing(&notes(&[(0.6, 0.0), (0.1, 25.0), (0.45, 0.0)])), 2);
        // At 0.45 and 18 there are two.
        assert_eq!(passing(&notes(&[(0.6, 0.0), (0.46, 0.0), (0.4, 0.0)])), 2);
        assert_eq!(passing(&notes(&[(0.6, 0.0), (0.1, 18.5), (0.4, 0.0)])), 2);
        // Below the floor nothing passes, however few there are.
        assert_eq!(passing(&notes(&[(0.6, 0.0), (0.29, 11.9)])), 1);
        assert_eq!(passing(&notes(&[(0.29, 11.9)])), 0);
        assert_eq!(passing(&[]), 0);
    }

    #[test]
    fn no_more_notes_are_enough_than_are_wanted() {
        let one_is_near = notes(&[(0.6, 0.0), (0.4, 0.0)]);
        assert_eq!(limits(&SETTINGS, 1, &one_is_near).dense, Some(0.5));
        assert_eq!(limits(&SETTINGS, 2, &one_is_near).dense, Some(0.4));
    }

    #[test]
    fn without_cosines_the_keywords_decide() {
        let by_keyword = [25.0, 13.0, 11.0].map(|bm25| note(None, bm25));
        assert_eq!(passing(&by_keyword), 2);
    }

    #[test]
    fn the_nearest_is_told_in_both_ways() {
        let mut all = notes(&[(0.1, 3.0), (0.2, 1.0)]);
        all.push(note(None, 2.0));
        let nearest_of_all = Nearness {
            dense: Some(0.2),
            bm25: 3.0,
        };
        assert_eq!(nearest(&all), Some(nearest_of_all));
        assert_eq!(nearest(&[]), None);
    }

    #[test]
    fn the_only_note_with_the_words_passes_whatever_its_score() {
        let mut all = notes(&[(0.1, 8.0), (0.34, 0.0)]);
        all[0].words = 1.0;
        let limits = limits(
            &config::Threshold {
                enough: 1,
                ..SETTINGS
            },
            10,
            &all,
        );
        let passing: Vec<bool> = all.iter().map(|note| limits.let_pass(note)).collect();
        assert_eq!(passing, [true, false]);
    }

    #[test]
    fn enough_notes_are_not_enough_without_the_first() {
        let enough = config::Threshold {
            enough: 1,
            ..SETTINGS
        };
        // The keywords of the second are beyond the strict limit.
        let all = notes(&[(0.46, 3.0), (0.1, 25.0), (0.39, 0.0)]);
        assert_eq!(limits(&enough, 10, &all).dense, Some(0.45));
        // Of no use is a first note that is below the floor.
        let all = notes(&[(0.2, 3.0), (0.1, 25.0)]);
        assert_eq!(limits(&enough, 10, &all).dense, Some(0.5));
    }

    fn shares(query: &str, texts: &[&str]) -> Vec<f32> {
        let words = |text: &&str| text.split(' ').map(str::to_owned).collect();
        let texts: Vec<Vec<String>> = texts.iter().map(words).collect();
        shares_of_words(&words(&query), &texts)
    }

    #[test]
    fn rare_words_weigh_more_and_missing_words_count() {
        let mut texts = vec!["what is the matter"; 20];
        texts.push("err 4417 is the code");
        let of = |query: &str| shares(query, &texts);
        assert_eq!(of("err 4417")[20], 1.0);
        let of_question = of("what is err 4417");
        assert!(of_question[20] > MOST_WORDS, "{of_question:?}");
        assert!(of_question[0] < 0.1, "{of_question:?}");
        let of_foreign_question = of("wofür steht eigentlich err 4417");
        assert!(
            of_foreign_question[20] > MOST_WORDS,
            "{of_foreign_question:?}"
        );
        let of_another = of("flutter of err panels in supersonic flow");
        assert!(of_another[20] < 0.5, "{of_another:?}");
        assert_eq!(of("")[0], 0.0);
        assert_eq!(of("nothing")[0], 0.0);
    }
}
