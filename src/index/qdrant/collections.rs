//! Makes collections, points aliases at them, and switches their bulk loading.

use std::time::{Duration, Instant};

use qdrant_client::qdrant::{
    CollectionInfo, CollectionStatus, CreateAliasBuilder, CreateCollection,
    CreateFieldIndexCollectionBuilder, DeleteFieldIndexCollectionBuilder, GetCollectionInfoRequest,
    OptimizersConfigDiff,
};

use super::{Server, bulk_load, convert, shards, status};
use crate::index::payload::{FIELD_INDEXES, FieldIndex, alias_to_load, declared_index};
use crate::index::{CollectionSpec, IndexError, VectorIndex};
use crate::metadata::Declared;

impl Server {
    /// What the server knows of a collection or alias; `None` when there is none of that name.
    pub(super) async fn info(&self, name: &str) -> Result<Option<CollectionInfo>, IndexError> {
        let request = GetCollectionInfoRequest {
            collection_name: name.into(),
        };
        match self.ask(name, self.client.collection_info(request)).await {
            Ok(response) => Ok(response.result),
            Err(IndexError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// [`Self::info`] of a collection or alias that must be there.
    pub(super) async fn known_info(&self, name: &str) -> Result<CollectionInfo, IndexError> {
        self.info(name).await?.ok_or_else(|| IndexError::NotFound {
            engine: self.engine.clone(),
            name: name.into(),
        })
    }

    pub(super) async fn create(&self, name: &str, spec: &CollectionSpec) -> Result<(), IndexError> {
        spec.bm25.check().map_err(|reason| self.denied(reason))?;
        if self.info(name).await?.is_none() {
            let mut request =
                convert::create_collection(name, spec, &self.settings, self.timeout_secs);
            if request.shard_number.is_none()
                && let Some(shards) = self.shards_of_machine(name).await?
            {
                request.shard_number = Some(shards);
                request.optimizers_config = Some(OptimizersConfigDiff {
                    default_segment_number: Some(shards::SEGMENTS),
                    ..OptimizersConfigDiff::default()
                });
            }
            self.create_unless_there(name, request).await?;
        }
        self.index_payload(name).await
    }

    pub(super) async fn create_unless_there(
        &self,
        name: &str,
        request: CreateCollection,
    ) -> Result<(), IndexError> {
        match self.client.create_collection(request).await {
            Ok(_) => Ok(()),
            // Another process made it in between.
            Err(error) if status::already_exists(&error) => Ok(()),
            Err(error) => Err(self.error(name)(error)),
        }
    }

    /// Makes the payload indexes that a collection of ELF's lacks: all of them
    /// when it is new, some after a crash.
    async fn index_payload(&self, name: &str) -> Result<(), IndexError> {
        let info = self.known_info(name).await?;
        if convert::spec(&info).is_none() {
            return Ok(());
        }
        for (field, index) in FIELD_INDEXES {
            if !info.payload_schema.contains_key(field) {
                self.index_field(name, field, index).await?;
            }
        }
        Ok(())
    }

    async fn index_field(
        &self,
        name: &str,
        field: &str,
        index: FieldIndex,
    ) -> Result<(), IndexError> {
        let (kind, params) = convert::field_index(index);
        let mut request = CreateFieldIndexCollectionBuilder::new(name, field, kind)
            .wait(true)
            .timeout(self.timeout_secs);
        if let Some(params) = params {
            request = request.field_index_params(params);
        }
        let response = self
            .ask(name, self.client.create_field_index(request))
            .await?;
        self.completed(response.result)
    }

    pub(super) async fn index_declared(
        &self,
        name: &str,
        fields: &Declared,
    ) -> Result<(), IndexError> {
        if fields.is_empty() {
            return Ok(());
        }
        let info = self.known_info(name).await?;
        for (field, kind) in fields {
            let (field, index) = declared_index(field, *kind);
            let known = info.payload_schema.get(&field);
            let wanted = convert::schema_type(index);
            match known.map(|schema| schema.data_type()) {
                Some(found) if found == wanted => continue,
                Some(_) => {
                    let request = DeleteFieldIndexCollectionBuilder::new(name, &field)
                        .wait(true)
                        .timeout(self.timeout_secs);
                    let response = self
                        .ask(name, self.client.delete_field_index(request))
                        .await?;
                    self.completed(response.result)?;
                }
                None => {}
            }
            self.index_field(name, &field, index).await?;
        }
        Ok(())
    }

    /// `point_alias` in one action, which is one write of the server's alias file.
    /// Deleting the alias first would lose it if the server crashed in between or
    /// the collection did not exist.
    pub(super) async fn alias(&self, alias: &str, collection: &str) -> Result<(), IndexError> {
        let request = CreateAliasBuilder::new(collection, alias);
        let response = self
            .ask(collection, self.client.create_alias(request))
            .await?;
        self.forget_options();
        if response.result {
            return Ok(());
        }
        Err(self.unavailable(format!(
            "the alias {alias:?} was not pointed at {collection:?}"
        )))
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
        if self.resolve(name).await?.is_some() {
            return Err(self.denied(alias_to_load(name)));
        }
        bulk_load::Loaded::of(&self.known_info(name).await?)
            .ok_or_else(|| self.denied(format!("{name:?} is not a collection of ELF's")))
    }

    /// Sends changes of a collection's settings, one after the other.
    async fn update(&self, name: &str, steps: Vec<bulk_load::Step>) -> Result<(), IndexError> {
        for step in steps {
            let request = bulk_load::request(name, step, self.timeout_secs);
            let response = self
                .ask(name, self.client.update_collection(request))
                .await?;
            if !response.result {
                return Err(self.unavailable(format!("the settings of {name:?} were not changed")));
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
