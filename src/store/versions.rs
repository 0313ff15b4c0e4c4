//! Embedding versions and the collections that hold them.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;

use super::{Store, StoreError, schema};

/// An embedding version, whether a database knows it or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The embedding version's name.
    pub name: String,
    /// Floats in a vector.
    pub dim: usize,
    /// What shapes a vector, setting by setting.
    pub settings: serde_json::Value,
}

/// A row of `index_versions`.
#[derive(Debug, Clone, PartialEq)]
pub struct Registered {
    /// What it is.
    pub version: Version,
    /// What is done with it.
    pub state: VersionState,
    /// When it came into this state.
    pub state_since: DateTime<Utc>,
    /// Whether every note has been put into the outbox for it since it is kept in
    /// step; see [`Store::enqueue_version`].
    pub enqueued: bool,
}

/// What is done with a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionState {
    /// Kept in step and not served: a reindex.
    Building,
    /// Kept in step and served.
    Active,
    /// Neither: kept as it was, for a rollback.
    Retired,
}

/// A row of `index_collections`.
#[derive(Debug, Clone, PartialEq)]
pub struct Collection {
    /// The collection's name in the engine.
    pub name: String,
    /// The alias that applications read through.
    pub alias: String,
    /// The version whose vectors it holds.
    pub version: String,
    /// What it is to its version.
    pub state: CollectionState,
}

/// What a collection is to its version, whatever is done with that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectionState {
    /// A rebuild is filling it; workers write to it.
    Building,
    /// It has all of the version; workers write to it. There is one.
    Active,
    /// Kept and not written.
    Retired,
}

impl VersionState {
    /// As Postgres has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Building => "building",
            Self::Active => "active",
            Self::Retired => "retired",
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "building" => Self::Building,
            "active" => Self::Active,
            // The table has a check: this is what is left.
            _ => Self::Retired,
        }
    }
}

impl CollectionState {
    fn parse(text: &str) -> Self {
        match text {
            "building" => Self::Building,
            "active" => Self::Active,
            // The table has a check: this is what is left.
            _ => Self::Retired,
        }
    }
}

impl Store {
    /// All versions: the active one first, then those being built, then the retired
    /// ones, the latest first.
    pub async fn versions(&self) -> Result<Vec<Registered>, StoreError> {
        versions(&self.pool).await
    }

    /// The version of this name.
    pub async fn version(&self, name: &str) -> Result<Option<Registered>, StoreError> {
        let all = self.versions().await?;
        Ok(all.into_iter().find(|v| v.version.name == name))
    }

    /// The version that is served, if any has been yet.
    pub async fn active_version(&self) -> Result<Option<Version>, StoreError> {
        active_version(&self.pool).await
    }

    /// Registers the first version of a database, and returns the active one:
    /// another worker's, when that was there before.
    pub async fn register_first_version(&self, version: &Version) -> Result<Version, StoreError> {
        let mut tx = self.begin().await?;
        schema::lock_setup(&mut tx).await?;
        if let Some(active) = active_version(&mut *tx).await? {
            return Ok(active);
        }
        // The migration has put every note into the outbox, without a version.
        register(&mut *tx, version, VersionState::Active, true).await?;
        tx.commit().await?;
        Ok(version.clone())
    }

