//! Embedding versions and the collections that hold them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::{CollectionRow, EVERY_NOTE, Store, StoreError, schema};

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
pub struct RegisteredVersion {
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

/// How far a worker's own verify has come.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Swept {
    /// Every chunk and point up to this id is compared.
    pub chunks_upto: Uuid,
    /// Every note up to this id is compared.
    pub notes_upto: Uuid,
}

/// A worker's own verify that has begun.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BegunSweep {
    /// Each gets its own: with it the worker records how far it has come.
    pub number: i64,
    /// Where it begins, or goes on.
    pub from: Swept,
    /// Whether it was demanded: something may be wrong now.
    pub is_demanded: bool,
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

impl Store {
    /// All versions: the active one first, then those being built, then the retired
    /// ones, the latest first.
    pub async fn versions(&self) -> Result<Vec<RegisteredVersion>, StoreError> {
        self.answered(1, versions(&self.pool)).await
    }

    /// The version of this name.
    pub async fn version(&self, name: &str) -> Result<Option<RegisteredVersion>, StoreError> {
        let all = self.versions().await?;
        Ok(all.into_iter().find(|v| v.version.name == name))
    }

    /// The version that is served, if any has been yet.
    pub async fn active_version(&self) -> Result<Option<Version>, StoreError> {
        self.answered(1, active_version(&self.pool)).await
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

    /// Adds the settings that `version` is registered without: an older ELF did not know
    /// them.
    pub async fn record_settings(&self, version: &Version) -> Result<(), StoreError> {
        let Version { name, settings, .. } = version;
        let record = sqlx::query_file!("sql/queries/record_settings.sql", name, settings);
        self.answered(1, record.execute(&self.pool)).await?;
        Ok(())
    }

    /// Puts every note into the outbox for `version`, and every one that is gone while
    /// its points may be there still, unless that is done already: it is, once, for
    /// each time that a version begins to be kept in step. Returns how many.
    pub async fn enqueue_version(&self, version: &str) -> Result<u64, StoreError> {
        let work = async {
            let done = sqlx::query_file!("sql/queries/enqueue_version.sql", version, false)
                .execute(&self.pool)
                .await?;
            Ok::<_, StoreError>(done.rows_affected())
        };
        self.answered(EVERY_NOTE, work).await
    }

    /// [`Self::enqueue_version`] whether it is done already or not: for a collection
    /// that was lost.
    pub async fn enqueue_version_again(&self, version: &str) -> Result<u64, StoreError> {
        let work = async {
            let done = sqlx::query_file!("sql/queries/enqueue_version.sql", version, true)
                .execute(&self.pool)
                .await?;
            Ok::<_, StoreError>(done.rows_affected())
        };
        self.answered(EVERY_NOTE, work).await
    }

    /// Where a worker's own verify of `version` begins, if it is time for one: once in
    /// `interval` over all workers, when one was demanded, or where its worker died. For
    /// `None` as interval, only when demanded. Asking begins it, under a lease.
    pub async fn begin_sweep(
        &self,
        version: &str,
        interval: Option<Duration>,
        lease: Duration,
    ) -> Result<Option<BegunSweep>, StoreError> {
        let begun = sqlx::query_file!(
            "sql/queries/begin_sweep.sql",
            version,
            interval.map(|interval| interval.as_secs_f64()) as _,
            lease.as_secs_f64()
        )
        .fetch_optional(&self.pool);
        let begun = self.answered(1, begun).await?;
        Ok(begun.map(|row| BegunSweep {
            number: row.number,
            from: Swept {
                chunks_upto: row.chunks_upto,
                notes_upto: row.notes_upto,
            },
            is_demanded: row.is_demanded,
        }))
    }

    /// Records how far a worker's own verify has come, and renews its lease.
    pub async fn keep_sweep(
        &self,
        version: &str,
        number: i64,
        swept: Swept,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let kept = sqlx::query_file!(
            "sql/queries/keep_sweep.sql",
            version,
            swept.chunks_upto,
            swept.notes_upto,
            lease.as_secs_f64(),
            number
        )
        .execute(&self.pool);
        self.answered(1, kept).await?;
        Ok(())
    }

    /// Records that a worker's own verify has come to the end.
    pub async fn end_sweep(&self, version: &str, number: i64) -> Result<(), StoreError> {
        let ended =
            sqlx::query_file!("sql/queries/end_sweep.sql", version, number).execute(&self.pool);
        self.answered(1, ended).await?;
        Ok(())
    }

    /// Has a worker verify and repair the whole index as soon as it can, without waiting
    /// for the interval.
    pub async fn demand_sweep(&self, version: &str) -> Result<(), StoreError> {
        let demanded =
            sqlx::query_file!("sql/queries/demand_sweep.sql", version).execute(&self.pool);
        self.answered(1, demanded).await?;
        Ok(())
    }

    /// Whether this is another Postgres than workers last saw, by system identifier and
    /// timeline: one that was promoted or restored. Then it has demanded a verify of each
    /// version. A service that tells neither is taken for the same.
    pub async fn is_another_server(&self) -> Result<bool, StoreError> {
        let seen = sqlx::query_file!("sql/queries/see_server.sql").fetch_optional(&self.pool);
        match self.answered(1, seen).await {
            Err(StoreError::Unavailable(reason)) => Err(StoreError::Unavailable(reason)),
            Err(error) => {
                tracing::debug!(%error, "Postgres does not say which server it is");
                Ok(false)
            }
            Ok(seen) => Ok(seen.is_some()),
        }
    }

    /// The collections that are written for `version`: its active one first, then
    /// those that a rebuild is filling.
    pub async fn collections(&self, version: &str) -> Result<Vec<CollectionRow>, StoreError> {
        self.answered(1, collections(&self.pool, version)).await
    }

    /// The highest number that a collection of this database ever had.
    pub async fn last_collection_number(&self) -> Result<i64, StoreError> {
        self.answered(1, last_collection_number(&self.pool)).await
    }

    /// Registers the first collection of `version` as `<alias>__<n>` with a number that no
    /// collection had before, and returns what is registered: another worker's, when that was
    /// there before.
    pub async fn register_first_collection(
        &self,
        version: &str,
        alias: &str,
    ) -> Result<CollectionRow, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            schema::lock_setup(&mut tx).await?;
            if let Some(first) = collections(&mut *tx, version).await?.into_iter().next() {
                return Ok(first);
            }
            let n = 1 + last_collection_number(&mut *tx).await?;
            let name = format!("{alias}__{n}");
            sqlx::query_file!(
                "sql/queries/register_collection.sql",
                &name,
                alias,
                version,
                "active"
            )
            .fetch_optional(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(CollectionRow {
                name,
                alias: alias.into(),
                version: version.into(),
                state: "active".into(),
            })
        };
        self.answered(3, work).await
    }
}

async fn last_collection_number(on: impl PgExecutor<'_>) -> Result<i64, StoreError> {
    let last = sqlx::query_file_scalar!("sql/queries/last_collection_number.sql");
    Ok(last.fetch_one(on).await?)
}

pub(super) async fn versions(
    on: impl PgExecutor<'_>,
) -> Result<Vec<RegisteredVersion>, StoreError> {
    let rows = sqlx::query_file!("sql/queries/versions.sql")
        .fetch_all(on)
        .await?;
    let registered = rows.into_iter().map(|row| RegisteredVersion {
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

async fn collections(
    on: impl PgExecutor<'_>,
    version: &str,
) -> Result<Vec<CollectionRow>, StoreError> {
    let rows = sqlx::query_file_as!(CollectionRow, "sql/queries/collections.sql", version)
        .fetch_all(on)
        .await?;
    Ok(rows)
}
