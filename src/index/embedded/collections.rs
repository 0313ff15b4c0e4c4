//! The collections and aliases of one folder. Most functions block: they are not for an async
//! thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

use super::collection::{Collection, Failure};
use super::convert;
use super::folder::{self, Folder};
use crate::index::payload::{OTHER_MODEL, alias_to_load};
use crate::index::{
    CollectionInfo, CollectionSpec, CollectionStatus, Filter, IndexError, IndexPlace,
};

const POISON: &str = "no thread panics while holding it";

/// The collections and aliases of one folder.
pub(super) struct Shared {
    /// `qdrant-edge 0.7.2 in DIR`
    pub(super) engine: String,
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

impl Shared {
    pub(super) fn load(engine: &str, folder: Folder, on_disk: bool) -> Result<Self, IndexError> {
        let denied = |reason: String| IndexError::Denied {
            engine: engine.to_owned(),
            reason,
        };
        let folder = Arc::new(folder);
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
            engine: engine.to_owned(),
            on_disk,
            change: Mutex::new(()),
            state: RwLock::new(state),
            folder,
        })
    }

    pub(super) fn place(&self) -> IndexPlace {
        folder::place(self.folder.dir())
    }

    pub(super) fn unavailable(&self, reason: String) -> IndexError {
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

    pub(super) fn failed(&self, name: &str, failure: Failure) -> IndexError {
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
    pub(super) fn find(&self, name: &str) -> Result<Arc<Collection>, IndexError> {
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
    pub(super) fn read<T>(
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

    pub(super) fn check_dims(
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

    pub(super) fn create(&self, name: &str, spec: &CollectionSpec) -> Result<(), IndexError> {
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

    pub(super) fn info(&self, name: &str) -> Result<Option<CollectionInfo>, IndexError> {
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

    /// The collection that `alias` points at.
    pub(super) fn resolve(&self, alias: &str) -> Option<String> {
        self.state.read().expect(POISON).aliases.get(alias).cloned()
    }

    /// Checks that `name` is a collection and not an alias.
    pub(super) fn check_loadable(&self, name: &str) -> Result<(), IndexError> {
        let state = self.state.read().expect(POISON);
        if state.aliases.contains_key(name) {
            return Err(self.denied(alias_to_load(name)));
        }
        if !state.collections.contains_key(name) {
            return Err(self.not_found(name));
        }
        Ok(())
    }

    pub(super) fn drop_collection(&self, name: &str) -> Result<(), IndexError> {
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

    pub(super) fn point_alias(&self, alias: &str, collection: &str) -> Result<(), IndexError> {
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
