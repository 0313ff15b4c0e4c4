//! A Qdrant server of a test's own, which it can kill and start again.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::DEADLINE;

/// A server on two free ports, over a folder that outlives its crashes.
pub struct Qdrant {
    program: PathBuf,
    folder: tempfile::TempDir,
    http: u16,
    grpc: u16,
    child: Option<Child>,
}

impl Qdrant {
    /// Starts one; without a `qdrant` program on the path it says so, and gives `None`.
    pub async fn start(test: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path)
            .map(|dir| dir.join("qdrant"))
            .find(|file| file.is_file());
        let Some(program) = program else {
            eprintln!("{test}: skipped, there is no qdrant program on the PATH");
            return None;
        };
        let port = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            (listener.local_addr().unwrap().port(), listener)
        };
        // Both are held until both are known, or they might be the same.
        let ((http, _one), (grpc, _two)) = (port(), port());
        let mut server = Self {
            program,
            folder: tempfile::tempdir().unwrap(),
            http,
            grpc,
            child: None,
        };
        drop((_one, _two));
        server.restart().await;
        Some(server)
    }

    /// For `storage.qdrant.url`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// Where it speaks REST.
    pub fn rest(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// A folder that it can read and write.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills it as a crash would.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }

    /// Starts it on the same ports and folder, and waits until it answers.
    pub async fn restart(&mut self) {
        let folder = self.folder.path();
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let child = Command::new(&self.program)
            .current_dir(folder)
            .env("QDRANT__SERVICE__HOST", "127.0.0.1")
            .env("QDRANT__SERVICE__HTTP_PORT", self.http.to_string())
            .env("QDRANT__SERVICE__GRPC_PORT", self.grpc.to_string())
            .env("QDRANT__STORAGE__STORAGE_PATH", folder.join("storage"))
            .env("QDRANT__STORAGE__SNAPSHOTS_PATH", folder.join("snapshots"))
            .env("QDRANT__TELEMETRY_DISABLED", "true")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.child = Some(child);
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.grpc))
            .await
            .is_err()
        {
            assert!(
                tokio::time::Instant::now() < deadline,
                "qdrant does not answer; its log:\n{}",
                std::fs::read_to_string(folder.join("log")).unwrap_or_default()
            );
            tokio::task::yield_now().await;
        }
    }
}
