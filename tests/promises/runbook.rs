//! The runbook does what it says: its commands are run where what they are for has
//! happened.

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::process::{Child, Command};

use crate::support::docs::{Block, all_blocks, page, shell};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::sentences;
use crate::support::qdrant::Qdrant;
use crate::support::site::{Done, Site, run};
use crate::support::{DEADLINE, eventually};

const PAGE: &str = "docs/operations.md";

/// Alerts link to these.
const SECTIONS: [&str; 15] = [
    "Install",
    "Size",
    "Upgrade",
    "Back up and restore",
    "Qdrant lost",
    "Provider down",
    "Dead letters",
    "Model change",
    "Drift",
    "Slow freshness",
    "Backlog growing",
    "Worker absent",
    "Rebuild stalled",
    "Outbox bloat",
    "PgBouncer",
];

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
struct Section(VecDeque<Block>);

impl Section {
    fn of(name: &str) -> Self {
        let runs = |block: &Block| ["sh", "sql", "toml", "ini"].contains(&&*block.language);
        let blocks = all_blocks(PAGE).into_iter();
        Self(
            blocks
                .filter(|block| block.section == name && runs(block))
                .collect(),
        )
    }

    #[track_caller]
    fn next(&mut self) -> Block {
        self.0
            .pop_front()
            .expect("the section has one more block to run")
    }

    #[track_caller]
    fn end(self) {
        assert!(self.0.is_empty(), "these were not run: {:?}", self.0);
    }
}

/// A machine with ELF on it, before its first start.
struct Machine {
    site: Site,
    qdrant: Qdrant,
    path: String,
    /// Ends what `systemctl` has started, however the test ends.
    keeper: std::process::Child,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // The folder goes after this, and what says which process it is with it.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Machine {
    /// `None`, and a word about it, where something of what a runbook's reader has is
    /// missing.
    async fn new(test: &str) -> Option<Self> {
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
                eprintln!("{test}: SKIPPED, there is no {program}: the runbook needs it");
                return None;
            }
        }
        Some(machine)
    }

    /// The same with a schema, `notes` notes and a worker that has indexed them.
    async fn working(test: &str, notes: usize) -> Option<Self> {
        let machine = Self::new(test).await?;
        machine
            .run("elf migrate && systemctl start elf")
            .await
            .exits(0);
        machine.write_notes(notes).await;
        machine.settled().await;
        machine.is_ready(true).await;
        Some(machine)
    }

    /// Runs a script as the reader of the runbook does.
    async fn run(&self, script: &str) -> Done {
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

    /// Of the database, without what only sqlx understands.
    fn url(&self) -> String {
        let url = self.site.database.url();
        url.split('?').next().unwrap_or_default().to_owned()
    }

    /// Runs a block.
    async fn does(&self, block: Block) -> Done {
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
    fn shows<'a>(&'a self, block: Block, words: &'a [&'a str]) -> impl Future<Output = Done> + 'a {
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

    async fn db(&self) -> PgConnection {
        self.site.connect().await
    }

    async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut self.db().await)
            .await
            .unwrap();
    }

    async fn count(&self, from: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {from}")))
            .fetch_one(&mut self.db().await)
            .await
            .unwrap()
    }

    async fn write_note(&self, text: &str) {
        sqlx::query(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('acme', 'p', 'a', 's', 'n', $1)",
        )
        .bind(text)
        .execute(&mut self.db().await)
        .await
        .unwrap();
    }

    async fn write_notes(&self, count: usize) {
        for i in 0..count {
            self.write_note(&sentences(3, &format!("matter {i}"))).await;
        }
    }

    /// Waits until nothing is left in the outbox.
    async fn settled(&self) {
        eventually(async || self.count("indexing_outbox").await == 0).await;
    }

    async fn get(&self, path: &str) -> String {
        self.run(&format!("curl -s \"$ADMIN{path}\" || true"))
            .await
            .stdout
    }

    /// Waits until `/readyz` says so.
    async fn is_ready(&self, ready: bool) {
        let word = format!("\"ready\":{ready}");
        eventually(async || self.get("/readyz").await.contains(&word)).await;
    }
}

/// The machine's own programs first, and those of the Postgres server, whose `pg_dump` is as
/// new as it is, where they are on this machine.
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

