//! A role of the same database gains nothing from ELF, and ELF needs no more than a role of
//! its own.

use std::path::Path;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::Command;

use crate::support::components::missing;
use crate::support::database::{Role, TestDatabase};
use crate::support::site::{Done, Site, run};

const TRIGGER_FUNCTIONS: [&str; 4] = [
    "elf_note_inserted",
    "elf_note_updated",
    "elf_note_deleted",
    "elf_notes_truncated",
];

const NOTE: &str = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                    values ('t', 'p', 'a', 's', 'n', 'The lighthouse is green.');";

async fn execute(db: &mut PgConnection, statements: &str) {
    attempt(db, statements)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

/// The error with which Postgres refuses the statements.
async fn refusal(db: &mut PgConnection, statements: &str) -> String {
    attempt(db, statements)
        .await
        .err()
        .unwrap_or_else(|| panic!("Postgres took: {statements}"))
}

/// In a savepoint, because an error ends a transaction.
async fn attempt(db: &mut PgConnection, statements: &str) -> Result<(), String> {
    let mut tx = db.begin().await.unwrap();
    let done = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(&mut *tx)
        .await;
    match done {
        Ok(_) => tx.commit().await.map_err(|error| error.to_string()),
        Err(error) => {
            tx.rollback().await.unwrap();
            Err(error.to_string())
        }
    }
}

async fn all(db: &mut PgConnection, query: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(query.to_owned()))
        .fetch_all(db)
        .await
        .unwrap_or_else(|error| panic!("{query}: {error}"))
}

/// A table of a role that may connect, make temporary tables and use the schema, like every
/// role. To put its `note_id` into the outbox takes a cast, whose function records as which
/// role it runs.
fn bait(role: &str) -> String {
    format!(
        "set local role {role};
         create temp table ran_as (who text);
         create type pg_temp.bait_id as (id text);
         create function pg_temp.to_uuid(pg_temp.bait_id) returns uuid language plpgsql as
             'begin insert into pg_temp.ran_as values (current_user); return gen_random_uuid(); end';
         create cast (pg_temp.bait_id as uuid) with function pg_temp.to_uuid(pg_temp.bait_id) as assignment;
         grant all on pg_temp.ran_as to public;
         create temp table bait (note_id pg_temp.bait_id, text text, status text, expires_at timestamptz,
             tenant_id text, project_id text, agent_id text, scope text, type text, key text,
             importance real, confidence real, updated_at timestamptz);"
    )
}

fn attach(function: &str) -> String {
    let event = match function {
        "elf_note_inserted" => "insert on bait referencing new table as new_rows",
        "elf_note_updated" => {
            "update on bait referencing old table as old_rows new table as new_rows"
        }
        "elf_note_deleted" => "delete on bait referencing old table as old_rows",
        _ => "truncate on bait",
    };
    format!("create trigger t after {event} for each statement execute function {function}();")
}

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
            "elf_note_inserted" => "insert into bait values (row('x')::pg_temp.bait_id)",
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
             key varchar, text varchar, importance real, confidence real,
             status varchar default 'active', updated_at timestamptz, expires_at timestamptz)",
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
                 key text, text text, importance real, confidence real,
                 status text default 'active', updated_at timestamptz, expires_at timestamptz);
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

/// The owner of the trigger functions can write the outbox and nothing else.
async fn assert_triggers_are_restricted(db: &mut PgConnection) {
    let owners = all(
        db,
        "select proowner::regrole || case when prosecdef then '' else ' as the caller' end
                || case when has_function_privilege('public', oid, 'execute') then ' for all' else '' end
           from pg_proc where proname in ('elf_note_inserted', 'elf_note_updated',
                                          'elf_note_deleted', 'elf_notes_truncated')",
    )
    .await;
    assert_eq!(owners, ["elf_outbox_writer"; 4]);
    let rights = all(
        db,
        "select c.relname || ' ' || lower(p) || case when has_table_privilege(r.oid, c.oid, p) then '' else ' of columns' end
           from pg_class c, unnest(array['SELECT', 'INSERT', 'UPDATE', 'REFERENCES']) p, pg_roles r
          where r.rolname = 'elf_outbox_writer' and c.relnamespace = 'public'::regnamespace
            and c.relkind in ('r', 'p', 'v') and has_any_column_privilege(r.oid, c.oid, p)
         union all
         select c.relname || ' ' || lower(p)
           from pg_class c, unnest(array['DELETE', 'TRUNCATE', 'TRIGGER']) p, pg_roles r
          where r.rolname = 'elf_outbox_writer' and c.relnamespace = 'public'::regnamespace
            and c.relkind in ('r', 'p', 'v') and has_table_privilege(r.oid, c.oid, p)
          order by 1",
    )
    .await;
    assert_eq!(
        rights,
        [
            "indexing_outbox insert of columns",
            "note_index_state select of columns"
        ]
    );
    let other = all(
        db,
        "select r.rolname::text from pg_roles r
          where r.rolname = 'elf_outbox_writer'
            and (has_schema_privilege(r.oid, 'public', 'create') or rolcanlogin or rolsuper
                 or has_sequence_privilege(r.oid, 'elf_lease_token', 'usage'))",
    )
    .await;
    assert_eq!(other, Vec::<String>::new());
}

