//! How a version comes and goes: built, served, retired, dropped.

use uuid::Uuid;

use super::{Store, StoreError, Version, VersionState, versions};
use crate::note::TextHash;

/// Rows deleted in one transaction, so that none of them lasts long.
const DROP_ROWS: i64 = 5_000;

impl Store {
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
        versions::register(&mut *tx, version, VersionState::Building, false).await?;
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
    pub async fn serve_version(
        &self,
        version: &str,
        from: VersionState,
    ) -> Result<bool, StoreError> {
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
    pub async fn condemn_version(&self, version: &str) -> Result<bool, StoreError> {
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

    /// The texts of live notes above `after` in order of their ids: as many as have
    /// `max_bytes` together, one at least, `max_notes` at most.
    pub async fn live_texts(
        &self,
        after: Uuid,
        max_notes: usize,
        max_bytes: usize,
    ) -> Result<Vec<(Uuid, String)>, StoreError> {
        let page = sqlx::query_file!(
            "sql/queries/live_texts.sql",
            after,
            max_notes as i64,
            max_bytes as i64
        );
        let rows = self.read_page(page).await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.note_id, row.text))
            .collect())
    }

    /// Those of `hashes` whose text has a vector that serves `version`, which need not
    /// be registered.
    pub async fn known_hashes(
        &self,
        version: &Version,
        hashes: &[TextHash],
    ) -> Result<Vec<TextHash>, StoreError> {
        let hashes: Vec<&[u8]> = hashes.iter().map(|h| &h.0[..]).collect();
        let rows = sqlx::query_file_scalar!(
            "sql/queries/known_hashes.sql",
            &version.settings,
            &hashes as _
        )
        .fetch_all(&self.pool)
        .await?;
        let hash = |row: Vec<u8>| row.try_into().ok().map(TextHash);
        Ok(rows.into_iter().filter_map(hash).collect())
    }
}
