//! Notes by the client's own names, and by what they are like.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::DEADLINE;
use crate::support::api::{Answered, Served};
use crate::support::harness::Harness;

async fn put(served: &Served, secret: &str, notes: Value) -> Answered {
    let body = Some(json!({ "notes": notes }));
    served.ask(Method::PUT, "/v2/notes", secret, body).await
}

async fn post(served: &Served, secret: &str, path: &str, body: Value) -> Answered {
    served.ask(Method::POST, path, secret, Some(body)).await
}

#[tokio::test]
async fn a_put_that_is_sent_twice_changes_nothing() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let id = Uuid::new_v4();
    let notes = json!([
        {"key": "k", "text": "By a key."},
        {"note_id": id, "text": "By an id."},
        {"note_id": Uuid::new_v4(), "key": "both", "text": "By both."},
    ]);
    let first = put(&served, &secret, notes.clone()).await;
    assert_eq!(first.status, 201, "{first:?}");
    assert_eq!(first.body["note_ids"][1], json!(id));
    let updated = "select array_agg(updated_at order by note_id) from memory_notes";
    let mut db = served.site.connect().await;
    let mut times = async || -> Vec<chrono::DateTime<chrono::Utc>> {
        sqlx::query_scalar(updated)
            .fetch_one(&mut db)
            .await
            .unwrap()
    };
    let before = times().await;
    assert_eq!(before.len(), 3);
    let again = put(&served, &secret, notes).await;
    assert_eq!((again.status.as_u16(), &again.body), (200, &first.body));
    assert_eq!(times().await, before);
    // Another text, and a key of its own.
    let other = json!([{"note_id": id, "key": "named", "text": "By an id and a key."}]);
    assert_eq!(put(&served, &secret, other).await.status, 200);
    let shown = served
        .ask(Method::GET, "/v2/notes?key=named", &secret, None)
        .await;
    assert_eq!(shown.body["note_id"], json!(id));
    assert_eq!(shown.body["text"], "By an id and a key.");
}

#[tokio::test]
async fn a_put_needs_a_name_and_takes_no_other_note() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let id = Uuid::new_v4();
    let own = json!([{"note_id": id, "text": "Mine.", "key": "k"}]);
    assert_eq!(put(&served, &secret, own).await.status, 201);
    let theirs = json!([{"key": "new", "text": "Written?"}, {"note_id": id, "text": "Stolen."}]);
    put(&served, &other, theirs)
        .await
        .is_error(404, "not_found");
    let taken = json!([{"note_id": Uuid::new_v4(), "text": "Other.", "key": "k"}]);
    put(&served, &secret, taken)
        .await
        .is_error(409, "key_taken");
    for (notes, field) in [
        (json!([{"text": "No name."}]), "key"),
        (
            json!([{"key": "a", "text": "1"}, {"key": "a", "text": "2"}]),
            "key",
        ),
        (
            json!([{"note_id": id, "text": "1"}, {"note_id": id, "text": "2"}]),
            "note_id",
        ),
        (json!([{"note_id": "7", "text": "1"}]), "note_id"),
        // As imports and sources derive their ids.
        (
            json!([{"note_id": Uuid::new_v5(&id, b"a"), "text": "1"}]),
            "note_id",
        ),
        (
            json!([{"note_id": "07070707-0707-8707-8707-070707070707", "text": "1"}]),
            "note_id",
        ),
    ] {
        let refused = put(&served, &secret, notes.clone()).await;
        refused.is_error(422, "invalid");
        assert_eq!(refused.body["error"]["details"]["field"], field, "{notes}");
    }
    let texts: Vec<String> = sqlx::query_scalar("select text from memory_notes")
        .fetch_all(&mut served.site.connect().await)
        .await
        .unwrap();
    assert_eq!(texts, ["Mine."]);
}

