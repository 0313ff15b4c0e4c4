//! Embedding versions: ELF registers, builds, serves, retires and drops them.

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Map;
use sqlx::{PgExecutor, Postgres};
use uuid::Uuid;

use super::collections::register_collection;
use super::{JobLease, LOCKED_PAUSE, Lifecycle, Limit, Store, StoreError, Transaction};

/// Rows that one statement deletes. The limit keeps each transaction short.
const DROP_ROWS: i64 = 5_000;

/// An embedding version, registered or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The embedding version's name.
    pub name: String,
    /// Floats in a vector.
    pub dim: usize,
    /// All settings that shape a vector, by name.
    pub settings: serde_json::Value,
}

/// A row of `index_versions`.
#[derive(Debug, Clone, PartialEq)]
pub struct RegisteredVersion {
    /// Its name and what shapes its vectors.
    pub version: Version,
    /// Whether it is built, served or kept.
    pub state: Lifecycle,
    /// When its state last changed.
    pub state_since: DateTime<Utc>,
    /// Whether every note has been enqueued for it since it was last registered or resumed; see
    /// [`Store::enqueue_version`].
    pub enqueued: bool,
}

impl Store {
    /// All versions: the active one, then those that are built, then the retired ones, the latest
    /// first.
    pub async fn versions(&self) -> Result<Vec<RegisteredVersion>, StoreError> {
        self.answered(Limit::Statement, versions(&self.pool)).await
    }

    /// The version of this name.
    pub async fn version(&self, name: &str) -> Result<Option<RegisteredVersion>, StoreError> {
        let all = self.versions().await?;
        Ok(all.into_iter().find(|v| v.version.name == name))
    }

    /// The active version; `None` before the first one is registered.
    pub async fn active_version(&self) -> Result<Option<Version>, StoreError> {
        self.answered(Limit::Statement, active_version(&self.pool))
            .await
    }

    /// Registers the first version of a database. Returns the active one, which is another
    /// worker's if that worker was faster.
    pub async fn register_first_version(&self, version: &Version) -> Result<Version, StoreError> {
        let mut tx = self.begin().await?;
        self.lock_setup(&mut tx).await?;
        if let Some(active) = active_version(&mut *tx).await? {
            return Ok(active);
        }
        // `sql/tables/memory_notes.sql` has enqueued every note, without a version.
        register(&mut *tx, version, Lifecycle::Active, true).await?;
        tx.commit().await?;
        Ok(version.clone())
    }

    /// Enqueues for `version` every note, and every deleted note that may still have points. It
    /// does so once after each time that the version was registered or resumed, and otherwise
    /// nothing. Returns how many.
    pub async fn enqueue_version(&self, version: &str) -> Result<u64, StoreError> {
        self.enqueue_all(version, false).await
    }

    /// [`Self::enqueue_version`] even if it was done before, to fill a lost collection.
    pub async fn enqueue_version_again(&self, version: &str) -> Result<u64, StoreError> {
        self.enqueue_all(version, true).await
    }

    async fn enqueue_all(&self, version: &str, again: bool) -> Result<u64, StoreError> {
        let work = async {
            let mut tx = self.begin_long(Limit::EveryNote).await?;
            let done = sqlx::query_file!("sql/queries/enqueue_version.sql", version, again)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(done.rows_affected())
        };
        self.answered(Limit::EveryNote, work).await
    }

