//! The program `elf` on a database of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::{Result, engine};

/// A migrated database, and a folder with its `elf.toml`.
pub struct Site {
    pub db: PgConnection,
    /// Its name, and that of the alias.
    pub name: String,
    pub dsn: String,
    pub folder: tempfile::TempDir,
    index: String,
}

impl Site {
    /// Empty. `settings` go on in `[providers.embedding]` and may begin more sections.
    pub async fn start(index: &str, provider: &str, settings: &str) -> Result<Self> {
        let dsn = std::env::var("DATABASE_URL")?;
        Self::through(&dsn, index, provider, settings).await
    }

    /// The daemon reaches Postgres and Qdrant at these URLs, which may be proxies.
    pub async fn through(
        postgres: &str,
        index: &str,
        provider: &str,
        settings: &str,
    ) -> Result<Self> {
        let name = create_database().await?;
        let folder = tempfile::tempdir()?;
        let model = crate::model()?;
        std::fs::write(
            folder.path().join("elf.toml"),
            format!(
                "[service]\nadmin_bind = \"127.0.0.1:0\"\n[storage.postgres]\ndsn = {:?}\n\
                 [storage.qdrant]\nurl = {index:?}\nalias = {name:?}\n\
                 [chunking]\ntokenizer_repo = {:?}\n\
                 [providers.embedding]\napi_base = {provider:?}\nmodel = \"bench\"\n{settings}",
                dsn_of(postgres, &name)?,
                model.display().to_string(),
            ),
        )?;
        let migrated = elf(folder.path(), &["migrate"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        assert!(migrated.success(), "the schema is there");
        let dsn = dsn_of(&std::env::var("DATABASE_URL")?, &name)?;
        Ok(Self {
            db: PgConnection::connect(&dsn).await?,
            name,
            dsn,
            folder,
            index: index.to_owned(),
        })
    }

    /// Commits notes with these texts, in one transaction; their ids, in order.
    pub async fn insert(&mut self, texts: &[String]) -> Result<Vec<Uuid>> {
        let ids: Vec<Uuid> = texts.iter().map(|_| Uuid::new_v4()).collect();
        sqlx::query(
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             select n, 't', 'p', 'a', 's', 'n', t from unnest($1::uuid[], $2::text[]) u (n, t)",
        )
        .bind(&ids)
        .bind(texts)
        .execute(&mut self.db)
        .await?;
        Ok(ids)
    }

    /// Seconds since `began` when the outbox is empty.
    pub async fn wait_until_drained(&mut self, began: Instant) -> Result<f64> {
        // Along the index that claims use: dead rows in it are skipped after the first look.
        let due = "select exists (select from indexing_outbox
                    where embedding_version is null and status in ('PENDING', 'FAILED')
                    order by embedding_version, available_at, outbox_id limit 1)";
        let left = "select exists (select from indexing_outbox)";
        for statement in [due, left] {
            while sqlx::query_scalar::<_, bool>(statement)
                .fetch_one(&mut self.db)
                .await?
            {
                // Half a percent of the time, so that looking costs little.
                let pause = began.elapsed() / 200;
                tokio::time::sleep(pause.clamp(ms(2), ms(100))).await;
            }
        }
        Ok(began.elapsed().as_secs_f64())
    }

    pub async fn count(&mut self, table: &str) -> Result<i64> {
        let count = AssertSqlSafe(format!("select count(*) from {table}"));
        Ok(sqlx::query_scalar(count).fetch_one(&mut self.db).await?)
    }

    /// Drops the database and the collections.
    pub async fn end(mut self) -> Result<()> {
        if self.index.starts_with("http") {
            let collections: Vec<String> =
                sqlx::query_scalar("select collection from index_collections")
                    .fetch_all(&mut self.db)
                    .await?;
            let client = engine::client(&self.index)?;
            for collection in collections {
                client.delete_collection(collection).await?;
            }
        }
        self.db.close().await?;
        drop_database(&self.name).await
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Creates a database with a new name.
pub async fn create_database() -> Result<String> {
    let name = format!("elf_bench_{}", Uuid::new_v4().simple());
    let mut server = PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
    execute(&mut server, format!("create database {name}")).await?;
    Ok(name)
}

pub async fn drop_database(name: &str) -> Result<()> {
    let mut server = PgConnection::connect(&std::env::var("DATABASE_URL")?).await?;
    execute(&mut server, format!("drop database {name} with (force)")).await
}

/// The URL of another database of a server.
pub fn dsn_of(server: &str, database: &str) -> Result<String> {
    let mut dsn = reqwest::Url::parse(server)?;
    dsn.set_path(database);
    Ok(dsn.into())
}

/// Executes a statement that has no arguments.
pub async fn execute(connection: &mut PgConnection, statement: String) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}

/// `elf <arguments>` with the `elf.toml` of `folder`.
pub fn elf(folder: &Path, arguments: &[&str]) -> Command {
    let mut elf = Command::new(env!("CARGO_BIN_EXE_elf"));
    elf.args(arguments).current_dir(folder);
    for name in ["ELF_CONFIG", "RUST_LOG", "DATABASE_URL"] {
        elf.env_remove(name);
    }
    elf
}

/// `elf worker`, killed when this is dropped.
pub struct Worker(Child);

impl Worker {
    /// Returns when it is idle.
    pub fn start(folder: &Path) -> Result<Self> {
        let mut child = elf(folder, &["worker"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines();
        let worker = Self(child);
        let mut said = String::new();
        loop {
            let line = log
                .next()
                .ok_or_else(|| format!("a worker ended early: {said}"))??;
            if line.contains(" worker started ") {
                break;
            }
            said += &line;
            said.push('\n');
        }
        // The bench reads its output, because a full pipe would stop the worker.
        std::thread::spawn(move || log.for_each(drop));
        Ok(worker)
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
