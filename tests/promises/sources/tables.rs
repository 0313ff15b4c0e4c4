//! Every way to change a table.

use serde_json::{Value, json};

use super::{Shop, TICKETS};
use crate::support::docs::all_blocks;
use crate::support::eventually;
use crate::support::site::Site;

const FIRST: [&str; 2] = [
    "1|acme|Printer\n\nIt smokes.",
    "3|globex|The invoice counts a licence twice.",
];

#[tokio::test]
async fn rows_become_notes_that_a_search_finds() {
    let mut shop = Shop::not_applied(TICKETS, super::SOURCE).await;
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["state"], "missing");
    shop.apply().await;
    let synced = shop.sync().await;
    assert_eq!(synced["items"][0]["rows"], 3);
    assert_eq!(synced["items"][0]["missing"], 2);
    assert_eq!(shop.notes().await, FIRST);
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    let args = [
        "search", "smokes", "--source", "tickets", "--tenant", "acme",
    ];
    let found = shop.site.json(&args).await;
    let hit = &found["items"][0];
    assert_eq!(hit["source"], "tickets");
    assert_eq!(hit["source_id"], "1");
    assert_eq!(hit["title"], "Printer");
    let other = shop
        .site
        .json(&["search", "smokes", "--source", "people"])
        .await;
    assert_eq!(other["items"], json!([]));
    let again = shop.sync().await;
    assert_eq!(again["items"][0]["missing"], 0);
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["state"], "applied");
    assert_eq!(listed["items"][0]["notes"], 2);
}

#[tokio::test]
async fn a_row_and_its_note_are_one_transaction() {
    let mut shop = Shop::of_tickets().await;
    shop.execute("begin; update support.tickets set body = 'It burns.' where id = 1; delete from support.tickets where id = 3")
        .await;
    assert_eq!(shop.notes().await, ["1|acme|Printer\n\nIt burns."]);
    shop.execute("rollback").await;
    assert_eq!(shop.notes().await, FIRST);
}

