//! The HTTP API: notes and searches, and what a wrong request is told.

mod degraded;
mod keys;
mod names;
mod traces;
mod writes;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use uuid::Uuid;

use crate::support::api::{Served, ask, url};
use crate::support::eventually;
use crate::support::harness::sentences;

#[tokio::test]
async fn a_note_is_added_found_changed_and_deleted() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    for about in ["rain", "snow", "fog", "wind"] {
        served.add(&secret, &sentences(3, about)).await;
    }
    let text = format!(
        "{}\n\n The zebra sleeps under the baobab. \n{}",
        sentences(9, "the savanna"),
        sentences(9, "the desert")
    );
    let note = served.add(&secret, &text).await;

    let answered = served
        .search(&secret, json!({"query": "zebra baobab"}))
        .await;
    assert_eq!(answered.body["degraded"], json!([]));
    let item = &answered.body["items"][0];
    assert_eq!(item["note_id"], note);
    let slice = |of: &Value| {
        let offset = |name: &str| of[name].as_u64().unwrap() as usize;
        text[offset("start_offset")..offset("end_offset")].to_owned()
    };
    assert_eq!(item["text"], slice(item));
    assert!(slice(item).contains("zebra"));
    let context = &item["context"];
    assert_eq!(context["text"], slice(context));
    assert!(slice(context).len() > slice(item).len());
    assert!(slice(context).contains(&slice(item)));
    let passage = &item["passage"];
    assert_eq!(passage["text"], slice(passage));
    assert!(slice(passage).contains("The zebra sleeps under the baobab."));
    let marked: Vec<String> = passage["highlights"]
        .as_array()
        .unwrap()
        .iter()
        .map(slice)
        .collect();
    assert_eq!(marked, ["zebra", "baobab"]);

    let brief = json!({"query": "zebra baobab", "max_tokens": 450});
    let brief = served.search(&secret, brief).await.body;
    let items = brief["items"].as_array().unwrap();
    assert_eq!(items[0]["passage"], *passage);
    assert!(items.len() < answered.body["items"].as_array().unwrap().len());
    assert!(
        items
            .iter()
            .all(|item| item["text"].is_null() && item["context"].is_null())
    );
    let least = json!({"query": "zebra baobab", "max_tokens": 100});
    let least = served.search(&secret, least).await.body;
    assert_eq!(least["items"].as_array().unwrap().len(), 1);

    let path = format!("/v2/notes/{note}");
    let shown = served.ask(Method::GET, &path, &secret, None).await;
    assert_eq!(shown.body["text"], text);
    assert_eq!(shown.body["indexed"], true);

    let change = json!({"text": "The library opens at nine.", "key": "hours"});
    let patch = format!("{path}?wait=indexed");
    let changed = served
        .ask(Method::PATCH, &patch, &secret, Some(change))
        .await;
    assert_eq!(
        (changed.status.as_u16(), &changed.body["indexed"]),
        (200, &json!(true))
    );
    assert_eq!(served.found(&secret, "library").await[0], note);
    let only_key = json!({"query": "library", "filter": {"key": "hours"}});
    let answered = served.search(&secret, only_key).await;
    assert_eq!(answered.body["items"].as_array().unwrap().len(), 1);
    let cleared = json!({"key": null});
    served
        .ask(Method::PATCH, &patch, &secret, Some(cleared))
        .await;
    let shown = served.ask(Method::GET, &path, &secret, None).await;
    assert_eq!(shown.body["key"], Value::Null);
    assert_eq!(shown.body["text"], "The library opens at nine.");

    let removed = served.ask(Method::DELETE, &patch, &secret, None).await;
    assert_eq!(
        (removed.status.as_u16(), &removed.body["indexed"]),
        (200, &json!(true))
    );
    assert!(!served.found(&secret, "library").await.contains(&note));
    let gone = served.ask(Method::GET, &path, &secret, None).await;
    gone.is_error(404, "not_found");
}