#[tokio::test]
async fn a_note_is_shown_changed_and_deleted_by_its_key() {
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let reader = served.key(&["--tenant", "t"]).await;
    let bound = served
        .key(&["--tenant", "t", "--project", "p", "--write"])
        .await;
    let notes = json!([
        {"key": "a/b ü", "scope": "team", "text": "In a team."},
        {"key": "a/b ü", "text": "Shared."},
        {"key": "a/b ü", "project_id": "p", "text": "Of a project."},
    ]);
    assert_eq!(put(&served, &secret, notes).await.status, 201);
    let path = "/v2/notes?key=a/b%20%C3%BC";
    for (secret, more, text) in [
        (&secret, "", "Shared."),
        (&secret, "&scope=team", "In a team."),
        (&secret, "&project_id=p", "Of a project."),
        (&bound, "", "Of a project."),
    ] {
        let shown = served
            .ask(Method::GET, &format!("{path}{more}"), secret, None)
            .await;
        assert_eq!(shown.body["text"], text, "{more}");
    }
    let at = |more: &str| format!("{path}{more}");
    let change = Some(json!({"text": "Changed.", "metadata": {"a": 1}}));
    let changed = served
        .ask(Method::PATCH, &at("&wait=indexed"), &secret, change.clone())
        .await;
    assert_eq!(
        (changed.status.as_u16(), &changed.body["indexed"]),
        (200, &json!(true))
    );
    let shown = served.ask(Method::GET, path, &secret, None).await.body;
    assert_eq!(
        (&shown["text"], &shown["metadata"]),
        (&json!("Changed."), &json!({"a": 1}))
    );
    served
        .ask(Method::PATCH, path, &reader, change.clone())
        .await
        .is_error(403, "forbidden");
    served
        .ask(Method::DELETE, path, &reader, None)
        .await
        .is_error(403, "forbidden");
    served
        .ask(Method::DELETE, &at("&project_id=q"), &bound, None)
        .await
        .is_error(403, "forbidden");
    served
        .ask(Method::GET, "/v2/notes", &secret, None)
        .await
        .is_error(422, "invalid");
    served
        .ask(Method::GET, &at("&color=red"), &secret, None)
        .await
        .is_error(422, "invalid");
    let removed = served.ask(Method::DELETE, path, &secret, None).await;
    assert_eq!(removed.status, 200);
    served
        .ask(Method::DELETE, path, &secret, None)
        .await
        .is_error(404, "not_found");
    let team = served
        .ask(Method::GET, &at("&scope=team"), &secret, None)
        .await;
    assert_eq!(team.status, 200);
}

#[tokio::test]
async fn notes_are_listed_page_by_page_and_deleted_by_a_filter() {
    let served = Served::with("\n[metadata]\nlang = \"keyword\"\n").await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let bound = served
        .key(&["--tenant", "t", "--agent", "a", "--write"])
        .await;
    let other = served.key(&["--tenant", "u", "--write"]).await;
    let note = |n: usize| {
        let lang = if n.is_multiple_of(3) { "de" } else { "en" };
        let agent = if n.is_multiple_of(2) { "a" } else { "b" };
        json!({"key": n.to_string(), "text": format!("Note {n}."), "agent_id": agent, "metadata": {"lang": lang}})
    };
    let notes: Vec<Value> = (0..1000).map(note).collect();
    assert_eq!(put(&served, &secret, json!(notes)).await.status, 201);
    assert_eq!(
        put(
            &served,
            &other,
            json!([{"key": "theirs", "text": "Theirs."}])
        )
        .await
        .status,
        201
    );
    let list = async |secret: &str, filter: Value| {
        let (mut found, mut after) = (Vec::new(), Value::Null);
        loop {
            let body = json!({"filter": filter, "after": after, "limit": 77});
            let page = post(&served, secret, "/v2/notes:list", body).await;
            assert_eq!(page.status, 200, "{page:?}");
            let items = page.body["items"].as_array().unwrap().clone();
            found.extend(
                items
                    .into_iter()
                    .map(|item| item["key"].as_str().unwrap().to_owned()),
            );
            after = page.body["next"].clone();
            if after.is_null() {
                return found;
            }
        }
    };
    let all = list(&secret, json!({})).await;
    let mut unique = all.clone();
    unique.sort();
    unique.dedup();
    assert_eq!((all.len(), unique.len()), (1000, 1000));
    let german = json!({"metadata": {"lang": "de"}});
    assert_eq!(list(&secret, german.clone()).await.len(), 334);
    assert_eq!(list(&bound, german.clone()).await.len(), 167);
    assert_eq!(list(&other, json!({})).await, ["theirs"]);

    let delete =
        async |secret: &str, body: Value| post(&served, secret, "/v2/notes:delete", body).await;
    delete(&secret, json!({"filter": {}}))
        .await
        .is_error(422, "invalid");
    for wide in [
        json!({"min_importance": 0}),
        json!({"updated_before": "2100-01-01T00:00:00Z"}),
    ] {
        delete(&secret, json!({ "filter": wide }))
            .await
            .is_error(422, "invalid");
    }
    let all = json!({"filter": {}, "all": true, "dry_run": true});
    assert_eq!(delete(&secret, all.clone()).await.body["notes"], 1000);
    let mut behind_all = all;
    behind_all["after"] = json!(Uuid::max());
    assert_eq!(delete(&secret, behind_all).await.body["notes"], 0);
    delete(&secret, json!({"filter": {"metadata": {"colour": "red"}}}))
        .await
        .is_error(422, "invalid");
    let reader = served.key(&["--tenant", "t"]).await;
    delete(&reader, json!({"filter": german}))
        .await
        .is_error(403, "forbidden");
    // Their source is null.
    let of_source = json!({"filter": {"source": "tickets"}});
    assert_eq!(delete(&secret, of_source).await.body["notes"], 0);
    let dry = delete(&bound, json!({"filter": german, "dry_run": true}))
        .await
        .body;
    assert_eq!(dry, json!({"notes": 167, "next": null}));
    assert_eq!(list(&secret, json!({})).await.len(), 1000);
    let deleted = delete(&bound, json!({"filter": german})).await.body;
    assert_eq!(deleted, json!({"notes": 167, "next": null}));
    let deleted = delete(
        &secret,
        json!({"filter": {"agent_id": "b"}, "status": "active"}),
    )
    .await
    .body;
    assert_eq!(deleted, json!({"notes": 500, "next": null}));
    assert_eq!(list(&secret, json!({})).await.len(), 333);
    assert_eq!(list(&other, json!({})).await, ["theirs"]);
}

