//! The cost of a batch's statements follows the size of the batch, not the size of the tables
//! or their statistics in Postgres.

mod batch;
mod pooler;

use elf::note::TextHash;
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::harness::Harness;
use batch::{Batch, Statement, bring, claim_arguments, text};

/// The default of `worker.batch_notes`.
const BATCH: usize = 256;

/// Many more than a batch reads or writes in a statement.
const NOTES: usize = 20_000;

/// Row versions and pages that a statement may touch for each note of its batch. The
/// claim takes 9 and 21, the locks of a commit 23 and 12, most of them rows of their own arrays.
const ROWS_A_NOTE: f64 = 32.0;
const PAGES_A_NOTE: f64 = 32.0;

const TABLES: [&str; 6] = [
    "memory_notes",
    "memory_note_chunks",
    "note_chunk_embeddings",
    "note_embeddings",
    "indexing_outbox",
    "note_index_state",
];

/// Statements that run in a transaction of `Store::begin`: without sequential scans, which are
/// cheap where notes are short, but read them all.
const IN_TRANSACTION: [&str; 3] = ["commit_notes", "lock_notes", "take_over_chunks"];

/// Statements that read one page of many, with the settings of `Store::page`.
const PAGES: [&str; 11] = [
    "chunk_page",
    "coalesce_building",
    "drop_chunks",
    "drop_outbox",
    "drop_pooled",
    "drop_states",
    "enqueue_gone",
    "live_texts",
    "look_through",
    "note_problems",
    "reschedule_ahead",
];
const PAGE_SETTINGS: &str = "set plan_cache_mode = force_generic_plan; set jit = off;
    set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off; set enable_mergejoin = off; set enable_sort = off";

/// Statements that look up the first row of an order, with the settings of the keyed connections.
const FIRST: [&str; 3] = ["expire", "known_hashes", "known_vectors"];
const KEYED_SETTINGS: &str = "set plan_cache_mode = force_generic_plan; set jit = off;
    set enable_seqscan = off; set enable_sort = off";

/// Statements that count the rows of whole tables, with the settings of `Store::count`.
const COUNTS: [&str; 2] = ["count_points", "count_notes"];

/// Statements whose plan Postgres keeps, and the number of their parameters. The claim and the ack change
/// what the others read.
const KEYED: [(&str, &str, usize); 12] = [
    (
        "revalidate",
        include_str!("../../sql/queries/revalidate.sql"),
        3,
    ),
    (
        "search_context",
        include_str!("../../sql/queries/search_context.sql"),
        4,
    ),
    (
        "chunk_vectors",
        include_str!("../../sql/queries/chunk_vectors.sql"),
        2,
    ),
    (
        "known_vectors",
        include_str!("../../sql/queries/known_vectors.sql"),
        2,
    ),
    (
        "load_notes",
        include_str!("../../sql/queries/load_notes.sql"),
        3,
    ),
    (
        "commit_notes",
        include_str!("../../sql/queries/commit_notes.sql"),
        32,
    ),
    (
        "take_over_chunks",
        include_str!("../../sql/queries/take_over_chunks.sql"),
        3,
    ),
    (
        "known_hashes",
        include_str!("../../sql/queries/known_hashes.sql"),
        2,
    ),
    ("claim", include_str!("../../sql/queries/claim.sql"), 11),
    ("ack", include_str!("../../sql/queries/ack.sql"), 7),
    ("forget", include_str!("../../sql/queries/forget.sql"), 3),
    ("expire", include_str!("../../sql/queries/expire.sql"), 6),
];

/// The same of [`PAGES`].
const KEPT_PAGES: [(&str, &str, usize); 11] = [
    (
        "chunk_page",
        include_str!("../../sql/queries/chunk_page.sql"),
        7,
    ),
    (
        "live_texts",
        include_str!("../../sql/queries/live_texts.sql"),
        4,
    ),
    (
        "look_through",
        include_str!("../../sql/queries/look_through.sql"),
        5,
    ),
    (
        "note_problems",
        include_str!("../../sql/queries/note_problems.sql"),
        6,
    ),
    (
        "drop_states",
        include_str!("../../sql/queries/drop_states.sql"),
        3,
    ),
    (
        "drop_pooled",
        include_str!("../../sql/queries/drop_pooled.sql"),
        3,
    ),
    (
        "drop_chunks",
        include_str!("../../sql/queries/drop_chunks.sql"),
        3,
    ),
    (
        "enqueue_gone",
        include_str!("../../sql/queries/enqueue_gone.sql"),
        3,
    ),
    (
        "coalesce_building",
        include_str!("../../sql/queries/coalesce_building.sql"),
        4,
    ),
    (
        "drop_outbox",
        include_str!("../../sql/queries/drop_outbox.sql"),
        2,
    ),
    (
        "reschedule_ahead",
        include_str!("../../sql/queries/reschedule_ahead.sql"),
        4,
    ),
];

