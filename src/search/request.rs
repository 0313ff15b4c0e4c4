//! What a search is asked.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::index::Filter;

/// What to search for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The query.
    pub text: String,
    /// Which rankings find candidates.
    pub by: By,
    /// Which notes are searched.
    pub filter: Filter,
    /// Notes to return at most.
    pub limit: usize,
    /// Whether the reranker, if there is one, puts the notes in order.
    pub rerank: bool,
}

/// The rankings of a search.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    ToSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Meaning alone: dense vectors.
    Dense,
    /// Keywords alone: BM25.
    Bm25,
    /// Both.
    Hybrid,
}

impl Request {
    /// A search by both rankings in all notes.
    pub fn hybrid(text: &str, limit: usize) -> Self {
        Self {
            text: text.to_owned(),
            by: By::Hybrid,
            filter: Filter::default(),
            limit,
            rerank: true,
        }
    }

    /// The tenant whose notes are searched; `None` for all.
    pub(super) fn tenant(&self) -> Option<&String> {
        self.filter.keywords.get("tenant_id")
    }
}
