//! The engine as a server, over gRPC.
//!
//! The client sends a request again when its connection breaks, so every write here
//! may arrive twice.

mod bulk_load;
mod convert;
mod json;
mod status;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use qdrant_client::qdrant::{
    CollectionStatus as ServerStatus, CountPointsBuilder, CreateAliasBuilder,
    CreateFieldIndexCollectionBuilder, DeletePointsBuilder, GetCollectionInfoRequest,
    PointsOperationResponse, UpdateStatus,
};
use qdrant_client::{Qdrant, QdrantError};
use uuid::Uuid;

use super::payload::{FIELD_INDEXES, alias_to_load, page_start};
use super::{
    Answer, CollectionInfo, CollectionSpec, CollectionStatus, Filter, Hit, IndexError, Point,
    Query, StoredPoint, UpsertMode, VectorIndex,
};
use crate::config;

/// Conditional upserts came with 1.16, insert-only ones with 1.17.
const OLDEST: (u32, u32) = (1, 17);

/// Requests of one upsert in flight at once. The server queues them for one
/// writer per shard; a few hide the round trips.
const UPSERTS_IN_FLIGHT: usize = 4;

/// How long cached BM25 options of a collection or alias stay valid. A rebuild makes
/// its collection under a new name, so only the options of an alias that another
/// process has just swapped can be stale, and only searches use aliases.
const OPTIONS_LAST: Duration = Duration::from_secs(1);

/// A Qdrant server.
pub(super) struct Server {
    client: Qdrant,
    settings: config::Qdrant,
    /// `qdrant 1.18.3 at http://…`
    engine: String,
    /// Seconds that the server may take for a request.
    timeout_secs: u64,
    /// BM25 options by collection or alias, and when they were read.
    options: Mutex<HashMap<String, (Instant, Arc<convert::Bm25Document>)>>,
}

impl Server {
    /// Connects and asks the server for its version.
    pub(super) async fn connect(settings: &config::Qdrant) -> Result<Self, IndexError> {
        let engine = format!("qdrant at {}", settings.url);
        let (timeout, timeout_secs) = timeouts(settings.timeout_ms);
        let client = Qdrant::from_url(&settings.url)
            .api_key(settings.api_key.as_ref().map(|key| key.expose().to_owned()))
            .timeout(timeout)
            .connect_timeout(timeout.min(Duration::from_secs(5)))
            // The client's check prints to stdout and only warns; `check_version` refuses.
            .skip_compatibility_check()
            .build()
            .map_err(|error| status::classify(&engine, "", error))?;

        let health = client
            .health_check()
            .await
            .map_err(|error| unreachable_at(&settings.url, &engine, error))?;
        if let Err(reason) = check_version(&health.version) {
            return Err(IndexError::Denied { engine, reason });
        }
        let engine = format!("qdrant {} at {}", health.version, settings.url);
        Ok(Self {
            client,
            settings: settings.clone(),
            engine,
            timeout_secs,
            options: Mutex::default(),
        })
    }

    fn error(&self, name: &str) -> impl Fn(QdrantError) -> IndexError {
        move |error| status::classify(&self.engine, name, error)
    }

    /// A write counts only when the server says that it is done.
    fn completed(&self, response: PointsOperationResponse) -> Result<(), IndexError> {
        let status = response
            .result
            .map_or(UpdateStatus::UnknownUpdateStatus, |result| result.status());
        if status == UpdateStatus::Completed {
            return Ok(());
        }
        Err(IndexError::Unavailable {
            engine: self.engine.clone(),
            reason: format!(
                "a write was answered with {status:?} instead of Completed; it may be applied later or never"
            ),
        })
    }

    async fn info(
        &self,
        name: &str,
    ) -> Result<Option<qdrant_client::qdrant::CollectionInfo>, IndexError> {
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

    async fn create(&self, name: &str, spec: &CollectionSpec) -> Result<(), IndexError> {
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
            self.completed(response)?;
        }
        Ok(())
    }

