//! The engine itself, on a folder that this process has open.

use std::sync::Arc;

use uuid::Uuid;

use super::collection::{Collection, Failure, Update};
use super::collections::Shared;
use super::convert;
use super::folder::Folder;
use crate::index::payload::page_start;
use crate::index::{
    Answer, Candidate, CollectionInfo, CollectionSpec, Filter, IndexError, IndexPlace, Point,
    Query, Relabel, StoredPoint, UpsertMode, VectorIndex, candidates, say_which_have_vectors,
};
use crate::metadata::Declared;

/// The engine on one data folder.
pub(super) struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// Loads the collections of a folder. `name` is what errors call the engine. Blocks.
    pub(super) fn load(name: &str, folder: Folder, on_disk: bool) -> Result<Self, IndexError> {
        Ok(Self {
            shared: Arc::new(Shared::load(name, folder, on_disk)?),
        })
    }

    /// What errors call it.
    pub(super) fn name(&self) -> &str {
        &self.shared.engine
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, IndexError> + Send + 'static,
    ) -> Result<T, IndexError> {
        let shared = self.shared.clone();
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(result) => result,
            Err(error) => Err(self.shared.unavailable(error.to_string())),
        }
    }

    async fn write_points(
        &self,
        name: &str,
        points: Vec<Point>,
        mode: UpsertMode,
    ) -> Result<(), IndexError> {
        let collection = self.shared.find(name)?;
        self.shared.check_dims(
            &collection,
            name,
            points
                .iter()
                .filter_map(|point| Some(point.vector.as_ref()?.len())),
        )?;
        // Not on the writer: BM25 vectors and the journal's record are the expensive
        // part, and need no order.
        let source = collection.clone();
        let encode = move || Update::new(convert::upserts(points, mode, &source.bm25));
        let update = tokio::task::spawn_blocking(encode)
            .await
            .map_err(|error| self.shared.unavailable(error.to_string()))?;
        self.write(name, &collection, update).await
    }

    async fn write(
        &self,
        name: &str,
        collection: &Collection,
        update: Result<Update, Failure>,
    ) -> Result<(), IndexError> {
        let written = match update {
            Ok(update) => collection.write(update).await,
            Err(failure) => Err(failure),
        };
        written.map_err(|failure| self.shared.failed(name, failure))
    }
}

impl VectorIndex for Engine {
    fn describe(&self) -> String {
        self.shared.engine.clone()
    }

    fn place(&self) -> IndexPlace {
        self.shared.place()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        let (name, spec) = (name.to_owned(), spec.clone());
        Box::pin(self.blocking(move |shared| shared.create(&name, &spec)))
    }

    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()> {
        Box::pin(async move {
            let found = self.shared.find(collection)?;
            let (source, declared) = (found.clone(), fields.clone());
            let missing = move |_: &Shared| {
                Ok(source.read(|shard| Ok(convert::declared_indexes(shard, &declared))))
            };
            match self.blocking(missing).await? {
                Ok(operations) if operations.is_empty() => Ok(()),
                Ok(operations) => {
                    self.write(collection, &found, Update::new(operations))
                        .await
                }
                Err(failure) => Err(self.shared.failed(collection, failure)),
            }
        })
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        let name = name.to_owned();
        Box::pin(self.blocking(move |shared| shared.info(&name)))
    }

    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64> {
        // Nothing to defer: this engine builds graphs only in `EdgeShard::optimize`,
        // which ELF never calls.
        Box::pin(async move { self.shared.check_loadable(collection).map(|()| u64::MAX) })
    }

    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()> {
        Box::pin(async move { self.shared.check_loadable(collection) })
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.blocking(move |shared| shared.drop_collection(&name)))
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(async move { Ok(self.shared.resolve(alias)) })
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        let (alias, collection) = (alias.to_owned(), collection.to_owned());
        Box::pin(self.blocking(move |shared| shared.point_alias(&alias, &collection)))
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
            self.write_points(collection, points.to_vec(), mode).await
        })
    }

    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()> {
        Box::pin(async move {
            let found = self.shared.find(collection)?;
            let update = Update::new(notes.iter().map(convert::relabel).collect());
            self.write(collection, &found, update).await
        })
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async move {
            let found = self.shared.find(collection)?;
            let update = Update::new(vec![convert::delete(filter)]);
            self.write(collection, &found, update).await
        })
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        let (name, request) = (collection.to_owned(), convert::count(filter));
        Box::pin(self.blocking(move |shared| {
            let count = shared.read(&name, |_, shard| shard.count(request.clone()))?;
            Ok(count as u64)
        }))
    }

    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let (name, ids) = (collection.to_owned(), convert::point_ids(ids));
        Box::pin(self.blocking(move |shared| {
            let records = shared.read(&name, |_, shard| {
                let vectors = convert::dense_if(with_vectors);
                shard.retrieve(&ids, None, Some(vectors))
            })?;
            let stored = |record| convert::stored_point(record, with_vectors);
            let mut points: Vec<_> = records.into_iter().filter_map(stored).collect();
            points.sort_unstable_by_key(|point| point.chunk_id);
            Ok(points)
        }))
    }

    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let name = collection.to_owned();
        Box::pin(self.blocking(move |shared| {
            let Some(start) = page_start(after) else {
                return Ok(Vec::new());
            };
            let request = convert::scroll(start, limit, with_vectors);
            let (records, _) = shared.read(&name, |_, shard| shard.scroll(request.clone()))?;
            let stored = |record| convert::stored_point(record, with_vectors);
            let mut points: Vec<_> = records.into_iter().filter_map(stored).collect();
            if !with_vectors && !points.is_empty() {
                let ids: Vec<_> = points.iter().map(|point| point.chunk_id).collect();
                let request = convert::without_vector(&ids);
                let (without, _) = shared.read(&name, |_, shard| shard.scroll(request.clone()))?;
                let without = without.into_iter().map(|record| record.id);
                say_which_have_vectors(&mut points, without.filter_map(convert::chunk_id));
            }
            Ok(points)
        }))
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>> {
        let (name, query) = (collection.to_owned(), query.clone());
        Box::pin(self.blocking(move |shared| {
            shared.check_dims(
                &*shared.find(&name)?,
                &name,
                query.vector.iter().map(Vec::len),
            )?;
            let (dense, bm25) = shared.read(&name, |collection, shard| {
                let search = convert::search(&query, &collection.bm25);
                let dense = search
                    .dense
                    .map(|request| shard.query(request))
                    .transpose()?;
                let bm25 = search
                    .bm25
                    .map(|request| shard.query(request))
                    .transpose()?;
                Ok((dense, bm25.unwrap_or_default()))
            })?;
            let scored = |points: Vec<_>| points.into_iter().filter_map(convert::scored).collect();
            Ok(candidates::join(dense.map(scored), scored(bm25)))
        }))
    }
}
