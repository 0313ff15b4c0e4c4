//! Embedding versions and the collections that hold them.

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgExecutor;

use super::{EVERY_NOTE, Registered, Store, StoreError, schema};

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
pub struct Known {
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
    pub async fn versions(&self) -> Result<Vec<Known>, StoreError> {
        self.answered(1, versions(&self.pool)).await
    }

    /// The version of this name.
    pub async fn version(&self, name: &str) -> Result<Option<Known>, StoreError> {
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

    /// Whether it is time for a worker's own verify of `version`: once in `interval`,
    /// over all workers. Asking begins it.
    pub async fn begin_sweep(
        &self,
        version: &str,
        interval: std::time::Duration,
    ) -> Result<bool, StoreError> {
        let begun = sqlx::query_file!(
            "sql/queries/begin_sweep.sql",
            version,
            interval.as_secs_f64()
        )
        .execute(&self.pool);
        Ok(self.answered(1, begun).await?.rows_affected() > 0)
    }

    /// The collections that are written for `version`: its active one first, then
    /// those that a rebuild is filling.
    pub async fn collections(&self, version: &str) -> Result<Vec<Registered>, StoreError> {
        self.answered(1, collections(&self.pool, version)).await
    }

    /// Registers the first collection of `version` as `<alias>__<n>` with
    /// [`next_number`], and returns what is registered: another worker's, when that was
    /// there before.
    pub async fn register_first_collection(
        &self,
        version: &str,
        alias: &str,
    ) -> Result<Registered, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            schema::lock_setup(&mut tx).await?;
            if let Some(first) = collections(&mut *tx, version).await?.into_iter().next() {
                return Ok(first);
            }
            let taken: Vec<String> = sqlx::query_scalar("select collection from index_collections")
                .fetch_all(&mut *tx)
                .await?;
            let n = next_number(alias, taken.iter().map(String::as_str));
            let name = format!("{alias}__{n}");
            sqlx::query_file!("sql/queries/register_collection.sql", &name, alias, version)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(Registered {
                name,
                alias: alias.into(),
                version: version.into(),
                state: "active".into(),
            })
        };
        self.answered(3, work).await
    }
}

/// One more than the highest number that a collection of `alias` has among `names`, so
/// that what follows a collection never has the name of one before it.
pub fn next_number<'n>(alias: &str, names: impl Iterator<Item = &'n str>) -> u32 {
    let number = |name: &str| name.strip_prefix(alias)?.strip_prefix("__")?.parse().ok();
    names.filter_map(number).max().map_or(1, |n: u32| n + 1)
}

pub(super) async fn versions(on: impl PgExecutor<'_>) -> Result<Vec<Known>, StoreError> {
    let rows = sqlx::query_file!("sql/queries/versions.sql")
        .fetch_all(on)
        .await?;
    let registered = rows.into_iter().map(|row| Known {
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
) -> Result<Vec<Registered>, StoreError> {
    let rows = sqlx::query_file_as!(Registered, "sql/queries/collections.sql", version)
        .fetch_all(on)
        .await?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_above_all_that_there_are() {
        assert_eq!(next_number("notes", [].into_iter()), 1);
        let names = ["notes__2", "notes__10", "other__99", "notes__x", "notes"];
        assert_eq!(next_number("notes", names.into_iter()), 11);
    }
}
