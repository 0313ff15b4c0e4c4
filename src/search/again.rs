//! The answer of a recorded search, once more.

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::answer::Item;
use super::ranking::{Live, Ranked, Ranks};
use super::{SearchError, Searcher};
use crate::index::{Candidate, Filter};
use crate::store::TracedChunk;

/// An item of an answer that was given before.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PastItem {
    /// The note as it is now, with the scores of that time.
    #[serde(flatten)]
    pub item: Item,
    /// Whether the note was indexed again since then: its text may be another.
    pub changed: bool,
}

impl Searcher {
    /// The answer that had these chunks, in its order. Without the notes that are not live any
    /// more or are not as `filter` asks.
    pub async fn again(
        &self,
        chunks: &[TracedChunk],
        filter: &Filter,
    ) -> Result<Vec<PastItem>, SearchError> {
        let traced: HashMap<Uuid, &TracedChunk> = chunks
            .iter()
            .map(|traced| (traced.chunk_id, traced))
            .collect();
        let ids: Vec<Uuid> = chunks.iter().map(|traced| traced.chunk_id).collect();
        let store = &self.serving.store;
        let mut found = store
            .revalidate(&self.version, &ids, &filter.of_note())
            .await?;
        let live: Vec<Live> = chunks
            .iter()
            .filter_map(|traced| {
                let chunk = found.remove(&traced.chunk_id)?;
                let ranked = found_then(traced);
                Some(Live { ranked, chunk })
            })
            .collect();
        let revisions: HashMap<Uuid, i64> = live
            .iter()
            .map(|live| (live.chunk.chunk_id, live.chunk.revision))
            .collect();
        let items = self.stitch(filter, live, HashMap::new()).await?;
        let past = |mut item: Item| {
            let traced = traced[&item.chunk_id];
            item.rerank = traced.rerank;
            let changed = revisions[&item.chunk_id] != traced.revision;
            PastItem { item, changed }
        };
        Ok(items.into_iter().map(past).collect())
    }
}

/// A chunk with the scores that it had.
fn found_then(traced: &TracedChunk) -> Ranked {
    Ranked {
        candidate: Candidate {
            chunk_id: traced.chunk_id,
            dense: traced.dense,
            bm25: traced.bm25,
        },
        score: traced.fused,
        ranks: Ranks::default(),
        rescored: traced.rescored,
    }
}
