//! The clock of Postgres goes back: after a failover to a server whose clock is behind, or after a
//! correction. What was written before that does not wait as long as the clock went back.

use std::time::Duration;

use elf::store::ClaimScope;
use elf::worker::Checkpoint;
use uuid::Uuid;

use crate::support::eventually;
use crate::support::harness::Harness;

/// Sets every time in Postgres an hour ahead. That is the same as to set the clock back by an hour.
const AN_HOUR_BACK: &str = "
    update indexing_outbox
       set created_at = created_at + interval '1 hour', updated_at = updated_at + interval '1 hour',
           available_at = available_at + interval '1 hour';
    update note_index_state
       set leased_at = leased_at + interval '1 hour', lease_until = lease_until + interval '1 hour';
    update index_upkeep set lease_until = lease_until + interval '1 hour';
    update index_job set lease_until = lease_until + interval '1 hour';
    update index_versions
       set verify_lease_until = verify_lease_until + interval '1 hour',
           verify_started_at = verify_started_at + interval '1 hour'";

const LEASE: Duration = Duration::from_secs(10);

async fn an_hour_back(h: &Harness) {
    sqlx::raw_sql(AN_HOUR_BACK).execute(&h.pool).await.unwrap();
}

#[tokio::test]
async fn changes_from_before_are_indexed_and_those_for_later_stay_for_later() {
    let h = Harness::start().await;
    h.insert("from before").await;
    let tomorrow = "insert into indexing_outbox (note_id, available_at)
                    values (gen_random_uuid(), now() + interval '1 day'), (gen_random_uuid(), 'infinity')";
    sqlx::raw_sql(tomorrow).execute(&h.pool).await.unwrap();
    an_hour_back(&h).await;
    h.insert("from after").await;
    let working = h.work();
    eventually(async || h.count("indexing_outbox").await == 2).await;
    working.stop().await;
    assert_eq!(h.points().await.len(), 2);
    let scheduled = "indexing_outbox where available_at > now() + interval '23 hours'";
    assert_eq!(h.count(scheduled).await, 2);
}

#[tokio::test]
async fn a_note_that_failed_is_retried_after_its_backoff() {
    let h = Harness::start_with(|toml| {
        toml.replace(
            "backoff_base_ms = 1\nbackoff_max_ms = 5",
            "backoff_base_ms = 1000\nbackoff_max_ms = 1000",
        )
    })
    .await;
    h.provider.poison(
        "arsenic",
        crate::support::embedding_server::Behaviour::Status(400),
    );
    h.insert("arsenic").await;
    h.insert("sugar").await;
    h.drain().await;
    assert_eq!(h.count("indexing_outbox where status = 'FAILED'").await, 1);
    an_hour_back(&h).await;
    h.provider.heal();
    h.drain_with_retries().await;
    h.assert_converged().await;
}

/// A dead worker of a lease of an hour, and one that lives.
#[tokio::test]
async fn the_leases_of_dead_workers_end() {
    let h = Harness::start().await;
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    h.insert("leased by a worker that died").await;
    let hour = Duration::from_secs(3_600);
    let claim = |holder| store.claim(version, holder, hour, 9, 1 << 20, ClaimScope::ALL);
    let dead = claim("dead").await.unwrap().expect("it is due");
    assert!(claim("living").await.unwrap().is_none(), "it is leased");
    let job = async |holder| {
        let job = store.take_job("rebuild", "notes__1", holder, LEASE).await;
        job.unwrap().holder
    };
    assert_eq!(job("dead").await, "dead");
    assert_eq!(job("living").await, "dead");
    let verify = |interval| store.begin_verify(version, interval, LEASE);
    assert!(verify(Some(Duration::ZERO)).await.unwrap().is_some());
    assert!(verify(None).await.unwrap().is_none());
    let upkeep = async |holder| store.take_upkeep(version, holder, LEASE).await.unwrap();
    assert!(upkeep("dead").await);
    assert!(!upkeep("living").await);

    an_hour_back(&h).await;
    store.reschedule_ahead(version, None).await.unwrap();
    let living = claim("living").await.unwrap().expect("the lease is void");
    assert!(living.token > dead.token);
    let lost = living.notes[0].lost_claims;
    assert_eq!(lost, 0, "the clock ended the lease, and not the note");
    assert_eq!(job("living").await, "living");
    assert!(verify(None).await.unwrap().is_some(), "it is resumed");
    assert!(upkeep("living").await);
}

#[tokio::test]
async fn a_worker_that_lives_keeps_its_notes() {
    let h = Harness::start().await;
    let note = h.insert("in flight").await;
    let held = h.held_at(Checkpoint::Embedded).await;
    an_hour_back(&h).await;
    let renewed = format!("note_index_state where note_id = '{note}' and leased_at <= now()");
    eventually(async || h.count(&renewed).await == 1).await;
    held.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    held.stop().await;
    h.assert_converged().await;
}

/// Rows from before count as due: a reindex must not serve a version that misses them.
#[tokio::test]
async fn a_version_with_changes_from_before_is_not_caught_up() {
    let h = Harness::start().await;
    let (store, version) = (&h.pipeline.serving.store, &h.pipeline.version.name);
    sqlx::query(
        "insert into indexing_outbox (note_id, embedding_version, available_at)
         values ($1, $2, now()), ($1, $2, now() + interval '1 day')",
    )
    .bind(Uuid::new_v4())
    .bind(version)
    .execute(&h.pool)
    .await
    .unwrap();
    an_hour_back(&h).await;
    assert!(!store.is_caught_up(version).await.unwrap());
    sqlx::raw_sql("delete from indexing_outbox where available_at < now() + interval '2 hours'")
        .execute(&h.pool)
        .await
        .unwrap();
    assert!(store.is_caught_up(version).await.unwrap());
}
