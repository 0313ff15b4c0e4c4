//! Verify: does the index follow from Postgres, and Postgres from the notes' texts?

mod flight;
mod postgres;
mod restore;

use std::collections::BTreeSet;

use elf::index::{Filter, Point, UpsertMode};
use elf::serving::payload;
use elf::verify::{Options, Report};
use serde_json::json;
use uuid::Uuid;

use crate::support::embedding_server::Behaviour;
use crate::support::harness::{Findings, Harness, sentences};
use crate::support::qdrant::Qdrant;
use crate::support::site::Site;
use crate::support::{eventually, eventually_has};

/// Thirty short notes and a few long ones, indexed.
async fn with_notes(h: &Harness) {
    for i in 0..30 {
        h.insert(&format!("Short note {i}.")).await;
    }
    for i in 0..5 {
        h.insert(&sentences(20, &format!("matter {i}"))).await;
    }
    h.drain().await;
}

/// All chunks, in order of their ids.
async fn chunks(h: &Harness) -> Vec<Uuid> {
    sqlx::query_scalar("select chunk_id from memory_note_chunks order by chunk_id")
        .fetch_all(&h.pool)
        .await
        .unwrap()
}

/// The correct point of a chunk.
async fn point(h: &Harness, chunk: Uuid) -> Point {
    let version = &h.pipeline.version.name;
    let chunks = h
        .pipeline
        .serving
        .store
        .live_chunks_by_id(version, &[chunk])
        .await;
    let chunk = chunks.unwrap().remove(0);
    Point {
        payload: payload(&chunk, version),
        vector: chunk.vector,
        lead: String::new(),
        text: chunk.text.unwrap(),
    }
}

async fn remove(h: &Harness, chunks: &[Uuid]) {
    let filter = Filter {
        chunk_ids: Some(chunks.to_vec()),
        ..Filter::default()
    };
    let collection = h.collection().await;
    h.pipeline
        .serving
        .index
        .delete(&collection, &filter)
        .await
        .unwrap();
}

/// Puts a point where another one was.
async fn put(h: &Harness, point: Point) {
    remove(h, &[point.payload.chunk_id]).await;
    let collection = h.collection().await;
    let points = [point];
    let written = h
        .pipeline
        .serving
        .index
        .upsert(&collection, &points, UpsertMode::InsertOnly);
    written.await.unwrap();
}

async fn tamper(h: &Harness, chunk: Uuid, change: impl FnOnce(&mut Point)) {
    let mut point = point(h, chunk).await;
    change(&mut point);
    put(h, point).await;
}

/// A point of a note that never existed.
async fn add_orphan(h: &Harness, chunk: Uuid) {
    let (chunk_id, note_id) = (Uuid::new_v4(), Uuid::new_v4());
    let mut point = point(h, chunk).await;
    point.payload.chunk_id = chunk_id;
    point.payload.note.note_id = note_id;
    put(h, point).await;
}

fn repairing(deep: bool) -> Options {
    Options {
        deep,
        ..Options::repairing()
    }
}

/// Injects every kind of drift but that of vectors: 2 missing, 5 stale, 3 orphaned.
async fn inject_drift(h: &Harness) -> Vec<Uuid> {
    let ids = chunks(h).await;
    remove(h, &ids[0..2]).await;
    tamper(h, ids[2], |point| point.payload.note.revision -= 1).await;
    tamper(h, ids[3], |point| point.payload.note.revision += 1_000).await;
    tamper(h, ids[4], |point| {
        point.payload.note.labels.scope = "elsewhere".into()
    })
    .await;
    tamper(h, ids[5], |point| {
        point.payload.note.embedding_version = "another".into()
    })
    .await;
    tamper(h, ids[6], |point| {
        point.payload.note.note_id = Uuid::new_v4()
    })
    .await;
    for _ in 0..3 {
        add_orphan(h, ids[7]).await;
    }
    ids
}

#[tokio::test]
async fn every_drift_is_found_counted_and_named() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let ids = inject_drift(&h).await;
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    let expected = Report {
        notes: 35,
        chunks: ids.len() as u64,
        points: ids.len() as u64 - 2 + 3,
        missing: 2,
        stale: 5,
        orphaned: 3,
        inconsistent: 0,
        repaired: 0,
        refused: 0,
    };
    assert_eq!(report, expected, "{}", found.all().join("\n"));
    assert_eq!((report.drift(), report.unrepaired()), (10, 10));
    assert_eq!(found.all().len(), 10);
    for (kind, ids) in [("missing", &ids[0..2]), ("stale", &ids[2..7])] {
        for id in ids {
            assert!(
                found.have(&[kind, &id.to_string()]),
                "{kind} {id}: {:?}",
                found.all()
            );
        }
    }
    assert!(found.have(&["orphaned"]));
    // It has changed nothing.
    assert_eq!(h.verify(&Findings::default().deep()).await, expected);
}