#[test]
fn every_section_is_there_and_every_command_of_it_is_run() {
    let text = page(PAGE);
    let headings: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    assert_eq!(headings, SECTIONS);
    let tests = include_str!("runbook.rs");
    for section in SECTIONS {
        assert!(
            tests.contains(&format!("Section::of(\"{section}\")")),
            "nothing runs the commands of {section}"
        );
    }
}

#[test]
fn every_alert_and_every_link_leads_to_a_section() {
    let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-");
    let known: Vec<String> = SECTIONS.iter().map(|s| anchor(s)).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![page(PAGE).replace("](#", "](operations.md#")];
    for entry in std::fs::read_dir(root.join("deploy/prometheus/rules")).unwrap() {
        pages.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let mut links = 0;
    for text in &pages {
        for rest in text.split("operations.md#").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let link = &rest[..end.unwrap_or(rest.len())];
            assert!(known.iter().any(|k| k == link), "nothing is at #{link}");
            links += 1;
        }
    }
    assert!(links > 40, "only {links} links");
}

#[tokio::test]
async fn the_first_start_works_as_written() {
    let Some(m) = Machine::new("install").await else {
        return;
    };
    let mut install = Section::of("Install");
    m.shows(install.next(), &["elf.toml is fine", "applied"])
        .await;
    m.is_ready(true).await;
    m.shows(
        install.next(),
        &[
            "version     test-8-",
            "notes__1, 0 points, green",
            "\"ready\":true",
        ],
    )
    .await;
    install.end();
    m.write_notes(3).await;
    m.settled().await;
    let mut first = Section::of("");
    m.shows(
        first.next(),
        &["3 live, 3 indexed", "\"ready\":true", "working"],
    )
    .await;
    first.end();
    let mut size = Section::of("Size");
    m.shows(size.next(), &["note_chunk_embeddings", "bytes_a_row"])
        .await;
    size.end();
}

#[tokio::test]
async fn an_upgrade_and_the_way_back_work_as_written() {
    let Some(m) = Machine::working("upgrade", 2).await else {
        return;
    };
    let mut upgrade = Section::of("Upgrade");
    let (forward, back) = (upgrade.next(), upgrade.next());
    upgrade.end();
    // As the program before the last migration left it.
    m.shows(back.clone(), &["ALTER TABLE", "DELETE 1"]).await;
    m.run("elf status")
        .await
        .exits(78)
        .says(&["run `elf migrate`"]);
    m.shows(
        forward,
        &["elf 0.", "applied 1 migration", "2 live, 2 indexed"],
    )
    .await;
    m.is_ready(true).await;
    m.shows(back, &["DELETE 1"]).await;
    m.run("elf migrate").await.exits(0);
}

#[tokio::test]
async fn a_postgres_from_a_dump_is_what_the_index_becomes_as_written() {
    let Some(m) = Machine::working("back up and restore", 6).await else {
        return;
    };
    let mut section = Section::of("Back up and restore");
    let (dump, restore, done) = (section.next(), section.next(), section.next());
    section.end();
    if let Some(reason) = cannot_dump(&m).await {
        return eprintln!("back up and restore: SKIPPED, {reason}");
    }
    m.shows(dump, &[]).await;
    let later = async || {
        m.write_notes(1).await;
        m.execute(
            "update memory_notes set text = text || ' And more.' where text like '%matter 1%'",
        )
        .await;
        m.execute("delete from memory_notes where text like '%matter 5%'")
            .await;
        m.settled().await;
    };
    later().await;

    let restored = m.shows(restore, &["6 notes", " repaired"]).await;
    assert!(!restored.stdout.contains(" 0 repaired"), "{restored:?}");
    m.shows(
        done,
        &[
            "6 notes",
            ": 0 missing, 0 stale, 0 orphaned, 0 notes inconsistent",
        ],
    )
    .await;
    // Later writes are newer than all that is there.
    later().await;
    m.run("elf verify --deep").await.exits(0);

    // Rebuilt since the backup.
    m.run("elf rebuild && systemctl stop elf").await.exits(0);
    let again =
        "pg_restore --clean --if-exists --single-transaction --dbname=\"$DATABASE_URL\" elf.dump";
    m.run(again).await.exits(0);
    m.run("elf verify --repair")
        .await
        .exits(1)
        .says(&["is gone: run `elf rebuild`"]);
    m.run("elf rebuild")
        .await
        .exits(0)
        .says(&["the alias is taken over"]);
    m.run("elf verify --deep").await.exits(0);
}

