//! A source harms no statement of the application, and gives no role a right.

use super::{SOURCE, Shop, TICKETS, execute};
use crate::support::database::Role;
use crate::support::eventually;

#[tokio::test]
async fn a_row_that_can_be_no_note_fails_no_statement() {
    let block = SOURCE.replace(
        "type =",
        "importance = \"{priority}\"\nexpires_at = \"{due}\"\nkey = \"{subject}\"\ntype =",
    );
    let mut shop = Shop::of(TICKETS, &block).await;
    shop.execute(
        "insert into support.tickets (id, customer_id, subject, body, due, priority) values
             (10, null, 'a', 'no tenant', null, 1), (11, 'acme', 'b', 'good', null, 1), (12, 'acme', 'c', 'good', 'infinity', 'NaN'),
             (13, 'acme', 'b', 'the key of 11', null, 1), (14, 'acme', null, E' \\n', null, 1),
             (15, repeat('t', 1001), 'e', 'long label', null, 1), (16, 'acme', 'f', 'good', '2030-01-01', 1e30)",
    )
    .await;
    let notes = shop.notes().await;
    for good in [
        "11|acme|b\n\ngood",
        "12|acme|c\n\ngood",
        "16|acme|f\n\ngood",
    ] {
        assert!(notes.contains(&good.to_owned()), "{notes:?}");
    }
    let left_out = shop.left_out().await;
    let [ten, thirteen, fourteen, fifteen] = &left_out[..] else {
        panic!("{left_out:?}");
    };
    assert_eq!(ten, "10|it has no tenant_id");
    assert!(
        thirteen.starts_with("13|another note has its key: Key ("),
        "{thirteen}"
    );
    assert_eq!(fourteen, "14|it has no text");
    assert!(fifteen.contains("1,000 bytes"), "{fifteen}");
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["left_out"], 4);
    let shown = shop.site.json(&["source", "left-out", "tickets"]).await;
    assert_eq!(shown["items"].as_array().unwrap().len(), 4);
    // Mended rows become notes, and deleted ones are no longer listed.
    shop.execute(
        "update support.tickets set customer_id = 'acme', subject = 'own' where id = 10;
         delete from support.tickets where id in (13, 14);
         update support.tickets set customer_id = '' where id = 11",
    )
    .await;
    assert_eq!(
        shop.left_out().await,
        ["11|it has no tenant_id".to_owned(), fifteen.clone()]
    );
    assert!(
        !shop
            .notes()
            .await
            .iter()
            .any(|note| note.starts_with("11|"))
    );
}

/// One of many rows of a statement: only that one is left out.
#[tokio::test]
async fn an_expression_that_fails_for_one_row_leaves_out_that_one() {
    let block = SOURCE.replace(
        "text = \"{subject}\\n\\n{body}\"",
        "text_sql = \"subject || (100 / views)\"",
    );
    let mut shop = Shop::of(TICKETS, &block).await;
    shop.execute(
        "insert into support.tickets (id, customer_id, subject, views)
         select n, 'acme', 'n ' || n, n % 100 from generate_series(1000, 1499) n",
    )
    .await;
    let notes = shop
        .all("select source_id from memory_notes where source_id::int >= 1000")
        .await;
    assert_eq!(notes.len(), 495);
    let left_out = shop.left_out().await;
    assert!(
        left_out.contains(&"1400|division by zero".to_owned()),
        "{left_out:?}"
    );
}

#[tokio::test]
async fn an_application_without_rights_on_elf_writes_its_table() {
    let role = Role::create("login").await;
    let mut shop = Shop::of_tickets().await;
    shop.execute(&format!(
        "grant usage on schema support to {0}; grant select, insert, update, delete, truncate on support.tickets to {0}",
        role.name
    ))
    .await;
    shop.execute(&format!(
        "set role {}; insert into support.tickets (id, customer_id, body) values (5, 'acme', 'five'); reset role",
        role.name
    ))
    .await;
    assert!(shop.notes().await.contains(&"5|acme|five".to_owned()));
    let mut db = shop.site.connect().await;
    execute(&mut db, &format!("set role {}", role.name)).await;
    for statement in [
        "select elf_source_tickets$put(array[1], true, true)",
        "select elf_source_tickets$page(null, 1, true)",
        "select elf_source_tickets$notes(null, 1, true)",
        "create temporary table bait (id bigint, customer_id text); \
         create trigger t after insert on bait for each row execute function elf_source_tickets()",
        "select * from elf_left_out",
        "select * from elf_sources",
    ] {
        let refused = sqlx::raw_sql(statement).execute(&mut db).await.unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("permission denied"),
            "{statement}: {refused}"
        );
    }
}

