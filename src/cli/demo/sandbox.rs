//! The demo's own database, folder and configuration, which it makes anew at each start.

use std::ffi::OsString;
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

/// The file that the demo puts into its folder, and what it says. The database has it as its comment.
/// The demo deletes nothing without it.
const MARKER: &str = "elf-demo";
const MADE_BY: &str = "made by elf demo, which deletes it at its next start";

/// What the vector engine makes in its folder.
const OF_THE_ENGINE: &[&str] = &[
    "lock",
    "socket",
    "id",
    "id.draft",
    "aliases.json",
    "aliases.draft",
    "collections",
];

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
    // Both before the first is deleted.
    let leftovers = leftovers(&args.dir)?;
    check_database(&mut admin).await?;
    for statement in [
        format!("drop database if exists {DATABASE} with (force)"),
        format!("create database {DATABASE}"),
        format!("comment on database {DATABASE} is '{MADE_BY}'"),
    ] {
        admin.execute(AssertSqlSafe(statement)).await?;
    }
    empty_folder(&args.dir, &leftovers)
        .with_context(|| format!("failed to empty {}", args.dir.display()))?;
    Ok(admin)
}

/// Checks that a database of the demo's name is the demo's.
async fn check_database(admin: &mut PgConnection) -> anyhow::Result<()> {
    let comment: Option<Option<String>> = sqlx::query_scalar(
        "select shobj_description(oid, 'pg_database') from pg_database where datname = $1",
    )
    .bind(DATABASE)
    .fetch_optional(admin)
    .await?;
    anyhow::ensure!(
        comment.is_none_or(|comment| comment.as_deref() == Some(MADE_BY)),
        "there is a database {DATABASE} that the demo did not make: rename it, or drop it \
         (drop database {DATABASE}) if nothing in it is needed"
    );
    Ok(())
}

/// The demo's configuration, as `elf.toml` would have it, with more blocks at its end.
pub(super) fn configure(args: &Args, max_tokens: usize, more: &str) -> anyhow::Result<Config> {
    let mut dsn = reqwest::Url::parse(&args.database_url).context("--database-url is not a URL")?;
    dsn.set_path(DATABASE);
    let text = format!(
        "[storage.postgres]\ndsn = {:?}\n[storage.qdrant]\nurl = {:?}\n\
         [providers.embedding]\nprovider = \"local\"\nmodel = {:?}\n\
         [chunking]\nmax_tokens = {max_tokens}\noverlap_tokens = 32\n\
         [service]\nadmin_bind = \"127.0.0.1:0\"\nadmin_token = \"{TOKEN}\"\n\
         log_level = \"error\"\n{more}",
        dsn.as_str(),
        format!("embedded:{}", args.dir.display()),
        args.model,
    );
    Ok(Config::parse(&text, "the demo's configuration", &|name| {
        std::env::var(name).ok()
    })?)
}

/// The names in the folder, if all of them are the demo's; anything else is an error.
fn leftovers(dir: &Path) -> anyhow::Result<Vec<OsString>> {
    if !dir.try_exists()? {
        return Ok(Vec::new());
    }
    let failed = || format!("failed to look into {}", dir.display());
    let names = dir.read_dir().with_context(failed)?;
    let names = names.map(|entry| Ok(entry?.file_name()));
    let names: Vec<OsString> = names.collect::<std::io::Result<_>>().with_context(failed)?;
    let is_marked = names.iter().any(|name| name == MARKER);
    let is_ours = |name: &OsString| name == MARKER || OF_THE_ENGINE.iter().any(|ours| name == ours);
    anyhow::ensure!(
        names.is_empty() || (is_marked && names.iter().all(is_ours)),
        "{} holds files that are not the demo's, and the demo empties its folder: name another one \
         with --dir",
        dir.display()
    );
    Ok(names)
}

/// Deletes these, and marks the folder. The marker goes last and comes first, so that a demo that was
/// killed finds it.
fn empty_folder(dir: &Path, leftovers: &[OsString]) -> std::io::Result<()> {
    for name in leftovers.iter().filter(|name| *name != MARKER) {
        let path = dir.join(name);
        match path.symlink_metadata()?.is_dir() {
            true => std::fs::remove_dir_all(path)?,
            false => std::fs::remove_file(path)?,
        }
    }
    std::fs::create_dir_all(dir)?;
    std::fs::write(dir.join(MARKER), MADE_BY)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn only_a_folder_that_the_demo_made_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let demo = dir.path().join("new");
        empty_folder(&demo, &leftovers(&demo).unwrap()).unwrap();
        std::fs::write(demo.join("lock"), "").unwrap();
        std::fs::create_dir_all(demo.join("collections/notes__1")).unwrap();
        empty_folder(&demo, &leftovers(&demo).unwrap()).unwrap();
        assert_eq!(leftovers(&demo).unwrap(), [MARKER]);

        std::fs::write(demo.join("thesis.txt"), "mine").unwrap();
        leftovers(&demo).unwrap_err();

        // Another program's index, a folder with a file of that name, and an empty one.
        let index = dir.path().join("index");
        std::fs::create_dir_all(index.join("collections")).unwrap();
        std::fs::write(index.join("lock"), "").unwrap();
        leftovers(&index).unwrap_err();
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        assert!(leftovers(&empty).unwrap().is_empty());
    }
}
