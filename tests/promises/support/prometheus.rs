//! A Prometheus server of a test's own.

use super::components::{met, missing};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::process::{Child, Command};

use super::DEADLINE;

/// A server on a free port, over a folder that is deleted with it.
pub struct Prometheus {
    child: Child,
    url: String,
    http: reqwest::Client,
    folder: tempfile::TempDir,
}

/// `prometheus` or `promtool`: the one on the path, or what `make setup` brought. Where
/// there is neither it says so, past the test harness's capture, and gives `None`.
pub fn program(name: &str, test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf/prometheus/usr/bin");
    let found = std::env::split_paths(&path)
        .chain([own])
        .map(|dir| dir.join(name))
        .find(|file| file.is_file());
    match found {
        Some(_) => met("prometheus"),
        None => {
            let reason = format!("{name} is neither on the PATH nor in .elf/prometheus");
            missing("prometheus", test, &reason);
        }
    }
    found
}

impl Prometheus {
    /// Starts one that works by `config`, and waits until it answers.
    pub async fn start(test: &str, config: &str) -> Option<Self> {
        let program = program("prometheus", test)?;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(file("prometheus.yml"), config).unwrap();
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let log = std::fs::File::create(file("log")).unwrap();
        let mut child = Command::new(program)
            .arg(format!("--config.file={}", file("prometheus.yml")))
            .arg(format!("--storage.tsdb.path={}", file("data")))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let url = format!("http://127.0.0.1:{port}");
        let http = reqwest::Client::new();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let ready = http.get(format!("{url}/-/ready")).send().await;
            if ready.is_ok_and(|answer| answer.status() == 200) {
                break;
            }
            let ended = child.try_wait().unwrap();
            assert!(
                ended.is_none() && tokio::time::Instant::now() < deadline,
                "prometheus does not answer; its log:\n{}",
                std::fs::read_to_string(file("log")).unwrap_or_default()
            );
            tokio::task::yield_now().await;
        }
        Some(Self {
            child,
            url,
            http,
            folder,
        })
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The samples that an expression has now. An expression that is wrong is an error
    /// of the test.
    pub async fn query(&self, expression: &str) -> Vec<Value> {
        let request = self
            .http
            .post(format!("{}/api/v1/query", self.url))
            .form(&[("query", expression)]);
        let answer = Self::answer(request).await;
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        match &answer["data"]["result"] {
            Value::Array(samples) => samples.clone(),
            other => panic!("{expression}: {other}"),
        }
    }

    /// Whether an expression has a sample that is a number.
    pub async fn has_number(&self, expression: &str) -> bool {
        let samples = self.query(expression).await;
        samples.iter().any(|sample| sample["value"][1] != "NaN")
    }

    /// Its rules, as it has read them.
    pub async fn rules(&self) -> Vec<Value> {
        let answer = Self::answer(self.http.get(format!("{}/api/v1/rules", self.url))).await;
        let groups = answer["data"]["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|g| g["rules"].as_array().unwrap());
        rules.cloned().collect()
    }

    async fn answer(request: reqwest::RequestBuilder) -> Value {
        request.send().await.unwrap().json().await.unwrap()
    }
}
