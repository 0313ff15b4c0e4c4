//! Exit codes.

use std::error::Error;

use super::verify::DriftFound;
use crate::chunk::{ChunkError, TokenizerError};
use crate::config::ConfigError;
use crate::embed::EmbedError;
use crate::index::IndexError;
use crate::observe::Part;
use crate::rebuild::RebuildError;
use crate::registry::{AliasError, JobError, SetupError, StoresError};
use crate::reindex::ReindexError;
use crate::search::SearchError;
use crate::store::StoreError;
use crate::verify::VerifyError;

const FAILED: u8 = 1;
const DRIFT: u8 = 3;
/// `EX_CONFIG` of sysexits.h: a retry can only succeed after the operator has changed
/// something.
const CONFIGURATION: u8 = 78;

/// The exit code for an error.
pub fn code(error: &anyhow::Error) -> u8 {
    if error.is::<DriftFound>() || matches!(error.downcast_ref(), Some(ReindexError::Drift(_))) {
        DRIFT
    } else if error.chain().any(is_configuration) {
        CONFIGURATION
    } else {
        FAILED
    }
}

/// The part that is unavailable, or whose schema is not migrated yet, where a later try may
/// work. `None` for every other error.
pub fn unavailable_part(error: &anyhow::Error) -> Option<Part> {
    error.chain().find_map(|cause| {
        match cause.downcast_ref() {
            Some(StoreError::Unavailable(_)) => return Some(Part::Postgres),
            Some(StoreError::Outdated(_)) => return Some(Part::Schema),
            _ => {}
        }
        // The configuration names a model on a hub that is unavailable.
        if cause.downcast_ref().is_some_and(hub_is_unavailable) {
            return Some(Part::Config);
        }
        if let Some(IndexError::Unavailable { .. }) = cause.downcast_ref() {
            return Some(Part::Index);
        }
        if let Some(EmbedError::Unavailable { .. }) = cause.downcast_ref() {
            return Some(Part::Provider);
        }
        match cause.downcast_ref() {
            Some(SetupError::Store(StoreError::Unavailable(_))) => Some(Part::Postgres),
            Some(SetupError::Index(IndexError::Unavailable { .. })) => Some(Part::Index),
            _ => None,
        }
    })
}

/// `#[error(transparent)]` leaves the wrapped error out of the chain, so this function looks
/// into the enums that use it.
fn is_configuration(cause: &(dyn Error + 'static)) -> bool {
    if let Some(error) = cause.downcast_ref() {
        return store(error);
    }
    if let Some(error) = cause.downcast_ref() {
        return index(error);
    }
    if let Some(error) = cause.downcast_ref() {
        return setup(error);
    }
    if let Some(error) = cause.downcast_ref() {
        return rebuild(error);
    }
    if let Some(error) = cause.downcast_ref() {
        return reindex(error);
    }
    match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(VerifyError::Stores(error)), _) => return target(error),
        (Some(VerifyError::Alias(error)), _) => return alias(error),
        (_, Some(SearchError::Index(error))) => return index(error),
        (_, Some(SearchError::Store(error))) => return store(error),
        _ => {}
    }
    cause.is::<ConfigError>()
        || cause
            .downcast_ref()
            .is_some_and(|error| !hub_is_unavailable(error))
        || matches!(cause.downcast_ref(), Some(EmbedError::Config { .. }))
        || matches!(cause.downcast_ref(), Some(ChunkError::NoRoom { .. }))
}

fn hub_is_unavailable(error: &TokenizerError) -> bool {
    matches!(error, TokenizerError::Files(hub) if hub.may_pass())
}

fn store(error: &StoreError) -> bool {
    matches!(error, StoreError::Schema(_) | StoreError::Outdated(_))
}

fn index(error: &IndexError) -> bool {
    matches!(error, IndexError::Denied { .. })
}

fn target(error: &StoresError) -> bool {
    match error {
        StoresError::Store(error) => store(error),
        StoresError::Index(error) => index(error),
    }
}

fn alias(error: &AliasError) -> bool {
    match error {
        AliasError::Store(error) => store(error),
        AliasError::Index(error) => index(error),
        AliasError::Foreign { .. } => true,
    }
}

fn setup(error: &SetupError) -> bool {
    match error {
        SetupError::Store(error) => store(error),
        SetupError::Index(error) => index(error),
        SetupError::Mismatch(_) => true,
        SetupError::RolledBack => false,
    }
}

fn rebuild(error: &RebuildError) -> bool {
    match error {
        RebuildError::Foreign(_) => true,
        RebuildError::Stores(error) => target(error),
        RebuildError::Job(JobError::Store(error)) => store(error),
        _ => false,
    }
}

fn reindex(error: &ReindexError) -> bool {
    match error {
        ReindexError::Setup(error) => setup(error),
        ReindexError::Rebuild(error) => rebuild(error),
        ReindexError::Stores(error) => target(error),
        ReindexError::Job(JobError::Store(error)) => store(error),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied() -> IndexError {
        IndexError::Denied {
            engine: "qdrant".into(),
            reason: "too old".into(),
        }
    }

    #[test]
    fn a_wrapped_refusal_is_still_a_configuration_error() {
        let errors: [anyhow::Error; 4] = [
            denied().into(),
            SetupError::from(denied()).into(),
            RebuildError::from(denied()).into(),
            ReindexError::from(SetupError::from(denied())).into(),
        ];
        for error in errors {
            assert_eq!(code(&error.context("failed to start")), CONFIGURATION);
        }
    }

    #[test]
    fn an_error_that_may_pass_is_only_a_failure() {
        let content = IndexError::Refused {
            engine: "qdrant".into(),
            reason: "a vector that is none".into(),
        };
        assert_eq!(code(&content.into()), FAILED);
        let unavailable = StoreError::Unavailable("connection refused".into());
        assert_eq!(code(&RebuildError::from(unavailable).into()), FAILED);
        assert_eq!(code(&anyhow::anyhow!("no")), FAILED);
    }

    #[test]
    fn drift_has_a_code_of_its_own() {
        assert_eq!(code(&DriftFound.into()), DRIFT);
        let drift = ReindexError::Drift(crate::verify::Report::default());
        assert_eq!(code(&drift.into()), DRIFT);
    }
}
