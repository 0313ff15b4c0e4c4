//! A database and a vector index that an evaluation makes for its trials, and removes after them.

use std::path::PathBuf;

use anyhow::Context;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, ConnectOptions};
use uuid::Uuid;

use crate::cli::wiring;
use crate::config::{Config, Dsn, Secret};

/// A place for notes, vectors and points beside those of the configuration, on the same servers.
pub(super) struct Scratch {
    server: PgConnection,
    /// Of the database and of the alias.
    name: String,
    /// Of the engine in this process.
    folder: Option<PathBuf>,
}

impl Scratch {
    pub(super) async fn create(config: &Config) -> anyhow::Result<Self> {
        let dsn = Dsn::parse(config.storage.postgres.dsn.expose());
        let dsn = dsn.map_err(|problem| anyhow::anyhow!("storage.postgres.dsn {problem}"))?;
        let options = dsn.options.clone().disable_statement_logging();
        let connected = options.connect().await;
        let mut server = connected.context("failed to connect to storage.postgres.dsn")?;
        let name = format!("elf_eval_{}", Uuid::new_v4().simple());
        run(&mut server, format!("create database {name}"))
            .await
            .with_context(|| {
                format!(
                    "failed to create the database {name} for the trials: the role of \
                     storage.postgres.dsn needs the right to (`alter role … createdb`)"
                )
            })?;
        // A process that is killed leaves it.
        tracing::info!(
            name,
            "database and alias of the trials made, to be removed at the end"
        );
        let folder = config.storage.qdrant.url.strip_prefix("embedded:");
        let folder = folder.map(|folder| PathBuf::from(format!("{folder}-{name}")));
        Ok(Self {
            server,
            name,
            folder,
        })
    }

    /// The configuration, in this place.
    pub(super) fn config(&self, config: &Config) -> anyhow::Result<Config> {
        let mut config = config.clone();
        let postgres = &mut config.storage.postgres;
        let dsn = Dsn::with_database(postgres.dsn.expose(), &self.name);
        let dsn = dsn.map_err(|problem| anyhow::anyhow!("storage.postgres.dsn {problem}"))?;
        postgres.dsn = Secret::new(dsn);
        config.storage.qdrant.alias.clone_from(&self.name);
        if let Some(folder) = &self.folder {
            config.storage.qdrant.url = format!("embedded:{}", folder.display());
        }
        Ok(config)
    }

    /// Removes the collections and the database.
    pub(super) async fn remove(mut self, config: &Config) -> anyhow::Result<()> {
        let config = self.config(config)?;
        let name = self.name;
        let emptied = match &self.folder {
            Some(folder) if folder.exists() => std::fs::remove_dir_all(folder)
                .with_context(|| format!("failed to remove {}", folder.display())),
            Some(_) => Ok(()),
            None => drop_collections(&config)
                .await
                .with_context(|| format!("failed to drop the collections named {name}__…")),
        };
        run(
            &mut self.server,
            format!("drop database {name} with (force)"),
        )
        .await
        .with_context(|| format!("failed to drop the database {name}: drop it by hand"))?;
        emptied
    }
}

async fn drop_collections(config: &Config) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    if store.check_schema().await.is_err() {
        // It ended before it made a collection.
        return Ok(());
    }
    let serving = wiring::with_index(config, store).await?;
    for collection in serving.store.registered_collections().await? {
        serving.index.drop_collection(&collection.name).await?;
    }
    Ok(())
}

async fn run(server: &mut PgConnection, statement: String) -> sqlx::Result<()> {
    let statement = sqlx::raw_sql(AssertSqlSafe(statement));
    statement.execute(server).await.map(drop)
}
