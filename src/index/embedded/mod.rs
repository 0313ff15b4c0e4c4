//! The engine in this process: the same index as a server's, for the demo, tests
//! and laptops. One process at a time per folder.

mod collection;
mod convert;
mod folder;
mod journal;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};

use uuid::Uuid;

use self::collection::{Collection, Failure, Update};
use self::folder::Folder;
use super::payload::{OTHER_MODEL, alias_to_load, page_start};
use super::{
    Answer, CollectionInfo, CollectionSpec, CollectionStatus, Filter, Hit, IndexError, Point,
    Query, StoredPoint, UpsertMode, VectorIndex,
};

/// The version that Cargo.toml pins.
const VERSION: &str = "0.7.2";

const POISON: &str = "no thread panics while holding it";

/// The engine on one data folder.
pub(super) struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    /// `qdrant-edge 0.7.2 in DIR`
    engine: String,
    /// Dense vectors on disk instead of in memory.
    on_disk: bool,
    /// Serialises changes to the set of collections and aliases; `state` is locked
    /// only to look something up or swap it.
    change: Mutex<()>,
    state: RwLock<State>,
    folder: Arc<Folder>,
}

#[derive(Default)]
struct State {
    collections: BTreeMap<String, Arc<Collection>>,
    aliases: BTreeMap<String, String>,
}

