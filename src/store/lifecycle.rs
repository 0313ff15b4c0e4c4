//! The state of a version, and of a collection.

use serde::Serialize;

/// What the worker does with an embedding version, or with a collection of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, sqlx::Type)]
#[serde(rename_all = "lowercase")]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Lifecycle {
    /// Kept in step and not served: a reindex builds the version, a rebuild fills the
    /// collection.
    Building,
    /// Kept in step and served. A collection has all of its version.
    Active,
    /// Neither: kept as it was, for a rollback.
    Retired,
}

impl Lifecycle {
    /// As Postgres has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Active => "active",
            Self::Retired => "retired",
        }
    }
}
