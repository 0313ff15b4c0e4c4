//! Locks of other sessions, a standby that does not answer, a full disk: ELF waits, takes no more connections
//! than it may open, and blames no note.

use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use elf::store::Store;
use elf::worker::{Pipeline, Worker};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::support::articles::Articles;
use crate::support::database::TestDatabase;
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::own_postgres::{OwnPostgres, give_to_server};
use crate::support::site::{Running, Site};

/// `storage.postgres.pool_max_conns` if it is not set.
const MAY_OPEN: i64 = 36;

/// Sessions of ELF in the database of `db`, those that match `condition`.
async fn sessions(db: &mut PgConnection, condition: &str) -> i64 {
    let count = format!(
        "select count(*) from pg_stat_activity
          where datname = current_database() and application_name = 'elf' and {condition}"
    );
    sqlx::query_scalar(AssertSqlSafe(count))
        .fetch_one(db)
        .await
        .unwrap()
}

async fn execute(db: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(db)
        .await
        .unwrap();
}

/// Writes notes, each of one chunk.
async fn write_notes(db: &mut PgConnection, count: usize) {
    let insert = format!(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'Note number ' || gen_random_uuid()
           from generate_series(1, {count})"
    );
    execute(db, &insert).await;
}

/// Fails if a note was blamed, or a claim counts as lost.
async fn assert_nothing_is_blamed(db: &mut PgConnection) {
    let blamed: i64 = sqlx::query_scalar(
        "select (select count(*) from indexing_outbox where attempts > 0 or status <> 'PENDING')
              + (select count(*) from note_index_state where claims_lost > 0 or failures > 0)",
    )
    .fetch_one(db)
    .await
    .unwrap();
    assert_eq!(blamed, 0);
}

async fn get(url: &str, path: &str) -> String {
    let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
    answer.text().await.unwrap()
}

/// Waits until `worker` has logged `words` so many times, while it has no more sessions than it may open.
async fn until_logged(site: &Site, worker: &Running, words: &str, times: usize) {
    let most = Cell::new(0);
    eventually(async || {
        let now = sessions(&mut site.connect().await, "true").await;
        most.set(most.get().max(now));
        worker.log().matches(words).count() >= times
    })
    .await;
    assert!(most.get() <= MAY_OPEN, "{} sessions", most.get());
}

/// As an operator's `create index` or a change of a column's type does.
#[tokio::test]
async fn a_worker_behind_a_lock_takes_no_more_connections_than_it_may_open() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let mut application = site.connect().await;
    write_notes(&mut db, 200).await;
    execute(
        &mut application,
        "begin; lock table memory_note_chunks in access exclusive mode",
    )
    .await;
    let worker = site.worker();
    let url = worker.admin().await;
    worker.says("waiting for a lock").await;
    assert!(
        get(&url, "/api/status")
            .await
            .contains("\"on\":\"memory_note_chunks\"")
    );
    until_logged(&site, &worker, "claims paused", 2).await;
    let paused = worker.says("claims paused").await;
    for words in [
        "lock timeout",
        "holds a lock on memory_note_chunks",
        "idle in transaction",
    ] {
        assert!(paused.contains(words), "{paused}");
    }
    let metrics = get(&url, "/metrics").await;
    assert!(metrics.contains("elf_postgres_errors_total{operation=\"commit\",kind=\"locked\"}"));
    assert!(metrics.contains("elf_postgres_lock_waits"));
    let counted = site.elf(&["status"]).await;
    assert_eq!(counted.code, Some(1), "it counts the chunks: {counted:?}");
    counted.says(&[
        "Postgres is unavailable",
        "lock timeout",
        "memory_note_chunks",
    ]);
    // They can be read: the application has no lock on these tables.
    assert_nothing_is_blamed(&mut db).await;
    execute(&mut application, "rollback").await;
    eventually(async || outbox_rows(&site).await == 0).await;
    assert_nothing_is_blamed(&mut db).await;
    worker.stop().await.exits(0);
    Harness::over(site).await.assert_converged().await;
}

async fn outbox_rows(site: &Site) -> i64 {
    sqlx::query_scalar("select count(*) from indexing_outbox")
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap()
}

