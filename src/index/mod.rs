//! The vector index: one trait between ELF and a vector engine, and the types
//! that cross it. Two engines: a Qdrant server and the same engine in-process.

mod connect;
#[cfg(feature = "embedded")]
mod embedded;
mod measured;
mod payload;
mod qdrant;

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use uuid::Uuid;

pub use connect::connect;

use crate::note::Labels;

/// Above this an f64, in which engines compare, does not tell every two integers apart; a
/// revision so high was not written by ELF.
pub const MAX_REVISION: i64 = 1 << 53;

/// What the engines call the dense vector of a point.
pub const DENSE: &str = "dense";
/// What the engines call the sparse vector of a point.
pub const BM25: &str = "bm25";

/// Candidate number `i` of a ranking, counted from 0, adds `1 / (RRF_K + i)` to
/// its fused score. 60 is the constant of the paper (Cormack et al. 2009); the
/// engines' own default of 2 would let the first of either ranking beat what
/// both of them find good.
const RRF_K: u32 = 60;
/// Just enough to break ties. The nearest of a collection is always somebody,
/// however far; the best of the words is somebody only where a word was found,
/// so it goes first.
const RRF_WEIGHT_DENSE: f32 = 1.0;
const RRF_WEIGHT_BM25: f32 = 1.1;

/// A vector engine that holds collections of points and aliases to them.
///
/// Every write is idempotent, for the network may deliver it twice, and is
/// durable when it returns `Ok`.
pub trait VectorIndex: Send + Sync {
    /// What the engine calls itself, with its version, for logs: `qdrant 1.18.3`.
    fn describe(&self) -> String;

    /// Makes an empty collection with its payload indexes. An existing one of
    /// that name is left as it is.
    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()>;

    /// What is known of a collection; `None` when there is none of that name.
    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>>;

    /// Prepares a collection, not an alias, for many points at once: `on` puts
    /// off the building of HNSW graphs, `!on` lets the engine build them, and
    /// [`CollectionInfo::status`] is `green` again when they are there. Asking
    /// twice changes nothing, and any process may turn off what another turned on.
    fn bulk_load<'a>(&'a self, collection: &'a str, on: bool) -> Answer<'a, ()>;

    /// Drops a collection; it is no error when there is none.
    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;

    /// The collection that `alias` points at.
    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>>;

    /// Points `alias` at `collection` in one step, whatever it pointed at before.
    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()>;

    /// Writes points. A point that the collection holds already is replaced only
    /// if `mode` allows it.
    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: Vec<Point>,
        mode: UpsertMode,
    ) -> Answer<'a, ()>;

    /// Deletes the points that match every field of `filter`.
    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()>;

    /// Counts, exactly, the points that match every field of `filter`.
    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64>;

    /// Reads those of `ids` that the collection holds, each once, in ascending
    /// order of their ids.
    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>>;

    /// Reads up to `limit` points (at least 1) in ascending order of their ids,
    /// beginning behind `after`. Fewer than `limit` means the end. Points whose
    /// id is no UUID are nobody's chunks and passed over.
    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>>;

    /// The best `query.limit` points of a collection or alias, best first: dense
    /// and BM25 candidates fused by reciprocal rank (RRF, Cormack et al. 2009).
    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Hit>>;
}

/// What a verb of [`VectorIndex`] returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, IndexError>>;

/// The shape of a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionSpec {
    /// Dimension of the dense vector (cosine distance).
    pub dim: usize,
    /// How texts become BM25 vectors. Kept with the collection: changing it
    /// takes a rebuild.
    pub bm25: Bm25Options,
    /// The embedding version whose vectors the collection holds.
    pub embedding_version: String,
}

/// How texts become BM25 vectors, in the engine's own terms.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bm25Options {
    /// Language of the stemmer and the stopwords: `english`, `german`… or `none`
    /// for neither.
    pub language: String,
    /// Term frequency saturation.
    pub k: f64,
    /// Length normalisation, 0 to 1.
    pub b: f64,
    /// Expected words in a chunk.
    pub avg_len: f64,
}

