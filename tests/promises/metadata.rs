//! Fields of metadata: what they become in the index, how searches filter by them, and what it takes to declare one.

use elf::index::Filter;
use elf::metadata::{self, Conditions};
use elf::serving;
use reqwest::Method;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::support::api::Served;
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::hooked::Hooked;
use crate::support::qdrant::Qdrant;

const DECLARED: &str = r#"
[metadata]
lang = "keyword"
tags = "keywords"
priority = "integer"
price = "number"
done = "boolean"
at = "datetime"
"#;

/// Right and wrong values of every type.
fn values() -> Vec<Value> {
    vec![
        json!({"lang": "de"}),
        json!({"lang": "en", "tags": ["bug", "ui"], "priority": 3, "price": 9.99, "done": true}),
        json!({"lang": "", "tags": [], "priority": 2.5, "price": "9", "done": "true"}),
        json!({"lang": 5, "tags": "ui", "priority": 3.0, "price": 0, "done": false}),
        json!({"lang": ["de"], "tags": ["bug", 7, null, "x\u{1f600}"], "priority": -7, "price": -0.0}),
        json!({"lang": "a \"quoted\" one", "tags": [["bug"]], "priority": 1e15, "price": 1e20}),
        json!({"priority": 9_007_199_254_740_993_i64, "price": 18_446_744_073_709_551_615_u64}),
        json!({"at": "2026-03-01T12:00:00Z", "other": "not declared"}),
        json!({"at": "2026-03-01T14:00:00.000001+02:00"}),
        json!({"at": "2026-03-01"}),
        json!({"at": "2026-03-01 12:00:00"}),
        json!({"at": "2026-13-01"}),
        json!({"at": "2026-02-30T00:00:00Z"}),
        json!({"at": "yesterday"}),
        json!({"at": "2026-03-01T12:00:00+25:00"}),
        json!({"at": 1_772_366_400}),
        json!({"lang": null, "tags": null, "priority": null, "price": null, "done": null, "at": null}),
        json!({}),
        json!([]),
        json!("a string"),
    ]
}

fn filters() -> Vec<Value> {
    let mut filters = vec![
        json!({"lang": "de"}),
        json!({"lang": ["en", "de"]}),
        json!({"lang": "a \"quoted\" one"}),
        json!({"tags": "ui"}),
        json!({"tags": {"any": ["bug", "nothing"]}}),
        json!({"priority": 3}),
        json!({"priority": {"any": [3, -7]}}),
        json!({"priority": {"gt": 2.5}}),
        json!({"priority": {"gte": -7, "lt": 4}}),
        json!({"price": 9.99}),
        json!({"price": {"gte": 0, "lte": 9.99}}),
        json!({"price": {"gt": 1e19}}),
        json!({"done": true}),
        json!({"done": [true, false]}),
        json!({"at": "2026-03-01T12:00:00Z"}),
        json!({"at": {"gt": "2026-03-01T12:00:00Z"}}),
        json!({"at": {"gte": "2026-03-01", "lt": "2026-03-01T12:00:00Z"}}),
        json!({"lang": "en", "tags": "bug", "done": true}),
        json!({"lang": "de", "tags": {"exists": false}}),
    ];
    for field in ["lang", "tags", "priority", "price", "done", "at"] {
        filters.push(json!({ field: {"exists": true} }));
        filters.push(json!({ field: null }));
    }
    filters
}

/// Notes of these values: their ids, in the same order.
async fn notes_of(h: &Harness, values: &[Value]) -> Vec<Uuid> {
    let mut notes = Vec::new();
    for value in values {
        let note = h.insert(&format!("The values are {value}.")).await;
        sqlx::query("update memory_notes set metadata = $2 where note_id = $1")
            .bind(note)
            .bind(value)
            .execute(&h.pool)
            .await
            .unwrap();
        notes.push(note);
    }
    notes
}

fn asked(filter: &Value, h: &Harness) -> Conditions {
    let filter = filter.as_object().unwrap();
    metadata::conditions(filter, &h.config.metadata).unwrap()
}

async fn declared(h: &Harness) {
    serving::declare_fields(&h.pipeline.serving).await.unwrap();
}