    /// Registers `version` as one that is built in `collection`, which exists in the vector
    /// engine. Changes after this commit are enqueued for it too; for earlier changes there is
    /// [`Store::enqueue_version`].
    pub async fn begin_version(
        &self,
        job: &JobLease,
        version: &Version,
        collection: &str,
        alias: &str,
    ) -> Result<(), StoreError> {
        let mut tx = self.begin_step(job).await?;
        register(&mut *tx, version, Lifecycle::Building, false).await?;
        register_collection(&mut tx, collection, alias, &version.name, Lifecycle::Active).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Sets a retired version to `building`. It keeps its chunks and vectors, and workers bring
    /// it up to date.
    pub async fn resume_version(&self, job: &JobLease, version: &str) -> Result<(), StoreError> {
        let mut tx = self.begin_step(job).await?;
        sqlx::query!(
            "update index_versions
                set state = 'building', state_since = now(), enqueued = false
              where embedding_version = $1 and state = 'retired'",
            version
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// Whether the outbox has no row for `version`, except dead letters and pending rows that are
    /// not due yet.
    pub async fn is_caught_up(&self, version: &str) -> Result<bool, StoreError> {
        let caught_up = sqlx::query_file_scalar!("sql/queries/caught_up.sql", version)
            .fetch_one(&self.pool)
            .await?;
        Ok(caught_up)
    }

    /// Makes `version` the active one, and retires the one before. Returns `false` and changes
    /// nothing if `version` is not in the state `from` any more. A version that was retired has
    /// missed changes, so every note has to be enqueued for it.
    pub async fn serve_version(
        &self,
        job: &JobLease,
        version: &str,
        from: Lifecycle,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin_step(job).await?;
        // Dead letters without a version belong to the old version: the new one has its own.
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

    /// Retires a version and its collections before a drop: workers do not claim or write for it
    /// any more, and no rollback takes it for complete. `false` when it is active.
    pub async fn retire_for_good(&self, job: &JobLease, version: &str) -> Result<bool, StoreError> {
        let mut tx = self.begin_step(job).await?;
        let retired = sqlx::query!(
            "update index_versions set state = 'retired', state_since = now()
              where embedding_version = $1 and state <> 'active'",
            version
        )
        .execute(&mut *tx)
        .await?;
        if retired.rows_affected() == 0 {
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

    /// Deletes the rows of a version that [`Self::retire_for_good`] retired, batch by batch, its
    /// row in `index_versions` last. Waits for rows that an application has locked. Returns the number
    /// of chunks. A second call resumes an interrupted one.
    ///
    /// Each batch holds the job and the retired state until it is committed. A process that wakes
    /// after another one has served or built the version deletes nothing of it.
    pub async fn drop_version(&self, job: &JobLease, version: &str) -> Result<u64, StoreError> {
        // The outbox rows and states go first: without them no worker can claim or commit.
        let mut gone = DROP_ROWS as u64;
        while gone == DROP_ROWS as u64 {
            let mut tx = self.begin_drop(job, version).await?;
            let page = sqlx::query_file!("sql/queries/drop_outbox.sql", version, DROP_ROWS);
            gone = page.execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
        }
        let states = |after: Uuid| {
            sqlx::query_file_as!(
                DroppedRow,
                "sql/queries/drop_states.sql",
                version,
                after,
                DROP_ROWS
            )
        };
        self.drop_pages(job, version, states).await?;
        let pooled = |after: Uuid| {
            sqlx::query_file_as!(
                DroppedRow,
                "sql/queries/drop_pooled.sql",
                version,
                after,
                DROP_ROWS
            )
        };
        self.drop_pages(job, version, pooled).await?;
        let chunks = |after: Uuid| {
            sqlx::query_file_as!(
                DroppedRow,
                "sql/queries/drop_chunks.sql",
                version,
                after,
                DROP_ROWS
            )
        };
        let chunks = self.drop_pages(job, version, chunks).await?;
        let mut tx = self.begin_drop(job, version).await?;
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

    /// Deletes page by page what `page` deletes behind an id, and returns how many rows. What another
    /// transaction has locked is left for another walk over all pages.
    async fn drop_pages<'q, F>(
        &self,
        job: &JobLease,
        version: &str,
        page: impl Fn(Uuid) -> Map<'q, Postgres, F, PgArguments>,
    ) -> Result<u64, StoreError>
    where
        F: FnMut(PgRow) -> sqlx::Result<DroppedRow> + Send,
    {
        let mut gone = 0;
        loop {
            let (mut after, mut is_whole) = (Uuid::nil(), true);
            loop {
                let mut tx = self.begin_drop(job, version).await?;
                let rows = page(after).fetch_all(&mut *tx).await?;
                tx.commit().await?;
                let Some(last) = rows.iter().map(|row| row.id).max() else {
                    break;
                };
                after = last;
                is_whole &= rows.iter().all(|row| row.is_gone);
                gone += rows.iter().filter(|row| row.is_gone).count() as u64;
            }
            if is_whole {
                return Ok(gone);
            }
            tokio::time::sleep(LOCKED_PAUSE).await;
        }
    }

    /// Begins a batch of a drop.
    async fn begin_drop(&self, job: &JobLease, version: &str) -> Result<Transaction, StoreError> {
        let mut tx = self.begin_page().await?;
        job.hold(&mut tx).await?;
        let retired = sqlx::query_file!("sql/queries/hold_retired.sql", version);
        match retired.fetch_optional(&mut *tx).await? {
            Some(_) => Ok(tx),
            // Only the holder of the job changes the state.
            None => Err(StoreError::JobLost),
        }
    }
}

/// A row of a page, and whether it was deleted.
struct DroppedRow {
    id: Uuid,
    is_gone: bool,
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
