//! One note, one key or one failover that must harm no other note. The faults have smaller
//! tests in `blame.rs`, `access.rs` and `lost_transactions.rs`; these are run by `make test-slow`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use elf::cli::wiring;
use elf::index::Filter;
use elf::search::Request;
use uuid::Uuid;

use super::NOTES;
use crate::support::embedding_server::Behaviour;
use crate::support::harness::Harness;
use crate::support::hooked::Hooked;
use crate::support::standby::Moment;
use crate::support::town::{LONG, Town};

/// The time limit for changes that need no new vector.
const SECONDS: Duration = Duration::from_secs(15);

/// Postgres refuses the chunks of notes with this word.
const FORBIDDEN: &str = "
    create function forbid() returns trigger language plpgsql as $$
    begin
        if new.text like '%forbidden-word%' then raise exception 'this is not for everybody'; end if;
        return new;
    end $$;
    create trigger forbid before insert on memory_note_chunks for each row execute function forbid();";

/// Promise 7: of 256 and of 2,000 notes one is refused by Postgres and one by the engine.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn one_note_that_postgres_or_the_index_rejects_among_thousands_is_dead_lettered_alone() {
    for count in [256, 2_000] {
        let mut town = Town::start("one_note_that_postgres_or_the_index_rejects").await;
        town.execute(FORBIDDEN).await;
        let (mut h, mut corpus, _server) = town.into_harness().await;
        let mut texts = corpus.texts(count);
        texts[count / 3] = "It says the forbidden-word.".into();
        texts[count / 2] = "The engine does not take it.".into();
        let notes = h.insert_all(&texts).await;
        let bad = {
            let found: Vec<Uuid> = sqlx::query_scalar(
                "select note_id from memory_notes
                  where text in ('It says the forbidden-word.', 'The engine does not take it.')
                  order by note_id",
            )
            .fetch_all(&h.pool)
            .await
            .unwrap();
            found
        };
        let by_engine: Uuid = sqlx::query_scalar(
            "select note_id from memory_notes where text = 'The engine does not take it.'",
        )
        .fetch_one(&h.pool)
        .await
        .unwrap();
        let index = Hooked::over(&h.pipeline.serving.index);
        index.refuse(by_engine);
        h.pipeline.serving.index = index;
        h.drain_with_retries_at_once().await;
        assert_eq!(notes.len(), count);
        h.compare().await.assert_none_but_dead(&bad);
    }
}

/// Promise 11: thousands of notes wait for a provider whose key has expired. Changes that need
/// no new vector reach the index nevertheless.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn while_a_key_is_expired_deleted_and_moved_notes_are_not_found() {
    let town = Town::start("while_a_key_is_expired").await;
    let (h, mut corpus, _server) = town.into_harness().await;
    let notes = h.insert_all(&corpus.texts(NOTES)).await;
    h.drain().await;
    h.provider.always(Behaviour::Status(401));
    h.insert_all(&corpus.texts(2 * NOTES)).await;
    let requests = h.provider.requests();
    let working = h.work();
    h.provider.arrived(requests + 1).await;
    let began = Instant::now();
    for (change, from) in [
        ("delete from memory_notes where note_id = any ($1)", 0),
        (
            "update memory_notes set status = 'archived' where note_id = any ($1)",
            100,
        ),
        (
            "update memory_notes set expires_at = now() where note_id = any ($1)",
            200,
        ),
        (
            "update memory_notes set tenant_id = 'another' where note_id = any ($1)",
            300,
        ),
    ] {
        sqlx::query(change)
            .bind(&notes[from..from + 100])
            .execute(&h.pool)
            .await
            .unwrap();
    }
    let gone = Filter {
        note_ids: Some(notes[..300].to_vec()),
        ..Filter::default()
    };
    loop {
        let left = h
            .pipeline
            .serving
            .index
            .count(&h.pipeline.serving.alias, &gone)
            .await
            .unwrap();
        let old = under_old_tenant(&h, &notes[300..400]).await;
        if left == 0 && old == 0 {
            break;
        }
        assert!(
            began.elapsed() < SECONDS,
            "{left} of 300 notes' points, {old} old labels"
        );
    }
    println!("followed in {:?}", began.elapsed());
    h.provider.heal();
    let began = Instant::now();
    while h.count("indexing_outbox").await > 0 {
        assert!(began.elapsed() < LONG, "the others are not indexed");
    }
    working.stop().await;
    h.compare().await.assert_none();
}

/// Points of `notes` under any tenant but `another`.
async fn under_old_tenant(h: &Harness, notes: &[Uuid]) -> u64 {
    let mut filter = Filter {
        note_ids: Some(notes.to_vec()),
        ..Filter::default()
    };
    let all = h
        .pipeline
        .serving
        .index
        .count(&h.pipeline.serving.alias, &filter)
        .await
        .unwrap();
    filter.keywords = BTreeMap::from([("tenant_id".to_owned(), "another".to_owned())]);
    all - h
        .pipeline
        .serving
        .index
        .count(&h.pipeline.serving.alias, &filter)
        .await
        .unwrap()
}