#[tokio::test]
async fn the_trigger_functions_belong_to_a_role_that_may_only_write_the_outbox() {
    let site = Site::start().await;
    assert_triggers_are_restricted(&mut site.connect().await).await;
}

/// Runs `deploy/postgres/role.sql` as an administrator does, without the part `without`,
/// which not every server allows.
async fn run_role_sql(site: &Site, elf: &Role, without: &str) {
    let script = include_str!("../../deploy/postgres/role.sql")
        .replace(":\"role\"", &elf.name)
        .replace(":'password'", &format!("'{}'", elf.name))
        .replace("create role elf_test_", "alter role elf_test_");
    assert!(script.contains(without), "{script}");
    execute(&mut site.connect().await, &script.replace(without, "")).await;
    site.configure(&site.database.url(), &site.database.url_as(elf));
}

async fn index_and_search(site: &Site, application: &Role) {
    let mut owner = site.connect().await;
    execute(
        &mut owner,
        &format!(
            "grant select, insert, update, delete on memory_notes to {}",
            application.name
        ),
    )
    .await;
    let mut db = PgConnection::connect(&site.database.url_as(application))
        .await
        .unwrap();
    execute(&mut db, NOTE).await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    execute(
        &mut db,
        "update memory_notes set text = 'The lighthouse is red.'",
    )
    .await;
    execute(&mut db, NOTE).await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 2);
    execute(
        &mut db,
        "delete from memory_notes where text like '%green%'",
    )
    .await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    let found = site.json(&["search", "lighthouse", "--tenant", "t"]).await;
    assert_eq!(found["items"][0]["text"], "The lighthouse is red.");
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    for args in [
        &["verify", "--repair"][..],
        &["rebuild"],
        &["status"],
        &["enqueue", "--all"],
        &["worker", "--once"],
    ] {
        site.json(args).await;
    }
    for table in [
        "indexing_outbox",
        "note_index_state",
        "memory_note_chunks",
        "note_chunk_embeddings",
        "index_versions",
        "elf_migrations",
    ] {
        let refused = refusal(&mut db, &format!("select from {table}")).await;
        assert!(refused.contains("permission denied"), "{refused}");
    }
}

#[tokio::test]
async fn elf_works_as_a_role_of_its_own() {
    let (elf, application) = (Role::create("").await, Role::create("login").await);
    let site = Site::empty().await;
    run_role_sql(&site, &elf, "").await;
    let migrated = site.json(&["migrate"]).await;
    assert_eq!(migrated["notes"], serde_json::json!([]));
    assert_triggers_are_restricted(&mut site.connect().await).await;
    index_and_search(&site, &application).await;
}

/// As on some managed servers.
#[tokio::test]
async fn elf_works_as_a_role_of_its_own_where_no_role_can_be_made() {
    let (elf, application) = (Role::create("").await, Role::create("login").await);
    let site = Site::empty().await;
    let grant = format!("grant elf_outbox_writer to {};", elf.name);
    run_role_sql(&site, &elf, &grant).await;
    let done = site.elf(&["migrate"]).await.exits(0);
    assert!(
        done.stdout.contains("note: the trigger functions"),
        "{}",
        done.stdout
    );
    index_and_search(&site, &application).await;
    // The attacks fail without that role, too.
    let mut db = site.connect().await;
    let mut tx = db.begin().await.unwrap();
    execute(&mut tx, &bait(&application.name)).await;
    let refused = refusal(&mut tx, &attach("elf_note_inserted")).await;
    assert!(
        refused.contains("permission denied for function"),
        "{refused}"
    );
    tx.rollback().await.unwrap();
    // The administrator does it later.
    execute(&mut db, &grant).await;
    assert_eq!(
        site.json(&["migrate"]).await["notes"],
        serde_json::json!([])
    );
    assert_triggers_are_restricted(&mut db).await;
}

