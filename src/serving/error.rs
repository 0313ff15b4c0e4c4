//! Why work on what is served failed.

use crate::error_class::ErrorClass;
use crate::index::IndexError;
use crate::store::{RunningJob, StoreError};

/// Why what is served could not be read, written or changed.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// Postgres failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The vector engine failed.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// No worker has registered a version yet.
    #[error("nothing is indexed yet: run `elf worker`, or `elf worker --once`")]
    NothingIndexed,
    /// The collection that searches need is gone, or no alias leads to it.
    #[error("{0}")]
    NotServed(String),
    /// Another job is running.
    #[error(
        "a {} of {} is running: {}, since {}, {} of {} done; wait for it, or stop it and run this again",
        .0.kind, .0.subject, .0.holder, .0.started_at.format("%F %T UTC"), .0.done, .0.total
    )]
    JobRunning(RunningJob),
    /// Postgres issues tokens again that the index has seen.
    #[error(
        "Postgres lost its newest transactions (a failover to a standby that lagged, or a restore): \
         nothing was acked, tokens are raised above every revision in the index, and a verify \
         repairs what Postgres lost"
    )]
    RolledBack,
    /// The alias points at a collection that this database does not list.
    #[error(
        "the alias {alias:?} points at the collection {target:?}, which this database does not \
         list. If it is that of another database, use another vector engine, or for a database \
         that has no collection yet, another storage.qdrant.alias. If Postgres was restored from \
         a backup, `elf rebuild --take-alias` points the alias at {wanted:?}"
    )]
    ForeignAlias {
        /// `storage.qdrant.alias`.
        alias: String,
        /// What it points at.
        target: String,
        /// What it should point at.
        wanted: String,
    },
    /// The database's collections belong to another alias.
    #[error(
        "the database is indexed under the alias {registered:?}, and storage.qdrant.alias is \
         {configured:?}: put the setting back"
    )]
    OtherAlias {
        /// The alias of the database's collections.
        registered: String,
        /// The alias in the configuration.
        configured: String,
    },
    /// Configuration, database and index do not belong together.
    #[error("{0}")]
    Mismatch(String),
}

impl ServingError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Store(error) => error.class(),
            Self::Index(error) => error.class(),
            Self::NothingIndexed | Self::NotServed(_) | Self::JobRunning(_) => {
                ErrorClass::Precondition
            }
            Self::RolledBack => ErrorClass::Storage,
            Self::ForeignAlias { .. } | Self::OtherAlias { .. } | Self::Mismatch(_) => {
                ErrorClass::Configuration
            }
        }
    }
}