#[tokio::test]
async fn every_statement_that_changes_rows_changes_their_notes() {
    let mut shop = Shop::of_tickets().await;
    for (statement, id, text) in [
        ("update support.tickets set status = 'spam' where id = 1", "1", None),
        ("update support.tickets set status = 'open' where id = 1", "1", Some("acme|Printer\n\nIt smokes.")),
        ("update support.tickets set customer_id = 'initech' where id = 1", "1", Some("initech|Printer\n\nIt smokes.")),
        ("update support.tickets set id = 7 where id = 1", "1", None),
        ("update support.tickets set subject = 'Printers' where id in (7, 3)", "7", Some("initech|Printers\n\nIt smokes.")),
        ("insert into support.tickets (id, customer_id, body) values (7, 'acme', 'new'), (8, 'acme', 'eight')
          on conflict (id) do update set body = excluded.body", "7", Some("initech|Printers\n\nnew")),
        ("merge into support.tickets t using (values (8, 'merged'), (9, 'nine')) v (id, body) on t.id = v.id
          when matched then update set body = v.body
          when not matched then insert (id, customer_id, body) values (v.id, 'acme', v.body)", "8", Some("acme|merged")),
        ("with gone as (delete from support.tickets where id = 9 returning customer_id)
          insert into support.tickets (id, customer_id, body) select 10, customer_id, 'ten' from gone", "9", None),
        ("delete from support.tickets where id = 8", "8", None),
    ] {
        shop.execute(statement).await;
        let text = text.map(|text| format!("{id}|{text}"));
        let found: Vec<String> = shop.notes().await.into_iter().filter(|note| note.starts_with(&format!("{id}|"))).collect();
        assert_eq!(found, Vec::from_iter(text), "{statement}");
    }
    assert_eq!(
        shop.notes().await,
        [
            "10|acme|ten",
            "3|globex|Printers\n\nThe invoice counts a licence twice.",
            "7|initech|Printers\n\nnew"
        ]
    );
    shop.execute("truncate support.tickets").await;
    assert_eq!(shop.notes().await, [""; 0]);
}

#[tokio::test]
async fn a_change_that_no_note_shows_enqueues_nothing() {
    let mut shop = Shop::of_tickets().await;
    for (statement, enqueued) in [
        ("update support.tickets set views = views + 1", 0),
        ("update support.tickets set body = body", 0),
        ("update support.tickets set body = 'more' where id = 2", 0),
        ("update support.tickets set body = 'more' where id = 1", 1),
        (
            "insert into support.tickets (customer_id, body) select 'acme', 'n ' || n from generate_series(1, 300) n",
            300,
        ),
    ] {
        assert_eq!(shop.enqueued_by(statement).await, enqueued, "{statement}");
    }
}

/// Postgres fires a trigger for the row that the application's own trigger has changed since.
#[tokio::test]
async fn a_row_that_a_trigger_of_the_application_changes_again_has_its_last_text() {
    let mut shop = Shop::of_tickets().await;
    for name in ["a_first", "z_last"] {
        shop.execute(&format!(
            "create function {name}() returns trigger language plpgsql as $$ begin
                 update support.tickets set subject = concat(subject, '!') where id = new.id and length(subject) < 12;
                 return null;
             end $$;
             create trigger {name} after insert or update on support.tickets for each row execute function {name}()"
        ))
        .await;
    }
    shop.execute(
        "insert into support.tickets (id, customer_id, subject) values (5, 'acme', 'Five')",
    )
    .await;
    shop.execute("update support.tickets set subject = 'One' where id = 1")
        .await;
    let rows =
        "select id || '|' || customer_id || '|' || btrim(concat(subject, E'\\n\\n', body), E'\\n')
                  from support.tickets where status <> 'spam' order by id";
    let rows = shop.all(rows).await;
    let five = rows.iter().find(|row| row.starts_with('5')).unwrap();
    assert!(five.ends_with("!"), "{five}");
    let notes = shop.notes().await;
    assert!(
        rows.iter().all(|row| notes.contains(row)),
        "{rows:?} {notes:?}"
    );
}

#[tokio::test]
async fn partitions_are_followed_however_they_are_written() {
    let tables = "
        create table \"Events\" (\"At\" date, \"No\" int, \"What's up\" text, primary key (\"At\", \"No\")) partition by range (\"At\");
        create table events_1 partition of \"Events\" for values from ('2026-01-01') to ('2026-02-01');
        create table events_2 partition of \"Events\" for values from ('2026-02-01') to ('2026-03-01');
        insert into \"Events\" values ('2026-01-05', 1, 'snow');";
    let block = r#"
[[sources]]
name = "events"
table = '"Events"'
text = "{What's up}"
"#;
    let mut shop = Shop::of(tables, block).await;
    assert_eq!(shop.notes().await, ["[\"2026-01-05\", \"1\"]|default|snow"]);
    shop.execute("insert into events_1 values ('2026-01-06', 2, 'rain')")
        .await;
    shop.execute("update \"Events\" set \"At\" = '2026-02-06' where \"No\" = 2")
        .await;
    assert_eq!(
        shop.notes().await,
        [
            "[\"2026-01-05\", \"1\"]|default|snow",
            "[\"2026-02-06\", \"2\"]|default|rain"
        ]
    );
    shop.execute(
        "create table events_3 partition of \"Events\" for values from ('2026-03-01') to ('2026-04-01');
         insert into events_3 values ('2026-03-07', 3, 'sun'); delete from events_1;",
    )
    .await;
    assert_eq!(
        shop.notes().await,
        [
            "[\"2026-02-06\", \"2\"]|default|rain",
            "[\"2026-03-07\", \"3\"]|default|sun"
        ]
    );
    shop.execute("truncate events_2").await;
    assert_eq!(shop.notes().await, ["[\"2026-03-07\", \"3\"]|default|sun"]);
    // No trigger sees this; a sync does.
    shop.execute("drop table events_3").await;
    shop.apply().await;
    shop.sync().await;
    assert_eq!(shop.notes().await, [""; 0]);
}

#[tokio::test]
async fn rows_that_arrive_by_replication_are_followed_if_the_source_says_so() {
    let mut shop = Shop::of(
        TICKETS,
        &super::SOURCE.replace("type =", "replicated = true\ntype ="),
    )
    .await;
    shop.execute(
        "set session_replication_role = replica;
         insert into support.tickets (id, customer_id, body) values (4, 'acme', 'four');
         update support.tickets set body = 'It burns.' where id = 1;
         delete from support.tickets where id = 3;
         set session_replication_role = origin",
    )
    .await;
    assert_eq!(
        shop.notes().await,
        ["1|acme|Printer\n\nIt burns.", "4|acme|four"]
    );
}

#[tokio::test]
async fn a_sync_mends_what_no_trigger_saw() {
    let mut shop = Shop::of_tickets().await;
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    shop.execute(
        "insert into support.tickets (id, customer_id, body) values (50, 'acme', 'fifty')",
    )
    .await;
    shop.execute(
        "set session_replication_role = replica;
         update support.tickets set status = 'spam' where id = 50;
         insert into support.tickets (id, customer_id, body) select n, 'acme', 'n ' || n from generate_series(1000, 3499) n;
         update support.tickets set body = 'It burns.' where id = 1;
         delete from support.tickets where id = 3;
         set session_replication_role = origin;
         update memory_notes set text = 'wrong' where source_id = '1'",
    )
    .await;
    let drift = |compared: &Value| {
        ["missing", "stale", "orphaned"].map(|kind| compared[kind].as_u64().unwrap())
    };
    let found = shop.site.elf(&["verify", "--json"]).await.exits(3).json();
    assert_eq!(drift(&found["sources"][0]), [2500, 1, 2]);
    let synced = shop.sync().await;
    assert_eq!(drift(&synced["items"][0]), [2500, 1, 2]);
    let notes = shop.notes().await;
    assert_eq!(notes.len(), 2501);
    assert_eq!(notes[0], "1|acme|Printer\n\nIt burns.");
    shop.execute("update memory_notes set text = 'wrong' where source_id = '1'")
        .await;
    shop.site.elf(&["verify", "--repair"]).await.exits(0);
    let verified = shop.site.json(&["verify"]).await;
    assert_eq!(drift(&verified["sources"][0]), [0, 0, 0]);
    assert_eq!(shop.notes().await[0], "1|acme|Printer\n\nIt burns.");
}

/// A sync reads a row, the application changes it and commits, and then the sync writes what it has read.
#[tokio::test]
async fn a_sync_beside_writers_leaves_no_old_text() {
    let mut shop = Shop::of_tickets().await;
    shop.execute("insert into support.tickets (id, customer_id, body) select n, 'acme', 'n ' || n from generate_series(1000, 1199) n")
        .await;
    let mut writers = Vec::new();
    for writer in 0..3 {
        let mut db = shop.site.connect().await;
        writers.push(tokio::spawn(async move {
            for round in 0..40 {
                let from = 1000 + (round * 7 + writer * 31) % 150;
                let statements = format!(
                    "update support.tickets set body = 'w{writer} r{round} ' || id where id between {from} and {from} + 5;
                     update support.tickets set body = 'x{writer} r{round} ' || id where id = {from} + 50 - {writer}"
                );
                super::execute(&mut db, &statements).await;
            }
        }));
    }
    while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
        // So that a sync has something to write. Of what the writers hold, this waits for none.
        shop.execute(
            "update memory_notes set text = 'wrong' where note_id = any (array(
                 select note_id from memory_notes where source_id::int % 3 = 0 for update skip locked))",
        )
        .await;
        shop.sync().await;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    shop.sync().await;
    let wrong = "select t.id || ' ' || n.text from support.tickets t join memory_notes n on n.source_id = t.id::text
                  where t.id >= 1000 and n.text <> t.body";
    assert_eq!(shop.all(wrong).await, [""; 0]);
}

#[tokio::test]
async fn a_changed_source_is_noticed_and_changes_what_differs() {
    let mut shop = Shop::of_tickets().await;
    shop.site
        .configure("text = \"{subject}\\n\\n{body}\"", "text = \"{body}\"");
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["state"], "differs");
    shop.site
        .elf(&["source", "sync"])
        .await
        .exits(1)
        .says(&["elf source apply"]);
    shop.apply().await;
    let synced = shop.sync().await;
    assert_eq!(synced["items"][0]["stale"], 1, "the other has no subject");
    assert_eq!(shop.notes().await[0], "1|acme|It smokes.");
    shop.site
        .elf(&["source", "remove", "tickets", "--keep-notes"])
        .await
        .exits(0);
    shop.execute("delete from support.tickets where id = 1")
        .await;
    assert_eq!(shop.notes().await.len(), 2);
    shop.apply().await;
    shop.sync().await;
    assert_eq!(shop.notes().await.len(), 1);
    shop.site
        .elf(&["source", "remove", "tickets"])
        .await
        .exits(0);
    assert_eq!(shop.notes().await, [""; 0]);
    shop.execute("insert into support.tickets (customer_id, body) values ('acme', 'unseen')")
        .await;
    assert_eq!(shop.notes().await, [""; 0]);
}

