//! Which failures count against a note, at the batch size that people run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use elf::index::IndexError;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The default batch size, and retries without a pause. On a busy machine such a batch may take longer than a lease of
/// five seconds, and would then be embedded again.
async fn with_default_batches() -> Harness {
    Harness::start_with(|toml| {
        toml.replace("batch_notes = 16", "batch_notes = 256")
            .replace("lease_secs = 5", "lease_secs = 60")
    })
    .await
}

/// `count` notes in one statement, each of one chunk and no two alike.
async fn insert_many(h: &Harness, count: i32) {
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'Wholesome note number ' || i
           from generate_series(1, $1) i",
    )
    .bind(count)
    .execute(&h.pool)
    .await
    .unwrap();
}

/// Postgres takes no chunk with the word `secret`.
async fn reject_secrets(h: &Harness) {
    sqlx::raw_sql(
        "create function no_secrets() returns trigger language plpgsql as $$
         begin
             if new.text like '%secret%' then raise exception 'no secrets'; end if;
             return new;
         end $$;
         create trigger no_secrets before insert on memory_note_chunks
             for each row execute function no_secrets();",
    )
    .execute(&h.pool)
    .await
    .unwrap();
}

#[tokio::test]
async fn one_note_that_postgres_rejects_among_2000_is_dead_lettered_and_costs_no_embedding() {
    let h = with_default_batches().await;
    reject_secrets(&h).await;
    insert_many(&h, 1_000).await;
    let secret = h.insert("a secret").await;
    insert_many(&h, 999).await;
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!((letters[0].note_id, letters[0].attempts), (secret, 3));
    assert_eq!(h.points().await.len(), 1_999);
    let mut texts = h.provider.texts_seen();
    let sent = texts.len();
    texts.sort();
    texts.dedup();
    assert_eq!(sent, texts.len(), "a text was paid for twice");
}

#[tokio::test]
async fn one_note_that_the_index_refuses_among_2000_is_dead_lettered_and_costs_no_embedding() {
    let mut h = with_default_batches().await;
    let hooked = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = hooked.clone();
    insert_many(&h, 1_000).await;
    let odd = h.insert("an odd one").await;
    insert_many(&h, 999).await;
    hooked.refuse(odd);
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!(letters[0].note_id, odd);
    assert_eq!(letters[0].reason, "index");
    assert_eq!(h.points().await.len(), 1_999);
    assert!(h.provider.texts_seen().len() <= 1_000 + 2 + 999);
}

/// With a read-only key, a full disk or a quota, the index refuses every write like this.
#[tokio::test]
async fn an_index_that_takes_no_write_blames_no_note() {
    let refusal = || IndexError::Refused {
        engine: "the engine".into(),
        reason: "not with this request".into(),
    };
    let denied = || IndexError::Denied {
        engine: "the engine".into(),
        reason: "this key may only read".into(),
    };
    for error in [refusal(), denied()] {
        let mut h = with_default_batches().await;
        h.insert("indexed before").await;
        h.drain().await;
        let hooked = Hooked::over(&h.pipeline.serving.index);
        h.pipeline.serving.index = hooked.clone();
        hooked.fail(When::Before, Verb::Upsert, error.clone());
        insert_many(&h, 300).await;
        let worker = h.worker();
        let outcome = worker.drain(CancellationToken::new());
        // A drain would wait its whole grace period for the index.
        let outcome = tokio::time::timeout(std::time::Duration::from_secs(2), outcome).await;
        assert!(
            outcome.is_err() || outcome.unwrap().is_err(),
            "{error}: it drained nothing"
        );
        drop(worker);
        h.expire_leases().await;
        assert_eq!(
            h.count("indexing_outbox where attempts > 0 or status <> 'PENDING'")
                .await,
            0,
            "{error}"
        );
        hooked.heal();
        // Until nothing is due: a claim in flight may have leased notes after that.
        h.drain_with_retries().await;
        h.assert_converged().await;
    }
}

