//! What never answers holds nothing up for long.

use sqlx::{Connection, PgConnection, Postgres, Transaction};

use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::site::Site;

/// Takes tables away from everybody, as a migration of the application's may.
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

#[tokio::test]
async fn a_claim_whose_answer_is_lost_on_its_way_is_given_up() {
    let (site, line) = Site::behind_a_line().await;
    let worker = site.worker();
    worker.says("working").await;
    let mut application = site.connect().await;
    let held = lock(
        &mut application,
        "lock table indexing_outbox in access exclusive mode",
    )
    .await;
    hangs(&site, "Leases a batch").await;
    line.forget();
    held.rollback().await.unwrap();
    // Whoever has taken it, the worker hears nothing of it.
    site.note("Its lease has to run out.").await;
    worker
        .says("a claim was not answered within 5 seconds")
        .await;
    worker.says("resumed after").await;
    eventually(async || {
        sqlx::query_scalar("select not exists (select from indexing_outbox)")
            .fetch_one(&mut site.connect().await)
            .await
            .unwrap()
    })
    .await;
    worker.stop().await.exits(0);
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
async fn a_count_that_hangs_keeps_no_check_from_being_made() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("working").await;
    let url = worker.admin().await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let mut application = site.connect().await;
    let held = lock(
        &mut application,
        "lock table indexing_outbox, memory_notes in access exclusive mode",
    )
    .await;
    let mut db = site.connect().await;
    // The counts of the backlog, and those that are slow.
    for words in ["A row without a version", "the statistics of Postgres"] {
        hangs(&site, words).await;
    }
    // What is wrong from now on is seen all the same.
    sqlx::query("insert into elf_migrations (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)")
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
