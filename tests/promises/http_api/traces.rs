//! Recorded searches: their answers once more, the notes that a client then reads, and how they
//! came about.

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::support::api::{Served, url};
use crate::support::harness::sentences;
use crate::support::{eventually, eventually_has};

async fn count(database: &mut PgConnection, table: &'static str) -> i64 {
    let statement = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(statement)
        .fetch_one(database)
        .await
        .unwrap()
}

/// Searches, and returns the id of the search and the notes of the answer.
async fn searched(served: &Served, secret: &str, query: &str) -> (String, Vec<String>) {
    let answered = served.search(secret, json!({ "query": query })).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    let id = answered.body["search_id"].as_str();
    (id.expect("recorded").to_owned(), notes(&answered.body))
}

fn notes(answer: &Value) -> Vec<String> {
    let items = answer["items"].as_array().unwrap();
    let id = |item: &Value| item["note_id"].as_str().unwrap().to_owned();
    items.iter().map(id).collect()
}

#[tokio::test]
async fn a_search_can_be_read_again_with_its_notes_and_its_way() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let zebra = served
        .add(&secret, "The zebra sleeps under the baobab.")
        .await;
    let herd = served
        .add(
            &secret,
            &format!("A zebra leads. {}", sentences(40, "zebras")),
        )
        .await;
    let library = served.add(&secret, "The library opens at nine.").await;
    let get = async |path: String| served.ask(Method::GET, &path, &secret, None).await;

    let (search, found) = searched(&served, &secret, "a zebra under a baobab").await;
    assert_eq!(found.len(), 3);
    assert_eq!(found[0], zebra);
    let again = get(format!("/v2/searches/{search}")).await;
    assert_eq!(again.status, 200, "{again:?}");
    assert_eq!(again.body["query"], "a zebra under a baobab");
    assert_eq!(again.body["request"]["limit"], 10);
    assert_eq!(notes(&again.body), found);
    assert_eq!(again.body["items"][0]["changed"], false);
    assert_eq!(
        again.body["items"][0]["text"],
        "The zebra sleeps under the baobab."
    );

    let trace = get(format!("/v2/admin/traces/{search}")).await.body;
    assert_eq!(trace["dropped"], 0, "{trace}");
    assert!(trace["took_ms"]["retrieve"].as_f64().unwrap() > 0.0);
    let items = trace["items"].as_array().unwrap();
    let candidates = trace["candidates"].as_u64().unwrap() as usize;
    assert_eq!(items.len(), candidates, "each candidate has its way");
    assert!(candidates > 3, "the long note has several chunks: {trace}");
    let ranked: Vec<i64> = items.iter().filter_map(|i| i["rank"].as_i64()).collect();
    assert_eq!(ranked, [1, 2, 3]);
    assert_eq!(items[0]["note_id"], zebra);
    assert_eq!(items[0]["bm25_rank"], 1);
    // No word of the query is in it.
    let other = items.iter().find(|i| i["note_id"] == library).unwrap();
    assert_eq!(other["bm25_rank"], Value::Null);
    assert!(other["dense"].as_f64().is_some());
    let item = items[0]["item_id"].as_str().unwrap();
    let alone = get(format!("/v2/admin/trace-items/{item}")).await.body;
    assert_eq!(alone["trace_id"], search);
    assert_eq!(alone["fused"], items[0]["fused"]);

    // A record names notes and holds no text of theirs.
    let mut database = served.site.connect().await;
    let rows: Vec<String> = sqlx::query_scalar(
        "select t::text from search_traces t union all select i::text from search_trace_items i",
    )
    .fetch_all(&mut database)
    .await
    .unwrap();
    assert_eq!(rows.len(), 1 + items.len());
    assert!(!rows.iter().any(|row| row.contains("sleeps")));

    let patch = format!("/v2/notes/{herd}?wait=indexed");
    let body = Some(json!({"text": "The herd has left."}));
    served.ask(Method::PATCH, &patch, &secret, body).await;
    let delete = format!("/v2/notes/{library}?wait=indexed");
    served.ask(Method::DELETE, &delete, &secret, None).await;
    let again = get(format!("/v2/searches/{search}")).await;
    assert_eq!(notes(&again.body), [zebra.clone(), herd.clone()]);
    assert_eq!(again.body["items"][1]["changed"], true);
    assert_eq!(again.body["items"][1]["text"], "The herd has left.");

    let absent = Uuid::new_v4().to_string();
    let body = json!({"note_ids": [herd, absent, library, zebra, herd]});
    let path = format!("/v2/searches/{search}/notes");
    let read = served.ask(Method::POST, &path, &secret, Some(body)).await;
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(read.body["notes"][0]["text"], "The herd has left.");
    assert_eq!(read.body["notes"][1]["note_id"], zebra);
    assert_eq!(read.body["missing"], json!([absent, library]));
    // A note that is read again counts once.
    let body = Some(json!({"note_ids": [zebra]}));
    served.ask(Method::POST, &path, &secret, body).await;
    // Waits for the records.
    get(format!("/v2/searches/{search}")).await;
    let hits: Vec<(Uuid, i32)> =
        sqlx::query_as("select note_id, rank from memory_hits order by rank")
            .fetch_all(&mut database)
            .await
            .unwrap();
    let ids: Vec<String> = hits.iter().map(|hit| hit.0.to_string()).collect();
    assert_eq!(ids, [zebra, herd]);

    for (body, code) in [
        (json!({"note_ids": []}), "invalid"),
        (json!({"note_ids": ["x"]}), "invalid"),
        (json!({"notes": []}), "invalid"),
    ] {
        let answered = served.ask(Method::POST, &path, &secret, Some(body)).await;
        answered.is_error(422, code);
    }
}

