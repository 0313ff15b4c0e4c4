//! Making sure, before the first claim and after every outage, that database,
//! index and configuration belong together.

use std::time::Duration;

use super::Tools;
use crate::index::{CollectionInfo, CollectionSpec, IndexError};
use crate::store::{Selection, Store, StoreError, Version};
use crate::version::differences;

/// How often, and how long apart, an engine that does not answer is asked again.
const MOST_TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// Why a worker cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Postgres.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The vector engine.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// Configuration, database and index do not belong together.
    #[error("{0}")]
    Mismatch(String),
}

/// The active version of the database must be `version`. The first worker of a
/// database makes it so.
pub async fn prepare(store: &Store, version: &Version) -> Result<(), SetupError> {
    let active = match store.active_version().await? {
        Some(active) => active,
        None => store.register_first_version(version).await?,
    };
    must_be(&active, version)
}

/// The active version of the database must be `version`: for those who only read.
pub async fn require(store: &Store, version: &Version) -> Result<(), SetupError> {
    match store.active_version().await? {
        Some(active) => must_be(&active, version),
        None => Err(SetupError::Mismatch(
            "nothing is indexed yet: run `elf worker`, or `elf worker --once`".into(),
        )),
    }
}

fn must_be(active: &Version, version: &Version) -> Result<(), SetupError> {
    if active.name == version.name {
        return Ok(());
    }
    Err(SetupError::Mismatch(format!(
        "the database is indexed under the embedding version {}, and the configuration asks for {}: {}. \
         Vectors of two versions cannot be mixed: put the setting back, or index into a database \
         and collection of its own",
        active.name,
        version.name,
        differences(active, version).join("; ")
    )))
}

/// Checks that the collection of the version is there, is as it must be, and is
/// what the alias points at; makes it when there is none. A collection that was
/// lost comes back from Postgres: every note is put into the outbox, and none is
/// embedded again.
pub async fn check(tools: &Tools) -> Result<(), SetupError> {
    let mut tries = 0;
    loop {
        match check_once(tools).await {
            // A collection that another worker is making this moment is not quite there.
            Err(SetupError::Index(IndexError::Unavailable { .. })) if tries < MOST_TRIES => {
                tries += 1;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            outcome => return outcome,
        }
    }
}

async fn check_once(tools: &Tools) -> Result<(), SetupError> {
    tools.store.ping().await?;
    let registered = tools.store.collections(&tools.version.name).await?;
    let collection = match registered.into_iter().next() {
        Some(collection) => collection,
        None => {
            refuse_foreign(tools).await?;
            tools
                .store
                .register_first_collection(&tools.version.name, &tools.alias)
                .await?
        }
    };
    if collection.alias != tools.alias {
        return Err(SetupError::Mismatch(format!(
            "the database is indexed under the alias {:?}, and storage.qdrant.collection is {:?}: \
             put the setting back",
            collection.alias, tools.alias
        )));
    }
    match tools.index.collection(&collection.name).await? {
        Some(info) => check_spec(&collection.name, &info, &spec(tools))?,
        None => create(tools, &collection.name).await?,
    }
    match tools.index.resolve(&tools.alias).await? {
        Some(target) if target == collection.name => Ok(()),
        Some(target) => Err(SetupError::Mismatch(format!(
            "the alias {:?} points at the collection {target:?}, and this database is indexed in \
             {:?}: choose another storage.qdrant.collection, or point the alias back",
            tools.alias, collection.name
        ))),
        None => Ok(tools
            .index
            .point_alias(&tools.alias, &collection.name)
            .await?),
    }
}

/// Before the first collection is registered: somebody else may use the name.
async fn refuse_foreign(tools: &Tools) -> Result<(), SetupError> {
    let taken = match tools.index.resolve(&tools.alias).await? {
        Some(target) => Some(format!("an alias of {target:?}")),
        None => tools
            .index
            .collection(&tools.alias)
            .await?
            .map(|_| "a collection".to_owned()),
    };
    // Another worker may have been faster than our look at the database.
    let registered = !tools
        .store
        .collections(&tools.version.name)
        .await?
        .is_empty();
    match taken {
        None => Ok(()),
        Some(_) if registered => Ok(()),
        Some(what) => Err(SetupError::Mismatch(format!(
            "{:?} is {what} in the vector engine already, and this database knows nothing of it: \
             choose another storage.qdrant.collection",
            tools.alias
        ))),
    }
}

async fn create(tools: &Tools, name: &str) -> Result<(), SetupError> {
    // First the outbox, then the collection: if we die between, the next start
    // finds no collection and does both again.
    let notes = tools.store.enqueue(&Selection::default()).await?;
    tools.index.create_collection(name, &spec(tools)).await?;
    tracing::info!(
        collection = name,
        notes,
        "made an empty collection; every note is in the outbox"
    );
    Ok(())
}

fn spec(tools: &Tools) -> CollectionSpec {
    CollectionSpec {
        dim: tools.version.dim,
        bm25: tools.bm25.clone(),
        embedding_version: tools.version.name.clone(),
    }
}

fn check_spec(
    name: &str,
    info: &CollectionInfo,
    wanted: &CollectionSpec,
) -> Result<(), SetupError> {
    let problem = match &info.spec {
        Some(spec) if spec == wanted => return Ok(()),
        None => "was not made by ELF".to_owned(),
        Some(spec) if spec.dim != wanted.dim => {
            format!(
                "holds vectors of {} dimensions, not {}",
                spec.dim, wanted.dim
            )
        }
        Some(spec) if spec.embedding_version != wanted.embedding_version => {
            format!("holds the embedding version {}", spec.embedding_version)
        }
        Some(spec) => format!(
            "was made with other BM25 options ({}); put storage.qdrant.bm25 back, or drop the \
             collection and start elf again: it comes back from Postgres without embedding",
            serde_json::to_string(&spec.bm25).unwrap_or_default()
        ),
    };
    Err(SetupError::Mismatch(format!(
        "the collection {name:?} {problem}"
    )))
}
