//! Rebuilds: ELF fills a collection from Postgres alone.

use elf::config::Bm25Options;
mod accidents;
mod fire;
mod forgotten;
mod loads;
mod resume;
mod traps;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use elf::index::{Filter, Query};
use elf::rebuild::{self, Options, RebuildError, Report};
use elf::serving::{self, CollectionTarget};
use elf::verify;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::embedding_server::{Behaviour, vector_of};
use crate::support::harness::{Findings, Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::imports::{Sources, reachable, sources};
use crate::support::site::Site;

fn options() -> Options {
    Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    }
}

type Rebuilding = JoinHandle<Result<Report, RebuildError>>;

/// Starts a rebuild in the background. Aborting it is like killing the process.
fn begin(h: &Harness, index: &Arc<Hooked>, options: Options) -> Rebuilding {
    let site = h.rebuilds_with(index.clone());
    tokio::spawn(async move { run(&site, &options).await })
}

async fn run(site: &serving::Serving, options: &Options) -> Result<Report, RebuildError> {
    rebuild::run(site, options, Arc::default(), CancellationToken::new()).await
}

async fn rebuild(h: &Harness) -> Report {
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    run(&site, &options()).await.unwrap()
}

/// Kills a rebuild, and expires its lease.
async fn kill(h: &Harness, rebuilding: Rebuilding) {
    rebuilding.abort();
    assert!(rebuilding.await.unwrap_err().is_cancelled());
    h.expire_job_lease().await;
}

/// A few notes of several chunks each, indexed.
async fn with_notes(h: &Harness) -> Vec<Uuid> {
    let mut notes = Vec::new();
    for i in 0..6 {
        let text = sentences(4 + 3 * i, &format!("matter {i}"));
        notes.push(h.insert(&text).await);
    }
    h.drain().await;
    notes
}

/// How many of the four ranges of ids that a rebuild reads have chunks. With one page per
/// range, so many upserts arrive at once.
async fn ranges_with_chunks(h: &Harness) -> usize {
    let ids: Vec<Uuid> = sqlx::query_scalar("select chunk_id from memory_note_chunks")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    let ranges: HashSet<u128> = ids.iter().map(|id| id.as_u128() >> 126).collect();
    ranges.len()
}

/// The collection that is being filled.
async fn building(h: &Harness) -> Option<String> {
    let registered = h
        .pipeline
        .serving
        .store
        .registered_collections()
        .await
        .unwrap();
    let building = registered.into_iter().find(|c| c.is_building());
    building.map(|c| c.name)
}

/// The collection that is being filled has exactly the points that it needs.
async fn assert_building_is_exact(h: &Harness) {
    let target = CollectionTarget {
        store: h.pipeline.serving.store.clone(),
        index: h.pipeline.serving.index.clone(),
        version: h.pipeline.version.name.clone(),
        collection: building(h).await.expect("one is building"),
        writes: Default::default(),
    };
    let found = Findings::default();
    let report = verify::points(&target, &found.deep()).await.unwrap();
    assert_eq!(report.drift(), 0, "{report:?}\n{}", found.all().join("\n"));
}

/// The engine has the one collection that is served, and so has Postgres.
async fn assert_nothing_is_left(h: &Harness) {
    let registered = h
        .pipeline
        .serving
        .store
        .registered_collections()
        .await
        .unwrap();
    let registered: Vec<String> = registered.into_iter().map(|c| c.name).collect();
    let mut held = Vec::new();
    for n in 1..20 {
        let name = format!("{}__{n}", h.pipeline.serving.alias);
        if h.pipeline
            .serving
            .index
            .collection(&name)
            .await
            .unwrap()
            .is_some()
        {
            held.push(name);
        }
    }
    assert_eq!(held, registered);
    assert_eq!(held.len(), 1);
    assert_eq!(alias(h).await, Some(held.remove(0)));
    assert_eq!(h.count("index_rebuild_ranges").await, 0);
    assert_eq!(h.count("index_job").await, 0);
}

async fn alias(h: &Harness) -> Option<String> {
    h.pipeline
        .serving
        .index
        .resolve(&h.pipeline.serving.alias)
        .await
        .unwrap()
}

