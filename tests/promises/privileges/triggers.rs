//! Another role gains nothing from the trigger functions.

use sqlx::Connection;

use super::{NOTE, all, assert_triggers_are_restricted, attach, attempt, bait, execute, refusal};
use crate::support::components::missing;
use crate::support::database::Role;
use crate::support::site::Site;

const TRIGGER_FUNCTIONS: [&str; 5] = [
    "elf_note_inserted",
    "elf_note_updated",
    "elf_note_deleted",
    "elf_notes_truncated",
    "elf_note_replicated",
];

#[tokio::test]
async fn a_trigger_function_cannot_be_attached_to_a_table_of_another_role() {
    let role = Role::create("nologin").await;
    let site = Site::start().await;
    let mut db = site.connect().await;
    let mut tx = db.begin().await.unwrap();
    execute(&mut tx, &bait(&role.name)).await;
    for function in TRIGGER_FUNCTIONS.iter().chain(&["elf_outbox_notify"]) {
        let refused = refusal(&mut tx, &attach(function)).await;
        assert!(
            refused.contains(&format!("permission denied for function {function}")),
            "{refused}"
        );
    }
    tx.rollback().await.unwrap();
}

/// As after a restore without access privileges: PUBLIC may execute functions again.
#[tokio::test]
async fn a_trigger_function_does_nothing_for_another_table_even_where_it_is_attached() {
    let role = Role::create("nologin").await;
    let site = Site::start().await;
    let mut db = site.connect().await;
    for function in TRIGGER_FUNCTIONS {
        let grant = format!("grant execute on function {function}() to public");
        execute(&mut db, &grant).await;
        let mut tx = db.begin().await.unwrap();
        execute(&mut tx, &bait(&role.name)).await;
        execute(
            &mut tx,
            "insert into bait values (row('x')::pg_temp.bait_id)",
        )
        .await;
        execute(&mut tx, &attach(function)).await;
        let fire = match function {
            "elf_note_inserted" | "elf_note_replicated" => {
                "insert into bait values (row('x')::pg_temp.bait_id)"
            }
            "elf_note_updated" => "update bait set text = 'x'",
            "elf_note_deleted" => "delete from bait",
            _ => "truncate bait",
        };
        let fired = attempt(&mut tx, fire).await;
        let ran_as = all(&mut tx, "select who from pg_temp.ran_as").await;
        assert_eq!(ran_as, Vec::<String>::new(), "{function}");
        let refused = fired.expect_err(function);
        assert!(
            refused.contains("fires on public.memory_notes only"),
            "{refused}"
        );
        tx.rollback().await.unwrap();
    }
}

/// A function that records as which role it runs.
fn spy(role: &str) -> String {
    format!(
        "create table ran_as (who text);
         grant all on ran_as to public;
         grant create on schema public to {role};
         set local role {role};
         create function public.spy(varchar, varchar) returns boolean language plpgsql as
             'begin insert into public.ran_as values (current_user); return true; end';
         create function public.spy(uuid, uuid) returns boolean language plpgsql as
             'begin insert into public.ran_as values (current_user); return true; end';
         create operator public.= (leftarg = varchar, rightarg = varchar, function = public.spy);
         create operator public.= (leftarg = uuid, rightarg = uuid, function = public.spy);
         create operator public.<> (leftarg = varchar, rightarg = varchar, function = public.spy);
         create function public.current_setting(text, boolean) returns text language plpgsql as
             'begin insert into public.ran_as values (current_user); return null; end';
         create function public.pg_notify(varchar, varchar) returns void language plpgsql as
             'begin insert into public.ran_as values (current_user); end';
         reset role;"
    )
}