/// Every table that a worker uses, and the locks that stop it.
#[tokio::test]
async fn a_lock_on_any_table_blames_no_note() {
    let locks = [
        "memory_notes in access exclusive",
        "memory_note_chunks in access exclusive",
        "memory_note_chunks in share",
        "note_chunk_embeddings in access exclusive",
        "note_chunk_embeddings in share",
        "note_embeddings in access exclusive",
        "note_embeddings in share",
        "note_index_state in access exclusive",
        "note_index_state in share",
        "indexing_outbox in access exclusive",
        "indexing_outbox in share",
        "index_collections in access exclusive",
        "index_versions in access exclusive",
    ];
    for some in locks.chunks(4) {
        join_all(some.iter().map(|lock| waits_behind(lock))).await;
    }
}

async fn waits_behind(lock: &str) {
    let h = Harness::start().await;
    let mut db = h.connect().await;
    write_notes(&mut db, 20).await;
    h.drain().await;
    write_notes(&mut db, 20).await;
    let limit = Duration::from_secs(2);
    let mut serving = h.pipeline.serving.clone();
    serving.store = Store::connect_within(&h.database.url(), 10, limit)
        .await
        .unwrap();
    let context = Pipeline {
        serving,
        ..h.pipeline.clone()
    };
    let mut application = h.connect().await;
    execute(&mut application, &format!("begin; lock table {lock} mode")).await;
    let worker = Worker::new(context, &h.config.worker, &h.config.outbox);
    let stop = CancellationToken::new();
    let test = async {
        for _ in 0..3 {
            eventually(async || worker.outage().is_some()).await;
            let paused = worker.outage().unwrap().reason;
            assert!(
                paused.contains("Postgres is unavailable"),
                "{lock}: {paused}"
            );
            eventually(async || worker.outage().is_none() || lock.contains("index_")).await;
        }
        execute(&mut application, "rollback").await;
        eventually(async || h.count("indexing_outbox").await == 0).await;
        stop.cancel();
    };
    tokio::join!(worker.run(stop.clone()), test);
    assert_eq!(worker.totals().failed, 0, "{lock}");
    assert_nothing_is_blamed(&mut db).await;
    h.assert_converged().await;
}