#[tokio::test]
async fn drift_is_repaired_from_postgres_alone() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let ids = inject_drift(&h).await;
    h.provider.always(Behaviour::Status(500));
    let requests = h.provider.requests();
    let report = h.verify(&repairing(false)).await;
    assert_eq!(
        (report.drift(), report.repaired, report.unrepaired()),
        (10, 10, 0)
    );
    h.assert_exact().await;
    assert_eq!(h.provider.requests(), requests);

    // Workers can write the repaired notes again, though a point had a revision above
    // every token.
    h.provider.heal();
    let note: Uuid =
        sqlx::query_scalar("select note_id from memory_note_chunks where chunk_id = $1")
            .bind(ids[3])
            .fetch_one(&h.pool)
            .await
            .unwrap();
    h.edit(note, "Written after the repair.").await;
    h.drain().await;
    h.assert_exact().await;
}

#[tokio::test]
async fn another_vector_is_found_by_a_deep_verify_only() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let ids = chunks(&h).await;
    for id in &ids[0..3] {
        tamper(&h, *id, |point| {
            point.vector.as_mut().unwrap().rotate_left(1)
        })
        .await;
    }
    let quick = Options {
        repair: false,
        ..Options::repairing()
    };
    assert_eq!(h.verify(&quick).await.drift(), 0);
    let report = h.verify(&Findings::default().deep()).await;
    assert_eq!((report.stale, report.drift()), (3, 3));
    assert_eq!(h.verify(&repairing(true)).await.repaired, 3);
    h.assert_exact().await;
}

/// Points that ELF did not write; some have no payload or no vector.
#[tokio::test]
async fn points_without_a_payload_are_orphaned_and_deleted() {
    let Some(server) = Qdrant::start("points_without_a_payload_are_orphaned_and_deleted").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    with_notes(&h).await;
    let ids = inject_drift(&h).await;
    let collection = h.collection().await;
    let url = format!(
        "{}/collections/{collection}/points?wait=true",
        server.rest()
    );
    let vector = json!({"dense": vec![0.5; h.pipeline.version.dim]});
    let points = json!({"points": [
        {"id": Uuid::new_v4(), "vector": vector, "payload": {}},
        {"id": Uuid::new_v4(), "vector": {}, "payload": {"revision": "high", "note_id": 7}},
        {"id": Uuid::new_v4(), "vector": vector, "payload": {"revision": i64::MAX}},
        // This one has the id of an existing chunk.
        {"id": ids[9], "vector": vector, "payload": {}},
    ]});
    let request = reqwest::Client::new().put(url).json(&points);
    let answer = request.send().await.unwrap();
    assert!(
        answer.status().is_success(),
        "{}",
        answer.text().await.unwrap()
    );

    let report = h.verify(&Findings::default().deep()).await;
    assert_eq!((report.missing, report.stale, report.orphaned), (2, 6, 6));
    let report = h.verify(&repairing(true)).await;
    assert_eq!(report.repaired, 14);
    h.assert_exact().await;
}

