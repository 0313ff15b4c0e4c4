//! What a key reaches, and when it ends.

use reqwest::Method;
use serde_json::json;
use uuid::Uuid;

use crate::support::api::Served;
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;

#[tokio::test]
async fn a_key_that_may_only_read_changes_nothing() {
    let served = Served::start().await;
    let owner = served.key(&["--tenant", "t", "--write"]).await;
    let reader = served.key(&["--tenant", "t"]).await;
    let note = served.add(&owner, "The zebra sleeps.").await;
    let path = format!("/v2/notes/{note}");
    let new = json!({"notes": [{"project_id": "p", "agent_id": "a", "scope": "s", "type": "n",
                                "text": "x"}]});
    for (method, path, body) in [
        (Method::POST, "/v2/notes", Some(new)),
        (Method::PATCH, &*path, Some(json!({"text": "stolen"}))),
        (
            Method::PATCH,
            &*path,
            Some(json!({"text": "x".repeat(1 << 20)})),
        ),
        (Method::DELETE, &*path, None),
        (
            Method::PUT,
            "/v2/notes",
            Some(json!({"notes": [{"key": "k", "text": "x"}]})),
        ),
        (
            Method::PATCH,
            "/v2/notes?key=k",
            Some(json!({"text": "stolen"})),
        ),
        (Method::DELETE, "/v2/notes?key=k", None),
        (
            Method::POST,
            "/v2/notes:delete",
            Some(json!({"filter": {"type": "n"}})),
        ),
    ] {
        let answered = served.ask(method, path, &reader, body).await;
        answered.is_error(403, "forbidden");
    }
    // Each method that the description has is one of these, or changes no note.
    let described = served
        .ask(Method::GET, "/openapi.json", &reader, None)
        .await;
    let mut writing = Vec::new();
    for (path, methods) in described.body["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let reads = ["searches", ":find_duplicates", ":list", "/mcp"];
            if method != "get" && !reads.iter().any(|part| path.contains(part)) {
                writing.push(format!("{method} {path}"));
            }
        }
    }
    writing.sort();
    assert_eq!(
        writing,
        [
            "delete /v2/notes",
            "delete /v2/notes/{id}",
            "patch /v2/notes",
            "patch /v2/notes/{id}",
            "post /v2/notes",
            "post /v2/notes:delete",
            "put /v2/notes",
        ]
    );
    let shown = served.ask(Method::GET, &path, &reader, None).await;
    assert_eq!(shown.body["text"], "The zebra sleeps.");
}

