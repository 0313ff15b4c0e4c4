//! Changes that arrive by logical replication.

use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};

use super::Case;
use crate::support::database::notes_table;
use crate::support::eventually;
use crate::support::own_postgres::OwnPostgres;
use crate::support::site::Site;

async fn execute(db: &PgPool, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

async fn count(db: &PgPool, from: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
        .fetch_one(db)
        .await
        .unwrap()
}

fn url(own: &OwnPostgres, database: &str) -> String {
    let options = own.options().database(database);
    options.to_url_lossy().to_string()
}

/// Makes a database and connects to it.
async fn database(own: &OwnPostgres, name: &str) -> PgPool {
    let server = PgPool::connect_with(own.options()).await.unwrap();
    execute(&server, &format!("create database {name}")).await;
    PgPool::connect(&url(own, name)).await.unwrap()
}

pub async fn logical_replication(case: Case) {
    let Some(own) = OwnPostgres::start_with("logical_replication", "-c wal_level=logical") else {
        return;
    };
    let (a, b) = (database(&own, "a").await, database(&own, "b").await);
    let site = Site::empty().await;
    site.configure(&site.database.url(), &url(&own, "b"));
    site.elf(&["migrate"]).await.exits(0);

    let file = case.text("setup.sql");
    let (_, changes) = file.split_once("while elf worker runs on B:\n").unwrap();
    execute(&a, notes_table()).await;
    execute(
        &a,
        "create publication p for table memory_notes;
         insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text)
         values ('acme', 'p', 'a', 'shared', 'note', 'first', 'It was there before the subscription.')",
    )
    .await;
    // In a statement of its own, because both databases are of one server: to make a slot waits for the
    // transaction that asks for it.
    execute(
        &a,
        "select pg_create_logical_replication_slot('s', 'pgoutput')",
    )
    .await;
    let options = own.options();
    let subscription = format!(
        "create subscription s connection 'host={} port={} user=postgres dbname=a' publication p
         with (copy_data = true, create_slot = false)",
        options.get_host(),
        options.get_port()
    );
    execute(&b, &subscription).await;

    let worker = site.worker();
    worker.says("worker started").await;
    execute(&a, changes).await;
    eventually(async || {
        let notes = count(&b, "memory_notes").await;
        notes == 10 && count(&b, "indexing_outbox").await == 0
    })
    .await;
    worker.stop().await.exits(0);

    let status = site.json(&["status"]).await;
    assert_eq!(status["collection"]["points"], 10, "{status}");
    for (query, key) in [
        ("a broken sail", "g1"),
        ("before the subscription", "first"),
    ] {
        let found = site
            .json(&["search", query, "--tenant", "acme", "-n", "1"])
            .await;
        assert_eq!(found["items"][0]["key"], key, "{found}");
    }
    // Postgres follows no foreign key when it applies a deletion.
    let left = "memory_note_chunks c where not exists (select from memory_notes n where n.note_id = c.note_id)";
    eventually(async || count(&b, left).await == 0).await;
    let verified = site.json(&["verify", "--deep"]).await;
    for problem in ["missing", "stale", "orphaned", "inconsistent"] {
        assert_eq!(verified[problem], 0, "{verified}");
    }
    // Labels that nothing shows cost no work, as with a trigger of a statement.
    execute(
        &a,
        "update memory_notes set source_ref = '{\"a\": 1}' where key = 'g3'",
    )
    .await;
    execute(
        &a,
        "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text) \
                     values ('acme', 'p', 'a', 'shared', 'note', 'last', 'The last one.')",
    )
    .await;
    eventually(async || count(&b, "memory_notes where key = 'last'").await == 1).await;
    assert_eq!(count(&b, "indexing_outbox").await, 1);
    execute(&b, "alter subscription s disable").await;
    execute(&b, "drop subscription s").await;
}