/// Why this machine cannot dump the test server's databases, if it cannot.
async fn cannot_dump(m: &Machine) -> Option<String> {
    let version = m.run("pg_dump --version && command -v pg_restore").await;
    if version.code != Some(0) {
        return Some("there is no pg_dump and pg_restore on the PATH".into());
    }
    let dump = version.stdout.split_whitespace().nth(2).unwrap_or_default();
    let dump: i32 = dump
        .split('.')
        .next()
        .unwrap_or_default()
        .parse()
        .unwrap_or(0);
    let server: i32 =
        sqlx::query_scalar("select current_setting('server_version_num')::int / 10000")
            .fetch_one(&mut m.db().await)
            .await
            .unwrap();
    (dump < server).then(|| format!("pg_dump {dump} is older than the server, {server}"))
}

#[tokio::test]
async fn a_lost_collection_comes_back_as_written() {
    let Some(m) = Machine::working("Qdrant lost", 4).await else {
        return;
    };
    let requests = m.site.provider.requests();
    m.run("curl -sf -X DELETE \"$QDRANT/collections/notes__1\"")
        .await
        .exits(0);
    m.is_ready(false).await;
    let reason = m.get("/readyz").await;
    assert!(
        reason.contains("points at nothing, so no search finds anything"),
        "{reason}"
    );

    let mut lost = Section::of("Qdrant lost");
    let looked = m.shows(lost.next(), &["notes → missing"]).await;
    assert!(!looked.stdout.contains("notes__1"), "{looked:?}");
    m.shows(
        lost.next(),
        &["embedding calls: 0", ": 0 missing, 0 stale, 0 orphaned"],
    )
    .await;
    lost.end();
    m.is_ready(true).await;
    assert_eq!(m.site.provider.requests(), requests);
}

#[tokio::test]
async fn an_empty_qdrant_is_filled_by_a_worker_as_written() {
    let Some(mut m) = Machine::working("Qdrant lost", 4).await else {
        return;
    };
    m.qdrant.kill().await;
    m.is_ready(false).await;
    std::fs::remove_dir_all(m.qdrant.folder().join("storage")).unwrap();
    m.qdrant.restart().await;
    m.write_notes(1).await;
    m.settled().await;
    m.is_ready(true).await;
    let said = m.run("cat log").await.stdout;
    assert!(
        said.contains("made an empty collection; every note is in the outbox"),
        "{said}"
    );
    m.run("elf verify --deep").await.exits(0);
}

#[tokio::test]
async fn a_provider_that_is_down_looks_as_written() {
    let Some(m) = Machine::working("provider down", 2).await else {
        return;
    };
    m.site.provider.always(Behaviour::Status(503));
    m.write_note("Nobody embeds this.").await;
    m.is_ready(false).await;
    let mut down = Section::of("Provider down");
    let words = [
        "\"name\":\"provider\",\"ok\":false",
        "the embedding provider is unavailable",
        "answered 503",
        "elf_embedding_circuit_open 1",
        "elf_embedding_requests_total{outcome=\"unavailable\"}",
        "0 failed, 0 dead",
        "3 live, 2 indexed",
    ];
    m.shows(down.next(), &words).await;
    m.site.provider.heal();
    m.settled().await;
    m.is_ready(true).await;
    m.shows(
        down.next(),
        &["0 pending, 0 leased, 0 failed, 0 dead", "3 live, 3 indexed"],
    )
    .await;
    down.end();
    assert!(m.run("cat log").await.stdout.contains("embedding goes on"));
}