    /// Puts every note into the outbox for `version`, and every one that is gone while
    /// its points may be there still, unless that is done already: it is, once, for
    /// each time that a version begins to be kept in step. Returns how many.
    pub async fn enqueue_version(&self, version: &str) -> Result<u64, StoreError> {
        let done = sqlx::query_file!("sql/queries/enqueue_version.sql", version, false)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected())
    }

    /// [`Self::enqueue_version`] whether it is done already or not: for a collection
    /// that was lost.
    pub async fn enqueue_version_again(&self, version: &str) -> Result<u64, StoreError> {
        let done = sqlx::query_file!("sql/queries/enqueue_version.sql", version, true)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected())
    }

    /// The collections that are written for `version`: its active one first, then
    /// those that a rebuild is filling.
    pub async fn collections(&self, version: &str) -> Result<Vec<Collection>, StoreError> {
        collections(&self.pool, version).await
    }

    /// Every collection of every version, in any state, the oldest first.
    pub async fn all_collections(&self) -> Result<Vec<Collection>, StoreError> {
        let rows = sqlx::query_file_as!(CollectionRow, "sql/queries/all_collections.sql")
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.into_iter().map(CollectionRow::read).collect())
    }

    /// Names for a new collection under `alias`: `<alias>__<n>` that are not
    /// registered, the lowest first, for ever. Whether the engine has one of that name
    /// is for the caller to ask.
    pub async fn free_names(
        &self,
        alias: &str,
    ) -> Result<impl Iterator<Item = String> + Send, StoreError> {
        let taken = self.all_collections().await?.into_iter().map(|c| c.name);
        Ok(free_names(alias, taken.collect()))
    }

    /// Registers the first collection of `version` as `<alias>__<n>` with the
    /// lowest free `n`, and returns what is registered: another worker's, when
    /// that was there before.
    pub async fn register_first_collection(
        &self,
        version: &str,
        alias: &str,
    ) -> Result<Collection, StoreError> {
        let mut tx = self.begin().await?;
        schema::lock_setup(&mut tx).await?;
        if let Some(first) = collections(&mut *tx, version).await?.into_iter().next() {
            return Ok(first);
        }
        let taken: Vec<String> = sqlx::query_scalar("select collection from index_collections")
            .fetch_all(&mut *tx)
            .await?;
        let name = free_names(alias, taken.into_iter().collect())
            .next()
            .expect("the numbers do not run out");
        sqlx::query_file!("sql/queries/register_collection.sql", &name, alias, version)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Collection {
            name,
            alias: alias.into(),
            version: version.into(),
            state: CollectionState::Active,
        })
    }

    /// Forgets a collection that a rebuild was filling. What the engine has of it stays.
    pub async fn deregister_building(&self, collection: &str) -> Result<(), StoreError> {
        sqlx::query("delete from index_collections where collection = $1 and state = 'building'")
            .bind(collection)
            .execute(&self.pool)
            .await?;
        Ok(())
    }
}

fn free_names(alias: &str, taken: HashSet<String>) -> impl Iterator<Item = String> + Send + use<> {
    let alias = alias.to_owned();
    (1u64..)
        .map(move |n| format!("{alias}__{n}"))
        .filter(move |name| !taken.contains(name))
}

pub(super) async fn versions(on: impl PgExecutor<'_>) -> Result<Vec<Registered>, StoreError> {
    let rows = sqlx::query_file!("sql/queries/versions.sql")
        .fetch_all(on)
        .await?;
    let registered = rows.into_iter().map(|row| Registered {
        version: Version {
            name: row.embedding_version,
            dim: row.embedding_dim as usize,
            settings: row.settings,
        },
        state: VersionState::parse(&row.state),
        state_since: row.state_since,
        enqueued: row.enqueued,
    });
    Ok(registered.collect())
}

async fn active_version(on: impl PgExecutor<'_>) -> Result<Option<Version>, StoreError> {
    let first = versions(on).await?.into_iter().next();
    Ok(first
        .filter(|v| v.state == VersionState::Active)
        .map(|v| v.version))
}

pub(super) async fn register(
    on: impl PgExecutor<'_>,
    version: &Version,
    state: VersionState,
    enqueued: bool,
) -> Result<(), StoreError> {
    sqlx::query_file!(
        "sql/queries/register_version.sql",
        &version.name,
        version.dim as i32,
        &version.settings,
        state.as_str(),
        enqueued
    )
    .execute(on)
    .await?;
    Ok(())
}

struct CollectionRow {
    collection: String,
    alias: String,
    embedding_version: String,
    state: String,
}

impl CollectionRow {
    fn read(self) -> Collection {
        Collection {
            name: self.collection,
            alias: self.alias,
            version: self.embedding_version,
            state: CollectionState::parse(&self.state),
        }
    }
}

async fn collections(
    on: impl PgExecutor<'_>,
    version: &str,
) -> Result<Vec<Collection>, StoreError> {
    let rows = sqlx::query_file_as!(CollectionRow, "sql/queries/collections.sql", version)
        .fetch_all(on)
        .await?;
    Ok(rows.into_iter().map(CollectionRow::read).collect())
}
