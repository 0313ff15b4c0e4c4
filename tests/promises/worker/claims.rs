//! A claim does not wait for a note with thousands of rows, for the backlog of another
//! version, or for a lock of an application.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elf::store::{Blame, ClaimScope};
use elf::worker::{Breakpoint, Checkpoint};
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use uuid::Uuid;

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, spawn};
use crate::support::site::Site;

#[tokio::test]
async fn ten_thousand_rows_of_one_note_do_not_hide_the_others() {
    let h = Harness::start().await;
    let hot = h.insert("hot").await;
    sqlx::query("insert into indexing_outbox (note_id) select $1 from generate_series(1, 10000)")
        .bind(hot)
        .execute(&h.pool)
        .await
        .unwrap();
    let cold = h.insert("cold").await;
    let store = &h.pipeline.serving.store;
    let lease = h.config.worker.lease();
    let version = &h.pipeline.version.name;
    let claim = store
        .claim(
            version,
            "me",
            lease,
            8,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await
        .unwrap()
        .unwrap();
    let mut claimed = claim.note_ids();
    claimed.sort();
    let mut both = vec![hot, cold];
    both.sort();
    assert_eq!(claimed, both);

    // Nor while another worker has the lease of the hot note.
    store
        .release(version, claim.token, &[cold], Duration::ZERO, false)
        .await
        .unwrap();
    let other = store
        .claim(
            version,
            "other",
            lease,
            8,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await
        .unwrap()
        .unwrap();
    assert_eq!(other.note_ids(), [cold]);
    store
        .release(version, claim.token, &[hot], Duration::ZERO, false)
        .await
        .unwrap();
    store
        .release(version, other.token, &[cold], Duration::ZERO, false)
        .await
        .unwrap();
    let report = h.drain().await;
    assert_eq!(report.notes, 2, "all rows of a note are one claim");
    h.assert_converged().await;
}

#[tokio::test]
async fn a_fresh_note_does_not_wait_for_the_backlog() {
    let h = Harness::start_with(|toml| {
        toml.replace("batch_notes = 16", "batch_notes = 8")
            .replace("concurrency = 2", "concurrency = 1")
    })
    .await;
    for n in 0..100 {
        h.insert(&format!("Note {n} of the backlog.")).await;
    }
    sqlx::query("update indexing_outbox set available_at = now() - interval '1 hour'")
        .execute(&h.pool)
        .await
        .unwrap();
    let turns = Turns::default();
    let (_, stop, running) = spawn(h.worker().with_breakpoint(turns.breakpoint()));
    turns.arrived(1).await;
    let fresh = h.insert("fresh").await;
    turns.allow(2);
    turns.arrived(3).await;
    assert_eq!(h.points_of(fresh).await, 1, "the second batch has it");
    assert_eq!(h.count("indexing_outbox").await, 92, "and nothing else");
    turns.allow(usize::MAX);
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

/// Lets so many batches begin as the test allows.
#[derive(Clone, Default)]
struct Turns {
    arrived: Arc<watch::Sender<usize>>,
    allowed: Arc<watch::Sender<usize>>,
}

impl Turns {
    fn breakpoint(&self) -> Breakpoint {
        let turns = self.clone();
        Arc::new(move |checkpoint| {
            let turns = turns.clone();
            Box::pin(async move {
                if checkpoint != Checkpoint::Claimed {
                    return;
                }
                turns.arrived.send_modify(|n| *n += 1);
                let turn = *turns.arrived.borrow();
                let mut allowed = turns.allowed.subscribe();
                allowed.wait_for(|allowed| *allowed >= turn).await.unwrap();
            })
        })
    }

    fn allow(&self, batches: usize) {
        self.allowed.send_replace(batches);
    }

    async fn arrived(&self, batches: usize) {
        let mut arrived = self.arrived.subscribe();
        arrived.wait_for(|n| *n >= batches).await.unwrap();
    }
}

/// A reindex puts every note into the outbox at once. That must not slow down a daemon of
/// the active version, and the active version's rows must not slow down the reindex.
#[tokio::test]
async fn a_backlog_of_another_version_costs_a_claim_nothing() {
    let h = Harness::start().await;
    let note = h.insert("mine").await;
    let rows = "insert into indexing_outbox (note_id, embedding_version, available_at)
                select gen_random_uuid(), $1, now() - interval '1 hour' from generate_series(1, 20000)";
    sqlx::query(rows)
        .bind("another one")
        .execute(&h.pool)
        .await
        .unwrap();
    sqlx::query("analyze indexing_outbox")
        .execute(&h.pool)
        .await
        .unwrap();
    let version = &h.pipeline.version.name;
    let read = rows_read_by_a_claim(&h, version).await;
    assert!(read < 50.0, "an active version's claim read {read} rows");

    // A claim of a building version never reads the rows of the active version, those
    // without a version included.
    sqlx::query(
        "insert into index_versions (embedding_version, embedding_dim, settings, state)
         values ('built', 8, '{}', 'building')",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    sqlx::query(rows)
        .bind(None::<&str>)
        .execute(&h.pool)
        .await
        .unwrap();
    sqlx::query("insert into indexing_outbox (note_id, embedding_version) values ($1, 'built')")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    let read = rows_read_by_a_claim(&h, "built").await;
    assert!(read < 50.0, "a building version's claim read {read} rows");
}

/// How many rows of the outbox a claim of `version` reads. The claim is rolled back.
async fn rows_read_by_a_claim(h: &Harness, version: &str) -> f64 {
    let claim = concat!(
        "explain (analyze, timing off, format json) ",
        include_str!("../../../sql/queries/claim.sql")
    );
    let mut transaction = h.pool.begin().await.unwrap();
    let plan: serde_json::Value = sqlx::query_scalar(claim)
        .bind(version)
        .bind("me")
        .bind(30.0f64)
        .bind(16i32)
        .bind(1i64 << 20)
        .bind(None::<chrono::DateTime<chrono::Utc>>)
        .bind(None::<Uuid>)
        .bind(elf::store::LOST_CLAIMS_UNTIL_ALONE as i32)
        .bind(i32::MAX)
        .bind(None::<f64>)
        .bind(true)
        .fetch_one(&mut *transaction)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    rows_read(&plan[0]["Plan"])
}

/// Rows that the scans of the outbox below `node` returned or threw away.
fn rows_read(node: &serde_json::Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let own = if node["Relation Name"] == "indexing_outbox" || node["Index Name"].is_string() {
        number("Actual Loops")
            * (number("Actual Rows")
                + number("Rows Removed by Filter")
                + number("Rows Removed by Index Recheck"))
    } else {
        0.0
    };
    let below = node["Plans"].as_array().into_iter().flatten();
    own + below.map(rows_read).sum::<f64>()
}

/// An application deletes in a long transaction: the worker neither waits for it
/// nor makes it wait in a circle.
#[tokio::test]
async fn a_worker_never_waits_for_an_application() {
    let h = Harness::start().await;
    let held = h.insert("held by the application").await;
    let free = h.insert("free").await;
    let mut application = PgConnection::connect(&h.database.url()).await.unwrap();
    let mut transaction = application.begin().await.unwrap();
    sqlx::query("delete from memory_notes where note_id = $1")
        .bind(held)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let (_, stop, running) = spawn(h.worker());
    eventually(async || h.points_of(free).await == 1).await;
    assert_eq!(h.points_of(held).await, 0);
    transaction.commit().await.unwrap();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

/// It is indexed while nothing else is in flight, and a backlog always has a next batch.
#[tokio::test]
async fn a_suspect_in_a_backlog_has_its_turn() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 1")).await;
    h.insert("The first of the backlog.").await;
    let suspect = h.insert("The suspect.").await;
    h.execute(
        "insert into note_index_state (note_id, embedding_version, lease_token, claims_lost)
         select $1, embedding_version, 0, length($2) from index_versions",
        suspect,
        "12",
    )
    .await;
    for n in 0..60 {
        h.insert(&format!("Note {n} of the backlog.")).await;
    }
    sqlx::query("update indexing_outbox set available_at = available_at - interval '1 hour'")
        .execute(&h.pool)
        .await
        .unwrap();
    h.provider.hold();
    let working = h.work();
    h.provider.holding(1).await;
    let was_released = format!(
        "note_index_state where note_id = '{suspect}' and lease_token > 0 and holder is null"
    );
    eventually(async || h.count(&was_released).await == 1).await;
    h.provider.release();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    working.stop().await;
    h.assert_converged().await;
    let texts = h.provider.texts_seen();
    let turn = texts.iter().position(|text| text.contains("suspect"));
    // Those in flight with it come first, and a text may be sent again that was held for long.
    assert!(turn.unwrap() < 10, "{texts:?}");
}

/// Each suspect is indexed alone. Between two of them a note that was just written has its turn.
#[tokio::test]
async fn suspects_do_not_hold_up_what_is_written_just_now() {
    let h = Harness::start().await;
    for n in 0..8 {
        let suspect = h.insert(&format!("Suspect {n}.")).await;
        h.execute(
            "insert into note_index_state (note_id, embedding_version, lease_token, claims_lost)
             select $1, embedding_version, 0, length($2) from index_versions",
            suspect,
            "12",
        )
        .await;
    }
    sqlx::query("update indexing_outbox set available_at = available_at - interval '1 hour'")
        .execute(&h.pool)
        .await
        .unwrap();
    h.insert("Written just now.").await;
    h.drain().await;
    let texts = h.provider.texts_seen();
    let turn = texts.iter().position(|text| text.contains("just now"));
    assert!(turn.unwrap() < 3, "{texts:?}");
    h.assert_exact().await;
}

/// Beside a batch that may kill the worker, it applies access labels. These notes are not to blame.
#[tokio::test]
async fn a_claim_that_indexes_no_text_blames_no_note() {
    let h = Harness::start().await;
    h.insert("An innocent note.").await;
    let store = &h.pipeline.serving.store;
    let version = &h.pipeline.version.name;
    let lease = Duration::from_secs(5);
    let lost = "note_index_state where claims_lost > 0";
    for (blame, counted) in [(Blame::Never, 0), (Blame::IfLost, 1)] {
        let scope = ClaimScope {
            blame,
            ..ClaimScope::ALL
        };
        for holder in ["dies", "comes later"] {
            let claim = store
                .claim(version, holder, lease, 16, 1 << 20, scope)
                .await;
            assert!(claim.unwrap().is_some());
            sqlx::query("update note_index_state set lease_until = now()")
                .execute(&h.pool)
                .await
                .unwrap();
        }
        assert_eq!(h.count(lost).await, counted, "{blame:?}");
    }
}

/// Each claim has begun behind the one before it when the provider stops in the middle of a backlog.
#[tokio::test]
async fn while_the_provider_is_away_claims_that_find_nothing_are_few() {
    let site = Site::start().await;
    site.configure("poll_interval_ms = 50", "poll_interval_ms = 1000");
    site.configure(
        "backoff_base_ms = 1\nbackoff_max_ms = 5",
        "backoff_base_ms = 1000",
    );
    site.provider.share_processor(Duration::from_millis(2));
    let mut db = site.connect().await;
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'waiting note ' || n from generate_series(1, 2000) n",
    )
    .execute(&mut db)
    .await
    .unwrap();
    // Not just written, or claims would take them as such.
    sqlx::query("update indexing_outbox set available_at = now() - interval '1 minute'")
        .execute(&mut db)
        .await
        .unwrap();
    let worker = site.worker();
    let url = format!("{}/metrics", worker.admin().await);
    let claims = async |outcome: &str| {
        let text = reqwest::get(&url).await.unwrap().text().await.unwrap();
        let series = format!("elf_claims_total{{outcome=\"{outcome}\"}} ");
        let (_, count) = text.split_once(&series).unwrap();
        let count = count.lines().next().unwrap();
        count.parse::<u64>().unwrap()
    };
    eventually(async || claims("notes").await >= 20).await;
    site.provider.always(Behaviour::Status(503));
    let probes = async |count: usize| {
        let seen = site.provider.requests();
        eventually(async || site.provider.requests() >= seen + count).await;
    };
    // First the claims walk over the rest of the backlog.
    let mut walked = 0;
    while walked != claims("notes").await {
        walked = claims("notes").await;
        probes(1).await;
    }
    // Each claim of a walk, and each batch that ends, may be followed by two that find nothing. A loop that did not pause
    // would make hundreds a second.
    let (before, began) = (
        [claims("empty").await, claims("notes").await],
        Instant::now(),
    );
    probes(3).await;
    let [empty, notes] = [
        claims("empty").await - before[0],
        claims("notes").await - before[1],
    ];
    let secs = 1 + began.elapsed().as_secs();
    assert!(
        empty <= 2 * notes + 20 * secs,
        "{empty} claims found nothing and {notes} notes in {secs} seconds"
    );
    worker.stop().await.exits(0);
}