/// However many notes the tenant has: a request looks at some of them, and the next one goes on behind them.
#[tokio::test]
async fn a_rare_note_is_found_and_deleted_over_several_requests() {
    let h = Harness::start().await;
    let notes = "insert into memory_notes (tenant_id, text, metadata)
         select t, 'Note ' || i, jsonb_build_object('lang', case i % 1000 when 0 then 'de' else 'en' end)
           from generate_series(1, 2000) i, unnest(array['a', 't', 'u']) t where i < 2000 or t = 'u'";
    sqlx::raw_sql(notes).execute(&h.pool).await.unwrap();
    let condition = json!({"type": "keyword", "exists": true, "any": ["de"]});
    let wanted = json!({"tenant_id": "t", "metadata": {"lang": condition}});
    let store = &h.pipeline.serving.store;
    let list = async |time: Duration| {
        let (mut requests, mut found, mut after) = (0, Vec::new(), Uuid::nil());
        loop {
            let listed = store.listed_notes(&wanted, "t", after, 100, time).await;
            let listed = listed.unwrap();
            requests += 1;
            found.extend(listed.notes);
            match listed.next {
                Some(next) => assert!(std::mem::replace(&mut after, next) < next),
                None => return (requests, found.len()),
            }
        }
    };
    let delete = async |dry_run: bool| {
        let (mut requests, mut notes, mut after) = (0, 0, Uuid::nil());
        loop {
            let deleted = store.delete_listed(&wanted, "t", after, Duration::ZERO, dry_run);
            let deleted = deleted.await.unwrap();
            requests += 1;
            notes += deleted.notes;
            match deleted.next {
                Some(next) => assert!(std::mem::replace(&mut after, next) < next),
                None => return (requests, notes),
            }
        }
    };
    // Without any time, a request looks at as many notes as it may return, or at 500.
    assert_eq!(list(Duration::ZERO).await, (20, 1));
    assert_eq!(list(DEADLINE).await, (1, 1));
    assert_eq!(delete(true).await, (4, 1));
    assert_eq!(list(DEADLINE).await, (1, 1));
    assert_eq!(delete(false).await, (4, 1));
    assert_eq!(list(DEADLINE).await, (1, 0));
    assert_eq!(h.count("memory_notes").await, 1998 + 1999 + 2000);
}

#[tokio::test]
async fn duplicates_are_found_within_a_filter() {
    let served = Served::with("\n[metadata]\nlang = \"keyword\"\n").await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let note =
        |lang: &str| json!({"text": "The same words.", "key": lang, "metadata": {"lang": lang}});
    let body = json!({"notes": [note("de"), note("en"), note("fr")]});
    let added = post(&served, &secret, "/v2/notes?wait=indexed", body).await;
    assert_eq!(added.body["indexed"], true, "{added:?}");
    let find = async |filter: Value| {
        let body = json!({"note_id": added.body["note_ids"][0], "filter": filter});
        let found = post(&served, &secret, "/v2/notes:find_duplicates", body)
            .await
            .body;
        let items = found["items"].as_array().unwrap().clone();
        let mut keys: Vec<String> = items
            .iter()
            .map(|item| item["key"].as_str().unwrap().to_owned())
            .collect();
        keys.sort();
        keys
    };
    assert_eq!(find(json!({})).await, ["en", "fr"]);
    assert_eq!(find(json!({"metadata": {"lang": "fr"}})).await, ["fr"]);
}