#[tokio::test]
async fn the_triggers_run_as_a_role_that_may_only_read_the_table_and_write_notes() {
    let mut shop = Shop::of_tickets().await;
    let owners = shop
        .all(
            "select distinct r.rolname::text from pg_proc p join pg_roles r on r.oid = p.proowner
               where p.proname like 'elf\\_source\\_%' and not r.rolcanlogin and not r.rolsuper",
        )
        .await;
    assert_eq!(owners, ["elf_source_writer"]);
    let rights = shop
        .all(
            "select distinct c.relname || ' ' || lower(a.privilege_type) from pg_class c
               cross join lateral aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
               where r.rolname = 'elf_source_writer' order by 1",
        )
        .await;
    assert_eq!(
        rights,
        [
            "elf_left_out delete",
            "elf_left_out insert",
            "elf_left_out select",
            "elf_left_out update",
            "memory_notes delete",
            "memory_notes insert",
            "memory_notes select",
            "memory_notes update",
            "tickets select",
        ]
    );
}

/// Else the role could let the function do anything with the rights of the triggers.
#[tokio::test]
async fn an_expression_may_not_call_the_function_of_another_role() {
    let role = Role::create("nologin").await;
    let block = SOURCE.replace(
        "text = \"{subject}\\n\\n{body}\"",
        "text_sql = \"support.summary(tickets)\"",
    );
    let mut shop = Shop::not_applied(TICKETS, &block).await;
    shop.execute(
        "create function support.summary(t support.tickets) returns text language sql as $$ select t.body || '?' $$",
    )
    .await;
    shop.execute(&format!(
        "alter function support.summary owner to {}",
        role.name
    ))
    .await;
    let refused = shop.site.elf(&["source", "apply"]).await.exits(78);
    refused.says(&["support.summary", &role.name]);
    shop.execute("alter function support.summary owner to current_user")
        .await;
    shop.apply().await;
    shop.sync().await;
    assert_eq!(shop.notes().await[0], "1|acme|It smokes.?");
    // It takes the whole row, so any change of it may change the text.
    assert_eq!(
        shop.enqueued_by("update support.tickets set body = 'It burns.' where id = 1")
            .await,
        1
    );
}

#[tokio::test]
async fn row_level_security_hides_no_row_from_the_triggers() {
    let tables = format!("{TICKETS} alter table support.tickets enable row level security;");
    let mut shop = Shop::of(&tables, SOURCE).await;
    assert_eq!(shop.notes().await.len(), 2);
    shop.execute("set row_security = off").await;
    shop.execute("insert into support.tickets (id, customer_id, body) values (5, 'acme', 'five')")
        .await;
    assert!(shop.notes().await.contains(&"5|acme|five".to_owned()));
}

/// The triggers are installed between the transactions of the application, which waits a second at most.
#[tokio::test]
async fn an_installation_waits_for_the_transactions_of_the_application() {
    let shop = Shop::not_applied(TICKETS, SOURCE).await;
    let mut db = shop.site.connect().await;
    execute(
        &mut db,
        "begin; update support.tickets set views = 1 where id = 1",
    )
    .await;
    let applying = shop.site.begin(&["source", "apply"]);
    applying.says("waiting for a lock of another session").await;
    let mut other = shop.site.connect().await;
    execute(
        &mut other,
        "update support.tickets set views = 2 where id = 3",
    )
    .await;
    execute(&mut db, "commit").await;
    applying.ended().await.exits(0);
}

