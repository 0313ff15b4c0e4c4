//! Migrations: they change the schema while applications and workers use it.
//!
//! Migration 1 is the schema of a new database ([`tables`]); later ones are files of
//! `sql/migrations/`. A migration runs in one transaction under a `lock_timeout`. One that begins
//! with `-- no-transaction` is a single statement outside of any: `create index concurrently`, or
//! a `do` block that commits after every batch of a long data change.
//!
//! A later migration says whether older programs may run with it: either the comment
//! `-- oldest program: unchanged`, or `update elf_schema set oldest_program = N`. After it, run
//! `make sqlx`, and say in `docs/reference/sql.md` what it locks.

use std::borrow::Cow;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migration, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqlSafeStr};

use super::placement::{self, Purpose};
use super::schema::{
    MIGRATIONS_TABLE, applied, applied_exists, check_compatible, check_encoding, check_notes_table,
    check_same_build, migrator, no_notes_table,
};
use super::setup_lock::{WITHOUT_TIMEOUTS, pid};
use super::vector_extension::ensure_vectors;
use super::{Store, StoreError, tables};
use crate::backoff;

/// An application's statement on a table waits behind a migration that waits for the same
/// table. So a migration leaves the lock queue after this time, and tries again later. Shorter than `deadlock_timeout`
/// of Postgres, a second: in a deadlock it gives way to the application.
pub(super) const LOCK_TIMEOUT: &str = "800ms";

/// What a migration outside of a transaction needs. `create index concurrently` waits until every older
/// transaction has ended, and no application waits behind it.
const SESSION_OF_AN_INDEX: &str = "
set lock_timeout = 0;
set statement_timeout = 0;
set default_transaction_isolation = 'read committed';
select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'";

/// Pauses between two tries for a lock. Meanwhile applications can use the table.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
        let purpose = match pending.is_empty() {
            true => Purpose::Work,
            false => Purpose::Migrate,
        };
        placement::check(&mut conn, purpose).await?;
        check_encoding(&mut conn).await?;
        let has_notes = check_notes_table(&mut conn).await?;
        if pending.is_empty() {
            return match has_notes {
                true => Ok(0),
                false => Err(no_notes_table()),
            };
        }
        check_writable(&mut conn).await?;
        ensure_vectors(&mut conn).await?;
        // What an index needs belongs to the session and ends with it.
        conn.close_on_drop();
        let mut session = conn;
        ensure_migrations_table(&mut session).await?;
        let lock = self.lock_migrations().await?;
        // Another process may have applied them while this one waited.
        let pending = self::pending(&mut session, migrator).await?;
        for migration in &pending {
            if migration.version == tables::FIRST && has_notes {
                for part in tables::of_existing_notes() {
                    self.apply_when_unlocked(&mut session, &part, false).await?;
                }
            }
            self.apply_when_unlocked(&mut session, migration, true)
                .await?;
        }
        lock.release().await?;
        Ok(pending.len())
    }

    /// Applies `migration`, and records it if `is_whole`; otherwise it is a part of one.
    async fn apply_when_unlocked(
        &self,
        session: &mut PgConnection,
        migration: &Migration,
        is_whole: bool,
    ) -> Result<(), StoreError> {
        let migration = with_settings(migration);
        if migration.no_tx {
            // It cannot set them itself. They end with the session.
            sqlx::raw_sql(SESSION_OF_AN_INDEX)
                .execute(&mut *session)
                .await?;
        }
        let pid = pid(session).await?;
        let waiting = format!("migration {} is waiting for a lock", migration.version);
        let mut told = None;
        for tries in 1.. {
            drop_invalid_index(session, &migration).await?;
            let apply = async {
                match is_whole {
                    true => session.apply(MIGRATIONS_TABLE, &migration).await.map(drop),
                    false => {
                        let part = sqlx::raw_sql(migration.sql.clone());
                        Ok(part.execute(&mut *session).await.map(drop)?)
                    }
                }
            };
            let applied = tokio::select! {
                applied = apply => applied,
                never = self.log_blockers(pid, &waiting, &mut told) => match never {},
            };
            match applied {
                Ok(()) => break,
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
                    let _ = drop_invalid_index(session, &migration).await;
                    return Err(not_migrated(error));
                }
            }
            pause(tries).await;
        }
        Ok(())
    }
}

/// A migration that sets in its transaction what it needs. Its checksum stays that of the file.
fn with_settings(migration: &Migration) -> Migration {
    let mut own = migration.clone();
    if !own.no_tx {
        let sql = format!(
            "{WITHOUT_TIMEOUTS} set local lock_timeout = '{LOCK_TIMEOUT}';\n{}",
            own.sql.as_str()
        );
        own.sql = AssertSqlSafe(sql).into_sql_str();
    }
    own
}

/// Makes the table of the applied migrations.
async fn ensure_migrations_table(session: &mut PgConnection) -> Result<(), StoreError> {
    let mut transaction = session.begin().await?;
    sqlx::raw_sql(WITHOUT_TIMEOUTS)
        .execute(&mut *transaction)
        .await?;
    let made = transaction.ensure_migrations_table(MIGRATIONS_TABLE).await;
    match made {
        Ok(()) => transaction.commit().await?,
        Err(error) => {
            transaction.rollback().await?;
            // `if not exists` fails if another process makes it at the same moment.
            if applied_exists(session).await? {
                return Ok(());
            }
            return Err(not_migrated(error));
        }
    }
    Ok(())
}

/// Fails with the reason if the database accepts no writes: a standby, or a database that an operator, or
/// a service whose disk is nearly full, has made read-only. A migration respects that, and may be tried again later.
async fn check_writable(conn: &mut PgConnection) -> Result<(), StoreError> {
    let (is_standby, is_read_only, role): (bool, bool, String) = sqlx::query_as(
        "select pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool, current_user::text",
    )
    .fetch_one(conn)
    .await?;
    if is_standby {
        return Err(StoreError::Unavailable(
            "it is a standby, which accepts no writes: storage.postgres.dsn must lead to the primary".into(),
        ));
    }
    if is_read_only {
        return Err(StoreError::Unavailable(format!(
            "it accepts no writes: default_transaction_read_only is on, for the role {role}, its database or \
             the server (\\drds in psql shows where)"
        )));
    }
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
    use sqlx::migrate::MigrationType;

    use super::*;

    fn migration(sql: &'static str) -> Migration {
        let is_outside = sql.starts_with("-- no-transaction");
        let kind = MigrationType::Simple;
        Migration::new(1, "".into(), kind, sql.into_sql_str(), is_outside)
    }

    #[test]
    fn an_index_that_is_built_concurrently_is_found() {
        let builds = migration(
            "-- no-transaction\ncreate unique index concurrently if not exists a_b_idx\n    on a (b);",
        );
        assert_eq!(concurrent_index(&builds).as_deref(), Some("a_b_idx"));
        let fills = migration("-- no-transaction\ndo $$ begin commit; end $$;");
        assert_eq!(concurrent_index(&fills), None);
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
        let silent: Vec<i64> = migrator()
            .iter()
            .filter(|m| m.version > tables::FIRST && concurrent_index(m).is_none())
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
