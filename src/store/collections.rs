//! The collections that hold a version, and how far a rebuild has filled one.

use sqlx::PgExecutor;
use uuid::Uuid;

use super::{Lifecycle, Limit, Store, StoreError, schema};

/// A range of chunk ids that a rebuild reads in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// Its number.
    pub number: i32,
    /// Every chunk of it up to this id is in the collection.
    pub cursor: Uuid,
    /// Its last possible id.
    pub upper_bound: Uuid,
    /// Points written so far.
    pub points: u64,
    /// Chunks without a vector so far.
    pub missing_vectors: u64,
}

/// A row of `index_collections`.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionRow {
    /// The collection's name in the engine.
    pub name: String,
    /// The alias it is read through.
    pub alias: String,
    /// The version it holds.
    pub version: String,
    /// Whether it is filled, written, or only kept.
    pub state: Lifecycle,
}

impl CollectionRow {
    /// Whether it has all of its version.
    pub fn is_active(&self) -> bool {
        self.state == Lifecycle::Active
    }

    /// Whether a rebuild is filling it.
    pub fn is_building(&self) -> bool {
        self.state == Lifecycle::Building
    }

    /// Whether it is only kept.
    pub fn is_retired(&self) -> bool {
        self.state == Lifecycle::Retired
    }
}

impl Store {
    /// The collections that are written for `version`: its active one first, then
    /// those that a rebuild is filling.
    pub async fn collections(&self, version: &str) -> Result<Vec<CollectionRow>, StoreError> {
        self.answered(Limit::Statement, collections(&self.pool, version))
            .await
    }

    /// The highest number that a collection of this database ever had.
    pub async fn last_collection_number(&self) -> Result<i64, StoreError> {
        self.answered(Limit::Statement, last_collection_number(&self.pool))
            .await
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
                state: Lifecycle::Active,
            })
        };
        self.answered(Limit::Batch, work).await
    }

    /// Every collection that this database knows of, the oldest first.
    pub async fn registered_collections(&self) -> Result<Vec<CollectionRow>, StoreError> {
        let registered = sqlx::query_as!(
            CollectionRow,
            r#"select collection as name, alias, embedding_version as version,
                      state as "state: Lifecycle"
                 from index_collections order by created_at, collection"#
        )
        .fetch_all(&self.pool);
        self.answered(Limit::Statement, registered).await
    }

    /// Registers `collection` as one that a rebuild fills from its ranges, and retires
    /// `lost`, which the engine does not have any more. From this
    /// commit on, every writer that commits writes to it too.
    pub async fn begin_rebuild(
        &self,
        collection: &str,
        alias: &str,
        version: &str,
        lost: &[String],
        ranges: &[Range],
    ) -> Result<(), StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            self.lock_collections(&mut tx).await?;
            // Not forgotten: a worker may be making one of them again this very moment.
            sqlx::query!(
                "update index_collections set state = 'retired' where collection = any ($1)",
                lost
            )
            .execute(&mut *tx)
            .await?;
            sqlx::query_file!(
                "sql/queries/register_collection.sql",
                collection,
                alias,
                version,
                "building"
            )
            .fetch_optional(&mut *tx)
            .await?;
            for range in ranges {
                sqlx::query!(
                    "insert into index_rebuild_ranges (collection, range_no, cursor, upper_bound)
                     values ($1, $2, $3, $4)",
                    collection,
                    range.number,
                    range.cursor,
                    range.upper_bound
                )
                .execute(&mut *tx)
                .await?;
            }
            tx.commit().await?;
            Ok::<_, StoreError>(())
        };
        self.answered(Limit::Batch, work).await
    }

    /// The ranges of an unfinished rebuild; none when there is none of this name.
    pub async fn rebuild_ranges(&self, collection: &str) -> Result<Vec<Range>, StoreError> {
        let work = async {
            let rows = sqlx::query_file!("sql/queries/rebuild_ranges.sql", collection)
                .fetch_all(&self.pool)
                .await?;
            let ranges = rows.into_iter().map(|row| Range {
                number: row.range_no,
                cursor: row.cursor,
                upper_bound: row.upper_bound,
                points: row.points as u64,
                missing_vectors: row.missing_vectors as u64,
            });
            Ok::<_, StoreError>(ranges.collect())
        };
        self.answered(Limit::Statement, work).await
    }

    /// Records that `range` is done up to `cursor`, with so many more points and
    /// missing vectors. `false` when the rebuild is not registered any more.
    pub async fn advance_rebuild(
        &self,
        collection: &str,
        range: i32,
        cursor: Uuid,
        points: u64,
        missing_vectors: u64,
    ) -> Result<bool, StoreError> {
        let advance = sqlx::query_file!(
            "sql/queries/rebuild_advance.sql",
            collection,
            range,
            cursor,
            points as i64,
            missing_vectors as i64
        )
        .execute(&self.pool);
        Ok(self
            .answered(Limit::Statement, advance)
            .await?
            .rows_affected()
            > 0)
    }

    /// Makes `collection` the one that has all of its version, and retires those that
    /// were. From this commit on they are not written any more. `false`, and nothing
    /// happens, when it is not registered any more: somebody has begun anew.
    pub async fn finish_rebuild(
        &self,
        collection: &str,
        version: &str,
    ) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            self.lock_collections(&mut tx).await?;
            let is_ours = sqlx::query_scalar!(
                r#"select exists (select from index_collections
                                   where collection = $1 and state <> 'retired') as "is_ours!""#,
                collection
            )
            .fetch_one(&mut *tx)
            .await?;
            if !is_ours {
                return Ok(false);
            }
            sqlx::query!(
                "update index_collections set state = 'retired'
                  where embedding_version = $2 and state = 'active' and collection <> $1",
                collection,
                version
            )
            .execute(&mut *tx)
            .await?;
            sqlx::query!(
                "update index_collections set state = 'active' where collection = $1",
                collection
            )
            .execute(&mut *tx)
            .await?;
            sqlx::query!(
                "delete from index_rebuild_ranges where collection = $1",
                collection
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(true)
        };
        self.answered(Limit::Batch, work).await
    }

    /// Has a collection kept as it is. From this commit on it is not written any more.
    pub async fn retire_collection(&self, collection: &str) -> Result<(), StoreError> {
        self.change_collections(sqlx::query!(
            "update index_collections set state = 'retired' where collection = $1",
            collection
        ))
        .await
    }

    /// Forgets a collection. From this commit on it is not written any more.
    pub async fn forget_collection(&self, collection: &str) -> Result<(), StoreError> {
        self.change_collections(sqlx::query!(
            "delete from index_collections where collection = $1",
            collection
        ))
        .await
    }

    async fn change_collections(
        &self,
        change: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<(), StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            self.lock_collections(&mut tx).await?;
            change.execute(&mut *tx).await?;
            tx.commit().await?;
            Ok::<_, StoreError>(())
        };
        self.answered(Limit::Batch, work).await
    }

    /// Waits for the writers that have read their target collections and not yet
    /// committed, and holds the next ones up until this transaction ends. A lock on
    /// rows would not do: there may be none yet.
    async fn lock_collections(
        &self,
        tx: &mut sqlx::Transaction<'static, sqlx::Postgres>,
    ) -> Result<(), StoreError> {
        sqlx::query("lock table index_collections in exclusive mode")
            .execute(&mut **tx)
            .await?;
        Ok(())
    }
}

async fn last_collection_number(on: impl PgExecutor<'_>) -> Result<i64, StoreError> {
    let last = sqlx::query_file_scalar!("sql/queries/last_collection_number.sql");
    Ok(last.fetch_one(on).await?)
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
