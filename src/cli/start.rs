//! How a worker starts, and what it waits for meanwhile.

use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use super::output::with_causes;
use super::{migrate, systemd, wiring};
use crate::backoff;
use crate::chunk::TokenizerError;
use crate::config::Config;
use crate::embed::EmbedError;
use crate::index::IndexError;
use crate::observe::{Health, Part};
use crate::serving::{self, ServingError};
use crate::sources;
use crate::store::StoreError;
use crate::worker::Pipeline;

/// Pauses between two tries to start while a dependency is unavailable.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How long to look whether the sources fit their tables.
const SOURCES_LIMIT: Duration = Duration::from_secs(3);

/// Connects to Postgres, the vector engine and the provider, checks that the embedding
/// version matches the database, and makes the collection ready.
pub async fn connect_and_ensure_ready(config: &Config, migrate: bool) -> anyhow::Result<Pipeline> {
    if migrate {
        let migrated = migrate::migrate(config).await?;
        tracing::info!(migrations = migrated.applied, "schema is up to date");
        for note in migrated.notes {
            tracing::warn!("{note}");
        }
    }
    let pipeline = wiring::pipeline(config).await?;
    if let Some(vector_type) = config.storage.postgres.vector_type {
        pipeline
            .serving
            .store
            .check_vector_type(vector_type)
            .await?;
    }
    serving::register_or_check_version(&pipeline.serving.store, &pipeline.version).await?;
    serving::ensure_ready(&pipeline.serving, &pipeline.version).await?;
    serving::declare_fields(&pipeline.serving).await?;
    // With a pinned dimension the worker has sent no request to the provider yet. An
    // unavailable provider may recover; one that rejects the key or the model will not.
    if let Err(error @ EmbedError::Config { .. }) = pipeline.provider.check().await {
        return Err(error).context("failed to start providers.embedding");
    }
    // No reason to wait for a lock on such a table.
    let listed = sources::list(&pipeline.serving.store, &config.sources);
    if let Ok(listed) = tokio::time::timeout(SOURCES_LIMIT, listed).await {
        for problem in listed?.into_iter().filter_map(|source| source.problem) {
            tracing::warn!("{problem}");
        }
    }
    if !migrate {
        for note in pipeline.serving.store.other_creators().await? {
            tracing::warn!("{note}");
        }
    }
    Ok(pipeline)
}

/// [`connect_and_ensure_ready`], tried again while Postgres, the vector engine, the provider or
/// the hub is unavailable, and while the schema is too old: a migration may be running in another
/// process. Every other error is returned at once. `None` when the worker is told to stop while
/// it waits.
pub async fn ensure_ready_with_retries(
    config: &Config,
    migrate: bool,
    health: &Health,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Pipeline>> {
    let mut waiting_for = None;
    for tries in 1.. {
        let error = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            begun = connect_and_ensure_ready(config, migrate) => match begun {
                Ok(pipeline) => return Ok(Some(pipeline)),
                Err(error) => error,
            },
        };
        let Some(part) = unavailable_part(&error) else {
            return Err(error);
        };
        let reason = with_causes(&error);
        // Log once per part, not once per try.
        let is_news = waiting_for.replace(part) != Some(part);
        if is_news {
            health.forget();
        }
        health.set(part, Some(reason.clone()));
        if is_news {
            tracing::warn!(reason, "waiting to start");
            systemd::ready(&format!("waiting: {reason}"));
        }
        let pause = backoff::delay(tries, FIRST_PAUSE, LONGEST_PAUSE, rand::random());
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(pause) => {}
        }
    }
    unreachable!("the counter of tries does not run out")
}

/// The part that is unavailable, or whose schema is not migrated yet, where a later try may
/// work. `None` for every other error.
fn unavailable_part(error: &anyhow::Error) -> Option<Part> {
    error.chain().find_map(|cause| {
        // `#[error(transparent)]` leaves the wrapped error out of the chain.
        let (store, index) = match cause.downcast_ref() {
            Some(ServingError::Store(error)) => (Some(error), None),
            Some(ServingError::Index(error)) => (None, Some(error)),
            _ => (cause.downcast_ref(), cause.downcast_ref()),
        };
        if let Some(
            StoreError::Outdated(_)
            | StoreError::NotMigrated(_)
            | StoreError::OtherVectorType { .. },
        ) = store
        {
            return Some(Part::Schema);
        }
        let provider = cause.downcast_ref().map(EmbedError::class);
        // The configuration names a model on a hub that is unavailable.
        let hub = cause.downcast_ref().map(TokenizerError::class);
        [
            (store.map(StoreError::class), Part::Postgres),
            (index.map(IndexError::class), Part::Index),
            (provider, Part::Provider),
            (hub, Part::Config),
        ]
        .into_iter()
        .find_map(|(class, part)| class?.may_pass().then_some(part))
    })
}
