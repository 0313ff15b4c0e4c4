//! The cost of a batch's statements follows the size of the batch, not the size of the tables
//! or their statistics in Postgres.

use elf::note::TextHash;
use elf::store::Store;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use crate::support::harness::Harness;

/// The default of `worker.batch_notes`.
const BATCH: usize = 256;

/// Many more than a batch reads or writes in a statement.
const NOTES: usize = 20_000;

/// Row versions and pages that a statement may touch for each note of its batch. The
/// claim, which writes most, takes 9 and 21.
const ROWS_A_NOTE: f64 = 16.0;
const PAGES_A_NOTE: f64 = 32.0;

const TABLES: [&str; 6] = [
    "memory_notes",
    "memory_note_chunks",
    "note_chunk_embeddings",
    "note_embeddings",
    "indexing_outbox",
    "note_index_state",
];

/// Statements that run in a transaction of `Store::begin`: without
/// sequential scans, which are cheap where notes are short, but read them all.
const IN_TRANSACTION: [&str; 2] = ["load_notes", "lock_notes"];

/// Statements that read one page of many, with the settings of `Store::read_page`.
const PAGES: [&str; 3] = ["chunk_page", "live_texts", "note_problems"];
const PAGE_SETTINGS: &str = "set enable_seqscan = off; set enable_bitmapscan = off;
    set enable_hashjoin = off; set enable_mergejoin = off; set enable_sort = off";

/// The state of the tables before the notes were inserted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    /// Nothing.
    NeverAnalysed,
    /// A vacuum of the empty tables.
    VacuumedWhileEmpty,
    /// Rows were inserted and deleted, and a vacuum could not truncate their pages: now Postgres
    /// believes that those pages, and all that follow them, are empty.
    BelievedEmpty,
    /// Nothing before; a vacuum after the notes.
    VacuumedAfter,
}

#[tokio::test]
async fn never_analysed_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::NeverAnalysed).await;
}

#[tokio::test]
async fn vacuumed_while_empty_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::VacuumedWhileEmpty).await;
}

#[tokio::test]
async fn believed_empty_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::BelievedEmpty).await;
}

#[tokio::test]
async fn vacuumed_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::VacuumedAfter).await;
}

async fn a_batch_costs_no_more_than_its_notes(before: Before) {
    let h = Harness::start().await;
    let batch = Batch::of(&h, before).await;
    let mut connection = h.pool.acquire().await.unwrap();
    let mut dear = Vec::new();
    for (name, query, arguments) in batch.statements() {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            if IN_TRANSACTION.contains(&name) && mode == "force_custom_plan" {
                continue;
            }
            let settings = if PAGES.contains(&name) {
                PAGE_SETTINGS
            } else {
                "reset all"
            };
            let set = sqlx::raw_sql(settings).execute(&mut *connection);
            set.await.unwrap();
            let cost = explained(&mut connection, mode, query, &arguments).await;
            let notes = BATCH as f64;
            if cost.rows > ROWS_A_NOTE * notes || cost.pages > PAGES_A_NOTE * notes {
                dear.push(format!("{name}, {mode}: {cost:?}"));
            }
        }
    }
    assert!(dear.is_empty(), "{before:?}:\n{}", dear.join("\n"));
}

/// 10,000 notes say the same, and Postgres knows it: one row is read for each hash that is
/// looked up, and none of the others where a text is new.
#[tokio::test]
async fn a_text_that_is_in_ten_thousand_notes_is_looked_up_in_one_row() {
    let h = Harness::start().await;
    h.stock_notes(&vec!["ok, thanks".to_owned(); 10_000]).await;
    sqlx::raw_sql("vacuum analyze")
        .execute(&h.pool)
        .await
        .unwrap();
    let known = TextHash::of("ok, thanks");
    let new = (1..BATCH).map(|i| TextHash::of(&format!("a new text {i}")));
    let hashes: Vec<TextHash> = std::iter::once(known).chain(new).collect();
    let version = &h.context.version.name;
    let found = h
        .context
        .stores
        .store
        .known_vectors(version, &hashes)
        .await
        .unwrap();
    assert_eq!(found.into_keys().collect::<Vec<_>>(), [known]);

    let hex = |hash: &TextHash| -> String { hash.0.iter().map(|b| format!("{b:02x}")).collect() };
    let literals: Vec<String> = hashes.iter().map(|h| format!("'\\x{}'", hex(h))).collect();
    let arguments = [
        text(version),
        format!("array[{}]::bytea[]", literals.join(",")),
    ];
    let query = include_str!("../../sql/queries/known_vectors.sql");
    let mut connection = h.pool.acquire().await.unwrap();
    for mode in ["force_custom_plan", "force_generic_plan"] {
        let cost = explained(&mut connection, mode, query, &arguments).await;
        assert!(cost.rows < 6.0 * BATCH as f64, "{mode}: {cost:?}");
    }
}

