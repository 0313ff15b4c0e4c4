//! The provider is down, a note is dead-lettered, changes wait, the worker does not start.

use sqlx::Connection;

use super::machine::{Machine, Section};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;

#[tokio::test]
async fn a_provider_that_is_down_looks_as_written() {
    let Some(m) = Machine::working("provider unavailable", 2).await else {
        return;
    };
    m.site.provider.always(Behaviour::Status(503));
    m.write_note("Nobody embeds this.").await;
    m.is_ready(false).await;
    let mut down = Section::of("Provider unavailable");
    let words = [
        "\"name\":\"provider\",\"ok\":false",
        "the embedding provider is unavailable",
        "answered 503",
        "elf_embedding_circuit_open 1",
        "elf_embedding_requests_total{outcome=\"unavailable\"}",
        "0 failed, 0 dead",
        "3 live, 2 indexed",
    ];
    m.shows(down.next(), &words).await;
    m.site.provider.heal();
    m.wait_until_drained().await;
    m.is_ready(true).await;
    m.shows(
        down.next(),
        &["0 pending, 0 leased, 0 failed, 0 dead", "3 live, 3 indexed"],
    )
    .await;
    down.end();
    assert!(m.run("cat log").await.stdout.contains("embedding resumed"));
}

#[tokio::test]
async fn dead_letters_are_found_and_tried_again_as_written() {
    let Some(m) = Machine::working("dead letters", 1).await else {
        return;
    };
    m.site.provider.poison("zzpoison", Behaviour::Status(400));
    m.write_note("This note has zzpoison in it.").await;
    m.write_note("This one has not.").await;
    eventually(async || m.count("indexing_outbox where status = 'DEAD'").await == 1).await;
    let mut dead = Section::of("Dead letters");
    m.shows(dead.next(), &["3      provider  ", "cannot be embedded"])
        .await;
    m.shows(dead.next(), &["provider", "(1 row)"]).await;
    m.site.provider.heal();
    m.shows(dead.next(), &["1 note is due again", "0 dead"])
        .await;
    dead.end();
    m.wait_until_drained().await;
}

#[tokio::test]
async fn a_slow_provider_and_a_long_transaction_show_as_written() {
    let Some(m) = Machine::new("slow freshness").await else {
        return;
    };
    m.site.configure("timeout_ms = 6000", "timeout_ms = 120000");
    m.run("elf migrate && systemctl start elf").await.exits(0);
    m.write_notes(1).await;
    m.wait_until_drained().await;
    m.site.provider.hold();
    m.write_note("The provider takes its time.").await;
    m.site.provider.holding(1).await;
    let waiting = "elf_outbox_rows{state=\"leased\"} 1";
    eventually(async || m.get("/metrics").await.contains(waiting)).await;
    let mut slow = Section::of("Slow freshness");
    let words = [
        "0 pending, 1 leased",
        "elf_batches_in_flight 1",
        "elf_embedding_circuit_open 0",
        "elf_leases_lost_total 0",
        "elf_outbox_oldest_pending_seconds ",
        "elf_stage_seconds_sum{stage=\"embed\"}",
        "elf_stage_seconds_count{stage=\"prune\"}",
    ];
    let seen = m.shows(slow.next(), &words).await;
    assert!(
        !seen.stdout.contains("oldest_pending_seconds 0\n"),
        "{seen:?}"
    );
    let mut application = m.db().await;
    let mut transaction = application.begin().await.unwrap();
    sqlx::query("update memory_notes set key = note_id::text")
        .execute(&mut *transaction)
        .await
        .unwrap();
    m.shows(
        slow.next(),
        &["idle in transaction", "update memory_notes set key"],
    )
    .await;
    transaction.rollback().await.unwrap();
    slow.end();
    m.site.provider.release();
    m.wait_until_drained().await;
}

#[tokio::test]
async fn a_backlog_is_seen_and_worked_off_as_written() {
    let Some(m) = Machine::new("backlog growing").await else {
        return;
    };
    m.run("elf migrate").await.exits(0);
    m.write_notes(30).await;
    let mut backlog = Section::of("Backlog growing");
    m.shows(backlog.next(), &["30 pending, 0 leased"]).await;
    m.shows(backlog.next(), &["acme", "30 |", "(1 row)"]).await;
    m.shows(
        backlog.next(),
        &["30 notes, ", "0 pending", "30 live, 30 indexed"],
    )
    .await;
    backlog.end();
}

#[tokio::test]
async fn a_worker_that_does_not_start_says_why_as_written() {
    let Some(m) = Machine::working("worker absent", 1).await else {
        return;
    };
    m.site.configure("max_tokens = 32", "max_tokens = 24");
    m.run("systemctl restart elf").await.exits(0);
    eventually(async || std::fs::read_to_string(m.site.path("code")).is_ok_and(|c| c == "78\n"))
        .await;
    let mut absent = Section::of("Worker absent");
    let words = [
        "the database is indexed under the embedding version",
        "chunking.max_tokens is 24 in the configuration, 32 in the database",
        "put the setting back",
        "elf.toml is fine",
    ];
    m.shows(absent.next(), &words).await;
    m.site.configure("max_tokens = 24", "max_tokens = 32");
    m.shows(absent.next(), &["the schema is up to date"]).await;
    m.is_ready(true).await;
    m.shows(absent.next(), &["\"ready\":true"]).await;
    absent.end();
}
