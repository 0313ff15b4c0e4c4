//! Chooses the collection to fill: the one of an unfinished run, or a new one.

use super::{Options, RebuildError, Serving, drop_collection};
use crate::index::CollectionSpec;
use crate::serving::{Job, ServingError, check_alias, free_collection_name, id_ranges};
use crate::store::{CollectionRow, Range};

/// Ranges that are copied concurrently: while one waits for the engine, another reads.
const RANGES: u32 = 4;

/// Checks that the alias, or a collection of its name, is in this database. After a restore from
/// an older backup, the alias may point at a collection of the same version that this database no
/// longer lists. It may as well be the collection of another database. So the operator decides:
/// with `take_alias` the rebuild takes the alias over, and leaves that collection alone.
pub(super) async fn check_alias_is_ours(
    serving: &Serving,
    options: &Options,
    registered: &[CollectionRow],
    version: &str,
) -> Result<(), RebuildError> {
    let alias = &serving.alias;
    check_alias(alias, registered)?;
    let what = match serving.index.resolve(alias).await? {
        Some(name) if registered.iter().any(|c| c.name == name) => return Ok(()),
        Some(name) if !registered.is_empty() && is_of(serving, &name, version).await? => {
            if !options.take_alias {
                return Err(ServingError::Mismatch(format!(
                    "the alias {alias:?} points at the collection {name:?}, which this database \
                     does not list: it is an index that this database had before, or that of another \
                     database. If no other database uses the alias, run `elf rebuild --take-alias`; \
                     else use another vector engine"
                ))
                .into());
            }
            tracing::warn!(
                collection = name,
                "alias taken over from a collection that this database does not list; drop the \
                 collection in the vector engine when no application needs it"
            );
            return Ok(());
        }
        Some(name) => format!("an alias of the collection {name:?}"),
        None if serving.index.collection(alias).await?.is_some() => "a collection".into(),
        None => return Ok(()),
    };
    Err(ServingError::Mismatch(format!(
        "{alias:?} is {what} in the vector engine, and this database does not list it: \
         delete it there if no application uses it, or use another vector engine"
    ))
    .into())
}

/// Whether a collection has a name that this database would give it, and its version.
async fn is_of(serving: &Serving, collection: &str, version: &str) -> Result<bool, RebuildError> {
    let number = collection.strip_prefix(&format!("{}__", serving.alias));
    if number.is_none_or(|n| n.parse::<u32>().is_err()) {
        return Ok(false);
    }
    let info = serving.index.collection(collection).await?;
    let spec = info.and_then(|info| info.spec);
    Ok(spec.is_some_and(|spec| spec.embedding_version == version))
}

/// The collection of an unfinished run, if it can be resumed. Drops one that cannot.
pub(super) async fn unfinished(
    serving: &Serving,
    job: &Job,
    options: &Options,
    ours: &[&CollectionRow],
    spec: &CollectionSpec,
) -> Result<Option<String>, RebuildError> {
    for collection in ours.iter().filter(|c| c.is_building()) {
        let name = &collection.name;
        let found = serving.index.collection(name).await?;
        let reason = match found {
            _ if options.restart => "restart requested",
            None => "the vector engine has lost it",
            Some(info) if info.spec.as_ref() != Some(spec) => "it was made with other settings",
            Some(_) => return Ok(Some(name.clone())),
        };
        tracing::warn!(collection = name, reason, "dropping an unfinished rebuild");
        drop_collection(serving, job, name).await?;
    }
    Ok(None)
}

/// Makes a new collection and registers it.
pub(super) async fn begin(
    serving: &Serving,
    job: &Job,
    ours: &[&CollectionRow],
    spec: &CollectionSpec,
) -> Result<String, RebuildError> {
    let name = free_collection_name(serving, spec).await?;
    serving.index.create_collection(&name, spec).await?;
    // Active collections that the engine has lost are retired: workers would wait for them.
    let mut lost = Vec::new();
    for collection in ours.iter().filter(|c| c.is_active()) {
        if serving.index.collection(&collection.name).await?.is_none() {
            lost.push(collection.name.clone());
        }
    }
    let ranges: Vec<Range> = (0..)
        .zip(id_ranges(RANGES))
        .map(|(number, (cursor, upper_bound))| Range {
            number,
            cursor,
            upper_bound,
            points: 0,
            missing_vectors: 0,
        })
        .collect();
    let version = &spec.embedding_version;
    serving
        .store
        .begin_rebuild(&job.lease, &name, &serving.alias, version, &lost, &ranges)
        .await?;
    Ok(name)
}

/// If the alias points at nothing, points it at an old collection that still exists. If there
/// is none, points it at the new one, unless `swap_last`: searches then find the points copied
/// so far.
pub(super) async fn point_unset_alias(
    serving: &Serving,
    job: &Job,
    ours: &[&CollectionRow],
    collection: &str,
    swap_last: bool,
) -> Result<(), RebuildError> {
    let Serving { index, alias, .. } = serving;
    if index.resolve(alias).await?.is_some() {
        return Ok(());
    }
    for old in ours.iter().filter(|c| c.is_active()) {
        if index.collection(&old.name).await?.is_some() {
            return Ok(job.alone(index.point_alias(alias, &old.name)).await?);
        }
    }
    if swap_last {
        return Ok(());
    }
    tracing::info!(
        alias,
        collection,
        "alias pointed at nothing, searches find the points copied so far"
    );
    Ok(job.alone(index.point_alias(alias, collection)).await?)
}
