//! The demo's own database, folder and configuration, which it makes anew at each start.

use std::path::Path;

use anyhow::Context;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::Args;
use crate::config::Config;

/// The demo's own database on the server of --database-url.
const DATABASE: &str = "elf_demo";

/// An advisory lock in the database of --database-url: only one demo runs at a time.
const LOCK: i64 = 0x656c665f64656d6f;

/// The admin token of the demo. It is public, and the admin port is bound to this machine.
pub(super) const TOKEN: &str = "elf-demo-admin-token";

/// Creates the database anew and empties the folder. The returned connection holds the
/// lock: no other demo runs until it is dropped.
pub(super) async fn start_anew(args: &Args) -> anyhow::Result<PgConnection> {
    let mut admin = PgConnection::connect(&args.database_url)
        .await
        .context("failed to connect to --database-url")?;
    let is_alone: bool = sqlx::query_scalar("select pg_try_advisory_lock($1)")
        .bind(LOCK)
        .fetch_one(&mut admin)
        .await?;
    anyhow::ensure!(
        is_alone,
        "another demo is running, perhaps one with --keep: stop it first"
    );
    admin
        .execute(AssertSqlSafe(format!(
            "drop database if exists {DATABASE} with (force)"
        )))
        .await?;
    admin
        .execute(AssertSqlSafe(format!("create database {DATABASE}")))
        .await?;
    remove_folder(&args.dir)?;
    Ok(admin)
}

/// The demo's configuration, as `elf.toml` would have it.
pub(super) fn configure(args: &Args, max_tokens: usize) -> anyhow::Result<Config> {
    let mut dsn = reqwest::Url::parse(&args.database_url).context("--database-url is not a URL")?;
    dsn.set_path(DATABASE);
    let text = format!(
        "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {:?}\n\
         [providers.embedding]\nprovider = \"local\"\nmodel = {:?}\n\
         [chunking]\nmax_tokens = {max_tokens}\noverlap_tokens = 32\n\
         [service]\nadmin_bind = \"127.0.0.1:0\"\nadmin_token = \"{TOKEN}\"\n\
         log_level = \"error\"\n",
        dsn.as_str(),
        format!("embedded:{}", args.dir.display()),
        args.model,
    );
    Ok(Config::parse(&text, "the demo's configuration", &|name| {
        std::env::var(name).ok()
    })?)
}

/// Removes the folder if the vector engine made it or if it is empty; any other folder is an
/// error.
fn remove_folder(dir: &Path) -> anyhow::Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    let ours = dir.join("lock").exists() || dir.read_dir()?.next().is_none();
    anyhow::ensure!(
        ours,
        "{} holds files that are not the demo's: name another folder with --dir",
        dir.display()
    );
    std::fs::remove_dir_all(dir).with_context(|| format!("failed to empty {}", dir.display()))
}
