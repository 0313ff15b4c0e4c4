//! `docs/reference/sql.md`

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::support::database::Role;
use crate::support::docs;
use crate::support::site::Site;

const PAGE: &str = "docs/reference/sql.md";

/// The cells of a row of a table, without the backticks.
fn cells(line: &str) -> Vec<String> {
    let line = line.trim_start_matches("| ").trim_end_matches(" |");
    line.split(" | ")
        .map(|cell| cell.replace('`', ""))
        .collect()
}

/// The columns that the page has for a table: name, types and default.
fn columns_of_page(table: &str) -> Vec<(String, String, String)> {
    let page = docs::page(PAGE);
    let section = page.split(&format!("\n## {table}\n")).nth(1).unwrap();
    section
        .lines()
        .skip_while(|line| !line.starts_with("| column "))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells = cells(line);
            (cells[0].clone(), cells[1].clone(), cells[2].clone())
        })
        .collect()
}

/// The columns of a table of the database, as the page writes them.
async fn columns(db: &mut PgConnection, table: &str) -> Vec<(String, String, String)> {
    let columns: Vec<(String, String, Option<String>, bool)> = sqlx::query_as(
        "select column_name::text, data_type::text, column_default::text, is_nullable = 'YES'
           from information_schema.columns where table_name = $1 order by ordinal_position",
    )
    .bind(table)
    .fetch_all(db)
    .await
    .unwrap();
    let written = |(name, kind, default, is_nullable): (String, String, Option<String>, bool)| {
        let kind = kind.replace("timestamp with time zone", "timestamptz");
        let default = match default.as_deref() {
            None if is_nullable => "null",
            None => "required",
            Some("gen_random_uuid()") => "random",
            Some("now()") => "now",
            Some(value) => value.split("::").next().unwrap().trim_matches('\''),
        };
        (name, kind, default.to_owned())
    };
    columns.into_iter().map(written).collect()
}

#[tokio::test]
async fn the_page_has_every_column_that_an_application_writes() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    for table in ["memory_notes", "indexing_outbox"] {
        let first_type = |(name, types, default): (String, String, String)| {
            (name, types.split(", ").next().unwrap().to_owned(), default)
        };
        let page: Vec<_> = columns_of_page(table).into_iter().map(first_type).collect();
        assert_eq!(page, columns(&mut db, table).await, "{table}");
    }
}

#[tokio::test]
async fn a_notes_table_of_the_other_types_of_the_page_is_taken() {
    let site = Site::empty().await;
    let mut db = site.connect().await;
    let columns = columns_of_page("memory_notes").into_iter();
    let columns =
        columns.filter(|(name, _, _)| !["created_at", "embedding_version"].contains(&&**name));
    let columns: Vec<String> = columns
        .map(|(name, types, _)| {
            let last = types.split(", ").last().unwrap();
            format!("{name} {}", if last == "enum" { "mood" } else { last })
        })
        .collect();
    let table = format!(
        "create type mood as enum ('good', 'bad'); create table memory_notes ({}, unique (note_id))",
        columns.join(", ")
    );
    let made = sqlx::raw_sql(AssertSqlSafe(table)).execute(&mut db).await;
    made.unwrap();
    site.elf(&["migrate"]).await.exits(0);
    site.elf(&["worker", "--once"]).await.exits(0);
}

#[tokio::test]
async fn the_page_names_every_table_and_sequence_of_elf() {
    let site = Site::start().await;
    let names: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class
          where relnamespace = current_schema()::regnamespace and relkind in ('r', 'S')",
    )
    .fetch_all(&mut site.connect().await)
    .await
    .unwrap();
    let page = docs::page(PAGE);
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "{name} is not there");
    }
}

#[tokio::test]
async fn the_statements_of_the_page_work() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    for block in docs::blocks(PAGE, "sql") {
        let done = sqlx::raw_sql(AssertSqlSafe(block.clone()))
            .execute(&mut db)
            .await;
        assert!(done.is_ok(), "{block}\n{done:?}");
    }
}

#[tokio::test]
async fn a_role_with_the_rights_of_the_page_indexes_and_repairs() {
    let site = Site::start().await;
    let worker = Role::create("login").await;
    let mut db = site.connect().await;
    let grants = format!(
        "grant usage on schema public to {0};
         grant select, insert, update, delete on all tables in schema public to {0};
         grant select, usage, update on all sequences in schema public to {0};
         revoke insert, delete on memory_notes from {0}",
        worker.name
    );
    let granted = sqlx::raw_sql(AssertSqlSafe(grants)).execute(&mut db).await;
    granted.unwrap();
    site.note("The lighthouse is green.").await;
    site.configure(&site.database.url(), &site.database.url_as(&worker));
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    for args in [&["verify", "--repair"][..], &["rebuild"], &["status"]] {
        site.json(args).await;
    }
    db.close().await.unwrap();
}
