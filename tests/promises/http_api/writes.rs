//! Writes that are sent twice, cut off, or not confirmed.

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::io::AsyncWriteExt;

use crate::support::api::{Answered, Served};
use crate::support::eventually;
use crate::support::site::Site;

async fn post(served: &Served, secret: &str, note: Value) -> Answered {
    let body = Some(json!({ "notes": [note] }));
    served.ask(Method::POST, "/v2/notes", secret, body).await
}

async fn count(served: &Served) -> i64 {
    sqlx::query_scalar("select count(*) from memory_notes")
        .fetch_one(&mut served.site.connect().await)
        .await
        .unwrap()
}

/// Makes every commit of a change of `table` wait until the connection is dropped.
async fn hold_commits(site: &Site, table: &str) -> PgConnection {
    let mut holder = site.connect().await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "create or replace function hold() returns trigger language plpgsql as $$
         begin
             while not pg_try_advisory_xact_lock(4711) loop perform pg_sleep(0.01); end loop;
             return null;
         end $$;
         create constraint trigger hold after insert or update or delete on {table}
             deferrable initially deferred for each row execute function hold();
         select pg_advisory_lock(4711);"
    )))
    .execute(&mut holder)
    .await
    .unwrap();
    holder
}

/// Ends the sessions of ELF that wait in a commit.
async fn terminate_a_commit(holder: &mut PgConnection) {
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                      where datname = current_database() and query like '%; commit' and state = 'active'";
    let holder = tokio::sync::Mutex::new(holder);
    eventually(async || {
        let mut holder = holder.lock().await;
        let ended: i64 = sqlx::query_scalar(terminate)
            .fetch_one(&mut **holder)
            .await
            .unwrap();
        ended > 0
    })
    .await;
}

#[tokio::test]
async fn a_note_with_a_key_that_is_sent_twice_is_one_note() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = json!({"text": "The library opens at nine.", "key": "hours", "project_id": "p"});
    let added = post(&served, &secret, note.clone()).await;
    assert_eq!(added.status, 201, "{added:?}");
    let path = format!("/v2/notes/{}", added.body["note_ids"][0].as_str().unwrap());
    let before = served.ask(Method::GET, &path, &secret, None).await;
    let again = post(&served, &secret, note.clone()).await;
    assert_eq!((again.status.as_u16(), &again.body), (200, &added.body));
    let shown = served.ask(Method::GET, &path, &secret, None).await;
    assert_eq!(shown.body["updated_at"], before.body["updated_at"]);

    // Another text replaces the note, whatever has become of it.
    for end in [
        "status = 'archived'",
        "expires_at = now() - interval '1 day'",
    ] {
        let update = format!("update memory_notes set {end}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(update))
            .execute(&mut served.site.connect().await)
            .await
            .unwrap();
        let mut changed = note.clone();
        changed["text"] = json!(format!("The zebra library, once {end}."));
        let again = post(&served, &secret, changed.clone()).await;
        assert_eq!((again.status.as_u16(), &again.body), (200, &added.body));
        let shown = served.ask(Method::GET, &path, &secret, None).await;
        assert_eq!(shown.body["text"], changed["text"]);
        assert_eq!(shown.body["status"], "active");
        assert_eq!(shown.body["expires_at"], Value::Null);
        let id = added.body["note_ids"][0].as_str().unwrap();
        eventually(async || served.found(&secret, "zebra library").await == [id]).await;
    }
    // The same key elsewhere is another note, and so is a note without one.
    for other in [
        json!({"text": "x", "key": "hours", "project_id": "q"}),
        json!({"text": "x", "key": "hours", "project_id": "p", "agent_id": "b"}),
        json!({"text": "x", "key": "hours", "project_id": "p", "scope": "b"}),
        json!({"text": "x", "project_id": "p"}),
        json!({"text": "x", "project_id": "p", "key": null}),
    ] {
        assert_eq!(post(&served, &secret, other).await.status, 201);
    }
    let stranger = served.key(&["--tenant", "u", "--write"]).await;
    assert_eq!(post(&served, &stranger, note).await.status, 201);
    assert_eq!(count(&served).await, 7);

    // Several at once, in whatever order: each id is in the place of its note.
    let several = |keys: &[&str]| {
        let notes: Vec<Value> = keys
            .iter()
            .map(|key| json!({"text": key, "key": key}))
            .collect();
        Some(json!({ "notes": notes }))
    };
    let first = several(&["c", "a", "b"]);
    let first = served.ask(Method::POST, "/v2/notes", &secret, first).await;
    let second = several(&["b", "d", "c", "a"]);
    let second = served.ask(Method::POST, "/v2/notes", &secret, second).await;
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (201, 201));
    let (first, second) = (&first.body["note_ids"], &second.body["note_ids"]);
    assert_eq!(json!([first[2], second[1], first[0], first[1]]), *second);
}

