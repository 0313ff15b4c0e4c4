//! `elf reindex` on the command line: estimate, build, swap, roll back and drop, with the exit
//! codes and the cost that it reports.

use std::collections::BTreeSet;

use super::expire_leases_and_job;
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::sentences;
use crate::support::site::{Site as Folder, elf};

/// A folder whose notes are indexed, and whose `elf.toml` then asks for other chunks.
async fn changed_configuration() -> Folder {
    let site = Folder::start().await;
    let mut database = site.connect().await;
    for i in 0..8 {
        sqlx::query(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1)",
        )
        .bind(sentences(1 + i, &format!("chapter {i}")))
        .execute(&mut database)
        .await
        .unwrap();
    }
    site.elf(&["worker", "--once"]).await.exits(0);
    site.configure("max_tokens = 32", "max_tokens = 24");
    site.configure(
        "model = \"test\"",
        "model = \"test\"\nusd_per_million_tokens = 100",
    );
    site
}

async fn count(site: &Folder, from: &str) -> i64 {
    let statement = format!("select count(*) from {from}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_change_of_the_chunking_is_reindexed_on_the_command_line() {
    let site = changed_configuration().await;
    for command in [&["worker", "--once"][..], &["search", "chapter"]] {
        let done = site.elf(command).await.exits(78);
        let done = done.says(&["chunking.max_tokens", "24", "32", "elf reindex"]);
        assert!(!done.stderr.contains("in this version"), "{}", done.stderr);
    }

    let estimate = site.json(&["reindex", "--dry-run"]).await;
    assert_eq!(count(&site, "index_versions").await, 1);
    assert_eq!(estimate["notes"], 8);
    let built = site.json(&["reindex"]).await;
    for (key, of_estimate) in [
        ("chunks", "chunks"),
        ("reused", "known"),
        ("embedded", "to_embed"),
    ] {
        assert_eq!(
            built[key], estimate[of_estimate],
            "{key}: {built} {estimate}"
        );
    }
    for key in ["version", "tokens", "estimated_cost_usd"] {
        assert_eq!(built[key], estimate[key], "{key}: {built} {estimate}");
    }
    let tokens = built["tokens"].as_f64().unwrap();
    let cost = built["estimated_cost_usd"].as_f64().unwrap();
    assert!(
        tokens > 0.0 && (cost - tokens / 1e4).abs() < 1e-9,
        "{built}"
    );
    assert_eq!(built["state"], "building");

    // Workers may help, searches may not see it yet.
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["search", "chapter"])
        .await
        .exits(78)
        .says(&["elf reindex --swap"]);
    let swapped = site.json(&["reindex", "--swap"]).await;
    assert_eq!(
        (&swapped["state"], &swapped["embedded"]),
        (&"active".into(), &0.into())
    );
    assert_eq!(swapped["verified"]["missing"], 0);
    site.elf(&["search", "chapter"]).await.exits(0);
    let again = site.json(&["reindex", "--swap"]).await;
    assert_eq!(
        (&again["state"], &again["verified"]),
        (&"active".into(), &serde_json::Value::Null)
    );

    site.configure("max_tokens = 24", "max_tokens = 32");
    site.elf(&["worker", "--once"])
        .await
        .exits(78)
        .says(&["retired", "elf reindex"]);
    let back = site.json(&["reindex", "rollback"]).await;
    assert_eq!(
        (&back["retired"], &back["due"]),
        (&swapped["version"], &8.into())
    );
    assert_eq!(back["settings"][0]["key"], "chunking.max_tokens");
    assert_eq!(back["settings"][0]["to"], 32);
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["search", "chapter"]).await.exits(0);
    let dropped = site.json(&["reindex", "drop"]).await;
    assert_eq!(dropped["dropped"][0]["version"], swapped["version"]);
    assert_eq!(
        site.json(&["reindex", "drop"]).await["dropped"],
        serde_json::json!([])
    );
    site.elf(&["reindex", "rollback"])
        .await
        .exits(1)
        .says(&["nothing to roll back to"]);
    assert_eq!(site.json(&["reindex"]).await["version"], back["version"]);
    let estimate = site.elf(&["reindex", "--dry-run"]).await.exits(0);
    let told = "it is served: there is nothing to build";
    assert!(estimate.stdout.contains(told), "{estimate:?}");
    site.elf(&["reindex", "--dry-run", "--swap"]).await.exits(2);
}

