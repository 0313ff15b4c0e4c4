//! Rebuilds beside foreign collections, and during outages of servers.

use elf::index::{CollectionSpec, IndexError, Point, UpsertMode};
use elf::rebuild::RebuildError;
use elf::search::{Missing, Request};
use elf::serving::{self, Serving, ServingError};
use elf::store::Depth;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Options, alias, assert_nothing_is_left, begin, finds_something, lose_the_index, options,
    rebuild, run, with_notes,
};
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::proxy::Proxy;
use crate::support::qdrant::Qdrant;
use crate::support::site::Running;

fn spec(h: &Harness) -> CollectionSpec {
    CollectionSpec {
        dim: h.pipeline.version.dim,
        bm25: h.pipeline.serving.bm25.clone(),
        embedding_version: h.pipeline.version.name.clone(),
    }
}

/// Fails with one message that has all of `words`, and has changed nothing.
async fn refuses(h: Harness, words: &[&str]) {
    let index = Hooked::over(&h.pipeline.serving.index);
    let registered = h
        .pipeline
        .serving
        .store
        .registered_collections()
        .await
        .unwrap();
    let pointed_at = alias(&h).await;
    let error = run(&h.rebuilds_with(index.clone()), &options())
        .await
        .unwrap_err();
    assert!(
        matches!(error, RebuildError::Serving(ServingError::Mismatch(_))),
        "{error:?}"
    );
    let changes = [
        Verb::CreateCollection,
        Verb::BeginLoad,
        Verb::EndLoad,
        Verb::DropCollection,
        Verb::PointAlias,
        Verb::Upsert,
        Verb::Delete,
    ];
    assert_eq!(changes.map(|verb| index.calls(verb)), [0; 7]);
    assert_eq!(
        h.pipeline
            .serving
            .store
            .registered_collections()
            .await
            .unwrap(),
        registered
    );
    assert_eq!(alias(&h).await, pointed_at);
    assert_eq!(h.count("index_job").await, 0);
    drop(index);
    let site = h.into_site().await;
    let done = site.elf(&["rebuild"]).await.exits(78).says(words);
    let lines = done.stderr.lines().filter(|line| line.starts_with("elf: "));
    assert_eq!(lines.count(), 1, "{}", done.stderr);
}

#[tokio::test]
async fn an_alias_of_a_foreign_collection_is_left_alone() {
    let h = Harness::start().await;
    with_notes(&h).await;
    h.pipeline
        .serving
        .index
        .create_collection("strangers", &spec(&h))
        .await
        .unwrap();
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, "strangers")
        .await
        .unwrap();
    refuses(h, &["strangers", "another vector engine"]).await;
}

#[tokio::test]
async fn a_search_that_meets_points_of_another_database_asks_postgres() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let Serving {
        store,
        index,
        alias,
        ..
    } = &h.pipeline.serving;
    let version = &h.pipeline.version.name;
    let page = store.live_chunks(version, Uuid::nil(), Uuid::max(), 1, 1 << 20, Depth::Whole);
    let chunk = page.await.unwrap().remove(0);
    let mut point = Point {
        payload: serving::payload(&chunk, version),
        vector: chunk.vector,
        lead: String::new(),
        text: chunk.text.unwrap(),
    };
    point.payload.chunk_id = Uuid::from_u128(1);
    point.payload.note.note_id = Uuid::from_u128(2);
    index
        .create_collection("strangers", &spec(&h))
        .await
        .unwrap();
    index
        .upsert("strangers", &[point], UpsertMode::NotNewer)
        .await
        .unwrap();
    index.point_alias(alias, "strangers").await.unwrap();

    let searcher = elf::cli::wiring::searcher(&h.pipeline, &h.config)
        .await
        .unwrap();
    let answer = searcher
        .search(&Request::hybrid("a note", 5))
        .await
        .unwrap();
    assert!(!answer.items.is_empty());
    let missing: Vec<Missing> = answer.degraded.iter().map(|d| d.code).collect();
    assert_eq!(missing, [Missing::Index]);
}

#[tokio::test]
async fn a_collection_that_is_named_like_the_alias_is_left_alone() {
    let h = Harness::start().await;
    with_notes(&h).await;
    lose_the_index(&h).await;
    h.pipeline
        .serving
        .index
        .create_collection(&h.pipeline.serving.alias, &spec(&h))
        .await
        .unwrap();
    refuses(h, &["is a collection", "another vector engine"]).await;
}

#[tokio::test]
async fn another_alias_than_the_database_is_indexed_under_is_refused() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let mut site = h.rebuilds_with(h.pipeline.serving.index.clone());
    site.alias = "elsewhere".into();
    let error = run(&site, &options()).await.unwrap_err();
    assert!(
        matches!(&error, RebuildError::Serving(ServingError::OtherAlias { configured, .. }) if configured == "elsewhere"),
        "{error}"
    );
    h.assert_exact().await;
}

