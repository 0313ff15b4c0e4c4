//! ELF behind a PgBouncer.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::machine::{Machine, Section};
use crate::support::DEADLINE;
use crate::support::components::missing;

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
        return missing(
            "pgbouncer",
            "PgBouncer",
            "there is no pgbouncer on the PATH",
        );
    }
    let minor = version
        .stdout
        .split('.')
        .nth(1)
        .and_then(|v| v.parse().ok());
    if minor.unwrap_or(0) < 21 {
        return missing("pgbouncer", "PgBouncer", "this one is older than 1.21");
    }
    let pooler = Pooler::start(&m, &ini.text).await;
    let direct = m.site.database.url();
    m.site
        .configure(&direct, &m.site.database.url_through(pooler.port));
    m.write_notes(20).await;
    m.run("systemctl start elf").await.exits(0);
    m.wait_until_drained().await;
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
        // PgBouncer does not run as root, and the user that it runs as has to read this.
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
