//! The promises of `docs/inside/guarantees.md` at the size that people run: default settings and
//! thousands of notes of real text. The tests that take minutes are in `slow.rs`.

mod harm;
mod slow;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use elf::index::Filter;
use elf::rebuild;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::crash::{begin_life, embedded_in};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::Harness;
use crate::support::town::{LONG, Town};

/// Several batches of the default size for each of the batches in flight.
const NOTES: usize = 2_000;

/// Promises 1, 2, 6 and 12.
#[tokio::test]
async fn thousands_of_notes_that_change_while_they_are_indexed_become_exact() {
    let mut town = Town::start("thousands_of_notes_that_change").await;
    town.load(NOTES).await;
    let worker = town.site.worker();
    for _ in 0..4 {
        town.wait_for_progress(NOTES as i64 / 5).await;
        town.churn(200).await;
    }
    town.wait_until_drained(&worker).await;
    worker.stop().await.exits(0);
    town.compare().await.assert_none();

    let paid = town.site.provider.requests();
    let verified = town.site.json(&["verify", "--deep"]).await;
    assert_eq!(verified["missing"], 0, "{verified}");
    town.site.elf(&["rebuild"]).await.exits(0);
    assert_eq!(town.site.provider.requests(), paid, "it embedded something");
    town.compare().await.assert_none();

    for tenant in ["tenant-0", "tenant-7"] {
        let query = town.corpus.text();
        let words: String = query.chars().take(200).collect();
        let found = town
            .site
            .json(&["search", &words, "--tenant", tenant, "-n", "20"])
            .await;
        let items = found["items"].as_array().unwrap();
        assert!(!items.is_empty(), "nothing is found");
        for item in items {
            let note = item["note_id"].as_str().unwrap();
            let own = format!("memory_notes where note_id = '{note}' and tenant_id = '{tenant}'");
            assert!(town.has(&own).await, "{note} is another tenant's");
        }
    }
}

/// Promises 3 and 4: two workers that lose their leases again and again.
#[tokio::test]
async fn workers_that_lose_their_leases_make_nothing_old_and_leave_no_gap() {
    let town = Town::start("workers_that_lose_their_leases").await;
    let (h, mut corpus, _server) = town.into_harness().await;
    let notes = h.insert_all(&corpus.texts(NOTES)).await;
    h.drain().await;
    let (one, two) = (h.work(), h.work());
    let watched: Vec<Uuid> = notes[..20].to_vec();
    let watching = watch(&h, watched);
    for _ in 0..4 {
        let texts = corpus.texts(400);
        sqlx::query(
            "update memory_notes n set text = u.text
               from unnest($1::uuid[], $2::text[]) as u (note_id, text) where n.note_id = u.note_id",
        )
        .bind(&notes[..400])
        .bind(&texts)
        .execute(&h.pool)
        .await
        .unwrap();
        let began = Instant::now();
        while h.count("indexing_outbox").await > 200 {
            assert!(began.elapsed() < LONG, "nothing is indexed");
        }
        sqlx::query(
            "update note_index_state s set lease_until = now() - interval '1 second'
               from (select note_id from note_index_state where lease_until is not null
                        for update skip locked) held
              where s.note_id = held.note_id",
        )
        .execute(&h.pool)
        .await
        .unwrap();
    }
    let began = Instant::now();
    while h.count("indexing_outbox").await > 0 {
        assert!(began.elapsed() < LONG, "the outbox does not become empty");
    }
    one.stop().await;
    two.stop().await;
    // The notes that late workers requeued when they noticed their lost leases.
    h.drain_with_retries_at_once().await;
    let looks = watching.await;
    assert!(looks > 20, "only {looks} looks");
    h.compare().await.assert_none();
}

/// Looks at the points of each note in turn until the future it gives is awaited: every
/// note has to have one at every moment. Gives how often it looked.
fn watch(h: &Harness, notes: Vec<Uuid>) -> impl Future<Output = usize> + use<> {
    let (index, alias) = (
        h.pipeline.serving.index.clone(),
        h.pipeline.serving.alias.clone(),
    );
    let stop = CancellationToken::new();
    let looking = tokio::spawn({
        let stop = stop.clone();
        async move {
            for (looks, note) in notes.iter().cycle().enumerate() {
                if stop.is_cancelled() {
                    return looks;
                }
                let filter = Filter {
                    note_ids: Some(vec![*note]),
                    ..Filter::default()
                };
                let points = index.count(&alias, &filter).await.unwrap();
                assert!(points > 0, "{note} has vanished");
                tokio::task::yield_now().await;
            }
            0
        }
    });
    async move {
        stop.cancel();
        looking.await.unwrap()
    }
}