#[tokio::test]
async fn a_wrong_request_is_told_what_is_wrong() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let long = "x".repeat(9 << 10);
    for (body, field) in [
        (json!({"query": ""}), "query"),
        (json!({"query": " \n\t "}), "query"),
        (json!({"query": long}), "query"),
        (json!({"query": "a\u{0}b"}), "query"),
        (json!({"query": "a", "limit": 0}), "limit"),
        (json!({"query": "a", "limit": 101}), "limit"),
        (json!({"query": "a", "max_tokens": 99}), "max_tokens"),
    ] {
        let answered = served.search(&secret, body).await;
        answered.is_error(422, "invalid");
        assert_eq!(answered.body["error"]["details"]["field"], field);
    }
    for (body, known) in [
        (json!({"query": "a", "colour": "red"}), "filter"),
        (json!({"query": "a", "filter": {"tenant_id": "u"}}), "scope"),
        (json!({"query": "a", "by": "magic"}), "bm25"),
        (json!({"limit": 3}), "query"),
    ] {
        let answered = served.search(&secret, body).await;
        answered.is_error(422, "invalid");
        let message = answered.body["error"]["message"].to_string();
        assert!(message.contains(known), "{message}");
    }
    for (body, field, says) in [
        (
            json!({"query": 5}),
            "query",
            "query must be a string, not 5",
        ),
        (
            json!({"query": "a", "limit": "ten"}),
            "limit",
            "limit must be a whole number, not the string \"ten\"",
        ),
        (
            json!({"query": "a", "filter": {"min_importance": "high"}}),
            "min_importance",
            "filter.min_importance must be a number, not the string \"high\"",
        ),
        (
            json!({"query": "a", "filter": {"updated_after": "yesterday"}}),
            "updated_after",
            "filter.updated_after must be a time such as 2026-03-01T12:00:00Z",
        ),
        (
            json!({"query": "a", "filter": {"colour": "red"}}),
            "colour",
            "filter.colour is no field of the request; the fields are project_id",
        ),
        (
            json!({"query": "a", "by": "magic"}),
            "by",
            "by must be dense, bm25, hybrid, not \"magic\"",
        ),
        (json!({"limit": 3}), "query", "query is missing"),
        (
            json!("a"),
            "body",
            "the body must be an object, not the string \"a\"",
        ),
    ] {
        let answered = served.search(&secret, body).await;
        answered.is_error(422, "invalid");
        let error = &answered.body["error"];
        assert_eq!(error["details"]["field"], field, "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(says), "{message}");
    }
    let note = json!({"notes": [{"project_id": "p", "agent_id": "a", "scope": "s", "type": "n", "text": 7}]});
    let answered = served
        .ask(Method::POST, "/v2/notes?wait=indexed", &secret, Some(note))
        .await;
    answered.is_error(422, "invalid");
    assert_eq!(answered.body["error"]["details"]["field"], "text");
    let answered = served
        .ask(
            Method::POST,
            "/v2/notes?wait=indexed&colour=red",
            &secret,
            Some(json!({"notes": []})),
        )
        .await;
    answered.is_error(422, "invalid");
    assert_eq!(answered.body["error"]["details"]["field"], "colour");
    let long = json!({"query": "a", "filter": {"scope": "s".repeat(1001)}});
    let answered = served.search(&secret, long).await;
    answered.is_error(422, "invalid");
    assert_eq!(answered.body["error"]["details"]["field"], "scope");
    let nul = json!({"query": "a", "filter": {"scope": "\u{0}"}});
    let answered = served.search(&secret, nul).await;
    answered.is_error(422, "invalid");
    assert_eq!(answered.body["error"]["details"]["field"], "scope");
    for query in [
        "\"'()&|!:* \\ %_ <->",
        "日本語のメモ",
        "\u{202e}abc",
        "🦓",
        "--",
        "' or 1=1",
    ] {
        let answered = served.search(&secret, json!({ "query": query })).await;
        assert_eq!(answered.status, 200, "{query:?}: {answered:?}");
    }
    let note = |change: Value| {
        let mut note =
            json!({"project_id": "p", "agent_id": "a", "scope": "s", "type": "n", "text": "x"});
        let change = change.as_object().unwrap().clone();
        note.as_object_mut().unwrap().extend(change);
        json!({ "notes": [note] })
    };
    for (body, code) in [
        (note(json!({"text": " "})), "invalid"),
        (note(json!({"text": "a\u{0}b"})), "invalid"),
        (note(json!({"importance": 1.5})), "invalid"),
        (note(json!({"project_id": 5})), "invalid"),
        (note(json!({"note_id": Uuid::nil()})), "invalid"),
        (json!({"notes": []}), "invalid"),
    ] {
        let answered = served
            .ask(Method::POST, "/v2/notes", &secret, Some(body))
            .await;
        answered.is_error(422, code);
    }
    // A list is refused as a whole, so the error says which note it is.
    let valid = &note(json!({}))["notes"][0];
    let wrong = |change: Value| note(change)["notes"][0].clone();
    let no_text = json!({"project_id": "p", "agent_id": "a", "type": "n"});
    for (second, field) in [
        (wrong(json!({"text": " "})), "text"),
        (wrong(json!({"text": "a\u{0}b"})), "text"),
        (wrong(json!({"importance": 7})), "importance"),
        (no_text, "text"),
    ] {
        let body = json!({"notes": [valid, second]});
        let answered = served
            .ask(Method::POST, "/v2/notes", &secret, Some(body))
            .await;
        answered.is_error(422, "invalid");
        let details = &answered.body["error"]["details"];
        assert_eq!(*details, json!({"field": field, "note": 1}));
    }
    let answered = served
        .ask(
            Method::POST,
            "/v2/notes?wait=ever",
            &secret,
            Some(note(json!({}))),
        )
        .await;
    answered.is_error(422, "invalid");
    let answered = served.ask(Method::GET, "/v2/nothing", &secret, None).await;
    answered.is_error(404, "not_found");
    let answered = served.ask(Method::GET, "/v2/searches", &secret, None).await;
    answered.is_error(405, "method_not_allowed");

    let raw = |body: Vec<u8>, kind: &'static str| {
        reqwest::Client::new()
            .post(format!("{}/v2/searches", served.url))
            .bearer_auth(&secret)
            .header("content-type", kind)
            .header("x-request-id", "mine")
            .body(body)
            .send()
    };
    let answered = raw(b"{".to_vec(), "application/json").await.unwrap();
    assert_eq!(answered.status(), 400);
    assert_eq!(answered.headers()["x-request-id"], "mine");
    let answered = raw(b"{}".to_vec(), "text/plain").await.unwrap();
    assert_eq!(answered.status(), 415);
    let answered = raw(vec![b' '; 40 << 20], "application/json").await.unwrap();
    assert_eq!(answered.status(), 413);
}

