//! A Postgres that is rolled back to an earlier moment, as by a restore or by a failover to a
//! standby that lagged.

use super::harness::Harness;

const TABLES: [&str; 6] = [
    "memory_notes",
    "memory_note_chunks",
    "note_chunk_embeddings",
    "note_embeddings",
    "note_index_state",
    "indexing_outbox",
];

/// The contents of ELF's tables at one moment, kept in Postgres.
pub struct Moment {
    token: i64,
}

impl Moment {
    /// Now.
    pub async fn keep(h: &Harness) -> Self {
        for table in TABLES {
            let copy = format!("create table kept_{table} as table {table}");
            execute(h, copy).await;
        }
        let token = sqlx::query_scalar("select last_value from elf_lease_token")
            .fetch_one(&h.pool)
            .await
            .unwrap();
        Self { token }
    }

    /// Restores rows and tokens.
    pub async fn restore(&self, h: &Harness) {
        let mut all = "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;".to_owned();
        for table in TABLES {
            all += &format!("delete from {table}; insert into {table} select * from kept_{table};");
        }
        all += &format!("select setval('elf_lease_token', {}); commit", self.token);
        execute(h, all).await;
    }
}

async fn execute(h: &Harness, statements: String) {
    sqlx::raw_sql(sqlx::AssertSqlSafe(statements))
        .execute(&h.pool)
        .await
        .unwrap();
}
