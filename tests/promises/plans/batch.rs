//! A batch of notes, and the statements that ELF makes of it.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{BATCH, Before, NOTES, TABLES};
use crate::support::harness::Harness;

/// A name, the SQL, and its arguments.
pub(super) type Statement = (&'static str, &'static str, Vec<String>);

macro_rules! statement {
    ($name:literal, $($argument:expr),+) => {
        (
            $name,
            include_str!(concat!("../../../sql/queries/", $name, ".sql")),
            vec![$($argument),+],
        )
    };
}

/// The first notes of many, leased under one token.
pub(super) struct Batch {
    version: String,
    settings: String,
    token: i64,
    notes: Vec<Uuid>,
    chunks: Vec<Uuid>,
    rows: Vec<(Uuid, Uuid)>,
}

/// Brings the tables into a state, while they are empty.
pub(super) async fn bring(h: &Harness, before: Before) {
    let everywhere = |statement: &str| {
        let each = TABLES.map(|table| statement.replace("{}", table));
        AssertSqlSafe(each.join(";"))
    };
    let off = everywhere("alter table {} set (autovacuum_enabled = off)");
    sqlx::raw_sql(off).execute(&h.pool).await.unwrap();
    match before {
        Before::VacuumedWhileEmpty => vacuum(h, "vacuum analyze").await,
        // These tables are often empty after normal work.
        Before::BelievedEmpty => {
            fill_and_empty(h, 1_000, async || {}).await;
            vacuum(h, "vacuum (truncate off, analyze) indexing_outbox").await;
            vacuum(h, "vacuum (truncate off, analyze) note_index_state").await;
        }
        Before::AllBelievedEmpty => {
            fill_and_empty(h, 1_000, async || {}).await;
            for table in TABLES {
                vacuum(h, format!("vacuum (truncate off, analyze) {table}")).await;
            }
        }
        Before::AnalysedWithOneNote => {
            fill_and_empty(h, 1, async || vacuum(h, "vacuum analyze").await).await;
        }
        Before::NeverAnalysed | Before::VacuumedAfter => {}
    }
}

/// Inserts notes and enqueues them, runs `meanwhile`, and deletes all.
async fn fill_and_empty(h: &Harness, notes: usize, meanwhile: impl AsyncFnOnce()) {
    h.stock(notes).await;
    let store = &h.pipeline.serving.store;
    store.enqueue(&Default::default()).await.unwrap();
    meanwhile().await;
    sqlx::raw_sql(
        "delete from memory_notes; delete from indexing_outbox; delete from note_index_state",
    )
    .execute(&h.pool)
    .await
    .unwrap();
}

impl Batch {
    pub(super) async fn of(h: &Harness, before: Before) -> Self {
        bring(h, before).await;
        Self::in_tables(h, before).await
    }

