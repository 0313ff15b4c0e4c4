//! One repair makes notes equal to their rows, and what is left out is named.

use reqwest::Method;
use serde_json::json;

use super::{SOURCE, Shop, TICKETS};
use crate::support::api::Served;

impl Shop {
    /// Changes rows behind the back of the triggers.
    async fn unseen(&mut self, statements: &str) {
        self.execute(&format!(
            "set session_replication_role = replica; {statements}; set session_replication_role = origin"
        ))
        .await;
    }

    /// One repair is enough, and nothing is left out but these rows.
    async fn is_repaired(&mut self, left_out: &[&str]) {
        self.site.elf(&["verify"]).await.exits(3);
        self.site.elf(&["verify", "--repair"]).await.exits(0);
        for _ in 0..2 {
            let found = self.site.elf(&["verify", "--json"]).await.exits(0).json();
            let source = &found["sources"][0];
            assert_eq!(source["left_out"], json!(left_out.len()), "{found}");
            self.site.elf(&["verify", "--repair"]).await.exits(0);
        }
        let rows = self.left_out().await;
        let ids: Vec<_> = rows
            .iter()
            .filter_map(|row| row.split('|').next())
            .collect();
        assert_eq!(ids, left_out, "{rows:?}");
    }
}

#[tokio::test]
async fn one_repair_is_enough_although_another_note_has_a_key() {
    let block = SOURCE.replace("type =", "key = \"{subject}\"\ntype =");
    let mut shop = Shop::of(TICKETS, &block).await;
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    shop.unseen(
        "insert into memory_notes (tenant_id, key, text) values ('acme', 'app', 'Of the application.');
         insert into support.tickets (id, customer_id, subject, body) values
             (10, 'acme', 'x', 'ten'), (11, 'acme', 'x', 'eleven'), (12, 'acme', 'app', 'twelve'), (13, 'acme', 'y', 'thirteen')",
    )
    .await;
    shop.is_repaired(&["11", "12"]).await;
    let said = shop.site.elf(&["verify"]).await.exits(0).stdout;
    assert!(
        said.contains("2 rows left out (`elf source left-out tickets`)"),
        "{said}"
    );
    // A free key.
    shop.execute(
        "delete from memory_notes where key = 'app'; update support.tickets set subject = 'z' where id = 10",
    )
    .await;
    shop.is_repaired(&[]).await;
    // Two keys that change places, and the key of a row that is gone.
    shop.unseen(
        "update support.tickets set subject = case id when 11 then 'app' else 'x' end where id in (11, 12);
         delete from support.tickets where id = 13;
         insert into support.tickets (id, customer_id, subject, body) values (20, 'acme', 'y', 'twenty')",
    )
    .await;
    shop.is_repaired(&[]).await;
    let keys =
        "select source_id || ' ' || key from memory_notes where source_id::int > 9 order by 1";
    assert_eq!(shop.all(keys).await, ["10 z", "11 app", "12 x", "20 y"]);
}

