//! Settings of a role, and extensions, as people have them.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::Case;
use crate::support::database::{Role, TestDatabase, notes_table};
use crate::support::site::Site;

async fn execute(db: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}

/// A site whose ELF has a role of its own, which owns the database.
async fn site_of(role: &Role, extension: &str) -> Site {
    let database = TestDatabase::create().await;
    let mut db = PgConnection::connect(&database.url()).await.unwrap();
    execute(&mut db, extension).await;
    let name: String = sqlx::query_scalar("select current_database()")
        .fetch_one(&mut db)
        .await
        .unwrap();
    execute(
        &mut db,
        &format!("alter database {name} owner to {}", role.name),
    )
    .await;
    let site = Site::with_database(database).await;
    site.configure(&site.database.url(), &site.database.url_as(role));
    site
}

pub async fn statement_timeout(case: Case) {
    let file = case.text("setup.sql");
    let (_, insert) = file.split_once("then\n").unwrap();
    let (insert, timeout) = insert.split_once("reset role;\n").unwrap();
    let role = Role::create("login").await;
    let site = site_of(&role, "create extension vector").await;
    let mut owner = PgConnection::connect(&site.database.url_as(&role))
        .await
        .unwrap();
    execute(&mut owner, notes_table()).await;
    execute(&mut owner, insert).await;
    // Whatever may end a session, a transaction or a statement, and what else an administrator sets.
    let (timeout, _) = timeout.split_once('\n').unwrap();
    let mut settings = timeout.replace("ownr", &role.name);
    let since_17: bool = sqlx::query_scalar(
        "select exists (select from pg_settings where name = 'transaction_timeout')",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    for setting in [
        "lock_timeout = '500ms'",
        "idle_session_timeout = '500ms'",
        "idle_in_transaction_session_timeout = '500ms'",
        "default_transaction_isolation = 'serializable'",
        "transaction_timeout = '500ms'",
    ] {
        if since_17 || !setting.starts_with("transaction_timeout") {
            settings += &format!("alter role {} set {setting};", role.name);
        }
    }
    execute(&mut site.connect().await, &settings).await;
    // 200,000 notes need more than half a second.
    site.elf(&["migrate"]).await.exits(0);
    let enqueued: i64 = sqlx::query_scalar("select count(*) from indexing_outbox")
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap();
    assert_eq!(enqueued, 200_000);
    execute(
        &mut site.connect().await,
        "delete from memory_notes
          where note_id not in (select note_id from memory_notes limit 20);
         truncate indexing_outbox;
         insert into indexing_outbox (note_id) select note_id from memory_notes",
    )
    .await;
    let worked = site.json(&["worker", "--once", "--migrate"]).await;
    assert_eq!((&worked["notes"], &worked["dead"]), (&20.into(), &0.into()));
}

pub async fn vector_in_another_schema(case: Case) {
    let file = case.text("setup.sql");
    let (_, setup) = file.split_once("\\c d\n").unwrap();
    let role = Role::create("login").await;
    let site = site_of(&role, setup).await;
    site.elf(&["migrate"]).await.exits(0);
    site.note("The lighthouse is green.").await;
    let worked = site.json(&["worker", "--once"]).await;
    assert_eq!(worked["notes"], 1);
    let found = site.json(&["search", "lighthouse", "--tenant", "t"]).await;
    assert_eq!(found["items"][0]["text"], "The lighthouse is green.");
    let verified = site.json(&["verify", "--deep"]).await;
    assert_eq!(verified["inconsistent"], 0, "{verified}");

    // The message names the schema if the role may not use it.
    execute(
        &mut site.connect().await,
        "revoke usage on schema extensions from public",
    )
    .await;
    let refused = site.elf(&["migrate"]).await.exits(78);
    refused.says(&[
        "the schema extensions",
        "search_path",
        &format!("to {}", role.name),
    ]);
}
