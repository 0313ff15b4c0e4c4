//! The vector index: one trait between ELF and a vector engine, and the types
//! that cross it. Two engines: a Qdrant server and the same engine in-process.

mod candidates;
mod connect;
#[cfg(feature = "embedded")]
mod embedded;
mod keywords;
mod measured;
mod payload;
mod qdrant;

use std::borrow::Cow;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::config::Bm25Options;
use crate::error_class::ErrorClass;
use crate::metadata::{Conditions, Declared};
use crate::note::Labels;
pub use connect::{connect, connect_to_search};

/// Every revision that ELF writes is below this: the engines compare revisions as f64, which
/// holds every integer exactly only up to here.
pub const MAX_REVISION: i64 = 1 << 53;

/// The name of a point's dense vector.
pub const DENSE: &str = "dense";
/// The name of a point's sparse vector.
pub const BM25: &str = "bm25";

/// A vector engine that holds collections of points and aliases to them.
///
/// Every write is idempotent, because the network may deliver it twice. A write that
/// returned `Ok` is durable.
pub trait VectorIndex: Send + Sync {
    /// The engine's name and version, for logs: `qdrant 1.18.3`.
    fn describe(&self) -> String;

    /// Where the index is.
    fn place(&self) -> IndexPlace;

    /// Makes an empty collection with its payload indexes. An existing one of
    /// that name keeps its points.
    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()>;

    /// Makes the payload indexes of these fields of `metadata` that a collection lacks, or has for another type. A
    /// filter by a field needs its index.
    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()>;

    /// What is known of a collection; `None` when there is none of that name.
    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>>;

    /// Prepares a collection, not an alias, for many points at once: until [`Self::end_load`]
    /// the engine builds no HNSW graphs. Returns how many points to load before that; the rest
    /// is another load. Repeating the call changes nothing.
    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64>;

    /// Ends a load, also one that another process began, and wakes a collection that is
    /// [`CollectionStatus::Grey`]. The engine builds the graphs, and the collection is
    /// [`CollectionStatus::Green`] again when they are built.
    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()>;

    /// Drops a collection. A missing collection is not an error.
    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()>;

    /// The collection that `alias` points at.
    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>>;

    /// Points `alias` at `collection` in one step, wherever it pointed before.
    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()>;

    /// Writes points. A point that the collection holds already is replaced only
    /// if `mode` allows it, and then whole: what the new one lacks is gone.
    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: &'a [Point],
        mode: UpsertMode,
    ) -> Answer<'a, ()>;

    /// Replaces what the points of these notes say of their note. Vectors and chunk fields stay.
    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()>;

    /// Deletes the points that match every field of `filter`.
    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()>;

    /// Counts, exactly, the points that match every field of `filter`.
    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64>;

    /// Reads those of `ids` that the collection holds, each once, in ascending
    /// order of their ids. Without vectors, it does not say which points have one.
    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>>;

    /// Reads up to `limit` points (at least 1) in ascending order of their ids,
    /// starting after `after`. Fewer than `limit` points mean the end. Skips points
    /// whose id is not a UUID: ELF did not write them. Says which points have a dense vector.
    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>>;

    /// The points of a collection or alias that match `query.filter` and are among the best
    /// `query.candidates` of a shard by meaning or by keyword, in ascending order of their ids.
    /// Each has both scores, whichever ranking found it, so that the caller can fuse them. No
    /// payload: reading those would take a server half as long again.
    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>>;
}

/// What a method of [`VectorIndex`] returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, IndexError>>;

/// Where an index is.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexPlace {
    /// The URL of a server, or the folder and the host of the engine in the process.
    pub place: String,
    /// The folder's own id, which moves with it; `None` for a server.
    pub id: Option<Uuid>,
}

/// The shape of a collection.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CollectionSpec {
    /// Dimension of the dense vector (cosine distance).
    pub dim: usize,
    /// How texts become BM25 vectors. Kept with the collection: changing it
    /// takes a rebuild.
    pub bm25: Bm25Options,
    /// The embedding version whose vectors the collection holds.
    pub embedding_version: String,
}