/// The index takes points and does not answer the check before the ack.
#[tokio::test]
async fn a_check_that_fails_blames_no_note() {
    let mut h = with_default_batches().await;
    h.insert("indexed before").await;
    h.drain().await;
    let hooked = Hooked::over(&h.pipeline.serving.index);
    h.pipeline.serving.index = hooked.clone();
    let unavailable = IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "the count timed out".into(),
    };
    hooked.fail(When::Before, Verb::CheckTokens, unavailable);
    insert_many(&h, 8).await;
    let worker = h.worker();
    let working = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
    // Halved down to one note and tried three times alone, the batch is checked six times.
    eventually(async || hooked.calls(Verb::CheckTokens) >= 12).await;
    working.abort();
    working.await.unwrap_err();
    let blamed = "indexing_outbox where attempts > 0 or status <> 'PENDING'";
    assert_eq!(h.count(blamed).await, 0);
    hooked.heal();
    h.expire_leases().await;
    h.drain_with_retries().await;
    h.assert_converged().await;
}

/// The process that works on the note dies each time, and leaves all its leases.
#[tokio::test]
async fn a_note_that_kills_every_worker_is_dead_lettered_alone() {
    let h = with_default_batches().await;
    insert_many(&h, 300).await;
    let deadly = h.insert(&sentences(3, "the end of the worker")).await;
    insert_many(&h, 300).await;
    let deaths = Arc::new(AtomicUsize::new(0));
    let letters = loop {
        let died = Arc::new(Notify::new());
        let (pool, deaths, notify) = (h.pool.clone(), deaths.clone(), died.clone());
        let breakpoint: elf::worker::Breakpoint = Arc::new(move |stage| {
            let (pool, deaths, died) = (pool.clone(), deaths.clone(), notify.clone());
            Box::pin(async move {
                if stage == elf::worker::Checkpoint::Chunked && is_leased(&pool, deadly).await {
                    deaths.fetch_add(1, Ordering::Relaxed);
                    died.notify_one();
                    std::future::pending::<()>().await;
                }
            })
        });
        let worker = h.one_batch_worker(h.pipeline.clone());
        let worker = worker.with_breakpoint(breakpoint);
        let drained = async { worker.drain(CancellationToken::new()).await.unwrap() };
        tokio::select! {
            // Unless a renewal that was in flight has leased them once more.
            () = drained => if h.count("indexing_outbox where status <> 'DEAD'").await == 0 {
                break h.pipeline.serving.store.dead_letters(10).await.unwrap();
            },
            () = died.notified() => {}
        }
        drop(worker);
        h.expire_leases().await;
        // The next worker indexes this one first, which shows that Postgres and the index work.
        h.insert("Another wholesome note").await;
    };
    // Two together and four alone; more only where a renewal of a dead worker was in flight
    // and leased the note once more.
    let deaths = deaths.load(Ordering::Relaxed);
    assert!((6..=9).contains(&deaths), "{deaths} workers died");
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].note_id, &*letters[0].reason),
        (deadly, "process")
    );
    let others = h.count("memory_notes").await - 1;
    assert_eq!(h.points().await.len() as i64, others);

    // After an edit the worker tries it again, and no other note is affected.
    h.edit(deadly, "Harmless now.").await;
    h.drain().await;
    h.assert_converged().await;
}

async fn is_leased(pool: &sqlx::PgPool, note: Uuid) -> bool {
    sqlx::query_scalar(
        "select exists (select from note_index_state
                         where note_id = $1 and lease_until > now() and holder is not null)",
    )
    .bind(note)
    .fetch_one(pool)
    .await
    .unwrap()
}

#[tokio::test]
async fn a_note_longer_than_allowed_is_dead_lettered_without_being_read() {
    let h = Harness::start_with(|toml| toml.replace("[worker]", "[worker]\nmax_note_bytes = 1000"))
        .await;
    let long = h.insert(&"long ".repeat(201)).await;
    h.insert(&"short ".repeat(100)).await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.dead), (1, 1));
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!((letters[0].note_id, letters[0].attempts), (long, 1));
    let reason = letters[0].last_error.clone().unwrap();
    for word in ["1005 bytes", "worker.max_note_bytes", "1000"] {
        assert!(reason.contains(word), "{reason} lacks {word}");
    }
    h.edit(long, "short enough").await;
    h.drain().await;
    h.assert_converged().await;
}