#[tokio::test]
async fn a_text_does_not_depend_on_the_settings_of_the_session_that_writes() {
    let block = super::SOURCE.replace("{subject}\\n\\n{body}", "{body} {due} {priority}");
    let mut shop = Shop::of(TICKETS, &block).await;
    let write = "insert into support.tickets (customer_id, body, due, priority) values ('acme', 'x', '2026-03-04 05:06:07', 0.1)";
    shop.execute(write).await;
    shop.execute(&format!(
        "set datestyle = 'German'; set extra_float_digits = 0; set standard_conforming_strings = off; {write}"
    ))
    .await;
    let texts = "select text from memory_notes where text like 'x%' group by 1 having count(*) = 2";
    assert_eq!(shop.all(texts).await, ["x 2026-03-04 05:06:07 0.1"]);
}

/// A sync writes the note of a row that an open transaction has deleted, and waits for its end.
#[tokio::test]
async fn a_sync_beside_an_open_transaction_leaves_no_note_without_its_row() {
    let mut shop = Shop::not_applied(TICKETS, super::SOURCE).await;
    shop.apply().await;
    let mut other = shop.site.connect().await;
    super::execute(
        &mut other,
        "begin; delete from support.tickets where id = 1; update support.tickets set customer_id = '' where id = 3",
    )
    .await;
    let syncing = shop.site.begin(&["source", "sync"]);
    eventually(async || shop_has(&shop, "1").await).await;
    super::execute(&mut other, "commit").await;
    syncing.ended().await.exits(0);
    assert_eq!(shop.notes().await, [""; 0]);
}

