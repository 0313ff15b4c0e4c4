//! A search answers without the parts that are unavailable.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::api::{Served, ask, url};
use crate::support::embedding_server::Behaviour;

#[tokio::test]
async fn a_search_without_provider_or_index_answers_and_says_so() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let note = served
        .add(&secret, "The zebra sleeps under the baobab.")
        .await;
    served.add(&secret, "The library opens at nine.").await;
    served.add(&other, "A zebra of another tenant.").await;

    served.site.provider.always(Behaviour::Status(503));
    let answered = served.search(&secret, json!({"query": "zebra"})).await;
    assert_eq!(answered.body["degraded"], json!(["query_vector"]));
    let items = answered.body["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{answered:?}");
    assert_eq!(items[0]["note_id"], note);
    assert_eq!(items[0]["dense"], Value::Null);

    served.site.provider.heal();
    served.worker.stop().await.exits(0);
    // The folder of the embedded engine is lost.
    std::fs::remove_dir_all(served.site.path("index")).ok();
    let found = served
        .site
        .elf(&["search", "zebra", "--tenant", "t", "--json"])
        .await;
    let found = found.exits(0).says(&["degraded search"]);
    let answer = found.json();
    assert_eq!(answer["degraded"][0]["code"], "index", "{answer}");
    let ids: Vec<&str> = answer["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["note_id"].as_str().unwrap())
        .collect();
    assert_eq!(ids[0], note, "{answer}");
    assert_eq!(ids.len(), 2, "nothing of another tenant: {answer}");
    assert!(answer["items"][0]["bm25"].as_f64().unwrap() > 0.0);
    assert!(answer["items"][0]["dense"].as_f64().is_some());
    // A word for Unicode, and no lexeme for Postgres.
    let half = served.site.elf(&["search", "½", "--tenant", "t", "--json"]);
    let items = half.await.exits(0).json()["items"].clone();
    assert_eq!(items.as_array().unwrap().len(), 2, "by meaning: {items}");
}

#[tokio::test]
async fn searches_start_while_the_server_of_the_index_is_away() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served
        .add(&secret, "The zebra sleeps under the baobab.")
        .await;
    served.worker.stop().await.exits(0);
    served.site.use_server("http://127.0.0.1:1");

    let found = served.site.elf(&["search", "zebra", "--json"]).await;
    let found = found
        .exits(0)
        .says(&["http://127.0.0.1:1", "is unavailable", "6334"]);
    let answer = found.json();
    assert_eq!(answer["degraded"][0]["code"], "index", "{answer}");
    assert_eq!(answer["items"][0]["note_id"], note, "{answer}");

    let alone = served.site.begin(&["serve"]);
    let url = url(&alone).await;
    let query = Some(json!({"query": "zebra"}));
    let answered = ask(&url, Method::POST, "/v2/searches", &secret, query).await;
    assert_eq!(answered.body["degraded"], json!(["index"]));
    assert_eq!(answered.body["items"][0]["note_id"], note);
    alone.stop().await.exits(0);
    // What writes to the index does not do without it.
    served.site.elf(&["worker", "--once"]).await.exits(1);
}
