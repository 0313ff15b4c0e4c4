//! What requests need to know of a collection: read from the server and cached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bm25::Bm25Document;
use super::{Server, convert};
use crate::index::{CollectionSpec, IndexError};

/// How long cached options stay valid for a search: another process may just have swapped the alias.
pub(super) const OF_AN_ALIAS: Duration = Duration::from_secs(1);

/// And for an upsert, which names a collection. A rebuild makes its collection under a new name, so they can
/// be stale only after the collection was lost and another process has made it again with other
/// options. `elf worker` asks about its collections every few seconds, as long as the engine counts their points quickly:
/// that reads the options too, and then no upsert has to wait for them.
pub(super) const OF_A_COLLECTION: Duration = Duration::from_secs(10);

/// What requests need to know of a collection.
pub(super) struct CollectionOptions {
    /// How its texts become BM25 vectors.
    pub(super) bm25: Bm25Document,
}

impl Server {
    /// The options of a collection or alias, which may be that old.
    pub(super) async fn collection_options(
        &self,
        collection: &str,
        max_age: Duration,
    ) -> Result<Arc<CollectionOptions>, IndexError> {
        let known = self
            .options
            .lock()
            .expect("no thread panics while holding it")
            .get(collection)
            .cloned();
        if let Some((read_at, options)) = known
            && read_at.elapsed() < max_age
        {
            return Ok(options);
        }
        let read_at = Instant::now();
        let Some(info) = self.info(collection).await? else {
            return Err(IndexError::NotFound {
                engine: self.engine.clone(),
                name: collection.into(),
            });
        };
        let Some(spec) = convert::spec(&info) else {
            return Err(IndexError::Denied {
                engine: self.engine.clone(),
                reason: format!(
                    "the collection {collection:?} was not made by ELF (it lacks ELF's vectors or metadata): \
                     set storage.qdrant.alias to a name of its own, or, if ELF's was replaced by it, \
                     run `elf rebuild`"
                ),
            });
        };
        Ok(self.remember_options(collection, &spec, read_at))
    }

    /// Keeps what the server said at `read_at` of a collection or alias.
    pub(super) fn remember_options(
        &self,
        collection: &str,
        spec: &CollectionSpec,
        read_at: Instant,
    ) -> Arc<CollectionOptions> {
        let options = Arc::new(CollectionOptions {
            bm25: Bm25Document::new(&spec.bm25),
        });
        self.options
            .lock()
            .expect("no thread panics while holding it")
            .insert(collection.into(), (read_at, options.clone()));
        options
    }

    pub(super) fn forget_options(&self) {
        self.options
            .lock()
            .expect("no thread panics while holding it")
            .clear();
    }
}