async fn shop_has(shop: &Shop, id: &str) -> bool {
    let note = sqlx::query_scalar("select exists (select from memory_notes where source_id = $1)");
    note.bind(id)
        .fetch_one(&mut shop.site.connect().await)
        .await
        .unwrap()
}

/// The other transaction has deleted the note, which looks as it should.
#[tokio::test]
async fn a_note_that_is_equal_but_being_deleted_is_written_again() {
    let tables = "create table t (id int primary key deferrable initially deferred, body text); insert into t values (1, 'a');";
    let block = "[[sources]]\nname = \"t\"\ntable = \"t\"\ntext = \"{body}\"\n";
    let mut shop = Shop::of(tables, block).await;
    let mut other = shop.site.connect().await;
    super::execute(&mut other, "begin; delete from t where id = 1").await;
    let mut third = shop.site.connect().await;
    let inserting = tokio::spawn(async move {
        super::execute(&mut third, "insert into t values (1, 'a')").await;
    });
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    eventually(async || {
        let mut db = shop.site.connect().await;
        sqlx::query_scalar(waits).fetch_one(&mut db).await.unwrap()
    })
    .await;
    super::execute(&mut other, "commit").await;
    inserting.await.unwrap();
    assert_eq!(shop.notes().await, ["1|default|a"]);
}

