//! Checks before the first claim and after every outage that database, index and configuration
//! belong together, and creates what is missing.

use std::time::Duration;

use super::{
    Serving, ServingError, check_alias, check_home, differences, ensure_tokens, index_fields,
    reconcile_alias, record_home,
};
use crate::index::{CollectionInfo, CollectionSpec, IndexError};
use crate::store::{CollectionRow, Lifecycle, RegisteredVersion, Store, StoreError, Version};

/// How often, and at what interval, an unavailable engine is tried again.
const MAX_TRIES: u32 = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// Registers `version` if the database has no version yet: the first worker does. Otherwise
/// checks that the database has it, not retired.
pub async fn register_or_check_version(
    store: &Store,
    version: &Version,
) -> Result<(), ServingError> {
    let mut known = store.versions().await?;
    if known.is_empty() {
        store.register_first_version(version).await?;
        known = store.versions().await?;
    }
    match known.iter().find(|v| v.version.name == version.name) {
        Some(own) if own.state != Lifecycle::Retired => Ok(()),
        own => Err(not_served(&known, own, version)),
    }
}

/// Checks that `version` is the active version of the database. For commands that only read.
pub async fn check_version_is_active(store: &Store, version: &Version) -> Result<(), ServingError> {
    let known = store.versions().await?;
    match known.iter().find(|v| v.version.name == version.name) {
        Some(own) if own.state == Lifecycle::Active => Ok(()),
        own => Err(not_served(&known, own, version)),
    }
}

/// The error for a configuration that asks for another version than the one served.
fn not_served(
    known: &[RegisteredVersion],
    own: Option<&RegisteredVersion>,
    asked: &Version,
) -> ServingError {
    let Some(active) = known.iter().find(|v| v.state == Lifecycle::Active) else {
        return ServingError::NothingIndexed;
    };
    let advice = match own.map(|v| v.state) {
        Some(Lifecycle::Building) => {
            "it is being built: `elf reindex --swap` serves it once it is complete"
        }
        Some(Lifecycle::Retired) => {
            "it is retired: put the setting back, build it again with `elf reindex`, or serve the \
             version that was served last with `elf reindex rollback`"
        }
        _ => "put the setting back, or build the new version with `elf reindex`",
    };
    ServingError::Mismatch(format!(
        "the database is indexed under the embedding version {}, and the configuration asks for {}: {}. \
         Vectors of two versions cannot be mixed; {advice}",
        active.version.name,
        asked.name,
        differences(&active.version, asked).join("; ")
    ))
}

/// The registered version of this name. An error if it is retired or not registered any more:
/// that may have happened since the worker began.
pub async fn version_unless_retired(
    store: &Store,
    version: &str,
) -> Result<RegisteredVersion, ServingError> {
    unless_retired(&store.versions().await?, version)
}

/// [`version_unless_retired`] among all registered versions.
pub fn unless_retired(
    known: &[RegisteredVersion],
    version: &str,
) -> Result<RegisteredVersion, ServingError> {
    let own = known.iter().find(|v| v.version.name == version);
    let gone = match own {
        Some(own) if own.state != Lifecycle::Retired => return Ok(own.clone()),
        Some(_) => "is retired",
        None => "is not registered any more",
    };
    let active = known.iter().find(|v| v.state == Lifecycle::Active);
    Err(ServingError::Mismatch(format!(
        "the embedding version {version} {gone}: {} is served; stop this worker, or roll back \
         with `elf reindex rollback`",
        active.map_or("none", |v| &v.version.name)
    )))
}