#[tokio::test]
async fn dead_letters_are_found_and_tried_again_as_written() {
    let Some(m) = Machine::working("dead letters", 1).await else {
        return;
    };
    m.site.provider.poison("zzpoison", Behaviour::Status(400));
    m.write_note("This note has zzpoison in it.").await;
    m.write_note("This one has not.").await;
    eventually(async || m.count("indexing_outbox where status = 'DEAD'").await == 1).await;
    let mut dead = Section::of("Dead letters");
    m.shows(
        dead.next(),
        &["3 attempts  provider: ", "cannot be embedded"],
    )
    .await;
    m.shows(dead.next(), &["provider", "(1 row)"]).await;
    m.site.provider.heal();
    m.shows(dead.next(), &["1 are due again", "0 dead"]).await;
    dead.end();
    m.settled().await;
}

#[tokio::test]
async fn a_model_change_and_the_way_back_work_as_written() {
    let Some(m) = Machine::working("model change", 5).await else {
        return;
    };
    let new = m.site.toml().replace("max_tokens = 32", "max_tokens = 24");
    m.site.write("new.toml", new);
    let mut change = Section::of("Model change");
    m.shows(
        change.next(),
        &["5 notes, ", "to embed: ", "nothing was written"],
    )
    .await;
    m.shows(
        change.next(),
        &["it is complete, and the old version is still served"],
    )
    .await;
    m.shows(
        change.next(),
        &["it is served now", "(retired)", "5 live, 5 indexed"],
    )
    .await;
    eventually(async || m.get("/readyz").await.contains("is retired: ")).await;
    m.shows(
        change.next(),
        &["is served again", "chunking.max_tokens = 32"],
    )
    .await;
    m.is_ready(true).await;
    m.settled().await;
    let dropped = m
        .shows(change.next(), &["dropped test-8-", "5 live, 5 indexed"])
        .await;
    assert!(!dropped.stdout.contains("(retired)"), "{dropped:?}");
    change.end();
    m.run("elf verify --deep").await.exits(0);
}

#[tokio::test]
async fn drift_is_found_and_mended_as_written() {
    let Some(m) = Machine::working("drift", 5).await else {
        return;
    };
    let gone: Vec<String> =
        sqlx::query_scalar("select chunk_id::text from memory_note_chunks order by 1 limit 2")
            .fetch_all(&mut m.db().await)
            .await
            .unwrap();
    let body = serde_json::json!({ "points": gone }).to_string();
    m.run(&format!(
        "curl -sf \"$QDRANT/collections/notes/points/delete?wait=true\" -H 'content-type: application/json' -d '{body}'"
    ))
    .await
    .exits(0);
    let mut drift = Section::of("Drift");
    let found = m.does(drift.next()).await.exits(3);
    assert!(
        found.stdout.contains("2 missing, 0 stale, 0 orphaned"),
        "{found:?}"
    );
    found.says(&[
        &format!("missing: point {}", gone[0]),
        "run `elf verify --repair`",
    ]);
    m.shows(
        drift.next(),
        &["; 2 repaired", ": 0 missing, 0 stale, 0 orphaned"],
    )
    .await;
    drift.end();
}

#[tokio::test]
async fn a_slow_provider_and_a_long_transaction_show_as_written() {
    let Some(m) = Machine::new("slow freshness").await else {
        return;
    };
    m.site.configure("timeout_ms = 2000", "timeout_ms = 120000");
    m.run("elf migrate && systemctl start elf").await.exits(0);
    m.write_notes(1).await;
    m.settled().await;
    m.site.provider.hold();
    m.write_note("The provider takes its time.").await;
    m.site.provider.holding(1).await;
    let waiting = "elf_outbox_rows{state=\"leased\"} 1";
    eventually(async || m.get("/metrics").await.contains(waiting)).await;
    let mut slow = Section::of("Slow freshness");
    let words = [
        "0 pending, 1 leased",
        "elf_batches_in_flight 1",
        "elf_embedding_circuit_open 0",
        "elf_leases_lost_total 0",
        "elf_outbox_oldest_pending_seconds ",
        "elf_stage_seconds_sum{stage=\"embed\"}",
        "elf_stage_seconds_count{stage=\"prune\"}",
    ];
    let seen = m.shows(slow.next(), &words).await;
    assert!(
        !seen.stdout.contains("oldest_pending_seconds 0\n"),
        "{seen:?}"
    );
    let mut application = m.db().await;
    let mut transaction = application.begin().await.unwrap();
    sqlx::query("update memory_notes set key = 'held'")
        .execute(&mut *transaction)
        .await
        .unwrap();
    m.shows(
        slow.next(),
        &["idle in transaction", "update memory_notes set key"],
    )
    .await;
    transaction.rollback().await.unwrap();
    slow.end();
    m.site.provider.release();
    m.settled().await;
}

