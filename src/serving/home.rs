//! The index that belongs to the database. Another folder, another server or a copied database would
//! make a second index without a word, or write into another database's.

use uuid::Uuid;

use super::{Serving, ServingError};
use crate::index::{Filter, IndexPlace};
use crate::store::{Database, Depth, IndexHome};

/// Chunks of the database that are looked for in an index.
const SAMPLE: usize = 256;

/// Checks that the engine has the index of this database, or may have it. For everything that writes.
pub async fn check_home(serving: &Serving) -> Result<(), ServingError> {
    match look(serving).await? {
        Home::Same | Home::New => Ok(()),
        Home::Elsewhere(why) | Home::Copied(why) => Err(ServingError::Mismatch(why)),
    }
}

/// Records where the index is: after the first start, and when it has moved or was lost. The engine has
/// its collection by now.
pub async fn record_home(serving: &Serving) -> Result<(), ServingError> {
    match look(serving).await? {
        Home::New => record(serving).await,
        Home::Same | Home::Elsewhere(_) | Home::Copied(_) => Ok(()),
    }
}

/// Checks that a search finds the notes of this database in this engine, as far as the engine answers.
pub async fn check_home_to_search(serving: &Serving) -> Result<(), ServingError> {
    match look(serving).await {
        Ok(Home::Elsewhere(why)) => return Err(ServingError::Mismatch(why)),
        Ok(Home::Copied(why)) => tracing::warn!("answers may be old: {why}"),
        Ok(Home::Same | Home::New) | Err(_) => {}
    }
    Ok(())
}

/// What is wrong with the index of this engine, for commands that only report.
pub async fn home_problem(serving: &Serving) -> Result<Option<String>, ServingError> {
    match look(serving).await? {
        Home::Same | Home::New => Ok(None),
        Home::Elsewhere(why) | Home::Copied(why) => Ok(Some(why)),
    }
}

/// Takes over the index of the database that this one was copied from: an operator asks for a repair.
pub async fn adopt_copy(serving: &Serving) -> Result<(), ServingError> {
    if let Home::Copied(_) = look(serving).await? {
        record(serving).await?;
        tracing::warn!("database was copied or restored, its index is taken over");
    }
    Ok(())
}

/// Makes this engine the one that has the index: a rebuild fills it. What the engine has under the
/// alias may be another database's, so an operator has to say that it is not.
pub async fn move_home(serving: &Serving, take_alias: bool) -> Result<(), ServingError> {
    match look(serving).await? {
        Home::Same => return Ok(()),
        Home::New => return record(serving).await,
        Home::Elsewhere(_) | Home::Copied(_) => {}
    }
    let index = serving.index.place();
    if !take_alias && serving.index.resolve(&serving.alias).await?.is_some() {
        return Err(ServingError::Mismatch(format!(
            "{} has the alias {:?} already, and this database does not know that it is its own: if \
             no other database uses the alias, run `elf rebuild --take-alias`; else set \
             storage.qdrant.url to another engine",
            index.place, serving.alias
        )));
    }
    record(serving).await?;
    tracing::warn!(
        place = index.place,
        "index moved, the one before is left alone"
    );
    Ok(())
}

async fn record(serving: &Serving) -> Result<(), ServingError> {
    let index = serving.index.place();
    serving
        .store
        .record_index_home(&index.place, index.id)
        .await?;
    tracing::info!(place = index.place, "index of this database recorded");
    Ok(())
}

async fn look(serving: &Serving) -> Result<Home, ServingError> {
    let Serving { store, index, .. } = serving;
    let Some(recorded) = store.index_home().await? else {
        return Ok(Home::New);
    };
    let place = index.place();
    let database = store.this_database().await?;
    // Nothing to look for if everything is as it was.
    let found = match is_at(&recorded, &place) && recorded.owner.is(&database) {
        true => Found::Own,
        false => find(serving).await?,
    };
    Ok(decide(&recorded, &place, &database, found))
}

/// What the engine has under the name of the collection that is served. Every database calls its first
/// one the same, so the name is no proof: a point of this database is.
async fn find(serving: &Serving) -> Result<Found, ServingError> {
    let Serving { store, index, .. } = serving;
    let Some(active) = store.active_version().await? else {
        return Ok(Found::Nothing);
    };
    let written = store.collections(&active.name).await?;
    let Some(name) = written.first().map(|main| &*main.name) else {
        return Ok(Found::Nothing);
    };
    if index.collection(name).await?.is_none() {
        return Ok(Found::Nothing);
    }
    let chunks = store
        .live_chunks(
            &active.name,
            Uuid::nil(),
            Uuid::max(),
            SAMPLE,
            0,
            Depth::Payload,
        )
        .await?;
    let is_empty = index.count(name, &Filter::default()).await? == 0;
    match (is_empty, chunks.is_empty()) {
        (true, true) => return Ok(Found::Own),
        (true, false) => return Ok(Found::Nothing),
        (false, _) => {}
    }
    let own = Filter {
        chunk_ids: Some(chunks.iter().map(|chunk| chunk.chunk_id).collect()),
        ..Filter::default()
    };
    Ok(match index.count(name, &own).await? {
        0 => Found::Foreign,
        _ => Found::Own,
    })
}

