//! The declared fields of `memory_notes.metadata`: their indexes in the collections, and what it takes to change them.

use super::{Serving, ServingError};
use crate::index::IndexError;
use crate::metadata::{self, Declared};
use crate::store::{Store, StoreError};

/// Makes those of the configuration the fields that payloads have, and their indexes in every collection. Workers then
/// write the payloads of the notes that have them again, without embedding, while searches go on.
pub async fn declare_fields(serving: &Serving) -> Result<(), ServingError> {
    let fields = &serving.fields;
    if let Some(notes) = serving.store.declare_fields(fields).await? {
        tracing::info!(
            fields = fields.keys().cloned().collect::<Vec<_>>().join(", "),
            notes,
            "fields of metadata declared, notes that have them enqueued"
        );
    }
    // After the commit: a collection that is registered later has read the new fields. At every start: a worker may have
    // died between the two.
    for collection in serving.store.registered_collections().await? {
        match index_fields(serving, &collection.name).await {
            // It is retired, or not made yet.
            Err(ServingError::Index(IndexError::NotFound { .. })) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Makes the indexes that the declared fields lack in a collection. Called after its registration, so that it has
/// those of fields that are declared meanwhile.
pub async fn index_fields(serving: &Serving, collection: &str) -> Result<(), ServingError> {
    let fields = serving.store.declared_fields().await?;
    Ok(serving.index.index_fields(collection, &fields).await?)
}

/// How the fields of the configuration differ from the declared ones, and what to do; `None` if they are the same.
pub async fn fields_problem(
    store: &Store,
    configured: &Declared,
) -> Result<Option<String>, StoreError> {
    let declared = store.declared_fields().await?;
    let differences = metadata::differences(&declared, configured);
    Ok((!differences.is_empty()).then(|| {
        format!(
            "the database and [metadata] of this configuration differ ({}): the worker that started last had another \
             [metadata]. Give all workers the same one, and restart one with it",
            differences.join("; ")
        )
    }))
}
