//! Upkeep: what one worker does for all, and the tables that must stay small.

use std::time::{Duration, Instant};

use chrono::DateTime;
use elf::store::Claim;
use elf::worker::Checkpoint;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::site::Site;

const LEASE: Duration = Duration::from_secs(30);

async fn claimed(h: &Harness) -> Claim {
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let claim = store
        .claim(
            version,
            "me",
            LEASE,
            256,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await;
    claim.unwrap().expect("a note is due")
}

/// Waits until so many statements wait for a lock of this database.
async fn blocked(h: &Harness, statements: i64) {
    let waiting =
        "pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually(async || h.count(waiting).await == statements).await;
}

/// The ack waits first for the note's state; the retry comes second.
#[tokio::test]
async fn a_retry_and_an_ack_of_the_same_note_do_not_deadlock() {
    let h = Harness::start().await;
    let note = h.insert("dead once, and edited since").await;
    sqlx::query("insert into indexing_outbox (note_id, status) values ($1, 'DEAD')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    let claim = claimed(&h).await;
    assert_eq!(
        claim.notes[0].outbox_ids.len(),
        2,
        "the dead letter is acked too"
    );

    // What the commit of a batch does.
    h.execute(
        "update note_index_state set revision = lease_token, holder = $2 where note_id = $1",
        note,
        "worker",
    )
    .await;

    let mut other = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::query("select from note_index_state where note_id = $1 for update")
        .bind(note)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let notes: Vec<_> = claim.notes.iter().map(|note| (note, None)).collect();
    let ack = store.ack(version, claim.token, &notes, false);
    let retry = async {
        blocked(&h, 1).await;
        store.retry_dead(None).await
    };
    let open = async {
        blocked(&h, 2).await;
        transaction.commit().await.unwrap();
    };
    let (acked, retried, ()) = tokio::join!(ack, retry, open);
    assert_eq!(acked.unwrap(), [note]);
    assert_eq!(retried.unwrap(), 0, "the ack was first");
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn a_change_is_as_old_as_it_has_been_due() {
    let h = Harness::start().await;
    sqlx::query(
        "insert into indexing_outbox (note_id, created_at, available_at)
         values ($1, now() - interval '1 day', now() - interval '1 second')",
    )
    .bind(Uuid::new_v4())
    .execute(&h.pool)
    .await
    .unwrap();
    let counts = h.pipeline.serving.store.outbox_counts(None).await.unwrap();
    assert!(counts.oldest_pending_secs.unwrap() < 3_600.0, "{counts:?}");
    let age = chrono::Utc::now() - claimed(&h).await.notes[0].oldest;
    assert!(age < chrono::TimeDelta::hours(1), "{age}");
}

#[tokio::test]
async fn one_worker_of_all_does_the_upkeep() {
    let h = Harness::start().await;
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let (first, second, stop) = (h.worker(), h.worker(), CancellationToken::new());
    let watching = async {
        first.wait_for_upkeep_lease().await;
        assert!(
            !store
                .take_upkeep(version, second.holder(), LEASE)
                .await
                .unwrap()
        );
        assert!(
            store
                .take_upkeep(version, first.holder(), LEASE)
                .await
                .unwrap()
        );
        // The first one dies, and its lease ends.
        sqlx::query("update index_upkeep set lease_until = now()")
            .execute(&h.pool)
            .await
            .unwrap();
        assert!(
            store
                .take_upkeep(version, second.holder(), LEASE)
                .await
                .unwrap()
        );
        assert!(
            !store
                .take_upkeep(version, first.holder(), LEASE)
                .await
                .unwrap()
        );
        stop.cancel();
    };
    tokio::join!(first.run(stop.clone()), watching);
}

/// With the leases and polls of a default configuration.
#[tokio::test]
async fn expiry_goes_on_within_seconds_when_its_worker_is_killed() {
    let site = Site::start().await;
    site.configure("lease_secs = 5", "lease_secs = 30");
    site.configure("poll_interval_ms = 50", "poll_interval_ms = 1000");
    let note = site.note("soon over").await;
    let first = site.worker();
    let db = sqlx::PgPool::connect(&site.database.url()).await.unwrap();
    let indexed = async || {
        let acked = "select count(*) from note_index_state
                      where chunk_count > 0 and lease_until is null";
        let acked = sqlx::query_scalar::<_, i64>(acked).fetch_one(&db).await;
        acked.unwrap()
    };
    eventually(async || indexed().await == 1).await;
    first.kill().await;
    // As if it had expired with time alone: no trigger.
    sqlx::raw_sql(AssertSqlSafe(format!(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
         update memory_notes set expires_at = now() where note_id = '{note}'; commit"
    )))
    .execute(&db)
    .await
    .unwrap();
    let second = site.worker();
    second.says("worker started").await;
    let began = Instant::now();
    eventually(async || indexed().await == 0).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(12), "{took:?}");
    second.stop().await.exits(0);
}

/// As when a worker dies between the ack and the last step. A worker that acked the note a moment ago may
/// be before that step.
#[tokio::test]
async fn the_state_of_a_deleted_note_does_not_stay() {
    let h = Harness::start().await;
    let note = h.insert("gone unnoticed").await;
    h.insert("still there").await;
    h.drain().await;
    sqlx::raw_sql("alter table memory_notes disable trigger user")
        .execute(&h.pool)
        .await
        .unwrap();
    h.delete(note).await;
    assert_eq!(h.points_of(note).await, 1);

    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let fresh = store.enqueue_gone(version, Uuid::nil()).await.unwrap();
    assert_eq!(fresh.expect("two states").1, 0);
    sqlx::raw_sql("update note_index_state set indexed_at = indexed_at - interval '2 minutes'")
        .execute(&h.pool)
        .await
        .unwrap();
    let page = store.enqueue_gone(version, Uuid::nil()).await.unwrap();
    let (last, gone) = page.expect("two states");
    assert_eq!(gone, 1);
    assert_eq!(store.enqueue_gone(version, last).await.unwrap(), None);
    let again = store.enqueue_gone(version, Uuid::nil()).await.unwrap();
    assert_eq!(again, Some((last, 0)), "it waits in the outbox already");
    h.drain().await;
    assert_eq!(h.count("note_index_state").await, 1);
    assert_eq!(h.points_of(note).await, 0);
    h.assert_converged().await;
}

#[tokio::test]
async fn an_abandoned_reindex_keeps_one_row_for_each_note() {
    let h = Harness::start().await;
    let notes = [h.insert("one").await, h.insert("two").await];
    h.drain().await;
    sqlx::query(
        "insert into index_versions (embedding_version, embedding_dim, settings, state)
         values ('built', 8, '{}', 'building')",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    for edit in 0..5 {
        for note in notes {
            h.edit(note, &format!("edit {edit}")).await;
        }
        h.drain().await;
    }
    let rows = "indexing_outbox where embedding_version = 'built'";
    assert_eq!(h.count(rows).await, 10);
    let store = &h.pipeline.serving.store;
    let first = (DateTime::UNIX_EPOCH, Uuid::nil());
    let coalesce = |after| store.coalesce_building("built", after);
    let (last, gone) = coalesce(first).await.unwrap().expect("ten rows");
    assert_eq!(gone, 8);
    assert_eq!(coalesce(last).await.unwrap(), None, "that was the last row");
    for note in notes {
        assert_eq!(h.count(&format!("{rows} and note_id = '{note}'")).await, 1);
    }
    let (_, gone) = coalesce(first).await.unwrap().expect("two rows");
    assert_eq!(gone, 0);

    // Rows for later ask for one more round then, however much later.
    let later = "insert into indexing_outbox (note_id, embedding_version, created_at, available_at)
                 select $1, 'built', now() - interval '1 day', t
                   from unnest(array[now() + interval '1 hour', 'infinity']) t";
    sqlx::query(later)
        .bind(notes[0])
        .execute(&h.pool)
        .await
        .unwrap();
    let (_, gone) = coalesce(first).await.unwrap().expect("two rows");
    assert_eq!(gone, 0);
    assert_eq!(h.count(rows).await, 4);
}

/// More than two pages: some expired at one moment, the others at the beginning of time.
#[tokio::test]
async fn notes_that_expire_at_once_are_enqueued_page_by_page() {
    let h = Harness::start().await;
    h.stock(12_000).await;
    sqlx::raw_sql(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
         update memory_notes
            set expires_at = case hashtext(note_id::text) % 2 when 0 then '-infinity' else now() end;
         commit",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let pages = async |look_back| {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = store.expire(version, look_back, after.as_ref(), true);
            let page = page.await.unwrap();
            pages.push(page.enqueued);
            after = page.next;
            if after.is_none() {
                return pages;
            }
        }
    };
    let of_an_hour: i64 = pages(Some(Duration::from_secs(3_600))).await.iter().sum();
    let expired_now = h.count("memory_notes where expires_at > '-infinity'").await;
    assert_eq!(of_an_hour, expired_now);
    let all = pages(None).await;
    assert_eq!(
        (all.len(), all.iter().sum::<i64>()),
        (3, 12_000 - expired_now)
    );
    let rows = h.count("indexing_outbox").await;
    let notes = h.count("(select distinct note_id from indexing_outbox) n");
    assert_eq!((rows, notes.await), (12_000, 12_000));
    assert_eq!(pages(None).await, [0, 0, 0]);
}

/// More than a page.
#[tokio::test]
async fn a_worker_takes_all_out_that_expire_at_once() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    h.stock(6_000).await;
    sqlx::raw_sql(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
         update memory_notes set expires_at = now(); commit",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    h.drain().await;
    assert_eq!(h.count("note_index_state where chunk_count > 0").await, 0);
    assert_eq!(h.count("indexing_outbox").await, 0);
}

/// Nobody looks for expired notes, as when a batch takes longer than the upkeep looks back.
#[tokio::test]
async fn a_note_that_expires_while_it_is_indexed_is_taken_out_at_once() {
    let h = Harness::start().await;
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    let hour = Duration::from_secs(3_600);
    assert!(store.take_upkeep(version, "another", hour).await.unwrap());
    let note = h.insert("soon over").await;
    h.execute(
        "update memory_notes set expires_at = now() + interval '3 seconds', type = type || $2
          where note_id = $1",
        note,
        "",
    )
    .await;
    let held = h.held_at(Checkpoint::Committed).await;
    assert_eq!(h.count("memory_note_chunks").await, 1, "it was live then");
    eventually(async || h.count("memory_notes where expires_at <= now()").await == 1).await;
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    assert_eq!(h.points_of(note).await, 0);
    held.stop().await;
}

/// An application deletes the first notes, more than a page, while ELF drops a version.
#[tokio::test]
async fn a_drop_goes_on_behind_rows_that_were_deleted_meanwhile() {
    let h = Harness::start().await;
    h.stock(6_000).await;
    let mut other = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    sqlx::query(
        "delete from note_embeddings
          where note_id in (select note_id from note_embeddings order by note_id limit 5500)",
    )
    .execute(&mut *transaction)
    .await
    .unwrap();
    h.retire_all().await;
    let job = h.dead_job().await;
    let store = &h.pipeline.serving.store;
    let dropped = store.drop_version(&job, &h.pipeline.version.name);
    let deleted = async {
        eventually(async || h.count("note_embeddings").await == 5_500).await;
        transaction.commit().await.unwrap();
    };
    let (dropped, ()) = tokio::join!(dropped, deleted);
    assert_eq!(dropped.unwrap(), 6_000, "chunks");
    for table in ["note_embeddings", "note_index_state", "memory_note_chunks"] {
        assert_eq!(h.count(table).await, 0, "{table}");
    }
}

/// In the middle of each table, behind the first page of 5,000, and before the last commit.
#[tokio::test]
async fn a_drop_that_is_killed_goes_on_when_it_is_called_again() {
    let h = Harness::start().await;
    h.stock(6_000).await;
    h.retire_all().await;
    let job = h.dead_job().await;
    let mut other = PgConnection::connect(&h.database.url()).await.unwrap();
    let version = h.pipeline.version.name.clone();
    for (table, key, behind) in [
        ("note_index_state", "note_id", 5_500),
        ("note_embeddings", "note_id", 5_500),
        ("memory_note_chunks", "chunk_id", 5_500),
        ("index_collections", "collection", 0),
    ] {
        let mut transaction = other.begin().await.unwrap();
        sqlx::query(AssertSqlSafe(format!(
            "select from {table}
              where {key} = (select {key} from {table} order by {key} offset {behind} limit 1)
                for update"
        )))
        .execute(&mut *transaction)
        .await
        .unwrap();
        let (store, version) = (h.pipeline.serving.store.clone(), version.clone());
        let lease = job.clone();
        let dropping = tokio::spawn(async move { store.drop_version(&lease, &version).await });
        match behind {
            0 => blocked(&h, 1).await,
            // The others are gone, and it waits for this one.
            _ => eventually(async || h.count(table).await == 1).await,
        }
        dropping.abort();
        assert!(dropping.await.unwrap_err().is_cancelled());
        transaction.commit().await.unwrap();
        blocked(&h, 0).await;
        assert_eq!(h.count("index_versions").await, 1, "{table}");
    }
    let store = &h.pipeline.serving.store;
    store.drop_version(&job, &version).await.unwrap();
    for table in [
        "note_index_state",
        "note_embeddings",
        "memory_note_chunks",
        "note_chunk_embeddings",
        "index_versions",
    ] {
        assert_eq!(h.count(table).await, 0, "{table}");
    }
}
