//! A site as in production: every setting at its default, a Qdrant server where there is
//! one, thousands of notes of real text.

use std::time::{Duration, Instant};

use elf::cli::wiring;
use elf::config::Config;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::application::seed;
use super::compare::{Differences, Point, compare, points_of_engine, points_over_rest};
use super::corpus::Corpus;
use super::harness::{Harness, model};
use super::qdrant::Qdrant;
use super::site::{Running, Site};

/// Longer than indexing all of a test's notes takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(900);

/// The alias of the default settings.
const ALIAS: &str = "notes";

/// A site on the default settings, and an application that writes to it.
pub struct Town {
    pub site: Site,
    pub server: Option<Qdrant>,
    pub db: PgConnection,
    pub corpus: Corpus,
    pub random: StdRng,
}

/// `elf.toml` with only the required keys.
pub fn default_toml(database: &str, index: &str, provider: &str) -> String {
    format!(
        r#"
[service]
admin_bind = "127.0.0.1:0"
[storage.postgres]
dsn = "{database}"
[storage.qdrant]
url = "{index}"
[providers.embedding]
api_base = "{provider}"
model = "test"
[chunking]
tokenizer_repo = "{}"
"#,
        model().display()
    )
}

impl Town {
    /// Empty and migrated.
    pub async fn start(test: &str) -> Self {
        let site = Site::start().await;
        let server = Qdrant::start(test).await;
        let index = match &server {
            Some(server) => server.url(),
            None => format!("embedded:{}", site.path("index").display()),
        };
        let engine = server.as_ref().map_or("embedded", |_| "a Qdrant server");
        println!("{test}: the index is {engine}");
        let toml = default_toml(&site.database.url(), &index, site.provider.url());
        site.write("elf.toml", toml);
        let seed = seed();
        Self {
            db: site.connect().await,
            corpus: Corpus::seeded(seed),
            random: StdRng::seed_from_u64(seed),
            site,
            server,
        }
    }

    /// Writes `count` notes in one statement: of 20 tenants, and of four scopes each.
    pub async fn load(&mut self, count: usize) -> Vec<Uuid> {
        let texts = self.corpus.texts(count);
        self.write(&texts).await
    }