#[tokio::test]
async fn requests_with_one_key_at_once_are_one_note() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let notes = |turn: usize| {
        let mut notes: Vec<Value> = (0..20)
            .map(|n| json!({"text": format!("{n}"), "key": format!("k{n}")}))
            .collect();
        notes.rotate_left(turn);
        Some(json!({ "notes": notes }))
    };
    let requests = (0..12).map(|turn| {
        let (served, secret) = (&served, &secret);
        async move {
            served
                .ask(Method::POST, "/v2/notes", secret, notes(turn))
                .await
        }
    });
    let mut ids = std::collections::BTreeSet::new();
    for answered in futures::future::join_all(requests).await {
        assert!(
            [200, 201].contains(&answered.status.as_u16()),
            "{answered:?}"
        );
        ids.extend(
            answered.body["note_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(Value::to_string),
        );
    }
    assert_eq!((count(&served).await, ids.len()), (20, 20));
}

#[tokio::test]
async fn a_key_that_is_none_or_twice_in_a_request_or_taken_is_told() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let twice = Some(json!({"notes": [
        {"text": "a", "key": "k"}, {"text": "b"}, {"text": "c", "key": "k"}
    ]}));
    let answered = served.ask(Method::POST, "/v2/notes", &secret, twice).await;
    answered.is_error(422, "invalid");
    assert_eq!(
        answered.body["error"]["details"],
        json!({"field": "key", "note": 2})
    );
    for key in ["", &"k".repeat(1001)] {
        let answered = post(&served, &secret, json!({"text": "a", "key": key})).await;
        answered.is_error(422, "invalid");
        assert_eq!(answered.body["error"]["details"]["field"], "key");
    }
    // Postgres could not index it.
    let long = json!({"text": "a", "key": "k".repeat(1000), "scope": "s".repeat(1000), "project_id": "p".repeat(600)});
    let answered = post(&served, &secret, long).await;
    answered.is_error(422, "invalid");
    assert_eq!(count(&served).await, 0);

    post(&served, &secret, json!({"text": "a", "key": "k"})).await;
    let other = post(&served, &secret, json!({"text": "a"})).await;
    let path = format!("/v2/notes/{}", other.body["note_ids"][0].as_str().unwrap());
    let take = async |key: Value| {
        let body = Some(json!({ "key": key }));
        served.ask(Method::PATCH, &path, &secret, body).await
    };
    take(json!("k")).await.is_error(409, "key_taken");
    take(json!("")).await.is_error(422, "invalid");
    assert_eq!(take(json!("another")).await.status, 200);
}

#[tokio::test]
async fn a_title_is_shown_changed_and_cleared() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    for title in [&"x".repeat(1001), "a\u{0}b"] {
        let answered = post(&served, &secret, json!({"text": "a", "title": title})).await;
        answered.is_error(422, "invalid");
        assert_eq!(answered.body["error"]["details"]["field"], "title");
    }
    let put = async |note: &Value| {
        let body = Some(json!({ "notes": [note] }));
        let path = "/v2/notes?wait=indexed";
        served.ask(Method::POST, path, &secret, body).await
    };
    let note = json!({"text": "The zebra sleeps.", "title": "Zebras", "key": "k"});
    let added = put(&note).await;
    assert_eq!(added.status, 201, "{added:?}");
    let path = format!("/v2/notes/{}", added.body["note_ids"][0].as_str().unwrap());
    let title = async || {
        let shown = served.ask(Method::GET, &path, &secret, None).await;
        shown.body["title"].clone()
    };
    let found = async || {
        let found = served.search(&secret, json!({"query": "zebra"})).await;
        found.body["items"][0]["title"].clone()
    };
    assert_eq!(
        (title().await, found().await),
        (json!("Zebras"), json!("Zebras"))
    );
    let wait = format!("{path}?wait=indexed");
    for (changed, expected) in [
        (json!({"title": "Night"}), json!("Night")),
        (json!({"importance": 0.75}), json!("Night")),
        (json!({"title": ""}), Value::Null),
        (json!({"title": "Night"}), json!("Night")),
        (json!({"title": null}), Value::Null),
    ] {
        let written = served
            .ask(Method::PATCH, &wait, &secret, Some(changed))
            .await;
        assert_eq!(written.status, 200, "{written:?}");
        assert_eq!((title().await, found().await), (expected.clone(), expected));
    }
    // A note that is sent again with its key is replaced, title and all.
    let untitled = json!({"text": "The zebra sleeps.", "key": "k"});
    for (note, expected) in [(note, json!("Zebras")), (untitled, Value::Null)] {
        assert_eq!(put(&note).await.status, 200);
        assert_eq!((title().await, found().await), (expected.clone(), expected));
    }
}