#[tokio::test]
async fn a_backlog_is_seen_and_worked_off_as_written() {
    let Some(m) = Machine::new("backlog growing").await else {
        return;
    };
    m.run("elf migrate").await.exits(0);
    m.write_notes(30).await;
    let mut backlog = Section::of("Backlog growing");
    m.shows(backlog.next(), &["30 pending, 0 leased"]).await;
    m.shows(backlog.next(), &["acme", "30 |", "(1 row)"]).await;
    m.shows(
        backlog.next(),
        &["30 notes, ", "0 pending", "30 live, 30 indexed"],
    )
    .await;
    backlog.end();
}

#[tokio::test]
async fn a_worker_that_does_not_start_says_why_as_written() {
    let Some(m) = Machine::working("worker absent", 1).await else {
        return;
    };
    m.site.configure("max_tokens = 32", "max_tokens = 24");
    m.run("systemctl restart elf").await.exits(0);
    eventually(async || std::fs::read_to_string(m.site.path("code")).is_ok_and(|c| c == "78\n"))
        .await;
    let mut absent = Section::of("Worker absent");
    let words = [
        "the database is indexed under the embedding version",
        "chunking.max_tokens is 24 in the configuration, 32 in the database",
        "put the setting back",
        "elf.toml is fine",
    ];
    m.shows(absent.next(), &words).await;
    m.site.configure("max_tokens = 24", "max_tokens = 32");
    m.shows(absent.next(), &["the schema is up to date"]).await;
    m.is_ready(true).await;
    m.shows(absent.next(), &["\"ready\":true"]).await;
    absent.end();
}

#[tokio::test]
async fn a_rebuild_that_died_is_seen_and_goes_on_as_written() {
    let Some(m) = Machine::working("rebuild stalled", 1).await else {
        return;
    };
    m.execute(MANY_CHUNKS).await;
    let rebuild = m.site.begin(&["rebuild"]);
    eventually(async || m.count("index_rebuild_ranges where points > 0").await > 0).await;
    rebuild.kill().await;
    let mut stalled = Section::of("Rebuild stalled");
    m.shows(
        stalled.next(),
        &["rebuild | notes", "| building |", "| active "],
    )
    .await;
    let done = m
        .shows(stalled.next(), &["embedding calls: 0", "notes__2, "])
        .await;
    done.says(&["resumed=true"]);
    m.shows(stalled.next(), &["nothing to drop"]).await;
    stalled.end();
    m.run("elf verify").await.exits(0);
}

/// So many that a rebuild takes seconds.
const MANY_CHUNKS: &str = "
    set session_replication_role = replica;
    insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
    select md5('note' || n)::uuid, 't', 'p', 'a', 's', 'n', 'Note ' || n from generate_series(1, 8000) n;
    insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256,
                                    embedding_version, revision)
    select md5('chunk' || note_id::text)::uuid, note_id, 0, 0, octet_length(text), text,
           sha256(convert_to(text, 'UTF8')), v.embedding_version, 1
      from memory_notes, index_versions v where tenant_id = 't';
    insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
    select c.chunk_id, v.embedding_version, 8, '[1,0,0,0,0,0,0,1]'
      from memory_note_chunks c join memory_notes n using (note_id), index_versions v where n.tenant_id = 't';
    insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
    select n.note_id, v.embedding_version, 8, '[1,0,0,0,0,0,0,1]'
      from memory_notes n, index_versions v where n.tenant_id = 't';
    insert into note_index_state (note_id, embedding_version, lease_token, revision, text_sha256, chunk_count, indexed_at)
    select n.note_id, v.embedding_version, 1, 1, sha256(convert_to(n.text, 'UTF8')), 1, now()
      from memory_notes n, index_versions v where n.tenant_id = 't';
";

