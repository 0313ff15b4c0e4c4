//! The schema, as applications and operators use it.

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::support::DEADLINE;
use crate::support::database::{Role, TestDatabase, notes_table};
use crate::support::site::Site;

async fn execute(db: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

async fn count(db: &mut PgConnection, from: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
        .fetch_one(db)
        .await
        .unwrap()
}

/// The outbox as `UPSERT 2, DELETE 1`, and empty after that.
async fn take_outbox(db: &mut PgConnection) -> String {
    let rows: Vec<(String, i64)> = sqlx::query_as(
        "with taken as (delete from indexing_outbox returning op)
         select op, count(*) from taken group by op order by op desc",
    )
    .fetch_all(db)
    .await
    .unwrap();
    let rows = rows.iter().map(|(op, count)| format!("{op} {count}"));
    rows.collect::<Vec<_>>().join(", ")
}

#[tokio::test]
async fn a_database_without_the_schema_is_refused() {
    let site = Site::empty().await;
    for args in [
        &["worker", "--once"][..],
        &["status"],
        &["search", "word"],
        &["enqueue", "--all"],
        &["dead", "list"],
        &["import", "."],
    ] {
        site.elf(args).await.exits(78).says(&["run `elf migrate`"]);
    }
    assert_eq!(site.provider.requests(), 0);
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "insert into elf_migrations (version, description, success, checksum, execution_time)
         values (9999, 'from the future', true, 'x', 1);
         update elf_schema set oldest_program = 9999",
    )
    .await;
    for args in [&["worker", "--once"][..], &["status"], &["migrate"]] {
        site.elf(args)
            .await
            .exits(78)
            .says(&["9999", "newer", "upgrade elf"]);
    }
}

#[tokio::test]
async fn a_database_that_is_not_utf8_is_refused() {
    let options = "encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0";
    let site = Site::with_database(TestDatabase::create_with(options).await).await;
    let done = site.elf(&["migrate"]).await.exits(78);
    done.says(&["the encoding SQL_ASCII", "encoding 'UTF8'"]);
    let mut db = site.connect().await;
    assert_eq!(
        count(&mut db, "pg_tables where schemaname = 'public'").await,
        0
    );
}

#[tokio::test]
async fn a_notes_table_that_lacks_something_is_described_and_left_alone() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "create table memory_notes (note_id uuid, tenant_id text, text text, status int, expires_at date)",
    )
    .await;
    let done = site.elf(&["migrate"]).await.exits(78);
    done.says(&[
        "memory_notes",
        "project_id (text) is missing",
        "agent_id (text) is missing",
        "updated_at (timestamp with time zone) is missing",
        "status is integer, not text",
        "expires_at is date, not timestamp with time zone",
        "note_id is neither the primary key nor unique by itself",
    ]);
    let relations = "pg_class c join pg_namespace n on n.oid = c.relnamespace
                     where n.nspname = 'public' and c.relname <> 'memory_notes'";
    assert_eq!(count(&mut db, relations).await, 0, "something was made");
    let columns = "information_schema.columns where table_name = 'memory_notes'";
    assert_eq!(count(&mut db, columns).await, 5, "the table was changed");
}

#[tokio::test]
async fn a_key_that_two_notes_have_is_named_and_can_be_changed() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, notes_table()).await;
    execute(
        &mut db,
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text)
         values ('t', 'p', 'a', 's', 'n', 'twice', 'one'), ('t', 'p', 'a', 's', 'n', 'twice', 'two'),
                ('t', 'p', 'a', 's', 'n', null, 'x'), ('t', 'p', 'a', 's', 'n', null, 'y'),
                ('t', 'p', 'a', 's', 'n', '', 'x'), ('t', 'p', 'a', 's', 'n', '', 'y')",
    )
    .await;
    let done = site.elf(&["migrate"]).await.exits(78);
    done.says(&["the same key", "twice", "elf migrate"]);
    // Nothing is left that would refuse a write, and ELF has made no table yet.
    let indexes = "pg_indexes where indexname = 'memory_notes_key_idx'";
    assert_eq!(count(&mut db, indexes).await, 0);
    assert_eq!(
        count(&mut db, "pg_tables where tablename = 'indexing_outbox'").await,
        0
    );
    execute(
        &mut db,
        "update memory_notes set key = 'once' where text = 'two'",
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(count(&mut db, indexes).await, 1);
}

