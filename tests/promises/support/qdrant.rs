//! A Qdrant server of a test's own, which it can kill and start again.

use super::components::{met, missing};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use super::DEADLINE;

/// A server on two free ports, over a folder that outlives its crashes.
pub struct Qdrant {
    program: PathBuf,
    http: u16,
    grpc: u16,
    // Dropped in this order: the server before its folder and disk.
    child: Option<Child>,
    disk: Option<SmallDisk>,
    folder: tempfile::TempDir,
}

/// A disk of a few megabytes, in memory.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts it over `folder`; `None` without the right to mount.
    fn over(folder: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&folder).unwrap();
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=256m", "elf-test"])
            .arg(&folder)
            .stderr(Stdio::null())
            .status();
        mount
            .is_ok_and(|status| status.success())
            .then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the server may still be ending.
        let umount = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .status();
        if !umount.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.0.display());
        }
    }
}

impl Qdrant {
    /// Starts one; without a `qdrant` program on the path it says so, and gives `None`.
    pub async fn start(test: &str) -> Option<Self> {
        let mut server = Self::stopped(test)?;
        server.restart().await;
        Some(server)
    }

    /// Starts one on a disk that a test can fill. Where nothing can be mounted it
    /// says so, and gives `None`.
    pub async fn start_on_a_small_disk(test: &str) -> Option<Self> {
        let mut server = Self::stopped(test)?;
        server.disk = SmallDisk::over(server.folder.path().join("storage"));
        if server.disk.is_none() {
            missing("small-disk", test, "a disk cannot be mounted here");
            return None;
        }
        met("small-disk");
        server.restart().await;
        Some(server)
    }

    pub fn fill_disk(&self) {
        use std::io::Write;
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        let block = vec![1; 4096];
        while filler.write_all(&block).is_ok() {}
    }

    /// Deletes the file that filled it.
    pub fn free_disk(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("storage/filler")
    }

    /// Whether it has not crashed.
    pub fn is_running(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    fn stopped(test: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let program = std::env::split_paths(&path)
            .map(|dir| dir.join("qdrant"))
            .find(|file| file.is_file());
        let Some(program) = program else {
            missing("qdrant", test, "there is no qdrant program on the PATH");
            return None;
        };
        met("qdrant");
        let port = || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            (listener.local_addr().unwrap().port(), listener)
        };
        // Both are held until both are known, or they might be the same.
        let ((http, _one), (grpc, _two)) = (port(), port());
        drop((_one, _two));
        Some(Self {
            program,
            folder: tempfile::tempdir().unwrap(),
            http,
            grpc,
            child: None,
            disk: None,
        })
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