/// Promise 4, of a rebuild.
#[tokio::test]
async fn while_thousands_of_points_are_rebuilt_none_is_missed() {
    let town = Town::start("while_thousands_of_points_are_rebuilt").await;
    let (h, _corpus, _server) = town.into_harness().await;
    let notes = h.stock(2 * NOTES).await;
    let rebuild = async || {
        let site = h.rebuilds_with(h.pipeline.serving.index.clone());
        let options = rebuild::Options {
            swap_last: false,
            take_alias: false,
            keep_old: false,
            restart: false,
            notice: Arc::new(|_| {}),
        };
        rebuild::run(&site, &options, Arc::default(), CancellationToken::new())
            .await
            .unwrap()
    };
    rebuild().await;
    let watching = watch(&h, notes[..50].to_vec());
    let report = rebuild().await;
    assert!(watching.await > 0);
    assert_eq!(report.points, 2 * NOTES as u64);
    h.compare().await.assert_none();
}

/// Promises 5 and 9. No life sends a text twice, or a text whose vector Postgres had before
/// the life began.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn killed_among_thousands_of_notes_it_pays_once_and_stops_cleanly() {
    let mut town = Town::start("killed_among_thousands_of_notes").await;
    town.load(NOTES).await;
    let mut known: HashSet<String> = HashSet::new();
    for life in 0..4 {
        begin_life(&town.site, life);
        let worker = town.site.worker();
        worker.says("worker started").await;
        town.wait_for_progress(NOTES as i64 / 8).await;
        if life < 3 {
            worker.kill().await;
        } else {
            worker.stop().await.exits(0);
            let held = town
                .count("note_index_state where lease_until > now()")
                .await;
            assert_eq!(held, 0, "leases were kept");
        }
        town.wait_until_none(ELF_SESSIONS).await;
        town.expire_leases().await;
        assert_pays_once(&mut town, life, &mut known).await;
    }
    begin_life(&town.site, 4);
    let done = town.site.json(&["worker", "--once"]).await;
    assert_eq!(done["dead"], 0, "{done}");
    assert_pays_once(&mut town, 4, &mut known).await;
    town.compare().await.assert_none();
}

const ELF_SESSIONS: &str =
    "pg_stat_activity where datname = current_database() and application_name = 'elf'";

async fn assert_pays_once(town: &mut Town, life: usize, known: &mut HashSet<String>) {
    let sent = embedded_in(&town.site, life);
    let distinct: HashSet<String> = sent.iter().cloned().collect();
    assert_eq!(distinct.len(), sent.len(), "life {life} sent a text twice");
    let again = distinct.intersection(known).count();
    assert_eq!(again, 0, "life {life} paid again");
    let kept: Vec<String> = sqlx::query_scalar(
        "select text from memory_note_chunks join note_chunk_embeddings using (chunk_id, embedding_version)",
    )
    .fetch_all(&mut town.db)
    .await
    .unwrap();
    *known = kept.into_iter().collect();
}

/// Promise 7.
#[tokio::test]
async fn one_text_that_the_provider_rejects_among_thousands_is_dead_lettered_alone() {
    let mut town = Town::start("one_text_that_the_provider_rejects").await;
    let mut texts = town.corpus.texts(NOTES);
    texts[NOTES / 2] = "Nobody wants this xyzzy.".to_owned();
    town.site.provider.poison("xyzzy", Behaviour::Status(400));
    town.write(&texts).await;
    let worker = town.site.worker();
    town.wait_until_drained(&worker).await;
    worker.stop().await.exits(0);
    let bad: Vec<Uuid> =
        sqlx::query_scalar("select note_id from memory_notes where text like '%xyzzy%'")
            .fetch_all(&mut town.db)
            .await
            .unwrap();
    town.compare().await.assert_none_but_dead(&bad);
    let seen = town.site.provider.texts_seen();
    let good = seen.iter().filter(|text| !text.contains("xyzzy"));
    let distinct: HashSet<&String> = good.clone().collect();
    println!("{} texts, sent {} times", distinct.len(), good.count());
}

/// Promise 8.
#[tokio::test]
async fn an_outage_with_thousands_waiting_spends_no_attempts() {
    let mut town = Town::start("an_outage_with_thousands_waiting").await;
    let worker = town.site.worker();
    worker.says("worker started").await;
    for status in [503, 429] {
        town.site.provider.always(Behaviour::Status(status));
        town.load(NOTES / 2).await;
        let met = town.site.provider.requests();
        // The circuit is open by then: the later ones are its probes.
        town.site.provider.arrived(met + 4).await;
        let tried = "indexing_outbox where attempts > 0 or status <> 'PENDING'";
        assert_eq!(town.count(tried).await, 0);
        town.site.provider.heal();
        town.wait_until_none("indexing_outbox").await;
    }
    worker.stop().await.exits(0);
    town.compare().await.assert_none();
}
