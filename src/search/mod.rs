//! Search for chunks. The index retrieves dense and BM25 candidates and fuses them; then
//! Postgres revalidates the hits, so that a point that a crash left behind is never returned.

use std::sync::Arc;

use chrono::Utc;
use serde::Serialize;
use uuid::Uuid;

use crate::embed::EmbedError;
use crate::embed::provider::{Input, Provider};
use crate::error_class::ErrorClass;
use crate::index::{Filter, IndexError, Query, VectorIndex};
use crate::store::{Store, StoreError};

/// Searches one alias.
pub struct Searcher {
    /// Revalidates the hits and returns their texts.
    pub store: Store,
    /// Retrieves and fuses the candidates.
    pub index: Arc<dyn VectorIndex>,
    /// Embeds the query.
    pub provider: Arc<Provider>,
    /// The alias that is searched.
    pub alias: String,
    /// The version that the alias serves.
    pub version: String,
    /// Put before the query.
    pub query_prefix: String,
}

/// A hit: one chunk.
#[derive(Debug, Clone, Serialize)]
pub struct Item {
    pub note_id: Uuid,
    pub chunk_id: Uuid,
    /// The application's name for the note, for terminal output.
    #[serde(skip)]
    pub key: Option<String>,
    pub chunk_index: u32,
    /// UTF-8 byte offsets into the note's text.
    pub start_offset: usize,
    pub end_offset: usize,
    /// Comparable within one search only.
    pub score: f32,
    pub text: String,
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("failed to embed the query: {0}")]
    Embed(#[from] EmbedError),
    #[error(
        "{0}: the index is lost, or no worker has run yet; `elf rebuild` rebuilds it from \
         Postgres, a first `elf worker` creates it"
    )]
    Lost(IndexError),
    #[error(transparent)]
    Index(IndexError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SearchError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Embed(error) => error.class(),
            Self::Lost(error) | Self::Index(error) => error.class(),
            Self::Store(error) => error.class(),
        }
    }
}

impl From<IndexError> for SearchError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::NotFound { .. } => Self::Lost(error),
            error => Self::Index(error),
        }
    }
}

impl Searcher {
    /// The best `limit` chunks for `text` among the points that match `filter`,
    /// best first.
    pub async fn search(
        &self,
        text: &str,
        filter: Filter,
        limit: usize,
    ) -> Result<Vec<Item>, SearchError> {
        let query = Query {
            vector: self.embed(text).await?.to_vec(),
            text: text.to_owned(),
            filter: Filter {
                live_at: Some(Utc::now()),
                ..filter
            },
            // Twice the limit, because the revalidation may drop hits.
            limit: limit * 2,
            candidates: (limit * 4).max(50),
        };
        let hits = self.index.search(&self.alias, &query).await?;
        let ids: Vec<Uuid> = hits.iter().map(|hit| hit.chunk_id).collect();
        let labels = &query.filter.keywords;
        let mut live = self.store.revalidate(&self.version, &ids, labels).await?;
        let items = hits.into_iter().filter_map(|hit| {
            let chunk = live.remove(&hit.chunk_id)?;
            Some(Item {
                note_id: chunk.note_id,
                chunk_id: chunk.chunk_id,
                key: chunk.key,
                chunk_index: chunk.chunk_index,
                start_offset: chunk.start_offset,
                end_offset: chunk.end_offset,
                score: hit.score,
                text: chunk.text,
            })
        });
        Ok(items.take(limit).collect())
    }

    async fn embed(&self, text: &str) -> Result<Arc<[f32]>, EmbedError> {
        let text = format!("{}{text}", self.query_prefix);
        // An upper bound instead of a count: each token has at least one byte, and special tokens
        // are added.
        let tokens = text.len() + 8;
        let input = Input::new(text, tokens);
        let mut vectors = self.provider.embed(&[input]).await;
        vectors.pop().expect("one outcome per input")
    }
}