/// The state of the tables before the notes were inserted.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    /// Nothing.
    NeverAnalysed,
    /// A vacuum of the empty tables.
    VacuumedWhileEmpty,
    /// Rows were inserted and deleted, and a vacuum could not truncate their pages: now Postgres
    /// believes that those pages of the outbox and of the states, and all that follow them, are empty.
    BelievedEmpty,
    /// The same of all tables.
    AllBelievedEmpty,
    /// A vacuum with one note in them, which was deleted then.
    AnalysedWithOneNote,
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
async fn all_believed_empty_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::AllBelievedEmpty).await;
}

#[tokio::test]
async fn analysed_with_one_note_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::AnalysedWithOneNote).await;
}

#[tokio::test]
async fn vacuumed_a_batch_costs_no_more_than_its_notes() {
    a_batch_costs_no_more_than_its_notes(Before::VacuumedAfter).await;
}

async fn a_batch_costs_no_more_than_its_notes(before: Before) {
    let h = Harness::start().await;
    let batch = Batch::of(&h, before).await;
    let mut connection = h.pool.acquire().await.unwrap();
    let mut dear = dear(&mut connection, batch.statements(), BATCH).await;
    dear.extend(self::dear(&mut connection, batch.counts(), NOTES).await);
    batch.age(&h).await;
    // Now each note has four outbox rows.
    dear.extend(self::dear(&mut connection, batch.later_statements(), 2 * BATCH).await);
    dear.extend(self::dear(&mut connection, batch.sweeps(), NOTES).await);
    assert!(dear.is_empty(), "{before:?}:\n{}", dear.join("\n"));
}

/// Those of these statements that read more than so many notes cost.
async fn dear(
    connection: &mut PgConnection,
    statements: Vec<Statement>,
    notes: usize,
) -> Vec<String> {
    let mut dear = Vec::new();
    for (name, query, arguments) in statements {
        for mode in ["force_custom_plan", "force_generic_plan"] {
            if IN_TRANSACTION.contains(&name) && mode == "force_custom_plan" {
                continue;
            }
            let settings = match name {
                _ if PAGES.contains(&name) => PAGE_SETTINGS,
                _ if FIRST.contains(&name) => KEYED_SETTINGS,
                _ if COUNTS.contains(&name) => "reset all; set enable_nestloop = off",
                _ if IN_TRANSACTION.contains(&name) => "reset all; set enable_seqscan = off",
                _ => "reset all",
            };
            // A statement that turns quadratic would take minutes.
            let settings = format!("{settings}; set statement_timeout = '20s'");
            let set = sqlx::raw_sql(AssertSqlSafe(settings)).execute(&mut *connection);
            set.await.unwrap();
            let cost = explained(connection, mode, query, &arguments).await;
            let notes = notes as f64;
            if cost.rows > ROWS_A_NOTE * notes || cost.pages > PAGES_A_NOTE * notes {
                dear.push(format!("{name}, {mode}: {cost:?}"));
            }
        }
    }
    dear
}

#[tokio::test]
async fn planned_over_new_tables_a_statement_costs_no_more_than_its_notes() {
    planned_over_empty_tables(Before::NeverAnalysed).await;
}

#[tokio::test]
async fn planned_over_vacuumed_tables_a_statement_costs_no_more_than_its_notes() {
    planned_over_empty_tables(Before::VacuumedWhileEmpty).await;
}

#[tokio::test]
async fn planned_over_emptied_tables_a_statement_costs_no_more_than_its_notes() {
    planned_over_empty_tables(Before::BelievedEmpty).await;
}

#[tokio::test]
async fn planned_over_tables_that_were_all_emptied_a_statement_costs_no_more_than_its_notes() {
    planned_over_empty_tables(Before::AllBelievedEmpty).await;
}

#[tokio::test]
async fn planned_after_one_note_a_statement_costs_no_more_than_its_notes() {
    planned_over_empty_tables(Before::AnalysedWithOneNote).await;
}

