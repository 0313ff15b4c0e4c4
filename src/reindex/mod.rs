//! Another embedding version beside the one that is served: built by workers of its
//! own while the old one is kept in step, compared with Postgres, swapped to in one
//! step, and back again as long as the old one is kept.
//!
//! Postgres says what is served, and changes first; the alias follows. Killed between
//! the two, whoever looks next, a worker or the same command, finishes it.

mod build;
mod discard;
mod estimate;
mod rollback;

pub use build::{Report, Then, run};
pub use discard::{Dropped, drop};
pub use estimate::{Estimate, estimate};
pub use rollback::{RolledBack, rollback};

use crate::embed::EmbedError;
use crate::index::IndexError;
use crate::rebuild::RebuildError;
use crate::registry::{AliasError, JobError, SetupError, StoresError};
use crate::store::StoreError;
use crate::verify;

/// Why a reindex ended.
#[derive(Debug, thiserror::Error)]
pub enum ReindexError {
    /// Another job is running.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Configuration, database and index do not belong together.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The provider refuses the configuration.
    #[error("failed to embed")]
    Embed(#[source] EmbedError),
    /// A new collection could not be named.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// A store failed.
    #[error(transparent)]
    Stores(#[from] StoresError),
    /// What was asked for is not to be had.
    #[error("{0}")]
    Refused(String),
    /// Notes were given up.
    #[error(
        "{0} notes were given up under the new version, so the old one is still served: see \
         `elf dead list`, mend and retry them or purge them, then run `elf reindex --swap` again"
    )]
    DeadLetters(u64),
    /// The new collection is not what Postgres says.
    #[error(
        "the new collection differs from Postgres ({} missing, {} stale, {} orphaned points, {} \
         inconsistent notes), so the old one is still served; --verbose says which. `elf enqueue --all` \
         has them written again, without embedding; then run this again",
        .0.missing, .0.stale, .0.orphaned, .0.inconsistent
    )]
    Drift(verify::Report),
    /// It was told to.
    #[error("stopped; what is done is kept: the same command goes on")]
    Stopped,
}

impl From<StoreError> for ReindexError {
    fn from(error: StoreError) -> Self {
        StoresError::from(error).into()
    }
}

impl From<IndexError> for ReindexError {
    fn from(error: IndexError) -> Self {
        StoresError::from(error).into()
    }
}

impl From<AliasError> for ReindexError {
    fn from(error: AliasError) -> Self {
        SetupError::from(error).into()
    }
}