/// Longer than ELF lets a statement wait for a lock.
#[tokio::test]
async fn an_installation_and_a_sync_wait_behind_a_lock_however_long_and_say_so() {
    let mut shop = Shop::not_applied(TICKETS, SOURCE).await;
    let mut db = shop.site.connect().await;
    execute(
        &mut db,
        "begin; lock table support.tickets in access exclusive mode",
    )
    .await;
    let applying = [0, 1].map(|_| shop.site.begin(&["source", "apply"]));
    for apply in &applying {
        apply.says("waiting for a lock").await;
    }
    let waiting = "pg_stat_activity where datname = current_database() and application_name = 'elf' and wait_event_type = 'Lock'";
    let first = &shop
        .all(&format!("select max(query_start)::text from {waiting}"))
        .await[0];
    let again = format!("select count(*) > 1 from {waiting} and query_start > '{first}'");
    eventually(async || {
        let again = sqlx::query_scalar(sqlx::AssertSqlSafe(again.clone()));
        again
            .fetch_one(&mut shop.site.connect().await)
            .await
            .unwrap()
    })
    .await;
    execute(
        &mut db,
        "rollback; begin; lock table support.tickets in row exclusive mode",
    )
    .await;
    for apply in &applying {
        apply.says("waiting for a lock of another session").await;
    }
    execute(&mut db, "rollback").await;
    for apply in applying {
        apply.ended().await.exits(0);
    }
    execute(
        &mut db,
        "begin; lock table memory_notes in access exclusive mode",
    )
    .await;
    let syncing = shop.site.begin(&["source", "sync"]);
    syncing.says("waiting for a lock of another session").await;
    execute(&mut db, "rollback").await;
    syncing.ended().await.exits(0);
    assert_eq!(shop.notes().await.len(), 2);
}

#[tokio::test]
async fn what_looks_at_sources_says_that_a_table_is_locked() {
    let shop = Shop::of_tickets().await;
    let mut db = shop.site.connect().await;
    execute(
        &mut db,
        "begin; lock table support.tickets in access exclusive mode",
    )
    .await;
    let listed = shop.site.json(&["source", "list"]).await;
    let listed = &listed["items"][0];
    assert_eq!(
        (&listed["state"], &listed["notes"]),
        (&"locked".into(), &2.into())
    );
    let status = shop.site.elf(&["status"]).await.exits(0).stdout;
    assert!(
        status.contains("elf cannot look at the triggers of tickets now"),
        "{status}"
    );
    let verifying = shop.site.begin(&["verify"]);
    verifying.says("waiting for a lock").await;
    execute(&mut db, "rollback").await;
    verifying.ended().await;
}

#[tokio::test]
async fn what_apply_executes_can_be_executed_by_another_role() {
    let mut shop = Shop::not_applied(TICKETS, SOURCE).await;
    let sql = shop.site.elf(&["source", "sql"]).await.exits(0).stdout;
    shop.execute(&sql).await;
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["state"], "applied");
    shop.sync().await;
    assert_eq!(shop.notes().await.len(), 2);
}

/// Its policies call functions with the rights of whoever reads the table.
#[tokio::test]
async fn row_level_security_of_another_role_runs_no_function_of_it() {
    let role = Role::create("nologin").await;
    let mut shop = Shop::of_tickets().await;
    shop.execute(&format!(
        "grant usage, create on schema support to {0}; alter table support.tickets owner to {0}; set role {0};
         create table support.caught (by text); grant insert on support.caught to public;
         create function support.spy() returns boolean language plpgsql as $$ begin
             insert into support.caught values (current_user); return true;
         end $$;
         create policy spy on support.tickets as restrictive using (support.spy());
         create policy open on support.tickets using (true);
         alter table support.tickets enable row level security; reset role;
         update support.tickets set body = 'It burns.' where id = 1",
        role.name
    ))
    .await;
    assert_eq!(
        shop.all("select by from support.caught where by like 'elf%'")
            .await,
        [""; 0]
    );
    assert_eq!(
        shop.notes().await.len(),
        2,
        "the notes stay until the source fits again"
    );
    assert!(shop.left_out().await[0].contains("row-level security"));
    shop.site
        .elf(&["source", "apply"])
        .await
        .exits(78)
        .says(&["row-level security", &role.name]);
}