/// Promises 11 and 12: the new text of a note that moves to another tenant fails, and so
/// the note is found under neither its old text's tenant nor by the index's own filter.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn a_note_that_moves_while_its_text_fails_is_not_found_under_the_old_tenant() {
    let town = Town::start("a_note_that_moves_while_its_text_fails").await;
    let (h, mut corpus, _server) = town.into_harness().await;
    let notes = h.insert_all(&corpus.texts(NOTES)).await;
    h.drain().await;
    h.provider.poison("xyzzy", Behaviour::Status(400));
    let moved = &notes[..50];
    sqlx::query(
        "update memory_notes set tenant_id = 'another', text = 'xyzzy ' || text where note_id = any ($1)",
    )
    .bind(moved)
    .execute(&h.pool)
    .await
    .unwrap();
    let texts = corpus.texts(NOTES);
    h.insert_all(&texts).await;
    let working = h.work();
    let began = Instant::now();
    while under_old_tenant(&h, moved).await > 0 {
        assert!(
            began.elapsed() < SECONDS,
            "still found under the old tenant"
        );
    }
    let began = Instant::now();
    while h.count("indexing_outbox where status = 'PENDING'").await > 0 {
        assert!(began.elapsed() < LONG, "the others wait for them");
    }
    working.stop().await;
    h.drain_with_retries_at_once().await;
    assert_eq!(
        under_old_tenant(&h, moved).await,
        0,
        "found again once they are dead"
    );
    let searcher = wiring::searcher(&h.pipeline, &h.config).await.unwrap();
    for tenant in 0..20 {
        let filter = Filter {
            keywords: BTreeMap::from([("tenant_id".to_owned(), format!("tenant-{tenant}"))]),
            ..Filter::default()
        };
        let request = Request {
            filter,
            ..Request::hybrid("harbour light", 50)
        };
        let found = searcher.search(&request).await.unwrap().items;
        assert!(found.iter().all(|item| !moved.contains(&item.note_id)));
    }
}

/// Promise 7: a note that kills every worker is dead-lettered, while all others are indexed.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn a_note_that_kills_its_worker_each_time_is_dead_lettered_alone() {
    let mut town = Town::start("a_note_that_kills_its_worker").await;
    let mut texts = town.corpus.texts(NOTES);
    texts[NOTES / 2] = "Whoever reads xyzzy is killed.".to_owned();
    town.site.provider.poison("xyzzy", Behaviour::Never);
    town.write(&texts).await;
    let bad: Vec<Uuid> =
        sqlx::query_scalar("select note_id from memory_notes where text like '%xyzzy%'")
            .fetch_all(&mut town.db)
            .await
            .unwrap();
    let mut lives = 0;
    while town.has("indexing_outbox where status <> 'DEAD'").await {
        lives += 1;
        assert!(lives < 60, "{lives} workers died of it");
        let seen = town.site.provider.requests();
        let worker = town.site.worker();
        let has_read_it = |town: &Town| {
            let requests = town.site.provider.request_log();
            let new = requests
                .iter()
                .skip(seen)
                .flat_map(|request| &request.texts);
            new.into_iter().any(|text| text.contains("xyzzy"))
        };
        let began = Instant::now();
        while !has_read_it(&town) && town.has("indexing_outbox where status <> 'DEAD'").await {
            assert!(began.elapsed() < LONG, "{}", worker.log());
            town.hurry_retries().await;
        }
        worker.kill().await;
        town.wait_until_none(super::ELF_SESSIONS).await;
        town.expire_leases().await;
    }
    println!("{lives} workers were killed");
    town.compare().await.assert_none_but_dead(&bad);
}

/// Promise 14: Postgres has lost its newest transactions, and applications continue to write.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn a_postgres_that_lost_its_newest_transactions_makes_nothing_stale() {
    let town = Town::start("a_postgres_that_lost_its_newest_transactions").await;
    let (h, mut corpus, _server) = town.into_harness().await;
    let notes = h.insert_all(&corpus.texts(NOTES)).await;
    h.drain().await;
    let kept = Moment::keep(&h).await;

    // Changes that the standby never received.
    for _ in 0..10 {
        let texts = corpus.texts(40);
        edit(&h, &notes[..40], &texts).await;
        h.drain().await;
    }
    h.insert_all(&corpus.texts(40)).await;
    h.drain().await;
    kept.restore(&h).await;

    let texts = corpus.texts(40);
    edit(&h, &notes[..40], &texts).await;
    let working = h.work();
    let began = Instant::now();
    while h.count("indexing_outbox").await > 0 {
        assert!(began.elapsed() < LONG, "the worker does not resume");
    }
    let verifying = "index_versions where verify_requested or verify_chunks_cursor is not null";
    while h.count(verifying).await > 0 {
        assert!(began.elapsed() < LONG, "points of lost transactions stay");
    }
    working.stop().await;
    h.compare().await.assert_none();
}

async fn edit(h: &Harness, notes: &[Uuid], texts: &[String]) {
    sqlx::query(
        "update memory_notes n set text = u.text
           from unnest($1::uuid[], $2::text[]) as u (note_id, text) where n.note_id = u.note_id",
    )
    .bind(notes)
    .bind(texts)
    .execute(&h.pool)
    .await
    .unwrap();
}
