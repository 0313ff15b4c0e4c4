//! A row of which Postgres has lost a part on its disk.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::Case;
use crate::support::components::missing;
use crate::support::database::TestDatabase;
use crate::support::harness::sentences;
use crate::support::own_postgres::OwnPostgres;
use crate::support::site::Site;

async fn execute(db: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

/// Removes a part of one value of a table from the disk: `of` names the column and the row.
async fn lose(db: &mut PgConnection, table: &str, column: &str, row: &str) {
    let kill: String = sqlx::query_scalar(AssertSqlSafe(format!(
        "select format('select heap_force_kill(%L::regclass, array[(select ctid from pg_toast.pg_toast_%s where chunk_id = %s and chunk_seq = 0)])',
                       'pg_toast.pg_toast_'||'{table}'::regclass::oid, '{table}'::regclass::oid,
                       pg_column_toast_chunk_id({column}))
           from {table} where {row}"
    )))
    .fetch_one(&mut *db)
    .await
    .unwrap();
    execute(db, &kill).await;
}

async fn note_of(db: &mut PgConnection, key: &str) -> Uuid {
    sqlx::query_scalar("select note_id from memory_notes where key = $1")
        .bind(key)
        .fetch_one(db)
        .await
        .unwrap()
}

pub async fn unreadable_row(case: Case) {
    let site = Site::start().await;
    let mut db = site.connect().await;
    if let Err(error) = sqlx::raw_sql("create extension pg_surgery")
        .execute(&mut db)
        .await
    {
        return missing(
            "pg_surgery",
            "unreadable_row",
            &format!("the server lacks it: {error}"),
        );
    }
    execute(
        &mut db,
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text)
         select 'acme', 'p', 'a', 'shared', 'note', 'bad',
                string_agg(md5(i::text) || ' ' || md5('x' || i), ' ') from generate_series(1, 1500) i",
    )
    .await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    let bad = note_of(&mut db, "bad").await.to_string();
    // The file writes its damage with \gexec of psql, and then the notes that come after it.
    let file = case.text("setup.sql");
    let (_, rest) = file.split_once("\nselect format(").unwrap();
    let (statement, after) = rest.split_once(" \\gexec\n").unwrap();
    let kill: String = sqlx::query_scalar(AssertSqlSafe(format!("select format({statement}")))
        .fetch_one(&mut db)
        .await
        .unwrap();
    execute(&mut db, &kill).await;
    execute(&mut db, after).await;

    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(
        (&worked["notes"], &worked["dead"]),
        (&50.into(), &1.into()),
        "{worked}"
    );
    let shown = site.json(&["dead", "show", &bad]).await.to_string();
    assert!(shown.contains("Postgres cannot read it"), "{shown}");
    assert_eq!(
        site.json(&["dead", "list"]).await["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let status = site.json(&["status"]).await;
    assert_eq!(status["outbox"]["pending"], 0, "{status}");

    // It names the note, and finds what is wrong with another one.
    execute(&mut db, "delete from note_embeddings where note_id = (select note_id from memory_notes where key = 'g7')").await;
    let g7 = note_of(&mut db, "g7").await.to_string();
    let verified = site.elf(&["verify", "--deep", "--verbose"]).await.exits(3);
    verified.says(&[&bad, "cannot read it", &g7, "no pooled vector"]);
    let repaired = site.elf(&["verify", "--repair"]).await;
    assert_eq!(repaired.code, Some(3), "{}", repaired.stderr);
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(
        (&worked["notes"], &worked["dead"]),
        (&1.into(), &0.into()),
        "{worked}"
    );

    // A search for words of the bad note answers with others.
    let word: String = sqlx::query_scalar("select md5('1')")
        .fetch_one(&mut db)
        .await
        .unwrap();
    let query = format!("gannet colony {word}");
    let found = site
        .json(&["search", &query, "--tenant", "acme", "-n", "60"])
        .await;
    let items = found["items"].as_array().unwrap();
    assert!(!items.is_empty(), "{found}");
    assert!(
        items.iter().all(|item| item["note_id"] != bad.as_str()),
        "{found}"
    );

    let rebuilt = site.elf(&["rebuild", "--json"]).await.exits(0);
    assert_eq!(rebuilt.json()["missing_vectors"], 0, "{}", rebuilt.stdout);

    // An update of its text would read the old one.
    execute(&mut db, "delete from memory_notes where key = 'bad'").await;
    assert_eq!(site.json(&["worker", "--once"]).await["notes"], 1);
    site.elf(&["verify", "--deep"]).await.exits(0);
}

/// Chunks follow from the notes: what is lost of them is made again.
#[tokio::test]
async fn an_unreadable_chunk_is_made_again() {
    let site = Site::start().await;
    // Postgres stores only a row of more than 2 kB in parts.
    site.configure("max_tokens = 32", "max_tokens = 2000");
    let mut db = site.connect().await;
    if let Err(error) = sqlx::raw_sql("create extension pg_surgery")
        .execute(&mut db)
        .await
    {
        return missing(
            "pg_surgery",
            "unreadable_row",
            &format!("the server lacks it: {error}"),
        );
    }
    execute(
        &mut db,
        "alter table memory_note_chunks alter text set storage external",
    )
    .await;
    for subject in ["tides", "gannets", "sails"] {
        site.note(&sentences(60, subject)).await;
    }
    site.json(&["worker", "--once"]).await;
    let chunk = "chunk_id = (select chunk_id from memory_note_chunks
                              where pg_column_toast_chunk_id(text) is not null order by chunk_id limit 1)";
    for mend in [&["rebuild"][..], &["verify", "--deep", "--repair"]] {
        lose(&mut db, "memory_note_chunks", "text", chunk).await;
        site.elf(&["search", "tides gannets sails", "--tenant", "t"])
            .await
            .exits(0);
        let verified = site.elf(&["verify", "--deep", "--verbose"]).await.exits(3);
        verified.says(&["cannot read it"]);
        site.elf(mend).await;
        let worked = site.json(&["worker", "--once"]).await;
        assert_eq!(
            (&worked["notes"], &worked["dead"]),
            (&1.into(), &0.into()),
            "{mend:?}: {worked}"
        );
        site.elf(&["verify", "--deep"]).await.exits(0);
    }
}

/// Even how long its notes are cannot be read.
#[tokio::test]
async fn a_lost_page_holds_up_no_note_of_another_page() {
    let test = "a_lost_page_holds_up_no_note_of_another_page";
    let Some(server) = OwnPostgres::start(test) else {
        return;
    };
    let database = TestDatabase::create_on(server.options(), "").await;
    let site = Site::with_database(database).await;
    site.elf(&["migrate"]).await.exits(0);
    let mut db = site.connect().await;
    execute(
        &mut db,
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
         select 't', 'p', 'a', 'shared', 'note', repeat('word ' || i || ' ', 100)
           from generate_series(1, 60) i",
    )
    .await;
    let (file, lost): (String, i64) = sqlx::query_as(
        "select pg_relation_filepath('memory_notes'),
                (select count(*) from memory_notes where ctid < '(1,0)')",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    site.elf(&["worker", "--once"]).await.exits(0);
    execute(
        &mut db,
        "insert into indexing_outbox (note_id) select note_id from memory_notes",
    )
    .await;
    drop(db);
    server.damage(&file, |bytes| bytes[..64].fill(0xff));
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(worked["dead"], lost, "{worked}");
    assert_eq!(worked["notes"], 60 - lost, "{worked}");
}
