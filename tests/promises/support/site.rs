//! A folder with an `elf.toml`, and the program itself to run in it.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::DEADLINE;
use super::database::TestDatabase;
use super::embedding_server::EmbeddingServer;
use super::harness::elf_toml;
use super::proxy::Proxy;

/// A place to run ELF in: a folder, an empty database, an embeddings server.
pub struct Site {
    pub provider: EmbeddingServer,
    pub folder: tempfile::TempDir,
    pub database: TestDatabase,
}

/// A run of the program that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    /// Fails unless it ended with `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails unless stderr has every one of `words`.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(
                self.stderr.contains(word),
                "{word:?} is not in: {}",
                self.stderr
            );
        }
        self
    }

    /// Stdout, which must be one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON value, {error}: {self:?}"))
    }
}

/// The program: the one that `ELF_TEST_PROGRAM` names, such as a release build, else the
/// one that was built with the tests.
pub fn program() -> PathBuf {
    std::env::var_os("ELF_TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_elf").into(), PathBuf::from)
}

/// The program, to be run in `folder` without the variables of this environment that
/// ELF reads.
pub fn elf(folder: &Path) -> Command {
    let mut command = Command::new(program());
    command.current_dir(folder).kill_on_drop(true);
    for name in [
        "ELF_CONFIG",
        "DATABASE_URL",
        "RUST_LOG",
        "NO_COLOR",
        "NOTIFY_SOCKET",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "ELF_API_URL",
        "ELF_API_KEY",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs `command` to its end with `input` on stdin.
pub async fn run(mut command: Command, input: &[u8]) -> Done {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // It may end without reading all of it.
    let feed = async move { stdin.write_all(input).await.ok() };
    let (_, output) = tokio::time::timeout(DEADLINE, async {
        tokio::join!(feed, child.wait_with_output())
    })
    .await
    .expect("it ends");
    let output = output.unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
    Done {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

impl Site {
    /// An `elf.toml` and an empty database: not even migrated.
    pub async fn empty() -> Self {
        Self::with_database(TestDatabase::create().await).await
    }

    /// The same, in a database of the test's own.
    pub async fn with_database(database: TestDatabase) -> Self {
        let site = Self {
            provider: EmbeddingServer::start().await,
            folder: tempfile::tempdir().unwrap(),
            database,
        };
        let index = format!("embedded:{}", site.path("index").display());
        let text = elf_toml(&site.database.url(), &index, site.provider.url());
        site.write("elf.toml", &text);
        site
    }

    /// The same, migrated.
    pub async fn start() -> Self {
        let site = Self::empty().await;
        site.elf(&["migrate"]).await.exits(0);
        site
    }

    /// With its Postgres behind a proxy that can cut connections.
    pub async fn behind_a_proxy(self) -> (Self, Proxy) {
        let (host, port) = self.database.server();
        let line = Proxy::to(host, port).await;
        let (direct, through) = (self.database.url(), self.database.url_through(line.port()));
        self.configure(&direct, &through);
        (self, line)
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the folder.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }

    /// `elf.toml` as it is now.
    pub fn toml(&self) -> String {
        std::fs::read_to_string(self.path("elf.toml")).unwrap()
    }

    /// Replaces a part of `elf.toml`.
    #[track_caller]
    pub fn configure(&self, old: &str, new: &str) {
        let text = self.toml();
        assert!(text.contains(old), "{old:?} is not in elf.toml");
        self.write("elf.toml", text.replace(old, new));
    }

    /// Has a worker ask golden questions each second: id, text, and the note that answers.
    pub fn ask_golden(&self, questions: &[(&str, &str, &str)]) {
        let (mut queries, mut qrels) = (String::new(), String::new());
        for (id, text, note) in questions {
            queries += &format!("{}\n", serde_json::json!({"_id": id, "text": text}));
            qrels += &format!("{id}\t{note}\t1\n");
        }
        self.write("golden/queries.jsonl", queries);
        self.write("golden/qrels/test.tsv", qrels);
        let settings = "[quality]\nfolder = \"golden\"\ninterval_secs = 1\n";
        self.configure("[worker]", &format!("{settings}\n[worker]"));
    }

    /// Has the index in a server.
    pub fn use_server(&self, url: &str) {
        let embedded = format!("embedded:{}", self.path("index").display());
        self.configure(&embedded, url);
    }

    /// Runs `elf` to its end.
    pub async fn elf(&self, args: &[&str]) -> Done {
        self.elf_reading(args, b"").await
    }

    /// Runs `elf` with `input` on stdin.
    pub async fn elf_reading(&self, args: &[&str], input: &[u8]) -> Done {
        let mut command = elf(self.folder.path());
        command.args(args);
        run(command, input).await
    }

    /// Runs `elf --json`, which must succeed, and gives what it reports.
    pub async fn json(&self, args: &[&str]) -> Value {
        let mut with_json = args.to_vec();
        with_json.push("--json");
        self.elf(&with_json).await.exits(0).json()
    }

    /// Starts `elf worker`.
    pub fn worker(&self) -> Running {
        self.begin(&["worker", "--json"])
    }

    /// Starts `elf worker` with variables in its environment.
    pub fn worker_with(&self, variables: &[(&str, &str)]) -> Running {
        let mut command = elf(self.folder.path());
        command.arg("worker").envs(variables.iter().copied());
        Running::start(command)
    }

    /// Starts `elf`.
    pub fn begin(&self, args: &[&str]) -> Running {
        let mut command = elf(self.folder.path());
        command.args(args);
        Running::start(command)
    }

    /// Starts `elf`, which may open so many files.
    pub fn begin_with_files(&self, most: u32, args: &[&str]) -> Running {
        let mut command = Command::new("sh");
        let elf = elf(self.folder.path());
        for (name, _) in elf.as_std().get_envs() {
            command.env_remove(name);
        }
        let limited = format!("ulimit -n {most}; exec \"$0\" \"$@\"");
        command.args(["-c", &limited]).arg(program()).args(args);
        command.current_dir(self.folder.path()).kill_on_drop(true);
        Running::start(command)
    }

    /// Writes a note and gives its id.
    pub async fn note(&self, text: &str) -> Uuid {
        sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1) returning note_id",
        )
        .bind(text)
        .fetch_one(&mut self.connect().await)
        .await
        .unwrap()
    }

    /// Connects to the database as an application does.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.database.url()).await.unwrap()
    }
}

/// A running program. It is killed when this is dropped.
pub struct Running {
    child: Child,
    /// The lines of stderr so far.
    lines: watch::Receiver<Vec<String>>,
    reader: JoinHandle<()>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = watch::channel(Vec::new());
        let reader = tokio::spawn(async move {
            let mut incoming = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = incoming.next_line().await {
                sender.send_modify(|lines: &mut Vec<String>| lines.push(line));
            }
        });
        Self {
            child,
            lines,
            reader,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.lines.borrow().join("\n")
    }

    /// Waits until it logs a line with `word` in it, and gives the line.
    pub async fn says(&self, word: &str) -> String {
        let find = |lines: &Vec<String>| lines.iter().find(|line| line.contains(word)).cloned();
        let mut lines = self.lines.clone();
        let said = lines.wait_for(|lines| find(lines).is_some());
        match tokio::time::timeout(DEADLINE, said).await {
            Ok(Ok(lines)) => find(&lines).expect("it was there"),
            _ => panic!("it never said {word:?}, but:\n{}", self.log()),
        }
    }

    /// Where it serves `/metrics`, as `http://host:port`.
    pub async fn admin(&self) -> String {
        let line = self.says("address=").await;
        let address = line.split("address=").nth(1).unwrap();
        let address = address.split_whitespace().next().unwrap();
        format!("http://{address}")
    }

    /// Sends a signal, `TERM` for one.
    pub async fn signal(&self, name: &str) {
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name])
            .arg(self.pid().to_string())
            .status()
            .await
            .unwrap();
        assert!(status.success());
    }

    /// Kills it, as a crash would, and waits until it is gone.
    pub async fn kill(mut self) -> Done {
        self.child.kill().await.unwrap();
        self.ended().await
    }

    /// Asks it to stop, and waits for that.
    pub async fn stop(self) -> Done {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Waits for its end.
    pub async fn ended(mut self) -> Done {
        let mut stdout = String::new();
        let mut pipe = self.child.stdout.take().unwrap();
        let status = tokio::time::timeout(DEADLINE, async {
            pipe.read_to_string(&mut stdout).await.unwrap();
            self.child.wait().await.unwrap()
        })
        .await
        .unwrap_or_else(|_| panic!("it does not end:\n{}", self.log()));
        self.reader.await.unwrap();
        let stderr = self.lines.borrow().join("\n");
        Done {
            code: status.code(),
            stdout,
            stderr,
        }
    }
}
