//! What the triggers of a source cost the application, and how fast a sync compares rows with their notes.
//!
//! The least that does the same is a trigger written by hand that inserts a note, or the insert into `memory_notes`
//! itself. Every table has the same rows.

use std::time::Instant;

use elf::config::{Config, Source};
use elf::sources::{self, Plan};
use elf::store::Store;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::daemon::{create_database, drop_database, dsn_of, execute};
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::{Options, Result};

const TABLES: &str = "
create table followed (id bigint primary key generated always as identity, customer_id text, subject text, body text,
                       hits int not null default 0);
create table by_hand (like followed including all);
create table plain (like followed including all);
create function by_hand() returns trigger language plpgsql as $$ begin
    insert into memory_notes (tenant_id, title, text)
    values (new.customer_id, new.subject, new.subject || E'\\n\\n' || new.body);
    return null;
end $$;
create trigger by_hand after insert on by_hand for each row execute function by_hand();";

const SOURCE: &str = r#"
[storage.postgres]
dsn = "postgres://nobody@nowhere/none"
[storage.qdrant]
url = "http://127.0.0.1:1"
[providers.embedding]
provider = "openai"
api_base = "http://127.0.0.1:1/v1"
model = "none"
[[sources]]
name = "followed"
table = "followed"
text = "{subject}\n\n{body}"
title = "{subject}"
tenant_id = "{customer_id}"
"#;

/// The columns of so many rows.
const ROWS: &str = "select 'c' || n % 100 as customer_id, 'Subject ' || n as subject, n || repeat(' some words of a ticket', 9) as body
                      from generate_series(1, {rows}) n";

pub async fn run(options: Options) -> Result<()> {
    let mut report = Report::new("sources", options, "Postgres alone");
    let bench = Bench::start().await?;
    let rows = options.size(100_000, 1000);
    let writes = options.size(500, 20);
    report.fact("rows of a statement", rows);
    report.fact("writes of one row in a round", writes);

    let [source, hand] = Rounds::of(options)
        .measure(
            async || bench.one_by_one(writes, "followed").await,
            async || bench.one_by_one(writes, "by_hand").await,
        )
        .await?;
    report.ratio(
        "insert of one row",
        "ms",
        [
            Side::new("source", source),
            Side::new("trigger by hand", hand),
        ],
        Target::AtMost(1.3),
    );

    let of_rows = ROWS.replace("{rows}", &rows.to_string());
    let [source, notes] = Rounds::few(options, 3)
        .measure(
            async || {
                bench.run("truncate followed; truncate memory_notes cascade; truncate indexing_outbox").await?;
                bench.run(&format!("insert into followed (customer_id, subject, body) {of_rows}")).await
            },
            async || {
                bench.run("truncate followed; truncate memory_notes cascade; truncate indexing_outbox").await?;
                let insert = format!(
                    "insert into memory_notes (tenant_id, title, text)
                     select customer_id, subject, subject || E'\\n\\n' || body from ({of_rows}) r"
                );
                bench.run(&insert).await
            },
        )
        .await?;
    report.ratio(
        "insert of all rows in one statement",
        "ms",
        [
            Side::new("source", source),
            Side::new("memory_notes", notes),
        ],
        Target::AtMost(2.0),
    );

    for table in ["followed", "plain"] {
        bench
            .run(&format!(
                "truncate {table}; insert into {table} (customer_id, subject, body) {of_rows}"
            ))
            .await?;
        bench
            .run(&format!("vacuum (full, analyze) {table}"))
            .await?;
    }
    let update = |table: &str| format!("update {table} set hits = hits + 1");
    let [source, plain] = Rounds::of(options)
        .measure(
            async || bench.vacuumed("followed", &update("followed")).await,
            async || bench.vacuumed("plain", &update("plain")).await,
        )
        .await?;
    report.ratio(
        "update of a column that no template names",
        "ms",
        [Side::new("source", source), Side::new("no source", plain)],
        Target::AtMost(1.05),
    );

    let many = options.size(1_000_000, 2000);
    let of_many = ROWS.replace("{rows}", &many.to_string());
    bench
        .run(&format!(
            "truncate followed; insert into followed (customer_id, subject, body) {of_many}"
        ))
        .await?;
    bench.run("vacuum analyze followed; ").await?;
    bench.run("vacuum analyze memory_notes").await?;
    let listed = sources::list(&bench.store, &bench.sources).await?;
    let listed = listed.into_iter().next().ok_or("there is no source")?;
    let mut speeds = Vec::new();
    for _ in 0..options.size(3, 1) {
        let began = Instant::now();
        let compared = sources::compare(&bench.store, &listed, true, |_| {}).await?;
        assert_eq!((compared.rows, compared.drift.all()), (many as u64, 0));
        speeds.push(many as f64 / began.elapsed().as_secs_f64());
    }
    report.value(
        &format!("sync of {many} rows whose notes are equal"),
        "rows/s",
        speeds,
        Target::AtLeast(50_000.0),
    );
    bench.end().await?;
    report.write()
}

struct Bench {
    database: String,
    dsn: String,
    store: Store,
    sources: Vec<Source>,
}

impl Bench {
    async fn start() -> Result<Self> {
        let database = create_database().await?;
        let dsn = dsn_of(&std::env::var("DATABASE_URL")?, &database)?;
        let store = Store::connect(&dsn, 10).await?;
        store.migrate().await?;
        let sources = Config::parse(SOURCE, "the bench", &|_| None)?.sources;
        let bench = Self {
            database,
            dsn,
            store,
            sources,
        };
        bench.run(TABLES).await?;
        let plan = Plan::of(&bench.store, &bench.sources[0]).await?;
        if let Some(reason) = plan.apply(&bench.store).await? {
            return Err(reason.into());
        }
        Ok(bench)
    }

    /// Executes statements; returns how many milliseconds that took.
    async fn run(&self, statements: &str) -> Result<f64> {
        let mut db = PgConnection::connect(&self.dsn).await?;
        let began = Instant::now();
        execute(&mut db, statements.to_owned()).await?;
        Ok(1e3 * began.elapsed().as_secs_f64())
    }

    /// The same of a statement that leaves dead rows, without those of the round before.
    async fn vacuumed(&self, table: &str, statement: &str) -> Result<f64> {
        self.run(&format!("vacuum {table}")).await?;
        self.run("checkpoint").await?;
        self.run(statement).await
    }

    /// The median of so many inserts of a row, each committed.
    async fn one_by_one(&self, writes: usize, table: &str) -> Result<f64> {
        let mut db = PgConnection::connect(&self.dsn).await?;
        let insert = format!(
            "insert into {table} (customer_id, subject, body) values ('c1', 'A subject', repeat('some words of a ticket ', 9))"
        );
        let mut times = Vec::new();
        for _ in 0..writes {
            let began = Instant::now();
            sqlx::query(AssertSqlSafe(insert.clone()))
                .execute(&mut db)
                .await?;
            times.push(1e3 * began.elapsed().as_secs_f64());
        }
        Ok(crate::report::median(&times))
    }

    async fn end(self) -> Result<()> {
        self.store.pool().close().await;
        drop_database(&self.database).await
    }
}
