//! What is served: the embedding version and its identity, the collections that hold it, the
//! alias that searches go through, the job that may change them, and the payload of a point.
//! Cannot embed: this module does not depend on the embedding module.

mod alias;
mod collections;
mod ensure;
mod error;
mod fields;
mod home;
mod job;
mod payload;
mod target;
mod tokens;
mod version;

use std::sync::Arc;

use crate::config::Bm25Options;
use crate::index::VectorIndex;
use crate::metadata::Declared;
use crate::store::Store;
pub use alias::{alias_problem, check_alias, problem_of_target, reconcile_alias};
pub use collections::free_collection_name;
pub use ensure::{
    check_spec, check_version_is_active, ensure_ready, register_or_check_version, spec,
    unless_retired, version_unless_retired,
};
pub use error::ServingError;
pub use fields::{declare_fields, fields_problem, index_fields};
pub use home::{
    adopt_copy, check_home, check_home_to_search, home_problem, move_home, record_home,
};
pub use job::{Job, Progress};
pub use payload::payload;
pub use target::{CollectionTarget, Notice, Refused, Written, id_ranges};
pub use tokens::{check_tokens, ensure_tokens, raise_tokens};
pub use version::{Change, asked_changes, changes, differences, embedding_version};

/// A database and the index that is derived from it.
#[derive(Clone)]
pub struct Serving {
    /// Postgres: the source of truth.
    pub store: Store,
    /// The vector engine: derived from Postgres.
    pub index: Arc<dyn VectorIndex>,
    /// The alias that searches go through.
    pub alias: String,
    /// How new collections embed texts for BM25.
    pub bm25: Bm25Options,
    /// The fields that `[metadata]` declares. A worker that starts makes them those of the database, which is what
    /// filters are checked against.
    pub fields: Declared,
}
