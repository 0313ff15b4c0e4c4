//! Which collection is filled: the one of an unfinished run, or a new one.

use super::{IndexContext, Options, RebuildError, drop_collection};
use crate::index::CollectionSpec;
use crate::registry::id_ranges;
use crate::store::{CollectionRow, Range};

/// Ranges that are read and written side by side: while one waits for the engine,
/// another reads.
const RANGES: u32 = 4;

/// An alias or a collection of that name that this database knows nothing of. A
/// collection of the same version was this database's before it was restored from an
/// older backup: the alias is taken over from it, and it is left to who knows better.
pub(super) async fn refuse_foreign(
    context: &IndexContext,
    registered: &[CollectionRow],
    version: &str,
) -> Result<(), RebuildError> {
    let alias = &context.alias;
    let other = registered.iter().find(|c| c.alias != *alias);
    if let Some(other) = other {
        return Err(RebuildError::Foreign(format!(
            "the database is indexed under the alias {:?}, and storage.qdrant.alias is {alias:?}: \
             put the setting back",
            other.alias
        )));
    }
    let what = match context.index.resolve(alias).await? {
        Some(name) if registered.iter().any(|c| c.name == name) => return Ok(()),
        Some(name) if !registered.is_empty() && is_of(context, &name, version).await? => {
            tracing::warn!(
                collection = name,
                "the alias is taken over from a collection that this database has forgotten; drop \
                 it in the vector engine once nobody needs it"
            );
            return Ok(());
        }
        Some(name) => format!("an alias of the collection {name:?}"),
        None if context.index.collection(alias).await?.is_some() => "a collection".into(),
        None => return Ok(()),
    };
    Err(RebuildError::Foreign(format!(
        "{alias:?} is {what} in the vector engine, and this database knows nothing of it: \
         choose another storage.qdrant.alias, or delete it there if nobody uses it"
    )))
}

/// Whether a collection has the name and the shape that this database would give it.
async fn is_of(
    context: &IndexContext,
    collection: &str,
    version: &str,
) -> Result<bool, RebuildError> {
    let number = collection.strip_prefix(&format!("{}__", context.alias));
    if number.is_none_or(|n| n.parse::<u32>().is_err()) {
        return Ok(false);
    }
    let info = context.index.collection(collection).await?;
    let spec = info.and_then(|info| info.spec);
    Ok(spec.is_some_and(|spec| spec.embedding_version == version))
}

/// The collection that an earlier run has not finished, if it can be gone on with.
pub(super) async fn unfinished(
    context: &IndexContext,
    options: &Options,
    ours: &[&CollectionRow],
    spec: &CollectionSpec,
) -> Result<Option<String>, RebuildError> {
    for collection in ours.iter().filter(|c| c.is_building()) {
        let name = &collection.name;
        let found = context.index.collection(name).await?;
        let reason = match found {
            _ if options.restart => "as asked",
            None => "the vector engine has lost it",
            Some(info) if info.spec.as_ref() != Some(spec) => "it was made with other settings",
            Some(_) => return Ok(Some(name.clone())),
        };
        tracing::warn!(collection = name, reason, "dropping an unfinished rebuild");
        drop_collection(context, name).await?;
    }
    Ok(None)
}

/// Makes a new collection and registers it.
pub(super) async fn begin(
    context: &IndexContext,
    ours: &[&CollectionRow],
    spec: &CollectionSpec,
) -> Result<String, RebuildError> {
    let name = free_name(context, spec).await?;
    context.index.create_collection(&name, spec).await?;
    context.index.bulk_load(&name, true).await?;
    // Workers would wait for a collection that is not there any more.
    let mut lost = Vec::new();
    for collection in ours.iter().filter(|c| c.is_active()) {
        if context.index.collection(&collection.name).await?.is_none() {
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
    context
        .store
        .begin_rebuild(&name, &context.alias, version, &lost, &ranges)
        .await?;
    Ok(name)
}

/// `<alias>__<n>` with an `n` above all that collections of this database ever had, and
/// that the engine does not have. An empty one that is just as it has to be was left by a
/// rebuild that died before it was registered.
pub(crate) async fn free_name(
    context: &IndexContext,
    spec: &CollectionSpec,
) -> Result<String, RebuildError> {
    let last = context.store.last_collection_number().await?;
    for n in last + 1.. {
        let name = format!("{}__{n}", context.alias);
        match context.index.collection(&name).await? {
            None => return Ok(name),
            Some(info) if info.points == 0 && info.spec.as_ref() == Some(spec) => return Ok(name),
            Some(_) => {}
        }
    }
    unreachable!("the numbers do not run out")
}

/// Where the alias points at nothing, searches are better off with what there is.
pub(super) async fn lend_alias(
    context: &IndexContext,
    ours: &[&CollectionRow],
    collection: &str,
    swap_last: bool,
) -> Result<(), RebuildError> {
    if context.index.resolve(&context.alias).await?.is_some() {
        return Ok(());
    }
    for old in ours.iter().filter(|c| c.is_active()) {
        if context.index.collection(&old.name).await?.is_some() {
            return Ok(context.index.point_alias(&context.alias, &old.name).await?);
        }
    }
    if swap_last {
        return Ok(());
    }
    tracing::info!(
        alias = context.alias,
        collection,
        "the alias pointed at nothing; searches find points as they come"
    );
    Ok(context
        .index
        .point_alias(&context.alias, collection)
        .await?)
}
