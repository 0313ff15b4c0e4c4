//! Points that reach the index after their worker has stopped waiting for them.

use elf::index::IndexError;
use elf::store::Store;
use elf::worker::{Checkpoint, Worker};

use crate::support::eventually;
use crate::support::harness::{Harness, Held, sentences, spawn};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::proxy::Proxy;

/// One request timed out, the other was interrupted by the end of its worker.
#[tokio::test]
async fn points_that_come_after_those_of_the_next_claim_leave_nothing_behind() {
    for is_cut_off in [false, true] {
        let mut h =
            Harness::start_with(|toml| toml.replace("grace_secs = 5", "grace_secs = 1")).await;
        let index = h.pipeline.serving.index.clone();
        let note = h.insert("A short note.").await;
        h.drain().await;

        let slow = Hooked::over(&index);
        let late = slow.delay_upserts();
        if !is_cut_off {
            slow.fail(When::Before, Verb::Upsert, no_answer());
        }
        h.pipeline.serving.index = slow.clone();
        h.edit(note, &sentences(9, "a long one")).await;
        let working = h.work();
        late.reached_by(1).await;
        if !is_cut_off {
            eventually(async || h.count("note_index_state where holder is not null").await == 0)
                .await;
        }
        working.stop().await;

        h.pipeline.serving.index = index;
        h.edit(note, "Short again.").await;
        let another = h.insert("Another note.").await;
        h.drain().await;
        assert_eq!(h.points_of(another).await, 1, "it waits for nothing");
        late.open();
        slow.all_landed().await;
        h.expire_leases().await;
        h.drain().await;
        h.assert_converged().await;
    }
}

/// A batch loses its lease and upserts points of a note that was deleted and acked meanwhile.
/// Then it fails before its own ack: in the check, because Postgres is unavailable, or in the
/// delete of older points, so that its second try finds the lease lost.
#[tokio::test]
async fn a_batch_that_fails_after_a_late_upsert_leaves_no_point_behind() {
    for is_postgres in [true, false] {
        let h = Harness::start().await;
        h.drain().await;
        let note = h.insert(&sentences(30, "soon deleted")).await;
        let other = h.insert("Stays.").await;
        let (host, port) = h.database.server();
        let line = Proxy::to(host, port).await;
        let url = h.database.url_through(line.port());
        let index = Hooked::over(&h.pipeline.serving.index);
        if !is_postgres {
            index.fail(When::Before, Verb::Delete, no_answer());
        }
        let mut context = h.pipeline.clone();
        context.serving.store = Store::connect(&url, 5).await.unwrap();
        context.serving.index = index.clone();
        let late = Held::at(Checkpoint::Committed, h.one_batch_worker(context)).await;

        h.delete(note).await;
        h.expire_leases().await;
        h.drain().await;
        assert_eq!(h.count("indexing_outbox").await, 0);
        assert_eq!(h.points_of(note).await, 0);

        if is_postgres {
            line.cut();
        }
        late.open();
        eventually(async || h.points_of(note).await > 0).await;
        if is_postgres {
            eventually(async || late.worker.outage().is_some()).await;
            line.restore();
        }
        index.heal();
        eventually(async || h.points_of(note).await == 0).await;
        // The other note was requeued too, and may be claimed after this one.
        eventually(async || h.count("indexing_outbox").await == 0).await;
        late.stop().await;
        h.assert_converged().await;
        assert_eq!(h.points_of(other).await, 1);
    }
}

/// A note was deleted and acked by a later claim. The late batch upserts its points, and then the
/// index refuses the delete of older ones: the note to blame is alone in its batch, so it fails,
/// under a lease that is lost.
#[tokio::test]
async fn a_note_that_fails_after_a_late_upsert_leaves_no_point_behind() {
    let h = Harness::start().await;
    let other = h.insert("Shows that the index takes points.").await;
    h.drain().await;
    let note = h.insert(&sentences(30, "soon deleted")).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    index.fail(
        When::Before,
        Verb::Delete,
        IndexError::Refused {
            engine: "the engine".into(),
            reason: "it refuses this filter".into(),
        },
    );
    let mut context = h.pipeline.clone();
    context.serving.index = index.clone();
    let late = Held::at(Checkpoint::Committed, h.one_batch_worker(context)).await;

    h.delete(note).await;
    h.expire_leases().await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);

    let upserts = index.calls(Verb::Upsert);
    late.open();
    eventually(async || h.points_of(note).await > 0).await;
    // The second upsert is that of the other note's point, before the note fails.
    eventually(async || index.calls(Verb::Upsert) >= upserts + 2).await;
    index.heal();
    eventually(async || h.points_of(note).await == 0).await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    late.stop().await;
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);
    h.assert_converged().await;
    assert_eq!(h.points_of(other).await, 1);
}

/// The first claim of a note upserts its points late: the note was deleted and acked meanwhile, so
/// that ELF has forgotten it, and then inserted again under its id.
#[tokio::test]
async fn a_note_that_comes_back_under_its_id_keeps_no_point_of_its_first_claim() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(30, "soon deleted")).await;
    let worker = h.one_batch_worker(h.pipeline.clone());
    let late = Held::at(Checkpoint::Committed, worker).await;
    h.delete(note).await;
    h.expire_leases().await;
    h.drain().await;
    assert_eq!(h.count("note_index_state").await, 0);

    let insert =
        "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
                  values ($1, 't', 'p', 'a', 's', 'n', $2)";
    h.execute(insert, note, "It is back.").await;
    late.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    late.stop().await;
    assert_eq!(h.points_of(note).await, 1);
    h.assert_converged().await;
}