#[tokio::test]
async fn a_write_whose_commit_is_not_confirmed_says_that_it_may_have_been_done() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note = json!({"text": "The library opens at nine.", "key": "hours"});
    let kept = post(&served, &secret, json!({"text": "Kept."})).await;
    let path = format!("/v2/notes/{}", kept.body["note_ids"][0].as_str().unwrap());
    let mut holder = hold_commits(&served.site, "memory_notes").await;
    let unknown = |answered: &Answered| {
        answered.is_error(503, "outcome_unknown");
        assert_eq!(answered.body["error"]["details"]["outcome"], "unknown");
        assert!(answered.headers.contains_key("retry-after"));
    };
    // Postgres does not answer: it does once the commit is through.
    unknown(&post(&served, &secret, note.clone()).await);
    terminate_a_commit(&mut holder).await;
    // The session ends before it says so.
    let change = Some(json!({"text": "Changed."}));
    for (method, path, body) in [
        (Method::POST, "/v2/notes", Some(json!({ "notes": [note] }))),
        (Method::PATCH, &*path, change),
        (Method::DELETE, &*path, None),
    ] {
        let asked = served.ask(method, path, &secret, body);
        let (answered, ()) = tokio::join!(asked, terminate_a_commit(&mut holder));
        unknown(&answered);
    }
    drop(holder);
    // Sent again it is done, once.
    for _ in 0..2 {
        let again = post(&served, &secret, note.clone()).await;
        assert!(again.status.is_success(), "{again:?}");
    }
    assert_eq!(count(&served).await, 2);
    let removed = served.ask(Method::DELETE, &path, &secret, None).await;
    assert_eq!(removed.status, 200);
}

#[tokio::test]
async fn a_command_whose_commit_is_not_confirmed_says_that_it_may_have_been_done() {
    let site = Site::start().await;
    let note = site.note("A note.").await.to_string();
    for (table, command) in [
        ("elf_api_keys", &["key", "create", "--tenant", "t"][..]),
        ("indexing_outbox", &["enqueue", "--note", &note]),
    ] {
        let mut holder = hold_commits(&site, table).await;
        let run = site.elf(command);
        let (done, ()) = tokio::join!(run, terminate_a_commit(&mut holder));
        done.exits(1).says(&["may have been done"]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_leaves_no_half() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let notes: Vec<Value> = (0..50)
        .map(|n| json!({"text": format!("Note {n}.")}))
        .collect();
    let body = json!({ "notes": notes }).to_string();
    let address = served.url.strip_prefix("http://").unwrap();
    let request = format!(
        "POST /v2/notes HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {secret}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let busy = "select count(*) from pg_stat_activity
                 where datname = current_database() and application_name = 'elf' and state <> 'idle'
                   and (query like '%; commit' or query like '%Inserts notes%')";
    let look = async |wanted: bool| {
        eventually(async || {
            let busy: i64 = sqlx::query_scalar(busy)
                .fetch_one(&mut served.site.connect().await)
                .await
                .unwrap();
            (busy > 0) == wanted
        })
        .await;
    };
    // While it inserts, and while it commits.
    let mut application = served.site.connect().await;
    for held in [false, true] {
        let before = count(&served).await;
        let holder = match held {
            true => Some(hold_commits(&served.site, "memory_notes").await),
            false => {
                let lock = "begin; lock table memory_notes in share mode";
                sqlx::raw_sql(lock).execute(&mut application).await.unwrap();
                None
            }
        };
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        look(true).await;
        drop(client);
        drop(holder);
        sqlx::raw_sql("rollback")
            .execute(&mut application)
            .await
            .unwrap();
        look(false).await;
        let written = count(&served).await - before;
        assert!([0, 50].contains(&written), "{written} of 50");
    }
}