    /// Writes a note for each of `texts`, likewise.
    pub async fn write(&mut self, texts: &[String]) -> Vec<Uuid> {
        sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, key, text, importance)
             select 'tenant-' || i % 20, 'project-' || i % 3, 'agent-' || i % 7, 'scope-' || i % 4,
                    'fact', case when i % 2 = 0 then 'key-' || gen_random_uuid() end, text, (i % 10) / 10.0
               from unnest($1::text[]) with ordinality as u (text, i)
             returning note_id",
        )
        .bind(texts)
        .fetch_all(&mut self.db)
        .await
        .unwrap()
    }

    /// Edits, relabels, archives, revives, expires and deletes about `count` notes that are of no source, each
    /// drawn at random.
    pub async fn churn(&mut self, count: usize) {
        for _ in 0..count.div_ceil(20) {
            let change = match self.random.random_range(0..10) {
                0..4 => "update memory_notes n set text = $1",
                4 => "update memory_notes n set scope = 'scope-' || length($1)",
                5 => "update memory_notes n set tenant_id = 'tenant-' || length($1) % 20",
                6 => {
                    "update memory_notes n set status = case status when 'active' then 'archived' else 'active' end"
                }
                7 => "update memory_notes n set expires_at = now()",
                8 => "update memory_notes n set expires_at = null",
                _ => "delete from memory_notes n",
            };
            // In one order, so that two of them never deadlock.
            let statement = format!(
                "with chosen as (select note_id from memory_notes where $1::text is not null and source is null
                                  order by note_id offset floor(random() * (select count(*) from memory_notes))::bigint
                                  limit 20 for update)
                 {change} where n.note_id in (select note_id from chosen)"
            );
            let text = self.corpus.text();
            sqlx::query(AssertSqlSafe(statement))
                .bind(text)
                .execute(&mut self.db)
                .await
                .unwrap();
        }
    }

    pub async fn execute(&mut self, statements: &str) {
        sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
            .execute(&mut self.db)
            .await
            .unwrap();
    }

    /// Whether `from` (a table and a condition) has a row.
    pub async fn has(&mut self, from: &str) -> bool {
        let statement = format!("select exists (select from {from})");
        sqlx::query_scalar(AssertSqlSafe(statement))
            .fetch_one(&mut self.db)
            .await
            .unwrap()
    }

    pub async fn count(&mut self, from: &str) -> i64 {
        let statement = format!("select count(*) from {from}");
        sqlx::query_scalar(AssertSqlSafe(statement))
            .fetch_one(&mut self.db)
            .await
            .unwrap()
    }

    /// Waits until `from` has no row any more.
    pub async fn wait_until_none(&mut self, from: &str) {
        let began = Instant::now();
        while self.has(from).await {
            assert!(began.elapsed() < LONG, "{from} still has rows");
        }
    }

    /// Waits until the outbox has only dead letters. Retries come at once, as if their backoff
    /// had passed.
    pub async fn wait_until_drained(&mut self, worker: &Running) {
        let began = Instant::now();
        while self.has("indexing_outbox where status <> 'DEAD'").await {
            assert!(began.elapsed() < LONG, "{}", worker.log());
            if self
                .has("indexing_outbox where status = 'FAILED' and available_at > now()")
                .await
            {
                self.hurry_retries().await;
            }
        }
    }

    /// Makes retries due at once.
    pub async fn hurry_retries(&mut self) {
        // Rows that a worker has locked are left to that worker.
        self.execute(
            "update indexing_outbox o set available_at = now()
               from (select outbox_id from indexing_outbox
                      where status = 'FAILED' and available_at > now()
                        for update skip locked) waiting
              where o.outbox_id = waiting.outbox_id",
        )
        .await;
    }

    /// Expires the leases of workers that died.
    pub async fn expire_leases(&mut self) {
        self.execute(
            "update note_index_state s set lease_until = now() - interval '1 second'
               from (select note_id, embedding_version from note_index_state
                      where lease_until is not null for update skip locked) held
              where (s.note_id, s.embedding_version) = (held.note_id, held.embedding_version)",
        )
        .await;
    }

    /// Waits until `count` notes more than now are indexed, or all of them.
    pub async fn wait_for_progress(&mut self, count: i64) {
        let indexed = "note_index_state where indexed_at is not null";
        let before = self.count(indexed).await;
        let began = Instant::now();
        while self.count(indexed).await < before + count
            && self.has("indexing_outbox where status <> 'DEAD'").await
        {
            assert!(began.elapsed() < LONG, "nothing is indexed");
        }
    }

    /// Compares the index with Postgres. No worker may have an embedded index open.
    pub async fn compare(&self) -> Differences {
        compare(&self.site.database.url(), &self.points().await).await
    }

    /// All points.
    pub async fn points(&self) -> Vec<Point> {
        if let Some(server) = &self.server {
            return points_over_rest(&server.rest(), ALIAS).await;
        }
        let config = Config::parse(&self.site.toml(), "elf.toml", &|_| None).unwrap();
        let index = wiring::index(&config).await.unwrap();
        points_of_engine(&*index, ALIAS).await
    }

    /// The same site with the parts of a worker in this process. The server, if there is
    /// one, has to outlive them.
    pub async fn into_harness(self) -> (Harness, Corpus, Option<Qdrant>) {
        (Harness::over(self.site).await, self.corpus, self.server)
    }
}

impl Harness {
    /// The independent comparison, of an index that this process has open.
    pub async fn compare(&self) -> Differences {
        let points =
            points_of_engine(&*self.pipeline.serving.index, &self.pipeline.serving.alias).await;
        compare(&self.database.url(), &points).await
    }

    /// Writes a note for each of `texts`.
    pub async fn insert_all(&self, texts: &[String]) -> Vec<Uuid> {
        sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             select 'tenant-' || i % 20, 'p', 'a', 's', 'n', text
               from unnest($1::text[]) with ordinality as u (text, i)
             returning note_id",
        )
        .bind(texts)
        .fetch_all(&self.pool)
        .await
        .unwrap()
    }

    /// Works until the outbox has only dead letters. Retries come at once.
    pub async fn drain_with_retries_at_once(&self) {
        let began = Instant::now();
        loop {
            self.drain().await;
            if self.count("indexing_outbox where status <> 'DEAD'").await == 0 {
                return;
            }
            assert!(began.elapsed() < LONG, "the outbox does not become empty");
            sqlx::query("update indexing_outbox set available_at = now() where status = 'FAILED'")
                .execute(&self.pool)
                .await
                .unwrap();
        }
    }
}
