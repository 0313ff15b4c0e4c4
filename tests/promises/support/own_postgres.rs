//! A Postgres server of a test's own, for what would disturb the other tests of a shared one.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use sqlx::postgres::PgConnectOptions;

/// `nobody`: Postgres refuses to run as root.
const NOBODY: u32 = 65_534;

/// It stops when this is dropped.
pub struct OwnPostgres {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
}

impl OwnPostgres {
    /// Starts one, or says why `test` is skipped.
    pub fn start(test: &str) -> Option<Self> {
        Self::start_with(test, "")
    }

    /// The same, with more arguments of the server.
    pub fn start_with(test: &str, more: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("{test}: skipped, there is no initdb in .elf/; run `make setup`");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        give_to_server(folder.path());
        let own = Self {
            folder,
            programs,
            port: free_port(),
        };
        let data = own.data();
        own.run(
            "initdb",
            &["-D", &data, "-A", "trust", "-U", "postgres", "-N"],
        );
        own.run_server(more);
        Some(own)
    }

    fn run_server(&self, more: &str) {
        let settings = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off {more}",
            self.port
        );
        let log = self.folder.path().join("log").display().to_string();
        let start = [
            "start",
            "-w",
            "-D",
            &self.data(),
            "-l",
            &log,
            "-o",
            &settings,
        ];
        self.run("pg_ctl", &start);
    }

    /// Ends it as a crash of its processes does, and starts it again.
    pub fn crash(&self) {
        self.run(
            "pg_ctl",
            &["stop", "-w", "-m", "immediate", "-D", &self.data()],
        );
        self.run_server("");
    }

    /// Changes a file of its data folder while it does not run.
    pub fn damage(&self, file: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        self.run("pg_ctl", &["stop", "-w", "-m", "fast", "-D", &self.data()]);
        let file = self.folder.path().join("data").join(file);
        let mut bytes = std::fs::read(&file).unwrap();
        damage(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        self.run_server("");
    }

    /// How to connect to it.
    pub fn options(&self) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username("postgres")
            .password("none")
            .database("postgres")
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    fn run(&self, program: &str, args: &[&str]) {
        let status = self.command(program).args(args).status().unwrap();
        assert!(status.success(), "{program} failed");
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.folder.path());
        command.stdout(std::process::Stdio::null());
        // As pg0 starts its server.
        command.env("LD_LIBRARY_PATH", self.programs.with_file_name("lib"));
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for OwnPostgres {
    fn drop(&mut self) {
        let mut stop = self.command("pg_ctl");
        stop.args(["stop", "-m", "immediate", "-D", &self.data()]);
        if !stop.status().is_ok_and(|status| status.success()) {
            eprintln!("a Postgres is left behind in {}", self.data());
        }
    }
}

/// Gives a folder to the user that the test server runs as.
pub fn give_to_server(folder: &Path) {
    if is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

fn is_root() -> bool {
    let own = std::fs::metadata("/proc/self").unwrap();
    std::os::unix::fs::MetadataExt::uid(&own) == 0
}

/// The folder of the programs that `make setup` unpacked.
fn programs() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf/postgres/.pg0/installation");
    let version = std::fs::read_dir(installed).ok()?.next()?.ok()?;
    Some(version.path().join("bin"))
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
