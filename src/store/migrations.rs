//! Migrations: they change the schema while applications and workers use it.
//!
//! A migration runs in one transaction under a `lock_timeout`. One that begins with
//! `-- no-transaction` is a single statement outside of any: `create index concurrently`, or
//! a `do` block that commits after every batch of a long data change.
//!
//! A new migration says whether older programs may run with it: either the comment
//! `-- oldest program: unchanged`, or `update elf_schema set oldest_program = N`. After it, run
//! `make sqlx`, and add a row to the tables in `sql/README.md` and `docs/operations.md`.

use std::borrow::Cow;
use std::convert::Infallible;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, Migrator};
use sqlx::{AssertSqlSafe, PgConnection};

use super::schema::{
    MIGRATIONS_TABLE, applied, check_compatible, check_encoding, check_notes_table,
    check_same_build, migrator,
};
use super::{Store, StoreError};
use crate::backoff;

/// An application's statement on a table waits behind a migration that waits for the same
/// table. So a migration leaves the lock queue after this time, and tries again later.
const LOCK_TIMEOUT: &str = "1s";

/// Pauses between two tries for a lock. Meanwhile applications can use the table.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How often to look which sessions block a migration. Shorter than [`LOCK_TIMEOUT`], so that
/// it happens while the migration waits.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// SQLSTATE of a lock timeout, and of a deadlock.
const NO_LOCK: [&str; 2] = ["55P03", "40P01"];

impl Store {
    /// Applies the missing migrations and returns how many. It is safe to run again, and in
    /// several processes at once.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        self.apply(&migrator()).await
    }

    /// Applies those of `migrator` that are not applied yet.
    ///
    /// It has no time limit, and logs which sessions block it: an operator watches, and no
    /// application waits behind it for longer than `LOCK_TIMEOUT`.
    pub async fn apply(&self, migrator: &Migrator) -> Result<usize, StoreError> {
        let mut conn = self.pool.acquire().await?;
        let pending = pending(&mut conn, migrator).await?;
        check_encoding(&mut conn).await?;
        check_notes_table(&mut conn).await?;
        if pending.is_empty() {
            return Ok(0);
        }
        // The settings and the lock below belong to the session and end with it.
        conn.close_on_drop();
        let mut session = conn;
        no_statement_timeout(&mut session).await?;
        self.lock_migrations(&mut session).await?;
        session
            .ensure_migrations_table(MIGRATIONS_TABLE)
            .await
            .map_err(not_migrated)?;
        // Another process may have applied them while this one waited.
        let pending = self::pending(&mut session, migrator).await?;
        for migration in &pending {
            self.apply_when_unlocked(&mut session, migration).await?;
        }
        Ok(pending.len())
    }

    /// Lets one process migrate at a time.
    ///
    /// It polls instead of waiting in Postgres: `create index concurrently` waits for every older
    /// statement. If one of these statements waited for this lock, the two would wait for each
    /// other.
    pub(super) async fn lock_migrations(
        &self,
        session: &mut PgConnection,
    ) -> Result<(), StoreError> {
        for tries in 1.. {
            // The key is arbitrary and ELF's own.
            let is_ours: bool = sqlx::query_scalar("select pg_try_advisory_lock(0x656c6d)")
                .fetch_one(&mut *session)
                .await?;
            if is_ours {
                break;
            }
            if tries == 1 {
                tracing::warn!("waiting for another process that migrates this database");
            }
            pause(tries).await;
        }
        Ok(())
    }

    async fn apply_when_unlocked(
        &self,
        session: &mut PgConnection,
        migration: &Migration,
    ) -> Result<(), StoreError> {
        let timeout = format!("set lock_timeout = '{}'", lock_timeout(migration));
        sqlx::raw_sql(AssertSqlSafe(timeout))
            .execute(&mut *session)
            .await?;
        let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&mut *session)
            .await?;
        for tries in 1.. {
            drop_invalid_index(session, migration).await?;
            let applied = tokio::select! {
                applied = session.apply(MIGRATIONS_TABLE, migration) => applied,
                never = self.log_blockers(pid, migration.version) => match never {},
            };
            match applied {
                Ok(_) => break,
                Err(
                    MigrateError::Execute(ref error) | MigrateError::ExecuteMigration(ref error, _),
                ) if is_locked_out(error) => {
                    tracing::warn!(
                        migration = migration.version,
                        "migration did not get its lock, retrying"
                    );
                }
                Err(error) => {
                    // An invalid unique index still refuses what an application writes.
                    let _ = drop_invalid_index(session, migration).await;
                    return Err(not_migrated(error));
                }
            }
            pause(tries).await;
        }
        Ok(())
    }

    /// Logs which sessions block the session `pid`, whenever these change.
    async fn log_blockers(&self, pid: i32, migration: i64) -> Infallible {
        let mut known = None;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // An error is harmless: only the log message depends on the answer.
            let found = self.blockers(pid).await.unwrap_or_default();
            if found.is_some() && found != known {
                let by = found.as_deref().unwrap_or_default();
                tracing::warn!(migration, by, "migration waiting for a lock");
                known = found;
            }
        }
    }

    async fn blockers(&self, pid: i32) -> Result<Option<String>, sqlx::Error> {
        // Postgres hides the state of other roles' sessions from a role without
        // pg_read_all_stats; then the columns are null.
        sqlx::query_scalar(
            "select string_agg(format('process %s (%s, %s for %s s)', pid,
                                      coalesce(nullif(application_name, ''), usename),
                                      coalesce(state, backend_type),
                                      extract(epoch from clock_timestamp()
                                              - coalesce(xact_start, backend_start))::int), ', '
                               order by pid)
               from pg_stat_activity where pid = any (pg_blocking_pids($1))",
        )
        .bind(pid)
        .fetch_one(&self.control)
        .await
    }
}