/// Each has killed ten workers, as far as Postgres knows. One is deleted, one moves.
#[tokio::test]
async fn a_note_that_killed_every_worker_can_still_be_deleted_or_moved() {
    let h = Harness::start().await;
    let gone = h.insert("a deadly note").await;
    let moved = h.insert("another deadly note").await;
    h.drain().await;
    sqlx::query("update note_index_state set claims_lost = 10")
        .execute(&h.pool)
        .await
        .unwrap();
    h.delete(gone).await;
    h.execute(
        "update memory_notes set tenant_id = 'u', text = $2 where note_id = $1",
        moved,
        "its new text is deadly",
    )
    .await;
    h.insert("one that is indexed").await;
    h.drain_with_retries().await;
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].note_id, moved);
    assert_eq!(letters[0].reason, "process");
    assert_eq!(h.points_of(gone).await, 0);
    let tenants: Vec<_> = h
        .points()
        .await
        .into_iter()
        .filter(|point| point.payload["note_id"] == moved.to_string())
        .map(|point| point.payload["tenant_id"].clone())
        .collect();
    assert_eq!(tenants, ["u"]);
}

/// The claims are not lost in a row: a worker that releases the note has survived it.
#[tokio::test]
async fn a_note_that_waits_for_the_provider_is_no_suspect() {
    let h = Harness::start().await;
    h.insert("indexed").await;
    h.drain().await;
    let note = h.insert("a note that waits").await;
    h.execute(
        "insert into note_index_state (note_id, embedding_version, lease_token, claims_lost)
         select $1, embedding_version, 0, length($2) from index_versions",
        note,
        "123",
    )
    .await;
    h.provider.always(Behaviour::Status(401));
    let working = h.work();
    eventually(async || h.count("note_index_state where claims_lost > 0").await == 0).await;
    working.stop().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
}

