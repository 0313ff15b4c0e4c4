//! The notes of a tenant by a filter: listed, counted and deleted.

use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;

use super::migrations::is_locked_out;
use super::write::{SEVERAL_LIMIT, WRITE_SEVERAL};
use super::{LOCKED_PAUSE, Reach, Store, StoreError, Transaction};

/// Notes that one statement looks at. With a condition on metadata it takes 50 ms.
const LOOKED: usize = 500;

/// Begins a look. Without statistics Postgres would read and sort all notes for each.
const LOOK: &str = "begin isolation level read committed read only; set local statement_timeout = '5s'; \
                    set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off";

/// What a request has come to among the notes of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// The notes that are as wanted, or how many there are.
    pub notes: T,
    /// The id behind which the next request goes on; `None` if there are no more notes.
    pub next: Option<Uuid>,
}

impl Store {
    /// The note that has a key in these labels; `None` if `reach` has none.
    pub async fn note_of_key(
        &self,
        reach: &Reach,
        [project, agent, scope]: [&str; 3],
        key: &str,
    ) -> Result<Option<Uuid>, StoreError> {
        let is_reached = |bound: &Option<String>, label: &str| {
            bound.as_deref().is_none_or(|bound| bound == label)
        };
        if !is_reached(&reach.project_id, project) || !is_reached(&reach.agent_id, agent) {
            return Ok(None);
        }
        let found = sqlx::query_file_scalar!(
            "sql/queries/keyed_note.sql",
            reach.tenant_id,
            project,
            agent,
            scope,
            key
        );
        self.asked("load", found.fetch_optional(&self.pool)).await
    }

    /// Up to `limit` notes of a tenant with ids above `after` that are as `wanted`, in order of their ids. Looks for
    /// them as long as `time`, so there may be fewer.
    pub async fn listed_notes(
        &self,
        wanted: &Value,
        tenant: &str,
        mut after: Uuid,
        limit: usize,
        time: Duration,
    ) -> Result<Listed<Vec<Uuid>>, StoreError> {
        let began = Instant::now();
        let mut notes = Vec::new();
        // Enough if every note is as wanted.
        let mut rows = limit;
        loop {
            let looked = self.look_through(wanted, tenant, after, rows, true).await?;
            notes.extend(looked.notes);
            if notes.len() > limit {
                notes.truncate(limit);
                let next = notes.last().copied();
                return Ok(Listed { notes, next });
            }
            match looked.next {
                Some(next) if notes.len() < limit && began.elapsed() < time => after = next,
                next => return Ok(Listed { notes, next }),
            }
            rows = LOOKED;
        }
    }

    /// Deletes the notes of a tenant with ids above `after` that are as `wanted` and follow no row, as long as `time`, and says how many
    /// they were. With `dry_run` it only counts them.
    pub async fn delete_listed(
        &self,
        wanted: &Value,
        tenant: &str,
        mut after: Uuid,
        time: Duration,
        dry_run: bool,
    ) -> Result<Listed<u64>, StoreError> {
        let began = Instant::now();
        let mut notes = 0;
        loop {
            let page = async {
                let looked = self
                    .look_through(wanted, tenant, after, LOOKED, false)
                    .await?;
                let deleted = match dry_run || looked.notes.is_empty() {
                    true => looked.notes.len() as u64,
                    false => self.delete_page(wanted, &looked.notes).await?,
                };
                Ok((deleted, looked.next))
            };
            let next = match page.await {
                Ok((deleted, next)) => {
                    notes += deleted;
                    next
                }
                // What is deleted is deleted, and the client is told so.
                Err(_) if notes > 0 => Some(after),
                Err(error) => return Err(error),
            };
            match next {
                Some(next) if next != after && began.elapsed() < time => after = next,
                next => return Ok(Listed { notes, next }),
            }
        }
    }

    /// Those of the next `rows` notes of a tenant that are as `wanted`; with `of_rows` also those that follow a row.
    async fn look_through(
        &self,
        wanted: &Value,
        tenant: &str,
        after: Uuid,
        rows: usize,
        of_rows: bool,
    ) -> Result<Listed<Vec<Uuid>>, StoreError> {
        let work = async {
            let mut tx = Transaction::begin(&self.pool, LOOK).await?;
            let looked = sqlx::query_file!(
                "sql/queries/look_through.sql",
                wanted,
                tenant,
                after,
                rows as i64,
                of_rows
            );
            let looked = looked.fetch_all(&mut *tx).await?;
            tx.commit().await?;
            let last = looked.last().map(|row| row.note_id);
            Ok(Listed {
                next: last.filter(|_| looked.len() == rows),
                notes: looked
                    .into_iter()
                    .filter_map(|row| row.is_wanted.then_some(row.note_id))
                    .collect(),
            })
        };
        self.measured("load", work).await
    }

    async fn delete_page(&self, wanted: &Value, notes: &[Uuid]) -> Result<u64, StoreError> {
        let work = async {
            let began = Instant::now();
            loop {
                let mut tx = Transaction::begin(&self.pool, WRITE_SEVERAL).await?;
                let delete = sqlx::query_file!("sql/queries/delete_listed.sql", wanted, notes);
                match delete.execute(&mut *tx).await {
                    Ok(done) => return Ok((tx, done.rows_affected())),
                    Err(error) if is_locked_out(&error) && began.elapsed() < SEVERAL_LIMIT => {
                        tx.rollback().await?;
                        tokio::time::sleep(LOCKED_PAUSE).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        self.write("commit", work).await
    }
}
