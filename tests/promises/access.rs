//! Access to notes: deletions and access labels wait for no provider and no new text.

use std::collections::BTreeMap;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, sentences};
use crate::support::hooked::Hooked;
use elf::index::Filter;
use elf::search::Request;
use elf::worker::Checkpoint;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How many points a search of `tenant` may find of `note`.
async fn visible_to(h: &Harness, tenant: &str, note: Uuid) -> u64 {
    let filter = Filter {
        note_ids: Some(vec![note]),
        keywords: BTreeMap::from([("tenant_id".to_owned(), tenant.to_owned())]),
        ..Filter::default()
    };
    h.pipeline
        .serving
        .index
        .count(&h.pipeline.serving.alias, &filter)
        .await
        .unwrap()
}

async fn search(h: &Harness, tenant: &str) -> Vec<Uuid> {
    let searcher = elf::cli::wiring::searcher(&h.pipeline, &h.config)
        .await
        .unwrap();
    let filter = Filter {
        keywords: BTreeMap::from([("tenant_id".to_owned(), tenant.to_owned())]),
        ..Filter::default()
    };
    let request = Request {
        filter,
        ..Request::hybrid("the tides", 10)
    };
    let answer = searcher.search(&request).await.unwrap();
    answer.items.into_iter().map(|item| item.note_id).collect()
}

#[tokio::test]
async fn labels_follow_at_once_though_the_new_text_is_dead_lettered() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(20, "the tides")).await;
    h.insert("another note of the same tenant").await;
    h.drain().await;
    let chunks = visible_to(&h, "t", note).await;
    assert!(chunks > 3);

    h.provider.poison("arsenic", Behaviour::Status(400));
    h.execute(
        "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
        note,
        "a spoon of arsenic",
    )
    .await;
    h.drain().await;
    assert_eq!(visible_to(&h, "t", note).await, 0);
    assert_eq!(visible_to(&h, "u", note).await, chunks, "no gap");
    assert!(!search(&h, "t").await.contains(&note));

    h.drain_with_retries().await;
    assert_eq!(h.count("indexing_outbox where status = 'DEAD'").await, 1);
    assert_eq!(visible_to(&h, "t", note).await, 0);
    h.execute(
        "update memory_notes set tenant_id = $2 where note_id = $1",
        note,
        "v",
    )
    .await;
    h.drain_with_retries().await;
    assert_eq!(
        visible_to(&h, "u", note).await,
        0,
        "dead, and followed all the same"
    );
    assert_eq!(visible_to(&h, "v", note).await, chunks);

    h.provider.heal();
    h.pipeline.serving.store.retry_dead(None).await.unwrap();
    h.drain_with_retries().await;
    h.assert_converged().await;
}

/// More points than ELF makes at once.
#[tokio::test]
async fn labels_of_long_notes_follow_though_their_new_texts_wait() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    let mut notes = Vec::new();
    for matter in ["the tides", "the moon", "the stars", "the winds"] {
        notes.push(h.insert(&sentences(5_000, matter)).await);
    }
    h.drain().await;
    let mut chunks = Vec::new();
    for &note in &notes {
        chunks.push(visible_to(&h, "t", note).await);
    }
    let at_once = (8 << 20) / (4 * h.pipeline.version.dim as u64 + 2048);
    assert!(chunks.iter().sum::<u64>() > at_once, "{chunks:?}");

    h.provider.poison("nobody", Behaviour::Status(400));
    for &note in &notes {
        h.execute(
            "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
            note,
            "a text that nobody has embedded",
        )
        .await;
    }
    h.drain().await;
    for (note, chunks) in notes.into_iter().zip(chunks) {
        assert_eq!(visible_to(&h, "t", note).await, 0);
        assert_eq!(visible_to(&h, "u", note).await, chunks);
    }
}

#[tokio::test]
async fn a_note_whose_labels_the_index_refuses_takes_out_no_other_note() {
    let mut h = Harness::start().await;
    let mut notes = Vec::new();
    for matter in ["the tides", "the moon", "the stars", "the winds", "the sun"] {
        notes.push(h.insert(&sentences(9, matter)).await);
    }
    h.drain().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    index.refuse(notes[2]);
    h.pipeline.serving.index = index;
    h.provider.poison("nobody", Behaviour::Status(400));
    for &note in &notes {
        h.execute(
            "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
            note,
            "a text that nobody has embedded",
        )
        .await;
    }
    h.drain().await;
    for note in &notes {
        assert_eq!(visible_to(&h, "t", *note).await, 0);
        let is_there = visible_to(&h, "u", *note).await > 0;
        assert_eq!(is_there, *note != notes[2], "{note}");
    }
}

