//! Reconciles the alias: it points at the active version's collection, as Postgres records it.

use super::{Serving, ServingError};
use crate::store::{CollectionRow, Lifecycle, RegisteredVersion};

/// How often the alias is read again after it was moved. More than one move is needed only
/// when another process moves it at the same moment.
const MAX_TRIES: u32 = 10;

/// Checks that `registered` collections belong to the alias of the configuration.
pub fn check_alias(alias: &str, registered: &[CollectionRow]) -> Result<(), ServingError> {
    match registered.iter().find(|c| c.alias != alias) {
        None => Ok(()),
        Some(other) => Err(ServingError::OtherAlias {
            registered: other.alias.clone(),
            configured: alias.to_owned(),
        }),
    }
}

/// Points the alias at the active collection of the active version, unless it already points
/// at a collection that workers write for this version. Every process that changes what is
/// served calls this after its commit, so the last call finds alias and Postgres in step.
pub async fn reconcile_alias(serving: &Serving) -> Result<(), ServingError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    for _ in 0..MAX_TRIES {
        // The alias is read first. Postgres changes before the alias, so the rows read afterwards
        // are not older than the alias. A rebuild changes the alias first, and calls this after
        // its commit.
        let target = index.resolve(alias).await?;
        let Some(active) = store.active_version().await? else {
            return Ok(());
        };
        let all = store.registered_collections().await?;
        match decide(target.as_deref(), &active.name, &all) {
            Move::Leave => return Ok(()),
            Move::Point(_) => move_alias(serving).await?,
            Move::Refuse { target, wanted } => {
                return Err(ServingError::ForeignAlias {
                    alias: alias.to_owned(),
                    target: target.to_owned(),
                    wanted: wanted.to_owned(),
                });
            }
        }
    }
    Ok(())
}

/// Decides again and moves the alias while nothing else can be served. A process that cannot reach
/// Postgres moves no alias.
async fn move_alias(serving: &Serving) -> Result<(), ServingError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    let served = store.hold_served().await?;
    let target = index.resolve(alias).await?;
    if let Some(active) = &served.active
        && let Move::Point(to) = decide(target.as_deref(), active, &served.collections)
    {
        index.point_alias(alias, to).await?;
        tracing::info!(alias, from = target, to, "alias moved");
    }
    Ok(served.release().await?)
}

/// A description of the alias's problem, if [`reconcile_alias`] would move it.
pub async fn alias_problem(serving: &Serving) -> Result<Option<String>, ServingError> {
    let (store, index, alias) = (&serving.store, &serving.index, &serving.alias);
    let target = index.resolve(alias).await?;
    let versions = store.versions().await?;
    let all = store.registered_collections().await?;
    problem_of_target(alias, target.as_deref(), &versions, &all)
}

/// [`alias_problem`] of an alias that pointed at `target` before the rows were read.
pub fn problem_of_target(
    alias: &str,
    target: Option<&str>,
    versions: &[RegisteredVersion],
    all: &[CollectionRow],
) -> Result<Option<String>, ServingError> {
    let Some(active) = versions.iter().find(|v| v.state == Lifecycle::Active) else {
        return Ok(None);
    };
    match decide(target, &active.version.name, all) {
        Move::Leave => Ok(None),
        Move::Point(to) => Ok(Some(match target {
            Some(target) => format!("points at {target:?} instead of {to:?}"),
            None => "points at nothing, so searches find notes in Postgres only".to_owned(),
        })),
        Move::Refuse { target, wanted } => Err(ServingError::ForeignAlias {
            alias: alias.to_owned(),
            target: target.to_owned(),
            wanted: wanted.to_owned(),
        }),
    }
}

#[derive(Debug, PartialEq)]
enum Move<'a> {
    Leave,
    Point(&'a str),
    Refuse { target: &'a str, wanted: &'a str },
}

fn decide<'a>(target: Option<&'a str>, active: &str, all: &'a [CollectionRow]) -> Move<'a> {
    let written = |c: &&CollectionRow| c.version == active && !c.is_retired();
    let main = all.iter().filter(written).find(|c| c.is_active());
    let Some(main) = main else {
        return Move::Leave;
    };
    match target {
        // A rebuild serves its unfinished collection when no other collection exists.
        Some(target) if all.iter().filter(written).any(|c| c.name == target) => Move::Leave,
        Some(target) if !all.iter().any(|c| c.name == target) => Move::Refuse {
            target,
            wanted: &main.name,
        },
        _ => Move::Point(&main.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collection(name: &str, version: &str, state: Lifecycle) -> CollectionRow {
        CollectionRow {
            name: name.into(),
            alias: "notes".into(),
            version: version.into(),
            state,
        }
    }

    fn some() -> Vec<CollectionRow> {
        vec![
            collection("old", "v1", Lifecycle::Retired),
            collection("main", "v1", Lifecycle::Active),
            collection("filling", "v1", Lifecycle::Building),
            collection("next", "v2", Lifecycle::Active),
        ]
    }

    #[test]
    fn an_alias_at_a_collection_that_is_written_is_left_alone() {
        for target in ["main", "filling"] {
            assert_eq!(decide(Some(target), "v1", &some()), Move::Leave);
        }
    }

    #[test]
    fn an_alias_at_another_registered_collection_is_pointed_back() {
        for target in ["old", "next"] {
            assert_eq!(decide(Some(target), "v1", &some()), Move::Point("main"));
        }
        assert_eq!(decide(Some("main"), "v2", &some()), Move::Point("next"));
    }

    #[test]
    fn an_alias_at_nothing_is_never_pointed_at_what_is_being_filled() {
        assert_eq!(decide(None, "v1", &some()), Move::Point("main"));
    }

    #[test]
    fn an_alias_at_an_unregistered_collection_is_refused() {
        assert_eq!(
            decide(Some("theirs"), "v1", &some()),
            Move::Refuse {
                target: "theirs",
                wanted: "main"
            }
        );
    }

    #[test]
    fn without_a_collection_there_is_nothing_to_do() {
        assert_eq!(decide(Some("theirs"), "v1", &[]), Move::Leave);
    }
}