/// The same, but the late worker is killed before its ack, so that it requeues nothing.
#[tokio::test]
async fn a_note_that_comes_back_keeps_no_point_of_a_worker_that_was_killed() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(30, "soon deleted")).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let upserted = index.halt(When::After, Verb::Upsert);
    let mut context = h.pipeline.clone();
    context.serving.index = index;
    let late = Held::at(Checkpoint::Committed, h.one_batch_worker(context)).await;
    h.delete(note).await;
    h.expire_leases().await;
    h.drain().await;
    assert_eq!(h.count("note_index_state").await, 0);
    late.open();
    upserted.reached_by(1).await;
    late.kill().await;
    assert!(h.points_of(note).await > 1);

    let insert =
        "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
                  values ($1, 't', 'p', 'a', 's', 'n', $2)";
    h.execute(insert, note, "It is back.").await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 1);
    h.assert_converged().await;
}

/// A batch that fails after its upsert releases its notes, and another worker takes them over.
/// That is no lost lease: the first worker does not requeue them.
#[tokio::test]
async fn notes_that_a_failed_batch_released_are_not_requeued() {
    let h = Harness::start().await;
    let note = h.insert("The tides.").await;
    h.drain().await;
    h.edit(note, &sentences(9, "the tides")).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    index.fail(When::Before, Verb::Delete, no_answer());
    let mut context = h.pipeline.clone();
    context.serving.index = index.clone();
    let failing = Worker::new(context, &h.config.worker, &h.config.outbox);
    let (failing, stop, running) = spawn(failing);
    eventually(async || failing.outage().is_some()).await;
    eventually(async || {
        h.count("note_index_state where lease_until is not null")
            .await
            == 0
    })
    .await;
    let token = async || -> i64 {
        sqlx::query_scalar("select lease_token from note_index_state where note_id = $1")
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap()
    };
    // The other worker may find the note claimed by the failing one once more.
    eventually(async || h.drain().await.notes == 1).await;
    let last = token().await;
    index.heal();
    eventually(async || failing.outage().is_none()).await;
    let another = h.insert("Indexed by the first worker.").await;
    eventually(async || h.points_of(another).await == 1).await;
    stop.cancel();
    running.await.unwrap();
    assert_eq!(h.count("indexing_outbox").await, 0);
    assert_eq!(token().await, last, "the note was not indexed once more");
    h.assert_converged().await;
}

/// A row for later is how a worker has a note indexed once more after a late upsert.
#[tokio::test]
async fn a_row_for_later_outlives_a_claim_before_it_is_due() {
    let h = Harness::start().await;
    let note = h.insert("It will be indexed twice.").await;
    let later = "insert into indexing_outbox (note_id, op, available_at)
                 values ($1, 'UPSERT', now() + interval '1 hour' + $2::interval)";
    h.execute(later, note, "0 s").await;
    h.drain().await;
    assert_eq!(
        h.count("indexing_outbox where available_at > now()").await,
        1
    );
    h.edit(note, "Edited before the row is due.").await;
    h.drain().await;
    assert_eq!(
        h.count("indexing_outbox where available_at > now()").await,
        1
    );
    assert_eq!(h.count("indexing_outbox").await, 1);
    h.delete(note).await;
    h.drain().await;
    assert_eq!(h.points_of(note).await, 0);
    sqlx::query("update indexing_outbox set available_at = now()")
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    h.assert_converged().await;
}

/// A drain also waits for the notes whose leases it keeps after an unanswered upsert.
#[tokio::test]
async fn a_drain_waits_for_the_notes_that_it_keeps_back() {
    let mut h = Harness::start().await;
    h.drain().await;
    let slow = Hooked::over(&h.pipeline.serving.index);
    slow.fail(When::After, Verb::Upsert, no_answer());
    h.pipeline.serving.index = slow.clone();
    for i in 0..20 {
        h.insert(&format!("note {i}")).await;
    }
    let kept_back = async || {
        let kept = "note_index_state where holder is null and lease_until > now()";
        h.count(kept).await > 0
    };
    let heal = async {
        eventually(kept_back).await;
        slow.heal();
    };
    tokio::join!(h.drain(), heal);
    assert_eq!(h.count("indexing_outbox").await, 0);
    h.assert_converged().await;
}

/// An outage of the index does not make the worker send a text twice.
#[tokio::test]
async fn texts_in_flight_when_the_index_fails_are_paid_for_once() {
    let mut h = Harness::start_with(|toml| {
        toml.replace(
            "timeout_ms = 6000",
            "timeout_ms = 60000\nmax_batch_inputs = 8",
        )
        .replace("lease_secs = 5", "lease_secs = 30")
    })
    .await;
    h.drain().await;
    let slow = Hooked::over(&h.pipeline.serving.index);
    slow.fail(When::Before, Verb::Upsert, no_answer());
    h.pipeline.serving.index = slow.clone();
    let shared = h.insert("a note").await;
    for i in 0..15 {
        h.insert(&format!("note {i}")).await;
    }
    h.provider
        .share_processor(std::time::Duration::from_millis(200));
    let working = h.work();
    let interrupted = async || h.count("note_index_state where holder is null").await > 0;
    eventually(interrupted).await;
    slow.heal();
    eventually(async || {
        h.expire_leases().await;
        h.count("indexing_outbox").await == 0
    })
    .await;
    working.stop().await;
    let mut texts = h.provider.texts_seen();
    let sent = texts.len();
    texts.sort();
    texts.dedup();
    assert_eq!(sent, texts.len(), "texts were sent twice");
    assert_eq!(h.points_of(shared).await, 1);
}

fn no_answer() -> IndexError {
    IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "no answer in time".into(),
    }
}