#[tokio::test]
async fn while_the_provider_refuses_work_without_new_vectors_continues() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    let [deleted, archived, expired, moved, moved_and_edited, doubled] = {
        let mut notes = [Uuid::nil(); 6];
        for (i, note) in notes.iter_mut().enumerate() {
            *note = h.insert(&sentences(5, &format!("matter {i}"))).await;
        }
        notes
    };
    h.drain().await;
    h.provider.always(Behaviour::Status(401));
    let waiting = 3_000;
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'Waiting note number ' || i from generate_series(1, $1) i",
    )
    .bind(waiting)
    .execute(&h.pool)
    .await
    .unwrap();
    let working = h.work();
    // From now on the provider refuses the key.
    eventually(async || h.pipeline.provider.state().error().is_some()).await;

    h.delete(deleted).await;
    let update = |statement| h.execute(statement, archived, "");
    update("update memory_notes set status = 'archived' || $2 where note_id = $1").await;
    h.execute(
        "update memory_notes set expires_at = now(), type = type || $2 where note_id = $1",
        expired,
        "",
    )
    .await;
    h.execute(
        "update memory_notes set tenant_id = $2 where note_id = $1",
        moved,
        "u",
    )
    .await;
    h.execute(
        "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
        moved_and_edited,
        "a text that nobody has embedded",
    )
    .await;
    // The text of the archived note: its vectors stay.
    let known = sentences(5, "matter 1");
    h.edit(doubled, &known).await;

    for note in [deleted, archived, expired] {
        eventually(async || h.points_of(note).await == 0).await;
    }
    for note in [moved, moved_and_edited] {
        eventually(async || visible_to(&h, "t", note).await == 0).await;
        assert!(visible_to(&h, "u", note).await > 0, "no gap");
    }
    eventually(async || {
        h.count(&format!("indexing_outbox where note_id = '{doubled}'"))
            .await
            == 0
    })
    .await;
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);
    working.stop().await;
    assert_eq!(
        h.count("indexing_outbox").await,
        i64::from(waiting) + 1,
        "only new texts wait"
    );
}

#[tokio::test]
async fn a_point_under_old_labels_is_not_shown() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(3, "the tides")).await;
    h.drain().await;
    assert!(search(&h, "t").await.contains(&note));
    // As between the commit of a move and its claim: the point still has the old tenant.
    let mut connection = h.pool.acquire().await.unwrap();
    sqlx::raw_sql("alter table memory_notes disable trigger elf_note_replicated; set session_replication_role = replica; update memory_notes set tenant_id = 'u'; reset session_replication_role")
        .execute(&mut *connection)
        .await
        .unwrap();
    assert!(visible_to(&h, "t", note).await > 0);
    assert!(search(&h, "t").await.is_empty());
}

/// The provider works and is slow: every batch of the worker waits for vectors.
#[tokio::test]
async fn deletions_and_labels_do_not_wait_for_the_backlog_of_a_slow_provider() {
    let h =
        Harness::start_with(|toml| toml.replace("timeout_ms = 6000", "timeout_ms = 60000")).await;
    let (gone, moved) = (
        h.insert("a note that goes").await,
        h.insert("one that moves").await,
    );
    h.drain().await;
    h.provider.hold();
    for i in 0..100 {
        h.insert(&format!("waiting note {i}")).await;
    }
    let working = h.work();
    h.provider.holding(1).await;
    h.delete(gone).await;
    h.execute(
        "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
        moved,
        "a new text",
    )
    .await;
    eventually(async || h.points_of(gone).await == 0 && visible_to(&h, "t", moved).await == 0)
        .await;
    assert_eq!(visible_to(&h, "u", moved).await, 1, "no gap");
    assert!(h.count("indexing_outbox").await >= 100);
    h.provider.release();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
    h.assert_converged().await;
}