#[tokio::test]
async fn what_is_given_up_ends_in_postgres_and_keeps_its_place_until_then() {
    let h = Harness::start().await;
    let store = Store::connect(&h.database.url(), 5).await.unwrap();
    let mut application = h.connect().await;
    let mut db = h.connect().await;
    let before = sessions(&mut db, "true").await;
    execute(
        &mut application,
        "begin; lock table index_versions in access exclusive mode",
    )
    .await;
    let began = Instant::now();
    for _ in 0..6 {
        let mut asked = Box::pin(store.versions());
        let waits = eventually(async || {
            let mut db = h.connect().await;
            sessions(&mut db, "wait_event_type = 'Lock'").await > 0
        });
        tokio::select! {
            answer = &mut asked => panic!("the table is locked: {answer:?}"),
            () = waits => {}
        }
        drop(asked);
        eventually(async || {
            let mut db = h.connect().await;
            let now = sessions(&mut db, "true").await;
            assert!(now <= before + 5, "{now} sessions");
            sessions(&mut db, "wait_event_type = 'Lock'").await == 0
        })
        .await;
    }
    // Otherwise the lock timeout would have ended them.
    assert!(began.elapsed() < Duration::from_secs(30));
    execute(&mut application, "rollback").await;
    store.versions().await.unwrap();
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_no_statement_behind() {
    let site = Site::start().await;
    let mut application = site.connect().await;
    execute(
        &mut application,
        "begin; lock table memory_notes in access exclusive mode",
    )
    .await;
    let process = site.begin(&["enqueue", "--where-tenant", "t"]);
    let waits = "wait_event_type = 'Lock'";
    eventually(async || sessions(&mut site.connect().await, waits).await > 0).await;
    process.kill().await;
    let killed = Instant::now();
    eventually(async || sessions(&mut site.connect().await, "true").await == 0).await;
    assert!(
        killed.elapsed() < Duration::from_secs(7),
        "before the lock timeout"
    );
}

/// The transactions of ELF are done, and their commits wait until the standby has them.
#[tokio::test]
async fn a_standby_that_does_not_answer_takes_no_more_connections_than_it_may_open() {
    let test = "a_standby_that_does_not_answer_takes_no_more_connections_than_it_may_open";
    let Some(server) = OwnPostgres::start(test) else {
        return;
    };
    let database = TestDatabase::create_on(server.options(), "").await;
    let site = Site::with_database(database).await;
    site.elf(&["migrate"]).await.exits(0);
    let mut db = site.connect().await;
    execute(&mut db, "set synchronous_commit = local").await;
    let worker = site.worker();
    worker.says("worker started").await;
    execute(
        &mut db,
        "alter system set synchronous_standby_names = 'nobody'",
    )
    .await;
    execute(&mut db, "select pg_reload_conf()").await;
    write_notes(&mut db, 200).await;
    until_logged(&site, &worker, "ended a statement", 3).await;
    execute(&mut db, "alter system reset synchronous_standby_names").await;
    execute(&mut db, "select pg_reload_conf()").await;
    eventually(async || outbox_rows(&site).await == 0).await;
    assert_nothing_is_blamed(&mut db).await;
    worker.stop().await.exits(0);
    Harness::over(site).await.assert_converged().await;
}

/// A folder of a few megabytes, in which Postgres can have a tablespace.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(test: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap().keep();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m,mode=0700", "tmpfs"])
            .arg(&folder)
            .status();
        if !mounted.is_ok_and(|status| status.success()) {
            eprintln!("{test}: skipped, this user may not mount a small disk");
            return None;
        }
        give_to_server(&folder);
        Some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[tokio::test]
async fn a_full_disk_blames_no_note() {
    let test = "a_full_disk_blames_no_note";
    let Some(disk) = SmallDisk::mount(test) else {
        return;
    };
    let Some(server) = OwnPostgres::start(test) else {
        return;
    };
    let mut admin = PgConnection::connect_with(&server.options()).await.unwrap();
    let space = format!("create tablespace small location '{}'", disk.0.display());
    execute(&mut admin, &space).await;
    let database = TestDatabase::create_on(server.options(), "tablespace small").await;
    let site = Site::with_database(database).await;
    site.elf(&["migrate"]).await.exits(0);
    let mut db = site.connect().await;
    let articles = Articles::start(&site, &mut db).await;
    write_notes(&mut db, 20).await;
    site.elf(&["worker", "--once"]).await.exits(0);
    write_notes(&mut db, 200).await;
    // Rows that a sync has to find.
    execute(
        &mut db,
        "set session_replication_role = replica;
         insert into articles (shelf, number, owner, body)
         select 'old', n, 'acme', 'Row ' || n || repeat(' and so on', 30) from generate_series(1, 10000) n;
         set session_replication_role = origin;
         create table filler (bytes bytea); alter table filler alter bytes set storage external;
         create table half (like filler including all);
         insert into half select decode(repeat('00', 1 << 20), 'hex') from generate_series(1, 5)",
    )
    .await;
    let is_full = async |db: &mut PgConnection, statement: String| {
        let done = sqlx::raw_sql(AssertSqlSafe(statement)).execute(db).await;
        let error = done.err();
        let code = error
            .as_ref()
            .and_then(|error| error.as_database_error()?.code());
        assert!(
            error.is_none() || code.as_deref() == Some("53100"),
            "{error:?}"
        );
        code.is_some()
    };
    let fill = async |db: &mut PgConnection| {
        for size in [1 << 20, 1 << 12] {
            let fill = format!("insert into filler select decode(repeat('00', {size}), 'hex')");
            while !is_full(db, fill.clone()).await {}
        }
    };
    fill(&mut db).await;
    // A row and its note, or neither.
    let mut refused = 0;
    for n in 0..200 {
        let insert = format!(
            "insert into articles (shelf, number, owner, body) values ('new', {n}, 'acme', 'Row ' || repeat('on ', {n}))"
        );
        refused += i32::from(is_full(&mut db, insert).await);
    }
    assert!(refused > 0, "the disk is not full");
    let notes = "select count(*) from memory_notes where source = 'articles'";
    let sync = async || site.elf(&["source", "sync"]).await;
    sync().await.exits(1).says(&["No space left"]);
    execute(&mut db, "drop table half").await;
    sync().await.exits(1).says(&["No space left"]);
    let synced: i64 = sqlx::query_scalar(notes).fetch_one(&mut db).await.unwrap();
    assert!((2_000..10_000).contains(&synced), "{synced} of 10,000 rows");
    fill(&mut db).await;
    let worker = site.worker();
    until_logged(&site, &worker, "claims paused", 5).await;
    assert!(worker.says("claims paused").await.contains("No space left"));
    assert_nothing_is_blamed(&mut db).await;
    execute(&mut db, "drop table filler").await;
    sync().await.exits(0);
    articles.assert_followed(&mut db).await;
    execute(&mut db, "delete from articles where number > 50").await;
    eventually(async || outbox_rows(&site).await == 0).await;
    assert_nothing_is_blamed(&mut db).await;
    worker.stop().await.exits(0);
    Harness::over(site).await.assert_converged().await;
}