#[tokio::test]
async fn an_answer_that_its_client_does_not_read_keeps_its_place() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u"]).await;
    served.worker.stop().await.exits(0);
    let alone = served.site.begin(&["serve"]);
    let url = url(&alone).await;
    // More than the buffers of both sockets hold. (An answer of `/mcp` is shorter.)
    let note = served.site.note(&"zebra ".repeat(1 << 20)).await;
    let address: std::net::SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    let plain = format!(
        "GET /v2/notes/{note} HTTP/1.1\r\nhost: elf\r\nauthorization: Bearer {secret}\r\n\r\n"
    );
    let ask_and_leave_unread = async |request: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        (stream, String::from_utf8(status.to_vec()).unwrap())
    };
    let asked = (0..40).map(|_| ask_and_leave_unread(&plain));
    let unread = futures::future::join_all(asked).await;
    let are = |status: &str| unread.iter().filter(|(_, is)| is == status).count();
    let (answered, told) = (are("HTTP/1.1 200"), are("HTTP/1.1 429"));
    assert!(
        answered > 0 && told > 0 && answered + told == 40,
        "{answered}, {told}"
    );
    let body = Some(json!({"query": "zebra"}));
    let found = ask(&url, Method::POST, "/v2/searches", &other, body).await;
    assert_eq!(found.status, 200, "another tenant has places");
    drop(unread);
    eventually(async || ask_and_leave_unread(&plain).await.1 == "HTTP/1.1 200").await;
}

