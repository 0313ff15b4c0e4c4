//! Migrations beside applications that write and workers that work: the first one, and those of a
//! future program.

use std::time::{Duration, Instant};

use elf::store::{Store, StoreError, migrator};
use sqlx::migrate::{Migrate, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqlSafeStr};

use crate::support::DEADLINE;
use crate::support::database::{Role, notes_table, notes_with_indexes};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::site::Site;
use crate::support::town::Town;

/// The migrations of a future program: this build's, then these.
fn future(statements: &[&'static str]) -> Migrator {
    let mut migrator = migrator();
    for (version, sql) in (9_000..).zip(statements) {
        migrator.migrations.to_mut().push(Migration::new(
            version,
            "a test's".into(),
            MigrationType::Simple,
            sql.into_sql_str(),
            sql.starts_with("-- no-transaction"),
        ));
    }
    migrator
}

/// Columns with and without a constant default, an index, a long change in batches.
const COMPATIBLE: [&str; 5] = [
    "alter table memory_notes add column mood text;",
    "alter table note_index_state add column waits int not null default 0;
     alter table indexing_outbox add column priority int not null default 0;",
    "-- no-transaction
create index concurrently if not exists memory_notes_mood_idx on memory_notes (mood, note_id);",
    "-- no-transaction
do $$
declare
    changed int;
begin
    loop
        update note_index_state set waits = 1
         where (note_id, embedding_version) in (
               select note_id, embedding_version from note_index_state
                where waits = 0 limit 100 for update skip locked);
        get diagnostics changed = row_count;
        commit;
        exit when changed = 0;
    end loop;
end $$;",
    "alter table memory_note_chunks add column language text;",
];

const INCOMPATIBLE: &str = "update elf_schema set oldest_program = 9000;";

async fn execute(db: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

async fn store(site: &Site) -> Store {
    Store::connect(&site.database.url(), 4).await.unwrap()
}

const INSERT: &str = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                      values ('t', 'p', 'a', 's', 'n', 'one more')";

/// Workers of this build run before, during and after a migration to a schema that they do
/// not know, and new workers start on it.
#[tokio::test]
async fn old_and_new_workers_run_side_by_side_during_an_upgrade() {
    let town = Town::start("old_and_new_workers_run_side_by_side").await;
    let (h, mut corpus, _server) = town.into_harness().await;
    h.insert_all(&corpus.texts(300)).await;
    let old = h.work();
    let writing = tokio::spawn({
        let pool = h.pool.clone();
        let texts = corpus.texts(400);
        async move {
            for text in texts {
                let write = sqlx::query(
                    "with new as (insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                                  values ('t', 'p', 'a', 's', 'n', $1) returning note_id)
                     update memory_notes set text = text || ' ' || $1
                      where note_id = (select note_id from memory_notes tablesample system (50) limit 1)",
                );
                write.bind(text).execute(&pool).await.unwrap();
            }
        }
    });
    let upgrade = future(&COMPATIBLE);
    let applied = h.pipeline.serving.store.apply(&upgrade).await.unwrap();
    assert_eq!(applied, COMPATIBLE.len());
    // This build does not know the new schema, and continues to work.
    h.pipeline.serving.store.check_schema().await.unwrap();
    assert_eq!(h.pipeline.serving.store.migrate().await.unwrap(), 0);
    let new = h.work();
    writing.await.unwrap();
    h.insert_all(&corpus.texts(300)).await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    old.stop().await;
    new.stop().await;
    h.drain().await;
    h.compare().await.assert_none();
    assert_eq!(h.count("memory_notes").await, 1_000);

    let site = h.into_site().await;
    site.note("written to a worker that starts on the new schema")
        .await;
    let worked = site.json(&["worker", "--once", "--migrate"]).await;
    assert_eq!((&worked["notes"], &worked["dead"]), (&1.into(), &0.into()));
    Harness::over(site).await.compare().await.assert_none();
}

/// A schema that this build cannot work with: the running worker is not disturbed, and a
/// program that starts says what to do.
#[tokio::test]
async fn a_schema_that_takes_a_newer_program_is_refused_with_what_to_do() {
    let h = Harness::start().await;
    let old = h.work();
    let upgrade = future(&[
        "alter table memory_notes add column mood text;",
        INCOMPATIBLE,
    ]);
    h.pipeline.serving.store.apply(&upgrade).await.unwrap();
    let Err(StoreError::Schema(reason)) = h.pipeline.serving.store.check_schema().await else {
        panic!("it is not refused");
    };
    let known = migrator().iter().map(|m| m.version).max().unwrap();
    assert_eq!(
        reason,
        format!(
            "the database schema (migration 9001) is newer than this elf (migration {known}), and \
             needs an elf that knows migration 9000: upgrade elf"
        )
    );
    h.insert("what the running worker still indexes").await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    old.stop().await;
    // The program that migrated the schema may continue.
    assert_eq!(h.pipeline.serving.store.apply(&upgrade).await.unwrap(), 0);
    let site = h.into_site().await;
    for args in [&["worker", "--once"][..], &["status"], &["migrate"]] {
        site.elf(args).await.exits(78).says(&["upgrade elf"]);
    }
}

/// Several migrations at once, with a concurrent index build. The build waits for every
/// older statement, so the other migrations must have none open.
#[tokio::test]
async fn migrations_with_a_concurrent_index_that_start_at_once_all_succeed() {
    let site = Site::start().await;
    let serving = futures::future::join_all([(); 4].map(|()| store(&site))).await;
    let upgrade = future(&COMPATIBLE);
    let all = serving.iter().map(|store| store.apply(&upgrade));
    let done = tokio::time::timeout(DEADLINE, futures::future::join_all(all)).await;
    let applied: Vec<usize> = done
        .expect("they end")
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(
        applied.iter().sum::<usize>(),
        COMPATIBLE.len(),
        "{applied:?}"
    );
}

/// An application has an open transaction on its notes, and a migration waits for the table.
/// The application's other transactions continue.
#[tokio::test]
async fn an_application_never_waits_behind_a_migration_for_long() {
    let site = Site::empty().await;
    let (mut open, mut other) = (site.connect().await, site.connect().await);
    execute(&mut open, notes_with_indexes()).await;
    let mut transaction = open.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    execute(&mut transaction, INSERT).await;
    let migrating = site.begin(&["migrate", "--json"]);
    let mut longest = Duration::ZERO;
    let mut writes = 0;
    // The migration has asked for the lock, timed out, and asked again.
    while migrating
        .log()
        .matches("migration did not get its lock")
        .count()
        < 2
    {
        let began = Instant::now();
        let write = tokio::time::timeout(DEADLINE, execute(&mut other, INSERT));
        write.await.expect("the application's transaction passes");
        longest = longest.max(began.elapsed());
        writes += 1;
    }
    println!("{writes} writes, the longest took {longest:?}");
    assert!(longest < Duration::from_secs(10), "one waited {longest:?}");
    migrating.says(&format!("process {pid} (")).await;
    transaction.commit().await.unwrap();
    let done = migrating.ended().await.exits(0);
    assert_eq!(done.json()["applied"], 1);
}

/// An application has an open transaction on its notes when ELF first comes. The indexes of the notes are
/// built without making anyone wait.
#[tokio::test]
async fn an_application_writes_while_the_indexes_of_its_notes_are_built() {
    let site = Site::empty().await;
    let (mut open, mut other) = (site.connect().await, site.connect().await);
    execute(&mut open, notes_table()).await;
    let mut transaction = open.begin().await.unwrap();
    execute(&mut transaction, INSERT).await;
    let migrating = site.begin(&["migrate", "--json"]);
    migrating.says("migration 1 is waiting for a lock").await;
    let build = "select query from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    let query: String = sqlx::query_scalar(build)
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert!(query.starts_with("create index concurrently"), "{query}");
    execute(&mut other, &format!("set lock_timeout = '200ms'; {INSERT}")).await;
    transaction.commit().await.unwrap();
    assert_eq!(migrating.ended().await.exits(0).json()["applied"], 1);
    let enqueued = "select count(*) from indexing_outbox";
    let enqueued: i64 = sqlx::query_scalar(enqueued)
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert_eq!(enqueued, 2);
}

/// An invalid index, left by a build that was killed, is not taken for the index.
#[tokio::test]
async fn an_index_that_was_left_invalid_is_built_again() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    execute(&mut db, &format!("{INSERT}; {INSERT}")).await;
    let index =
        "unique index concurrently if not exists memory_notes_text_idx on memory_notes (text)";
    let twice = sqlx::raw_sql(AssertSqlSafe(format!("create {index}")))
        .execute(&mut db)
        .await;
    assert!(twice.is_err(), "two notes have one text");
    let valid =
        "select indisvalid from pg_index where indexrelid = 'memory_notes_text_idx'::regclass";
    let is_valid: bool = sqlx::query_scalar(valid).fetch_one(&mut db).await.unwrap();
    assert!(!is_valid, "the failed build leaves nothing");
    execute(&mut db, "delete from memory_notes").await;
    let upgrade = future(&["-- no-transaction
create unique index concurrently if not exists memory_notes_text_idx on memory_notes (text);"]);
    assert_eq!(store(&site).await.apply(&upgrade).await.unwrap(), 1);
    let is_valid: bool = sqlx::query_scalar(valid).fetch_one(&mut db).await.unwrap();
    assert!(is_valid);
}

/// Any role can take an advisory lock of any key.
#[tokio::test]
async fn advisory_locks_of_another_role_hold_no_migration_and_no_worker_up() {
    let site = Site::empty().await;
    let mut other = site.connect().await;
    // All keys are free to anyone.
    execute(
        &mut other,
        "select pg_advisory_lock(x'656c6d'::bigint), pg_advisory_lock(x'656c66'::bigint);",
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    site.note("The lighthouse is green.").await;
    let worked = site.json(&["worker", "--once", "--migrate"]).await;
    assert_eq!(worked["notes"], 1);
}

/// What a role with the right to read ELF's tables can lock does not hold it up either.
#[tokio::test]
async fn a_role_that_reads_elfs_tables_holds_no_migration_up() {
    let role = Role::create("login").await;
    let site = Site::start().await;
    let mut owner = site.connect().await;
    let grant = format!(
        "grant select on elf_migrations, elf_schema to {}",
        role.name
    );
    execute(&mut owner, &grant).await;
    let mut reader = PgConnection::connect(&site.database.url_as(&role))
        .await
        .unwrap();
    execute(
        &mut reader,
        "begin; lock table elf_migrations, elf_schema in access share mode",
    )
    .await;
    let upgrade = future(&COMPATIBLE);
    let migrated = store(&site).await.apply(&upgrade).await.unwrap();
    assert_eq!(migrated, COMPATIBLE.len());
}

/// A process of ELF that hangs while it migrates is named.
#[tokio::test]
async fn a_migration_that_waits_for_another_one_names_it() {
    let site = Site::empty().await;
    let mut hanging = site.connect().await;
    hanging
        .ensure_migrations_table("elf_migrations")
        .await
        .unwrap();
    execute(
        &mut hanging,
        "set application_name = 'elf on another machine'; begin;
         lock table elf_migrations in share update exclusive mode",
    )
    .await;
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut hanging)
        .await
        .unwrap();
    let migrating = site.begin(&["migrate", "--json"]);
    let said = migrating
        .says("waiting for another process that migrates")
        .await;
    assert!(said.contains(&format!("process {pid} (")), "{said}");
    assert!(said.contains("elf on another machine"), "{said}");
    execute(&mut hanging, "commit").await;
    assert_eq!(migrating.ended().await.exits(0).json()["applied"], 1);
}

/// A migration respects that, whoever set it: services do so when a disk is nearly full.
#[tokio::test]
async fn a_database_that_is_read_only_is_not_migrated_and_says_why() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    let name: String = sqlx::query_scalar("select current_database()")
        .fetch_one(&mut db)
        .await
        .unwrap();
    let set = format!("alter database {name} set default_transaction_read_only = on");
    execute(&mut db, &set).await;
    let refused = site.elf(&["migrate"]).await.exits(1);
    refused.says(&["accepts no writes", "default_transaction_read_only is on"]);
}
