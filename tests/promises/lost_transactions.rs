//! A Postgres that lost its newest transactions.

use std::sync::Arc;

use elf::index::{Filter, IndexError};
use elf::worker::{Checkpoint, Worker};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::standby::Moment;

async fn last_token(h: &Harness) -> i64 {
    h.pipeline.serving.store.last_token().await.unwrap()
}

/// The highest revision in the index.
async fn highest_revision(h: &Harness) -> i64 {
    let points = h.points().await;
    let revisions = points
        .iter()
        .map(|p| p.payload["revision"].as_i64().unwrap());
    revisions.max().unwrap()
}

/// Notes of two chunks each, indexed.
async fn with_notes(h: &Harness, count: usize) -> Vec<Uuid> {
    let mut notes = Vec::new();
    for i in 0..count {
        notes.push(h.insert(&sentences(6, &format!("matter {i}"))).await);
    }
    h.drain().await;
    notes
}

/// Changes after the moment, which Postgres will lose: texts that change, shrink and grow,
/// notes that are inserted and deleted.
async fn change_notes(h: &Harness, notes: &[Uuid]) {
    for round in 0..4 {
        for (i, note) in notes.iter().enumerate() {
            let text = sentences(1 + (i + round) % 9, &format!("round {round} of {i}"));
            h.edit(*note, &text).await;
        }
        h.drain().await;
    }
    for i in 0..7 {
        h.insert(&sentences(5, &format!("what came after {i}")))
            .await;
    }
    h.drain().await;
}

async fn edit_all(h: &Harness, notes: &[Uuid]) {
    for (i, note) in notes.iter().enumerate() {
        h.edit(*note, &sentences(3, &format!("new after it {i}")))
            .await;
    }
}

/// Nothing is due, and no verify is requested or under way.
async fn is_at_rest(h: &Harness) -> bool {
    h.count("indexing_outbox").await == 0
        && h.count("index_versions where verify_requested or verify_chunks_cursor is not null")
            .await
            == 0
}

#[tokio::test]
async fn workers_that_run_through_a_failover_ack_nothing_under_an_old_token() {
    let h = Harness::start().await;
    let notes = with_notes(&h, 40).await;
    let kept = Moment::keep(&h).await;
    let working = [h.work(), h.work()];
    change_notes(&h, &notes).await;
    h.delete(notes[39]).await;
    eventually(async || is_at_rest(&h).await).await;
    let highest = highest_revision(&h).await;

    kept.restore(&h).await;
    assert!(last_token(&h).await < highest);
    edit_all(&h, &notes).await;
    eventually(async || last_token(&h).await > highest && is_at_rest(&h).await).await;
    for worker in working {
        worker.stop().await;
    }
    h.assert_exact().await;
    let old = format!("note_index_state where revision <= {highest} and chunk_count > 0");
    assert_eq!(
        h.count(&old).await,
        0,
        "notes were acked under an old token"
    );
}

#[tokio::test]
async fn a_worker_that_starts_after_a_failover_repairs_what_postgres_forgot() {
    let h = Harness::start().await;
    let notes = with_notes(&h, 40).await;
    let kept = Moment::keep(&h).await;
    change_notes(&h, &notes).await;
    h.delete(notes[0]).await;
    h.drain().await;
    kept.restore(&h).await;
    // Nothing is due: what was lost shows in the index alone.
    h.drain().await;
    h.assert_exact().await;
    edit_all(&h, &notes).await;
    h.drain().await;
    h.assert_exact().await;
}

