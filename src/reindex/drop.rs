//! Drops versions that are not served, with their collections.

use std::sync::Arc;

use serde::Serialize;

use super::ReindexError;
use crate::serving::{Job, Serving};
use crate::store::{CollectionRow, Lifecycle, RegisteredVersion};

/// A version that was dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dropped {
    /// Its name in `index_versions`.
    pub version: String,
    /// Its collections in the vector engine.
    pub collections: Vec<String>,
    /// Its chunks in Postgres; each had at most one vector.
    pub chunks: u64,
}

/// Drops every version that is not served, or only the one of this name.
pub async fn drop(serving: &Serving, only: Option<&str>) -> Result<Vec<Dropped>, ReindexError> {
    let job = Job::take(&serving.store, "drop", &serving.alias, Arc::default()).await?;
    let outcome = job.run(drop_versions(serving, &job, only)).await;
    job.end().await;
    outcome
}

async fn drop_versions(
    serving: &Serving,
    job: &Job,
    only: Option<&str>,
) -> Result<Vec<Dropped>, ReindexError> {
    let known = serving.store.versions().await?;
    if let Some(name) = only {
        match known.iter().find(|v| v.version.name == name) {
            Some(v) if v.state == Lifecycle::Active => {
                return Err(ReindexError::Refused(format!(
                    "{name} is served: swap to another version first"
                )));
            }
            Some(_) => {}
            None => {
                return Err(ReindexError::Refused(format!(
                    "there is no version {name:?} in this database"
                )));
            }
        }
    }
    let to_drop = known
        .iter()
        .filter(|v| v.state != Lifecycle::Active)
        .map(|v| &v.version.name)
        .filter(|name| only.is_none_or(|only| only == *name));
    let mut dropped = Vec::new();
    for version in to_drop {
        dropped.extend(drop_version(serving, job, version).await?);
    }
    Ok(dropped)
}

/// Drops a version that is not served, or the rest of one. Returns `None` if it is served.
pub(super) async fn drop_version(
    serving: &Serving,
    job: &Job,
    version: &str,
) -> Result<Option<Dropped>, ReindexError> {
    let Serving { store, index, .. } = serving;
    if !store.retire_for_good(&job.lease, version).await? {
        return Ok(None);
    }
    let mut collections = Vec::new();
    for collection in store.registered_collections().await? {
        // Another process may have dropped and registered the version again.
        if collection.version == version && collection.is_retired() {
            index.drop_collection(&collection.name).await?;
            collections.push(collection.name);
        }
    }
    let chunks = store.drop_version(&job.lease, version).await?;
    tracing::info!(version, chunks, "version dropped");
    Ok(Some(Dropped {
        version: version.to_owned(),
        collections,
        chunks,
    }))
}

/// Whether a drop of the version was interrupted: a version that is kept for a rollback has its
/// collection.
pub(super) fn is_half_dropped(version: &RegisteredVersion, registered: &[CollectionRow]) -> bool {
    version.state == Lifecycle::Retired
        && !registered
            .iter()
            .any(|c| c.version == version.version.name && !c.is_retired())
}
