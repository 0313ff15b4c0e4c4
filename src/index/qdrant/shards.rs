//! How many shards a new collection has.
//!
//! Qdrant executes the writes of a shard one after the other, so one shard leaves most of a large machine idle. The API
//! does not say how many processors a server has, but a server that may choose makes a new shard of half as many
//! segments, at least 2 and at most 8 (qdrant 1.18.3, `lib/shard/src/optimizers/config.rs`). So ELF makes an empty
//! collection, looks at it, and drops it.

use qdrant_client::qdrant::{CreateCollectionBuilder, Distance, VectorParamsBuilder};

use super::Server;
use crate::index::{IndexError, VectorIndex};

/// Segments of a shard, where ELF chooses the number of shards: a search then looks through as many segments as in one
/// shard of the server's choice.
pub(super) const SEGMENTS: u64 = 2;

impl Server {
    /// The shards for a machine of this server's size: 1 up to four processors, 4 from sixteen on. `None` where the
    /// server chooses: it has several nodes, or lets ELF make no other collection.
    pub(super) async fn shards_of_machine(&self, name: &str) -> Result<Option<u32>, IndexError> {
        let probe = format!("{name}__processors");
        let vector = VectorParamsBuilder::new(1, Distance::Cosine);
        let request = CreateCollectionBuilder::new(&probe)
            .vectors_config(vector)
            .timeout(self.timeout_secs)
            .build();
        let found = match self.create_unless_there(&probe, request).await {
            Ok(()) => self.info(&probe).await,
            Err(error) => Err(error),
        };
        let info = match found {
            Ok(Some(info)) => info,
            Ok(None) => {
                return Err(
                    self.unavailable(format!("{probe:?} is gone: another process dropped it"))
                );
            }
            Err(error @ IndexError::Unavailable { .. }) => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "number of shards left to the server");
                return Ok(None);
            }
        };
        self.drop_collection(&probe).await?;
        let params = info.config.and_then(|config| config.params);
        let is_one_node = params.is_some_and(|params| params.shard_number == 1);
        let shards = u32::try_from(info.segments_count / SEGMENTS).ok();
        Ok(shards.filter(|shards| is_one_node && *shards > 1))
    }
}
