//! Finding chunks: dense and BM25 candidates from the index, fused there, then
//! revalidated in Postgres. A point that a crash left behind is never shown.

use std::sync::Arc;

use chrono::Utc;
use serde::Serialize;
use uuid::Uuid;

use crate::embed::EmbedError;
use crate::embed::provider::{Input, Provider};
use crate::index::{Filter, IndexError, Query, VectorIndex};
use crate::store::{Store, StoreError};

/// What a search works with.
pub struct Searcher {
    /// Says which of the hits are live, and what they say.
    pub store: Store,
    /// Finds them.
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

/// A chunk that was found.
#[derive(Debug, Clone, Serialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct Item {
    pub note_id: Uuid,
    pub chunk_id: Uuid,
    /// The application's name for the note, for people to read.
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
#[expect(missing_docs, reason = "each says itself what failed")]
pub enum SearchError {
    #[error("the query could not be embedded: {0}")]
    Embed(#[from] EmbedError),
    #[error(
        "{0}: the index is lost, or nothing was indexed yet; `elf rebuild` brings it back from \
         Postgres, a first `elf worker` makes it"
    )]
    Lost(IndexError),
    #[error(transparent)]
    Index(IndexError),
    #[error(transparent)]
    Store(#[from] StoreError),
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
            // Some may fall to the revalidation.
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
        // A bound, not a count: a token has at least a byte, and special ones come on top.
        let tokens = text.len() + 8;
        let input = Input::new(text, tokens);
        let mut vectors = self.provider.embed(&[input]).await;
        vectors.pop().expect("one outcome per input")
    }
}