#[tokio::test]
async fn a_trigger_function_uses_no_operator_or_function_of_another_role() {
    let role = Role::create("nologin").await;
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "create table memory_notes (
             note_id uuid primary key default gen_random_uuid(),
             tenant_id varchar, project_id varchar, agent_id varchar, scope varchar, type varchar,
             key varchar, title varchar, text varchar, importance real, confidence real,
             status varchar default 'active', updated_at timestamptz, expires_at timestamptz,
             source_ref jsonb)",
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    execute(&mut db, &spy(&role.name)).await;
    execute(&mut db, NOTE).await;
    execute(&mut db, "update memory_notes set text = 'red'").await;
    execute(&mut db, "delete from memory_notes").await;
    execute(&mut db, "truncate memory_notes cascade").await;
    let ops = all(
        &mut db,
        "select op from indexing_outbox order by created_at",
    )
    .await;
    assert_eq!(ops, ["UPSERT", "UPSERT", "DELETE"]);
    let ran_as = all(&mut db, "select who from ran_as").await;
    assert_eq!(ran_as, Vec::<String>::new());
    // An operator is told that this role could do the same to ELF's own statements.
    let notes = site.json(&["migrate"]).await["notes"].to_string();
    let revoke = format!("revoke create on schema public from {}", role.name);
    assert!(notes.contains(&revoke), "{notes}");
    let worked = site.elf(&["worker", "--once"]).await.exits(0);
    worked.says(&[&revoke]);
    execute(&mut db, &format!("drop owned by {}", role.name)).await;
}

/// A cast that the type's owner made must not run in the trigger either.
#[tokio::test]
async fn a_trigger_function_uses_no_cast_of_a_columns_type() {
    let role = Role::create("nologin").await;
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        &format!(
            "create type scopes as enum ('team', 'private');
             create table memory_notes (
                 note_id uuid primary key default gen_random_uuid(),
                 tenant_id text, project_id text, agent_id text, scope scopes, type text,
                 key text, title text, text text, importance real, confidence real,
                 status text default 'active', updated_at timestamptz, expires_at timestamptz,
                 source_ref jsonb);
             create table ran_as (who text);
             grant all on ran_as to public;
             create function spy(scopes) returns text language plpgsql as
                 'begin insert into public.ran_as values (current_user); return null; end';
             grant create on schema public to {0};
             alter type scopes owner to {0};
             create cast (scopes as text) with function spy(scopes) as implicit;",
            role.name
        ),
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    execute(
        &mut db,
        "insert into memory_notes (tenant_id, scope, text) values ('t', 'team', 'x');
         update memory_notes set scope = 'private'",
    )
    .await;
    let ops = all(&mut db, "select op from indexing_outbox").await;
    assert_eq!(ops, ["UPSERT", "UPSERT"]);
    let ran_as = all(&mut db, "select who from ran_as").await;
    assert_eq!(ran_as, Vec::<String>::new());
    execute(
        &mut db,
        &format!(
            "reassign owned by {} to postgres; drop owned by {0}",
            role.name
        ),
    )
    .await;
}

/// Values that a type or a collation takes for equal can be stored differently.
#[tokio::test]
async fn a_change_that_equality_does_not_see_is_a_change() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "alter table memory_notes alter column importance type numeric",
    )
    .await;
    execute(&mut db, NOTE).await;
    execute(&mut db, "delete from indexing_outbox").await;
    execute(&mut db, "update memory_notes set importance = 0.50").await;
    let ops = all(&mut db, "select op from indexing_outbox").await;
    assert_eq!(ops, ["UPSERT"]);
    execute(&mut db, "delete from indexing_outbox").await;
    let ci = "create collation any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)";
    if let Err(reason) = attempt(&mut db, ci).await {
        return missing(
            "icu",
            "a_trigger_function_uses_no_operator",
            &format!("the server has no ICU: {reason}"),
        );
    }
    execute(
        &mut db,
        "alter table memory_notes alter text type text collate any_case;
         update memory_notes set text = upper(text)",
    )
    .await;
    let ops = all(&mut db, "select op from indexing_outbox").await;
    assert_eq!(ops, ["UPSERT"]);
}

#[tokio::test]
async fn the_trigger_functions_belong_to_a_role_that_may_only_write_the_outbox() {
    let site = Site::start().await;
    assert_triggers_are_restricted(&mut site.connect().await).await;
}
