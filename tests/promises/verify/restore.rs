//! Postgres or Qdrant was restored to an earlier state.

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{repairing, with_notes};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::{Findings, Harness, sentences};
use crate::support::qdrant::Qdrant;
use crate::support::standby::Moment;

/// The index is ahead of Postgres: it has texts, labels, notes and tokens that Postgres
/// lost.
#[tokio::test]
async fn a_postgres_from_an_older_backup_is_what_the_index_becomes() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for i in 0..6 {
        notes.push(h.insert(&sentences(6, &format!("matter {i}"))).await);
    }
    h.drain().await;
    let kept = Moment::keep(&h).await;
    for round in 0..20 {
        h.edit(
            notes[0],
            &sentences(4 + round % 5, &format!("round {round}")),
        )
        .await;
        h.drain().await;
    }
    h.edit(notes[1], "Less of it.").await;
    let relabel = "update memory_notes set scope = $2 where note_id = $1";
    h.execute(relabel, notes[2], "private").await;
    h.delete(notes[3]).await;
    h.insert(&sentences(5, "what came after the backup")).await;
    h.drain().await;
    h.assert_exact().await;
    kept.restore(&h).await;

    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert!(
        report.missing > 0 && report.stale > 0 && report.orphaned > 0,
        "{report:?}"
    );
    h.provider.always(Behaviour::Status(500));
    let requests = h.provider.requests();
    let report = h.verify(&repairing(true)).await;
    assert_eq!(report.unrepaired(), 0);
    h.assert_exact().await;
    assert_eq!(h.provider.requests(), requests);
    h.provider.heal();

    // The tokens are above every revision in the index, or these edits would change nothing.
    for note in &notes {
        h.edit(*note, &sentences(7, "what is new after the restore"))
            .await;
    }
    h.drain().await;
    h.assert_exact().await;
}

async fn rest(method: Method, url: String, body: Value) -> Value {
    let request = reqwest::Client::new().request(method, &url).json(&body);
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let body = answer.text().await.unwrap();
    assert!(status.is_success(), "{url}: {status} {body}");
    serde_json::from_str(&body).unwrap()
}

/// Qdrant is lost and restored from its own snapshot, which is older and has no alias.
#[tokio::test]
async fn a_qdrant_from_its_own_snapshot_is_brought_up_to_date() {
    let Some(server) = Qdrant::start("a_qdrant_from_its_own_snapshot_is_brought_up_to_date").await
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    with_notes(&h).await;
    let collection = h.collection().await;
    let snapshots = format!("{}/collections/{collection}/snapshots", server.rest());
    let made = rest(Method::POST, snapshots.clone(), json!({})).await;
    let name = made["result"]["name"].as_str().unwrap();
    let file = server
        .folder()
        .join("snapshots")
        .join(&collection)
        .join(name);
    let kept = server.folder().join("snapshots").join("kept.snapshot");
    std::fs::copy(&file, &kept).unwrap();

    let notes: Vec<Uuid> = sqlx::query_scalar("select note_id from memory_notes order by text")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    h.edit(notes[0], &sentences(9, "what was edited since"))
        .await;
    h.edit(notes[20], "Little is left of it.").await;
    h.delete(notes[1]).await;
    h.insert(&sentences(9, "what came since")).await;
    h.drain().await;
    h.assert_exact().await;
    h.pipeline
        .serving
        .index
        .drop_collection(&collection)
        .await
        .unwrap();

    let location = json!({"location": format!("file://{}", kept.display())});
    rest(
        Method::PUT,
        format!("{snapshots}/recover?wait=true"),
        location,
    )
    .await;
    h.provider.always(Behaviour::Status(500));
    let requests = h.provider.requests();
    let done = h.elf(&["verify", "--json"]).await.exits(1);
    done.says(&["points at nothing", "verify --repair"]);
    let report = h.json(&["verify", "--repair"]).await;
    for kind in ["missing", "stale", "orphaned"] {
        assert!(report[kind].as_u64().unwrap() > 0, "{kind}: {report}");
    }
    assert_eq!(h.provider.requests(), requests);
    assert_eq!(
        h.pipeline
            .serving
            .index
            .resolve(&h.pipeline.serving.alias)
            .await
            .unwrap(),
        Some(collection)
    );
    h.assert_exact().await;
    assert_eq!(h.verify(&Findings::default().deep()).await.drift(), 0);
}

#[tokio::test]
async fn a_backup_with_a_waiting_note_is_what_the_index_becomes() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(4, "matter")).await;
    h.drain().await;
    h.edit(note, &sentences(3, "was waiting")).await;
    let kept = Moment::keep(&h).await;
    for round in 0..8 {
        h.edit(note, &sentences(6, &format!("round {round}"))).await;
        h.drain().await;
    }
    kept.restore(&h).await;
    h.verify(&repairing(true)).await;
    h.drain().await;
    h.assert_exact().await;
}