#[tokio::test]
async fn an_outbox_that_cannot_be_vacuumed_is_explained_as_written() {
    let Some(m) = Machine::working("outbox bloat", 1).await else {
        return;
    };
    let mut application = m.db().await;
    let mut transaction = application
        .begin_with("begin isolation level repeatable read")
        .await
        .unwrap();
    sqlx::query("select count(*) from memory_notes")
        .execute(&mut *transaction)
        .await
        .unwrap();
    m.write_notes(10).await;
    m.settled().await;
    let mut bloat = Section::of("Outbox bloat");
    let size = bloat.next();
    m.shows(
        size.clone(),
        &["indexing_outbox", "note_index_state", "n_dead_tup"],
    )
    .await;
    m.shows(
        bloat.next(),
        &["idle in transaction", "select count(*) from memory_notes"],
    )
    .await;
    let (outbox, state, settings) = (bloat.next(), bloat.next(), bloat.next());
    bloat.end();
    // It holds the clearing back, and then it does not.
    m.shows(outbox.clone(), &["VACUUM"]).await;
    let dead = "pg_stat_user_tables where relname = 'indexing_outbox' and n_dead_tup > 0";
    eventually(async || m.count(dead).await == 1).await;
    transaction.rollback().await.unwrap();
    eventually(async || {
        m.shows(outbox.clone(), &["VACUUM"]).await;
        m.count(dead).await == 0
    })
    .await;
    m.shows(state, &["VACUUM"]).await;
    m.shows(settings, &["ALTER TABLE"]).await;
}

#[tokio::test]
async fn behind_a_pgbouncer_in_transaction_mode_elf_works_as_written() {
    let Some(m) = Machine::new("PgBouncer").await else {
        return;
    };
    let mut section = Section::of("PgBouncer");
    let (listen, ini) = (section.next(), section.next());
    section.end();
    assert_eq!((&*listen.language, &*ini.language), ("toml", "ini"));
    let setting = listen.text.strip_prefix("[worker]\n").unwrap();
    m.site
        .configure("[worker]\n", &format!("[worker]\n{setting}"));
    m.run("elf config check && elf migrate").await.exits(0);
    let version = m.run("pgbouncer --version").await;
    if version.code != Some(0) {
        return eprintln!("PgBouncer: the rest is SKIPPED, there is no pgbouncer on the PATH");
    }
    let minor = version
        .stdout
        .split('.')
        .nth(1)
        .and_then(|v| v.parse().ok());
    if minor.unwrap_or(0) < 21 {
        return eprintln!("PgBouncer: the rest is SKIPPED, this one is older than 1.21");
    }
    let pooler = Pooler::start(&m, &ini.text).await;
    let direct = m.site.database.url();
    m.site
        .configure(&direct, &m.site.database.url_through(pooler.port));
    m.write_notes(20).await;
    m.run("systemctl start elf").await.exits(0);
    m.settled().await;
    m.is_ready(true).await;
    m.run("elf rebuild && elf verify --deep && elf status")
        .await
        .exits(0);
    let past = "pg_stat_activity where datname = current_database() and application_name = 'elf' \
                and wait_event = 'ClientRead' and query like 'LISTEN%'";
    assert_eq!(m.count(past).await, 0, "it does not listen");
}

/// A PgBouncer of a test's own.
struct Pooler {
    port: u16,
    _folder: tempfile::TempDir,
    _process: Child,
}

impl Pooler {
    async fn start(m: &Machine, settings: &str) -> Self {
        let url = reqwest::Url::parse(&m.site.database.url()).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .unwrap()
            .port();
        let folder = tempfile::tempdir().unwrap();
        // It does not work as root, and whom it becomes has to read this.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = folder.path().join("pgbouncer.ini");
        let (host, to) = m.site.database.server();
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        let text = format!(
            "[databases]\n* = host={host} port={to} user={user} password={password}\n{settings}\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        );
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|me| {
            use std::os::unix::fs::MetadataExt;
            me.uid() == 0
        });
        let mut command = Command::new("pgbouncer");
        command.env("PATH", &m.path);
        if is_root {
            command.args(["-u", "nobody"]);
        }
        let process = command
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_err()
        {
            let log = std::fs::read_to_string(folder.path().join("log"));
            assert!(
                tokio::time::Instant::now() < deadline,
                "pgbouncer does not answer: {log:?}"
            );
            tokio::task::yield_now().await;
        }
        Self {
            port,
            _folder: folder,
            _process: process,
        }
    }
}
