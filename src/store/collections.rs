//! The collections of a version, and the progress of a rebuild.

use sqlx::{PgConnection, PgExecutor};
use uuid::Uuid;

use super::{JobLease, Lifecycle, Limit, Store, StoreError, Transaction};

/// A range of chunk ids that a rebuild reads in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Range {
    /// From 0, in the order of ids.
    pub number: i32,
    /// The collection has every chunk of the range up to this id.
    pub cursor: Uuid,
    /// The last id of the range.
    pub upper_bound: Uuid,
    /// Points that the rebuild has written.
    pub points: u64,
    /// Chunks without a vector that the rebuild has met.
    pub missing_vectors: u64,
}

/// A row of `index_collections`.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectionRow {
    /// The collection's name in the engine.
    pub name: String,
    /// The alias through which searches read it.
    pub alias: String,
    /// The version it holds.
    pub version: String,
    /// Whether it is being filled, complete, or only kept.
    pub state: Lifecycle,
}

/// What is served, while it cannot change. Postgres gives it up for a process that hangs.
pub struct HeldServed {
    tx: Transaction,
    /// The version that is served; `None` before the first.
    pub active: Option<String>,
    /// Every registered collection, the oldest first.
    pub collections: Vec<CollectionRow>,
}

impl HeldServed {
    /// An error if something may have changed before this.
    pub async fn release(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

impl CollectionRow {
    /// Whether it has all points of its version.
    pub fn is_active(&self) -> bool {
        self.state == Lifecycle::Active
    }

    /// Whether a rebuild is filling it.
    pub fn is_building(&self) -> bool {
        self.state == Lifecycle::Building
    }

    /// Whether it is kept but not written.
    pub fn is_retired(&self) -> bool {
        self.state == Lifecycle::Retired
    }
}

impl Store {
    /// The collections that workers write for `version`: its active one first, then those that a
    /// rebuild fills.
    pub async fn collections(&self, version: &str) -> Result<Vec<CollectionRow>, StoreError> {
        self.answered(Limit::Statement, collections(&self.pool, version))
            .await
    }

    /// The highest number that a collection of this database ever had.
    pub async fn last_collection_number(&self) -> Result<i64, StoreError> {
        self.answered(Limit::Statement, last_collection_number(&self.pool))
            .await
    }

    /// Registers the first collection of `version` as `<alias>__<n>`, with a number that no
    /// collection had before. Returns the registered one, which is another worker's if that
    /// worker was faster.
    pub async fn register_first_collection(
        &self,
        version: &str,
        alias: &str,
    ) -> Result<CollectionRow, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            self.lock_setup(&mut tx).await?;
            if let Some(first) = collections(&mut *tx, version).await?.into_iter().next() {
                return Ok(first);
            }
            let n = 1 + last_collection_number(&mut *tx).await?;
            let name = format!("{alias}__{n}");
            register_collection(&mut tx, &name, alias, version, Lifecycle::Active).await?;
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

    /// Every registered collection, the oldest first.
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

    /// Registers `collection` as one that a rebuild fills from `ranges`, and retires `lost`, which
    /// the vector engine does not have any more. A worker that commits after this commit writes
    /// to `collection` too.
    pub async fn begin_rebuild(
        &self,
        job: &JobLease,
        collection: &str,
        alias: &str,
        version: &str,
        lost: &[String],
        ranges: &[Range],
    ) -> Result<(), StoreError> {
        let work = async {
            let mut tx = self.begin_step(job).await?;
            self.lock_collections(&mut tx).await?;
            // Their rows stay, because a worker may be creating one of them again now.
            sqlx::query!(
                "update index_collections set state = 'retired' where collection = any ($1)",
                lost
            )
            .execute(&mut *tx)
            .await?;
            register_collection(&mut tx, collection, alias, version, Lifecycle::Building).await?;
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

    /// The ranges of the unfinished rebuild of `collection`; empty when there is no such rebuild.
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

    /// Records that `range` is done up to `cursor`, and adds to its points and missing vectors.
    /// `false` when the rebuild is not registered any more. It needs no lease: what it records is
    /// true of the collection, whoever fills it now.
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

    /// Makes `collection` the active one of its version, and retires those before. Workers do not
    /// write the retired ones after this commit. Returns `false` and changes nothing if
    /// `collection` is not registered any more, because another rebuild has begun.
    pub async fn finish_rebuild(
        &self,
        job: &JobLease,
        collection: &str,
        version: &str,
    ) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = self.begin_step(job).await?;
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

    /// Retires a collection that is not active: workers do not write it after this commit. Returns
    /// whether it is retired.
    ///
    /// That is final: a retired collection never becomes active, and no other one ever gets its name.
    /// So whoever drops it in the vector engine, however late, drops nothing else.
    pub async fn retire_collection(
        &self,
        job: &JobLease,
        collection: &str,
    ) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = self.begin_step(job).await?;
            self.lock_collections(&mut tx).await?;
            let retired = sqlx::query!(
                "update index_collections set state = 'retired'
                  where collection = $1 and state <> 'active'",
                collection
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(retired.rows_affected() > 0)
        };
        self.answered(Limit::Batch, work).await
    }

    /// Removes a retired collection, which the vector engine has dropped. Returns whether it was there.
    pub async fn forget_retired(&self, collection: &str) -> Result<bool, StoreError> {
        self.forget_in_state(collection, Lifecycle::Retired).await
    }

    /// Removes the collection of an unfinished rebuild, which the vector engine has lost: workers do
    /// not write it after this commit. Returns whether it was unfinished.
    pub async fn forget_unfinished(&self, collection: &str) -> Result<bool, StoreError> {
        self.forget_in_state(collection, Lifecycle::Building).await
    }

    async fn forget_in_state(
        &self,
        collection: &str,
        state: Lifecycle,
    ) -> Result<bool, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            self.lock_collections(&mut tx).await?;
            let forgotten = sqlx::query!(
                "delete from index_collections where collection = $1 and state = $2",
                collection,
                state.as_str()
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(forgotten.rows_affected() > 0)
        };
        self.answered(Limit::Batch, work).await
    }

    /// Reads what is served. Until it is released, no other process serves another version or
    /// finishes a rebuild.
    pub async fn hold_served(&self) -> Result<HeldServed, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            // Longer than a request to the vector engine takes.
            sqlx::query("set local idle_in_transaction_session_timeout = '30s'")
                .execute(&mut *tx)
                .await?;
            let active = sqlx::query_scalar!(
                "select embedding_version from index_versions where state = 'active' for share"
            )
            .fetch_optional(&mut *tx)
            .await?;
            let collections = sqlx::query_as!(
                CollectionRow,
                r#"select collection as name, alias, embedding_version as version,
                          state as "state: Lifecycle"
                     from index_collections order by created_at, collection for share"#
            )
            .fetch_all(&mut *tx)
            .await?;
            Ok::<_, StoreError>(HeldServed {
                tx,
                active,
                collections,
            })
        };
        self.answered(Limit::Batch, work).await
    }

    /// Waits for the workers that have read their target collections and not yet committed, and
    /// blocks others until this transaction ends. Row locks are not enough: there may be no row
    /// yet.
    async fn lock_collections(&self, tx: &mut Transaction) -> Result<(), StoreError> {
        sqlx::query("lock table index_collections in exclusive mode")
            .execute(&mut **tx)
            .await?;
        Ok(())
    }
}

pub(super) async fn register_collection(
    on: &mut PgConnection,
    name: &str,
    alias: &str,
    version: &str,
    state: Lifecycle,
) -> Result<(), StoreError> {
    sqlx::query_file!(
        "sql/queries/register_collection.sql",
        name,
        alias,
        version,
        state.as_str()
    )
    .fetch_optional(on)
    .await?;
    Ok(())
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