#[tokio::test]
async fn a_partitioned_notes_table_is_refused() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    let table = "create table memory_notes (note_id uuid primary key) partition by hash (note_id)";
    execute(&mut db, table).await;
    let done = site.elf(&["migrate"]).await.exits(78);
    done.says(&["the table public.memory_notes is partitioned"]);
}

/// Relations of an ordinary schema, partition children and inheritance included.
async fn relations(db: &mut PgConnection, schema: &str) -> i64 {
    count(
        db,
        &format!("pg_class where relnamespace = to_regnamespace('{schema}') and relkind = 'r'"),
    )
    .await
}

#[tokio::test]
async fn a_notes_table_that_triggers_cannot_follow_is_refused_and_left_alone() {
    let columns =
        "note_id uuid, tenant_id text, project_id text, agent_id text, scope text, type text,
                   key text, title text, text text, importance real, confidence real, status text,
                   updated_at timestamptz, expires_at timestamptz, source_ref jsonb";
    let cases = [
        (
            format!("create table t ({columns}); create view memory_notes as select * from t"),
            "a view",
        ),
        (
            format!(
                "create table t ({columns}); create materialized view memory_notes as select * from t"
            ),
            "a view",
        ),
        (
            format!("create unlogged table memory_notes ({columns}, primary key (note_id))"),
            "unlogged",
        ),
        (
            format!(
                "create table t ({columns}) partition by hash (note_id);
                 create table memory_notes partition of t (primary key (note_id))
                     for values with (modulus 1, remainder 0)"
            ),
            "a partition, or inherits",
        ),
        (
            format!(
                "create table t ({columns}); create table memory_notes (primary key (note_id)) inherits (t)"
            ),
            "a partition, or inherits",
        ),
    ];
    for (statements, word) in cases {
        let site = Site::empty().await;
        let mut db = site.connect().await;
        execute(&mut db, &statements).await;
        let before = relations(&mut db, "public").await;
        site.elf(&["migrate"])
            .await
            .exits(78)
            .says(&["public.memory_notes", word]);
        assert_eq!(relations(&mut db, "public").await, before, "{word}");
    }
}

/// ELF's own schema comes first in `search_path`, and the application's table is in the next one.
#[tokio::test]
async fn notes_in_a_later_schema_of_search_path_are_used_and_not_shadowed() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, OWN_TABLE).await;
    execute(&mut db, "create schema elf").await;
    let url = site.database.url();
    let separator = if url.contains('?') { '&' } else { '?' };
    site.configure(
        &url,
        &format!("{url}{separator}options=-c%20search_path%3Delf,public"),
    );
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(
        count(&mut db, "pg_class where relname = 'memory_notes'").await,
        1
    );
    assert_eq!(count(&mut db, "elf.indexing_outbox").await, 2);
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!((&worked["notes"], &worked["dead"]), (&2.into(), &0.into()));
    execute(
        &mut db,
        "update memory_notes set text = 'The lighthouse is red.' where scope = 'team'",
    )
    .await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    assert_eq!(site.json(&["migrate"]).await["applied"], 0);

    // A table that comes to stand before it later.
    execute(
        &mut db,
        "create table elf.memory_notes (like public.memory_notes including all)",
    )
    .await;
    let refused = site.elf(&["worker", "--once"]).await.exits(78);
    refused.says(&["public.memory_notes", "elf.memory_notes hides it"]);
}

