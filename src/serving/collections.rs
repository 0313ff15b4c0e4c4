//! The names of collections.

use super::{Serving, ServingError};
use crate::index::CollectionSpec;

/// `<alias>__<n>`, with an `n` above every number that this database has used, and no such
/// collection in the engine.
///
/// A process may die, or lose Postgres, after it created a collection and before the commit
/// that registers it. Its number is then used. Such a collection is empty and has the wanted
/// shape, so it is reused.
pub async fn free_collection_name(
    serving: &Serving,
    spec: &CollectionSpec,
) -> Result<String, ServingError> {
    let last = serving.store.last_collection_number().await?;
    let registered = serving.store.registered_collections().await?;
    for n in last.max(1).. {
        let name = format!("{}__{n}", serving.alias);
        if registered.iter().any(|collection| collection.name == name) {
            continue;
        }
        match serving.index.collection(&name).await? {
            None if n > last => return Ok(name),
            Some(info) if info.points == 0 && info.spec.as_ref() == Some(spec) => return Ok(name),
            _ => {}
        }
    }
    unreachable!("the numbers do not run out")
}