/// The texts of the notes themselves are at a provider that does not answer.
#[tokio::test]
async fn access_changes_of_notes_in_flight_do_not_wait_for_the_provider() {
    let h =
        Harness::start_with(|toml| toml.replace("timeout_ms = 6000", "timeout_ms = 60000")).await;
    let [deleted, archived, expired, moved, kept] = {
        let mut notes = [Uuid::nil(); 5];
        for (i, note) in notes.iter_mut().enumerate() {
            *note = h.insert(&sentences(9, &format!("matter {i}"))).await;
        }
        notes
    };
    h.drain().await;
    let chunks = h.points_of(moved).await;
    h.provider.hold();
    for note in [deleted, archived, expired, moved, kept] {
        h.edit(note, "a text that takes long").await;
    }
    let working = h.work();
    h.provider.holding(1).await;
    let leased = "note_index_state where lease_until > now()";
    assert_eq!(h.count(leased).await, 5);

    h.delete(deleted).await;
    for (note, change) in [
        (archived, "set status = 'archived' || $2"),
        (
            expired,
            "set expires_at = now() + interval '1 second', type = type || $2",
        ),
        (moved, "set tenant_id = 'u' || $2"),
    ] {
        let statement = format!("update memory_notes {change} where note_id = $1");
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind(note)
            .bind("")
            .execute(&h.pool)
            .await
            .unwrap();
    }
    for note in [deleted, archived, expired] {
        eventually(async || h.points_of(note).await == 0).await;
    }
    eventually(async || visible_to(&h, "t", moved).await == 0).await;
    assert_eq!(visible_to(&h, "u", moved).await, chunks, "no gap");
    assert_eq!(visible_to(&h, "t", kept).await, chunks, "it waits");
    assert!(
        h.provider.is_holding(),
        "the provider has not answered meanwhile"
    );

    h.provider.release();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
    h.assert_converged().await;
    let sent = h.provider.texts_seen();
    let times = sent.iter().filter(|text| text.contains("takes long"));
    assert_eq!(times.count(), 1, "a note that is claimed again pays once");
}

/// All batches wait for vectors, and the process dies while it applies a deletion and new labels.
#[tokio::test]
async fn a_crash_at_any_stage_of_an_access_change_leaves_nothing_visible() {
    for stage in [
        Checkpoint::Committed,
        Checkpoint::Upserted,
        Checkpoint::Pruned,
        Checkpoint::Acked,
    ] {
        let h = Harness::start_with(|toml| toml.replace("timeout_ms = 6000", "")).await;
        let gone = h.insert(&sentences(20, "soon deleted")).await;
        let moved = h.insert(&sentences(20, "soon of another tenant")).await;
        h.drain().await;
        let chunks = visible_to(&h, "t", moved).await;
        assert!(chunks > 3);

        h.provider.hold();
        let waiting = h.config.worker.batch_notes * h.config.worker.concurrency;
        for i in 0..waiting {
            h.insert(&format!("note {i} waits for its vector")).await;
        }
        // The waiting notes never get to this stage.
        let barrier = Barrier::at(stage);
        let worker = h.worker().with_breakpoint(barrier.breakpoint());
        let crashing = tokio::spawn(async move { worker.run(CancellationToken::new()).await });
        let leased = "note_index_state where lease_until is not null";
        eventually(async || h.count(leased).await == waiting as i64).await;
        h.delete(gone).await;
        let relabel = "update memory_notes set tenant_id = $2 where note_id = $1";
        h.execute(relabel, moved, "u").await;
        barrier.reached().await;
        crashing.abort();
        crashing.await.unwrap_err();

        h.expire_leases().await;
        h.provider.release();
        h.drain_with_retries().await;
        assert_eq!(h.points_of(gone).await, 0, "{stage:?}");
        assert_eq!(visible_to(&h, "t", moved).await, 0, "{stage:?}");
        assert_eq!(visible_to(&h, "u", moved).await, chunks, "{stage:?}");
        h.assert_converged().await;
    }
}

/// Between the look at the note and the write of its chunks. The note is due again at once, and not after its lease.
#[tokio::test]
async fn a_note_that_gets_another_tenant_while_it_is_committed_is_no_lost_lease() {
    let h = Harness::start_with(|toml| toml.replace("lease_secs = 5", "lease_secs = 600")).await;
    let note = h.insert("The zebra sleeps.").await;
    h.drain().await;
    let mut holder = h.connect().await;
    sqlx::raw_sql("begin; lock table note_embeddings in share mode")
        .execute(&mut holder)
        .await
        .unwrap();
    h.edit(note, "The okapi sleeps.").await;
    let working = h.work();
    // It holds the note, and waits for the table.
    let waits = "pg_locks where not granted and relation = 'note_embeddings'::regclass";
    crate::support::eventually(async || h.count(waits).await > 0).await;
    sqlx::query("update memory_notes set tenant_id = 'u' where note_id = $1")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    sqlx::raw_sql("rollback")
        .execute(&mut holder)
        .await
        .unwrap();
    crate::support::eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
    let points = h.points().await;
    assert_eq!(points[0].payload["tenant_id"], "u");
    h.assert_exact().await;
}
