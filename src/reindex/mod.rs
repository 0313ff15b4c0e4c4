//! Builds another embedding version beside the one that is served. Workers of its own build
//! it while others keep the old one in step. It is compared with Postgres and swapped in with
//! one step. It can be rolled back as long as the old version is kept.
//!
//! Postgres records which version is served. A reindex changes Postgres first, and the alias
//! follows. (A rebuild changes the alias first: both of its collections are complete.) If the
//! process is killed between the two, the next worker or the same command moves the alias.

mod build;
mod drop;
mod estimate;
mod rollback;

pub use build::{Report, Then, run};
pub use drop::{Dropped, drop};
pub use estimate::{Estimate, estimate};
pub use rollback::{RolledBack, rollback};

use crate::embed::EmbedError;
use crate::error_class::ErrorClass;
use crate::serving::ServingError;
use crate::verify;

/// Why a reindex, a drop or a rollback failed.
#[derive(Debug, thiserror::Error)]
pub enum ReindexError {
    /// Postgres or the vector engine failed, another job is running, or configuration, database
    /// and index do not belong together.
    #[error(transparent)]
    Serving(ServingError),
    /// The provider rejects the configuration.
    #[error("failed to embed")]
    Embed(#[source] EmbedError),
    /// The version or its collection is not in the state that the command needs.
    #[error("{0}")]
    Refused(String),
    /// Notes are dead-lettered under the new version.
    #[error(
        "{0} notes are dead-lettered under the new version, so the old one is still served: see \
         `elf dead list`, repair and retry them or purge them, then run `elf reindex --swap` again"
    )]
    DeadLetters(u64),
    /// The new collection differs from Postgres.
    #[error(
        "the new collection differs from Postgres ({} missing, {} stale, {} orphaned points, {} \
         inconsistent notes), so the old one is still served; --verbose lists them. `elf enqueue \
         --all` writes them again without embedding; then run the same command again",
        .0.missing, .0.stale, .0.orphaned, .0.inconsistent
    )]
    Drift(verify::Report),
    /// A signal stopped it.
    #[error("stopped; what is done is kept: run the same command again to resume")]
    Stopped,
}

impl<E: Into<ServingError>> From<E> for ReindexError {
    fn from(error: E) -> Self {
        Self::Serving(error.into())
    }
}

impl ReindexError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Serving(error) => error.class(),
            Self::Embed(error) => error.class(),
            Self::Refused(_) | Self::DeadLetters(_) | Self::Drift(_) | Self::Stopped => {
                ErrorClass::Precondition
            }
        }
    }
}
