//! The HTTP API of a worker, and a Python with clients for it.

use std::path::PathBuf;

use tokio::process::Command;

use super::api::url;
use super::components::{met, missing};
use super::site::{Done, Running, Site, run};

/// A worker that serves the HTTP API, and a Python.
pub struct Served {
    pub site: Site,
    pub url: String,
    python: PathBuf,
    _worker: Running,
}

impl Served {
    /// `None`, said aloud, if there is no such Python.
    pub async fn start(test: &str) -> Option<Self> {
        let python = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".elf/clients/bin/python");
        if !python.exists() {
            missing(
                "clients",
                test,
                "there are no Python clients: run `make test`",
            );
            return None;
        }
        met("clients");
        let site = Site::start().await;
        site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
        let worker = site.worker();
        let url = url(&worker).await;
        Some(Self {
            site,
            url,
            python,
            _worker: worker,
        })
    }

    /// Runs node with `args`, one of the programs of the npm packages first, in the folder of the
    /// site. `None`, said aloud, if there are no such packages.
    pub async fn node(&self, test: &str, secret: &str, args: &[&str]) -> Option<Done> {
        let packages = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".elf/clients-node");
        if !packages.exists() {
            let reason = "there are no TypeScript clients: install node and npm, run `make test`";
            missing("clients", test, reason);
            return None;
        }
        let here = self.site.folder.path();
        if !here.join("node_modules").exists() {
            std::os::unix::fs::symlink(packages.join("node_modules"), here.join("node_modules"))
                .unwrap();
            self.site.write("package.json", r#"{"type": "module"}"#);
        }
        let mut node = Command::new("node");
        node.args(args)
            .current_dir(here)
            .env("ELF_API_URL", &self.url)
            .env("ELF_API_KEY", secret);
        Some(run(node, b"").await.exits(0))
    }

    /// Runs Python with `args` and a key, in the folder of the site.
    pub async fn python(&self, secret: &str, args: &[&str], input: &str) -> Done {
        let mut python = Command::new(&self.python);
        python
            .args(args)
            .current_dir(self.site.folder.path())
            .env("PYTHONPATH", self.site.folder.path())
            .env("ELF_API_URL", &self.url)
            .env("ELF_API_KEY", secret);
        run(python, input.as_bytes()).await.exits(0)
    }
}