#[tokio::test]
async fn drift_ends_a_swap_with_code_3() {
    let site = changed_configuration().await;
    let built = site.json(&["reindex"]).await;
    sqlx::query("delete from note_embeddings where embedding_version = $1")
        .bind(built["version"].as_str().unwrap())
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    let done = site.elf(&["reindex", "--swap", "--verbose"]).await.exits(3);
    done.says(&["inconsistent", "no pooled vector"]);
    assert_eq!(
        count(&site, "index_versions where state = 'building'").await,
        1
    );
}

#[tokio::test]
async fn a_reindex_that_is_killed_pays_for_no_text_twice() {
    let site = changed_configuration().await;
    site.configure(
        "timeout_ms = 6000",
        "timeout_ms = 6000\nmax_batch_inputs = 2\nconcurrency = 1",
    );
    site.configure("batch_notes = 16", "batch_notes = 1");
    let before = site.provider.texts_seen().len();
    let requests = site.provider.requests();
    let mut killed = elf(site.folder.path())
        .arg("reindex")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The probe, and then a few requests of the reindex.
    site.provider.arrived(requests + 4).await;
    killed.kill().await.unwrap();
    expire_leases_and_job(&mut site.connect().await).await;
    site.json(&["reindex", "--swap"]).await;
    let paid = site.provider.texts_seen()[before..].to_vec();
    let texts: BTreeSet<&String> = paid.iter().collect();
    // Texts in flight at the kill are paid for again: two notes at most.
    assert!(
        paid.len() <= texts.len() + 8,
        "{} for {}",
        paid.len(),
        texts.len()
    );
    assert_eq!(count(&site, "indexing_outbox").await, 0);
    site.elf(&["verify", "--deep"]).await.exits(0);
}

#[tokio::test]
async fn behind_a_gate_a_version_that_finds_less_is_not_served() {
    let site = Folder::start().await;
    site.note("A note of the application.").await;
    site.elf(&["worker", "--once"]).await.exits(0);
    // The answer to the second query is not the note that is most like it.
    let folder = "questions";
    for (file, lines) in [
        (
            "corpus.jsonl",
            [
                "{\"_id\": \"a\", \"text\": \"The zebra sleeps.\"}",
                "{\"_id\": \"b\", \"text\": \"The library opens at nine.\"}",
            ],
        ),
        (
            "queries.jsonl",
            [
                "{\"_id\": \"1\", \"text\": \"zebra\"}",
                "{\"_id\": \"2\", \"text\": \"The zebra sleeps.\"}",
            ],
        ),
        (
            "qrels/test.tsv",
            ["query-id\tcorpus-id\tscore\n1\ta\t1", "2\tb\t1"],
        ),
    ] {
        site.write(&format!("{folder}/{file}"), lines.join("\n"));
    }
    let before = site.elf(&["eval", folder, "--json"]).await.exits(0);
    site.write("before.json", &before.stdout);
    // As if the old version had found everything.
    let mut perfect = before.json();
    perfect["hybrid"]["ndcg"] = 1.0.into();
    for ndcg in perfect["hybrid"]["ndcg_by_query"]
        .as_object_mut()
        .unwrap()
        .values_mut()
    {
        *ndcg = 1.0.into();
    }
    site.write("perfect.json", perfect.to_string());
    site.configure("max_tokens = 32", "max_tokens = 31");

    let swap = ["reindex", "--swap", "--gate", folder, "--against"];
    let refused = [&swap[..], &["perfect.json"]].concat();
    let refused = site.elf(&refused).await.exits(1);
    refused.says(&["find less than before", "the old version is still served"]);
    site.elf(&["search", "note"]).await.exits(78);
    // The documents of the evaluation are gone, in both versions.
    assert_eq!(count(&site, "memory_notes").await, 1);

    // Killed while it indexes the documents, it goes on at the next run.
    let passed = [&swap[..], &["before.json", "--json"]].concat();
    let of_document = || {
        let texts = site.provider.texts_seen();
        texts.iter().filter(|text| text.contains("library")).count()
    };
    let before = of_document();
    site.provider.poison("library", Behaviour::Never);
    let killed = site.begin(&passed);
    eventually(async || of_document() > before).await;
    killed.kill().await;
    site.provider.heal();
    assert_eq!(count(&site, "memory_notes").await, 3);
    expire_leases_and_job(&mut site.connect().await).await;
    let done = site.elf(&passed).await.exits(0);
    assert_eq!(done.json()["state"], "active");
    assert_eq!(count(&site, "memory_notes").await, 1);
    let found = site.json(&["search", "a note of the application"]).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found}");
    site.elf(&["reindex", "--swap", "--gate", folder])
        .await
        .exits(2);
}