#[tokio::test]
async fn what_get_shows_can_be_written_back() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let path = format!("/v2/notes/{note}");
    let shown = served.ask(Method::GET, &path, &secret, None).await;
    assert_eq!(shown.body["expires_at"], Value::Null);
    assert_eq!(shown.body["dead_letter"], Value::Null);
    let mut back = json!({});
    for field in [
        "text",
        "scope",
        "type",
        "key",
        "title",
        "importance",
        "confidence",
        "status",
        "expires_at",
    ] {
        back[field] = shown.body[field].clone();
    }
    let wait = format!("{path}?wait=indexed");
    let written = served.ask(Method::PATCH, &wait, &secret, Some(back)).await;
    assert_eq!(
        (written.status.as_u16(), &written.body["indexed"]),
        (200, &json!(true))
    );
    assert_eq!(served.found(&secret, "zebra").await, [note]);
}

#[tokio::test]
async fn a_filter_by_time_and_importance_holds_for_the_row() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let found = async |filter: Value| {
        let body = json!({"query": "zebra", "filter": filter});
        let answered = served.search(&secret, body).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        answered.body["items"].as_array().unwrap().len()
    };
    let (past, ahead) = ("2020-01-01T00:00:00Z", "2100-01-01T00:00:00+02:00");
    assert_eq!(
        found(json!({"updated_after": past, "updated_before": ahead})).await,
        1
    );
    assert_eq!(found(json!({"updated_after": ahead})).await, 0);
    assert_eq!(found(json!({"updated_before": past})).await, 0);
    for time in [
        "0000-01-01T00:00:00Z",
        "+99999-01-01T00:00:00Z",
        "2024-06-30T23:59:60.5Z",
    ] {
        let body = json!({"query": "zebra", "filter": {"updated_after": time}});
        let answered = served.search(&secret, body).await;
        answered.is_error(422, "invalid");
    }
    assert_eq!(found(json!({"min_importance": 0.5})).await, 1);
    assert_eq!(found(json!({"min_importance": 0.6})).await, 0);

    // The row counts, not the point: no worker writes it.
    served.site.provider.hold();
    let mut database = served.site.connect().await;
    let update = "update memory_notes set importance = 0.1, text = 'The zebra wakes.'";
    sqlx::query(update).execute(&mut database).await.unwrap();
    assert_eq!(found(json!({"min_importance": 0.5})).await, 0, "{note}");
    served.site.provider.release();
}

#[tokio::test]
async fn a_write_that_was_refused_is_not_done_later() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served.add(&secret, "The zebra sleeps.").await;
    let path = format!("/v2/notes/{note}");
    let mut application = served.site.connect().await;
    let mut held = sqlx::Connection::begin(&mut application).await.unwrap();
    sqlx::query("select from memory_notes for update")
        .execute(&mut *held)
        .await
        .unwrap();
    let body = Some(json!({"text": "The zebra wakes."}));
    let answered = served.ask(Method::PATCH, &path, &secret, body).await;
    answered.is_error(503, "unavailable");
    assert_eq!(answered.body["error"]["details"]["outcome"], "not_written");
    let waits = "select count(*) from pg_stat_activity
                  where datname = current_database() and wait_event_type = 'Lock'";
    let waits: i64 = sqlx::query_scalar(waits)
        .fetch_one(&mut *held)
        .await
        .unwrap();
    assert_eq!(
        waits, 0,
        "a statement of the refused request is still there"
    );
    held.commit().await.unwrap();
    let shown = served.ask(Method::GET, &path, &secret, None).await;
    assert_eq!(shown.body["text"], "The zebra sleeps.");
}

#[tokio::test]
async fn a_body_is_bounded_before_it_is_read() {
    let served = Served::start().await;
    let reader = served.key(&["--tenant", "t"]).await;
    let writer = served.key(&["--tenant", "t", "--write"]).await;
    let note = |source: Value| {
        json!({"notes": [{"project_id": "p", "agent_id": "a", "scope": "s", "type": "n",
                          "text": "x", "source_ref": source}]})
    };
    // Not JSON at all: the right to write comes first.
    let answered = reqwest::Client::new()
        .post(format!("{}/v2/notes", served.url))
        .bearer_auth(&reader)
        .header("content-type", "application/json")
        .body("[".repeat(4 << 10))
        .send()
        .await
        .unwrap();
    assert_eq!(answered.status(), 403);
    let long = json!({"query": "x".repeat(65 << 10)});
    served
        .search(&writer, long)
        .await
        .is_error(413, "too_large");
    let long = json!({"x": "y".repeat(64 << 10)});
    for source in [json!(5), json!([1]), json!({"x": ["a\u{0}b"]}), long] {
        let body = Some(note(source));
        let answered = served.ask(Method::POST, "/v2/notes", &writer, body).await;
        answered.is_error(422, "invalid");
        assert_eq!(answered.body["error"]["details"]["field"], "source_ref");
    }
    let body = Some(note(json!({"page": 3})));
    let added = served.ask(Method::POST, "/v2/notes", &writer, body).await;
    assert_eq!(added.status, 201, "{added:?}");
    let answered = served
        .ask(Method::GET, "/v2/notes/%ff", &writer, None)
        .await;
    answered.is_error(404, "not_found");
}

