//! What requests need to know of a collection: read from the server and cached.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bm25::Bm25Document;
use super::{Server, convert};
use crate::index::IndexError;

/// How long cached options of a collection or alias stay valid. A rebuild makes
/// its collection under a new name, so only the options of an alias that another
/// process has just swapped can be stale, and only searches use aliases.
const OPTIONS_LAST: Duration = Duration::from_secs(1);

/// What requests need to know of a collection.
pub(super) struct CollectionOptions {
    /// How its texts become BM25 vectors.
    pub(super) bm25: Bm25Document,
}

impl Server {
    /// The options of a collection or alias.
    pub(super) async fn collection_options(
        &self,
        collection: &str,
    ) -> Result<Arc<CollectionOptions>, IndexError> {
        let known = self
            .options
            .lock()
            .expect("no thread panics while holding it")
            .get(collection)
            .cloned();
        if let Some((read_at, options)) = known
            && read_at.elapsed() < OPTIONS_LAST
        {
            return Ok(options);
        }
        let read_at = Instant::now();
        let options = Arc::new(self.read_options(collection).await?);
        self.options
            .lock()
            .expect("no thread panics while holding it")
            .insert(collection.into(), (read_at, options.clone()));
        Ok(options)
    }

    async fn read_options(&self, collection: &str) -> Result<CollectionOptions, IndexError> {
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
        Ok(CollectionOptions {
            bm25: Bm25Document::new(&spec.bm25),
        })
    }

    pub(super) fn forget_options(&self) {
        self.options
            .lock()
            .expect("no thread panics while holding it")
            .clear();
    }
}
