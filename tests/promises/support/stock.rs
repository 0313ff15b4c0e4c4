//! Many notes that are indexed as far as Postgres knows, written in one statement.

use elf::note::chunk_id;
use pgvector::Vector;
use uuid::Uuid;

use super::embedding_server::vector_of;
use super::harness::Harness;

impl Harness {
    /// `count` notes of one chunk each, with vectors and all that a worker records,
    /// and no point in the index.
    pub async fn stock(&self, count: usize) -> Vec<Uuid> {
        let texts: Vec<String> = (0..count).map(|i| format!("Stock note {i}.")).collect();
        self.stock_notes(&texts).await
    }

    /// The same with these texts, each of which has to be one chunk.
    pub async fn stock_notes(&self, texts: &[String]) -> Vec<Uuid> {
        let version = &self.pipeline.version;
        let notes: Vec<Uuid> = texts.iter().map(|_| Uuid::new_v4()).collect();
        let chunks: Vec<Uuid> = notes.iter().map(|note| chunk_id(*note, 0)).collect();
        let vectors: Vec<Vector> = texts
            .iter()
            .map(|text| Vector::from(vector_of(text, version.dim)))
            .collect();
        let mut tx = self.pool.begin().await.unwrap();
        // No triggers: nothing goes into the outbox.
        sqlx::raw_sql("alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica")
            .execute(&mut *tx)
            .await
            .unwrap();
        let token: i64 = sqlx::query_scalar("select nextval('elf_lease_token')")
            .fetch_one(&mut *tx)
            .await
            .unwrap();
        for statement in [
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             select note_id, 't', 'p', 'a', 's', 'n', text
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::vector[]) as u (note_id, chunk_id, text, vec)
              where $5::text is not null and $6::int > 0 and $7::bigint > 0",
            "insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset,
                                             text, text_sha256, embedding_version, revision)
             select chunk_id, note_id, 0, 0, octet_length(text), text, sha256(convert_to(text, 'UTF8')), $5, $7
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::vector[]) as u (note_id, chunk_id, text, vec)
              where $6::int > 0",
            "insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
             select chunk_id, $5, $6, vec
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::vector[]) as u (note_id, chunk_id, text, vec)
              where $7::bigint > 0",
            "insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
             select note_id, $5, $6, vec
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::vector[]) as u (note_id, chunk_id, text, vec)
              where $7::bigint > 0",
            "insert into note_index_state (note_id, embedding_version, lease_token, revision, text_sha256,
                                           chunk_count, indexed_at)
             select note_id, $5, $7, $7, sha256(convert_to(text, 'UTF8')), 1, now()
               from unnest($1::uuid[], $2::uuid[], $3::text[], $4::vector[]) as u (note_id, chunk_id, text, vec)
              where $6::int > 0",
        ] {
            sqlx::query(statement)
                .bind(&notes)
                .bind(&chunks)
                .bind(texts)
                .bind(&vectors)
                .bind(&version.name)
                .bind(version.dim as i32)
                .bind(token)
                .execute(&mut *tx)
                .await
                .unwrap();
        }
        tx.commit().await.unwrap();
        notes
    }
}
