//! The state of a version, and of a collection.

use serde::Serialize;

/// Whether an embedding version, or a collection of it, is written and served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Lifecycle {
    /// Workers write it and searches do not read it: a reindex builds the version, or a rebuild
    /// fills the collection.
    Building,
    /// Workers write it. Searches read the active version. The active collection of a version
    /// is the one that has, or gets, all points of it: also of a version that a reindex builds.
    Active,
    /// Workers do not write it any more. It is kept for a rollback.
    Retired,
}

impl Lifecycle {
    /// The name in Postgres.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Active => "active",
            Self::Retired => "retired",
        }
    }
}
