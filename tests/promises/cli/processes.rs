//! Processes that run at once do not harm each other. A worker says when it is ready, and
//! ends after SIGTERM and SIGINT.

use serde_json::Value;
use sqlx::Connection;

use crate::support::embedding_server::Behaviour;
use crate::support::site::Site;
use crate::support::{eventually, eventually_has};

#[tokio::test]
async fn migrate_can_run_again() {
    let site = Site::empty().await;
    let first = site.json(&["migrate"]).await;
    assert!(first["applied"].as_u64().unwrap() > 0, "{first}");
    let again = site.json(&["migrate"]).await;
    assert_eq!(again["applied"], 0);
    sqlx::query("alter table memory_notes rename to notes")
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    for command in ["migrate", "status"] {
        let done = site.elf(&[command]).await.exits(78);
        done.says(&["memory_notes is missing"]);
    }
}

#[tokio::test]
async fn migrations_that_start_at_once_all_succeed() {
    for _ in 0..3 {
        let site = Site::empty().await;
        let all = [(); 4].map(|()| site.elf(&["migrate", "--json"]));
        for done in futures::future::join_all(all).await {
            done.exits(0).json();
        }
        site.json(&["status"]).await;
    }
}

#[tokio::test]
async fn a_stop_ends_an_idle_worker() {
    for name in ["TERM", "INT"] {
        let site = Site::start().await;
        let worker = site.worker();
        worker.says("worker started").await;
        worker.signal(name).await;
        let done = worker.ended().await.exits(0);
        assert_eq!(done.json()["notes"], 0);
        done.says(&[
            "stop signal received",
            "grace_secs",
            "ends the process at once",
        ]);
    }
}

#[tokio::test]
async fn a_stop_releases_what_does_not_end_within_the_grace_period() {
    let site = Site::start().await;
    site.configure("grace_secs = 5", "grace_secs = 0");
    let worker = site.worker();
    worker.says("worker started").await;
    site.provider.hold();
    let mut db = site.connect().await;
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'held')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    site.provider.holding(1).await;
    worker.stop().await.exits(0).json();
    let (leased, attempts): (i64, i32) = sqlx::query_as(
        "select (select count(*) from note_index_state where lease_until is not null),
                (select max(attempts) from indexing_outbox)",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert_eq!((leased, attempts), (0, 0));
    site.provider.release();
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(
        (&worked["notes"], &worked["points"]),
        (&1.into(), &1.into())
    );
    db.close().await.unwrap();
}

#[tokio::test]
async fn the_admin_port_tells_when_the_worker_is_ready() {
    let site = Site::start().await;
    let worker = site.worker();
    let admin = worker.admin().await;
    worker.says("worker started").await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("{admin}{path}")).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(get("/livez").await.0, 200);
    let (status, body) = get("/readyz").await;
    assert_eq!(status, 200, "{body}");

    let mut db = site.connect().await;
    site.provider.always(Behaviour::Status(503));
    sqlx::query(
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'waits for the provider')",
    )
    .execute(&mut db)
    .await
    .unwrap();
    eventually(async || get("/readyz").await.0 == 503).await;
    let (_, body) = get("/readyz").await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["ready"], false);
    let checks = body["checks"].as_array().unwrap();
    let provider = checks
        .iter()
        .find(|check| check["name"] == "provider")
        .unwrap();
    assert!(
        provider["reason"].as_str().unwrap().contains("503"),
        "{body}"
    );
    assert_eq!(get("/livez").await.0, 200);

    site.provider.heal();
    eventually(async || get("/readyz").await.0 == 200).await;
    let all_indexed = [
        "elf_notes_indexed_total 1",
        "elf_points_written_total 1",
        "elf_outbox_rows{state=\"pending\"} 0",
        "elf_outbox_oldest_pending_seconds 0",
    ];
    eventually_has(async || get("/metrics").await.1, &all_indexed).await;
    assert_eq!(get("/nowhere").await.0, 404);
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn a_second_demo_leaves_the_first_alone() {
    let site = Site::empty().await;
    let mut first = site.connect().await;
    sqlx::query("select pg_advisory_lock(x'656c665f64656d6f'::bigint)")
        .execute(&mut first)
        .await
        .unwrap();
    let database = format!("--database-url={}", site.database.url());
    site.elf(&["demo", "--notes", ".", &database])
        .await
        .exits(1)
        .says(&["another demo is running", "--keep"]);
    site.elf(&["demo", &database])
        .await
        .exits(1)
        .says(&["no folder examples/notes", "--notes"]);
}

