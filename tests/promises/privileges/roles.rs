//! ELF works as a role of its own, and a restored database is as safe as before.

use std::path::Path;

use sqlx::{Connection, PgConnection};
use tokio::process::Command;

use super::{NOTE, all, assert_triggers_are_restricted, attach, bait, execute, refusal};
use crate::support::components::missing;
use crate::support::database::{Role, TestDatabase};
use crate::support::site::{Done, Site, run};

/// Runs `deploy/postgres/role.sql` as an administrator does, without the part `without`,
/// which not every server allows.
async fn run_role_sql(site: &Site, elf: &Role, without: &str) {
    let script = include_str!("../../../deploy/postgres/role.sql")
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
        include_str!("../../../sql/trigger_role.sql").replace("elf_outbox_writer", &writer.name);
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

/// The folder of the server's own programs; `None` if this machine lacks them.
async fn server_programs(db: &mut PgConnection) -> Option<String> {
    let bin = "select setting from pg_config where name = 'BINDIR'";
    let bin = all(db, bin).await.remove(0);
    if !Path::new(&bin).join("pg_dump").exists() {
        let why = "the server's pg_dump is not on this machine";
        missing("pg_dump", "privileges", why);
        return None;
    }
    Some(bin)
}

#[tokio::test]
async fn a_database_restored_without_owners_and_privileges_is_safe_after_migrate() {
    let role = Role::create("nologin").await;
    let site = Site::start().await;
    site.note("The lighthouse is green.").await;
    let (from, to) = (site.database.url(), TestDatabase::create().await);
    let target = to.url();
    let Some(bin) = server_programs(&mut site.connect().await).await else {
        return;
    };
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
    // Before `elf migrate` PUBLIC may attach the functions, and they do nothing.
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

/// Default privileges for roles that may use any table of the schema, as some services and teams have them.
fn default_privileges(role: &Role) -> String {
    format!(
        "alter default privileges in schema public grant select, insert, update, delete on tables to public, {0};
         alter default privileges in schema public grant usage, update on sequences to public, {0};",
        role.name
    )
}

/// The tables and sequences on which `role` has a right, without the application's.
async fn open_to(db: &mut PgConnection, role: &str) -> Vec<String> {
    let is_table =
        "c.relkind <> 'S' and has_table_privilege(r.oid, c.oid, 'select, insert, update, delete')";
    let is_sequence =
        "c.relkind = 'S' and has_sequence_privilege(r.oid, c.oid, 'usage, select, update')";
    let query = format!(
        "select c.relname::text from pg_class c, (select '{role}'::regrole::oid as oid) r
          where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v', 'S')
            and c.relname <> 'memory_notes' and ({is_table} or {is_sequence})
          order by 1"
    );
    all(db, &query).await
}

const PRIVATE: [&str; 4] = [
    "elf_api_keys",
    "memory_hits",
    "search_trace_items",
    "search_traces",
];

#[tokio::test]
async fn default_privileges_open_no_table_of_elf() {
    let (other, reader) = (Role::create("nologin").await, Role::create("nologin").await);
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, &default_privileges(&other)).await;
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(open_to(&mut db, &reader.name).await, Vec::<String>::new());
    let named = open_to(&mut db, &other.name).await;
    assert!(
        PRIVATE.iter().all(|name| !named.contains(&(*name).into())),
        "{named:?}"
    );
    // What an administrator granted to a role stays.
    let granted = ["elf_api_keys", "elf_lease_token", "memory_note_chunks"];
    for name in granted {
        execute(
            &mut db,
            &format!("grant select on {name} to {}", reader.name),
        )
        .await;
    }
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(open_to(&mut db, &reader.name).await, granted);
    assert_eq!(open_to(&mut db, &other.name).await, named);
}

#[tokio::test]
async fn a_database_restored_under_default_privileges_is_closed_by_migrate() {
    let (other, any) = (Role::create("nologin").await, Role::create("nologin").await);
    let site = Site::start().await;
    let mut db = site.connect().await;
    execute(&mut db, &default_privileges(&other)).await;
    let Some(bin) = server_programs(&mut db).await else {
        return;
    };
    let dump = site.folder.path().join("elf.dump");
    let (dump, url) = (dump.to_str().unwrap(), site.database.url());
    let save = ["-Fc", "-f", dump, plain(&url)];
    client(&bin, "pg_dump", &save, b"").await.exits(0);
    let dbname = format!("--dbname={}", plain(&url));
    let load = [
        "--clean",
        "--if-exists",
        "--single-transaction",
        &dbname,
        dump,
    ];
    client(&bin, "pg_restore", &load, b"").await.exits(0);
    let key = format!(
        "set local role {};
         insert into elf_api_keys (name, secret_sha256, tenant_id, can_write)
         values ('mine', sha256('secret'), 'acme', true)",
        any.name
    );
    let mut tx = db.begin().await.unwrap();
    execute(&mut tx, &key).await;
    tx.rollback().await.unwrap();

    site.elf(&["migrate"]).await.exits(0);
    let refused = refusal(&mut db, &key).await;
    assert!(refused.contains("permission denied"), "{refused}");
    assert_eq!(open_to(&mut db, &any.name).await, Vec::<String>::new());
    let named = open_to(&mut db, &other.name).await;
    assert!(
        PRIVATE.iter().all(|name| !named.contains(&(*name).into())),
        "{named:?}"
    );
}