/// A migration takes as long as its tables are large, whatever the role's limit is.
pub(super) async fn no_statement_timeout(session: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::raw_sql("set statement_timeout = 0; set idle_in_transaction_session_timeout = 0")
        .execute(session)
        .await?;
    Ok(())
}

/// The migrations of `migrator` that are not applied yet. Fails where this program may not
/// change the schema.
async fn pending(
    conn: &mut PgConnection,
    migrator: &Migrator,
) -> Result<Vec<Migration>, StoreError> {
    let applied = applied(conn).await?;
    check_compatible(conn, migrator, &applied).await?;
    check_same_build(migrator, &applied)?;
    let is_pending = |m: &&Migration| !applied.contains_key(&m.version);
    Ok(migrator.iter().filter(is_pending).cloned().collect())
}

/// How long a migration may wait for one lock, as a value for `lock_timeout`.
fn lock_timeout(migration: &Migration) -> &'static str {
    // `create index concurrently` waits until every older transaction has ended, and no
    // application waits behind it.
    match concurrent_index(migration) {
        Some(_) => "0",
        None => LOCK_TIMEOUT,
    }
}

/// A run that was killed while it built an index concurrently leaves an invalid index, which
/// `if not exists` would accept.
async fn drop_invalid_index(
    session: &mut PgConnection,
    migration: &Migration,
) -> Result<(), StoreError> {
    let Some(index) = concurrent_index(migration) else {
        return Ok(());
    };
    let is_invalid: bool = sqlx::query_scalar(
        "select exists (select from pg_index
                         where indexrelid = to_regclass($1) and not indisvalid)",
    )
    .bind(&*index)
    .fetch_one(&mut *session)
    .await?;
    if is_invalid {
        tracing::info!(%index, "rebuilding an index that an interrupted run left invalid");
        sqlx::raw_sql(AssertSqlSafe(format!("drop index concurrently {index}")))
            .execute(session)
            .await?;
    }
    Ok(())
}

