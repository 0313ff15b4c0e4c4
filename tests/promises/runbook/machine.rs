//! A machine on which the tests run the commands of the runbook.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sqlx::{AssertSqlSafe, PgConnection};

use super::PAGE;
use crate::support::components::missing;
use crate::support::docs::{Block, all_blocks, shell};
use crate::support::eventually;
use crate::support::harness::sentences;
use crate::support::qdrant::Qdrant;
use crate::support::site::{Done, Site, run};

/// What the runbook needs of systemd: one unit, elf.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd "$(dirname "$0")/.."
case "$1" in
start)
    rm -f pid code
    (
        elf worker >>log 2>&1 &
        echo $! >pid
        wait $!
        echo $? >code
    ) >/dev/null 2>&1 </dev/null &
    until [ -s pid ]; do sleep 0.01; done
    ;;
stop)
    if [ -s pid ] && [ ! -s code ]; then
        kill -TERM "$(cat pid)" || true
        until [ -s code ]; do sleep 0.01; done
    fi
    ;;
restart)
    "$0" stop elf
    "$0" start elf
    ;;
esac
"#;

const JOURNALCTL: &str = r#"#!/bin/sh
tail -n 20 "$(dirname "$0")/../log"
"#;

const UNTIL_STDIN_CLOSES: &str =
    "cat >/dev/null; [ -s code ] || [ ! -s pid ] || kill -9 $(cat pid)";

/// The commands of one section, to be run in their order.
pub struct Section(VecDeque<Block>);

impl Section {
    pub fn of(name: &str) -> Self {
        let runs = |block: &Block| ["sh", "sql", "toml", "ini"].contains(&&*block.language);
        let blocks = all_blocks(PAGE).into_iter();
        Self(
            blocks
                .filter(|block| block.section == name && runs(block))
                .collect(),
        )
    }

    #[track_caller]
    pub fn next(&mut self) -> Block {
        self.0
            .pop_front()
            .expect("the section has one more block to run")
    }

    #[track_caller]
    pub fn end(self) {
        assert!(self.0.is_empty(), "these were not run: {:?}", self.0);
    }
}

