//! Search for chunks. The index finds candidates by meaning and by keyword, `fusion` makes one
//! score of the two, and Postgres revalidates the best: a point that a crash left behind, that
//! is older than its chunk, or whose note has other labels now, is never returned as it was.

mod fusion;

use std::cmp::Ordering;
use std::sync::Arc;

use chrono::Utc;
use serde::Serialize;
use uuid::Uuid;

use crate::config;
use crate::embed::EmbedError;
use crate::embed::provider::{Input, Provider};
use crate::error_class::ErrorClass;
use crate::index::{Candidate, Filter, IndexError, Query, VectorIndex};
use crate::store::{ChunkText, Store, StoreError};
use fusion::Fusion;

/// Candidates that are revalidated at once, at least.
const MIN_STEP: usize = 20;

/// Searches one alias.
pub struct Searcher {
    /// Revalidates the hits and returns their texts.
    pub store: Store,
    /// Finds the candidates.
    pub index: Arc<dyn VectorIndex>,
    /// Embeds the query.
    pub provider: Arc<Provider>,
    /// The alias that is searched.
    pub alias: String,
    /// The version that the alias serves.
    pub version: String,
    /// Put before the query.
    pub query_prefix: String,
    /// `[search]`
    pub settings: config::Search,
}

/// A chunk that a search returns.
#[derive(Debug, Clone, Serialize)]
pub struct Item {
    /// The note that the chunk is of.
    pub note_id: Uuid,
    /// The application's name for the note.
    pub key: Option<String>,
    /// The chunk's id.
    pub chunk_id: Uuid,
    /// Its position in the note, from 0.
    pub chunk_index: u32,
    /// Where it begins: a UTF-8 byte offset into the note's text.
    pub start_offset: usize,
    /// Where it ends, likewise.
    pub end_offset: usize,
    /// The fused score, comparable within one search only.
    pub score: f32,
    /// Cosine of the query's vector and the chunk's, -1 to 1.
    pub dense: Option<f32>,
    /// BM25 score; 0 if the chunk has no word of the query.
    pub bm25: f32,
    /// The chunk's text.
    pub text: String,
}

/// What to search for.
#[derive(Debug, Clone)]
pub struct Request {
    /// The query.
    pub text: String,
    /// Which rankings find candidates.
    pub by: By,
    /// Which notes are searched.
    pub filter: Filter,
    /// Chunks to return at most.
    pub limit: usize,
}

/// The rankings of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Meaning alone: dense vectors.
    Dense,
    /// Keywords alone: BM25.
    Bm25,
    /// Both.
    Hybrid,
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The provider did not embed the query.
    #[error("failed to embed the query: {0}")]
    Embed(#[from] EmbedError),
    /// The alias or its collection is not there.
    #[error(
        "{0}: the index is lost, or no worker has run yet; `elf rebuild` rebuilds it from \
         Postgres, a first `elf worker` creates it"
    )]
    Lost(IndexError),
    /// The vector engine did not answer the search.
    #[error(transparent)]
    Index(IndexError),
    /// Postgres did not revalidate the candidates.
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

impl Request {
    /// A search by both rankings in all notes.
    pub fn hybrid(text: &str, limit: usize) -> Self {
        Self {
            text: text.to_owned(),
            by: By::Hybrid,
            filter: Filter::default(),
            limit,
        }
    }
}

impl Searcher {
    /// The best chunks for a request, best first.
    pub async fn search(&self, request: &Request) -> Result<Vec<Item>, SearchError> {
        let query = self.query(request).await?;
        let candidates = self.index.search(&self.alias, &query).await?;
        let fusion = Fusion::of(self.settings.fusion, &candidates);
        let mut ranked: Vec<Ranked> = candidates
            .into_iter()
            .map(|candidate| Ranked::of(&fusion, candidate))
            .collect();
        ranked.sort_by(Ranked::best_first);
        let mut live = Vec::new();
        // More than the limit at once, because the revalidation may drop some.
        let step = (request.limit * 2).max(MIN_STEP);
        while live.len() < request.limit && !ranked.is_empty() {
            let rest = ranked.split_off(ranked.len().min(step));
            live.extend(self.revalidate(&query, &fusion, ranked).await?);
            ranked = rest;
        }
        live.sort_by(|(a, _), (b, _)| a.best_first(b));
        live.truncate(request.limit);
        Ok(live
            .into_iter()
            .map(|(ranked, chunk)| ranked.into_item(chunk))
            .collect())
    }

    async fn query(&self, request: &Request) -> Result<Query, EmbedError> {
        let vector = match request.by {
            By::Dense | By::Hybrid => Some(self.embed(&request.text).await?.to_vec()),
            By::Bm25 => None,
        };
        Ok(Query {
            vector,
            words: (request.by != By::Dense).then(|| request.text.clone()),
            filter: Filter {
                live_at: Some(Utc::now()),
                ..request.filter.clone()
            },
            candidates: (request.limit * 4).max(self.settings.candidates),
        })
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

    /// Those of the candidates that are chunks of live notes with the labels that were asked
    /// for.
    async fn revalidate(
        &self,
        query: &Query,
        fusion: &Fusion,
        ranked: Vec<Ranked>,
    ) -> Result<Vec<(Ranked, ChunkText)>, SearchError> {
        let points: Vec<(Uuid, i64)> = ranked
            .iter()
            .map(|ranked| (ranked.candidate.chunk_id, ranked.candidate.revision))
            .collect();
        let labels = &query.filter.keywords;
        let mut live = self
            .store
            .revalidate(&self.version, &points, labels)
            .await?;
        let shown = ranked.into_iter().filter_map(|mut ranked| {
            let chunk = live.remove(&ranked.candidate.chunk_id)?;
            let is_scored = chunk.is_current || ranked.rescore(fusion, query, &chunk);
            is_scored.then_some((ranked, chunk))
        });
        Ok(shown.collect())
    }
}

/// A candidate and its fused score.
struct Ranked {
    candidate: Candidate,
    score: f32,
}

impl Ranked {
    fn of(fusion: &Fusion, candidate: Candidate) -> Self {
        let score = fusion.score(candidate.dense, candidate.bm25);
        Self { candidate, score }
    }

    /// Equal scores keep the order of the ids, because sorting is stable: an answer can be
    /// repeated.
    fn best_first(&self, other: &Self) -> Ordering {
        other.score.total_cmp(&self.score)
    }

    /// Scores what the chunk says now. Its point is older than the chunk, for example because a
    /// worker has committed the note and not yet written its points. Without a vector there is
    /// nothing to score; then this is `false`.
    fn rescore(&mut self, fusion: &Fusion, query: &Query, chunk: &ChunkText) -> bool {
        let (Some(query), Some(vector)) = (&query.vector, &chunk.vector) else {
            return false;
        };
        self.candidate.dense = Some(cosine(query, vector));
        // The words that BM25 found may be gone.
        self.candidate.bm25 = 0.0;
        self.score = fusion.score(self.candidate.dense, self.candidate.bm25);
        true
    }

    fn into_item(self, chunk: ChunkText) -> Item {
        Item {
            note_id: chunk.note_id,
            key: chunk.key,
            chunk_id: chunk.chunk_id,
            chunk_index: chunk.chunk_index,
            start_offset: chunk.start_offset,
            end_offset: chunk.end_offset,
            score: self.score,
            dense: self.candidate.dense,
            bm25: self.candidate.bm25,
            text: chunk.text,
        }
    }
}

/// The cosine of two vectors of the same length, 0 if one of them is zero.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 {
        dot(a, b) / lengths
    } else {
        0.0
    }
}
