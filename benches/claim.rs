//! A claim of 256 notes among a million other outbox rows, against the same claim in a database
//! that has only the notes. The rows are made in SQL; nothing is analysed by hand.
//!
//! A worker begins each claim where the one before it ended, and walks over all rows once a second,
//! or, if that takes long, every two seconds (`src/worker/turns.rs`). So there are two
//! figures for each case: the claim, and the walk.

use std::time::{Duration, Instant};

use elf::store::{Claim, ClaimScope, Due, Position, Store, Version};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::daemon::{create_database, drop_database, dsn_of, execute};
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::{Options, Result};

const NOTES: usize = 256;
const VERSION: &str = "bench";
/// More than the notes have.
const BYTES: usize = 64 << 20;
/// Longer than the bench.
const LEASE: Duration = Duration::from_secs(86_400);

/// What else is in the outbox.
struct Case {
    name: &'static str,
    /// Makes `{rows}` rows before the 256 that are due.
    rows: &'static str,
    /// Runs while a snapshot from before it is open, so that its dead rows stay.
    behind_snapshot: &'static str,
}

const CASES: [Case; 5] = [
    Case {
        name: "due",
        // Younger than the 256.
        rows: "insert into indexing_outbox (note_id, available_at)
               select md5('other' || n)::uuid, now() - interval '1 minute' + n * interval '1 microsecond'
                 from generate_series(1, {rows}) n",
        behind_snapshot: "",
    },
    Case {
        name: "dead",
        rows: "insert into indexing_outbox (note_id, status, attempts, available_at)
               select md5('other' || n)::uuid, 'DEAD', 8, now() - interval '1 day' from generate_series(1, {rows}) n",
        behind_snapshot: "",
    },
    Case {
        name: "leased",
        rows: "insert into indexing_outbox (note_id, available_at)
               select md5('other' || n)::uuid, now() - interval '1 day' from generate_series(1, {rows}) n;
               insert into note_index_state (note_id, embedding_version, lease_token, lease_until, holder)
               select md5('other' || n)::uuid, 'bench', 1, now() + interval '1 day', 'another'
                 from generate_series(1, {rows}) n",
        behind_snapshot: "",
    },
    Case {
        name: "other-version",
        rows: "insert into indexing_outbox (note_id, embedding_version, available_at)
               select md5('other' || n)::uuid, 'another', now() - interval '1 day' from generate_series(1, {rows}) n",
        behind_snapshot: "",
    },
    Case {
        name: "deleted (a fifth as many), held by an old snapshot,",
        rows: "insert into indexing_outbox (note_id, available_at)
               select md5('other' || n)::uuid, now() - interval '1 day' from generate_series(1, {rows} / 5) n",
        behind_snapshot: "delete from indexing_outbox where available_at < now() - interval '12 hours'",
    },
];

pub async fn run(options: Options) -> Result<()> {
    let mut report = Report::new("claim", options, "Postgres alone");
    let rows = options.size(1_000_000, 5000);
    report.fact("notes of a claim", NOTES);
    report.fact("claims in a round", options.size(5, 3));
    for plan in ["force_custom_plan", "force_generic_plan"] {
        let empty = Claims::start(plan, "", "", 0).await?;
        for case in &CASES {
            let full = Claims::start(plan, case.rows, case.behind_snapshot, rows).await?;
            let count = options.size(5, 3);
            let name = format!(
                "{rows} {} rows, {}",
                case.name,
                plan.trim_start_matches("force_")
            );
            for (what, target) in [("", Target::AtMost(2.0)), (", the walk", Target::None)] {
                let walks = !what.is_empty();
                let [full_ms, empty_ms] = Rounds::of(options)
                    .measure(
                        async || full.millis(count, walks).await,
                        async || empty.millis(count, walks).await,
                    )
                    .await?;
                report.ratio(
                    &format!("{name}{what}"),
                    "ms",
                    [
                        Side::new("among them", full_ms),
                        Side::new("alone", empty_ms),
                    ],
                    target,
                );
            }
            full.end().await?;
        }
        empty.end().await?;
    }
    report.write()
}

struct Claims {
    database: String,
    store: Store,
    /// Where the first claim ended.
    mark: Position,
    /// Keeps its snapshot.
    _snapshot: Option<PgConnection>,
}

impl Claims {
    async fn start(plan: &str, others: &str, behind_snapshot: &str, rows: usize) -> Result<Self> {
        let database = create_database().await?;
        let dsn = dsn_of(&std::env::var("DATABASE_URL")?, &database)?;
        let store = Store::connect(&dsn, 2).await?;
        store.migrate().await?;
        let version = Version {
            name: VERSION.into(),
            dim: 384,
            settings: serde_json::json!({}),
        };
        store.register_first_version(&version).await?;
        store.pool().close().await;
        let mut connection = PgConnection::connect(&dsn).await?;
        execute(&mut connection, others.replace("{rows}", &rows.to_string())).await?;
        let mut snapshot = None;
        if !behind_snapshot.is_empty() {
            let mut old = PgConnection::connect(&dsn).await?;
            let begin =
                "begin isolation level repeatable read; select count(*) from indexing_outbox";
            execute(&mut old, begin.into()).await?;
            execute(&mut connection, behind_snapshot.into()).await?;
            snapshot = Some(old);
        }
        let due = format!(
            "alter table memory_notes disable trigger user;
             insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             select md5('mine' || n)::uuid, 't', 'p', 'a', 's', 'n', repeat('word ', 100)
               from generate_series(1, 2 * {NOTES}) n;
             insert into indexing_outbox (note_id, available_at)
             select md5('mine' || n)::uuid, now() - interval '1 hour' from generate_series(1, 2 * {NOTES}) n"
        );
        execute(&mut connection, due).await?;
        let store = Store::connect(&dsn, 1).await?;
        let set = AssertSqlSafe(format!("set plan_cache_mode = {plan}"));
        sqlx::raw_sql(set).execute(store.pool()).await?;
        let shown: String = sqlx::query_scalar("show plan_cache_mode")
            .fetch_one(store.pool())
            .await?;
        assert_eq!(shown, plan);
        let mut claims = Self {
            database,
            store,
            mark: Position {
                available_at: chrono::DateTime::UNIX_EPOCH,
                outbox_id: uuid::Uuid::nil(),
            },
            _snapshot: snapshot,
        };
        // Half of the notes stay leased, as those of a batch in flight.
        claims.mark = claims.claim(Due::All).await?.upto;
        Ok(claims)
    }

    /// The median of so many claims. Each is released again, which is not measured.
    async fn millis(&self, count: usize, walks: bool) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..count {
            let due = match walks {
                true => Due::All,
                false => Due::After(self.mark),
            };
            let began = Instant::now();
            let claim = self.claim(due).await?;
            times.push(1e3 * began.elapsed().as_secs_f64());
            let ids = claim.note_ids();
            assert_eq!(ids.len(), NOTES);
            self.store
                .release(VERSION, claim.token, &ids, Duration::ZERO, true)
                .await?;
        }
        Ok(crate::report::median(&times))
    }

    async fn claim(&self, due: Due) -> Result<Claim> {
        let scope = ClaimScope {
            due,
            ..ClaimScope::ALL
        };
        let claim = self
            .store
            .claim(VERSION, "bench", LEASE, NOTES, BYTES, scope)
            .await?;
        Ok(claim.ok_or("nothing is due")?)
    }

    async fn end(self) -> Result<()> {
        self.store.pool().close().await;
        drop_database(&self.database).await
    }
}