#[tokio::test]
async fn a_collection_with_vectors_of_another_size_is_replaced() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let name = h.collection().await;
    lose_the_index(&h).await;
    let wrong = CollectionSpec {
        dim: h.pipeline.version.dim + 1,
        ..spec(&h)
    };
    h.pipeline
        .serving
        .index
        .create_collection(&name, &wrong)
        .await
        .unwrap();
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, &name)
        .await
        .unwrap();
    rebuild(&h).await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

async fn rest(method: reqwest::Method, url: String, body: Value) -> Value {
    let request = reqwest::Client::new().request(method, &url).json(&body);
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let body = answer.text().await.unwrap();
    assert!(status.is_success(), "{url}: {status} {body}");
    serde_json::from_str(&body).unwrap()
}

#[tokio::test]
async fn a_collection_without_bm25_is_replaced() {
    let Some(server) = Qdrant::start("a_collection_without_bm25_is_replaced").await else {
        return;
    };
    let h = Harness::start_on(&server).await;
    with_notes(&h).await;
    let name = h.collection().await;
    lose_the_index(&h).await;
    let url = format!("{}/collections/{name}", server.rest());
    let bare =
        json!({"vectors": {"dense": {"size": h.pipeline.version.dim, "distance": "Cosine"}}});
    rest(reqwest::Method::PUT, url, bare).await;
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, &name)
        .await
        .unwrap();
    rebuild(&h).await;
    h.assert_exact().await;
    assert!(finds_something(&h).await);
    assert_nothing_is_left(&h).await;
}

