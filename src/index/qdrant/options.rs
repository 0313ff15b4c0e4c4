//! What requests need to know of a collection: read from the server and cached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bm25::Bm25Document;
use super::{Server, convert};
use crate::index::{CollectionSpec, IndexError};
use crate::lock::lock;

/// How long cached options stay valid for a search: another process may just have swapped the alias.
pub(super) const OF_AN_ALIAS: Duration = Duration::from_secs(1);

/// And for an upsert, which names a collection. A rebuild makes its collection under a new name, so they can
/// be stale only after the collection was lost and another process has made it again with other
/// options. `elf worker` asks about its collections every few seconds, as long as the engine counts their points quickly:
/// that reads the options too, and then no upsert has to wait for them.
pub(super) const OF_A_COLLECTION: Duration = Duration::from_secs(10);

impl Server {
    /// How the texts of a collection or alias become BM25 vectors, as the server said it at most that long ago.
    pub(super) async fn bm25_options(
        &self,
        collection: &str,
        max_age: Duration,
    ) -> Result<Arc<Bm25Document>, IndexError> {
        let known = lock(&self.options).get(collection).cloned();
        if let Some((read_at, options)) = known
            && read_at.elapsed() < max_age
        {
            return Ok(options);
        }
        let read_at = Instant::now();
        let Some(spec) = convert::spec(&self.known_info(collection).await?) else {
            return Err(self.denied(format!(
                "the collection {collection:?} was not made by ELF (it lacks ELF's vectors or metadata): \
                 set storage.qdrant.alias to a name of its own, or, if ELF's was replaced by it, \
                 run `elf rebuild`"
            )));
        };
        Ok(self.remember_options(collection, &spec, read_at))
    }

    /// Keeps what the server said at `read_at` of a collection or alias.
    pub(super) fn remember_options(
        &self,
        collection: &str,
        spec: &CollectionSpec,
        read_at: Instant,
    ) -> Arc<Bm25Document> {
        let options = Arc::new(Bm25Document::new(&spec.bm25));
        lock(&self.options).insert(collection.into(), (read_at, options.clone()));
        options
    }

    pub(super) fn forget_options(&self) {
        lock(&self.options).clear();
    }
}