impl Default for Bm25Options {
    fn default() -> Self {
        Self {
            language: "english".into(),
            k: 1.2,
            b: 0.75,
            avg_len: 256.0,
        }
    }
}

/// What an engine says of a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionInfo {
    /// Its shape; `None` when ELF did not make it (no dense or BM25 vector, or
    /// none of ELF's metadata).
    pub spec: Option<CollectionSpec>,
    /// Points in it, exactly.
    pub points: u64,
    /// `green`, `yellow` (optimising), `grey` (will optimise), `red` (broken).
    pub status: String,
}

/// A chunk in the index.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its payload; the point's id is `payload.chunk_id`.
    pub payload: Payload,
    /// The dense vector, of the collection's dimension.
    pub vector: Vec<f32>,
    /// The text that BM25 sees. It becomes a sparse vector and is not stored.
    pub text: String,
}

/// The payload of a point. Never the text.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct Payload {
    pub note_id: Uuid,
    pub chunk_id: Uuid,
    pub chunk_index: u32,
    pub start_offset: u64,
    pub end_offset: u64,
    pub status: String,
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(flatten)]
    pub labels: Labels,
    pub embedding_version: String,
    /// The lease token under which the point was written.
    pub revision: i64,
}

/// When an upsert may replace a point that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpsertMode {
    /// When the stored revision is at most the new one: what a worker does.
    NotNewer,
    /// When the stored revision is at most this one, which may be above the new one: what
    /// a repair does about points that Postgres has forgotten.
    Over(i64),
    /// Never: what a backfill does beside live workers.
    InsertOnly,
}

/// Which points. Every field that is set must match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Filter {
    /// One of these chunks.
    pub chunk_ids: Option<Vec<Uuid>>,
    /// One of these notes.
    pub note_ids: Option<Vec<Uuid>>,
    /// None of these chunks.
    pub except_chunk_ids: Option<Vec<Uuid>>,
    /// A revision below this.
    pub revision_below: Option<i64>,
    /// A revision above this.
    pub revision_above: Option<i64>,
    /// Payload keyword fields with these values: `tenant_id`, `project_id`,
    /// `agent_id`, `scope`, `type`, `key`, `status`.
    pub keywords: BTreeMap<String, String>,
    /// Not yet expired at this time.
    pub live_at: Option<DateTime<Utc>>,
}

/// A point as the engine holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPoint {
    /// The chunk's id.
    pub chunk_id: Uuid,
    /// The payload as JSON.
    pub payload: serde_json::Map<String, serde_json::Value>,
    /// The dense vector, normalised to length 1 by the engine, when asked for.
    pub vector: Option<Vec<f32>>,
}

/// A search.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The embedded query, of the collection's dimension.
    pub vector: Vec<f32>,
    /// The words of the query, for BM25.
    pub text: String,
    /// Which points are candidates.
    pub filter: Filter,
    /// How many hits to return.
    pub limit: usize,
    /// How many candidates each of the two rankings gives to the fusion.
    pub candidates: usize,
}

/// A point that a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The chunk's id.
    pub chunk_id: Uuid,
    /// The fused score; comparable within one search only.
    pub score: f32,
}

/// Why an engine did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum IndexError {
    /// The engine is away or busy; the same request may work later.
    #[error("{engine} is unavailable: {reason}")]
    Unavailable {
        /// Which engine, and where.
        engine: String,
        /// What happened.
        reason: String,
    },
    /// The collection is not there.
    #[error("{engine} has no collection or alias {name:?}")]
    NotFound {
        /// Which engine, and where.
        engine: String,
        /// The collection or alias.
        name: String,
    },
    /// The engine does not let ELF do this, whatever the points are: the key, a quota, the
    /// strict mode, a limit, another model's dimension, a version that is too old. It
    /// takes an operator to change that, and it is never a note's fault.
    #[error("{engine} refuses: {reason}")]
    Denied {
        /// Which engine, and where.
        engine: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The engine does not accept what this request holds. Other points may pass.
    #[error("{engine} does not accept what it was sent: {reason}")]
    Refused {
        /// Which engine, and where.
        engine: String,
        /// What the engine said.
        reason: String,
    },
}