#[tokio::test]
async fn a_partition_alone_is_followed_also_through_its_root() {
    let tables = "create table root (id int primary key, body text) partition by range (id);
        create table low partition of root for values from (0) to (100);
        create table high partition of root for values from (100) to (200);
        insert into root values (1, 'one');";
    let block = "[[sources]]\nname = \"low\"\ntable = \"low\"\ntext = \"{body}\"\n";
    let mut shop = Shop::of(tables, block).await;
    shop.execute(
        "insert into root values (2, 'two'), (102, 'other'); update root set id = 101 where id = 1",
    )
    .await;
    assert_eq!(shop.notes().await, ["2|default|two"]);
}

#[tokio::test]
async fn a_note_has_the_defaults_of_memory_notes() {
    let mut shop = Shop::of_tickets().await;
    let defaults = "select distinct concat_ws(' ', project_id, agent_id, scope, type, importance, confidence, status, key, expires_at)
                      from memory_notes";
    assert_eq!(
        shop.all(defaults).await,
        ["default default shared ticket 0.5 1 active"]
    );
}

/// Its notes are of two tenants.
#[tokio::test]
async fn a_removal_that_is_killed_can_be_run_again() {
    let mut shop = Shop::of_tickets().await;
    let mut db = shop.site.connect().await;
    super::execute(&mut db, "begin; select from memory_notes for update").await;
    let removing = shop.site.begin(&["source", "remove", "tickets"]);
    let becomes = async |condition: &'static str| {
        eventually(async || {
            let mut db = shop.site.connect().await;
            let is_so = sqlx::query_scalar(condition);
            is_so.fetch_one(&mut db).await.unwrap()
        })
        .await;
    };
    becomes("select not exists (select from elf_sources)").await;
    removing.kill().await;
    becomes(
        "select not exists (select from pg_stat_activity where datname = current_database() and application_name = 'elf')",
    )
    .await;
    super::execute(&mut db, "rollback").await;
    assert_eq!(shop.notes().await.len(), 2);
    let again = shop.site.elf(&["source", "remove", "tickets"]).await;
    again.exits(0);
    assert_eq!(shop.notes().await, [""; 0]);
}

/// The name of one could be that of a function of the other.
#[tokio::test]
async fn two_sources_of_one_table_do_not_disturb_each_other() {
    let tables = "create table blog (id int primary key, body text, note text); insert into blog values (1, 'body', 'note');";
    let source = |name, text| {
        format!("[[sources]]\nname = \"{name}\"\ntable = \"blog\"\ntext = \"{{{text}}}\"\n")
    };
    let block =
        source("blog", "body") + &source("blog_notes", "note") + &source("blog_updated", "body");
    let mut shop = Shop::of(tables, &block).await;
    shop.execute("update blog set body = 'new', note = 'too'")
        .await;
    let texts = "select source || ' ' || text from memory_notes order by source";
    let expected = ["blog new", "blog_notes too", "blog_updated new"];
    assert_eq!(shop.all(texts).await, expected);
    let listed = shop.site.json(&["source", "list"]).await;
    let states: Vec<&Value> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["state"])
        .collect();
    assert_eq!(states, ["applied"; 3]);
    shop.site.elf(&["source", "remove", "blog"]).await.exits(0);
    shop.execute("update blog set body = 'last', note = 'last'")
        .await;
    assert_eq!(
        shop.all(texts).await,
        ["blog_notes last", "blog_updated last"]
    );
}