/// Fails every write of a chunk with this SQLSTATE, or of those that match `which` alone.
async fn fail_chunks(h: &Harness, sqlstate: &str, which: &str) {
    let trigger = format!(
        "create or replace function fails() returns trigger language plpgsql as $$
         begin
             if new.text like '{which}' then raise exception 'why' using errcode = '{sqlstate}'; end if;
             return new;
         end $$;
         create or replace trigger fails before insert on memory_note_chunks
             for each row execute function fails();"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(trigger))
        .execute(&h.pool)
        .await
        .unwrap();
}

/// A worker runs into what [`fail_chunks`] makes, again and again, and blames no note.
async fn is_an_outage(h: &Harness, sqlstate: &str) {
    fail_chunks(h, sqlstate, "%").await;
    insert_many(h, 20).await;
    let worker = h.worker();
    let stop = CancellationToken::new();
    let test = async {
        for _ in 0..5 {
            eventually(async || worker.outage().is_some()).await;
            eventually(async || worker.outage().is_none()).await;
        }
        let blamed = "indexing_outbox where attempts > 0 or status <> 'PENDING'";
        assert_eq!(h.count(blamed).await, 0, "{sqlstate}");
        sqlx::raw_sql("drop trigger fails on memory_note_chunks")
            .execute(&h.pool)
            .await
            .unwrap();
        eventually(async || h.count("indexing_outbox").await == 0).await;
        stop.cancel();
    };
    tokio::join!(worker.run(stop.clone()), test);
    assert_eq!(worker.totals().failed, 0, "{sqlstate}");
}

/// One of each class that says nothing about a row, and two that do, but of every row.
#[tokio::test]
async fn a_state_of_postgres_that_stops_every_write_blames_no_note() {
    let h = Harness::start().await;
    h.insert("indexed before").await;
    h.drain().await;
    for sqlstate in [
        "53100", "53200", "55000", "55P03", "57014", "58030", "25006", "25P04", "40001", "40P01",
        "XX000", "XX001", "P0001", "23514",
    ] {
        is_an_outage(&h, sqlstate).await;
    }
    h.assert_converged().await;
}

/// Whatever the code says: if the others are taken, it is the note. Unless the code can mean no row.
#[tokio::test]
async fn a_note_for_which_postgres_fails_inside_is_dead_lettered_alone() {
    for sqlstate in ["XX000", "XX001", "P0001"] {
        let h = Harness::start().await;
        fail_chunks(&h, sqlstate, "%secret%").await;
        // The oldest, and nothing is indexed yet that could show that it is to blame.
        let secret = h.insert("a secret").await;
        insert_many(&h, 5).await;
        h.drain_with_retries().await;
        let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
        assert_eq!(letters.len(), 1, "{sqlstate}");
        assert_eq!(
            (letters[0].note_id, &*letters[0].reason),
            (secret, "postgres")
        );
        assert_eq!(h.points().await.len(), 5);
    }
}

/// As Postgres says it of one long note: that it lacks memory, time or a part of its disk.
#[tokio::test]
async fn a_note_for_which_postgres_lacks_something_holds_up_no_other_and_is_not_blamed() {
    for sqlstate in ["53200", "53400", "57014", "58030", "58P01"] {
        let h = Harness::start().await;
        h.insert("indexed before").await;
        h.drain().await;
        fail_chunks(&h, sqlstate, "%secret%").await;
        h.insert("a secret").await;
        insert_many(&h, 20).await;
        let working = h.work();
        eventually(async || h.points().await.len() == 21).await;
        working.stop().await;
        let blamed = "indexing_outbox where attempts > 0 or status <> 'PENDING'";
        assert_eq!(h.count(blamed).await, 0, "{sqlstate}");
        assert_eq!(h.count("indexing_outbox").await, 1, "{sqlstate}");
    }
}

#[tokio::test]
async fn a_note_for_which_postgres_lacks_something_gets_its_new_labels() {
    let h = Harness::start().await;
    let note = h.insert("an old text").await;
    insert_many(&h, 3).await;
    h.drain().await;
    fail_chunks(&h, "53200", "%secret%").await;
    h.edit(note, "a secret").await;
    h.execute(
        "update memory_notes set tenant_id = $2 where note_id = $1",
        note,
        "another",
    )
    .await;
    let working = h.work();
    let of_another = async || {
        let points = h.points().await;
        let of_note = points
            .iter()
            .filter(|point| point.payload["note_id"] == *note.to_string());
        of_note.clone().count() > 0
            && of_note
                .clone()
                .all(|point| point.payload["tenant_id"] == *"another")
    };
    eventually(of_another).await;
    working.stop().await;
}

/// The worker lives: what it could not release says nothing about the note.
#[tokio::test]
async fn a_claim_that_its_own_worker_takes_over_does_not_count_as_lost() {
    let h = Harness::start().await;
    let note = h.insert("claimed twice").await;
    let worker = h.worker();
    for (holder, lost) in [
        (worker.holder().to_owned(), 0),
        ("a dead one".to_owned(), 1),
    ] {
        h.execute(
            "insert into note_index_state (note_id, embedding_version, lease_token, lease_until, holder)
             select $1, embedding_version, 0, now() - interval '1 second', $2 from index_versions
             on conflict (note_id, embedding_version) do update
                set lease_until = excluded.lease_until, holder = excluded.holder",
            note,
            &holder,
        )
        .await;
        let store = &h.pipeline.serving.store;
        let version = &h.pipeline.version.name;
        let claim = store
            .claim(
                version,
                worker.holder(),
                std::time::Duration::from_secs(5),
                1,
                1_000,
                elf::store::ClaimScope::ALL,
            )
            .await
            .unwrap()
            .unwrap();
        assert_eq!(claim.notes[0].lost_claims, lost);
    }
}
