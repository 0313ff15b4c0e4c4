//! Exit codes.

use std::error::Error;

use super::verify::DriftFound;
use crate::chunk::{self, TokenizerError};
use crate::config::ConfigError;
use crate::embed::EmbedError;
use crate::error_class::ErrorClass;
use crate::index::IndexError;
use crate::rebuild::RebuildError;
use crate::reindex::ReindexError;
use crate::search::{RerankError, SearchError};
use crate::serving::ServingError;
use crate::store::StoreError;

const FAILED: u8 = 1;
const DRIFT: u8 = 3;
/// `EX_CONFIG` of sysexits.h: a retry can only succeed after the operator has changed
/// something.
const CONFIGURATION: u8 = 78;

pub fn code(error: &anyhow::Error) -> u8 {
    if error.is::<DriftFound>() || matches!(error.downcast_ref(), Some(ReindexError::Drift(_))) {
        DRIFT
    } else if error
        .chain()
        .filter_map(class)
        .any(|class| class == ErrorClass::Configuration)
    {
        CONFIGURATION
    } else {
        FAILED
    }
}

fn class(cause: &(dyn Error + 'static)) -> Option<ErrorClass> {
    fn of<E: Error + 'static>(
        cause: &(dyn Error + 'static),
        class: impl Fn(&E) -> ErrorClass,
    ) -> Option<ErrorClass> {
        cause.downcast_ref().map(class)
    }
    of(cause, |_: &ConfigError| ErrorClass::Configuration)
        .or_else(|| of(cause, TokenizerError::class))
        .or_else(|| of(cause, chunk::class_of))
        .or_else(|| of(cause, EmbedError::class))
        .or_else(|| of(cause, StoreError::class))
        .or_else(|| of(cause, IndexError::class))
        .or_else(|| of(cause, ServingError::class))
        .or_else(|| of(cause, RebuildError::class))
        .or_else(|| of(cause, ReindexError::class))
        .or_else(|| of(cause, SearchError::class))
        .or_else(|| of(cause, RerankError::class))
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
        let errors: [anyhow::Error; 5] = [
            denied().into(),
            ServingError::from(denied()).into(),
            RebuildError::from(denied()).into(),
            ReindexError::from(ServingError::from(denied())).into(),
            RerankError::Config("no such model".into()).into(),
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
        assert_eq!(code(&DriftFound::Index.into()), DRIFT);
        let drift = ReindexError::Drift(crate::verify::Report::default());
        assert_eq!(code(&drift.into()), DRIFT);
    }
}