#[tokio::test]
async fn notes_and_tables_that_search_path_does_not_find_are_named() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        &OWN_TABLE.replace("create table", "create schema app; create table"),
    )
    .await;
    let setup =
        "create extension vector; alter table memory_notes set schema app; create schema elf";
    execute(&mut db, setup).await;
    let url = site.database.url();
    let separator = if url.contains('?') { '&' } else { '?' };
    let mut dsn = url.clone();
    let mut use_path = |path: &str| {
        let new = format!("{url}{separator}options=-c%20search_path%3D{path}");
        site.configure(&dsn, &new);
        dsn = new;
    };
    use_path("elf,public");
    let refused = site.elf(&["migrate"]).await.exits(78);
    refused.says(&[
        "in the schema app",
        "empty one in elf",
        "set search_path = elf, app",
    ]);
    assert_eq!(relations(&mut db, "elf").await, 0, "something was made");
    use_path("nowhere");
    site.elf(&["migrate"])
        .await
        .exits(78)
        .says(&["search_path is nowhere", "grant usage, create"]);

    use_path("app,public");
    site.elf(&["migrate"]).await.exits(0);
    for args in [&["migrate"][..], &["worker", "--once"], &["status"]] {
        use_path("elf,public");
        site.elf(args)
            .await
            .exits(78)
            .says(&["the schema app has ELF's tables"]);
    }
    // Found, but new tables would stand elsewhere.
    execute(
        &mut db,
        "create table applied as select * from app.elf_migrations; delete from app.elf_migrations",
    )
    .await;
    use_path("elf,app,public");
    site.elf(&["migrate"])
        .await
        .exits(78)
        .says(&["new ones in elf"]);
    execute(
        &mut db,
        "insert into app.elf_migrations select * from applied",
    )
    .await;
    // A second ELF begins with notes of its own.
    execute(
        &mut db,
        "create table elf.memory_notes (like app.memory_notes including all)",
    )
    .await;
    use_path("elf,public");
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(count(&mut db, "elf.indexing_outbox").await, 0);
    // The extension must not lead to the tables of the other one.
    execute(&mut db, "alter extension vector set schema app").await;
    let refused = site.elf(&["status"]).await.exits(78);
    refused.says(&["pgvector is in the schema app", "move the extension"]);
}

#[tokio::test]
async fn notes_of_another_owner_are_refused_with_what_to_grant() {
    let role = Role::create("login").await;
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, OWN_TABLE).await;
    execute(
        &mut db,
        &format!(
            "create extension vector; grant usage, create on schema public to {0};
             grant all on memory_notes to {0}",
            role.name
        ),
    )
    .await;
    site.configure(&site.database.url(), &site.database.url_as(&role));
    let refused = site.elf(&["migrate"]).await.exits(78);
    refused.says(&[
        "public.memory_notes belongs to postgres",
        &format!("to {}", role.name),
    ]);
    assert_eq!(relations(&mut db, "public").await, 1);
}

#[tokio::test]
async fn a_role_that_may_not_make_the_extension_is_told_what_to_do() {
    let role = Role::create("login").await;
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        &format!("grant usage, create on schema public to {}", role.name),
    )
    .await;
    site.configure(&site.database.url(), &site.database.url_as(&role));
    let refused = site.elf(&["migrate"]).await.exits(78);
    refused.says(&[
        "may not create the extension pgvector",
        "create extension vector",
    ]);
    execute(&mut db, "create extension vector; update pg_extension set extversion = '0.3.2' where extname = 'vector'")
        .await;
    site.elf(&["migrate"])
        .await
        .exits(78)
        .says(&["pgvector 0.3.2", "0.4 or newer"]);
}

/// An application's own table: uuid ids, an enum, names of limited length, its own
/// defaults, nullable columns, and columns that ELF does not know.
const OWN_TABLE: &str = "
    create type scopes as enum ('team', 'private');
    create table memory_notes (
        id bigint generated always as identity primary key,
        note_id uuid not null unique default gen_random_uuid(),
        tenant_id uuid, project_id uuid, agent_id varchar(40), scope scopes, type varchar(20),
        key text, title text, text text, importance numeric, confidence double precision,
        status varchar(10) default 'active', updated_at timestamptz, expires_at timestamptz,
        source_ref jsonb, hits int not null default 0
    );
    insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text, updated_at)
    values ('11111111-1111-1111-1111-111111111111', gen_random_uuid(), 'alice', 'team', 'fact',
            'The lighthouse is green.', now()),
           ('22222222-2222-2222-2222-222222222222', gen_random_uuid(), 'bob', 'private', 'fact',
            'The harbour is blue.', now());
    create index on memory_notes (expires_at);";

