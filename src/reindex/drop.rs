//! Drops versions that are not served, with their collections.

use std::sync::Arc;

use serde::Serialize;

use super::ReindexError;
use crate::registry::{IndexContext, Job};
use crate::store::Lifecycle;

/// A version that was dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dropped {
    /// Its name.
    pub version: String,
    /// Its collections in the vector engine.
    pub collections: Vec<String>,
    /// Its chunks in Postgres; each had at most one vector.
    pub chunks: u64,
}

/// Drops every version that is not served, or only the one of this name.
pub async fn drop(
    context: &IndexContext,
    only: Option<&str>,
) -> Result<Vec<Dropped>, ReindexError> {
    let job = Job::take(&context.store, "drop", &context.alias, Arc::default()).await?;
    let outcome = job.run(drop_versions(context, only)).await;
    job.end().await;
    outcome
}

async fn drop_versions(
    context: &IndexContext,
    only: Option<&str>,
) -> Result<Vec<Dropped>, ReindexError> {
    let IndexContext { store, index, .. } = context;
    let known = store.versions().await?;
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
        if !store.retire_for_good(version).await? {
            continue;
        }
        let mut collections = Vec::new();
        for collection in store.registered_collections().await? {
            if collection.version == *version {
                index.drop_collection(&collection.name).await?;
                collections.push(collection.name);
            }
        }
        let chunks = store.drop_version(version).await?;
        tracing::info!(version, chunks, "version dropped");
        dropped.push(Dropped {
            version: version.clone(),
            collections,
            chunks,
        });
    }
    Ok(dropped)
}
