//! How a search came to its answer: what each stage took, and the way of each chunk that it
//! looked at.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use super::answer::Item;
use super::ranking::Live;
use super::revalidation::Revalidated;
use crate::store::TracedChunk;

/// Chunks of a trace beside those of the answer. The chunks of a long note may be a thousand
/// candidates.
const MAX_OTHERS: usize = 100;

/// How a search came to its answer.
#[derive(Debug, Clone)]
pub struct Trace {
    /// When its candidates were there.
    pub at: DateTime<Utc>,
    /// Candidates that the index gave.
    pub candidates: usize,
    /// Candidates that Postgres did not confirm: their note is not live or has other labels by
    /// now, or their text has changed.
    pub dropped: usize,
    /// What each stage took.
    pub took: StageTimes,
    /// The chunks that Postgres confirmed, by their fused score.
    pub chunks: Vec<TracedChunk>,
}

/// What the stages of a search took. A stage that ran twice has the sum.
#[derive(Debug, Clone, Copy, Default)]
#[expect(missing_docs, reason = "docs/guide/search.md describes the stages")]
pub struct StageTimes {
    pub embed: Duration,
    pub retrieve: Duration,
    pub revalidate: Duration,
    pub stitch: Duration,
    pub rerank: Duration,
    pub diversify: Duration,
}

impl StageTimes {
    /// Milliseconds by the name of the stage.
    pub fn ms(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        json!({
            "embed": ms(self.embed),
            "retrieve": ms(self.retrieve),
            "revalidate": ms(self.revalidate),
            "stitch": ms(self.stitch),
            "rerank": ms(self.rerank),
            "diversify": ms(self.diversify),
        })
    }
}

/// Does a stage, and adds the time that it took.
pub async fn timed<T>(took: &mut Duration, stage: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = stage.await;
    *took += began.elapsed();
    done
}

impl Trace {
    /// A search whose candidates were revalidated.
    pub(super) fn of(candidates: usize, revalidated: &Revalidated) -> Self {
        Self {
            at: Utc::now(),
            candidates,
            dropped: revalidated.dropped,
            took: StageTimes::default(),
            chunks: revalidated.live.iter().map(traced).collect(),
        }
    }

    /// Adds what the later stages did. `items` are in their last order; the first `limit` of them
    /// are the answer. `mmr` has the scores by which they were made diverse.
    pub(super) fn finish(
        &mut self,
        items: &[Item],
        limit: usize,
        took: StageTimes,
        mmr: &HashMap<Uuid, f32>,
    ) {
        self.took = took;
        let ended: HashMap<Uuid, (i32, &Item)> = (1..)
            .zip(items)
            .map(|(rank, item)| (item.chunk_id, (rank, item)))
            .collect();
        for chunk in &mut self.chunks {
            if let Some((rank, item)) = ended.get(&chunk.chunk_id) {
                chunk.rerank = item.rerank;
                chunk.mmr = mmr.get(&chunk.chunk_id).copied();
                chunk.rank = Some(*rank).filter(|rank| *rank as usize <= limit);
            }
        }
        let mut others = 0;
        self.chunks.retain(|chunk| {
            others += usize::from(chunk.rank.is_none());
            chunk.rank.is_some() || others <= MAX_OTHERS
        });
    }
}

fn traced(Live { ranked, chunk }: &Live) -> TracedChunk {
    TracedChunk {
        note_id: chunk.note_id,
        chunk_id: chunk.chunk_id,
        chunk_index: chunk.chunk_index as i32,
        revision: chunk.revision,
        dense: ranked.candidate.dense,
        dense_rank: ranked.ranks.dense,
        bm25: ranked.candidate.bm25,
        bm25_rank: ranked.ranks.bm25,
        rescored: ranked.rescored,
        fused: ranked.score,
        fused_rank: ranked.ranks.fused,
        rerank: None,
        mmr: None,
        rank: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Context, Passage};
    use crate::store::FoundNote;

    fn chunk(id: u128, fused_rank: i32) -> TracedChunk {
        TracedChunk {
            note_id: Uuid::from_u128(id / 10),
            chunk_id: Uuid::from_u128(id),
            chunk_index: 0,
            revision: 1,
            dense: Some(0.5),
            dense_rank: Some(1),
            bm25: 0.0,
            bm25_rank: None,
            rescored: false,
            fused: 1.0 / fused_rank as f32,
            fused_rank,
            rerank: None,
            mmr: None,
            rank: None,
        }
    }

    fn item(id: u128, rerank: f32) -> Item {
        Item {
            note_id: Uuid::from_u128(id / 10),
            note: FoundNote::default(),
            chunk_id: Uuid::from_u128(id),
            chunk_index: 0,
            start_offset: 0,
            end_offset: 1,
            score: 0.5,
            dense: None,
            bm25: 0.0,
            relevance: None,
            rerank: Some(rerank),
            passage: Passage::default(),
            text: "x".into(),
            context: Context {
                start_offset: 0,
                end_offset: 1,
                text: "x".into(),
            },
        }
    }

    #[test]
    fn a_trace_has_the_answer_and_a_bounded_number_of_others() {
        let mut trace = Trace {
            at: Utc::now(),
            candidates: 500,
            dropped: 0,
            took: StageTimes::default(),
            chunks: (1..=500u16).map(|i| chunk(i.into(), i.into())).collect(),
        };
        // The reranker has put the last candidate first, and the answer has room for two.
        let items = [item(500, 0.9), item(1, 0.8), item(20, 0.1)];
        trace.finish(&items, 2, StageTimes::default(), &HashMap::new());
        assert_eq!(trace.chunks.len(), MAX_OTHERS + 2);
        let of = |id: u128| {
            let found = trace
                .chunks
                .iter()
                .find(|chunk| chunk.chunk_id.as_u128() == id);
            found.map(|chunk| (chunk.rank, chunk.rerank))
        };
        assert_eq!(of(500), Some((Some(1), Some(0.9))));
        assert_eq!(of(1), Some((Some(2), Some(0.8))));
        assert_eq!(of(20), Some((None, Some(0.1))));
        assert_eq!(of(30), Some((None, None)));
        assert_eq!(of(400), None);
    }
}
