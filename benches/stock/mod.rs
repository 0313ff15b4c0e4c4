//! A database with chunks and vectors as a worker leaves them, made in SQL, and its index.

use std::collections::HashMap;

use elf::config::Config;
use elf::index::{self, CollectionSpec};
use elf::registry::IndexContext;
use elf::store::{Store, Version};
use qdrant_client::qdrant::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

pub const CHUNKS_A_NOTE: usize = 4;
pub const DIM: usize = 384;
/// Tenants of equal size.
pub const TENANTS: usize = 1000;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A database whose chunks, vectors and states are as a worker leaves them.
pub struct Database {
    pub name: String,
    admin: String,
}

impl Database {
    pub async fn create(chunks: usize) -> Result<Self> {
        let admin = std::env::var("DATABASE_URL")?;
        let name = format!("elf_bench_{}", Uuid::new_v4().simple());
        let mut connection = PgConnection::connect(&admin).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("create database {name}")))
            .execute(&mut connection)
            .await?;
        let store = Store::connect(&dsn(&name)?, 2).await?;
        store.migrate().await?;
        let version = version();
        store.register_first_version(&version).await?;
        let rows = ROWS
            .replace("{version}", &version.name)
            .replace("{notes}", &(chunks / CHUNKS_A_NOTE).to_string())
            .replace("{per_note}", &CHUNKS_A_NOTE.to_string())
            .replace("{tenants}", &TENANTS.to_string())
            .replace("{dim}", &DIM.to_string());
        sqlx::raw_sql(AssertSqlSafe(rows))
            .execute(store.pool())
            .await?;
        store.pool().close().await;
        Ok(Self { name, admin })
    }

    pub async fn end(self, site: &IndexContext) -> Result<()> {
        for collection in site.store.registered_collections().await? {
            site.index.drop_collection(&collection.name).await?;
        }
        site.store.pool().close().await;
        let mut connection = PgConnection::connect(&self.admin).await?;
        sqlx::raw_sql(AssertSqlSafe(format!(
            "drop database {} with (force)",
            self.name
        )))
        .execute(&mut connection)
        .await?;
        Ok(())
    }
}

/// Notes of some chunks each, about 560 bytes a chunk. The words come from 20,000, some
/// far more often than others: with a few words only, each in every chunk, the engine's
/// sparse index would be all that is measured.
const ROWS: &str = "
select setseed(0.5);
create temporary table pieces as
select piece, string_agg(substring(md5((20000 * random() ^ 2)::int::text) for 7), ' ') as text
  from generate_series(0, 4999) piece, generate_series(1, 68)
 group by piece;
create index on pieces (piece);
alter table memory_notes disable trigger user;
create temporary table parts as
select md5('note' || n)::uuid as note_id, c as chunk_index,
       'Chunk ' || n || '-' || c || ': ' || pieces.text || '. ' as text
  from generate_series(1, {notes}) n
 cross join generate_series(0, {per_note} - 1) c
  join pieces on piece = abs(hashint4(n * 16 + c)) % 5000;
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
analyze;
";

pub fn version() -> Version {
    Version {
        name: "bench-384".into(),
        dim: DIM,
        settings: serde_json::json!({}),
    }
}

pub fn dsn(database: &str) -> Result<String> {
    let mut dsn = reqwest::Url::parse(&std::env::var("DATABASE_URL")?)?;
    dsn.set_path(database);
    Ok(dsn.into())
}

pub async fn site_of(database: &str, url: &str) -> Result<IndexContext> {
    let text = format!(
        "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {url:?}\nalias = {database:?}\n",
        dsn(database)?
    );
    let config = Config::parse(&text, "bench", &|_| None)?;
    Ok(IndexContext {
        store: Store::connect(config.storage.postgres.dsn.expose(), 10).await?,
        index: index::connect(&config.storage.qdrant).await?,
        alias: config.storage.qdrant.alias.clone(),
        bm25: config.storage.qdrant.bm25,
    })
}

/// With an empty collection, as after the loss of the index.
pub async fn site(database: &str, url: &str) -> Result<IndexContext> {
    let site = site_of(database, url).await?;
    let first = site
        .store
        .register_first_collection(&version().name, &site.alias)
        .await?;
    site.index
        .create_collection(&first.name, &spec(&site))
        .await?;
    site.index.point_alias(&site.alias, &first.name).await?;
    Ok(site)
}

pub fn spec(site: &IndexContext) -> CollectionSpec {
    CollectionSpec {
        dim: DIM,
        bm25: site.bm25.clone(),
        embedding_version: version().name,
    }
}

/// JSON as the client of Qdrant has it.
pub fn values(json: &serde_json::Map<String, serde_json::Value>) -> HashMap<String, Value> {
    let value = |json: &serde_json::Value| -> Value {
        match json {
            serde_json::Value::String(text) => text.clone().into(),
            serde_json::Value::Number(n) => match n.as_i64() {
                Some(integer) => integer.into(),
                None => n.as_f64().unwrap_or(f64::NAN).into(),
            },
            other => unreachable!("a payload has no {other}"),
        }
    };
    json.iter()
        .map(|(key, json)| (key.clone(), value(json)))
        .collect()
}
