//! What searches over the HTTP API did (`search_traces`, `search_trace_items`), and which notes
//! of their answers a client then read (`memory_hits`).

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Reach, Store, StoreError, Transaction};

/// Searches that are kept at most: with 20 chunks each, they take 450 MB.
const MAX_TRACES: i64 = 100_000;

/// Searches that one statement deletes.
const PAGE: i64 = 500;

/// A search to record.
#[derive(Debug, Clone)]
pub struct SearchTrace {
    /// The id that its answer has.
    pub trace_id: Uuid,
    /// The key that it was sent with.
    pub key_id: Uuid,
    /// What that key reached.
    pub reach: Reach,
    /// What was searched for.
    pub query: String,
    /// The rest of the request, as it was asked for.
    pub request: Value,
    /// What the search did without.
    pub degraded: Vec<&'static str>,
    /// Candidates of the index.
    pub candidates: i32,
    /// Candidates that Postgres did not confirm.
    pub dropped: i32,
    /// Milliseconds of each stage.
    pub took_ms: Value,
    /// When its candidates were there.
    pub created_at: DateTime<Utc>,
    /// The chunks that it looked at.
    pub chunks: Vec<TracedChunk>,
}

/// A chunk on its way through the stages of a search. Ranks begin at 1.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct TracedChunk {
    /// The id in `memory_notes`.
    pub note_id: Uuid,
    /// Also its point's id.
    pub chunk_id: Uuid,
    /// Its position in the note, from 0.
    pub chunk_index: i32,
    /// The lease token under which a worker had made it.
    #[serde(skip)]
    pub revision: i64,
    /// Cosine of the query's vector and the chunk's, -1 to 1.
    pub dense: Option<f32>,
    /// The rank of this score among the candidates.
    pub dense_rank: Option<i32>,
    /// BM25 score; 0 if the chunk has no word of the query.
    pub bm25: f32,
    /// The rank of this score among the candidates; without a word of the query it has none.
    pub bm25_rank: Option<i32>,
    /// Whether the point was older than the chunk. Then the scores are those of the chunk in Postgres.
    pub rescored: bool,
    /// The fused score.
    pub fused: f32,
    /// Its rank among the candidates, before Postgres was asked.
    pub fused_rank: i32,
    /// The reranker's score.
    pub rerank: Option<f32>,
    /// Its score with `search.mmr_lambda` below 1.
    pub mmr: Option<f32>,
    /// The rank in the answer; `null` if another chunk of the note is there, or the answer is
    /// full.
    pub rank: Option<i32>,
}

/// A chunk of a trace, and its id there.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TraceItem {
    /// The id of the item.
    pub item_id: Uuid,
    /// What happened to the chunk.
    #[serde(flatten)]
    pub chunk: TracedChunk,
}

/// One search, as it was recorded.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct RecordedTrace {
    pub trace_id: Uuid,
    pub query: String,
    pub request: Value,
    pub embedding_version: String,
    pub degraded: Vec<String>,
    pub candidates: i32,
    pub dropped: i32,
    pub took_ms: Value,
    pub created_at: DateTime<Utc>,
}

/// A note of an answer that a client read.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The id that its answer had.
    pub trace_id: Uuid,
    /// One of the answer.
    pub note_id: Uuid,
    /// The chunk by which the search found it.
    pub chunk_id: Uuid,
    /// Its rank in the answer.
    pub rank: i32,
    /// Its fused score.
    pub score: f32,
}

/// A crash of Postgres may lose the newest records. A search must not wait for the disk longer
/// because others are recorded.
const LAZY: &str = "begin; set local synchronous_commit = off; set local statement_timeout = '10s'";

impl Store {
    /// Records searches under `version`, and the notes that clients read; all or none.
    pub async fn add_traces(
        &self,
        version: &str,
        traces: &[SearchTrace],
        hits: &[Hit],
    ) -> Result<(), StoreError> {
        let work = async {
            let mut tx = Transaction::begin(&self.pool, LAZY).await?;
            if !traces.is_empty() {
                insert_traces(&mut tx, version, traces).await?;
                insert_items(&mut tx, traces).await?;
            }
            if !hits.is_empty() {
                let searches: Vec<Uuid> = hits.iter().map(|hit| hit.trace_id).collect();
                let notes: Vec<Uuid> = hits.iter().map(|hit| hit.note_id).collect();
                let chunks: Vec<Uuid> = hits.iter().map(|hit| hit.chunk_id).collect();
                let ranks: Vec<i32> = hits.iter().map(|hit| hit.rank).collect();
                let scores: Vec<f32> = hits.iter().map(|hit| hit.score).collect();
                sqlx::query_file!(
                    "sql/queries/add_hits.sql",
                    &searches,
                    &notes,
                    &chunks,
                    &ranks,
                    &scores
                )
                .execute(&mut *tx)
                .await?;
            }
            Ok(tx.commit().await?)
        };
        self.measured("trace", work).await
    }

    /// A search; `None` if there is none of this id, or its key reached more than `reach`.
    pub async fn trace(
        &self,
        trace_id: Uuid,
        reach: &Reach,
    ) -> Result<Option<RecordedTrace>, StoreError> {
        let trace = sqlx::query_file_as!(
            RecordedTrace,
            "sql/queries/trace.sql",
            trace_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref()
        );
        self.asked("trace", trace.fetch_optional(&self.pool)).await
    }