#[tokio::test]
async fn done_rows_that_are_kept_cost_a_claim_nothing() {
    let h = Harness::start().await;
    let note = h.insert("edited often").await;
    sqlx::query(
        "insert into indexing_outbox (note_id, embedding_version, status)
         select $1, $2, 'DONE' from generate_series(1, 20000)",
    )
    .bind(note)
    .bind(&h.context.version.name)
    .execute(&h.pool)
    .await
    .unwrap();
    let mut connection = h.pool.acquire().await.unwrap();
    for analysed in [false, true] {
        if analysed {
            sqlx::raw_sql("vacuum analyze")
                .execute(&mut *connection)
                .await
                .unwrap();
        }
        let query = include_str!("../../sql/queries/claim.sql");
        let arguments = claim_arguments(&h.context.version.name);
        let cost = explained(&mut connection, "force_custom_plan", query, &arguments).await;
        assert!(cost.rows < 100.0, "analysed {analysed}: {cost:?}");
    }
}

/// The pool plans every statement anew, whatever the database's default is.
#[tokio::test]
async fn no_plan_outlives_what_it_was_made_for() {
    let h = Harness::start().await;
    let mode: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert_eq!(mode, "force_custom_plan");
}

/// PgBouncer in transaction mode, and similar poolers, refuse settings that they cannot pass
/// on.
#[tokio::test]
async fn behind_a_pooler_that_refuses_the_setting_it_connects_without() {
    let h = Harness::start().await;
    let (host, port) = h.database.server();
    let pooler = strict_pooler(host.to_owned(), port).await;
    let store = Store::connect(&h.database.url_through(pooler), 2)
        .await
        .unwrap();
    let mode: String = sqlx::query_scalar("show plan_cache_mode")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!(mode, "auto");
}

/// Passes connections on to `host:port`, but for those that ask for a setting.
async fn strict_pooler(host: String, port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own_port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut startup = message(&mut client).await;
            // No TLS, <https://www.postgresql.org/docs/current/protocol-message-formats.html>.
            if startup[4..] == 80_877_103u32.to_be_bytes() {
                client.write_all(b"N").await.unwrap();
                startup = message(&mut client).await;
            }
            if startup.windows(15).any(|name| name == b"plan_cache_mode") {
                let fields = b"SFATAL\0C08P01\0Munsupported startup parameter in options: plan_cache_mode\0\0";
                let length = (fields.len() as u32 + 4).to_be_bytes();
                let refusal = [b"E", &length[..], fields].concat();
                client.write_all(&refusal).await.unwrap();
                continue;
            }
            let mut server = TcpStream::connect((host.as_str(), port)).await.unwrap();
            server.write_all(&startup).await.unwrap();
            tokio::spawn(async move {
                tokio::io::copy_bidirectional(&mut client, &mut server)
                    .await
                    .ok();
            });
        }
    });
    own_port
}

/// A message without a type: its length comes first.
async fn message(client: &mut TcpStream) -> Vec<u8> {
    let mut message = vec![0; 4];
    client.read_exact(&mut message).await.unwrap();
    let length = u32::from_be_bytes(message[..4].try_into().unwrap());
    message.resize(length as usize, 0);
    client.read_exact(&mut message[4..]).await.unwrap();
    message
}

/// The first notes of many, leased under one token.
struct Batch {
    version: String,
    token: i64,
    notes: Vec<Uuid>,
    chunks: Vec<Uuid>,
    rows: Vec<(Uuid, Uuid)>,
}