/// Which of the notes the index and Postgres find by each filter: the same ones.
async fn agree(h: &Harness) {
    declared(h).await;
    let values = values();
    let notes = notes_of(h, &values).await;
    h.drain().await;
    let collection = h.collection().await;
    let mut found_any = 0;
    for filter in filters() {
        let fields = asked(&filter, h);
        for (note, value) in notes.iter().zip(&values) {
            let of_note = Filter {
                note_ids: Some(vec![*note]),
                fields: fields.clone(),
                ..Filter::default()
            };
            let index = &h.pipeline.serving.index;
            let in_index = index.count(&collection, &of_note).await.unwrap() > 0;
            let in_postgres: bool = sqlx::query_scalar(
                "select elf_meets(metadata, $2) from memory_notes where note_id = $1",
            )
            .bind(note)
            .bind(json!(fields))
            .fetch_one(&h.pool)
            .await
            .unwrap();
            assert_eq!(in_index, in_postgres, "{filter} of {value}");
            found_any += usize::from(in_index);
        }
    }
    assert!(found_any > 60, "{found_any}");
    h.assert_exact().await;
}

#[tokio::test]
async fn the_index_and_postgres_find_the_same_notes_by_every_field() {
    agree(&Harness::start_with(|toml| toml + DECLARED).await).await;
}

#[tokio::test]
async fn a_server_and_postgres_find_the_same_notes_by_every_field() {
    let Some(server) =
        Qdrant::start("a_server_and_postgres_find_the_same_notes_by_every_field").await
    else {
        return;
    };
    let mut h = Harness::start_on(&server).await;
    let toml = h.toml() + DECLARED;
    h.config = elf::config::Config::parse(&toml, "elf.toml", &|_| None).unwrap();
    h.pipeline.serving.fields = h.config.metadata.clone();
    agree(&h).await;
}

#[tokio::test]
async fn a_field_that_is_declared_later_costs_no_embedding() {
    let h = Harness::start_with(|toml| toml + DECLARED).await;
    let notes = notes_of(&h, &values()).await;
    h.drain().await;
    let fields = asked(&json!({"lang": "de"}), &h);
    let filter = Filter {
        fields,
        ..Filter::default()
    };
    let collection = h.collection().await;
    let count = async || {
        h.pipeline
            .serving
            .index
            .count(&collection, &filter)
            .await
            .unwrap()
    };
    assert_eq!(count().await, 0);
    let (embedded, points) = (h.provider.requests(), h.points().await.len());
    declared(&h).await;
    h.drain().await;
    assert_eq!(h.provider.requests(), embedded);
    assert_eq!((count().await, h.points().await.len()), (1, points));
    h.assert_exact().await;
    // Declared as before: nothing to do.
    declared(&h).await;
    assert_eq!(h.count("indexing_outbox").await, 0);
    // A rebuilt collection has the fields too.
    let site = h.into_site().await;
    site.elf(&["rebuild"]).await.exits(0);
    let found = site.json(&["search", "values", "--where", "lang=de"]).await;
    assert_eq!(found["items"][0]["note_id"], json!(notes[0]));
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    // Another type, and one that goes.
    site.configure("lang = \"keyword\"", "lang = \"keywords\"");
    site.configure("price = \"number\"\n", "");
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["verify"]).await.exits(0);
    let found = site.json(&["search", "values", "--where", "lang=de"]).await;
    assert_eq!(
        found["items"].as_array().unwrap().len(),
        2,
        "a list of one is a list"
    );
    let refused = site.elf(&["search", "values", "--where", "price>3"]).await;
    refused
        .exits(1)
        .says(&["price is not declared", "[metadata]"]);
}