#[tokio::test]
async fn a_key_that_is_refused_is_counted_and_told_and_never_shown() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t"]).await;
    for (secret, path) in [
        ("elf_guessed-by-somebody", "/v2/searches"),
        ("hunter2", "/mcp"),
    ] {
        for _ in 0..5 {
            let answered = served
                .ask(Method::POST, path, secret, Some(json!({})))
                .await;
            answered.is_error(401, "unauthorized");
        }
    }
    served.search(&secret, json!({"query": "zebra"})).await;
    // A page that has no key yet.
    let without = reqwest::Client::new().post(format!("{}/v2/searches", served.url));
    assert_eq!(without.send().await.unwrap().status(), 401);
    let line = served.worker.says("unknown API key refused").await;
    assert!(
        line.contains("127.0.0.1:") && line.contains("/v2/searches"),
        "{line}"
    );
    let log = served.worker.log();
    assert_eq!(log.matches("unknown API key refused").count(), 1, "{log}");
    assert!(
        !log.contains("guessed") && !log.contains("hunter2"),
        "{log}"
    );
    let admin = served.worker.admin().await;
    let metrics = reqwest::get(format!("{admin}/metrics")).await.unwrap();
    let metrics = metrics.text().await.unwrap();
    assert!(
        metrics.contains("\nelf_http_keys_refused_total 10\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_key_reaches_no_note_of_another_tenant_project_or_agent() {
    let served = Served::start().await;
    let owner = served.key(&["--tenant", "t", "--write"]).await;
    let note = served
        .add(&owner, "The password of the gate is swordfish.")
        .await;
    served
        .add(&owner, "The password of the gate is swordfish!")
        .await;
    let strangers = [
        vec!["--tenant", "u", "--write"],
        vec!["--tenant", "t", "--project", "q", "--write"],
        vec!["--tenant", "t", "--agent", "b", "--write"],
    ];
    let absent = Uuid::new_v4();
    for stranger in &strangers {
        let secret = served.key(stranger).await;
        assert!(served.found(&secret, "swordfish").await.is_empty());
        let both = [note.clone(), absent.to_string(), "no-uuid".to_owned()];
        let mut answers = Vec::new();
        for id in &both {
            let path = format!("/v2/notes/{id}");
            for (method, body) in [
                (Method::GET, None),
                (Method::PATCH, Some(json!({"text": "stolen"}))),
                (Method::DELETE, None),
            ] {
                let answered = served.ask(method, &path, &secret, body).await;
                answered.is_error(404, "not_found");
                answers.push(answered.body);
            }
        }
        for id in &both[..2] {
            let path = "/v2/notes:find_duplicates";
            let body = json!({"note_id": id, "min_similarity": -1.0});
            let answered = served.ask(Method::POST, path, &secret, Some(body)).await;
            answered.is_error(404, "not_found");
            answers.push(answered.body);
        }
        // Nothing tells a note of another from one that does not exist.
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
    }
    let bound = served
        .key(&["--tenant", "t", "--project", "p", "--agent", "a"])
        .await;
    assert_eq!(served.found(&bound, "swordfish").await.len(), 2);
    for (label, other) in [("project_id", "q"), ("agent_id", "b")] {
        let body = json!({"query": "swordfish", "filter": {label: other}});
        served.search(&bound, body).await.is_error(403, "forbidden");
    }
    let path = "/v2/notes:find_duplicates";
    let body = json!({"note_id": note, "min_similarity": -1.0});
    let like = served.ask(Method::POST, path, &bound, Some(body)).await;
    assert_eq!(like.body["items"].as_array().unwrap().len(), 1, "{like:?}");
    assert_ne!(like.body["items"][0]["note_id"], note);

    let shown = served
        .ask(Method::GET, &format!("/v2/notes/{note}"), &owner, None)
        .await;
    assert_eq!(shown.body["text"], "The password of the gate is swordfish.");
}

#[tokio::test]
async fn a_key_ends_when_it_is_rotated_or_revoked() {
    let served = Served::start().await;
    let made = served
        .site
        .json(&["key", "create", "--tenant", "t", "--name", "shop"])
        .await;
    let (id, secret) = (
        made["key_id"].as_str().unwrap(),
        made["secret"].as_str().unwrap(),
    );
    assert!(served.found(secret, "anything").await.is_empty());
    let body = json!({"notes": [
        {"project_id": "p", "agent_id": "a", "scope": "s", "type": "n", "text": "x"}
    ]});
    let written = served
        .ask(Method::POST, "/v2/notes", secret, Some(body))
        .await;
    written.is_error(403, "forbidden");

    let rotated = served.site.json(&["key", "rotate", id]).await;
    let query = || json!({"query": "anything"});
    served
        .search(secret, query())
        .await
        .is_error(401, "unauthorized");
    let secret = rotated["secret"].as_str().unwrap();
    assert_eq!(served.search(secret, query()).await.status, 200);
    let listed = served.site.json(&["key", "list"]).await;
    assert_eq!(listed["items"][0]["name"], "shop");
    assert!(!listed.to_string().contains("sha256") && !listed.to_string().contains(secret));

    served.site.json(&["key", "revoke", id]).await;
    served
        .search(secret, query())
        .await
        .is_error(401, "unauthorized");
    for wrong in ["", "elf_", "elf_guess", "x"] {
        served
            .search(wrong, query())
            .await
            .is_error(401, "unauthorized");
    }
    let again = served.site.elf(&["key", "revoke", id]).await;
    again.exits(1).says(&["elf key list"]);
}

#[tokio::test]
async fn what_one_tenant_asked_tells_another_nothing() {
    let served = Served::start().await;
    let (t, u) = (
        served.key(&["--tenant", "t"]).await,
        served.key(&["--tenant", "u"]).await,
    );
    let query = || json!({"query": "the memo about the merger"});
    assert_eq!(served.search(&t, query()).await.body["degraded"], json!([]));
    served.site.provider.always(Behaviour::Status(503));
    // Remembered for the tenant that asked, and for no other.
    assert_eq!(served.search(&t, query()).await.body["degraded"], json!([]));
    let answered = served.search(&u, query()).await;
    assert_eq!(answered.body["degraded"], json!(["query_vector"]));
}

#[tokio::test]
async fn a_process_of_a_replaced_version_says_so() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    served.add(&secret, "The zebra sleeps.").await;
    let ready = async || {
        let asked = reqwest::get(format!("{}/readyz", served.url)).await;
        asked.unwrap().status().as_u16()
    };
    assert_eq!(ready().await, 200);
    let mut database = served.site.connect().await;
    sqlx::raw_sql(
        "update index_versions set state = 'retired';
         insert into index_versions (embedding_version, embedding_dim, settings, state)
         values ('next', 8, '{}', 'active')",
    )
    .execute(&mut database)
    .await
    .unwrap();
    // An answer holds for a second.
    eventually(async || ready().await == 503).await;
    let answered = served.search(&secret, json!({"query": "zebra"})).await;
    answered.is_error(503, "version_replaced");
    let body = json!({"notes": []});
    let path = "/v2/notes?wait=indexed";
    let answered = served.ask(Method::POST, path, &secret, Some(body)).await;
    answered.is_error(503, "version_replaced");
}
