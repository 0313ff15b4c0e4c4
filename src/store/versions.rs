//! Embedding versions: registered, built, served, retired, dropped.

use chrono::{DateTime, Utc};
use sqlx::PgExecutor;
use uuid::Uuid;

use super::{Lifecycle, Limit, Store, StoreError, schema};

/// Rows deleted in one transaction, so that none of them lasts long.
const DROP_ROWS: i64 = 5_000;

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
    pub state: Lifecycle,
    /// When it came into this state.
    pub state_since: DateTime<Utc>,
    /// Whether every note has been put into the outbox for it since it is kept in
    /// step; see [`Store::enqueue_version`].
    pub enqueued: bool,
}

impl Store {
    /// All versions: the active one first, then those being built, then the retired
    /// ones, the latest first.
    pub async fn versions(&self) -> Result<Vec<RegisteredVersion>, StoreError> {
        self.answered(Limit::Statement, versions(&self.pool)).await
    }

    /// The version of this name.
    pub async fn version(&self, name: &str) -> Result<Option<RegisteredVersion>, StoreError> {
        let all = self.versions().await?;
        Ok(all.into_iter().find(|v| v.version.name == name))
    }

    /// The version that is served, if any has been yet.
    pub async fn active_version(&self) -> Result<Option<Version>, StoreError> {
        self.answered(Limit::Statement, active_version(&self.pool))
            .await
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
        register(&mut *tx, version, Lifecycle::Active, true).await?;
        tx.commit().await?;
        Ok(version.clone())
    }

    /// Adds the settings that `version` is registered without: an older ELF did not know
    /// them.
    pub async fn record_settings(&self, version: &Version) -> Result<(), StoreError> {
        let Version { name, settings, .. } = version;
        let record = sqlx::query_file!("sql/queries/record_settings.sql", name, settings);
        self.answered(Limit::Statement, record.execute(&self.pool))
            .await?;
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
        self.answered(Limit::EveryNote, work).await
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
        self.answered(Limit::EveryNote, work).await
    }

    /// Registers `version` as one that is built in `collection`, which the engine has
    /// already. From this commit on, what changes is put into the outbox for it too;
    /// what changed before is for [`Store::enqueue_version`].
    pub async fn begin_version(
        &self,
        version: &Version,
        collection: &str,
        alias: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        register(&mut *tx, version, Lifecycle::Building, false).await?;
        sqlx::query_file!(
            "sql/queries/register_collection.sql",
            collection,
            alias,
            &version.name,
            "active"
        )
        .fetch_optional(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Has a retired version built again: it is brought up to date from where it stood.
    pub async fn resume_version(&self, version: &str) -> Result<(), StoreError> {
        sqlx::query!(
            "update index_versions
                set state = 'building', state_since = now(), enqueued = false
              where embedding_version = $1 and state = 'retired'",
            version
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Whether nothing is left to do for `version` but dead letters and rows that are
    /// not due yet and have not failed.
    pub async fn is_caught_up(&self, version: &str) -> Result<bool, StoreError> {
        let caught_up = sqlx::query_file_scalar!("sql/queries/caught_up.sql", version)
            .fetch_one(&self.pool)
            .await?;
        Ok(caught_up)
    }

    /// Makes `version` the one that is served, and retires the one that was. `false`,
    /// and nothing happens, when `version` is not in the state `from` any more. One
    /// that was retired is behind: every note has to be enqueued for it.
    pub async fn serve_version(&self, version: &str, from: Lifecycle) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        // Dead letters without a version are the old one's: the new one has its own.
        sqlx::query!(
            "update indexing_outbox
                set embedding_version = (select embedding_version from index_versions
                                          where state = 'active')
              where embedding_version is null and status = 'DEAD'"
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "update index_versions set state = 'retired', state_since = now()
              where state = 'active'"
        )
        .execute(&mut *tx)
        .await?;
        let served = sqlx::query!(
            "update index_versions
                set state = 'active', state_since = now(), enqueued = enqueued and $2 = 'building'
              where embedding_version = $1 and state = $2",
            version,
            from.as_str()
        )
        .execute(&mut *tx)
        .await?;
        if served.rows_affected() == 0 {
            return Ok(false);
        }
        tx.commit().await?;
        Ok(true)
    }

    /// Retires a version and its collections for good: nothing of it is claimed or
    /// written any more, and no rollback takes it for whole. `false` when it is served.
    pub async fn retire_for_good(&self, version: &str) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let condemned = sqlx::query!(
            "update index_versions set state = 'retired', state_since = now()
              where embedding_version = $1 and state <> 'active'",
            version
        )
        .execute(&mut *tx)
        .await?;
        if condemned.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query!(
            "update index_collections set state = 'retired' where embedding_version = $1",
            version
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Deletes what a condemned version has in Postgres, a batch at a time, the version
    /// itself last. Returns how many chunks that were. Done halfway, it goes on.
    pub async fn drop_version(&self, version: &str) -> Result<u64, StoreError> {
        // Without rows to claim and leases to commit under, no worker writes for it.
        loop {
            let done = sqlx::query_file!("sql/queries/drop_outbox.sql", version, DROP_ROWS)
                .execute(&self.pool)
                .await?;
            if done.rows_affected() < DROP_ROWS as u64 {
                break;
            }
        }
        let mut after = Some(Uuid::nil());
        while let Some(last) = after {
            after =
                sqlx::query_file_scalar!("sql/queries/drop_states.sql", version, last, DROP_ROWS)
                    .fetch_optional(&self.pool)
                    .await?;
        }
        let mut after = Some(Uuid::nil());
        while let Some(last) = after {
            after =
                sqlx::query_file_scalar!("sql/queries/drop_pooled.sql", version, last, DROP_ROWS)
                    .fetch_optional(&self.pool)
                    .await?;
        }
        let mut chunks = 0;
        let mut from = Some(Vec::new());
        while let Some(hash) = from {
            let batch = sqlx::query_file!("sql/queries/drop_chunks.sql", version, &hash, DROP_ROWS)
                .fetch_optional(&self.pool)
                .await?;
            chunks += batch.as_ref().map_or(0, |batch| batch.chunks as u64);
            from = batch.map(|batch| batch.last);
        }
        let mut tx = self.begin().await?;
        sqlx::query!(
            "delete from indexing_outbox where embedding_version = $1",
            version
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "delete from index_collections where embedding_version = $1",
            version
        )
        .execute(&mut *tx)
        .await?;
        sqlx::query!(
            "delete from index_versions where embedding_version = $1 and state = 'retired'",
            version
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(chunks)
    }
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
        state: row.state,
        state_since: row.state_since,
        enqueued: row.enqueued,
    });
    Ok(registered.collect())
}

async fn active_version(on: impl PgExecutor<'_>) -> Result<Option<Version>, StoreError> {
    let first = versions(on).await?.into_iter().next();
    Ok(first
        .filter(|v| v.state == Lifecycle::Active)
        .map(|v| v.version))
}

pub(super) async fn register(
    on: impl PgExecutor<'_>,
    version: &Version,
    state: Lifecycle,
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