/// Makes sure that the version is not retired, that every note was enqueued for it, and that its
/// collection exists with the right shape. If the version is active, the alias points at it.
/// Creates a missing collection. If it was lost, every note is put into the outbox, and
/// workers fill it from Postgres without embedding.
pub async fn ensure_ready(serving: &Serving, version: &Version) -> Result<(), ServingError> {
    let mut tries = 0;
    loop {
        match ensure_once(serving, version).await {
            // The engine is unavailable for a collection that another worker is creating.
            Err(ServingError::Index(IndexError::Unavailable { .. })) if tries < MAX_TRIES => {
                tries += 1;
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            outcome => return outcome,
        }
    }
}

async fn ensure_once(serving: &Serving, version: &Version) -> Result<(), ServingError> {
    serving.store.ping().await?;
    let known = version_unless_retired(&serving.store, &version.name).await?;
    check_home(serving).await?;
    let (collection, info) = main_collection(serving, version).await?;
    match info {
        Some(info) => check_spec(
            &collection.name,
            &info,
            &spec(serving, version),
            known.state,
        )?,
        None => create_collection(serving, version, &collection.name).await?,
    }
    index_fields(serving, &collection.name).await?;
    record_home(serving).await?;
    forget_lost_rebuilds(serving, version).await?;
    ensure_tokens(serving, &version.name).await?;
    if known.state == Lifecycle::Active {
        reconcile_alias(serving).await?;
    }
    // After the alias, as in a rollback: the version stays marked until both are done.
    if !known.enqueued {
        let notes = serving.store.enqueue_version(&version.name).await?;
        tracing::info!(version = version.name, notes, "every note enqueued");
    }
    Ok(())
}

/// The version's main collection, registered now if it is the first, and its state in the
/// engine.
async fn main_collection(
    serving: &Serving,
    version: &Version,
) -> Result<(CollectionRow, Option<CollectionInfo>), ServingError> {
    let store = &serving.store;
    loop {
        let collection = match registered_main_collection(serving, version).await? {
            Some(collection) => collection,
            None => {
                check_alias_is_free(serving).await?;
                store
                    .register_first_collection(&version.name, &serving.alias)
                    .await?
            }
        };
        check_alias(&serving.alias, std::slice::from_ref(&collection))?;
        let info = serving.index.collection(&collection.name).await?;
        if info.is_some() {
            return Ok((collection, info));
        }
        // A rebuild may have retired it between the two reads.
        if registered_main_collection(serving, version).await?.as_ref() != Some(&collection) {
            continue;
        }
        if collection.is_active() {
            return Ok((collection, None));
        }
        forget_rebuild(store, &collection.name).await?;
    }
}

/// The main collection as Postgres has it: the active one. If that was lost and a rebuild has
/// begun, the one that it fills.
async fn registered_main_collection(
    serving: &Serving,
    version: &Version,
) -> Result<Option<CollectionRow>, StoreError> {
    let written = serving.store.collections(&version.name).await?;
    Ok(written.into_iter().next())
}

/// Forgets rebuilds whose collection is lost. They cannot resume, and workers would wait for
/// that collection.
async fn forget_lost_rebuilds(serving: &Serving, version: &Version) -> Result<(), ServingError> {
    for collection in serving.store.collections(&version.name).await? {
        if collection.is_building() && serving.index.collection(&collection.name).await?.is_none() {
            forget_rebuild(&serving.store, &collection.name).await?;
        }
    }
    Ok(())
}

async fn forget_rebuild(store: &Store, collection: &str) -> Result<(), StoreError> {
    if store.forget_unfinished(collection).await? {
        tracing::warn!(
            collection,
            "collection of an unfinished rebuild is gone, rebuild abandoned"
        );
    }
    Ok(())
}

/// Checks that no other program uses the alias name. Called before the first collection is
/// registered.
async fn check_alias_is_free(serving: &Serving) -> Result<(), ServingError> {
    let target = serving.index.resolve(&serving.alias).await?;
    let taken = match &target {
        Some(target) => Some(format!("an alias of {target:?}")),
        None => serving
            .index
            .collection(&serving.alias)
            .await?
            .map(|_| "a collection".to_owned()),
    };
    // Another worker may have registered the collection since this worker read the database.
    let is_ours = !serving.store.registered_collections().await?.is_empty();
    match taken {
        None => Ok(()),
        Some(_) if is_ours => Ok(()),
        Some(what) => Err(ServingError::Mismatch(format!(
            "{:?} is {what} in the vector engine already, and this database does not list it: \
             choose another storage.qdrant.alias",
            serving.alias
        ))),
    }
}

async fn create_collection(
    serving: &Serving,
    version: &Version,
    name: &str,
) -> Result<(), ServingError> {
    // The outbox first: if the worker dies before it creates the collection, the next start
    // repeats both steps.
    let notes = serving.store.enqueue_version_again(&version.name).await?;
    serving
        .index
        .create_collection(name, &spec(serving, version))
        .await?;
    tracing::info!(
        collection = name,
        notes,
        "empty collection created, every note enqueued"
    );
    let written = serving.store.collections(&version.name).await?;
    if !written.iter().any(|collection| collection.name == name) {
        // It was missing because a job has retired and dropped it. No job would drop it again.
        serving.index.drop_collection(name).await?;
    }
    Ok(())
}

/// The shape of a collection for this version, under this configuration.
pub fn spec(serving: &Serving, version: &Version) -> CollectionSpec {
    CollectionSpec {
        dim: version.dim,
        bm25: serving.bm25.clone(),
        embedding_version: version.name.clone(),
    }
}

/// Checks that the main collection of a version in this state has the right shape.
pub fn check_spec(
    name: &str,
    info: &CollectionInfo,
    wanted: &CollectionSpec,
    state: Lifecycle,
) -> Result<(), ServingError> {
    let remedy = match state {
        Lifecycle::Active => {
            "run `elf rebuild` for a collection with the new ones, which embeds nothing"
        }
        Lifecycle::Building | Lifecycle::Retired => {
            "drop this version with `elf reindex drop` and build it again"
        }
    };
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
            "was made with other BM25 options ({}); put storage.qdrant.bm25 back, or {remedy}",
            serde_json::to_string(&spec.bm25).unwrap_or_default()
        ),
    };
    Err(ServingError::Mismatch(format!(
        "the collection {name:?} {problem}"
    )))
}
