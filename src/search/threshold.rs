//! Leaves out notes that are near the query neither in meaning nor by keyword.
//!
//! The limits begin strict. As long as too few notes pass, they relax in equal steps, down to a
//! floor. Cosines and BM25 scores are compared with them, because the fused score is comparable
//! within one search only.

use serde::Serialize;
use utoipa::ToSchema;

use crate::config;

/// From the strict limits to the floor.
const STEPS: u8 = 4;

/// How near a note is to the query in both ways, or has to be in one of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Nearness {
    /// The cosine; `null` if no note has one.
    pub dense: Option<f32>,
    /// The BM25 score.
    pub bm25: f32,
}

/// The limits that at least `enough` of these notes pass, as strict as possible; the floor if too
/// few pass it. The most that is enough are the notes that the request wants.
pub fn limits(settings: &config::Threshold, wanted: usize, notes: &[Nearness]) -> Nearness {
    let enough = settings.enough.min(wanted);
    let limits = |step| limits_at(settings, step);
    let is_enough = |limits: &Nearness| {
        let passing = notes.iter().filter(|note| limits.let_pass(note));
        passing.count() >= enough
    };
    (0..STEPS)
        .map(limits)
        .find(is_enough)
        .unwrap_or_else(|| limits(STEPS))
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
pub fn nearest(notes: &[Nearness]) -> Option<Nearness> {
    notes.iter().copied().reduce(|a, b| Nearness {
        dense: a.dense.into_iter().chain(b.dense).reduce(f32::max),
        bm25: a.bm25.max(b.bm25),
    })
}

impl Nearness {
    /// Whether a note reaches one of these limits.
    pub fn let_pass(&self, note: &Self) -> bool {
        note.bm25 >= self.bm25 || note.dense >= self.dense && note.dense.is_some()
    }
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

    fn notes(scores: &[(f32, f32)]) -> Vec<Nearness> {
        let near = |(dense, bm25): &(f32, f32)| Nearness {
            dense: Some(*dense),
            bm25: *bm25,
        };
        scores.iter().map(near).collect()
    }

    fn passing(notes: &[Nearness]) -> usize {
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
        let by_keyword = [25.0, 13.0, 11.0].map(|bm25| Nearness { dense: None, bm25 });
        assert_eq!(passing(&by_keyword), 2);
    }

    #[test]
    fn the_nearest_is_told_in_both_ways() {
        let mut all = notes(&[(0.1, 3.0), (0.2, 1.0)]);
        all.push(Nearness {
            dense: None,
            bm25: 2.0,
        });
        let nearest_of_all = Nearness {
            dense: Some(0.2),
            bm25: 3.0,
        };
        assert_eq!(nearest(&all), Some(nearest_of_all));
        assert_eq!(nearest(&[]), None);
    }
}