/// Blocks every range of a rebuild, in this process or another, when its first page is
/// written and not yet recorded.
async fn hold_ranges(h: &Harness) -> PgConnection {
    sqlx::raw_sql(
        "create function hold() returns trigger language plpgsql as
         $$ begin perform pg_advisory_xact_lock_shared(2); return new; end $$;
         create trigger hold before update on index_rebuild_ranges
             for each row execute function hold()",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let mut holder = h.connect().await;
    sqlx::raw_sql("select pg_advisory_lock(2)")
        .execute(&mut holder)
        .await
        .unwrap();
    holder
}

async fn ranges_held(h: &Harness) {
    let waits = "pg_locks where not granted and locktype = 'advisory' and database =
                    (select oid from pg_database where datname = current_database())";
    eventually(async || h.count(waits).await == 4).await;
}

async fn release(mut holder: PgConnection) {
    sqlx::raw_sql("select pg_advisory_unlock(2)")
        .execute(&mut holder)
        .await
        .unwrap();
}

/// The rebuild has logged once that it waits and that it resumes, and has succeeded.
async fn waited_once(process: Running, points: usize) {
    let done = process.ended().await.exits(0);
    let waits = done
        .stderr
        .matches("storage unavailable, rebuild waits")
        .count();
    assert_eq!(waits, 1, "{}", done.stderr);
    assert_eq!(
        done.stderr.matches("resuming rebuild").count(),
        1,
        "{}",
        done.stderr
    );
    assert_eq!(done.json()["points"], points);
}

#[tokio::test]
async fn a_qdrant_that_crashes_during_the_backfill_is_waited_for() {
    let Some(mut server) =
        Qdrant::start("a_qdrant_that_crashes_during_the_backfill_is_waited_for").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.stock(3_000).await;
    let holder = hold_ranges(&h).await;
    let process = h.begin(&["rebuild", "--json"]);
    ranges_held(&h).await;
    server.kill().await;
    release(holder).await;
    process.says("storage unavailable, rebuild waits").await;
    server.restart().await;
    waited_once(process, 3_000).await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn a_full_disk_of_qdrant_is_waited_for_and_named() {
    let Some(mut server) =
        Qdrant::start_on_a_small_disk("a_full_disk_of_qdrant_is_waited_for_and_named").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.stock(3_000).await;
    let holder = hold_ranges(&h).await;
    let process = h.begin(&["rebuild", "--json"]);
    ranges_held(&h).await;
    server.fill_disk();
    release(holder).await;
    let said = process.says("storage unavailable, rebuild waits").await;
    println!("{said}\nrunning: {}", server.is_running());
    assert!(said.to_lowercase().contains("space"), "{said}");
    server.free_disk();
    waited_once(process, 3_000).await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// An interrupted write may have succeeded: the page is recorded once nevertheless.
#[tokio::test]
async fn an_outage_of_postgres_during_the_backfill_is_waited_for() {
    let Some(server) =
        Qdrant::start("an_outage_of_postgres_during_the_backfill_is_waited_for").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.stock(3_000).await;
    let (host, port) = h.database.server();
    let line = Proxy::to(host, port).await;
    h.configure(&h.database.url(), &h.database.url_through(line.port()));
    let holder = hold_ranges(&h).await;
    let process = h.begin(&["rebuild", "--json"]);
    ranges_held(&h).await;
    line.cut();
    process.says("storage unavailable, rebuild waits").await;
    release(holder).await;
    line.restore();
    waited_once(process, 3_000).await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The answer is lost: the engine did the write, and the rebuild sends it again.
#[tokio::test]
async fn a_request_that_is_done_and_not_answered_is_sent_again() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let away = IndexError::Unavailable {
        engine: "the engine".into(),
        reason: "no answer".into(),
    };
    index.fail(When::After, Verb::Upsert, away.clone());
    index.fail(When::After, Verb::PointAlias, away);
    let tried = index.halt(When::After, Verb::Upsert);
    tried.open();
    let rebuilding = begin(&h, &index, options());
    eventually(async || index.calls(Verb::Upsert) > 4).await;
    index.heal();
    let report = rebuilding.await.unwrap().unwrap();
    assert_eq!(report.points as i64, h.count("memory_note_chunks").await);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The rebuild does not wait for an error that needs an operator.
#[tokio::test]
async fn a_refusal_ends_the_rebuild_and_the_next_one_resumes() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let refusal = IndexError::Denied {
        engine: "the engine".into(),
        reason: "a limit is reached".into(),
    };
    index.fail(When::Before, Verb::Upsert, refusal);
    let error = begin(&h, &index, options()).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the engine refuses: a limit is reached");
    assert_eq!(h.count("index_job").await, 0);
    index.heal();
    begin(&h, &index, Options { ..options() })
        .await
        .unwrap()
        .unwrap();
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// The collection is dropped while the rebuild fills it.
#[tokio::test]
async fn a_collection_deleted_during_the_backfill_ends_the_rebuild_and_the_next_one_starts_over() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.halt(When::Before, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    writes.reached_by(1).await;
    let unfinished = super::building(&h).await.unwrap();
    h.pipeline
        .serving
        .index
        .drop_collection(&unfinished)
        .await
        .unwrap();
    writes.open();
    let error = rebuilding.await.unwrap().unwrap_err();
    assert!(error.to_string().contains(&unfinished), "{error}");
    rebuild(&h).await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// A point that already exists was written by a worker, whatever its revision says.
#[tokio::test]
async fn a_backfill_replaces_nothing() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let chunks = h.pipeline.serving.store.live_chunks(
        &h.pipeline.version.name,
        uuid::Uuid::nil(),
        uuid::Uuid::max(),
        1,
        usize::MAX >> 1,
        elf::store::Depth::Whole,
    );
    let chunk = chunks.await.unwrap().remove(0);
    let target = elf::serving::CollectionTarget {
        store: h.pipeline.serving.store.clone(),
        index: h.pipeline.serving.index.clone(),
        version: h.pipeline.version.name.clone(),
        collection: h.collection().await,
        writes: Default::default(),
    };
    let mut relabelled = chunk.clone();
    relabelled.labels.scope = "another".into();
    relabelled.revision += 1;
    target
        .write(target.points(vec![relabelled]), UpsertMode::InsertOnly)
        .await
        .unwrap();
    h.assert_exact().await;
}

/// One point that the engine refuses is left out and reported; the others are written.
#[tokio::test]
async fn a_refused_point_is_left_out_and_reported() {
    let h = Harness::start_with(|toml| toml.replace("batch_notes = 16", "batch_notes = 256")).await;
    let many = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                select 't', 'p', 'a', 's', 'n', $2::text || g from generate_series(1, 2000) g where $1::uuid is not null";
    h.execute(many, uuid::Uuid::nil(), "Note number ").await;
    h.drain().await;
    let bad: uuid::Uuid = sqlx::query_scalar("select note_id from memory_notes limit 1")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    let index = Hooked::over(&h.pipeline.serving.index);
    index.refuse(bad);
    let found = crate::support::harness::Findings::default();
    let noticing = Options {
        notice: found.notice(),
        ..options()
    };
    let report = begin(&h, &index, noticing).await.unwrap().unwrap();
    assert_eq!((report.points, report.refused_points), (1_999, 1));
    assert!(
        found.have(&["refused", &bad.to_string()]),
        "{:?}",
        found.all()
    );
    // A worker will find the reason, and a verify finds the missing point too.
    let due = format!("indexing_outbox where note_id = '{bad}'");
    assert!(h.count(&due).await > 0);
    sqlx::query("delete from indexing_outbox")
        .execute(&h.pool)
        .await
        .unwrap();
    let hooked: std::sync::Arc<dyn elf::index::VectorIndex> = index;
    let options = elf::verify::Options::repairing();
    let report = elf::verify::run(&h.rebuilds_with(hooked), &options)
        .await
        .unwrap();
    assert_eq!(
        (report.missing, report.refused, report.unrepaired()),
        (1, 1, 1)
    );
    h.drain().await;
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// If the engine refuses every point, the rebuild does not try every point alone.
#[tokio::test]
async fn an_engine_that_refuses_every_point_ends_the_rebuild() {
    let h = Harness::start().await;
    for note in with_notes(&h).await {
        h.insert(&format!("More than {note}.")).await;
    }
    h.drain().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let notes: Vec<uuid::Uuid> = sqlx::query_scalar("select note_id from memory_notes")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    notes.into_iter().for_each(|note| index.refuse(note));
    let before = alias(&h).await;
    begin(&h, &index, options()).await.unwrap().unwrap_err();
    assert_eq!(alias(&h).await, before);
}
