//! A role of the same database gains nothing from ELF, and ELF needs no more than a role of
//! its own.

mod roles;
mod statements;
mod triggers;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

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
             tenant_id text, project_id text, agent_id text, scope text, type text, key text, title text,
             importance real, confidence real, updated_at timestamptz, source_ref jsonb);"
    )
}

fn attach(function: &str) -> String {
    let event = match function {
        "elf_note_inserted" => "insert on bait referencing new table as new_rows",
        "elf_note_updated" => {
            "update on bait referencing old table as old_rows new table as new_rows"
        }
        "elf_note_deleted" => "delete on bait referencing old table as old_rows",
        "elf_note_replicated" => {
            return format!(
                "create trigger t after insert on bait for each row execute function {function}();
                 alter table bait enable always trigger t;"
            );
        }
        _ => "truncate on bait",
    };
    format!("create trigger t after {event} for each statement execute function {function}();")
}

/// The owner of the trigger functions can write the outbox and nothing else.
async fn assert_triggers_are_restricted(db: &mut PgConnection) {
    let owners = all(
        db,
        "select proowner::regrole || case when prosecdef then '' else ' as the caller' end
                || case when has_function_privilege('public', oid, 'execute') then ' for all' else '' end
           from pg_proc where proname in ('elf_note_inserted', 'elf_note_updated',
                                          'elf_note_deleted', 'elf_notes_truncated',
                                          'elf_note_replicated')",
    )
    .await;
    assert_eq!(owners, ["elf_outbox_writer"; 5]);
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