#[tokio::test]
async fn verify_exits_with_3_until_the_drift_is_repaired() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let ids = inject_drift(&h).await;
    let site = h.into_site().await;
    let requests = site.provider.requests();

    let done = site.elf(&["verify", "--json"]).await.exits(3);
    let report = done.json();
    for (key, count) in [
        ("notes", 35),
        ("chunks", ids.len()),
        ("points", ids.len() + 1),
        ("missing", 2),
        ("stale", 5),
        ("orphaned", 3),
        ("repaired", 0),
    ] {
        assert_eq!(report[key], count, "{key} of {report}");
    }
    let keys: BTreeSet<&str> = report.as_object().unwrap().keys().map(|k| &**k).collect();
    assert_eq!(keys.len(), 9, "{keys:?}");
    assert!(keys.contains("inconsistent"));
    done.says(&["elf verify --repair"]);
    let done = site.elf(&["verify", "--verbose"]).await.exits(3);
    let done = done.says(&["missing: point", "stale: point", "orphaned: point"]);
    assert!(
        done.stdout.contains("2 missing, 5 stale, 3 orphaned"),
        "{}",
        done.stdout
    );

    let report = site.json(&["verify", "--repair"]).await;
    assert_eq!(report["repaired"], 10);
    let report = site.json(&["verify", "--deep"]).await;
    assert_eq!(
        (&report["missing"], &report["repaired"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(site.provider.requests(), requests);
    site.elf(&["verify", "--sample", "0"]).await.exits(2);
    site.elf(&["verify", "--sample", "101"]).await.exits(2);
    Harness::over(site).await.assert_exact().await;
}

#[tokio::test]
async fn a_sample_reads_a_part_and_reports_no_false_drift() {
    let h = Harness::start().await;
    h.stock(2_000).await;
    h.verify(&repairing(false)).await;
    let sample = Options {
        sample: 0.1,
        ..Findings::default().deep()
    };
    for _ in 0..5 {
        let report = h.verify(&sample).await;
        assert_eq!(report.drift(), 0, "{report:?}");
        assert_eq!(report.chunks, report.points);
        // 200 of 2,000 are expected; by chance it is never five times as many.
        assert!((1..1_000).contains(&report.chunks), "{report:?}");
        assert!((1..1_000).contains(&report.notes), "{report:?}");
    }
}

#[tokio::test]
async fn verify_says_what_it_cannot_compare() {
    let h = Harness::start().await;
    let verify = async |h: &Harness, repair: bool| {
        let context = &h.pipeline;
        let options = Options {
            repair,
            ..Options::repairing()
        };
        let report = elf::verify::run(&context.serving, &options).await;
        report.map_err(|error| error.to_string())
    };
    with_notes(&h).await;
    let collection = h.collection().await;
    h.pipeline
        .serving
        .index
        .drop_collection(&collection)
        .await
        .unwrap();
    for repair in [false, true] {
        let said = verify(&h, repair).await.unwrap_err();
        assert!(said.contains("elf rebuild"), "{said}");
    }
    let spec = elf::index::CollectionSpec {
        dim: h.pipeline.version.dim,
        bm25: h.pipeline.serving.bm25.clone(),
        embedding_version: h.pipeline.version.name.clone(),
    };
    h.pipeline
        .serving
        .index
        .create_collection(&collection, &spec)
        .await
        .unwrap();
    let said = verify(&h, false).await.unwrap_err();
    assert!(
        said.contains("points at nothing") && said.contains("verify --repair"),
        "{said}"
    );
    // The collection exists and is empty, so verify can repair it.
    let report = verify(&h, true).await.unwrap();
    assert_eq!(report.repaired, report.missing);
    assert!(report.missing > 0);
    h.assert_exact().await;

    h.pipeline
        .serving
        .index
        .create_collection("strangers", &spec)
        .await
        .unwrap();
    h.pipeline
        .serving
        .index
        .point_alias(&h.pipeline.serving.alias, "strangers")
        .await
        .unwrap();
    for repair in [false, true] {
        let said = verify(&h, repair).await.unwrap_err();
        assert!(said.contains("strangers"), "{said}");
    }
    assert_eq!(
        h.pipeline
            .serving
            .index
            .collection("strangers")
            .await
            .unwrap()
            .unwrap()
            .points,
        0
    );
}

#[tokio::test]
async fn a_collection_that_nothing_was_ever_written_to_has_no_drift() {
    let h = Harness::start().await;
    let report = h.verify(&Findings::default().deep()).await;
    assert_eq!(report, Report::default());
    h.insert(" \n ").await;
    h.drain().await;
    let report = h.verify(&Findings::default().deep()).await;
    assert_eq!((report.notes, report.drift()), (1, 0));
}

/// The daemon's own verify repairs drift without a command, and reports it to operators.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_repairs_drift_and_publishes_it() {
    let site = Site::start().await;
    site.configure("lease_secs = 5", "lease_secs = 5\nverify_interval_secs = 1");
    let mut db = site.connect().await;
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'The spare key hangs behind the clock.')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    site.elf(&["worker", "--once"]).await.exits(0);
    sqlx::query("update note_embeddings set vec = vec + vec")
        .execute(&mut db)
        .await
        .unwrap();

    let worker = site.worker();
    let metrics = format!("{}/metrics", worker.admin().await);
    let scrape = async || reqwest::get(&metrics).await.unwrap().text().await.unwrap();
    let repaired = [
        "elf_drift_repaired_total 1",
        "elf_drift{kind=\"inconsistent\"}",
    ];
    eventually_has(scrape, &repaired).await;
    worker
        .says("its pooled vector is not the mean of its chunks")
        .await;
    eventually(async || {
        site.elf(&["status"])
            .await
            .stdout
            .contains("0 pending, 0 leased")
    })
    .await;
    worker.stop().await.exits(0);
    site.elf(&["verify"]).await.exits(0);
}
