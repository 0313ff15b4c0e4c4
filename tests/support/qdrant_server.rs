//! A real Qdrant server for tests: the one at `QDRANT_URL` (gRPC), or one of our
//! own when a `qdrant` program is on the path.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Runs the server until its standard input closes, which is when the test
/// process ends, however it ends; then removes the server's folder.
const UNTIL_STDIN_CLOSES: &str = r#"
"$1" >"$2/log" 2>&1 </dev/null &
server=$!
cat >/dev/null
kill -9 $server
wait $server 2>/dev/null
rm -rf "$2"
"#;

/// The gRPC URL of the one server of this test process; `None` when there is
/// neither `QDRANT_URL` nor a `qdrant` program.
///
/// Panics when there is one and it does not come up: a suite that skips a broken
/// server would look green.
pub fn url() -> Option<&'static str> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    SERVER
        .get_or_init(Server::find)
        .as_ref()
        .map(|server| server.url.as_str())
}

/// A running server.
pub struct Server {
    /// Its gRPC URL.
    pub url: String,
    /// The shell around it; `None` for the server at `QDRANT_URL`.
    shell: Option<Child>,
}

impl Server {
    fn find() -> Option<Self> {
        if let Ok(url) = std::env::var("QDRANT_URL")
            && !url.is_empty()
        {
            return Some(Self { url, shell: None });
        }
        Self::own(&[])
    }

    /// A server of its own for one test, with more settings (`QDRANT__…`). It ends
    /// when it is dropped. `None` when there is no `qdrant` program.
    pub fn own(settings: &[(&str, &str)]) -> Option<Self> {
        let program = on_path("qdrant")?;
        let dir = std::env::temp_dir().join(format!("elf-qdrant-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).expect("a temporary folder for qdrant");
        let (http, grpc) = free_ports();
        let mut shell = Command::new("sh")
            .args(["-c", UNTIL_STDIN_CLOSES, "sh"])
            .arg(program)
            .arg(&dir)
            .current_dir(&dir)
            .env("QDRANT__SERVICE__HOST", "127.0.0.1")
            .env("QDRANT__SERVICE__HTTP_PORT", http.to_string())
            .env("QDRANT__SERVICE__GRPC_PORT", grpc.to_string())
            .env("QDRANT__STORAGE__STORAGE_PATH", dir.join("storage"))
            .env("QDRANT__STORAGE__SNAPSHOTS_PATH", dir.join("snapshots"))
            .env("QDRANT__TELEMETRY_DISABLED", "true")
            .envs(settings.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        await_answer(&mut shell, grpc, &dir);
        Some(Self {
            url: format!("http://127.0.0.1:{grpc}"),
            shell: Some(shell),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Two ports that were free a moment ago.
fn free_ports() -> (u16, u16) {
    let bind = || TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (one, two) = (bind(), bind());
    let port = |listener: &TcpListener| listener.local_addr().expect("a bound address").port();
    (port(&one), port(&two))
}

fn await_answer(shell: &mut Child, port: u16, dir: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        let gone = shell.try_wait().expect("sh can be waited for").is_some();
        if gone || std::time::Instant::now() > deadline {
            let mut log = String::new();
            let _ = std::fs::File::open(dir.join("log"))
                .and_then(|mut file| file.read_to_string(&mut log));
            panic!("qdrant does not answer on port {port}; its log:\n{log}");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
