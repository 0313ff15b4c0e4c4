//! The order of a search: candidates by their fused score, and the best chunk of each note.

use std::cmp::Ordering;
use std::collections::HashSet;

use super::fusion::Fusion;
use crate::index::{Candidate, Query};
use crate::store::ChunkText;

/// A candidate and its fused score.
pub struct Ranked {
    pub candidate: Candidate,
    pub score: f32,
    pub ranks: Ranks,
    /// Whether its point was older than its chunk.
    pub rescored: bool,
}

/// The ranks of a candidate among all candidates, from 1: by each score, and by the fused one.
/// Without a score it has no rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ranks {
    pub dense: Option<i32>,
    pub bm25: Option<i32>,
    pub fused: i32,
}

/// A candidate whose chunk Postgres has shown to be live.
pub struct Live {
    pub ranked: Ranked,
    pub chunk: ChunkText,
}

/// The candidates by their fused score, best first. Equal scores keep the order of the ids,
/// because sorting is stable: an answer can be repeated.
pub fn ranked(fusion: &Fusion, candidates: Vec<Candidate>) -> Vec<Ranked> {
    let dense = ranks(&candidates, |candidate| candidate.dense);
    let bm25 = ranks(&candidates, |candidate| {
        Some(candidate.bm25).filter(|score| *score > 0.0)
    });
    let of = |(candidate, (dense, bm25)): (Candidate, (Option<i32>, Option<i32>))| Ranked {
        score: fusion.score(candidate.dense, candidate.bm25),
        candidate,
        ranks: Ranks {
            dense,
            bm25,
            fused: 0,
        },
        rescored: false,
    };
    let mut ranked: Vec<Ranked> = candidates
        .into_iter()
        .zip(dense.into_iter().zip(bm25))
        .map(of)
        .collect();
    ranked.sort_by(Ranked::best_first);
    for (rank, ranked) in (1..).zip(&mut ranked) {
        ranked.ranks.fused = rank;
    }
    ranked
}

/// The rank of each candidate by a score, from 1. One without a score has no rank.
fn ranks(candidates: &[Candidate], score: fn(&Candidate) -> Option<f32>) -> Vec<Option<i32>> {
    let mut scored: Vec<(usize, f32)> = candidates
        .iter()
        .enumerate()
        .filter_map(|(at, candidate)| Some((at, score(candidate)?)))
        .collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut ranks = vec![None; candidates.len()];
    for (rank, (at, _)) in (1..).zip(scored) {
        ranks[at] = Some(rank);
    }
    ranks
}

impl Ranked {
    fn best_first(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score)
    }

    /// Scores what the chunk says now, by its vector. Its point is older than the chunk, for
    /// example because a worker has committed the note and not yet written its points. Without a
    /// vector there is nothing to score; then this is `false`.
    pub fn rescore(&mut self, fusion: &Fusion, query: &Query, vector: Option<Vec<f32>>) -> bool {
        let (Some(query), Some(vector)) = (&query.vector, vector) else {
            return false;
        };
        self.candidate.dense = Some(cosine(query, &vector));
        // The words that BM25 found may be gone.
        self.candidate.bm25 = 0.0;
        self.score = fusion.score(self.candidate.dense, self.candidate.bm25);
        self.rescored = true;
        true
    }
}

impl Live {
    /// Of equal scores, the more important note is first, then the one that changed last.
    fn best_first(&self, other: &Self) -> Ordering {
        let (a, b) = (&self.chunk, &other.chunk);
        self.ranked
            .best_first(&other.ranked)
            .then_with(|| b.importance.total_cmp(&a.importance))
            .then_with(|| b.note.updated_at.cmp(&a.note.updated_at))
    }
}

/// The best chunk of each note, the best note first, at most `limit`.
pub fn best_of_notes(mut live: Vec<Live>, limit: usize) -> Vec<Live> {
    live.sort_by(Live::best_first);
    let mut seen = HashSet::new();
    live.retain(|live| seen.insert(live.chunk.note_id));
    live.truncate(limit);
    live
}

/// The cosine of two vectors of the same length, 0 if one of them is zero.
pub fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 {
        dot(a, b) / lengths
    } else {
        0.0
    }
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A vector of the same direction and of length 1; zero stays zero.
pub fn unit(vector: &[f32]) -> Vec<f32> {
    let length = dot(vector, vector).sqrt();
    let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
    vector.iter().map(|x| x * factor).collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use chrono::DateTime;

    use super::*;
    use crate::config::FusionMethod;
    use crate::store::FoundNote;

    fn live(note: u128, chunk: u128, score: f32, importance: f32, updated_secs: i64) -> Live {
        Live {
            ranked: Ranked {
                candidate: Candidate {
                    chunk_id: Uuid::from_u128(chunk),
                    dense: None,
                    bm25: 0.0,
                },
                score,
                ranks: Ranks::default(),
                rescored: false,
            },
            chunk: ChunkText {
                chunk_id: Uuid::from_u128(chunk),
                note_id: Uuid::from_u128(note),
                note: FoundNote {
                    updated_at: DateTime::UNIX_EPOCH + chrono::Duration::seconds(updated_secs),
                    ..FoundNote::default()
                },
                chunk_index: 0,
                start_offset: 0,
                end_offset: 1,
                text: "x".into(),
                importance,
                revision: 1,
            },
        }
    }

    fn chunks(best: &[Live]) -> Vec<u128> {
        best.iter().map(|l| l.chunk.chunk_id.as_u128()).collect()
    }

    #[test]
    fn a_candidate_has_a_rank_by_each_score_that_it_has() {
        let candidate = |chunk, dense, bm25| Candidate {
            chunk_id: Uuid::from_u128(chunk),
            dense,
            bm25,
        };
        let candidates = vec![
            candidate(1, Some(0.2), 0.0),
            candidate(2, None, 3.0),
            candidate(3, Some(0.9), 7.0),
        ];
        let fusion = Fusion::of(FusionMethod::Rrf, &candidates);
        let ranked = ranked(&fusion, candidates);
        let ranks = |chunk: u128| {
            let found = ranked
                .iter()
                .find(|r| r.candidate.chunk_id.as_u128() == chunk);
            found.map(|ranked| (ranked.ranks.dense, ranked.ranks.bm25))
        };
        assert_eq!(ranks(1), Some((Some(2), None)));
        assert_eq!(ranks(2), Some((None, Some(2))));
        assert_eq!(ranks(3), Some((Some(1), Some(1))));
        assert_eq!(ranked[0].candidate.chunk_id.as_u128(), 3);
        assert_eq!(
            ranked.iter().map(|r| r.ranks.fused).collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }

    #[test]
    fn a_note_is_as_good_as_its_best_chunk() {
        let found = vec![
            live(1, 10, 0.1, 0.5, 0),
            live(2, 20, 0.2, 0.5, 0),
            live(1, 11, 0.3, 0.5, 0),
            live(3, 30, 0.0, 0.5, 0),
        ];
        assert_eq!(chunks(&best_of_notes(found, 2)), [11, 20]);
    }

    #[test]
    fn of_equal_scores_importance_decides_and_then_recency() {
        let far = 1 << 40;
        let found = vec![
            live(1, 10, 0.1, 0.5, 7),
            live(2, 20, 0.1, 0.5, far),
            live(3, 30, 0.1, 0.9, 0),
            live(4, 40, 0.2, 0.0, -far),
        ];
        assert_eq!(chunks(&best_of_notes(found, 9)), [40, 30, 20, 10]);
    }
}