#[tokio::test]
async fn a_search_of_another_key_is_as_if_it_did_not_exist() {
    let served = Served::start().await;
    let owner = served.key(&["--tenant", "t", "--write"]).await;
    let note = served
        .add(&owner, "The password of the gate is swordfish.")
        .await;
    let (search, _) = searched(&served, &owner, "swordfish").await;
    let trace = format!("/v2/admin/traces/{search}");
    let trace = served.ask(Method::GET, &trace, &owner, None).await.body;
    let item = trace["items"][0]["item_id"].as_str().unwrap().to_owned();
    let strangers = [
        vec!["--tenant", "u"],
        vec!["--tenant", "t", "--project", "p"],
        vec!["--tenant", "t", "--agent", "a"],
    ];
    let absent = Uuid::new_v4().to_string();
    let mut answers = Vec::new();
    for stranger in &strangers {
        let secret = served.key(stranger).await;
        for id in [&search, &item, &absent, &"no-uuid".to_owned()] {
            for path in ["searches", "admin/traces", "admin/trace-items"] {
                let path = format!("/v2/{path}/{id}");
                let answered = served.ask(Method::GET, &path, &secret, None).await;
                answered.is_error(404, "not_found");
                answers.push(answered.body);
            }
            let path = format!("/v2/searches/{id}/notes");
            let body = Some(json!({"note_ids": [note]}));
            let answered = served.ask(Method::POST, &path, &secret, body).await;
            answered.is_error(404, "not_found");
            answers.push(answered.body);
        }
    }
    // Nothing tells a search of another from one that does not exist.
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");

    // A key that reaches the whole tenant reads what one of a project searched.
    let bound = served.key(&["--tenant", "t", "--project", "p"]).await;
    let (search, found) = searched(&served, &bound, "swordfish").await;
    assert_eq!(found, std::slice::from_ref(&note));
    let path = format!("/v2/searches/{search}");
    let again = served.ask(Method::GET, &path, &owner, None).await;
    assert_eq!(notes(&again.body), found);

    // The note moves to another tenant: the search shows it no more.
    let mut database = served.site.connect().await;
    sqlx::query("update memory_notes set tenant_id = 'u'")
        .execute(&mut database)
        .await
        .unwrap();
    let again = served.ask(Method::GET, &path, &owner, None).await;
    assert_eq!(notes(&again.body), Vec::<String>::new());
    let body = Some(json!({"note_ids": [note]}));
    let path = format!("{path}/notes");
    let read = served.ask(Method::POST, &path, &owner, body).await;
    assert_eq!(read.body["notes"], json!([]));
    assert_eq!(read.body["missing"], json!([note]));
}