    /// The search that an item belongs to, likewise.
    pub async fn trace_of_item(
        &self,
        item_id: Uuid,
        reach: &Reach,
    ) -> Result<Option<Uuid>, StoreError> {
        let trace = sqlx::query_file_scalar!(
            "sql/queries/trace_of_item.sql",
            item_id,
            reach.tenant_id,
            reach.project_id.as_deref(),
            reach.agent_id.as_deref()
        );
        self.asked("trace", trace.fetch_optional(&self.pool)).await
    }

    /// The chunks that a search looked at, those of its answer first.
    pub async fn trace_items(&self, trace_id: Uuid) -> Result<Vec<TraceItem>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/trace_items.sql", trace_id);
        let rows = self.asked("trace", rows.fetch_all(&self.pool)).await?;
        let item = rows.into_iter().map(|row| TraceItem {
            item_id: row.item_id,
            chunk: TracedChunk {
                note_id: row.note_id,
                chunk_id: row.chunk_id,
                chunk_index: row.chunk_index,
                revision: row.revision,
                dense: row.dense,
                dense_rank: row.dense_rank,
                bm25: row.bm25,
                bm25_rank: row.bm25_rank,
                rescored: row.rescored,
                fused: row.fused,
                fused_rank: row.fused_rank,
                rerank: row.rerank,
                mmr: row.mmr,
                rank: row.rank,
            },
        });
        Ok(item.collect())
    }

    /// Deletes searches that are older than this many days, and the oldest above 100,000, with
    /// their items and hits.
    pub async fn drop_traces(&self, days: i32) -> Result<(), StoreError> {
        let work = async {
            let before =
                sqlx::query_file_scalar!("sql/queries/traces_before.sql", days, MAX_TRACES)
                    .fetch_one(&self.pool)
                    .await?;
            loop {
                let dropped = sqlx::query_file!("sql/queries/drop_traces.sql", before, PAGE)
                    .execute(&self.pool)
                    .await?;
                if dropped.rows_affected() < PAGE as u64 {
                    return Ok(());
                }
            }
        };
        self.measured_within(super::Limit::Upkeep, "upkeep", work)
            .await
    }
}

async fn insert_traces(
    tx: &mut sqlx::PgConnection,
    version: &str,
    traces: &[SearchTrace],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = traces.iter().map(|trace| trace.trace_id).collect();
    let keys: Vec<Uuid> = traces.iter().map(|trace| trace.key_id).collect();
    let text = |of: fn(&SearchTrace) -> &str| traces.iter().map(of).collect::<Vec<&str>>();
    let label =
        |of: fn(&SearchTrace) -> Option<&str>| traces.iter().map(of).collect::<Vec<Option<&str>>>();
    let json = |of: fn(&SearchTrace) -> Value| traces.iter().map(of).collect::<Vec<Value>>();
    let count = |of: fn(&SearchTrace) -> i32| traces.iter().map(of).collect::<Vec<i32>>();
    let began: Vec<DateTime<Utc>> = traces.iter().map(|trace| trace.created_at).collect();
    sqlx::query_file!(
        "sql/queries/add_traces.sql",
        version,
        &ids,
        &keys,
        &text(|trace| &trace.reach.tenant_id) as _,
        &label(|trace| trace.reach.project_id.as_deref()) as _,
        &label(|trace| trace.reach.agent_id.as_deref()) as _,
        &text(|trace| &trace.query) as _,
        &json(|trace| trace.request.clone()),
        &json(|trace| Value::from(trace.degraded.clone())),
        &count(|trace| trace.candidates),
        &count(|trace| trace.dropped),
        &json(|trace| trace.took_ms.clone()),
        &began
    )
    .execute(tx)
    .await?;
    Ok(())
}

async fn insert_items(
    tx: &mut sqlx::PgConnection,
    traces: &[SearchTrace],
) -> Result<(), StoreError> {
    let chunks: Vec<(Uuid, &TracedChunk)> = traces
        .iter()
        .flat_map(|trace| trace.chunks.iter().map(|chunk| (trace.trace_id, chunk)))
        .collect();
    let items: Vec<Uuid> = chunks
        .iter()
        .map(|(trace, chunk)| Uuid::new_v5(trace, chunk.chunk_id.as_bytes()))
        .collect();
    let searches: Vec<Uuid> = chunks.iter().map(|(trace, _)| *trace).collect();
    macro_rules! column {
        ($name:ident) => {
            &chunks
                .iter()
                .map(|(_, chunk)| chunk.$name)
                .collect::<Vec<_>>()
        };
    }
    sqlx::query_file!(
        "sql/queries/add_trace_items.sql",
        &items,
        &searches,
        column!(note_id),
        column!(chunk_id),
        column!(chunk_index),
        column!(revision),
        column!(dense) as _,
        column!(dense_rank) as _,
        column!(bm25),
        column!(bm25_rank) as _,
        column!(rescored),
        column!(fused),
        column!(fused_rank),
        column!(rerank) as _,
        column!(mmr) as _,
        column!(rank) as _
    )
    .execute(tx)
    .await?;
    Ok(())
}
