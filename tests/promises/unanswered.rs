//! Statements and answers that never arrive: ELF times out and continues.

use std::sync::Arc;
use std::time::Duration;

use elf::rebuild;
use elf::serving::{self, Serving};
use elf::store::Store;
use elf::worker::{Pipeline, Worker};
use sqlx::{Connection, PgConnection, Postgres, Transaction};
use tokio_util::sync::CancellationToken;

use crate::support::database::notes_with_indexes;
use crate::support::eventually;
use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::proxy::Proxy;
use crate::support::site::Site;

/// Locks tables against all others, as an application's migration may.
async fn lock<'c>(db: &'c mut PgConnection, statement: &'static str) -> Transaction<'c, Postgres> {
    let mut transaction = db.begin().await.unwrap();
    sqlx::raw_sql(statement)
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction
}

/// Waits until a statement of ELF's with these words in it waits for a lock.
async fn hangs(site: &Site, words: &str) {
    eventually(async || {
        sqlx::query_scalar(
            "select exists (select from pg_stat_activity
                             where datname = current_database() and application_name = 'elf'
                               and wait_event_type = 'Lock' and position($1 in query) > 0)",
        )
        .bind(words)
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap()
    })
    .await;
}

/// A `Store` for the database of `h`, behind a proxy and with a short statement timeout.
async fn store_behind_proxy(h: &Harness, connections: u32) -> (Store, Proxy) {
    let (host, port) = h.database.server();
    let line = Proxy::to(host, port).await;
    let url = h.database.url_through(line.port());
    let limit = Duration::from_secs(4);
    let store = Store::connect_within(&url, connections, limit).await;
    (store.unwrap(), line)
}

#[tokio::test]
async fn a_connection_that_timed_out_makes_room_for_another() {
    let h = Harness::start().await;
    let (store, line) = store_behind_proxy(&h, 1).await;
    let mut application = h.connect().await;
    let table = "lock table index_versions in access exclusive mode";
    let held = lock(&mut application, table).await;
    let test = async {
        hangs(&h, "index_versions").await;
        line.forget();
        held.rollback().await.unwrap();
    };
    let (asked, ()) = tokio::join!(store.versions(), test);
    let error = asked.unwrap_err().to_string();
    assert!(error.contains("no answer within 4 seconds"), "{error}");
    eventually(async || store.ping().await.is_ok()).await;
}

/// A statement of a batch waits for a table, and the proxy drops its answer.
async fn loses_an_answer(table: &'static str, words: &str) {
    let h = Harness::start().await;
    let (store, line) = store_behind_proxy(&h, 10).await;
    let context = Pipeline {
        serving: Serving {
            store,
            ..h.pipeline.serving.clone()
        },
        ..h.pipeline.clone()
    };
    let worker = Worker::new(context, &h.config.worker, &h.config.outbox);
    let stop = CancellationToken::new();
    h.insert("Nobody tells the worker that this was done.")
        .await;
    let mut application = h.connect().await;
    let held = lock(&mut application, table).await;
    let test = async {
        hangs(&h, words).await;
        line.forget();
        held.rollback().await.unwrap();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        stop.cancel();
    };
    tokio::join!(worker.run(stop.clone()), test);
    h.assert_converged().await;
    assert_eq!(worker.totals().failed, 0);
}

#[tokio::test]
async fn an_answer_to_a_claim_that_is_lost_holds_no_note_up() {
    let table = "lock table indexing_outbox in access exclusive mode";
    loses_an_answer(table, "Leases a batch").await;
}

#[tokio::test]
async fn an_answer_to_a_lookup_that_is_lost_holds_no_note_up() {
    let table = "lock table note_chunk_embeddings in access exclusive mode";
    loses_an_answer(table, "One vector for each text").await;
}

#[tokio::test]
async fn an_answer_to_a_commit_that_is_lost_holds_no_note_up() {
    let table = "lock table note_embeddings in access exclusive mode";
    loses_an_answer(table, "Writes chunks, vectors and states").await;
}

#[tokio::test]
async fn an_answer_that_is_lost_holds_no_rebuild_up() {
    let h = Harness::start().await;
    for about in ["rain", "snow", "fog"] {
        h.insert(&sentences(12, about)).await;
    }
    h.drain().await;
    let (store, line) = store_behind_proxy(&h, 10).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.halt(When::Before, Verb::Upsert);
    let site = serving::Serving {
        store,
        ..h.rebuilds_with(index)
    };
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let rebuilding = rebuild::run(&site, &options, Arc::default(), CancellationToken::new());
    let mut application = h.connect().await;
    let test = async {
        writes.reached_by(1).await;
        let table = "lock table index_rebuild_ranges in access exclusive mode";
        let held = lock(&mut application, table).await;
        writes.open();
        hangs(&h, "index_rebuild_ranges").await;
        line.forget();
        held.rollback().await.unwrap();
    };
    let (report, ()) = tokio::join!(rebuilding, test);
    assert_eq!(
        report.unwrap().points as i64,
        h.count("memory_note_chunks").await
    );
    h.assert_exact().await;
}

#[tokio::test]
async fn a_stop_waits_for_a_claim_that_hangs_no_longer_than_for_work() {
    let h = Harness::start_with(|toml| {
        toml.replace("grace_secs = 5", "grace_secs = 1")
            .replace("lease_secs = 5", "lease_secs = 3600")
    })
    .await;
    let mut application = h.connect().await;
    let held = lock(
        &mut application,
        "lock table indexing_outbox in access exclusive mode",
    )
    .await;
    let working = h.work();
    hangs(&h, "Leases a batch").await;
    let stopped = tokio::time::timeout(crate::support::DEADLINE, working.stop());
    stopped.await.expect("it stops though the claim hangs");
    held.rollback().await.unwrap();
    h.insert("is indexed by the next worker").await;
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn a_count_that_hangs_delays_no_check() {
    let site = Site::start().await;
    // So that the start of the next worker has nothing to write.
    site.elf(&["worker", "--once"]).await.exits(0);
    let mut application = site.connect().await;
    let held = lock(
        &mut application,
        "lock table indexing_outbox, memory_notes in access exclusive mode",
    )
    .await;
    let worker = site.worker();
    worker.says("worker started").await;
    let url = worker.admin().await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let mut db = site.connect().await;
    hangs(&site, "A row without a version").await;
    // A check that fails from now on is still reported.
    sqlx::query("insert into elf_migrations (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)")
        .execute(&mut db)
        .await
        .unwrap();
    sqlx::query("update elf_schema set oldest_program = 9999")
        .execute(&mut db)
        .await
        .unwrap();
    eventually(async || get("/readyz").await.1.contains("upgrade elf")).await;
    assert_eq!(get("/livez").await.0, 200);
    assert_eq!(get("/api/status").await.0, 200);
    assert!(
        get("/metrics")
            .await
            .1
            .contains("elf_check_ok{check=\"schema\"} 0")
    );
    held.rollback().await.unwrap();
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn an_interrupted_migration_runs_again() {
    let (site, line) = Site::empty().await.behind_a_proxy().await;
    let mut db = site.connect().await;
    sqlx::raw_sql(notes_with_indexes())
        .execute(&mut db)
        .await
        .unwrap();
    let held = lock(&mut db, "lock table memory_notes in row exclusive mode").await;
    let worker = site.begin(&["worker", "--migrate"]);
    hangs(&site, "set local lock_timeout").await;
    line.cut();
    worker.says("waiting to start").await;
    held.rollback().await.unwrap();
    line.restore();
    worker.says("worker started").await;
    worker.stop().await.exits(0);
    site.elf(&["migrate"]).await.exits(0);
}