#[tokio::test]
async fn a_notes_table_of_the_application_is_kept_and_indexed() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, OWN_TABLE).await;
    site.elf(&["migrate"]).await.exits(0);
    assert_eq!(count(&mut db, "memory_notes").await, 2);
    let own = "pg_indexes where indexname = 'memory_notes_expires_at_idx'";
    assert_eq!(count(&mut db, own).await, 1, "the application's index");
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!((&worked["notes"], &worked["dead"]), (&2.into(), &0.into()));
    let tenant = "11111111-1111-1111-1111-111111111111";
    let found = site.json(&["search", "harbour", "--tenant", tenant]).await;
    assert_eq!(found["items"][0]["text"], "The lighthouse is green.");
    assert_eq!(found["items"].as_array().unwrap().len(), 1);
    let enqueued = site.json(&["enqueue", "--where-scope", "private"]).await;
    assert_eq!(enqueued["enqueued"], 1);
    execute(&mut db, "delete from indexing_outbox").await;

    // A change of the application's own column costs no work; a change of the text does.
    execute(&mut db, "update memory_notes set hits = hits + 1").await;
    assert_eq!(take_outbox(&mut db).await, "");
    execute(&mut db, "delete from memory_notes where scope = 'team'").await;
    execute(
        &mut db,
        "update memory_notes set text = 'Red.' where scope = 'private'",
    )
    .await;
    site.json(&["worker", "--once"]).await;
    assert_eq!(site.json(&["status"]).await["collection"]["points"], 1);
}

/// An odd row that an application's table allows does not stop the others.
#[tokio::test]
async fn odd_rows_of_an_application_stop_no_other() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(&mut db, OWN_TABLE).await;
    site.elf(&["migrate"]).await.exits(0);
    execute(
        &mut db,
        "insert into memory_notes (text) values ('Nothing but a text.');
         insert into memory_notes (tenant_id) values (gen_random_uuid());
         insert into memory_notes (text, status) values ('No status.', null);
         insert into memory_notes (text, expires_at) values ('For ever.', 'infinity');
         insert into memory_notes (text, expires_at) values ('Never.', '-infinity');
         insert into memory_notes (text, updated_at) values ('At the end of time.', 'infinity');
         insert into memory_notes (text, updated_at) values ('Long ago.', '4000-01-01 BC');
         insert into memory_notes (text, expires_at) values ('Far ahead.', '290000-01-01');
         insert into memory_notes (text, importance, confidence) values ('Not a number.', 'NaN', 'NaN');
         insert into memory_notes (text, importance, confidence) values ('Huge.', 1e200, 'Infinity');",
    )
    .await;
    let worked = site.elf(&["worker", "--once", "--json"]).await.exits(0);
    let status = site.json(&["status"]).await;
    assert_eq!(status["outbox"]["dead"], 0, "{status}\n{}", worked.stderr);
    assert_eq!(status["outbox"]["failed"], 0, "{status}\n{}", worked.stderr);
    assert_eq!(
        status["outbox"]["pending"], 0,
        "{status}\n{}",
        worked.stderr
    );
    for text in [
        "The harbour is blue.",
        "Nothing but a text.",
        "For ever.",
        "At the end of time.",
        "Long ago.",
        "Far ahead.",
        "Not a number.",
        "Huge.",
    ] {
        let found = site.json(&["search", text, "-n", "1"]).await;
        assert_eq!(found["items"][0]["text"], text);
    }
    assert_eq!(status["collection"]["points"], 9, "{status}");
}

#[tokio::test]
async fn the_trigger_follows_every_kind_of_statement() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let steps = [
        (
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text)
             select 't', 'p', 'a', 's', 'n', i::text, 'note ' || i from generate_series(1, 500) i",
            "UPSERT 500",
        ),
        ("update memory_notes set text = text || '.'", "UPSERT 500"),
        ("update memory_notes set text = text", ""),
        ("update memory_notes set source_ref = '{\"a\": 1}'", ""),
        (
            "update memory_notes set source_ref = '{\"a\": 1, \"cuts\": [2]}' where key::int <= 2",
            "UPSERT 2",
        ),
        (
            "update memory_notes set source_ref = jsonb_set(source_ref, '{a}', '2')",
            "",
        ),
        (
            "update memory_notes set importance = 0.9 where key::int <= 3",
            "UPSERT 3",
        ),
        ("update memory_notes set text = '' where false", ""),
        (
            "update memory_notes set note_id = gen_random_uuid() where key::int = 1",
            "UPSERT 1, DELETE 1",
        ),
        (
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             select note_id, 't', 'p', 'a', 's', 'n', 'again' from memory_notes where key::int <= 2
             on conflict (note_id) do update set text = excluded.text",
            "UPSERT 2",
        ),
        (
            "merge into memory_notes n using (values ('3', 'merged'), ('4', null)) m (key, text) on n.key = m.key
             when matched and m.text is null then delete
             when matched then update set text = m.text",
            "UPSERT 1, DELETE 1",
        ),
        ("delete from memory_notes where key::int > 490", "DELETE 10"),
        (
            "with gone as (delete from memory_notes where key::int = 5 returning *)
             insert into memory_notes select * from gone",
            "UPSERT 1, DELETE 1",
        ),
        (
            "begin; update memory_notes set text = 'rolled back'; rollback",
            "",
        ),
    ];
    for (statement, expected) in steps {
        execute(&mut db, statement).await;
        assert_eq!(take_outbox(&mut db).await, expected, "{statement}");
    }
    // Whatever the search path of the application's session is.
    execute(
        &mut db,
        "set search_path = pg_catalog; update public.memory_notes set text = 'x' where key = '6'; reset search_path",
    )
    .await;
    assert_eq!(take_outbox(&mut db).await, "UPSERT 1");
}

