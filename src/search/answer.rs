//! What a search answers.

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Context, Passage, Trace};
use crate::store::FoundNote;

/// What a search found.
#[derive(Debug, Clone, Serialize)]
pub struct Answer {
    /// The best notes, best first, each with its best chunk.
    pub items: Vec<Item>,
    /// Whether these and the ten best notes are weak hits, or there are none.
    pub nothing_near: bool,
    /// What the search had to do without.
    pub degraded: Vec<Degradation>,
    /// How the search came to its answer.
    #[serde(skip)]
    pub trace: Trace,
}

/// A part that a search had to do without.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Degradation {
    /// Stable: clients and metrics use it.
    pub code: Missing,
    /// What happened, for an operator. It may name hosts.
    pub reason: String,
}

/// Which part of a search is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The provider did not embed the query: notes are found by keyword alone.
    QueryVector,
    /// The vector engine did not answer: Postgres searched the chunks of the newest notes.
    Index,
    /// The reranker did not answer: the notes are in the order of the fused score.
    Rerank,
}

impl Missing {
    /// The name in answers and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::QueryVector => "query_vector",
            Self::Index => "index",
            Self::Rerank => "rerank",
        }
    }
}

/// A note that a search returns, with its best chunk.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Item {
    /// The id in `memory_notes`.
    pub note_id: Uuid,
    #[expect(missing_docs, reason = "its fields say what they are")]
    #[serde(flatten)]
    pub note: FoundNote,
    /// Also its point's id.
    pub chunk_id: Uuid,
    /// Its position in the note, from 0.
    pub chunk_index: u32,
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
    /// How sure ELF is that the note answers the query, 0 to 1, comparable across queries; below 0.3 it
    /// is a weak hit. `null` among fewer than 16 notes. It is not what orders the notes.
    pub relevance: Option<f32>,
    /// The fused score, comparable within one search only.
    pub score: f32,
    /// Cosine of the query's vector and the chunk's, -1 to 1.
    pub dense: Option<f32>,
    /// BM25 score; 0 if the chunk has no word of the query. Without the index, that of Postgres.
    pub bm25: f32,
    /// The reranker's score of `context`, on the scale of its model. Notes that have it are first, in its order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerank: Option<f32>,
    /// The sentences of `context` that answer best.
    pub passage: Passage,
    /// The chunk's text. A search with `max_tokens` leaves it out.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(required = false)]
    pub text: String,
    /// The chunk with its neighbours, or in its parent. A search with `max_tokens` leaves it out.
    #[serde(skip_serializing_if = "Context::is_empty")]
    #[schema(required = false)]
    pub context: Context,
}