/// Under another name, because the tests share a server.
#[tokio::test]
async fn a_role_that_may_create_roles_makes_the_one_for_the_triggers() {
    let elf = Role::create("createrole").await;
    let writer = Role {
        name: format!("{}_writer", elf.name),
    };
    let site = Site::empty().await;
    run_role_sql(
        &site,
        &elf,
        &format!("grant elf_outbox_writer to {};", elf.name),
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    let script =
        include_str!("../../sql/trigger_role.sql").replace("elf_outbox_writer", &writer.name);
    let mut own = PgConnection::connect(&site.database.url_as(&elf))
        .await
        .unwrap();
    execute(&mut own, &script).await;
    let owners = all(
        &mut own,
        "select distinct proowner::regrole::text from pg_proc where prosecdef and proname like 'elf\\_note%'",
    )
    .await;
    assert_eq!(owners, std::slice::from_ref(&writer.name));
    // Running it twice changes nothing.
    execute(&mut own, &script).await;
    execute(&mut own, NOTE).await;
    // And ELF does not use a role that may do more.
    execute(
        &mut site.connect().await,
        &format!("alter role {} login", writer.name),
    )
    .await;
    let refused = refusal(&mut own, &script).await;
    assert!(
        refused.contains("may do more than write the outbox"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_role_that_policies_hide_notes_from_is_refused() {
    let elf = Role::create("").await;
    let site = Site::empty().await;
    run_role_sql(&site, &elf, "").await;
    site.elf(&["migrate"]).await.exits(0);
    let mut db = site.connect().await;
    execute(
        &mut db,
        "alter table memory_notes enable row level security, force row level security",
    )
    .await;
    for args in [&["worker", "--once"][..], &["migrate"], &["verify"]] {
        site.elf(args).await.exits(78).says(&["row-level security"]);
    }
}

/// A URL without the parameters that only the driver knows.
fn plain(url: &str) -> &str {
    url.split('?').next().unwrap()
}

/// Runs one of the server's own programs.
async fn client(folder: &str, program: &str, args: &[&str], input: &[u8]) -> Done {
    let mut command = Command::new(Path::new(folder).join(program));
    command.args(args);
    run(command, input).await
}

#[tokio::test]
async fn a_database_restored_without_owners_and_privileges_is_safe_after_migrate() {
    let role = Role::create("nologin").await;
    let site = Site::start().await;
    site.note("The lighthouse is green.").await;
    let (from, to) = (site.database.url(), TestDatabase::create().await);
    let target = to.url();
    let bin = "select setting from pg_config where name = 'BINDIR'";
    let bin = all(&mut site.connect().await, bin).await.remove(0);
    if !Path::new(&bin).join("pg_dump").exists() {
        return missing(
            "pg_dump",
            "privileges",
            "the server's pg_dump is not on this machine",
        );
    }
    let dumped = client(
        &bin,
        "pg_dump",
        &["--no-owner", "--no-privileges", plain(&from)],
        b"",
    )
    .await
    .exits(0);
    let load = ["-X", "--quiet", "--set=ON_ERROR_STOP=1", plain(&target)];
    client(&bin, "psql", &load, dumped.stdout.as_bytes())
        .await
        .exits(0);
    site.configure(&from, &to.url());
    let mut db = PgConnection::connect(&to.url()).await.unwrap();
    // Before the migration PUBLIC may attach the functions, and they do nothing.
    let mut tx = db.begin().await.unwrap();
    execute(&mut tx, &bait(&role.name)).await;
    execute(&mut tx, &attach("elf_note_inserted")).await;
    let refused = refusal(
        &mut tx,
        "insert into bait values (row('x')::pg_temp.bait_id)",
    )
    .await;
    assert!(
        refused.contains("fires on public.memory_notes only"),
        "{refused}"
    );
    tx.rollback().await.unwrap();

    assert_eq!(site.json(&["migrate"]).await["applied"], 0);
    assert_triggers_are_restricted(&mut db).await;
    execute(&mut db, NOTE).await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 2);
}