/// A session keeps the plan of the trigger's statement, and made it for one note.
#[tokio::test]
async fn a_session_that_changed_one_note_may_change_many() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "alter table memory_notes disable trigger elf_note_replicated; set session_replication_role = replica;
         insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 's', 'n', 'note ' || n from generate_series(1, 20000) n;
         set session_replication_role = origin;
         update memory_notes set importance = 0.25 where text = 'note 1'",
    )
    .await;
    assert_eq!(take_outbox(&mut db).await, "UPSERT 1");
    // It takes half a second. If it compared each row with each other one, it would take a minute.
    execute(
        &mut db,
        "set statement_timeout = '15s'; update memory_notes set importance = 0.75",
    )
    .await;
    assert_eq!(take_outbox(&mut db).await, "UPSERT 20000");
}

/// The trigger functions run as their owner: a table of the same name in the
/// application's own temporary schema must not come in between.
#[tokio::test]
async fn an_application_cannot_put_its_own_table_in_the_place_of_the_outbox() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let role = format!("elf_test_{}", Uuid::new_v4().simple());
    let mut tx = db.begin().await.unwrap();
    execute(
        &mut tx,
        &format!(
            "create role {role};
             grant select, insert on memory_notes to {role};
             set local role {role};
             create temp table indexing_outbox (note_id uuid, op text, who text default current_user);
             create temp table note_index_state (note_id uuid);
             grant all on pg_temp.indexing_outbox, pg_temp.note_index_state to public;
             insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', 'one');
             reset role;
             set local search_path = public, pg_temp"
        ),
    )
    .await;
    assert_eq!(count(&mut tx, "pg_temp.indexing_outbox").await, 0);
    assert_eq!(take_outbox(&mut tx).await, "UPSERT 1");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn an_application_needs_rights_on_its_notes_alone() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let role = format!("elf_test_{}", Uuid::new_v4().simple());
    // Roles belong to the whole server: what is rolled back leaves none behind.
    let mut tx = db.begin().await.unwrap();
    execute(
        &mut tx,
        &format!(
            "create role {role};
             grant select, insert, update, delete on memory_notes to {role};
             set local role {role};
             insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', 'one'), ('t', 'p', 'a', 's', 'n', 'two');
             update memory_notes set text = 'three' where text = 'two';
             delete from memory_notes where text = 'one';
             reset role"
        ),
    )
    .await;
    assert_eq!(take_outbox(&mut tx).await, "UPSERT 3, DELETE 1");
    for table in ["indexing_outbox", "note_index_state", "memory_note_chunks"] {
        let statement = format!(
            "select has_table_privilege('{role}', '{table}', 'select, insert, update, delete')"
        );
        let may: bool = sqlx::query_scalar(AssertSqlSafe(statement))
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        assert!(!may, "{table}");
    }
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_transaction_notifies_once_unless_told_not_to() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let mut listener = PgListener::connect(&site.database.url()).await.unwrap();
    listener.listen("elf_outbox").await.unwrap();
    let insert = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                  values ('t', 'p', 'a', 's', 'n', 'x');";
    let cases = [
        (format!("begin; {insert} {insert} {insert} commit"), 1),
        (format!("set elf.notify = off; {insert}"), 0),
        (format!("set elf.notify = on; {insert}"), 1),
        (
            format!("begin; set local elf.notify = off; {insert} commit"),
            0,
        ),
        ("update memory_notes set text = 'y'".into(), 1),
        ("update memory_notes set text = 'y'".into(), 0),
        (
            "insert into indexing_outbox (note_id) values (gen_random_uuid())".into(),
            1,
        ),
    ];
    for (statements, expected) in cases {
        execute(&mut db, &statements).await;
        // Notifications come in order, so none is in flight after this one.
        execute(&mut db, "notify elf_outbox, 'end'").await;
        let mut notified = 0;
        loop {
            let next = tokio::time::timeout(DEADLINE, listener.recv()).await;
            let payload = next.expect("it comes").unwrap().payload().to_owned();
            if payload == "end" {
                break;
            }
            assert_eq!(payload, "");
            notified += 1;
        }
        assert_eq!(notified, expected, "{statements}");
    }
}