/// What an engine knows of a collection.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CollectionInfo {
    /// Its shape; `None` when ELF did not make it (no dense or BM25 vector, or
    /// none of ELF's metadata).
    pub spec: Option<CollectionSpec>,
    /// Points in it, exactly.
    pub points: u64,
    /// Whether it is ready.
    pub status: CollectionStatus,
}

/// Whether a collection is ready, as its engine reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectionStatus {
    /// Ready.
    Green,
    /// It is optimised now.
    Yellow,
    /// It will be optimised after the next write or [`VectorIndex::end_load`]: the engine was
    /// restarted.
    Grey,
    /// Broken: the engine's log says why.
    Red,
}

impl std::fmt::Display for CollectionStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Green => "green",
            Self::Yellow => "yellow",
            Self::Grey => "grey",
            Self::Red => "red",
        })
    }
}

/// A chunk in the index.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Point {
    /// Its payload; the point's id is `payload.chunk_id`.
    pub payload: Payload,
    /// The dense vector, of the collection's dimension. Without it the point is found by keyword
    /// alone.
    pub vector: Option<Vec<f32>>,
    /// What BM25 sees before the text, if the options of the collection ask for it.
    pub lead: String,
    /// The text that BM25 sees. It becomes a sparse vector and is not stored.
    pub text: String,
}

impl Point {
    /// The words that BM25 sees, as an engine gets them.
    fn words(&self, bm25: &Bm25Options) -> Cow<'_, str> {
        match bm25.lead && !self.lead.is_empty() {
            true => {
                let words = format!("{}{}", self.lead, self.text);
                Cow::Owned(keywords::prepared(&words, bm25).into_owned())
            }
            false => keywords::prepared(&self.text, bm25),
        }
    }

    /// About how many bytes it takes in a request.
    fn bytes(&self) -> usize {
        const PAYLOAD: usize = 1024;
        let vector = self.vector.as_ref();
        let vector = vector.map_or(0, |vector| size_of_val(&**vector));
        vector + self.lead.len() + self.text.len() + PAYLOAD
    }
}

/// The payload of a point. Never the text.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct Payload {
    pub chunk_id: Uuid,
    pub chunk_index: u32,
    pub start_offset: u64,
    pub end_offset: u64,
    pub note: NotePayload,
}

/// What the payloads of a note's points have in common.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct NotePayload {
    pub note_id: Uuid,
    pub status: String,
    pub expires_at: Option<DateTime<Utc>>,
    pub labels: Labels,
    pub embedding_version: String,
    /// The lease token under which the point was written.
    pub revision: i64,
}

/// What [`VectorIndex::relabel`] does to a note.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Relabel {
    /// Only points of exactly this revision are changed: their vectors are known to be right.
    pub from: i64,
    /// What they say of the note from now on.
    pub to: NotePayload,
}

impl Relabel {
    /// The points that change.
    fn filter(&self) -> Filter {
        Filter {
            note_ids: Some(vec![self.to.note_id]),
            ..Filter::of_revision(self.from)
        }
    }
}

/// When an upsert may replace a point that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UpsertMode {
    /// When the stored revision is at most the new one. Workers use it.
    NotNewer,
    /// When the stored revision is not higher than this number. The number may be higher than
    /// the revision of the new point: repair uses it to replace points of transactions that Postgres has lost.
    UpTo(i64),
    /// Never. A backfill uses it, so that it replaces nothing that a worker wrote meanwhile.
    InsertOnly,
}

/// Which points. Every field that is set must match.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
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
    /// `agent_id`, `scope`, `type`, `key`, `source`, `status`.
    pub keywords: BTreeMap<String, String>,
    /// Not yet expired at this time.
    pub live_at: Option<DateTime<Utc>>,
    /// Written at this time or later.
    pub updated_after: Option<DateTime<Utc>>,
    /// Written before this time.
    pub updated_before: Option<DateTime<Utc>>,
    /// Of at least this importance.
    pub min_importance: Option<f32>,
    /// What the declared fields must be like.
    pub fields: Conditions,
}

impl Filter {
    /// Points of exactly this revision.
    pub fn of_revision(revision: i64) -> Self {
        Self {
            revision_above: Some(revision - 1),
            revision_below: Some(revision + 1),
            ..Self::default()
        }
    }

