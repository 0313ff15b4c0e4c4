//! The engine as a server, over gRPC.
//!
//! The client sends a request again when its connection breaks, so every write here
//! may arrive twice. Upserts do not go through it: see `channel`.

mod bm25;
mod bulk_load;
mod channel;
mod collections;
mod connection;
mod convert;
mod json;
mod options;
mod part;
mod search;
mod shards;
mod status;
mod upsert;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures::stream::{self, StreamExt};
use qdrant_client::qdrant::{
    CollectionStatus as ServerStatus, CountPointsBuilder, DeletePointsBuilder, UpdateResult,
    UpdateStatus,
};
use qdrant_client::{Qdrant, QdrantError};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::payload::page_start;
use super::{
    Answer, Candidate, CollectionInfo, CollectionSpec, CollectionStatus, Filter, IndexError,
    IndexPlace, Point, Query, Relabel, StoredPoint, UpsertMode, VectorIndex,
    say_which_have_vectors,
};
use crate::config;
use crate::metadata::Declared;
use bm25::Bm25Document;
use channel::Channel;
use options::OF_A_COLLECTION;
use part::Part;

/// Upsert requests in flight at once. The server queues them for one writer per shard: a few hide the
/// round trips, and more would only take memory.
const UPSERTS_IN_FLIGHT: usize = 4;

/// Notes that one request relabels, at most: the server applies them one after the other, and
/// a request has to end within its timeout.
const RELABELS: usize = 64;

/// The connections to a Qdrant server, and what is known of it.
pub(super) struct Server {
    client: Qdrant,
    /// For upserts.
    channel: Channel,
    settings: config::Qdrant,
    /// `qdrant 1.18.3 at http://…`
    engine: String,
    /// Seconds that the server may take for a request.
    timeout_secs: u64,
    /// By collection or alias, and when they were read.
    options: Mutex<HashMap<String, (Instant, Arc<Bm25Document>)>>,
    /// One for each upsert request that may be in flight.
    upserts: Semaphore,
}

impl Server {
    fn error(&self, name: &str) -> impl Fn(QdrantError) -> IndexError {
        move |error| status::classify(&self.engine, name, error)
    }

    /// What the server answers about a collection or an alias.
    fn ask<'a, T>(
        &'a self,
        name: &'a str,
        answer: impl Future<Output = Result<T, QdrantError>> + Send + 'a,
    ) -> Answer<'a, T> {
        Box::pin(async move { answer.await.map_err(self.error(name)) })
    }

    fn denied(&self, reason: String) -> IndexError {
        IndexError::Denied {
            engine: self.engine.clone(),
            reason,
        }
    }

    fn unavailable(&self, reason: String) -> IndexError {
        IndexError::Unavailable {
            engine: self.engine.clone(),
            reason,
        }
    }

    /// A write counts only when the server says that it is done.
    fn completed(&self, result: Option<UpdateResult>) -> Result<(), IndexError> {
        let status = result.map_or(UpdateStatus::UnknownUpdateStatus, |result| result.status());
        if status == UpdateStatus::Completed {
            return Ok(());
        }
        Err(self.unavailable(format!(
            "a write was answered with {status:?} instead of Completed; it may be applied later or never"
        )))
    }

    async fn write(
        &self,
        collection: &str,
        part: Part<'_>,
        bm25: &Bm25Document,
    ) -> Result<(), IndexError> {
        let permit = self.upserts.acquire().await;
        let _permit = permit.expect("the semaphore is never closed");
        let request = upsert::request(collection, &part, bm25, self.timeout_secs);
        let response = self.channel.upsert(request).await;
        let response = response.map_err(|status| self.error(collection)(status.into()))?;
        self.completed(response.result)?;
        self.delete_old_vectors(collection, &part).await
    }

    /// Deletes the dense vectors that points of `part` had before and do not have any more. The
    /// upsert does not: where Qdrant moves a point out of an optimised segment, it keeps the vectors
    /// that the new point lacks. After the upsert, because a late upsert of an older revision may
    /// come between the two.
    async fn delete_old_vectors(
        &self,
        collection: &str,
        part: &Part<'_>,
    ) -> Result<(), IndexError> {
        let without = part.points.iter().filter(|point| point.vector.is_none());
        let ids: Vec<Uuid> = without.map(|point| point.payload.chunk_id).collect();
        let Some(revision) = part.revision.filter(|_| !ids.is_empty()) else {
            return Ok(());
        };
        let request = convert::delete_vectors(collection, ids, revision, self.timeout_secs);
        let response = self
            .ask(collection, self.client.delete_vectors(request))
            .await?;
        self.completed(response.result)
    }
}

