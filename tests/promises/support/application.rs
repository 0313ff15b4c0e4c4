//! An application that writes notes at random, and checks how far ELF has indexed them.

use std::collections::HashSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::DEADLINE;
use super::database::TestDatabase;
use super::harness::sentences;
use super::site::Running;

/// The seed of all random choices: `ELF_TEST_SEED`, or a new one each time, which is printed.
pub fn seed() -> u64 {
    let given = std::env::var("ELF_TEST_SEED").ok();
    let seed = given.map_or_else(rand::random, |seed| seed.parse().unwrap());
    println!("ELF_TEST_SEED={seed}");
    seed
}

/// An application that writes notes, and rows that are notes if there are [`Articles`](super::articles::Articles). No
/// two texts of it have a chunk in common.
pub struct Application {
    pub(super) name: &'static str,
    pub db: PgConnection,
    pub random: StdRng,
    notes: Vec<Uuid>,
    texts: usize,
    sentences: usize,
    has_articles: bool,
}

impl Application {
    /// Makes the same changes for the same seed, which `ELF_TEST_SEED` may set.
    pub async fn of(database: &TestDatabase) -> Self {
        Self::named("", database, seed(), 20).await
    }

    /// One of several on one database: `name` is in its texts, which have fewer than
    /// `sentences` sentences.
    pub async fn named(
        name: &'static str,
        database: &TestDatabase,
        seed: u64,
        sentences: usize,
    ) -> Self {
        let seed = name.bytes().fold(seed, |seed, byte| {
            seed.wrapping_mul(31).wrapping_add(byte.into())
        });
        let mut db = PgConnection::connect(&database.url()).await.unwrap();
        let has_articles = sqlx::query_scalar("select to_regclass('articles') is not null");
        Self {
            has_articles: has_articles.fetch_one(&mut db).await.unwrap(),
            name,
            db,
            random: StdRng::seed_from_u64(seed),
            notes: Vec::new(),
            texts: 0,
            sentences,
        }
    }

    /// Connects again, to a Postgres that has crashed.
    pub async fn connect(&mut self, database: &TestDatabase) {
        self.db = PgConnection::connect(&database.url()).await.unwrap();
    }

    pub(super) fn text(&mut self) -> String {
        self.texts += 1;
        let length = self.random.random_range(1..self.sentences);
        sentences(length, &format!("subject {}{}", self.name, self.texts))
    }

    pub async fn insert(&mut self) {
        let text = self.text();
        let note = sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1) returning note_id",
        )
        .bind(text)
        .fetch_one(&mut self.db)
        .await
        .unwrap();
        self.notes.push(note);
    }

    /// Inserts, edits, relabels, expires, revives or deletes a note, or writes rows.
    pub async fn change(&mut self) {
        if self.has_articles && self.random.random_bool(0.5) {
            return self.write_rows().await;
        }
        let Some(note) = self.notes.choose(&mut self.random).copied() else {
            return self.insert().await;
        };
        let text = self.text();
        let statement = match self.random.random_range(0..10) {
            0..3 => return self.insert().await,
            3..6 => "update memory_notes set text = $2 where note_id = $1",
            6 => "update memory_notes set scope = md5($2) where note_id = $1",
            7 => "update memory_notes set expires_at = now() where note_id = $1 and $2 is not null",
            8 => "update memory_notes set expires_at = null where note_id = $1 and $2 is not null",
            _ => "delete from memory_notes where note_id = $1 and $2 is not null",
        };
        sqlx::query(statement)
            .bind(note)
            .bind(text)
            .execute(&mut self.db)
            .await
            .unwrap();
    }

    /// Lets a random while pass, measured in round trips to Postgres.
    pub async fn linger(&mut self) {
        for _ in 0..self.random.random_range(0..60) {
            self.db.ping().await.unwrap();
        }
    }

    pub async fn count(&mut self, from: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
            .fetch_one(&mut self.db)
            .await
            .unwrap()
    }

    /// Waits until `from` has rows.
    pub async fn wait_until(&mut self, from: &str) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while self.count(from).await == 0 {
            assert!(tokio::time::Instant::now() < deadline, "none of {from}");
        }
    }

    pub async fn execute(&mut self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.db)
            .await
            .unwrap();
    }

    /// Expires the leases of `holder` (a part of its name).
    pub async fn expire_leases(&mut self, holder: &str) {
        // Without the order that claims use, this statement and a claim could deadlock.
        self.execute(&format!(
            "update note_index_state s set lease_until = now() - interval '1 second'
               from (select note_id from note_index_state
                      where lease_until is not null and holder like '%{holder}%'
                        for update skip locked) free
              where s.note_id = free.note_id"
        ))
        .await;
    }

    /// Waits until the outbox has only the done rows that are kept.
    pub async fn wait_until_drained(&mut self, workers: &[&Running]) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while self.count("indexing_outbox where status <> 'DONE'").await > 0 {
            assert!(
                tokio::time::Instant::now() < deadline,
                "the outbox does not become empty:\n{}",
                workers.iter().map(|w| w.log()).collect::<String>()
            );
        }
    }

    /// Waits until more than `done` rows are done, so that a worker is in the middle of its work.
    pub async fn wait_for_more_than(&mut self, done: i64) {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while self.count("indexing_outbox where status = 'DONE'").await <= done {
            assert!(tokio::time::Instant::now() < deadline, "nothing is indexed");
        }
    }

    /// Waits until Postgres has ended the sessions of ELF's dead processes: their
    /// transactions are committed or rolled back.
    pub async fn wait_until_alone(&mut self) {
        let elf =
            "pg_stat_activity where datname = current_database() and application_name = 'elf'";
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while self.count(elf).await > 0 {
            assert!(tokio::time::Instant::now() < deadline, "its sessions stay");
        }
    }

    /// The texts whose vectors Postgres has.
    pub async fn paid_for(&mut self) -> HashSet<String> {
        let texts: Vec<String> = sqlx::query_scalar(
            "select text from memory_note_chunks join note_chunk_embeddings using (chunk_id, embedding_version)",
        )
        .fetch_all(&mut self.db)
        .await
        .unwrap();
        texts.into_iter().collect()
    }

    /// Fails if a note has failed even once. Needs a site that keeps its done rows.
    pub async fn assert_no_attempts(&mut self) {
        assert_eq!(self.count("indexing_outbox where attempts > 0").await, 0);
        assert_eq!(
            self.count("indexing_outbox where last_error is not null")
                .await,
            0
        );
        self.execute("delete from indexing_outbox where status = 'DONE'")
            .await;
    }
}
