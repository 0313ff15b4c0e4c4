//! Asks Postgres which candidates a search may show. A crash may have left a point behind, or the
//! point is older than its chunk, or its note is not live or has other labels now.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::answer::Degradation;
use super::fusion::Fusion;
use super::ranking::{Live, Ranked};
use super::{SearchError, Searcher, ids};
use crate::index::Query;
use crate::store::{ChunkText, StoreError};

/// Candidates that are revalidated at once, at least.
const MIN_STEP: usize = 20;

/// What Postgres says of the best candidates.
pub(super) struct Revalidated {
    /// Those that it confirms, best first.
    pub(super) live: Vec<Live>,
    /// How many it does not confirm.
    pub(super) dropped: usize,
}

impl Searcher {
    /// Those of the candidates that are chunks of live notes with the labels that were asked
    /// for. It stops when it has `limit` notes. It does not begin without the revisions of the
    /// points: then the index has become unavailable since it gave the candidates.
    pub(super) async fn revalidate(
        &self,
        query: &Query,
        fusion: &Fusion,
        mut ranked: Vec<Ranked>,
        limit: usize,
        degraded: &[Degradation],
    ) -> Result<Result<Revalidated, Degradation>, SearchError> {
        let store = &self.serving.store;
        let (mut live, mut dropped, mut notes) = (Vec::new(), 0, HashSet::new());
        // More than the limit at once, because some may not be live.
        let mut step = (limit * 2).max(MIN_STEP);
        let wanted = query.filter.of_note();
        let mut last_score = f32::NAN;
        // Of equal scores, the importance decides: so all of them are read.
        let is_tie = |next: &[Ranked], last| next.first().is_some_and(|next| next.score == last);
        while (notes.len() < limit && !ranked.is_empty()) || is_tie(&ranked, last_score) {
            last_score = ranked[ranked.len().min(step) - 1].score;
            let rest = ranked.split_off(ranked.len().min(step));
            let ids = ids(&ranked);
            let (chunks, revisions) = tokio::join!(
                store.revalidate(&self.version, &ids, &wanted),
                self.revisions(&ids, degraded)
            );
            let mut chunks = chunks?;
            let revisions = match revisions {
                Ok(revisions) => revisions,
                Err(index_is_away) => return Ok(Err(index_is_away)),
            };
            let is_current = |chunk: &ChunkText| {
                let of_point =
                    |of: &HashMap<_, _>| of.get(&chunk.chunk_id) == Some(&chunk.revision);
                revisions.as_ref().is_none_or(of_point)
            };
            let mut vectors = self.vectors_of_others(query, &chunks, is_current).await?;
            for mut ranked in ranked {
                let chunk = chunks.remove(&ranked.candidate.chunk_id);
                let confirmed = chunk.filter(|chunk| {
                    let vector = vectors.remove(&chunk.chunk_id);
                    is_current(chunk) || ranked.rescore(fusion, query, vector)
                });
                match confirmed {
                    Some(chunk) => {
                        notes.insert(chunk.note_id);
                        live.push(Live { ranked, chunk });
                    }
                    None => dropped += 1,
                }
            }
            ranked = rest;
            // The chunks of one long note may be all that there is.
            step *= 2;
        }
        Ok(Ok(Revalidated { live, dropped }))
    }

    /// The vectors of the chunks that are newer than their points, to score what they say now.
    async fn vectors_of_others(
        &self,
        query: &Query,
        chunks: &HashMap<Uuid, ChunkText>,
        is_current: impl Fn(&ChunkText) -> bool,
    ) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let others = chunks.values().filter(|chunk| !is_current(chunk));
        let others: Vec<Uuid> = others.map(|chunk| chunk.chunk_id).collect();
        if others.is_empty() || query.vector.is_none() {
            return Ok(HashMap::new());
        }
        let store = &self.serving.store;
        store.chunk_vectors(&self.version, &others).await
    }
}