    /// What it asks of a note's row, by name.
    pub fn of_note(&self) -> serde_json::Value {
        let mut wanted = serde_json::json!(self.keywords);
        for (name, time) in [
            ("updated_after", self.updated_after),
            ("updated_before", self.updated_before),
        ] {
            if let Some(time) = time {
                wanted[name] = time.to_rfc3339().into();
            }
        }
        if let Some(least) = self.min_importance {
            wanted["min_importance"] = least.to_string().into();
        }
        if !self.fields.is_empty() {
            wanted["metadata"] = serde_json::json!(self.fields);
        }
        wanted
    }
}

/// A point as the engine holds it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StoredPoint {
    /// Also its id in the engine: [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// The payload as JSON.
    pub payload: serde_json::Map<String, serde_json::Value>,
    /// The dense vector, normalised to length 1 by the engine, when asked for; `None` also if it
    /// has none.
    pub vector: Option<Vec<f32>>,
    /// Whether it has a dense vector; `None` if that was not read.
    pub has_vector: Option<bool>,
}

impl StoredPoint {
    /// The lease token under which it was written. `None` if ELF did not write it.
    pub fn revision(&self) -> Option<i64> {
        let revision = self.payload.get(payload::REVISION)?.as_i64()?;
        (revision < MAX_REVISION).then_some(revision)
    }
}

/// Records which of the points, in ascending order of their ids, are `without` a dense vector.
fn say_which_have_vectors(points: &mut [StoredPoint], without: impl Iterator<Item = Uuid>) {
    for point in &mut *points {
        point.has_vector = Some(true);
    }
    for id in without {
        if let Ok(at) = points.binary_search_by_key(&id, |point| point.chunk_id) {
            points[at].has_vector = Some(false);
        }
    }
}

/// What to rank points by, and which points.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Query {
    /// The embedded query, of the collection's dimension. Without it, points are ranked by
    /// keyword alone.
    pub vector: Option<Vec<f32>>,
    /// The words of the query, for BM25. Without them, points are ranked by meaning alone.
    pub words: Option<String>,
    /// Which points are candidates.
    pub filter: Filter,
    /// How many candidates each of the two rankings gives.
    pub candidates: usize,
    /// Neighbours that an engine with a graph considers while it searches it.
    pub hnsw_ef: Option<u32>,
    /// Whether an engine with a graph compares the vector with those of all points instead.
    pub exact: bool,
}

impl Query {
    /// The points among which a word is rare or not: those of the tenant. `None` for all.
    fn idf_corpus(&self) -> Option<Filter> {
        let tenant = self.filter.keywords.get_key_value(payload::TENANT)?;
        Some(Filter {
            keywords: [tenant].map(|(k, v)| (k.clone(), v.clone())).into(),
            ..Filter::default()
        })
    }
}

/// A point that a search found.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Candidate {
    /// See [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// Cosine of the query's vector and the point's, -1 to 1. `None` in a search without a
    /// vector.
    pub dense: Option<f32>,
    /// BM25 score, 0 when the point has no word of the query. Its range depends on the query.
    pub bm25: f32,
}

/// Why an engine did not carry out a request.
#[derive(Debug, Clone, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum IndexError {
    /// The engine is unavailable or busy; the same request may work later.
    #[error("{engine} is unavailable: {reason}")]
    Unavailable {
        /// Which engine, and where.
        engine: String,
        /// What the engine said, or why it was not reached.
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
    /// The engine denies the operation because of the key, a quota, the strict mode, a limit,
    /// another model's dimension or a version that is too old. Only an operator can change
    /// that. The points that were sent are never the reason.
    #[error("{engine} refuses: {reason}")]
    Denied {
        /// Which engine, and where.
        engine: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The engine refuses the content of this request. It may accept other points.
    #[error("{engine} refuses the content of a request: {reason}")]
    Refused {
        /// Which engine, and where.
        engine: String,
        /// What the engine said.
        reason: String,
    },
}

impl IndexError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable { .. } => ErrorClass::Storage,
            Self::NotFound { .. } => ErrorClass::Precondition,
            Self::Denied { .. } => ErrorClass::Configuration,
            Self::Refused { .. } => ErrorClass::Item,
        }
    }
}
