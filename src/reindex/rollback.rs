//! Serves the version again that was served before.

use std::sync::Arc;

use serde::Serialize;

use super::ReindexError;
use crate::serving::{Change, Job, Serving, changes, reconcile_alias};
use crate::store::{CollectionRow, Lifecycle, RegisteredVersion, Version};

/// What a rollback did.
#[derive(Debug, Clone, Serialize)]
pub struct RolledBack {
    /// The version that is served again.
    pub version: String,
    /// The version that was served until now; null when the run only finished an earlier
    /// rollback.
    pub retired: Option<String>,
    /// Notes that are due for `version`.
    pub due: u64,
    /// The settings in which `version` differs from the version that was served.
    pub settings: Vec<Change>,
}

/// Serves the version again that was retired last. The configuration need not match it: notes
/// that changed since are put into the outbox, for a worker that has its settings.
pub async fn rollback(serving: &Serving) -> Result<RolledBack, ReindexError> {
    let job = Job::take(&serving.store, "rollback", &serving.alias, Arc::default()).await?;
    let outcome = job.run(roll_back(serving, &job)).await;
    job.end().await;
    outcome
}

async fn roll_back(serving: &Serving, job: &Job) -> Result<RolledBack, ReindexError> {
    let Serving { store, index, .. } = serving;
    let known = store.versions().await?;
    let Some(active) = known.iter().find(|v| v.state == Lifecycle::Active) else {
        return Err(ReindexError::Refused(
            "nothing is indexed yet, so there is nothing to roll back to".into(),
        ));
    };
    let registered = store.registered_collections().await?;
    let main = |version: &RegisteredVersion| -> Option<&CollectionRow> {
        registered
            .iter()
            .find(|c| c.version == version.version.name && c.is_active())
    };
    let retired = known.iter().find(|v| v.state == Lifecycle::Retired);
    // Only a rollback serves a version for which nothing is enqueued: it died halfway. Rolling back
    // once more would undo it. (Where the alias points does not tell: a swap may have died too, and
    // the version that it serves is the one to roll back.)
    if let Some(served) = main(active)
        && !active.enqueued
    {
        let other = retired.unwrap_or(active);
        return finish_rollback(
            serving,
            &served.alias,
            &active.version,
            &other.version,
            None,
        )
        .await;
    }
    let Some(retired) = retired else {
        return Err(ReindexError::Refused(
            "no version is retired, so there is nothing to roll back to".into(),
        ));
    };
    let name = &retired.version.name;
    let gone = || {
        ReindexError::Refused(format!(
            "the collection of {name} is gone, so it cannot be served again; put its settings back \
             and run `elf reindex`, or drop the version with `elf reindex drop`"
        ))
    };
    let old = main(retired).ok_or_else(gone)?;
    if index.collection(&old.name).await?.is_none() {
        return Err(gone());
    }
    if !store
        .serve_version(&job.lease, name, Lifecycle::Retired)
        .await?
    {
        return Err(ReindexError::Refused(format!(
            "{name} is not retired any more"
        )));
    }
    let left = Some(active.version.name.clone());
    finish_rollback(serving, &old.alias, &retired.version, &active.version, left).await
}

/// The steps of a rollback after Postgres records the served version.
async fn finish_rollback(
    serving: &Serving,
    alias: &str,
    served: &Version,
    other: &Version,
    retired: Option<String>,
) -> Result<RolledBack, ReindexError> {
    let store = &serving.store;
    let serving = Serving {
        alias: alias.to_owned(),
        ..serving.clone()
    };
    reconcile_alias(&serving).await?;
    store.enqueue_version(&served.name).await?;
    let counts = store.outbox_counts(Some(&served.name)).await?;
    tracing::info!(version = served.name, "version served again");
    Ok(RolledBack {
        version: served.name.clone(),
        retired,
        due: (counts.pending + counts.leased + counts.failed) as u64,
        settings: changes(other, served),
    })
}