impl Embedded {
    /// Opens the folder, or makes it.
    pub(super) async fn open(dir: PathBuf, on_disk: bool) -> Result<Self, IndexError> {
        let engine = format!("qdrant-edge {VERSION} in {}", dir.display());
        let opened = tokio::task::spawn_blocking(move || Shared::open(engine, dir, on_disk)).await;
        let shared = opened.expect("opening a folder does not panic")?;
        Ok(Self {
            shared: Arc::new(shared),
        })
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
            points.iter().map(|point| point.vector.len()),
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

impl Shared {
    fn open(engine: String, dir: PathBuf, on_disk: bool) -> Result<Self, IndexError> {
        let denied = |reason: String| IndexError::Denied {
            engine: engine.clone(),
            reason,
        };
        let folder = Arc::new(Folder::open(dir).map_err(|error| denied(error.to_string()))?);
        let mut state = State::default();
        for name in folder.names().map_err(|error| denied(error.to_string()))? {
            let collection = Collection::load(&folder, &name).map_err(denied)?;
            state.collections.insert(name, Arc::new(collection));
        }
        state.aliases = folder
            .aliases()
            .map_err(|error| denied(format!("aliases.json: {error}")))?;
        // An alias is dropped with its collection, also when an operator moved that
        // elsewhere.
        let State {
            collections,
            aliases,
        } = &mut state;
        aliases.retain(|_, target| collections.contains_key(target));
        Ok(Self {
            engine,
            on_disk,
            change: Mutex::new(()),
            state: RwLock::new(state),
            folder,
        })
    }

    fn unavailable(&self, reason: String) -> IndexError {
        IndexError::Unavailable {
            engine: self.engine.clone(),
            reason,
        }
    }

    fn denied(&self, reason: String) -> IndexError {
        IndexError::Denied {
            engine: self.engine.clone(),
            reason,
        }
    }

    fn not_found(&self, name: &str) -> IndexError {
        IndexError::NotFound {
            engine: self.engine.clone(),
            name: name.into(),
        }
    }

    fn failed(&self, name: &str, failure: Failure) -> IndexError {
        match failure {
            Failure::Dropped => self.not_found(name),
            Failure::Engine(reason) => self.unavailable(format!("{name:?}: {reason}")),
            Failure::Content(reason) => IndexError::Refused {
                engine: self.engine.clone(),
                reason: format!("{name:?}: {reason}"),
            },
        }
    }

    /// The collection of that name, or the one that the alias points at.
    fn find(&self, name: &str) -> Result<Arc<Collection>, IndexError> {
        let state = self.state.read().expect(POISON);
        let target = state.aliases.get(name).map_or(name, String::as_str);
        state
            .collections
            .get(target)
            .cloned()
            .ok_or_else(|| self.not_found(name))
    }

    /// Reads from a collection or alias. If an alias is swapped and its old collection
    /// dropped between the look-up and the read, it reads from the new one.
    fn read<T>(
        &self,
        name: &str,
        read: impl Fn(&Collection, &qdrant_edge::EdgeShard) -> qdrant_edge::OperationResult<T>,
    ) -> Result<T, IndexError> {
        loop {
            let collection = self.find(name)?;
            match collection.read(|shard| read(&collection, shard)) {
                // It was removed from `state` before it was closed, so the next
                // look-up cannot find it again.
                Err(Failure::Dropped) => {}
                other => return other.map_err(|failure| self.failed(name, failure)),
            }
        }
    }

    fn check_dims(
        &self,
        collection: &Collection,
        name: &str,
        mut dims: impl Iterator<Item = usize>,
    ) -> Result<(), IndexError> {
        let expected = collection.spec.dim;
        match dims.find(|dim| *dim != expected) {
            None => Ok(()),
            Some(dim) => Err(self.denied(format!(
                "{name:?}: vector dimension {dim} instead of {expected}; {OTHER_MODEL}"
            ))),
        }
    }

    fn create(&self, name: &str, spec: &CollectionSpec) -> Result<(), IndexError> {
        check_name(name).map_err(|reason| self.denied(reason))?;
        spec.bm25.check().map_err(|reason| self.denied(reason))?;
        let _change = self.change.lock().expect(POISON);
        {
            let state = self.state.read().expect(POISON);
            if state.collections.contains_key(name) {
                return Ok(());
            }
            if state.aliases.contains_key(name) {
                return Err(self.denied(format!(
                    "the collection {name:?} cannot be made: an alias has that name"
                )));
            }
        }
        let collection = Collection::create(&self.folder, name, spec, self.on_disk)
            .map_err(|reason| self.unavailable(reason))?;
        self.state
            .write()
            .expect(POISON)
            .collections
            .insert(name.into(), Arc::new(collection));
        Ok(())
    }

    fn info(&self, name: &str) -> Result<Option<CollectionInfo>, IndexError> {
        let read = self.read(name, |collection, shard| {
            Ok((
                collection.spec.clone(),
                shard.count(convert::count(&Filter::default()))?,
            ))
        });
        match read {
            Ok((spec, points)) => Ok(Some(CollectionInfo {
                spec: Some(spec),
                points: points as u64,
                status: CollectionStatus::Green,
            })),
            Err(IndexError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn drop_collection(&self, name: &str) -> Result<(), IndexError> {
        let _change = self.change.lock().expect(POISON);
        let mut aliases = self.state.read().expect(POISON).aliases.clone();
        let count = aliases.len();
        aliases.retain(|_, collection| collection != name);
        if aliases.len() < count {
            self.save(aliases)?;
        }
        let Some(collection) = self.state.write().expect(POISON).collections.remove(name) else {
            return Ok(());
        };
        collection.close();
        self.folder
            .remove(name)
            .map_err(|error| self.unavailable(format!("cannot remove {name:?}: {error}")))
    }

    fn point_alias(&self, alias: &str, collection: &str) -> Result<(), IndexError> {
        let _change = self.change.lock().expect(POISON);
        let mut aliases = {
            let state = self.state.read().expect(POISON);
            if !state.collections.contains_key(collection) {
                return Err(self.not_found(collection));
            }
            if state.collections.contains_key(alias) {
                return Err(self.denied(format!(
                    "the alias {alias:?} cannot be made: a collection has that name"
                )));
            }
            state.aliases.clone()
        };
        aliases.insert(alias.into(), collection.into());
        self.save(aliases)
    }

    /// Aliases count once they are on disk. The caller holds `change`.
    fn save(&self, aliases: BTreeMap<String, String>) -> Result<(), IndexError> {
        self.folder
            .save_aliases(&aliases)
            .map_err(|error| self.unavailable(format!("cannot write aliases.json: {error}")))?;
        self.state.write().expect(POISON).aliases = aliases;
        Ok(())
    }
}

/// Checks that a collection's name can name a folder that is not hidden.
fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(allowed) {
        return Err(format!(
            "{name:?} cannot name a collection: use letters, digits, `_` and `-` (storage.qdrant.alias)"
        ));
    }
    Ok(())
}

impl VectorIndex for Embedded {
    fn describe(&self) -> String {
        self.shared.engine.clone()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        let (name, spec) = (name.to_owned(), spec.clone());
        Box::pin(self.blocking(move |shared| shared.create(&name, &spec)))
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        let name = name.to_owned();
        Box::pin(self.blocking(move |shared| shared.info(&name)))
    }

    fn bulk_load<'a>(&'a self, collection: &'a str, _on: bool) -> Answer<'a, ()> {
        // Nothing to defer: this engine builds graphs only in `EdgeShard::optimize`,
        // which ELF never calls.
        Box::pin(async move {
            let state = self.shared.state.read().expect(POISON);
            if state.aliases.contains_key(collection) {
                return Err(self.shared.denied(alias_to_load(collection)));
            }
            if !state.collections.contains_key(collection) {
                return Err(self.shared.not_found(collection));
            }
            Ok(())
        })
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        let name = name.to_owned();
        Box::pin(self.blocking(move |shared| shared.drop_collection(&name)))
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(async move {
            Ok(self
                .shared
                .state
                .read()
                .expect(POISON)
                .aliases
                .get(alias)
                .cloned())
        })
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        let (alias, collection) = (alias.to_owned(), collection.to_owned());
        Box::pin(self.blocking(move |shared| shared.point_alias(&alias, &collection)))
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
            self.write_points(collection, points, mode).await
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
            let mut points: Vec<_> = records
                .into_iter()
                .filter_map(convert::stored_point)
                .collect();
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
            Ok(records
                .into_iter()
                .filter_map(convert::stored_point)
                .collect())
        }))
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Hit>> {
        let (name, query) = (collection.to_owned(), query.clone());
        Box::pin(self.blocking(move |shared| {
            shared.check_dims(
                &*shared.find(&name)?,
                &name,
                std::iter::once(query.vector.len()),
            )?;
            let points = shared.read(&name, |collection, shard| {
                shard.query(convert::search(&query, &collection.bm25))
            })?;
            Ok(points.into_iter().filter_map(convert::hit).collect())
        }))
    }
}