/// A cast of its type, a view in the place of its table: neither gets the rights of the triggers.
#[tokio::test]
async fn the_owner_of_a_table_runs_nothing_with_the_rights_of_the_triggers() {
    let role = Role::create("nologin").await;
    let tables = format!(
        "create schema own authorization {0}; set role {0};
         create type own.state as enum ('open', 'shut');
         create table own.t (id int, state own.state, body text, primary key (id, state));
         create table own.caught (by text); grant usage on schema own to public; grant insert on own.caught to public;
         create function own.spy() returns boolean language plpgsql as $$ begin
             insert into own.caught values (current_user); return true;
         end $$;
         reset role;",
        role.name
    );
    let block =
        "[[sources]]\nname = \"t\"\ntable = \"own.t\"\ntext_sql = \"state\"\ntitle = \"{state}\"\n";
    let mut shop = Shop::of(&tables, block).await;
    shop.execute(&format!(
        "set role {};
         create function own.as_json(own.state) returns json language plpgsql as $$ begin
             perform own.spy(); return to_json($1::text); end $$;
         create function own.as_text(own.state) returns text language plpgsql as $$ begin
             perform own.spy(); return 'x'; end $$;
         create cast (own.state as json) with function own.as_json(own.state);
         create cast (own.state as text) with function own.as_text(own.state) as assignment;
         insert into own.t values (1, 'open', 'a'); truncate own.t; insert into own.t values (2, 'shut', 'b'); reset role",
        role.name
    ))
    .await;
    shop.sync().await;
    assert_eq!(shop.notes().await, ["[\"2\", \"shut\"]|default|shut"]);
    shop.execute(&format!(
        "set role {}; alter table own.t rename to u; create view own.t as select * from own.u where own.spy();
         insert into own.u values (3, 'open', 'c'); reset role",
        role.name
    ))
    .await;
    assert_eq!(
        shop.all("select by from own.caught where by like 'elf%'")
            .await,
        [""; 0]
    );
    assert_eq!(shop.notes().await.len(), 2);
    shop.site.elf(&["source", "sync"]).await.exits(1);
}

#[tokio::test]
async fn functions_and_triggers_that_somebody_has_changed_are_noticed() {
    let mut shop = Shop::of_tickets().await;
    for change in [
        "alter table support.tickets disable trigger elf_source_tickets_updated",
        "drop trigger elf_source_tickets_deleted on support.tickets",
        "alter function elf_source_tickets$page security invoker",
        "alter function elf_source_tickets() reset all",
    ] {
        shop.execute(change).await;
        let listed = shop.site.json(&["source", "list"]).await;
        assert_eq!(listed["items"][0]["state"], "differs", "{change}");
        shop.site.elf(&["source", "sync"]).await.exits(1);
        shop.apply().await;
        let listed = shop.site.json(&["source", "list"]).await;
        assert_eq!(listed["items"][0]["state"], "applied", "{change}");
    }
}

#[tokio::test]
async fn a_renamed_column_fails_no_statement() {
    let mut shop = Shop::of_tickets().await;
    shop.execute("alter table support.tickets rename body to words; update support.tickets set words = 'It burns.' where id = 1").await;
    assert_eq!(
        shop.notes().await[0],
        "1|acme|Printer\n\nIt burns.",
        "it keeps its place"
    );
    shop.execute(
        "alter table support.tickets rename id to number;
         insert into support.tickets (number, customer_id, words) values (5, 'acme', 'five');
         update support.tickets set words = 'It glows.' where number = 1;
         delete from support.tickets where number = 3",
    )
    .await;
    assert!(shop.left_out().await[0].contains("id"), "it is named");
    let mut other = shop.site.connect().await;
    let insert = "insert into support.tickets (customer_id, words) values ('acme', 'more')";
    execute(&mut other, &format!("begin; {insert}")).await;
    shop.execute(&format!(
        "set lock_timeout = '10s'; {insert}; delete from support.tickets where words = 'more'"
    ))
    .await;
    execute(&mut other, "rollback").await;
    let listed = shop.site.json(&["source", "list"]).await;
    assert_eq!(listed["items"][0]["state"], "unfit");
    let problem = listed["items"][0]["problem"].as_str().unwrap();
    assert!(problem.contains("tickets.body does not exist"), "{problem}");
    let status = shop.site.elf(&["status"]).await.exits(0).stdout;
    assert!(status.contains(problem), "{status}");
    shop.site
        .elf(&["worker", "--once"])
        .await
        .exits(0)
        .says(&[problem]);
    shop.site.configure("{body}", "{words}");
    shop.apply().await;
    shop.sync().await;
    assert_eq!(
        shop.notes().await,
        ["1|acme|Printer\n\nIt glows.", "5|acme|five"]
    );
    assert_eq!(shop.left_out().await, [""; 0]);
    shop.execute("alter table support.tickets rename to cases; truncate support.cases")
        .await;
    assert_eq!(shop.notes().await, [""; 0]);
}

