//! Joins the scores of the two rankings.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::Candidate;

/// A score that an engine gave a point.
pub(super) struct Scored {
    pub(super) chunk_id: Uuid,
    pub(super) score: f32,
}

/// One candidate a point. `dense` is `None` in a search without a vector. A point that the
/// engine gave no BM25 score has no word of the query.
pub(super) fn join(dense: Option<Vec<Scored>>, bm25: Vec<Scored>) -> Vec<Candidate> {
    let mut found: BTreeMap<Uuid, Candidate> = BTreeMap::new();
    for (scores, is_dense) in [(dense.unwrap_or_default(), true), (bm25, false)] {
        for Scored { chunk_id, score } in scores {
            let candidate = found.entry(chunk_id).or_insert(Candidate {
                chunk_id,
                dense: None,
                bm25: 0.0,
            });
            if is_dense {
                candidate.dense = Some(score);
            } else {
                candidate.bm25 = score;
            }
        }
    }
    found.into_values().collect()
}
