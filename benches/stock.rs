//! A database with chunks and vectors as a worker leaves them, made in SQL, and its index.

use elf::config::Config;
use elf::index::{self, CollectionSpec, Filter};
use elf::serving::Serving;
use elf::store::{Store, Version};
use sqlx::AssertSqlSafe;

use crate::Result;
use crate::corpus::{Corpus, Kind};
use crate::daemon::{create_database, drop_database, dsn_of};

pub const CHUNKS_A_NOTE: usize = 4;
/// Tenants of equal size.
pub const TENANTS: usize = 1000;

/// Texts that chunks are made of.
const PIECES: usize = 5000;
const PIECE_BYTES: usize = 550;

/// A database whose chunks, vectors and states are as a worker leaves them.
pub struct Database {
    pub name: String,
    pub dim: usize,
    pub chunks: usize,
}

impl Database {
    pub async fn create(corpus: &Corpus, chunks: usize, dim: usize) -> Result<Self> {
        let name = create_database().await?;
        let database = Self { name, dim, chunks };
        let store = Store::connect(&database.dsn()?, 2).await?;
        store.migrate().await?;
        let version = database.version();
        store.register_first_version(&version).await?;
        let pieces: Vec<String> = (0..PIECES)
            .map(|seed| corpus.text(Kind::Mixed, seed as u64, PIECE_BYTES))
            .collect();
        let mut connection = store.pool().acquire().await?;
        sqlx::query(
            "create table pieces as select (n - 1)::int as piece, text
               from unnest($1::text[]) with ordinality u (text, n)",
        )
        .bind(&pieces)
        .execute(&mut *connection)
        .await?;
        let rows = ROWS
            .replace("{version}", &version.name)
            .replace("{notes}", &(chunks / CHUNKS_A_NOTE).to_string())
            .replace("{per_note}", &CHUNKS_A_NOTE.to_string())
            .replace("{tenants}", &TENANTS.to_string())
            .replace("{pieces}", &PIECES.to_string())
            .replace("{dim}", &dim.to_string());
        sqlx::raw_sql(AssertSqlSafe(rows))
            .execute(&mut *connection)
            .await?;
        drop(connection);
        store.pool().close().await;
        Ok(database)
    }

    pub fn dsn(&self) -> Result<String> {
        dsn_of(&std::env::var("DATABASE_URL")?, &self.name)
    }

    pub fn version(&self) -> Version {
        Version {
            name: format!("bench-{}", self.dim),
            dim: self.dim,
            settings: serde_json::json!({}),
        }
    }

    /// Postgres and Qdrant, with an empty collection as after the loss of the index.
    pub async fn serving(&self, url: &str) -> Result<Serving> {
        self.with_settings(url, "").await
    }

    /// [`Self::serving`], with more settings of `[storage.qdrant]`.
    pub async fn with_settings(&self, url: &str, settings: &str) -> Result<Serving> {
        let text = format!(
            "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {url:?}\nalias = {:?}\n{settings}",
            self.dsn()?,
            self.name
        );
        let config = Config::parse(&text, "bench", &|_| None)?;
        let serving = Serving {
            store: Store::connect(config.storage.postgres.dsn.expose(), 10).await?,
            index: index::connect(&config.storage.qdrant).await?,
            alias: config.storage.qdrant.alias.clone(),
            bm25: config.storage.qdrant.bm25,
            fields: config.metadata.clone(),
        };
        let first = serving
            .store
            .register_first_collection(&self.version().name, &serving.alias)
            .await?;
        serving
            .index
            .create_collection(&first.name, &self.spec(&serving))
            .await?;
        serving
            .index
            .point_alias(&serving.alias, &first.name)
            .await?;
        Ok(serving)
    }

    pub fn spec(&self, serving: &Serving) -> CollectionSpec {
        CollectionSpec {
            dim: self.dim,
            bm25: serving.bm25.clone(),
            embedding_version: self.version().name,
        }
    }

    /// Points of a collection.
    pub async fn points(&self, serving: &Serving, collection: &str) -> Result<u64> {
        Ok(serving.index.count(collection, &Filter::default()).await?)
    }

    /// Drops the collections, and forgets them and their rebuild.
    pub async fn drop_collections(&self, serving: &Serving) -> Result<()> {
        for collection in serving.store.registered_collections().await? {
            serving.index.drop_collection(&collection.name).await?;
        }
        sqlx::raw_sql("delete from index_job; delete from index_collections")
            .execute(serving.store.pool())
            .await?;
        serving.store.pool().close().await;
        Ok(())
    }

    pub async fn end(self, serving: &Serving) -> Result<()> {
        self.drop_collections(serving).await?;
        drop_database(&self.name).await
    }
}

/// Notes of some chunks each, about 560 bytes a chunk. The pieces are real words; a number makes each
/// chunk's text another one.
const ROWS: &str = "
select setseed(0.5);
create index on pieces (piece);
alter table memory_notes disable trigger user;
create temporary table parts as
select md5('note' || n)::uuid as note_id, c as chunk_index,
       'Chunk ' || n || '-' || c || ': ' || pieces.text || '. ' as text
  from generate_series(1, {notes}) n
 cross join generate_series(0, {per_note} - 1) c
  join pieces on piece = abs(hashint4(n * 16 + c)) % {pieces};
insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
select note_id, 't' || abs(hashtext(note_id::text)) % {tenants}, 'p', 'a', 's', 'n', string_agg(text, '' order by chunk_index) from parts group by note_id;
insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256,
                                embedding_version, revision)
select md5(note_id::text || chunk_index)::uuid, note_id, chunk_index,
       sum(octet_length(text)) over w - octet_length(text), sum(octet_length(text)) over w, text,
       sha256(convert_to(text, 'UTF8')), '{version}', 1
  from parts window w as (partition by note_id order by chunk_index);
insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
select c.chunk_id, '{version}', {dim},
       (select array_agg((random() - 0.5)::real) from generate_series(1, {dim}) where c.chunk_id is not null)::vector
  from memory_note_chunks c;
insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
select c.note_id, '{version}', {dim}, avg(e.vec)
  from memory_note_chunks c join note_chunk_embeddings e using (chunk_id) group by c.note_id;
insert into note_index_state (note_id, embedding_version, lease_token, revision, text_sha256, chunk_count, indexed_at)
select note_id, '{version}', 1, 1, sha256(convert_to(text, 'UTF8')), {per_note}, now() from memory_notes;
alter table memory_notes enable trigger user;
";