#[tokio::test]
async fn rows_are_left_out_whatever_is_wrong_with_them() {
    let tables = "create table odd (id text primary key, body text, lang text, opt int);
        create function odd_text(o odd) returns text language plpgsql as $$ begin
            assert o.body <> 'assert'; return o.body;
        end $$;";
    let block = "[[sources]]\nname = \"odd\"\ntable = \"odd\"\ntext_sql = \"public.odd_text(odd) || (lang::regconfig)::text\"\n";
    let mut shop = Shop::of(tables, block).await;
    shop.execute(
        "insert into odd select string_agg(md5(n::text), ''), 'long key', 'english' from generate_series(1, 70) n;
         insert into odd values ('a', 'good', 'english'), ('b', 'bad', 'klingon'), ('c', 'assert', 'english');",
    )
    .await;
    assert_eq!(shop.notes().await, ["a|default|goodenglish"]);
    let left_out = shop.left_out().await;
    assert_eq!(left_out.len(), 3);
    assert!(
        left_out.iter().any(|row| row.contains("2,000 bytes")),
        "{left_out:?}"
    );
    assert!(
        left_out.iter().any(|row| row.contains("klingon")),
        "{left_out:?}"
    );
    assert!(
        left_out.iter().any(|row| row.contains("assertion failed")),
        "{left_out:?}"
    );
    shop.execute("update odd set lang = 'klingon' where id = 'a'")
        .await;
    assert_eq!(
        shop.notes().await,
        [""; 0],
        "another text would be a wrong one"
    );
    // What no trigger saw leaves the list with a sync.
    shop.execute("set session_replication_role = replica; delete from odd where id <> 'b'; set session_replication_role = origin").await;
    shop.sync().await;
    assert_eq!(shop.left_out().await.len(), 1);
}

#[tokio::test]
async fn a_proposal_uses_no_operator_of_another_role() {
    let mut shop = Shop::of_tickets().await;
    shop.execute(
        "create function public.bait(varchar, text) returns boolean language plpgsql as $$ begin raise 'bait'; end $$;
         create operator public.~ (leftarg = varchar, rightarg = text, function = public.bait);
         create table support.cards (id int primary key, memo varchar);
         insert into support.cards values (1, 'a few words')",
    )
    .await;
    let proposed = shop.site.json(&["source", "add", "support.cards"]).await;
    let block = proposed["block"].as_str().unwrap();
    assert!(block.contains("text = \"{memo}\""), "{block}");
}

/// As after a wrong word in the block, or a table that was restored empty.
#[tokio::test]
async fn a_sync_that_would_delete_most_notes_changes_nothing_unless_it_is_forced() {
    let mut shop = Shop::of_tickets().await;
    shop.execute(
        "insert into support.tickets (customer_id, body) select 'acme', n::text from generate_series(1, 10) n",
    )
    .await;
    let notes = shop.notes().await;
    shop.site
        .configure("title = ", "updated_at = \"{customer_id}\"\ntitle = ");
    shop.apply().await;
    let refused = shop.site.elf(&["source", "sync"]).await.exits(1);
    refused.says(&[
        "12 of the 12 notes",
        "no note was changed",
        "invalid input syntax",
    ]);
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    let refused = shop.site.elf(&["verify", "--repair"]).await.exits(3);
    refused.says(&["12 of the 12 notes"]);
    assert_eq!(shop.notes().await, notes);
    let forced = shop.site.elf(&["source", "sync", "--force"]).await;
    forced.exits(0);
    assert_eq!(shop.notes().await.len(), 0);
}