/// Postgres writes a sequence to its log ahead, so a standby may lose transactions and give
/// out none of their tokens again.
#[tokio::test]
async fn a_standby_that_gives_out_no_old_token_is_verified_at_once() {
    let h = Harness::start().await;
    let notes = with_notes(&h, 40).await;
    let kept = Moment::keep(&h).await;
    change_notes(&h, &notes).await;
    let last = last_token(&h).await;
    kept.restore(&h).await;
    h.pipeline.serving.store.raise_tokens(last).await.unwrap();
    // The next timeline, as after a promotion.
    sqlx::query("update index_versions set server_identity = server_identity || '0'")
        .execute(&h.pool)
        .await
        .unwrap();
    let working = h.work();
    eventually(async || {
        h.count("index_versions where verify_started_at is not null")
            .await
            == 1
    })
    .await;
    eventually(async || is_at_rest(&h).await).await;
    working.stop().await;
    h.assert_exact().await;
    assert!(
        !h.pipeline
            .serving
            .store
            .record_server_identity()
            .await
            .unwrap()
    );
}

/// The one claim that Postgres lost had the token that the next claim gets.
#[tokio::test]
async fn a_token_that_is_given_out_twice_leaves_no_points_behind() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(3, "matter")).await;
    h.drain().await;
    let kept = Moment::keep(&h).await;
    h.edit(note, &sentences(12, "much more")).await;
    h.drain().await;
    kept.restore(&h).await;
    h.edit(note, "Little is left.").await;
    h.drain().await;
    h.assert_exact().await;
}

#[tokio::test]
async fn thousands_of_notes_in_batches_of_256_come_through_a_failover() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    let many = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                select 't', 'p', 'a', 's', 'n', $2::text || g from generate_series(1, 2000) g where $1::uuid is not null";
    h.execute(many, Uuid::nil(), "Note number ").await;
    h.drain().await;
    let kept = Moment::keep(&h).await;
    let change = "update memory_notes set text = text || $2::text where $1::uuid is not null";
    h.execute(change, Uuid::nil(), ", and edited").await;
    h.drain().await;
    let highest = highest_revision(&h).await;
    let working = h.work();
    kept.restore(&h).await;
    let some = "update memory_notes set text = $2::text || note_id where $1::uuid < note_id and ascii(right(note_id::text, 1)) % 3 = 0";
    h.execute(some, Uuid::nil(), "Edited after it: ").await;
    eventually(async || last_token(&h).await > highest && is_at_rest(&h).await).await;
    working.stop().await;
    h.assert_exact().await;
}

/// A lost lease looks similar: points of the batch's notes are newer than its token.
#[tokio::test]
async fn a_lost_lease_is_no_failover() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(6, "matter")).await;
    let barrier = Barrier::at(Checkpoint::Pruned);
    let slow = Worker::new(h.pipeline.clone(), &h.config.worker, &h.config.outbox)
        .with_breakpoint(barrier.breakpoint());
    let slow = tokio::spawn(async move { slow.drain(CancellationToken::new()).await });
    barrier.reached().await;
    h.expire_leases().await;
    h.edit(note, &sentences(4, "another matter")).await;
    h.drain().await;
    barrier.open();
    slow.await.unwrap().unwrap();
    h.drain_with_retries().await;
    h.assert_exact().await;
    let verified = "index_versions where verify_requested or verify_started_at is not null";
    assert_eq!(h.count(verified).await, 0, "taken for a failover");
}

/// A batch that is split is retried under its token, and reads the rows again.
#[tokio::test]
async fn a_retry_under_the_same_token_leaves_no_points_behind() {
    let mut h = Harness::start().await;
    let note = h.insert("It was short.").await;
    h.insert("Another note.").await;
    h.drain().await;
    h.edit(note, &sentences(9, "matter")).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = index.clone();
    let pruned = index.halt(When::Before, Verb::Delete);
    let refusal = IndexError::Refused {
        engine: "the engine".into(),
        reason: "it does not like that".into(),
    };
    index.fail(When::Before, Verb::Delete, refusal);
    let worker = h.worker();
    let working = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
    pruned.reached_by(1).await;
    index.heal();
    h.edit(note, "Little is left.").await;
    pruned.open();
    working.await.unwrap().unwrap();
    h.drain_with_retries().await;
    h.assert_exact().await;
}