/// Postgres keeps the plans of searches, batches and pages. It may have made them while the tables were
/// empty. Rows without a version, as the trigger writes them, are the ones that it has not seen.
async fn planned_over_empty_tables(before: Before) {
    let h = Harness::start().await;
    // A change of a table would make Postgres plan again.
    bring(&h, before).await;
    let mut connection = h.pool.acquire().await.unwrap();
    let set = |settings: &'static str| sqlx::raw_sql(settings);
    let plan = async |connection: &mut PgConnection, name: &str, query: &str, arguments: usize| {
        let nulls = vec!["null"; arguments].join(", ");
        let plan = format!("prepare {name} as {query}; execute {name}({nulls})");
        let planned = sqlx::raw_sql(AssertSqlSafe(plan)).execute(connection).await;
        planned.unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    set(KEYED_SETTINGS).execute(&mut *connection).await.unwrap();
    for (name, query, arguments) in KEYED {
        plan(&mut connection, name, query, arguments).await;
    }
    set(PAGE_SETTINGS).execute(&mut *connection).await.unwrap();
    for (name, query, arguments) in KEPT_PAGES {
        plan(&mut connection, name, query, arguments).await;
    }

    let batch = Batch::in_tables(&h, before).await;
    let without_version = "update indexing_outbox set embedding_version = null
         where note_id <> all (select note_id from note_index_state where holder = 'me')";
    set(without_version)
        .execute(&mut *connection)
        .await
        .unwrap();
    let mut dear = Vec::new();
    let mut check = async |connection: &mut PgConnection, name: &str, statements: &[Statement]| {
        let (.., arguments) = statements.iter().find(|(of, ..)| *of == name).unwrap();
        let cost = cost_of(connection, name, arguments).await;
        let notes = BATCH as f64;
        assert!(cost.rows > 0.0, "{name} found nothing");
        if cost.rows > ROWS_A_NOTE * notes || cost.pages > PAGES_A_NOTE * notes {
            dear.push(format!("{name}: {cost:?}"));
        }
    };
    let statements = batch.statements();
    for (name, ..) in KEYED {
        if name != "expire" {
            check(&mut connection, name, &statements).await;
        }
    }
    let statements = [statements, batch.later_statements()].concat();
    for aged in [false, true] {
        if aged {
            batch.age(&h).await;
        }
        let later = [
            "coalesce_building",
            "drop_outbox",
            "expire",
            "reschedule_ahead",
        ];
        let expire = KEYED.iter().filter(|(name, ..)| *name == "expire");
        for (name, ..) in KEPT_PAGES.iter().chain(expire) {
            if later.contains(name) == aged {
                set("begin").execute(&mut *connection).await.unwrap();
                check(&mut connection, name, &statements).await;
                set("rollback").execute(&mut *connection).await.unwrap();
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
    let version = &h.pipeline.version.name;
    let found = h
        .pipeline
        .serving
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
    .bind(&h.pipeline.version.name)
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
        for within in ["null::float8", "3::float8"] {
            let mut arguments = claim_arguments(&h.pipeline.version.name);
            arguments[9] = within.into();
            let cost = explained(&mut connection, "force_custom_plan", query, &arguments).await;
            assert!(cost.rows < 100.0, "{within}, analysed {analysed}: {cost:?}");
        }
    }
}

/// The cost of a statement.
#[derive(Debug, Default)]
struct Cost {
    /// Rows that scans returned or threw away, each time they ran.
    rows: f64,
    /// Pages that were read, counted each time.
    pages: f64,
}

impl Cost {
    /// That of a statement that Postgres cancelled.
    const TOO_LONG: Self = Self {
        rows: f64::INFINITY,
        pages: f64::INFINITY,
    };
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
    let cost = cost_of(connection, "s", arguments).await;
    run("rollback; deallocate s".into())
        .execute(&mut *connection)
        .await
        .unwrap();
    cost
}

/// Runs a prepared statement.
async fn cost_of(connection: &mut PgConnection, statement: &str, arguments: &[String]) -> Cost {
    let explain = format!(
        "explain (analyze, buffers, timing off, format json) execute {statement}({})",
        arguments.join(", ")
    );
    let plan = sqlx::query_scalar(AssertSqlSafe(explain))
        .persistent(false)
        .fetch_one(&mut *connection)
        .await;
    let plan: Value = match plan {
        Err(error) if error.to_string().contains("statement timeout") => return Cost::TOO_LONG,
        plan => plan.unwrap(),
    };
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