#[tokio::test]
async fn three_commands_make_a_table_searchable() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    sqlx::raw_sql(
        "create table products (id serial primary key, name text not null, description text, price numeric(10, 2),
                                password_hash text);
         insert into products (name, description, price)
         select 'Lamp ' || n, 'A desk lamp with a steel foot, of ' || n || ' watts.', n from generate_series(1, 999) n;
         insert into products (name, description, price) values ('Espresso machine', 'It steams milk.', 399);",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let before = site.toml();
    site.write(
        "elf.toml",
        format!("{}\n[metadata]\nprice = \"number\"", before.trim_end()),
    );
    let added = site
        .elf(&["source", "add", "products", "--apply"])
        .await
        .exits(0);
    assert!(added.stdout.contains("1000 rows: 1000 notes"), "{added:?}");
    let toml = site.toml();
    assert!(
        toml.contains("[[sources]]\nname = \"products\"\n"),
        "{toml}"
    );
    assert!(
        toml.contains("price = \"{price}\"") && !toml.contains("password"),
        "{toml}"
    );
    site.elf(&["worker", "--once"]).await.exits(0);
    let found = site.json(&["search", "who steams milk", "-n", "1"]).await;
    assert_eq!(found["items"][0]["source_id"], "1000", "{found}");

    // What cannot be added leaves the file as it was.
    for (table, says) in [
        ("products", "is the source products already"),
        ("nothing", "nothing"),
        ("numbers", "no column"),
    ] {
        sqlx::raw_sql("create table if not exists numbers (id int primary key)")
            .execute(&mut db)
            .await
            .unwrap();
        let refused = site.elf(&["source", "add", table, "--apply"]).await;
        assert_ne!(refused.code, Some(0), "{refused:?}");
        refused.says(&[says]);
        assert_eq!(site.toml(), toml, "{table}");
    }

    // The proposed fields, as they stand.
    site.write(
        "elf.toml",
        toml.replace("# metadata = { price", "metadata = { price"),
    );
    site.elf(&["source", "apply"]).await.exits(0);
    site.elf(&["source", "sync"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
    let found = site.json(&["search", "lamp", "--where", "price<3"]).await;
    assert_eq!(found["items"].as_array().unwrap().len(), 2, "{found}");
}

/// As the guide shows it, for any role of the application.
#[tokio::test]
async fn a_ticket_has_its_comments_as_soon_as_they_are_written() {
    let blocks = all_blocks("docs/guide/tables.md");
    let example = blocks
        .iter()
        .find(|block| block.text.contains("support.commented()"));
    let (functions, grant) = example.unwrap().text.split_once("grant ").unwrap();
    let tables = format!(
        "{TICKETS} create table support.comments (id int primary key, ticket_id bigint not null, body text not null);
         {functions}"
    );
    let block = super::SOURCE.replace(
        r#"text = "{subject}\n\n{body}""#,
        r#"text_sql = "support.with_comments(tickets)""#,
    );
    let mut shop = Shop::not_applied(&tables, &block).await;
    shop.apply().await;
    shop.execute(&format!("grant {grant}")).await;
    shop.sync().await;
    for (statement, text) in [
        (
            "insert into support.comments values (1, 1, 'It burns.')",
            "Printer\n\nIt smokes.\n\nIt burns.",
        ),
        (
            "update support.comments set body = 'It glows.' where id = 1",
            "Printer\n\nIt smokes.\n\nIt glows.",
        ),
        (
            "update support.comments set ticket_id = 3 where id = 1",
            "Printer\n\nIt smokes.",
        ),
        (
            "insert into support.comments select n, 1 + n % 2 * 2, '!' from generate_series(2, 16001) n;
             delete from support.comments where id > 2",
            "Printer\n\nIt smokes.\n\n!",
        ),
        ("delete from support.comments", "Printer\n\nIt smokes."),
    ] {
        shop.execute(statement).await;
        assert_eq!(
            shop.notes().await[0],
            format!("1|acme|{text}"),
            "{statement}"
        );
    }
    // A note per key, none for a key without a row, and several at once.
    shop.execute("select elf_touch('tickets', 1, 3, 4711)")
        .await;
    // Text keys, and a source that is not there, or is removed: no statement of the application fails.
    shop.execute("select elf_touch('tickets', '1'), elf_touch('nosuch', 1)")
        .await;
    assert_eq!(shop.notes().await, FIRST);
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    let drift = shop.site.json(&["verify"]).await;
    assert_eq!(drift["sources"][0]["stale"], 0, "{drift}");
}