/// The check of a batch costs one count.
#[tokio::test]
async fn a_healthy_batch_asks_the_index_once_more() {
    let mut h = Harness::start().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = index.clone();
    with_notes(&h, 10).await;
    let before = index.calls(Verb::CheckTokens);
    h.insert("One more.").await;
    h.drain().await;
    assert_eq!(index.calls(Verb::CheckTokens), before + 1);
    assert_eq!(index.calls(Verb::Scroll), 0);
}

/// A verify that fails halfway leaves no gap where a point is newer than Postgres knows.
#[tokio::test]
async fn a_repair_writes_before_it_removes() {
    let mut h = Harness::start().await;
    let notes = with_notes(&h, 6).await;
    let kept = Moment::keep(&h).await;
    change_notes(&h, &notes).await;
    kept.restore(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let away = IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "it was killed".into(),
    };
    index.fail(When::After, Verb::Delete, away);
    let inner = std::mem::replace(&mut h.pipeline.serving.index, index);
    let context = &h.pipeline;
    let options = elf::verify::Options::repairing();
    elf::verify::run(&context.serving, &options)
        .await
        .unwrap_err();
    h.pipeline.serving.index = inner;
    let chunks: Vec<Uuid> = sqlx::query_scalar("select chunk_id from memory_note_chunks")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    let there = Filter {
        chunk_ids: Some(chunks.clone()),
        ..Filter::default()
    };
    let found = h
        .pipeline
        .serving
        .index
        .count(&h.pipeline.serving.alias, &there)
        .await
        .unwrap();
    assert_eq!(found, chunks.len() as u64);
}

/// One worker runs a requested verify. After its death another worker resumes it.
#[tokio::test]
async fn a_verify_resumes_where_its_worker_died() {
    let h = Harness::start().await;
    with_notes(&h, 40).await;
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let lease = std::time::Duration::from_secs(60);
    assert_eq!(
        store.begin_verify(version, None, lease).await.unwrap(),
        None
    );
    store.request_verify(version).await.unwrap();
    let begun = store.begin_verify(version, None, lease).await.unwrap();
    let begun = begun.unwrap();
    assert!(begun.is_requested);
    let mut swept = begun.from;
    assert_eq!(swept, elf::store::VerifyCursor::default());
    assert_eq!(
        store.begin_verify(version, None, lease).await.unwrap(),
        None
    );
    let ids: Vec<Uuid> = sqlx::query_scalar("select chunk_id from memory_note_chunks order by 1")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    swept.chunks = ids[ids.len() / 2];
    store
        .record_verify(version, begun.number, swept, lease)
        .await
        .unwrap();
    sqlx::query("update index_versions set verify_lease_until = now() - interval '1 second'")
        .execute(&h.pool)
        .await
        .unwrap();

    let taken = store.begin_verify(version, None, lease).await.unwrap();
    let taken = taken.unwrap();
    assert_eq!(taken.from, swept);
    // The first worker wakes up, and is far ahead.
    let far = elf::store::VerifyCursor {
        chunks: Uuid::max(),
        notes: Uuid::max(),
    };
    store
        .record_verify(version, begun.number, far, lease)
        .await
        .unwrap();
    store.end_verify(version, begun.number).await.unwrap();
    let kept = format!(
        "index_versions where verify_chunks_cursor = '{}'",
        swept.chunks
    );
    assert_eq!(h.count(&kept).await, 1);
    let options = elf::verify::Options {
        from: Arc::new(std::sync::Mutex::new(swept)),
        ..elf::verify::Options::repairing()
    };
    let report = h.verify(&options).await;
    assert_eq!(report.chunks, (ids.len() - ids.len() / 2 - 1) as u64);
    assert_eq!(report.notes, 40);
    store.end_verify(version, taken.number).await.unwrap();
    assert_eq!(
        store.begin_verify(version, None, lease).await.unwrap(),
        None
    );
}