impl VectorIndex for Server {
    fn describe(&self) -> String {
        self.engine.clone()
    }

    fn place(&self) -> IndexPlace {
        IndexPlace {
            place: self.settings.url.clone(),
            id: None,
        }
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        Box::pin(self.create(name, spec))
    }

    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()> {
        Box::pin(self.index_declared(collection, fields))
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        Box::pin(async move {
            let read_at = Instant::now();
            let Some(info) = self.info(name).await? else {
                return Ok(None);
            };
            let spec = convert::spec(&info);
            if let Some(spec) = &spec {
                self.remember_options(name, spec, read_at);
            }
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
                spec,
                points,
                status,
            }))
        })
    }

    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64> {
        Box::pin(self.begin_bulk_load(collection))
    }

    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()> {
        Box::pin(self.end_bulk_load(collection))
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let dropped = self.ask(name, self.client.delete_collection(name)).await;
            self.forget_options();
            match dropped {
                Ok(_) | Err(IndexError::NotFound { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            let response = self.ask(alias, self.client.list_aliases()).await?;
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
        points: &'a [Point],
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            if points.is_empty() {
                return Ok(());
            }
            let bm25 = self.bm25_options(collection, OF_A_COLLECTION).await?;
            // Futures: a request is encoded only when it may be sent.
            let writes: Vec<_> = part::parts(points, mode, bm25.bytes())
                .into_iter()
                .map(|part| self.write(collection, part, &bm25))
                .collect();
            let written: Vec<Result<(), IndexError>> = stream::iter(writes)
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

    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()> {
        Box::pin(async move {
            for notes in notes.chunks(RELABELS) {
                let request = convert::relabel(collection, notes, self.timeout_secs);
                let response = self
                    .ask(collection, self.client.update_points_batch(request))
                    .await?;
                let mut results = response.result.into_iter();
                for _ in notes {
                    self.completed(results.next())?;
                }
            }
            Ok(())
        })
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async move {
            let request = DeletePointsBuilder::new(collection)
                .points(convert::filter(filter))
                .wait(true)
                .timeout(self.timeout_secs);
            let response = self
                .ask(collection, self.client.delete_points(request))
                .await?;
            self.completed(response.result)
        })
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        Box::pin(async move {
            let request = CountPointsBuilder::new(collection)
                .filter(convert::filter(filter))
                .exact(true)
                .timeout(self.timeout_secs);
            let response = self.ask(collection, self.client.count(request)).await?;
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
                .ask(collection, self.client.get_points(request))
                .await?;
            let stored = |point| convert::stored_point(point, with_vectors);
            let mut points: Vec<_> = response.result.into_iter().filter_map(stored).collect();
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
            let response = self.ask(collection, self.client.scroll(request)).await?;
            let stored = |point| convert::stored_point(point, with_vectors);
            let mut points: Vec<_> = response.result.into_iter().filter_map(stored).collect();
            if !with_vectors && !points.is_empty() {
                let ids: Vec<_> = points.iter().map(|point| point.chunk_id).collect();
                let request = convert::without_vector(collection, &ids, self.timeout_secs);
                let response = self.ask(collection, self.client.scroll(request)).await?;
                let without = response.result.into_iter().map(|point| point.id);
                say_which_have_vectors(&mut points, without.filter_map(convert::chunk_id));
            }
            Ok(points)
        })
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>> {
        Box::pin(search::candidates(self, collection, query))
    }
}