impl Batch {
    async fn of(h: &Harness, before: Before) -> Self {
        let everywhere = |statement: &str| {
            let each = TABLES.map(|table| statement.replace("{}", table));
            AssertSqlSafe(each.join(";"))
        };
        let off = everywhere("alter table {} set (autovacuum_enabled = off)");
        sqlx::raw_sql(off).execute(&h.pool).await.unwrap();
        match before {
            Before::VacuumedWhileEmpty => vacuum(h, "vacuum analyze").await,
            Before::BelievedEmpty => {
                // These tables are often empty after normal work.
                h.stock(1_000).await;
                h.context
                    .stores
                    .store
                    .enqueue(&Default::default())
                    .await
                    .unwrap();
                sqlx::raw_sql("delete from memory_notes; delete from indexing_outbox; delete from note_index_state")
                    .execute(&h.pool)
                    .await
                    .unwrap();
                vacuum(h, "vacuum (truncate off, analyze) indexing_outbox").await;
                vacuum(h, "vacuum (truncate off, analyze) note_index_state").await;
            }
            Before::NeverAnalysed | Before::VacuumedAfter => {}
        }
        let mut notes = h.stock(NOTES).await;
        h.context
            .stores
            .store
            .enqueue(&Default::default())
            .await
            .unwrap();
        notes.truncate(BATCH);
        let token: i64 = sqlx::query_scalar(
            "with t as materialized (select nextval('elf_lease_token') as token)
             update note_index_state
                set lease_token = t.token, lease_until = now() + interval '1 hour', holder = 'me'
               from t where note_id = any ($1) returning lease_token",
        )
        .bind(&notes)
        .fetch_one(&h.pool)
        .await
        .unwrap();
        let rows: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "select outbox_id, note_id from indexing_outbox where note_id = any ($1)",
        )
        .bind(&notes)
        .fetch_all(&h.pool)
        .await
        .unwrap();
        assert_eq!(rows.len(), BATCH);
        if before == Before::VacuumedAfter {
            vacuum(h, "vacuum analyze").await;
        }
        Self {
            version: h.context.version.name.clone(),
            token,
            chunks: notes.iter().map(|n| elf::note::chunk_id(*n, 0)).collect(),
            notes,
            rows,
        }
    }

    /// Each statement that a worker, a search or a verify makes of a batch.
    fn statements(&self) -> Vec<(&'static str, &'static str, Vec<String>)> {
        let version = || text(&self.version);
        let token = || format!("{}::bigint", self.token);
        let notes = || uuids(self.notes.iter());
        let chunks = || uuids(self.chunks.iter());
        let (rows, owners) = (
            uuids(self.rows.iter().map(|row| &row.0)),
            uuids(self.rows.iter().map(|row| &row.1)),
        );
        let each = |value: &str, kind: &str| format!("array_fill({value}::{kind}, array[{BATCH}])");
        let vector = || each("'[1,2,3,4,5,6,7,8]'", "vector");
        let hashes = || each("sha256('one')", "bytea");
        let looked_up = format!(
            "array[{}]",
            (0..BATCH)
                .map(|i| format!("sha256('Stock note {i}.')"))
                .collect::<Vec<_>>()
                .join(",")
        );
        macro_rules! statement {
            ($name:literal, $($argument:expr),+) => {
                (
                    $name,
                    include_str!(concat!("../../sql/queries/", $name, ".sql")),
                    vec![$($argument),+],
                )
            };
        }
        let int = |value: &str| each(value, "int");
        let lowest = || id(Uuid::nil());
        let highest = || id(Uuid::max());
        vec![
            (
                "claim",
                include_str!("../../sql/queries/claim.sql"),
                claim_arguments(&self.version),
            ),
            statement!(
                "ack",
                version(),
                token(),
                notes(),
                rows,
                owners,
                "false".into(),
                hashes()
            ),
            statement!("busy_notes", version(), notes()),
            statement!(
                "chunk_page",
                version(),
                lowest(),
                highest(),
                BATCH.to_string(),
                "true".into(),
                "true".into(),
                "1000000::bigint".into()
            ),
            statement!("chunk_hashes", version(), chunks()),
            statement!("chunks_by_id", version(), chunks()),
            statement!(
                "defer_notes",
                version(),
                token(),
                notes(),
                "0.5::float8".into()
            ),
            statement!("delete_pooled", version(), notes()),
            statement!("delete_surplus_chunks", version(), notes(), int("0")),
            statement!("expire", version(), "600::float8".into()),
            statement!(
                "renew_leases",
                version(),
                token(),
                notes(),
                "30::float8".into()
            ),
            statement!("forget_states", version(), token(), notes()),
            statement!("gone_chunks", version(), chunks()),
            statement!("known_vectors", version(), looked_up),
            statement!("held_notes", version(), notes(), token()),
            statement!("load_notes", notes(), "1000::bigint".into()),
            statement!(
                "live_texts",
                lowest(),
                BATCH.to_string(),
                "1000000::bigint".into()
            ),
            statement!("lock_leases", version(), notes(), token()),
            statement!("lock_notes", notes()),
            statement!(
                "note_problems",
                version(),
                "8".into(),
                lowest(),
                BATCH.to_string(),
                "1::float8".into(),
                "1000000::bigint".into()
            ),
            statement!(
                "record_revision",
                version(),
                token(),
                notes(),
                hashes(),
                int("1"),
                hashes()
            ),
            statement!("record_access", version(), token(), notes(), hashes()),
            statement!("release", version(), token(), notes(), "true".into()),
            statement!("requeue", version(), notes(), "0::float8".into()),
            statement!(
                "revalidate",
                version(),
                chunks(),
                "'{\"tenant_id\": \"t\"}'::jsonb".into(),
                each("7", "bigint")
            ),
            statement!(
                "upsert_chunks",
                version(),
                token(),
                chunks(),
                notes(),
                int("0"),
                int("0"),
                int("1"),
                each("'x'", "text"),
                hashes()
            ),
            statement!("upsert_pooled", version(), "8".into(), notes(), vector()),
            statement!("upsert_vectors", version(), "8".into(), chunks(), vector()),
        ]
    }
}

