//! Makes collections, points aliases at them, and switches their bulk loading.

use std::time::{Duration, Instant};

use qdrant_client::qdrant::{
    CollectionInfo, CollectionStatus, CreateAliasBuilder, CreateFieldIndexCollectionBuilder,
    GetCollectionInfoRequest,
};

use super::{Server, bulk_load, convert, status};
use crate::index::payload::{FIELD_INDEXES, alias_to_load};
use crate::index::{CollectionSpec, IndexError, VectorIndex};

impl Server {
    /// What the server knows of a collection or alias; `None` when there is none of that name.
    pub(super) async fn info(&self, name: &str) -> Result<Option<CollectionInfo>, IndexError> {
        let request = GetCollectionInfoRequest {
            collection_name: name.into(),
        };
        match self
            .client
            .collection_info(request)
            .await
            .map_err(self.error(name))
        {
            Ok(response) => Ok(response.result),
            Err(IndexError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn create(&self, name: &str, spec: &CollectionSpec) -> Result<(), IndexError> {
        spec.bm25.check().map_err(|reason| IndexError::Denied {
            engine: self.engine.clone(),
            reason,
        })?;
        if self.info(name).await?.is_none() {
            let request = convert::create_collection(name, spec, &self.settings, self.timeout_secs);
            match self.client.create_collection(request).await {
                Ok(_) => {}
                // Another process made it in between.
                Err(error) if status::already_exists(&error) => {}
                Err(error) => return Err(self.error(name)(error)),
            }
        }
        self.index_payload(name).await
    }

    /// Makes the payload indexes that a collection of ELF's lacks: all of them
    /// when it is new, some after a crash.
    async fn index_payload(&self, name: &str) -> Result<(), IndexError> {
        let Some(info) = self.info(name).await? else {
            return Err(IndexError::NotFound {
                engine: self.engine.clone(),
                name: name.into(),
            });
        };
        if convert::spec(&info).is_none() {
            return Ok(());
        }
        for (field, index) in FIELD_INDEXES {
            if info.payload_schema.contains_key(field) {
                continue;
            }
            let (kind, params) = convert::field_index(index);
            let mut request = CreateFieldIndexCollectionBuilder::new(name, field, kind)
                .wait(true)
                .timeout(self.timeout_secs);
            if let Some(params) = params {
                request = request.field_index_params(params);
            }
            let response = self
                .client
                .create_field_index(request)
                .await
                .map_err(self.error(name))?;
            self.completed(response.result)?;
        }
        Ok(())
    }

    /// `point_alias` in one action, which is one write of the server's alias file.
    /// Deleting the alias first would lose it if the server crashed in between or
    /// the collection did not exist.
    pub(super) async fn alias(&self, alias: &str, collection: &str) -> Result<(), IndexError> {
        let request = CreateAliasBuilder::new(collection, alias);
        let response = self
            .client
            .create_alias(request)
            .await
            .map_err(self.error(collection))?;
        self.forget_options();
        if response.result {
            return Ok(());
        }
        Err(IndexError::Unavailable {
            engine: self.engine.clone(),
            reason: format!("the alias {alias:?} was not pointed at {collection:?}"),
        })
    }

    pub(super) async fn begin_bulk_load(&self, name: &str) -> Result<u64, IndexError> {
        let loaded = self.loadable(name).await?;
        self.update(name, bulk_load::begin(&loaded)).await?;
        Ok(bulk_load::most_points(&loaded))
    }

    pub(super) async fn end_bulk_load(&self, name: &str) -> Result<(), IndexError> {
        let loaded = self.loadable(name).await?;
        let steps = bulk_load::end(&loaded);
        if steps.is_empty() {
            return Ok(());
        }
        self.update(name, steps).await?;
        let wait = bulk_load::begins_within(&loaded);
        self.wait_until_not_green(name, wait).await
    }

    /// A collection of ELF's, which is no alias.
    async fn loadable(&self, name: &str) -> Result<bulk_load::Loaded, IndexError> {
        let denied = |reason| IndexError::Denied {
            engine: self.engine.clone(),
            reason,
        };
        if self.resolve(name).await?.is_some() {
            return Err(denied(alias_to_load(name)));
        }
        let Some(info) = self.info(name).await? else {
            return Err(IndexError::NotFound {
                engine: self.engine.clone(),
                name: name.into(),
            });
        };
        bulk_load::Loaded::of(&info)
            .ok_or_else(|| denied(format!("{name:?} is not a collection of ELF's")))
    }

    /// Sends changes of a collection's settings, one after the other.
    async fn update(&self, name: &str, steps: Vec<bulk_load::Step>) -> Result<(), IndexError> {
        for step in steps {
            let request = bulk_load::request(name, step, self.timeout_secs);
            let response = self
                .client
                .update_collection(request)
                .await
                .map_err(self.error(name))?;
            if !response.result {
                return Err(IndexError::Unavailable {
                    engine: self.engine.clone(),
                    reason: format!("the settings of {name:?} were not changed"),
                });
            }
        }
        Ok(())
    }

    async fn wait_until_not_green(&self, name: &str, wait: Duration) -> Result<(), IndexError> {
        let began = Instant::now();
        while began.elapsed() < wait {
            let info = self.info(name).await?;
            if info.is_none_or(|info| info.status() != CollectionStatus::Green) {
                break;
            }
            tokio::time::sleep(bulk_load::LOOK_EVERY).await;
        }
        Ok(())
    }
}