    /// `point_alias` in one action, which is one write of the server's alias file.
    /// Deleting the alias first would lose it if the server crashed in between or
    /// the collection did not exist.
    async fn alias(&self, alias: &str, collection: &str) -> Result<(), IndexError> {
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

    async fn write(
        &self,
        collection: &str,
        batch: convert::Batch,
        options: &convert::Bm25Document,
    ) -> Result<(), IndexError> {
        let request = convert::upsert(collection, batch, options, self.timeout_secs);
        let response = self
            .client
            .upsert_points(request)
            .await
            .map_err(self.error(collection))?;
        self.completed(response)
    }

    async fn switch_bulk_load(&self, name: &str, on: bool) -> Result<(), IndexError> {
        if self.resolve(name).await?.is_some() {
            return Err(IndexError::Denied {
                engine: self.engine.clone(),
                reason: alias_to_load(name),
            });
        }
        let info = self.info(name).await?;
        let Some(config) = info.and_then(|info| info.config) else {
            return Err(IndexError::NotFound {
                engine: self.engine.clone(),
                name: name.into(),
            });
        };
        for request in bulk_load::requests(name, &config, on, self.timeout_secs) {
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

    fn forget_options(&self) {
        self.options
            .lock()
            .expect("no thread panics while holding it")
            .clear();
    }

    /// How the texts of a collection become BM25 vectors.
    async fn bm25_document(
        &self,
        collection: &str,
    ) -> Result<Arc<convert::Bm25Document>, IndexError> {
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

    async fn read_options(&self, collection: &str) -> Result<convert::Bm25Document, IndexError> {
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
        Ok(convert::Bm25Document::new(&spec.bm25))
    }
}

/// How long the client waits, and how many whole seconds it gives the server:
/// fewer, so that the server's own answer comes first.
fn timeouts(timeout_ms: u64) -> (Duration, u64) {
    let server_secs = (timeout_ms / 1000).saturating_sub(1).max(1);
    let client_ms = timeout_ms.max(server_secs * 1000 + 500);
    (Duration::from_millis(client_ms), server_secs)
}

/// Whether a server of this version can do what ELF asks of it.
fn check_version(found: &str) -> Result<(), String> {
    if version(found).is_some_and(|found| found >= OLDEST) {
        return Ok(());
    }
    let (major, minor) = OLDEST;
    Err(format!(
        "the server is version {found:?}, ELF needs {major}.{minor} or newer (for insert-only \
         upserts): update the server"
    ))
}

/// Major and minor of `1.18.3` or `1.19.0-dev`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first request failed: say so, and which port to try.
fn unreachable_at(url: &str, engine: &str, error: QdrantError) -> IndexError {
    match status::classify(engine, "", error) {
        IndexError::Unavailable { engine, reason }
            if !url.trim_end_matches('/').ends_with(":6334") =>
        {
            let reason = format!(
                "{reason}; storage.qdrant.url must name the server's gRPC port, usually 6334 \
                 (6333 is the one for REST)"
            );
            IndexError::Unavailable { engine, reason }
        }
        other => other,
    }
}

impl VectorIndex for Server {
    fn describe(&self) -> String {
        self.engine.clone()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        Box::pin(self.create(name, spec))
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        Box::pin(async move {
            let Some(info) = self.info(name).await? else {
                return Ok(None);
            };
            let points = match self.count(name, &Filter::default()).await {
                Ok(points) => points,
                Err(IndexError::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            let status = match info.status() {
                ServerStatus::Green => CollectionStatus::Green,
                ServerStatus::Yellow => CollectionStatus::Yellow,
                ServerStatus::Grey => CollectionStatus::Grey,
                ServerStatus::Red | ServerStatus::UnknownCollectionStatus => CollectionStatus::Red,
            };
            Ok(Some(CollectionInfo {
                spec: convert::spec(&info),
                points,
                status,
            }))
        })
    }

    fn bulk_load<'a>(&'a self, collection: &'a str, on: bool) -> Answer<'a, ()> {
        Box::pin(self.switch_bulk_load(collection, on))
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let dropped = self
                .client
                .delete_collection(name)
                .await
                .map_err(self.error(name));
            self.forget_options();
            match dropped {
                Ok(_) | Err(IndexError::NotFound { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            let response = self
                .client
                .list_aliases()
                .await
                .map_err(self.error(alias))?;
            let found = response
                .aliases
                .into_iter()
                .find(|known| known.alias_name == alias);
            Ok(found.map(|known| known.collection_name))
        })
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        Box::pin(self.alias(alias, collection))
    }

    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: Vec<Point>,
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            if points.is_empty() {
                return Ok(());
            }
            let options = self.bm25_document(collection).await?;
            let written: Vec<Result<(), IndexError>> = stream::iter(convert::batches(points, mode))
                .map(|batch| self.write(collection, batch, &options))
                .buffer_unordered(UPSERTS_IN_FLIGHT)
                .collect()
                .await;
            // An unanswered part is reported before a refused one: the server may still
            // apply it.
            let is_unanswered =
                |part: &Result<(), IndexError>| matches!(part, Err(IndexError::Unavailable { .. }));
            match written.iter().position(is_unanswered) {
                Some(unanswered) => written[unanswered].clone(),
                None => written.into_iter().collect(),
            }
        })
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = DeletePointsBuilder::new(collection)
                .points(convert::filter(filter))
                .wait(true)
                .timeout(self.timeout_secs);
            let response = self
                .client
                .delete_points(request)
                .await
                .map_err(self.error(collection))?;
            self.completed(response)
        })
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        Box::pin(async move {
            let request = CountPointsBuilder::new(collection)
                .filter(convert::filter(filter))
                .exact(true)
                .timeout(self.timeout_secs);
            let response = self
                .client
                .count(request)
                .await
                .map_err(self.error(collection))?;
            Ok(response.result.map_or(0, |result| result.count))
        })
    }

    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        Box::pin(async move {
            let request = convert::points(collection, ids, with_vectors, self.timeout_secs);
            let response = self
                .client
                .get_points(request)
                .await
                .map_err(self.error(collection))?;
            let mut points: Vec<_> = response
                .result
                .into_iter()
                .filter_map(convert::stored_point)
                .collect();
            points.sort_unstable_by_key(|point| point.chunk_id);
            points.dedup_by_key(|point| point.chunk_id);
            Ok(points)
        })
    }

    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        Box::pin(async move {
            let Some(start) = page_start(after) else {
                return Ok(Vec::new());
            };
            let request =
                convert::scroll(collection, start, limit, with_vectors, self.timeout_secs);
            let response = self
                .client
                .scroll(request)
                .await
                .map_err(self.error(collection))?;
            Ok(response
                .result
                .into_iter()
                .filter_map(convert::stored_point)
                .collect())
        })
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Hit>> {
        Box::pin(async move {
            let options = self.bm25_document(collection).await?;
            let request = convert::search(collection, query, &options, self.timeout_secs);
            let response = self
                .client
                .query(request)
                .await
                .map_err(self.error(collection))?;
            Ok(response
                .result
                .into_iter()
                .filter_map(convert::hit)
                .collect())
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn the_server_times_out_before_the_client() {
        for timeout_ms in [1, 900, 1_000, 1_999, 2_000, 10_000, 61_500] {
            let (client, server_secs) = timeouts(timeout_ms);
            assert!(server_secs >= 1, "0 seconds are refused by the server");
            assert!(Duration::from_secs(server_secs) < client, "{timeout_ms} ms");
        }
        assert_eq!(timeouts(10_000), (Duration::from_secs(10), 9));
    }

    #[test]
    fn an_old_server_is_refused_and_both_versions_named() {
        for enough in ["1.17.0", "1.18.3", "1.100.0", "1.19.0-dev", "2.0.0"] {
            assert_eq!(check_version(enough), Ok(()));
        }
        for old in ["1.9.9", "1.16.3", "0.99.0", "", "unknown"] {
            let reason = check_version(old).unwrap_err();
            assert!(
                reason.contains(&format!("{old:?}")) && reason.contains("1.17"),
                "{reason}"
            );
        }
    }
}