#[tokio::test]
async fn verify_counts_the_rows_that_a_source_no_longer_takes() {
    let tables = format!(
        "{TICKETS} create table support.extra (words text); insert into support.extra values ('and more');
         create function support.with_extra(t support.tickets) returns text language sql stable as $$
             select t.body || ' ' || e.words from support.extra e $$;"
    );
    let block = SOURCE.replace(
        "text = \"{subject}\\n\\n{body}\"",
        "text_sql = \"support.with_extra(tickets)\"",
    );
    let mut shop = Shop::not_applied(&tables, &block).await;
    shop.apply().await;
    shop.execute("grant select on support.extra to elf_source_writer")
        .await;
    shop.sync().await;
    let notes = shop.notes().await;
    shop.execute("revoke select on support.extra from elf_source_writer; update support.tickets set body = 'New.'")
        .await;
    assert_eq!(shop.notes().await, notes);
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    let said = shop.site.elf(&["verify"]).await.exits(0).stdout;
    assert!(said.contains("2 rows left out"), "{said}");
    shop.execute("grant select on support.extra to elf_source_writer")
        .await;
    shop.is_repaired(&[]).await;
    assert_eq!(shop.notes().await[0], "1|acme|New. and more");
    // What was left out is a note again with the next write, also of a row that was deleted meanwhile.
    shop.execute(
        "revoke select on support.extra from elf_source_writer;
         update support.tickets set body = 'Lost.'; delete from support.tickets where id = 2;
         grant select on support.extra to elf_source_writer;
         update support.tickets set body = 'Last.';
         insert into support.tickets (id, customer_id, body) values (2, 'acme', 'Again.')",
    )
    .await;
    assert_eq!(
        shop.notes().await,
        [
            "1|acme|Last. and more",
            "2|acme|Again. and more",
            "3|globex|Last. and more"
        ]
    );
    let left_out = shop.all("select source_id from elf_left_out").await;
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[tokio::test]
async fn a_source_that_does_not_fit_holds_no_other_up() {
    let other = "[[sources]]\nname = \"a\"\ntable = \"nosuch\"\ntext = \"{x}\"\n";
    let mut shop = Shop::not_applied(TICKETS, &format!("{other}{SOURCE}")).await;
    let applied = shop
        .site
        .elf(&["source", "apply", "--json"])
        .await
        .exits(78);
    let applied = applied.says(&["the source a: there is no table nosuch"]);
    assert_eq!(applied.json()["applied"], json!(["tickets"]));
    let synced = shop.site.elf(&["source", "sync", "--json"]).await.exits(1);
    let synced = synced.says(&["there is no table nosuch"]);
    assert_eq!(synced.json()["items"][0]["missing"], 2);
    assert_eq!(shop.notes().await.len(), 2);
    let printed = shop.site.elf(&["source", "sql"]).await.exits(78).stdout;
    assert!(printed.contains("elf_source_tickets"), "{printed}");
}

#[tokio::test]
async fn a_client_does_not_change_the_note_of_a_row() {
    let block = SOURCE.replace("type =", "key = \"{subject}\"\ntype =");
    let mut shop = Shop::of(TICKETS, &block).await;
    let notes = shop.notes().await;
    let id = &shop
        .all("select note_id::text from memory_notes where source_id = '1'")
        .await[0];
    let Shop { site, mut db } = shop;
    let served = Served::on(site, "").await;
    let secret = served.key(&["--tenant", "acme", "--write"]).await;
    let (by_id, by_key) = (format!("/v2/notes/{id}"), "/v2/notes?key=Printer");
    let note = json!({"key": "Printer", "text": "Another."});
    let ask = async |method: &Method, path: &str, body| {
        served.ask(method.clone(), path, &secret, body).await
    };
    for (method, path, body) in [
        (Method::PATCH, &*by_id, Some(json!({"text": "Another."}))),
        (Method::PATCH, by_key, Some(json!({"status": "archived"}))),
        (Method::DELETE, &by_id, None),
        (Method::DELETE, by_key, None),
        (
            Method::POST,
            "/v2/notes",
            Some(json!({"notes": [{"text": "New."}, note]})),
        ),
        (Method::PUT, "/v2/notes", Some(json!({"notes": [note]}))),
    ] {
        let refused = ask(&method, path, body).await;
        refused.is_error(409, "follows_a_row");
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains("the source tickets"), "{message}");
    }
    let all = Some(json!({"filter": {"type": "ticket"}}));
    let deleted = ask(&Method::POST, "/v2/notes:delete", all).await;
    assert_eq!(deleted.body["notes"], 0, "{deleted:?}");
    // Whoever does not reach the note does not learn what it is.
    let stranger = served.key(&["--tenant", "globex", "--write"]).await;
    for method in [Method::PATCH, Method::DELETE] {
        let body = (method == Method::PATCH).then(|| json!({"text": "x"}));
        let refused = served.ask(method, &by_id, &stranger, body).await;
        refused.is_error(404, "not_found");
    }
    let lines = format!(
        "{{\"key\":\"Printer\",\"agent_id\":\"default\",\"text\":\"Another.\"}}\n{{\"note_id\":\"{id}\",\"text\":\"Another.\"}}\n"
    );
    served.site.write("notes.jsonl", lines);
    let import = ["import", "notes.jsonl", "--tenant", "acme"];
    let imported = served.site.elf(&import).await.exits(1);
    assert_eq!(
        imported.stderr.matches("the source tickets").count(),
        2,
        "{imported:?}"
    );
    let now: Vec<String> = sqlx::query_scalar(
        "select source_id || '|' || tenant_id || '|' || text from memory_notes order by source_id",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    assert_eq!(now, notes);
    // It is free as soon as it follows the table no longer.
    let removed = served
        .site
        .elf(&["source", "remove", "tickets", "--keep-notes"])
        .await;
    removed.exits(0);
    let changed = ask(&Method::PATCH, &by_id, Some(json!({"text": "Another."}))).await;
    assert_eq!(changed.status, 200, "{changed:?}");
    let deleted = ask(&Method::DELETE, &by_id, None).await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
}