/// The worker that declared the fields was killed before it made their indexes.
#[tokio::test]
async fn a_worker_that_starts_indexes_declared_fields_in_every_collection() {
    let h = Harness::start_with(|toml| toml + DECLARED).await;
    let pipeline = &h.pipeline;
    let index = Hooked::over(&pipeline.serving.index);
    let serving = h.rebuilds_with(index.clone());
    let spec = serving::spec(&serving, &pipeline.version);
    serving.index.create_collection("old", &spec).await.unwrap();
    // One of another version, and one that is not made yet.
    sqlx::raw_sql(
        "insert into index_versions (embedding_version, embedding_dim, settings, state)
         select 'old', embedding_dim, settings, 'retired' from index_versions;
         insert into index_collections (collection, alias, embedding_version, state)
         select name, alias, 'old', 'retired'
           from index_collections, unnest(array['old', 'none']) name",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let declared = serving.store.declare_fields(&serving.fields).await.unwrap();
    assert_eq!((declared, index.indexed()), (Some(0), vec![]));
    serving::declare_fields(&serving).await.unwrap();
    let mut indexed = index.indexed();
    indexed.sort();
    assert_eq!(
        indexed,
        ["none".to_owned(), h.collection().await, "old".to_owned()]
    );
}

/// Two processes have files with different fields.
#[tokio::test]
async fn a_filter_names_what_the_database_has_whatever_the_file_of_the_process_says() {
    let served = Served::with(DECLARED).await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note =
        json!({"text": "It rains.", "metadata": {"lang": "de", "priority": 3, "colour": "red"}});
    let path = "/v2/notes?wait=indexed";
    let body = Some(json!({ "notes": [note] }));
    let added = served.ask(Method::POST, path, &secret, body).await;
    assert_eq!(added.body["indexed"], true, "{added:?}");
    let search = async |fields: Value| {
        let asked = json!({"query": "rain", "filter": {"metadata": fields}});
        served.search(&secret, asked).await
    };
    assert_eq!(
        served.site.json(&["status"]).await.get("fields_problem"),
        None
    );

    // A worker with another file starts.
    let site = &served.site;
    let other = site
        .toml()
        .replace("priority = \"integer\"", "colour = \"keyword\"");
    site.write(
        "other.toml",
        other.replace("lang = \"keyword\"", "lang = \"datetime\""),
    );
    let other = ["--config", "other.toml"];
    let once = [&other[..], &["worker", "--once"]].concat();
    site.elf(&once).await.exits(0);
    let differences = [
        "colour is \"keyword\" in the database, undeclared in [metadata]",
        "lang is \"datetime\" in the database, \"keyword\" in [metadata]",
        "priority is undeclared in the database, \"integer\" in [metadata]",
    ]
    .join("; ");
    let said = served.worker.says("differ (").await;
    assert!(said.contains(&differences), "{said}");
    let status = site.elf(&["status"]).await.exits(0).stdout;
    assert!(status.contains(&differences), "{status}");

    // What the database lacks, or has with another type, is no filter that finds nothing.
    for (fields, words) in [
        (json!({"priority": 3}), "priority is not declared"),
        (json!({"lang": "de"}), "lang is declared as \"datetime\""),
    ] {
        let refused = search(fields).await;
        refused.is_error(422, "invalid");
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    site.elf(&["search", "rain", "--where", "priority=3"])
        .await
        .exits(1)
        .says(&["priority is not declared"]);
    let red = json!({"colour": "red"});
    eventually(async || search(red.clone()).await.body["items"][0]["metadata"]["colour"] == "red")
        .await;
    let found = site
        .json(&["search", "rain", "--where", "colour=red"])
        .await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1, "{found}");
}

#[tokio::test]
async fn a_hit_shows_the_fields_of_its_note_and_a_filter_is_checked() {
    let served = Served::with(DECLARED).await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let fields = json!({"lang": "de", "priority": 3, "nested": {"a": [1]}});
    let note = json!({
        "key": "k", "title": "Rain", "project_id": "p", "type": "fact", "text": "It rains in the harbour.",
        "metadata": fields, "source_ref": {"url": "https://example.com"}
    });
    let body = json!({"notes": [note, {"text": "It rains in the mountains."}]});
    let path = "/v2/notes?wait=indexed";
    let added = served.ask(Method::POST, path, &secret, Some(body)).await;
    assert_eq!(added.body["indexed"], true, "{added:?}");
    for filter in [
        json!({"metadata": {"lang": "de"}}),
        json!({"metadata": {"priority": {"gte": 3}}, "type": "fact"}),
        json!({"metadata": {"lang": {"exists": true}}}),
    ] {
        let found = json!({"query": "rain", "filter": filter});
        let found = served.search(&secret, found).await.body;
        let items = found["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{filter}: {found}");
        assert_eq!(items[0]["metadata"], fields);
        assert_eq!(
            items[0]["source_ref"],
            json!({"url": "https://example.com"})
        );
        let shown = ["key", "title", "project_id", "agent_id", "scope", "type"];
        let shown = shown.map(|name| items[0][name].as_str().unwrap().to_owned());
        assert_eq!(shown, ["k", "Rain", "p", "default", "shared", "fact"]);
        assert!(items[0]["updated_at"].is_string());
    }
    let without = json!({"query": "rain", "filter": {"metadata": {"lang": null}}});
    let without = served.search(&secret, without).await.body;
    assert_eq!(without["items"].as_array().unwrap().len(), 1);
    assert!(without["items"][0].get("metadata").is_none());
    let undeclared = json!({"query": "rain", "filter": {"metadata": {"colour": "red"}}});
    let undeclared = served.search(&secret, undeclared).await;
    undeclared.is_error(422, "invalid");
    let message = undeclared.body["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("colour = \"keyword\" in [metadata]"),
        "{message}"
    );
    let large = json!({"notes": [{"text": "x", "metadata": {"a": "x".repeat(17 << 10)}}]});
    let large = served
        .ask(Method::POST, "/v2/notes", &secret, Some(large))
        .await;
    large.is_error(422, "invalid");
    // Without the index, Postgres filters too.
    let found = served
        .site
        .json(&[
            "search",
            "rain",
            "--where",
            "priority>=3",
            "--where",
            "lang=de",
        ])
        .await;
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_source_gives_its_notes_fields_of_their_types() {
    let h = Harness::start_with(|toml| {
        toml + DECLARED
            + r#"
[[sources]]
name = "tickets"
table = "tickets"
text = "{body}"
metadata = { lang = "{lang}", priority = "{priority}", tags = "{tags}", at = "{at}", url = "https://crm/{id}" }
"#
    })
    .await;
    sqlx::raw_sql(
        "create table tickets (id int primary key, body text, lang varchar(2), priority smallint, tags text[], at timestamptz);
         insert into tickets values (1, 'It smokes.', 'de', 3, '{bug,ui}', '2026-03-01 12:00+00'), (2, 'It is wet.', null, null, null, null);",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let site = h.into_site().await;
    site.elf(&["source", "apply"]).await.exits(0);
    site.elf(&["source", "sync"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
    let found = site
        .json(&[
            "search",
            "smokes",
            "--where",
            "tags=bug",
            "--where",
            "priority=3",
            "--where",
            "at>=2026-03-01T12:00:00Z",
        ])
        .await;
    let items = found["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{found}");
    let mut fields: Map<String, Value> = items[0]["metadata"].as_object().unwrap().clone();
    assert_eq!(fields.remove("at").unwrap(), "2026-03-01T12:00:00+00:00");
    assert_eq!(
        json!(fields),
        json!({"lang": "de", "priority": 3, "tags": ["bug", "ui"], "url": "https://crm/1"})
    );
    let mut db = site.connect().await;
    sqlx::raw_sql("update tickets set priority = 5 where id = 1; update tickets set lang = 'en' where id = 2;")
        .execute(&mut db)
        .await
        .unwrap();
    site.elf(&["worker", "--once"]).await.exits(0);
    let found = site
        .json(&["search", "smokes", "--where", "priority=5"])
        .await;
    assert_eq!(found["items"][0]["source_id"], "1");
    site.elf(&["verify"]).await.exits(0);
}

/// Postgres holds numbers and depths that no JSON library of a client does.
#[tokio::test]
async fn a_value_that_cannot_be_shown_costs_no_other_note_its_answer() {
    let served = Served::with(DECLARED).await;
    let secret = served.key(&["--tenant", "t"]).await;
    sqlx::raw_sql(
        "insert into memory_notes (tenant_id, key, text, metadata, source_ref)
         select 't', 'huge', 'A huge zebra.', '{\"x\": 1e400, \"priority\": 1e400, \"lang\": \"de\"}'::jsonb, '{\"x\": 1e400}'::jsonb
          union all
         select 't', 'deep', 'A deep zebra.', ('{\"x\":' || repeat('[', 500) || repeat(']', 500) || '}')::jsonb, '{}'
          union all
         select 't', 'good', 'A good zebra.', '{\"lang\": \"en\"}', '{}'",
    )
    .execute(&mut served.site.connect().await)
    .await
    .unwrap();
    let found = async || {
        let found = served.search(&secret, json!({"query": "zebra"})).await;
        found.body["items"].as_array().map_or(0, Vec::len) == 3
    };
    eventually(found).await;
    let filter = json!({"query": "zebra", "filter": {"metadata": {"lang": "de"}}});
    let found = served.search(&secret, filter).await.body;
    assert_eq!(found["items"][0]["key"], "huge", "{found}");
    let listed = served
        .ask(Method::POST, "/v2/notes:list", &secret, Some(json!({})))
        .await;
    assert_eq!(
        listed.body["items"].as_array().unwrap().len(),
        3,
        "{listed:?}"
    );
    let shown = served
        .ask(Method::GET, "/v2/notes?key=huge", &secret, None)
        .await;
    assert_eq!(shown.body["metadata"], json!({}), "{shown:?}");
    served.site.elf(&["verify"]).await.exits(0);
}