#[tokio::test]
async fn a_search_does_not_wait_for_its_record() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let mut other = served.site.connect().await;
    let mut lock = other.begin().await.unwrap();
    sqlx::query("lock table search_traces in exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    // More than the records that may wait.
    let search = async |_| {
        let answered = served.search(&secret, json!({"query": "zebra"})).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        assert_eq!(notes(&answered.body), std::slice::from_ref(&note));
        answered.body["search_id"].is_string()
    };
    let searches = futures::stream::iter((0..300).map(search));
    let recorded: Vec<bool> = searches.buffered(20).collect().await;
    assert!(recorded[0]);
    assert!(recorded.contains(&false), "the waiting records are bounded");
    lock.rollback().await.unwrap();
    eventually(async || {
        let answered = served.search(&secret, json!({"query": "zebra"})).await;
        let Some(search) = answered.body["search_id"].as_str() else {
            return false;
        };
        let path = format!("/v2/searches/{search}");
        let again = served.ask(Method::GET, &path, &secret, None).await;
        again.status == 200
    })
    .await;
    served.worker.stop().await.exits(0);
}

#[tokio::test]
async fn records_are_deleted_after_their_days() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let (old, _) = searched(&served, &secret, "an old zebra").await;
    let (new, _) = searched(&served, &secret, "a new zebra").await;
    for search in [&old, &new] {
        let path = format!("/v2/searches/{search}/notes");
        let body = Some(json!({"note_ids": [note]}));
        let read = served.ask(Method::POST, &path, &secret, body).await;
        assert_eq!(read.status, 200);
    }
    // The process writes its last records before it ends.
    served.worker.stop().await.exits(0);
    let mut database = served.site.connect().await;
    assert_eq!(count(&mut database, "memory_hits").await, 2);
    assert_eq!(count(&mut database, "search_trace_items").await, 2);
    let age = "update search_traces set created_at = now() - interval '8 days'
                where query = 'an old zebra'";
    sqlx::query(age).execute(&mut database).await.unwrap();
    let database = tokio::sync::Mutex::new(database);
    let left = async |table| count(&mut *database.lock().await, table).await;
    let server = served.site.begin(&["serve"]);
    let address = url(&server).await;
    eventually(async || {
        left("search_traces").await == 1
            && left("search_trace_items").await == 1
            && left("memory_hits").await == 1
    })
    .await;
    let get = async |search: &str| {
        let path = format!("/v2/searches/{search}");
        crate::support::api::ask(&address, Method::GET, &path, &secret, None).await
    };
    get(&old).await.is_error(404, "not_found");
    assert_eq!(get(&new).await.status, 200);
    server.stop().await.exits(0);

    let toml = format!("{}\n[search]\ntrace_days = 0\n", served.site.toml());
    served.site.write("elf.toml", toml);
    let server = served.site.begin(&["serve", "--metrics", "127.0.0.1:0"]);
    let line = server.says("metrics are at").await;
    let metrics = line.split("address=").nth(1).unwrap().trim().to_owned();
    let address = url(&server).await;
    eventually(async || left("search_traces").await == 0).await;
    let body = Some(json!({"query": "zebra"}));
    let answered =
        crate::support::api::ask(&address, Method::POST, "/v2/searches", &secret, body).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    assert_eq!(answered.body["search_id"], Value::Null);
    let metrics = format!("http://{metrics}/metrics");
    let scrape = async || reqwest::get(&metrics).await.unwrap().text().await.unwrap();
    let counted = ["elf_searches_total{outcome=\"found\"} 1\n", "elf_ready 1\n"];
    eventually_has(scrape, &counted).await;
    server.stop().await.exits(0);
}