#[tokio::test]
async fn a_thousand_searches_at_once_are_answered_or_told_to_come_back() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = served
        .add(&secret, "The zebra sleeps under the baobab.")
        .await;
    let client = reqwest::Client::new();
    let searches = (0..1000).map(|n| {
        let request = client
            .post(format!("{}/v2/searches", served.url))
            .bearer_auth(&secret)
            .json(&json!({"query": format!("zebra {n}")}));
        async move {
            let response = request.send().await.unwrap();
            let retry = response.headers().contains_key("retry-after");
            (response.status().as_u16(), retry)
        }
    });
    let (answered, written) = tokio::join!(
        futures::future::join_all(searches),
        served.add(&secret, "Written meanwhile.")
    );
    let told: usize = answered.iter().filter(|a| **a == (429, true)).count();
    let found = answered.iter().filter(|a| a.0 == 200).count();
    assert_eq!(told + found, 1000, "{answered:?}");
    assert!(found > 0);
    assert_ne!(note, written);
    assert!(served.found(&secret, "zebra").await.contains(&note));
}

#[tokio::test]
async fn requests_in_flight_end_before_the_process_does() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    served
        .add(&secret, "The zebra sleeps under the baobab.")
        .await;
    served.site.provider.hold();
    let search = tokio::spawn({
        let (url, secret) = (served.url.clone(), secret.clone());
        async move {
            let body = json!({"query": "a zebra"});
            ask(&url, Method::POST, "/v2/searches", &secret, Some(body)).await
        }
    });
    served.site.provider.holding(1).await;
    served.worker.signal("TERM").await;
    served.worker.says("no new claims").await;
    served.site.provider.release();
    let answered = search.await.unwrap();
    assert_eq!(answered.status, 200, "{answered:?}");
    assert_eq!(answered.body["items"].as_array().unwrap().len(), 1);
    served.worker.ended().await.exits(0);
}

#[tokio::test]
async fn the_description_lists_every_path_and_needs_no_key() {
    let served = Served::start().await;
    let described = ask(&served.url, Method::GET, "/openapi.json", "", None).await;
    assert!(described.headers.contains_key("x-request-id"));
    let api = described.body;
    assert!(api["openapi"].as_str().unwrap().starts_with("3.1"));
    let paths: Vec<&String> = api["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/v2/admin/trace-items/{item_id}",
            "/v2/admin/traces/{id}",
            "/v2/notes",
            "/v2/notes/{id}",
            "/v2/notes/{id}/chunks",
            "/v2/notes:delete",
            "/v2/notes:find_duplicates",
            "/v2/notes:list",
            "/v2/searches",
            "/v2/searches/{id}",
            "/v2/searches/{id}/notes"
        ]
    );
    // Each reference leads to a schema.
    let text = api.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(api["components"]["schemas"][name].is_object(), "{name}");
    }
    assert_eq!(
        api["components"]["securitySchemes"]["key"]["scheme"],
        "bearer"
    );
    served.worker.stop().await.exits(0);
    let alone = served.site.begin(&["serve"]);
    let url = url(&alone).await;
    let again = ask(&url, Method::GET, "/openapi.json", "", None).await;
    assert_eq!(again.body, api);
    alone.stop().await.exits(0);
}