/// The index that a migration builds concurrently.
fn concurrent_index(migration: &Migration) -> Option<Cow<'_, str>> {
    const BEFORE_ITS_NAME: &str = "index concurrently if not exists ";
    let sql = migration.sql.as_str();
    let (_, rest) = sql.split_once(BEFORE_ITS_NAME)?;
    let name = rest.split_whitespace().next()?;
    migration.no_tx.then_some(name.into())
}

/// Whether a statement did not get its locks in time.
pub(super) fn is_locked_out(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(|e| e.code())
        .is_some_and(|code| NO_LOCK.contains(&&*code))
}

pub(super) async fn pause(tries: u32) {
    let pause = backoff::delay(tries, FIRST_PAUSE, LONGEST_PAUSE, rand::random());
    tokio::time::sleep(pause).await;
}

fn not_migrated(error: MigrateError) -> StoreError {
    let reason = error.to_string();
    if let MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) = error {
        match StoreError::from(error) {
            passing if passing.class().may_pass() => return passing,
            StoreError::KeyTaken(detail) => {
                return StoreError::Schema(format!(
                    "notes of memory_notes have the same key: {detail} A key names one note in its \
                     tenant, project, agent and scope: change or clear the keys of the others, then \
                     run `elf migrate` again"
                ));
            }
            _ => {}
        }
    }
    StoreError::Schema(format!(
        "a migration failed and was rolled back: {reason}; ELF needs the right to create tables \
         and functions in the current schema, and the pgvector extension \
         (`create extension vector` as a superuser)"
    ))
}

#[cfg(test)]
mod tests {
    use sqlx::SqlSafeStr;
    use sqlx::migrate::MigrationType;

    use super::*;

    fn migration(sql: &'static str) -> Migration {
        let is_outside = sql.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        Migration::new(1, "".into(), kind, sql.into_sql_str(), is_outside)
    }

    #[test]
    fn only_a_concurrent_index_waits_for_as_long_as_it_takes() {
        let builds = migration(
            "-- no-transaction\ncreate unique index concurrently if not exists a_b_idx\n    on a (b);",
        );
        assert_eq!(concurrent_index(&builds).as_deref(), Some("a_b_idx"));
        assert_eq!(lock_timeout(&builds), "0");
        let fills = migration("-- no-transaction\ndo $$ begin commit; end $$;");
        assert_eq!(concurrent_index(&fills), None);
        assert_eq!(lock_timeout(&fills), LOCK_TIMEOUT);
        assert_eq!(
            lock_timeout(&migration("alter table a add b int;")),
            LOCK_TIMEOUT
        );
    }

    /// Outside of a transaction Postgres accepts one statement only, and `concurrent_index` finds
    /// the name of the index after these words.
    #[test]
    fn a_migration_without_a_transaction_is_one_statement_that_can_be_run_again() {
        for migration in migrator().iter().filter(|m| m.no_tx) {
            let statement: String = migration
                .sql
                .as_str()
                .lines()
                .filter(|line| !line.starts_with("--"))
                .collect::<Vec<_>>()
                .join("\n");
            let is_block = statement.trim_start().starts_with("do ");
            assert!(
                is_block || statement.matches(';').count() == 1,
                "{}: more than one statement",
                migration.version
            );
            assert!(
                is_block || concurrent_index(migration).is_some(),
                "{}: neither a `do` block nor `create index concurrently if not exists`",
                migration.version
            );
        }
    }

    /// A new index disturbs no program. For any other change, its author has to say which
    /// programs it fits.
    #[test]
    fn a_migration_says_which_programs_may_continue() {
        const THE_RECORD_ITSELF: i64 = 8;
        let silent: Vec<i64> = migrator()
            .iter()
            .filter(|m| m.version > THE_RECORD_ITSELF && concurrent_index(m).is_none())
            .filter(|m| {
                let sql = m.sql.as_str();
                !sql.contains("set oldest_program = ")
                    && !sql.contains("-- oldest program: unchanged")
            })
            .map(|m| m.version)
            .collect();
        assert_eq!(silent, Vec::<i64>::new());
    }
}
