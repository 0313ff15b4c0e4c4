//! ELF's statements use no function and no operator of another role, although it may create some in a schema where
//! Postgres looks for them. Of two, Postgres takes the one with the exact types: `array_position(uuid[], uuid)` before
//! the `array_position(anycompatiblearray, anycompatible)` of its own.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sqlx::{Connection, PgConnection};

use super::{all, attempt, execute};
use crate::support::site::Site;

/// The types of the columns, parameters and expressions of the statements, and of their literals.
const TYPES: &str = "text, varchar, name, int4, int8, float4, float8, numeric, bool, uuid, bytea, timestamptz, \
    interval, jsonb, oid, regclass, regconfig, vector, text[], varchar[], uuid[], bytea[], int4[], int8[], bool[], \
    vector[]";

/// Makes functions and operators for all of these types, as far as Postgres and pgvector have no exact ones. Not
/// `jsonb ->> jsonb`: for it, Postgres would read `'key'` as JSON, and fail before it runs a function.
const SPIES: &str = r"
do $$
declare
    types   constant text[] := string_to_array('TYPES', ', ');
    called  constant text[] := string_to_array('CALLED', ',');
    own     record;
    l       text;
    r       text;
    o       text;
begin
    foreach l in array types loop
        foreach r in array types loop
            execute format('create function spies.operand(%s, %s) returns boolean language sql as ''select true''', l, r);
            foreach o in array string_to_array('= <> < > <= >= + - * / || ~~* <-> <=>', ' ') loop
                if to_regoperator(format('%s(%s,%s)', o, l, r)) is null then
                    execute format('create operator spies.%s (leftarg = %s, rightarg = %s, function = spies.operand)',
                                   o, l, r);
                end if;
            end loop;
        end loop;
    end loop;
    for own in
        select p.proname as name, p.pronargs as args,
               coalesce(min(p.prorettype::regtype::text) filter (where t.typtype <> 'p'), 'text') as result
          from pg_proc p join pg_type t on t.oid = p.prorettype
         where p.pronamespace = 'pg_catalog'::regnamespace and p.proname = any (called) and p.pronargs in (1, 2)
         group by 1, 2
    loop
        foreach l in array types loop
            foreach r in array case own.args when 1 then array[''] else types end loop
                begin
                    execute format('create function spies.%I(%s) returns %s language sql as ''select null::%3$s''',
                                   own.name, concat_ws(', ', l, nullif(r, '')), own.result);
                exception when duplicate_function then null;
                end;
            end loop;
        end loop;
    end loop;
end $$;";

/// The statements that the compiler checked, and the types of their parameters.
fn statements() -> Vec<(String, String)> {
    let of_parameter = |of: &Value| match of {
        Value::String(name) => name.to_lowercase().replace("array", "[]"),
        custom => custom["Custom"]["name"].as_str().unwrap().to_owned(),
    };
    let read = |path: &Path| {
        let checked: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let types = checked["describe"]["parameters"]["Left"]
            .as_array()
            .unwrap();
        let types: Vec<String> = types.iter().map(of_parameter).collect();
        (
            checked["query"].as_str().unwrap().to_owned(),
            types.join(", "),
        )
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx");
    let files = fs::read_dir(folder).unwrap();
    let mut all: Vec<_> = files.map(|file| read(&file.unwrap().path())).collect();
    all.retain(|(statement, _)| !statement.starts_with("notify"));
    assert!(all.len() > 100);
    all
}

/// The words of `text` that stand before a parenthesis.
fn called(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    text.match_indices('(')
        .map(|(at, _)| &text[text[..at].trim_end_matches(is_word).len()..at])
        .filter(|name| !name.is_empty())
        .collect()
}

/// What `statements` would use of another role. A function with a body of SQL records in `pg_depend` what each call
/// and each operator of it means.
async fn used_of_others(
    db: &mut PgConnection,
    mut statements: Vec<(String, String)>,
) -> Vec<String> {
    execute(db, "create schema spies; set search_path = public, spies").await;
    let functions = "select prosrc, pg_get_function_identity_arguments(oid) from pg_proc
                      where pronamespace = 'public'::regnamespace and proname like 'elf\\_%'
                        and prolang = (select oid from pg_language where lanname = 'sql')";
    let functions: Vec<(String, String)> =
        sqlx::query_as(functions).fetch_all(&mut *db).await.unwrap();
    assert!(functions.len() > 5);
    statements.extend(functions);
    let mut names: Vec<&str> = statements.iter().flat_map(|(sql, _)| called(sql)).collect();
    names.sort_unstable();
    names.dedup();
    let spies = SPIES
        .replace("TYPES", TYPES)
        .replace("CALLED", &names.join(","));
    execute(db, &spies).await;
    let mut used = Vec::new();
    for (statement, types) in statements {
        let mut tx = db.begin().await.unwrap();
        // The end of a comment is that of its line.
        let probe = format!(
            "create function spies.probe({types}) returns void begin atomic {statement}\n; end"
        );
        if let Err(error) = attempt(&mut tx, &probe).await {
            used.push(format!("{error}: {}", beginning(&statement)));
        } else {
            let others = "select coalesce(p.oid::regprocedure::text, o.oid::regoperator::text)
                  from pg_depend d
                  left join pg_proc p on d.refclassid = 'pg_proc'::regclass::oid and p.oid = d.refobjid
                  left join pg_operator o on d.refclassid = 'pg_operator'::regclass::oid and o.oid = d.refobjid
                 where d.classid = 'pg_proc'::regclass::oid
                   and d.objid = (select oid from pg_proc where proname = 'probe')
                   and 'spies'::regnamespace::oid in (p.pronamespace, o.oprnamespace)";
            let others = all(&mut tx, others).await;
            used.extend(
                others
                    .iter()
                    .map(|other| format!("{other}: {}", beginning(&statement))),
            );
        }
        tx.rollback().await.unwrap();
    }
    used
}

fn beginning(statement: &str) -> String {
    statement.trim().chars().take(200).collect()
}

#[track_caller]
fn assert_none(used: &[String]) {
    assert!(used.is_empty(), "{} uses:\n{}", used.len(), used.join("\n"));
}

#[tokio::test]
async fn no_statement_uses_a_function_or_operator_of_another_role() {
    let site = Site::start().await;
    assert_none(&used_of_others(&mut site.connect().await, statements()).await);
}

/// Nor on a table of the application's, with other types of columns. What writes notes needs ELF's own table.
#[tokio::test]
async fn no_statement_on_an_applications_table_does() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    execute(
        &mut db,
        "create type scopes as enum ('team', 'private');
         create table memory_notes (
             note_id uuid primary key default gen_random_uuid(),
             tenant_id varchar, project_id uuid, agent_id varchar, scope scopes, type scopes,
             key varchar, title varchar, text varchar, importance numeric, confidence double precision,
             status varchar default 'active', updated_at timestamptz, expires_at timestamptz, source_ref jsonb)",
    )
    .await;
    site.elf(&["migrate"]).await.exits(0);
    let mut statements = statements();
    let writes = [
        "insert into memory_notes",
        "update memory_notes",
        "from memory_notes k",
    ];
    statements.retain(|(sql, _)| !writes.iter().any(|part| sql.contains(part)));
    assert_none(&used_of_others(&mut db, statements).await);
}