#[tokio::test]
async fn every_example_of_the_description_is_accepted_as_it_stands() {
    let served = Served::start().await;
    let described = ask(&served.url, Method::GET, "/openapi.json", "", None).await;
    let api = described.body;
    let example = |operation: &str| -> (String, String, Value) {
        let paths = api["paths"].as_object().unwrap();
        let mut all = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(move |(method, described)| (path, method, described))
        });
        let found = all.find(|(_, _, described)| described["operationId"] == operation);
        let (path, method, described) = found.unwrap();
        let schema = &described["requestBody"]["content"]["application/json"]["schema"];
        let schema = api.pointer(&schema["$ref"].as_str().unwrap()[1..]).unwrap();
        assert!(schema["example"].is_object(), "{operation}: {schema}");
        (
            path.clone(),
            method.to_uppercase(),
            schema["example"].clone(),
        )
    };
    for args in [
        &["--tenant", "t", "--write"][..],
        &["--tenant", "u", "--project", "p", "--agent", "a", "--write"],
    ] {
        let secret = served.key(args).await;
        let (mut note, mut search) = (String::new(), String::new());
        for operation in [
            "add_notes",
            "add_notes",
            "change_note",
            "search_notes",
            "read_notes",
            "find_duplicates",
            "list_notes",
            "delete_notes",
        ] {
            let (path, method, example) = example(operation);
            let id = if operation == "read_notes" {
                &search
            } else {
                &note
            };
            let path = path.replace("{id}", id);
            let body = example
                .to_string()
                .replace("00000000-0000-0000-0000-000000000000", &note);
            let body = serde_json::from_str(&body).unwrap();
            let path = match operation {
                "add_notes" | "change_note" => format!("{path}?wait=indexed"),
                _ => path,
            };
            let method = method.parse().unwrap();
            let answered = served.ask(method, &path, &secret, Some(body)).await;
            assert!(answered.status.is_success(), "{operation}: {answered:?}");
            if let Some(id) = answered.body["note_ids"][0].as_str() {
                note = id.to_owned();
            }
            if let Some(id) = answered.body["search_id"].as_str() {
                search = id.to_owned();
                assert_eq!(answered.body["items"][0]["note_id"], note);
            }
        }
    }
    // No other request has a body, but those that have one of these by another way.
    let bodies = api.to_string().matches("\"requestBody\"").count();
    assert_eq!(bodies, 9);
}

#[tokio::test]
async fn no_answer_is_cached_or_guessed() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t"]).await;
    for (method, path, secret) in [
        (Method::POST, "/v2/searches", &*secret),
        (Method::GET, "/v2/notes/none", &secret),
        (Method::GET, "/v2/none", &secret),
        (Method::PUT, "/v2/notes", &secret),
        (Method::POST, "/v2/notes", "elf_none"),
        (Method::POST, "/mcp", "elf_none"),
        (Method::GET, "/openapi.json", ""),
    ] {
        let answered = served
            .ask(method, path, secret, Some(json!({"query": "a"})))
            .await;
        assert_eq!(answered.headers["cache-control"], "no-store", "{path}");
        assert_eq!(
            answered.headers["x-content-type-options"], "nosniff",
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_requests_of_the_guide_do_what_it_says() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "acme", "--write"]).await;
    let mut ran = Vec::new();
    for file in crate::support::docs::user_pages() {
        let blocks = crate::support::docs::all_blocks(&file);
        for block in blocks.iter().filter(|block| block.language == "bash") {
            let address = "http://127.0.0.1:9465";
            assert!(block.text.contains(address), "{file}: {}", block.text);
            let script = block.text.replace(address, &served.url);
            let mut command = crate::support::docs::shell(&served.site, &script);
            command.env("ELF_API_KEY", &secret);
            let done = crate::support::site::run(command, b"").await.exits(0);
            let answers = serde_json::Deserializer::from_str(&done.stdout).into_iter::<Value>();
            ran.push((
                file.clone(),
                answers.map(Result::unwrap).collect::<Vec<_>>(),
            ));
        }
    }
    // The README searches the notes that `elf import` wrote; the guide adds one and finds it.
    let [(readme, search), (guide, both)] = &ran[..] else {
        panic!("{ran:?}");
    };
    assert_eq!(readme, "README.md");
    assert!(search[0]["items"].is_array(), "{search:?}");
    assert_eq!(guide, "docs/guide/http.md");
    let [added, found] = &both[..] else {
        panic!("{both:?}");
    };
    assert_eq!(added["indexed"], true, "{added}");
    assert_eq!(found["items"][0]["note_id"], added["note_ids"][0]);
}