/// Also on notes without a sentence that it could replace.
#[cfg(all(feature = "embedded", feature = "local"))]
#[tokio::test]
async fn the_demo_runs_to_its_end_on_notes_of_others() {
    use crate::support::{harness::model, own_postgres::OwnPostgres};

    let Some(server) = OwnPostgres::start("the_demo_runs_to_its_end_on_notes_of_others") else {
        return;
    };
    let site = Site::empty().await;
    site.write("own/list.md", "- milk\n- eggs\n");
    site.write("own/ann.txt", "Call Ann.");
    let url = sqlx::ConnectOptions::to_url_lossy(&server.options()).to_string();
    let model = std::fs::canonicalize(model()).unwrap();
    let [notes, dir] = [["--notes", "own"], ["--dir", "demo"]];
    let more = ["--database-url", &url, "--model", model.to_str().unwrap()];
    let args = [&["demo"][..], &notes, &dir, &more].concat();
    let done = site.elf(&args).await.exits(0);
    for told in ["2 rows: 2 notes", "Friday", "found: ", "== Done"] {
        assert!(done.stdout.contains(told), "{told}: {done:?}");
    }
    assert!(!done.stdout.contains("found: nothing"), "{done:?}");
}

/// A script must not take an interrupted run for a complete one.
#[tokio::test]
async fn a_run_that_is_stopped_before_the_outbox_is_empty_is_not_done() {
    let site = Site::start().await;
    site.configure("grace_secs = 5", "grace_secs = 0");
    site.provider.hold();
    site.note("held").await;
    let worker = site.begin(&["worker", "--once", "--json"]);
    site.provider.holding(1).await;
    let stopped = worker.stop().await.exits(1);
    stopped.says(&["stopped before", "run it again"]);
    site.provider.release();
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
}

#[tokio::test]
async fn a_note_that_an_application_holds_is_paused_and_not_leased() {
    let site = Site::start().await;
    let note = site.note("held by an application").await;
    let mut db = site.connect().await;
    let mut holding = db.begin().await.unwrap();
    sqlx::query("select from memory_notes where note_id = $1 for update")
        .bind(note)
        .execute(&mut *holding)
        .await
        .unwrap();
    let worker = site.begin(&["worker", "--once", "--json"]);
    worker.says("waiting for paused notes").await;
    holding.rollback().await.unwrap();
    let done = worker.ended().await.exits(0);
    assert_eq!(done.json()["notes"], 1);
    assert!(!done.stderr.contains("another worker"), "{done:?}");

    sqlx::query(
        "update note_index_state set leased_at = now(), lease_until = now() + interval '1 minute'",
    )
    .execute(&mut db)
    .await
    .unwrap();
    sqlx::query("insert into indexing_outbox (note_id) values ($1)")
        .bind(note)
        .execute(&mut db)
        .await
        .unwrap();
    let outbox = site.json(&["status"]).await["outbox"].take();
    let counts = ["pending", "leased", "paused"].map(|state| outbox[state].as_i64());
    assert_eq!(counts, [Some(1), Some(0), Some(1)]);
    let told = site.elf(&["status"]).await.exits(0).stdout;
    let words = "1 pending, 0 leased, 0 failed, 0 dead, 1 paused";
    assert!(told.contains(words), "{told}");
    sqlx::query("update note_index_state set holder = 'another'")
        .execute(&mut db)
        .await
        .unwrap();
    let outbox = site.json(&["status"]).await["outbox"].take();
    let counts = ["pending", "leased", "paused"].map(|state| outbox[state].as_i64());
    assert_eq!(counts, [Some(0), Some(1), Some(0)]);
}