    /// [`Self::of`] after [`bring`].
    pub(super) async fn in_tables(h: &Harness, before: Before) -> Self {
        let mut notes = h.stock(NOTES).await;
        h.pipeline
            .serving
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
            version: h.pipeline.version.name.clone(),
            settings: format!("'{}'::jsonb", h.pipeline.version.settings),
            token,
            chunks: notes.iter().map(|n| elf::note::chunk_id(*n, 0)).collect(),
            notes,
            rows,
        }
    }

    /// Each statement that a worker, a search or a verify makes of a batch.
    pub(super) fn statements(&self) -> Vec<Statement> {
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
        let int = |value: &str| each(value, "int");
        let lowest = || id(Uuid::nil());
        let highest = || id(Uuid::max());
        vec![
            (
                "claim",
                include_str!("../../../sql/queries/claim.sql"),
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
            statement!("chunks_by_id", version(), chunks()),
            statement!(
                "expire",
                version(),
                "600::float8".into(),
                "null::text".into(),
                "null::uuid".into(),
                BATCH.to_string(),
                "true".into()
            ),
            statement!(
                "renew_leases",
                version(),
                token(),
                notes(),
                "30::float8".into()
            ),
            statement!("forget", version(), token(), notes()),
            statement!("gone_chunks", version(), chunks()),
            statement!("known_vectors", version(), looked_up.clone()),
            statement!("held_notes", version(), notes(), token()),
            statement!(
                "load_notes",
                notes(),
                "1000::bigint".into(),
                "1000000".into()
            ),
            statement!(
                "live_texts",
                lowest(),
                BATCH.to_string(),
                "1000000::bigint".into(),
                "1000000".into()
            ),
            statement!("lock_leases", version(), notes(), token()),
            statement!(
                "look_through",
                "'{\"tenant_id\": \"t\"}'::jsonb".into(),
                text("t"),
                lowest(),
                BATCH.to_string(),
                "false".into()
            ),
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
                "commit_notes",
                version(),
                "8".into(),
                token(),
                chunks(),
                notes(),
                int("0"),
                int("0"),
                int("3"),
                each("'one'", "text"),
                hashes(),
                each("false", "bool"),
                chunks(),
                vector(),
                notes(),
                vector(),
                notes(),
                hashes(),
                int("1"),
                hashes(),
                notes(),
                int("1"),
                chunks(),
                notes(),
                notes(),
                each("true", "bool"),
                each("'t'", "text"),
                each("'p'", "text"),
                each("'a'", "text"),
                each("'s'", "text"),
                each("''", "text"),
                int("0"),
                int("3")
            ),
            statement!(
                "lock_notes",
                version(),
                token(),
                notes(),
                each("true", "bool"),
                chunks(),
                each("'t'", "text"),
                each("'p'", "text"),
                each("'a'", "text"),
                each("'s'", "text")
            ),
            statement!("record_access", version(), token(), notes(), hashes()),
            statement!(
                "release",
                version(),
                token(),
                notes(),
                "0.5::float8".into(),
                "true".into()
            ),
            statement!("requeue", version(), notes(), "0::float8".into()),
            statement!(
                "revalidate",
                version(),
                chunks(),
                "'{\"tenant_id\": \"t\"}'::jsonb".into()
            ),
            statement!(
                "search_context",
                version(),
                chunks(),
                "'{\"tenant_id\": \"t\"}'::jsonb".into(),
                "1000000".into()
            ),
            statement!(
                "reachable_notes",
                notes(),
                "'t'::text".into(),
                "null::text".into(),
                "null::text".into(),
                version(),
                "1000::bigint".into()
            ),
            statement!("chunk_vectors", version(), chunks()),
            statement!("notes_waiting", notes(), version()),
            statement!("known_hashes", self.settings.clone(), looked_up),
            statement!("take_over_chunks", version(), token(), notes()),
            statement!("drop_states", version(), lowest(), BATCH.to_string()),
            statement!("drop_pooled", version(), lowest(), BATCH.to_string()),
            statement!("drop_chunks", version(), lowest(), BATCH.to_string()),
            statement!("enqueue_gone", version(), lowest(), BATCH.to_string()),
        ]
    }

    /// Counts of all notes or chunks.
    pub(super) fn counts(&self) -> Vec<Statement> {
        vec![
            statement!("count_points", text(&self.version)),
            statement!("count_notes", text(&self.version)),
        ]
    }

    /// All notes expire, each has dead letters, and a version is being built.
    pub(super) async fn age(&self, h: &Harness) {
        let age = format!(
            "begin;
             alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
             update memory_notes set expires_at = now() - interval '5 minutes';
             insert into index_versions (embedding_version, embedding_dim, settings, state)
             values ('{BUILT}', 8, '{{}}', 'building');
             insert into indexing_outbox (note_id, embedding_version)
             select note_id, '{BUILT}' from memory_notes;
             insert into indexing_outbox (note_id, embedding_version, created_at)
             select note_id, '{BUILT}', now() - interval '1 hour' from memory_notes;
             insert into indexing_outbox (note_id, embedding_version, created_at, available_at)
             select note_id, '{BUILT}', now() + interval '1 hour', now() + interval '1 hour'
               from memory_notes;
             insert into indexing_outbox (note_id, status) select note_id, 'DEAD' from memory_notes;
             commit"
        );
        sqlx::raw_sql(AssertSqlSafe(age))
            .execute(&h.pool)
            .await
            .unwrap();
    }

    /// Statements of a batch that cost more after [`Self::age`].
    pub(super) fn later_statements(&self) -> Vec<Statement> {
        let (built, version) = (|| text(BUILT), || text(&self.version));
        let names = ["claim", "reachable_notes"];
        let mut statements = self.statements();
        statements.retain(|(name, ..)| names.contains(name));
        statements.extend([
            statement!(
                "coalesce_building",
                built(),
                "'epoch'::timestamptz".into(),
                id(Uuid::nil()),
                BATCH.to_string()
            ),
            statement!("drop_outbox", built(), BATCH.to_string()),
            statement!(
                "reschedule_ahead",
                built(),
                "null::timestamptz".into(),
                "null::uuid".into(),
                BATCH.to_string()
            ),
            statement!(
                "expire",
                version(),
                "null::float8".into(),
                "(now() - interval '1 hour')::text".into(),
                id(Uuid::nil()),
                BATCH.to_string(),
                "true".into()
            ),
            statement!(
                "expire",
                version(),
                "600::float8".into(),
                "null::text".into(),
                "null::uuid".into(),
                BATCH.to_string(),
                "true".into()
            ),
        ]);
        statements
    }

    /// Statements that read all notes, or all outbox rows.
    pub(super) fn sweeps(&self) -> Vec<Statement> {
        let version = || text(&self.version);
        vec![
            statement!("due_notes", version()),
            statement!("enqueue_version", version(), "true".into()),
            statement!("count_outbox", version()),
            statement!("count_outbox", "null::text".into()),
        ]
    }
}

/// A version that is being built.
const BUILT: &str = "built";

pub(super) fn claim_arguments(version: &str) -> Vec<String> {
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
        "null::float8".into(),
        "true".into(),
    ]
}

pub(super) fn text(value: &str) -> String {
    format!("'{value}'::text")
}

fn id(value: Uuid) -> String {
    format!("'{value}'::uuid")
}

fn uuids<'a>(ids: impl Iterator<Item = &'a Uuid>) -> String {
    let ids: Vec<String> = ids.map(Uuid::to_string).collect();
    format!("'{{{}}}'::uuid[]", ids.join(","))
}

async fn vacuum(h: &Harness, statement: impl Into<String>) {
    let statement = AssertSqlSafe(statement.into());
    sqlx::raw_sql(statement).execute(&h.pool).await.unwrap();
}