#[tokio::test]
async fn a_worker_that_is_not_notified_finds_work_by_polling() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "set elf.notify = off;
         insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         values ('t', 'p', 'a', 's', 'n', 'x')",
    )
    .await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while count(&mut db, "indexing_outbox").await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "{}", worker.log());
    }
    worker.stop().await.exits(0);
}

/// The types of the columns of vectors.
async fn vector_types(db: &mut PgConnection) -> Vec<String> {
    let types = "select format_type(atttypid, atttypmod) from pg_attribute
                  where attname = 'vec' and attrelid::regclass::text in
                        ('note_chunk_embeddings', 'note_embeddings') order by attrelid";
    sqlx::query_scalar(types).fetch_all(db).await.unwrap()
}

/// Verifies everything, vectors too, and finds nothing wrong.
async fn assert_exact(site: &Site) {
    let verified = site.json(&["verify", "--deep"]).await;
    for problem in ["missing", "stale", "orphaned"] {
        assert_eq!(verified[problem], 0, "{verified}");
    }
    assert_eq!(verified["inconsistent"], 0, "{verified}");
}

#[tokio::test]
async fn vectors_in_postgres_may_have_two_bytes_a_dimension() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let sentences = [
        "The lighthouse is green.",
        "The harbour is blue.",
        "A storm came at night.",
    ];
    for sentence in sentences {
        site.note(sentence).await;
    }
    site.note(&sentences.concat().repeat(8)).await;
    site.json(&["worker", "--once"]).await;

    let unset = std::fs::read_to_string(site.path("elf.toml")).unwrap();
    let with_type = |name: &str| unset.replace("dsn =", &format!("vector_type = {name:?}\ndsn ="));
    site.write("elf.toml", with_type("halfvec"));
    let refused = site.elf(&["worker", "--once"]).await.exits(78);
    refused.says(&["of the type vector", "\"halfvec\"", "`elf migrate`"]);
    let migrated = site.json(&["migrate"]).await;
    let note = "the vectors are of the type halfvec now";
    assert!(
        migrated["notes"].as_array().unwrap().contains(&note.into()),
        "{migrated}"
    );
    let again = site.json(&["migrate"]).await;
    assert!(
        !again["notes"].as_array().unwrap().contains(&note.into()),
        "{again}"
    );
    assert_eq!(vector_types(&mut db).await, ["halfvec", "halfvec"]);
    // Rounded vectors in Postgres, and the points of before.
    assert_exact(&site).await;

    // New notes, an edit, a known text, and labels of their own.
    site.note("The ferry leaves at noon.").await;
    execute(
        &mut db,
        "update memory_notes set text = text || ' It is old.' where text = 'The harbour is blue.';
         update memory_notes set scope = 'other' where text = 'The lighthouse is green.'",
    )
    .await;
    let before = site.provider.texts_seen().len();
    site.note("A storm came at night.").await;
    site.json(&["worker", "--once"]).await;
    assert_eq!(
        site.provider.texts_seen().len(),
        before + 2,
        "a known text was embedded again"
    );
    assert_exact(&site).await;

    site.json(&["rebuild"]).await;
    assert_exact(&site).await;
    let found = site.json(&["search", "ferry", "--tenant", "t"]).await;
    assert_eq!(found["items"][0]["text"], "The ferry leaves at noon.");

    // Without the setting they stay as they are.
    site.write("elf.toml", &unset);
    site.json(&["migrate"]).await;
    assert_eq!(vector_types(&mut db).await, ["halfvec", "halfvec"]);
    site.json(&["worker", "--once"]).await;

    site.write("elf.toml", with_type("vector"));
    let refused = site.elf(&["worker", "--once"]).await.exits(78);
    refused.says(&["of the type halfvec"]);
    site.json(&["migrate"]).await;
    assert_eq!(vector_types(&mut db).await, ["vector", "vector"]);
    site.json(&["worker", "--once"]).await;
    assert_exact(&site).await;
}