/// The collection that is served, as an engine has it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Found {
    /// None of its name, or an empty one.
    Nothing,
    /// With points, and none that it should have.
    Foreign,
    /// With points of this database, or as empty as it should be.
    Own,
}

#[derive(Debug, PartialEq)]
enum Home {
    /// The one that is recorded.
    Same,
    /// To be recorded: the first, one that has moved, or an empty one in the place of the lost one.
    New,
    /// Another one than recorded.
    Elsewhere(String),
    /// That of the database that this one was copied from.
    Copied(String),
}

fn decide(recorded: &IndexHome, found: &IndexPlace, database: &Database, served: Found) -> Home {
    let IndexHome { place, id, owner } = recorded;
    let is_moved = match (id, &found.id) {
        (Some(recorded), Some(found)) => recorded == found,
        // A server has no id; it may have another name now.
        (None, None) => served == Found::Own,
        _ => false,
    };
    let is_lost = *place == found.place && served == Found::Nothing;
    if !is_at(recorded, found) && !is_moved && !is_lost {
        return Home::Elsewhere(format!(
            "the index of this database is in {place}, and storage.qdrant.url names {}, which does not \
             have it: put the setting back, or run `elf rebuild`, which fills an index there from \
             Postgres without an embedding call",
            found.place
        ));
    }
    if !owner.is(database) {
        return Home::Copied(format!(
            "this database was copied or restored, and the index in {place} belongs to the database \
             before it. If this one takes its place, stop the workers of the other and run \
             `elf verify --repair`. If it is a copy, give it an index of its own: set \
             storage.qdrant.url to another engine and run `elf rebuild`"
        ));
    }
    match is_at(recorded, found) {
        true => Home::Same,
        false => Home::New,
    }
}

fn is_at(recorded: &IndexHome, found: &IndexPlace) -> bool {
    (&recorded.place, recorded.id) == (&found.place, found.id)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn place(place: &str, id: Option<u128>) -> IndexPlace {
        IndexPlace {
            place: place.into(),
            id: id.map(Uuid::from_u128),
        }
    }

    fn home(at: &IndexPlace, owner: Database) -> IndexHome {
        IndexHome {
            place: at.place.clone(),
            id: at.id,
            owner,
        }
    }

    fn decided(recorded: IndexPlace, found: &IndexPlace, served: Found) -> Home {
        let owner = Database::new("5", Some("server"));
        let recorded = home(&recorded, owner.clone());
        decide(&recorded, found, &owner, served)
    }

    #[test]
    fn a_folder_is_known_by_its_id_wherever_it_is() {
        let (here, there) = (place("a", Some(1)), place("b", Some(1)));
        assert_eq!(
            decided(here.clone(), &there, Found::Own),
            Home::New,
            "moved"
        );
        let other = place("b", Some(2));
        for served in [Found::Nothing, Found::Foreign, Found::Own] {
            let found = decided(here.clone(), &other, served);
            assert!(matches!(found, Home::Elsewhere(_)), "{found:?}");
        }
        let lost = place("a", Some(2));
        assert_eq!(
            decided(here.clone(), &lost, Found::Nothing),
            Home::New,
            "lost"
        );
        let replaced = decided(here, &lost, Found::Foreign);
        assert!(matches!(replaced, Home::Elsewhere(_)), "{replaced:?}");
    }

    #[test]
    fn a_server_is_known_by_what_it_has() {
        let (old, new) = (place("http://a", None), place("http://b", None));
        let renamed = decided(old.clone(), &new, Found::Own);
        assert_eq!(renamed, Home::New, "another name");
        for served in [Found::Nothing, Found::Foreign] {
            let other = decided(old.clone(), &new, served);
            assert!(matches!(other, Home::Elsewhere(_)), "{other:?}");
        }
        assert_eq!(decided(old.clone(), &old, Found::Own), Home::Same);
        let folder = decided(old, &place("c", Some(3)), Found::Own);
        assert!(matches!(folder, Home::Elsewhere(_)), "{folder:?}");
    }

    #[test]
    fn a_copy_of_the_database_is_another_database() {
        let here = place("http://a", None);
        let recorded = |owner| home(&here, owner);
        let this = Database::new("5", Some("server"));
        for owner in [
            Database::new("6", Some("server")),
            Database::new("5", Some("other")),
        ] {
            let found = decide(&recorded(owner), &here, &this, Found::Own);
            assert!(matches!(found, Home::Copied(_)), "{found:?}");
        }
        let hidden = decide(
            &recorded(Database::new("5", None)),
            &here,
            &this,
            Found::Own,
        );
        assert_eq!(hidden, Home::Same);
    }
}