/// A search through the alias for the text of some chunk.
async fn finds_something(h: &Harness) -> bool {
    let text: String = sqlx::query_scalar("select text from memory_note_chunks limit 1")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    let query = Query {
        vector: Some(vector_of(&text, h.pipeline.version.dim)),
        words: Some(text),
        filter: Filter::default(),
        candidates: 10,
        ..Query::default()
    };
    let hits = h
        .pipeline
        .serving
        .index
        .search(&h.pipeline.serving.alias, &query)
        .await;
    !hits.unwrap().is_empty()
}

/// Drops all collections of the engine.
async fn lose_the_index(h: &Harness) {
    for collection in h
        .pipeline
        .serving
        .store
        .registered_collections()
        .await
        .unwrap()
    {
        h.pipeline
            .serving
            .index
            .drop_collection(&collection.name)
            .await
            .unwrap();
    }
    assert_eq!(alias(h).await, None);
}

#[tokio::test]
async fn a_lost_index_comes_back_without_an_embedding_request() {
    let h = Harness::start().await;
    with_notes(&h).await;
    h.provider.always(Behaviour::Status(500));
    let requests = h.provider.requests();
    lose_the_index(&h).await;

    let report = rebuild(&h).await;
    assert_eq!(h.provider.requests(), requests, "it asked for embeddings");
    assert_eq!(report.missing_vectors, 0);
    assert_eq!(report.points as i64, h.count("memory_note_chunks").await);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn without_an_alias_searches_find_points_as_soon_as_they_are_written() {
    let h = Harness::start().await;
    with_notes(&h).await;
    lose_the_index(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let (filled, looks) = (
        index.halt(When::Before, Verb::Upsert),
        index.halt(When::Before, Verb::Count),
    );
    let rebuilding = begin(&h, &index, options());
    filled.reached_by(1).await;
    assert_eq!(alias(&h).await, building(&h).await);
    assert!(!finds_something(&h).await, "nothing has come yet");
    filled.open();
    looks.reached_by(1).await;
    assert!(finds_something(&h).await);
    looks.open();
    rebuilding.await.unwrap().unwrap();
    h.assert_exact().await;
}

#[tokio::test]
async fn swap_last_points_a_lost_alias_at_a_complete_collection() {
    let h = Harness::start().await;
    with_notes(&h).await;
    lose_the_index(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let swap = index.halt(When::Before, Verb::PointAlias);
    let options = Options {
        swap_last: true,
        take_alias: false,
        ..options()
    };
    let rebuilding = begin(&h, &index, options);
    swap.reached_by(1).await;
    assert_eq!(alias(&h).await, None);
    assert_building_is_exact(&h).await;
    swap.open();
    rebuilding.await.unwrap().unwrap();
    assert_eq!(index.calls(Verb::PointAlias), 1);
    h.assert_exact().await;
}

/// While a rebuild runs, the alias stays at the complete collection.
#[tokio::test]
async fn searches_go_on_against_the_old_collection() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let old = h.collection().await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let swap = index.halt(When::Before, Verb::PointAlias);
    let rebuilding = begin(&h, &index, options());
    swap.reached_by(1).await;
    assert_eq!(alias(&h).await, Some(old.clone()));
    assert!(finds_something(&h).await);
    swap.open();
    let report = rebuilding.await.unwrap().unwrap();
    assert_ne!(report.collection, old);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// Promise 6, from the sources.
#[test]
fn rebuild_and_verify_cannot_reach_the_embedding_module() {
    let sources = sources();
    let reached = reachable(&sources, &["rebuild", "verify", "serving"]);
    for module in [
        "embed", "hub", "chunk", "worker", "reindex", "search", "http", "cli",
    ] {
        assert!(
            !reached.contains(module),
            "{module} is reached: {reached:?}"
        );
    }
    // The check finds the imports that exist.
    for module in ["store", "index", "config", "note", "backoff"] {
        assert!(reached.contains(module), "{module} is not: {reached:?}");
    }
    let worker = reachable(&sources, &["worker"]);
    assert!(worker.contains("embed") && worker.contains("chunk"));

    let embed = "use crate::embed::Embedder;\n";
    let mut tempted = sources.clone();
    tempted
        .get_mut("rebuild/mod.rs")
        .unwrap()
        .insert_str(0, embed);
    assert!(reachable(&tempted, &["rebuild"]).contains("embed"));
    let mut far_away = sources;
    far_away.get_mut("note.rs").unwrap().insert_str(0, embed);
    assert!(reachable(&far_away, &["verify"]).contains("embed"));
}

#[test]
fn every_way_to_name_a_module_is_seen() {
    let files = |rebuild: &str| -> Sources {
        [
            ("rebuild.rs", rebuild),
            ("embed/mod.rs", ""),
            ("store.rs", ""),
        ]
        .map(|(file, source)| (file.to_owned(), source.to_owned()))
        .into()
    };
    let reached = |source: &str| reachable(&files(source), &["rebuild"]);
    for source in [
        "use crate::embed;",
        "use crate::embed::Provider as P;",
        "use crate::{\n    store::{Store, Range},\n    embed::Provider,\n};",
        "use crate :: { store, embed };",
        "fn f() { crate::embed::call() }",
        "fn f(x: &dyn crate::embed::Embedder) {}",
        "use super::embed;",
        "use super::{store, embed};",
    ] {
        assert!(reached(source).contains("embed"), "{source}");
    }
    for source in [
        "// use crate::embed;",
        "use crate::store::embed;",
        "use crate::store::{self, embed::x};",
        "pub(crate) fn embed() {}",
        "#[cfg(test)]\nmod tests {\n    use crate::embed;\n}\n",
    ] {
        assert!(!reached(source).contains("embed"), "{source}");
    }
    for source in [
        "use crate::*;",
        "use crate as c;",
        "use super::*;",
        "use super as s;",
        "#[cfg(test)]\nmod tests {\n    use crate::embed;\n}\nuse crate::embed;\n",
    ] {
        let hidden = std::panic::catch_unwind(|| reached(source));
        assert!(hidden.is_err(), "{source}");
    }
    let deep: Sources = [
        ("verify/mod.rs", ""),
        ("verify/points.rs", "use super::super::embed;"),
        ("embed.rs", ""),
    ]
    .map(|(file, source)| (file.to_owned(), source.to_owned()))
    .into();
    assert!(reachable(&deep, &["verify"]).contains("embed"));
}

#[tokio::test]
async fn chunks_without_a_vector_are_counted_named_and_handed_to_the_workers() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let lost: Vec<Uuid> = sqlx::query_scalar(
        "delete from note_chunk_embeddings where chunk_id in
           (select chunk_id from memory_note_chunks where chunk_index = 1 limit 3)
         returning chunk_id",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap();
    assert_eq!(lost.len(), 3);
    let chunks = h.count("memory_note_chunks").await;
    let requests = h.provider.requests();
    let site = h.into_site().await;

    let done = site.elf(&["rebuild", "--json", "--verbose"]).await.exits(0);
    assert_eq!(done.json()["missing_vectors"], 3);
    assert_eq!(done.json()["points"], chunks - 3);
    for chunk in &lost {
        let line = done
            .stderr
            .lines()
            .filter(|l| l.contains(&chunk.to_string()));
        assert_eq!(line.count(), 1, "{}", done.stderr);
    }
    assert_eq!(site.provider.requests(), requests);

    let h = Harness::over(site).await;
    assert_eq!(
        h.count("indexing_outbox where op = 'UPSERT' and status = 'PENDING'")
            .await,
        3
    );
    h.drain_with_retries().await;
    h.assert_exact().await;
}

async fn indexed_site() -> Site {
    let site = Site::start().await;
    site.write("notes/one.md", sentences(20, "the first of two files"));
    site.write("notes/two.md", sentences(9, "the second of two files"));
    site.elf(&["import", "notes"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
    site
}

#[tokio::test]
async fn the_report_says_just_what_was_promised() {
    let site = Site::start().await;
    let done = site.elf(&["rebuild"]).await.exits(1);
    done.says(&["nothing is indexed yet", "elf worker"]);

    let site = {
        drop(site);
        indexed_site().await
    };
    let done = site.elf(&["rebuild", "--json"]).await.exits(0);
    let report = done.json();
    let keys: BTreeSet<&str> = report.as_object().unwrap().keys().map(|k| &**k).collect();
    let promised = [
        "collection",
        "points",
        "seconds",
        "points_per_sec",
        "embedding_calls",
        "missing_vectors",
        "refused_points",
    ];
    assert_eq!(keys, promised.into());
    assert_eq!(report["missing_vectors"], 0);
    assert!(report["points"].as_u64().unwrap() > 2);
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    assert!(report["points_per_sec"].as_f64().unwrap() > 0.0);
    assert!(report["collection"].as_str().unwrap().contains("__"));
    assert_eq!(done.stdout.lines().count(), 1);
    let verified = site.json(&["verify", "--deep"]).await;
    assert_eq!(verified["points"], report["points"]);
}

#[tokio::test]
async fn a_kept_collection_stays_until_it_is_dropped() {
    let site = indexed_site().await;
    let first = site.json(&["status"]).await["collection"]["name"].clone();
    let second = site.json(&["rebuild", "--keep-old"]).await["collection"].clone();
    assert_ne!(first, second);

    let h = Harness::over(site).await;
    let kept = h
        .pipeline
        .serving
        .index
        .collection(first.as_str().unwrap())
        .await
        .unwrap();
    assert!(kept.unwrap().points > 0);
    // It is kept as it was.
    let note = h.insert("A note that comes later.").await;
    h.drain().await;
    let filter = Filter {
        note_ids: Some(vec![note]),
        ..Filter::default()
    };
    let later = h
        .pipeline
        .serving
        .index
        .count(first.as_str().unwrap(), &filter)
        .await;
    assert_eq!(later.unwrap(), 0);
    h.assert_exact().await;
    let site = h.into_site().await;

    assert_eq!(
        site.json(&["rebuild", "drop"]).await,
        json!({"dropped": [first]})
    );
    assert_eq!(
        site.json(&["rebuild", "drop"]).await,
        json!({"dropped": []})
    );
    let h = Harness::over(site).await;
    assert_eq!(alias(&h).await.as_deref(), second.as_str());
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn an_unfinished_rebuild_can_be_dropped() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let filled = index.halt(When::After, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    filled.reached_by(1).await;
    kill(&h, rebuilding).await;
    let unfinished = building(&h).await.unwrap();
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    assert_eq!(rebuild::drop_leftovers(&site).await.unwrap(), [unfinished]);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn restart_starts_from_the_beginning() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let done = index.halt(When::Before, Verb::Count);
    let rebuilding = begin(&h, &index, options());
    done.reached_by(1).await;
    kill(&h, rebuilding).await;
    let chunks = h.count("memory_note_chunks").await;
    let copied = async || -> i64 {
        sqlx::query_scalar("select coalesce(sum(points), 0)::bigint from index_rebuild_ranges")
            .fetch_one(&h.pool)
            .await
            .unwrap()
    };
    assert_eq!(copied().await, chunks);

    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.halt(When::Before, Verb::Upsert);
    let restart = Options {
        restart: true,
        ..options()
    };
    let rebuilding = begin(&h, &index, restart);
    writes.reached_by(1).await;
    assert_eq!(copied().await, 0);
    writes.open();
    let report = rebuilding.await.unwrap().unwrap();
    assert_eq!(report.points as i64, chunks);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

#[tokio::test]
async fn other_bm25_options_take_a_rebuild_and_no_embedding() {
    let h = Harness::start().await;
    with_notes(&h).await;
    h.provider.always(Behaviour::Status(500));
    let mut site = h.rebuilds_with(h.pipeline.serving.index.clone());
    site.bm25 = Bm25Options {
        b: 0.5,
        ..Bm25Options::default()
    };
    // A rebuild that began with the old options cannot be resumed.
    let index = Hooked::over(&h.pipeline.serving.index);
    let filled = index.halt(When::After, Verb::Upsert);
    let rebuilding = begin(&h, &index, options());
    filled.reached_by(1).await;
    kill(&h, rebuilding).await;

    let report = run(&site, &options()).await.unwrap();
    let info = h
        .pipeline
        .serving
        .index
        .collection(&report.collection)
        .await
        .unwrap();
    assert_eq!(info.unwrap().spec.unwrap().bm25, site.bm25);
    h.assert_exact().await;
    assert_nothing_is_left(&h).await;
}

/// A running worker reconciles the alias after an interrupted swap or an operator's change.
#[tokio::test]
async fn a_running_worker_points_the_alias_back() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let old = h.collection().await;
    let kept = Options {
        keep_old: true,
        ..options()
    };
    let site = h.rebuilds_with(h.pipeline.serving.index.clone());
    let new = run(&site, &kept).await.unwrap().collection;
    let working = h.work();
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, &old)
        .await
        .unwrap();
    crate::support::eventually(async || {
        h.pipeline
            .serving
            .index
            .resolve(&h.pipeline.serving.alias)
            .await
            .unwrap()
            == Some(new.clone())
    })
    .await;
    working.stop().await;
}