fn claim_arguments(version: &str) -> Vec<String> {
    vec![
        text(version),
        "'me'::text".into(),
        "30::float8".into(),
        BATCH.to_string(),
        (4i64 << 20).to_string(),
        "null::timestamptz".into(),
        "null::uuid".into(),
        elf::store::LOST_CLAIMS_UNTIL_ALONE.to_string(),
        i32::MAX.to_string(),
    ]
}

fn text(value: &str) -> String {
    format!("'{value}'::text")
}

fn id(value: Uuid) -> String {
    format!("'{value}'::uuid")
}

fn uuids<'a>(ids: impl Iterator<Item = &'a Uuid>) -> String {
    let ids: Vec<String> = ids.map(Uuid::to_string).collect();
    format!("'{{{}}}'::uuid[]", ids.join(","))
}

async fn vacuum(h: &Harness, statement: &'static str) {
    sqlx::raw_sql(statement).execute(&h.pool).await.unwrap();
}

/// The cost of a statement.
#[derive(Debug, Default)]
struct Cost {
    /// Rows that scans returned or threw away, each time they ran.
    rows: f64,
    /// Pages that were read, counted each time.
    pages: f64,
}

/// Runs a statement as a prepared one, and rolls it back.
async fn explained(
    connection: &mut PgConnection,
    mode: &str,
    query: &str,
    arguments: &[String],
) -> Cost {
    let run = |statement: String| sqlx::raw_sql(AssertSqlSafe(statement));
    let prepare = format!("begin; set local plan_cache_mode = {mode}; prepare s as {query}");
    run(prepare).execute(&mut *connection).await.unwrap();
    let explain = format!(
        "explain (analyze, buffers, timing off, format json) execute s({})",
        arguments.join(", ")
    );
    let plan: Value = sqlx::query_scalar(AssertSqlSafe(explain))
        .persistent(false)
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    run("rollback; deallocate s".into())
        .execute(&mut *connection)
        .await
        .unwrap();
    let plan = &plan[0]["Plan"];
    let pages = |name: &str| plan[name].as_f64().unwrap();
    Cost {
        rows: rows_read(plan),
        pages: pages("Shared Hit Blocks") + pages("Shared Read Blocks"),
    }
}

/// Rows that the scans at and below `node` returned or threw away.
fn rows_read(node: &Value) -> f64 {
    let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
    let kind = node["Node Type"].as_str().unwrap();
    let returned = if kind.ends_with("Scan") {
        number("Actual Rows")
    } else {
        0.0
    };
    let thrown_away = number("Rows Removed by Filter")
        + number("Rows Removed by Index Recheck")
        + number("Rows Removed by Join Filter");
    let below = node["Plans"].as_array().into_iter().flatten();
    number("Actual Loops") * (returned + thrown_away) + below.map(rows_read).sum::<f64>()
}