/// A machine with ELF on it, before its first start.
pub struct Machine {
    pub site: Site,
    pub qdrant: Qdrant,
    pub path: String,
    /// Ends the processes that `systemctl` has started, however the test ends.
    keeper: std::process::Child,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The folder, which has the file with the process id, is deleted after this.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Machine {
    /// `None`, with a message, where a program that the runbook needs is missing.
    pub async fn new(test: &str) -> Option<Self> {
        let qdrant = Qdrant::start(test).await?;
        let site = Site::empty().await;
        site.use_server(&qdrant.url());
        site.configure("log_level = \"debug\"", "log_level = \"info\"");
        for (name, script) in [("systemctl", SYSTEMCTL), ("journalctl", JOURNALCTL)] {
            site.write(&format!("bin/{name}"), script);
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(site.path("bin").join(name), mode).unwrap();
        }
        let keeper = std::process::Command::new("sh")
            .args(["-c", UNTIL_STDIN_CLOSES])
            .current_dir(site.folder.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let machine = Self {
            path: path(&site).await,
            site,
            qdrant,
            keeper,
        };
        for program in ["psql --version", "curl --version"] {
            if machine.run(program).await.code != Some(0) {
                let reason = format!("there is no {program}: the runbook needs it");
                missing("psql-and-curl", test, &reason);
                return None;
            }
        }
        Some(machine)
    }

    /// The same with a schema, `notes` notes and a worker that has indexed them.
    pub async fn working(test: &str, notes: usize) -> Option<Self> {
        let machine = Self::new(test).await?;
        machine
            .run("elf migrate && systemctl start elf")
            .await
            .exits(0);
        machine.write_notes(notes).await;
        machine.wait_until_drained().await;
        machine.is_ready(true).await;
        Some(machine)
    }

    /// Runs a script as the reader of the runbook does.
    pub async fn run(&self, script: &str) -> Done {
        let mut command = shell(&self.site, script);
        let log = std::fs::read_to_string(self.site.path("log")).unwrap_or_default();
        let admin = log.split("address=").last().unwrap_or_default();
        let admin = admin.split_whitespace().next().unwrap_or_default();
        command
            .env("PATH", &self.path)
            .env("DATABASE_URL", self.url())
            .env("ADMIN", format!("http://{admin}"))
            .env("QDRANT", self.qdrant.rest());
        run(command, b"").await
    }

    /// The URL of the database, without the parameters that only sqlx understands.
    pub fn url(&self) -> String {
        let url = self.site.database.url();
        url.split('?').next().unwrap_or_default().to_owned()
    }

    /// Runs a block.
    pub async fn does(&self, block: Block) -> Done {
        match &*block.language {
            "sh" => self.run(&block.text).await,
            "sql" => {
                let mut psql = shell(
                    &self.site,
                    "exec psql -v ON_ERROR_STOP=1 --no-psqlrc \"$DATABASE_URL\"",
                );
                psql.env("PATH", &self.path).env("DATABASE_URL", self.url());
                run(psql, block.text.as_bytes()).await
            }
            other => panic!("{other} is nothing to run"),
        }
    }

    /// Runs a block, which must succeed and say all of `words` on stdout.
    #[track_caller]
    pub fn shows<'a>(
        &'a self,
        block: Block,
        words: &'a [&'a str],
    ) -> impl Future<Output = Done> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let text = block.text.clone();
            let done = self.does(block).await;
            assert_eq!(done.code, Some(0), "{caller}: {text}\n{done:?}");
            for word in words {
                assert!(
                    done.stdout.contains(word),
                    "{caller}: {text}\ndoes not say {word:?}, but {done:?}"
                );
            }
            done
        }
    }

    pub async fn db(&self) -> PgConnection {
        self.site.connect().await
    }

    pub async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.db().await)
            .await
            .unwrap();
    }

    pub async fn count(&self, from: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
            .fetch_one(&mut self.db().await)
            .await
            .unwrap()
    }

    pub async fn write_note(&self, text: &str) {
        sqlx::query(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('acme', 'p', 'a', 's', 'n', $1)",
        )
        .bind(text)
        .execute(&mut self.db().await)
        .await
        .unwrap();
    }

    pub async fn write_notes(&self, count: usize) {
        for i in 0..count {
            self.write_note(&sentences(3, &format!("matter {i}"))).await;
        }
    }

    /// Waits until the outbox is empty.
    pub async fn wait_until_drained(&self) {
        eventually(async || self.count("indexing_outbox").await == 0).await;
    }

    pub async fn get(&self, path: &str) -> String {
        self.run(&format!("curl -s \"$ADMIN{path}\" || true"))
            .await
            .stdout
    }

    /// Waits until `/readyz` says so.
    pub async fn is_ready(&self, ready: bool) {
        let word = format!("\"ready\":{ready}");
        eventually(async || self.get("/readyz").await.contains(&word)).await;
    }
}

/// The machine's own programs first, then those of the Postgres server if they are on this
/// machine: its `pg_dump` has the server's version.
async fn path(site: &Site) -> String {
    let mut folders = vec![site.path("bin")];
    let of_server: Option<String> =
        sqlx::query_scalar("select setting from pg_config where name = 'BINDIR'")
            .fetch_one(&mut site.connect().await)
            .await
            .ok();
    folders.extend(of_server.map(PathBuf::from));
    folders.extend(
        Path::new(env!("CARGO_BIN_EXE_elf"))
            .parent()
            .map(Path::to_owned),
    );
    let rest = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&rest));
    let joined = std::env::join_paths(folders).unwrap();
    joined.into_string().unwrap()
}
