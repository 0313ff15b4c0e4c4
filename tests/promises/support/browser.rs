//! A real browser: Debian's Chromium without a window, controlled by chromedriver, which
//! speaks WebDriver (<https://www.w3.org/TR/webdriver2/>) over HTTP.
//!
//! About 50 lines are a client of WebDriver. `thirtyfour` would bring 9 crates for them, a second `reqwest`
//! among them, and 6 s of compiling; `fantoccini` 18 crates, a second `http` among them, and 9 s. The driver's
//! process, the log of the console and what the tests assert would stay here.

use super::components::{met, missing};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::DEADLINE;

/// How WebDriver names an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Keys as WebDriver writes them.
pub const TAB: &str = "\u{e004}";
pub const ENTER: &str = "\u{e007}";
pub const ESCAPE: &str = "\u{e00c}";

/// Runs before the page's own script and records violations of the page's policy and errors.
const WITNESS: &str = "window.violations = [];
    addEventListener('securitypolicyviolation', (e) => violations.push(`${e.violatedDirective} ${e.blockedURI}`));";

/// A browser with one tab and a profile of its own.
pub struct Browser {
    // Dropped before the profile, which the browser still uses.
    driver: Child,
    http: reqwest::Client,
    port: u16,
    session: String,
    profile: tempfile::TempDir,
}

impl Browser {
    /// Starts one; where there is none it says so, and gives `None`.
    pub async fn start(test: &str) -> Option<Self> {
        for program in ["chromium", "chromedriver"] {
            if !is_on_path(program) {
                let reason = format!("there is no {program} on the PATH, see `make setup`");
                missing("browser", test, &reason);
                return None;
            }
        }
        met("browser");
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = loop {
            let line = lines.next_line().await.unwrap();
            let line = line.expect("chromedriver says which port it has");
            if let Some((_, port)) = line.split_once("successfully on port ") {
                break port.trim_end_matches('.').parse().unwrap();
            }
        };
        // Chromedriver logs more lines; with a full pipe it would stop.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self {
            driver,
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            port,
            session: String::new(),
            profile,
        };
        browser.begin().await;
        Some(browser)
    }

    async fn begin(&mut self) {
        let profile = format!("--user-data-dir={}", self.profile.path().display());
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
            &profile,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": DEADLINE.as_millis() as u64},
        }}});
        let begun = self.post("/session", wanted).await;
        let id = begun["sessionId"].as_str().expect("a session");
        self.session = format!("/session/{id}");
        let witness = json!({ "source": WITNESS });
        self.devtools("Page.addScriptToEvaluateOnNewDocument", witness)
            .await;
        self.resize(1280, 900).await;
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.try_post(path, body)
            .await
            .unwrap_or_else(|error| panic!("{path}: {error:#}"))
    }

    async fn try_post(&self, path: &str, body: Value) -> Result<Value, Value> {
        let url = format!("http://127.0.0.1:{}{path}", self.port);
        let answer = self.http.post(url).json(&body).send().await.unwrap();
        let is_ok = answer.status().is_success();
        let mut said: Value = answer.json().await.unwrap();
        let value = said["value"].take();
        if is_ok { Ok(value) } else { Err(value) }
    }

    async fn command(&self, path: &str, body: Value) -> Value {
        self.post(&format!("{}/{path}", self.session), body).await
    }

    /// A command of Chromium's own protocol.
    pub async fn devtools(&self, name: &str, params: Value) -> Value {
        self.command("goog/cdp/execute", json!({"cmd": name, "params": params}))
            .await
    }

    /// Gives the page this many pixels; a narrow one is a phone.
    pub async fn resize(&self, width: u32, height: u32) {
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500});
        self.devtools("Emulation.setDeviceMetricsOverride", screen)
            .await;
    }

    /// Prefers `light` or `dark`.
    pub async fn prefer(&self, scheme: &str) {
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.devtools("Emulation.setEmulatedMedia", features).await;
    }

    /// Opens a page and waits until it is loaded.
    pub async fn open(&self, url: &str) {
        self.command("url", json!({ "url": url })).await;
    }

    /// What `script`, the body of a function, returns.
    pub async fn run(&self, script: &str) -> Value {
        self.command("execute/sync", json!({"script": script, "args": []}))
            .await
    }

    /// The same for a script that hands its result to `done`.
    pub async fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.command("execute/async", json!({"script": script, "args": []}))
            .await
    }

    /// Waits until an expression is true in the page, also across a reload.
    pub async fn until(&self, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[0];
             const look = () => {{ const found = {expression}; if (found) done(found); else setTimeout(look, 20); }};
             look();"
        );
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let path = format!("{}/execute/async", self.session);
            let asked = self.try_post(&path, json!({"script": script, "args": []}));
            let error = match tokio::time::timeout_at(deadline, asked).await {
                Ok(Ok(found)) => return found,
                Ok(Err(error)) => error,
                Err(_) => json!("it took too long"),
            };
            let unloaded = error["message"]
                .as_str()
                .is_some_and(|message| message.contains("unloaded"));
            if !unloaded {
                let shown = self.run("return document.body.innerText").await;
                panic!("never true: {expression}\n{error:#}\n{shown}");
            }
        }
    }

    /// Waits until an element has this in its text.
    pub async fn shows(&self, css: &str, words: &str) {
        let (css, words) = (json!(css), json!(words));
        self.until(&format!(
            "document.querySelector({css})?.innerText.includes({words})"
        ))
        .await;
    }

    /// The visible text of the first element of `css`.
    pub async fn text(&self, css: &str) -> String {
        let text = self
            .run(&format!(
                "return document.querySelector({}).innerText",
                json!(css)
            ))
            .await;
        text.as_str().unwrap().to_owned()
    }

    /// Clicks as a mouse does: the element has to be visible and not covered.
    pub async fn click(&self, css: &str) {
        let element = self.element(css).await;
        self.command(&format!("element/{element}/click"), json!({}))
            .await;
    }

    /// Types into an element.
    pub async fn type_into(&self, css: &str, text: &str) {
        let element = self.element(css).await;
        self.command(&format!("element/{element}/value"), json!({ "text": text }))
            .await;
    }

    async fn element(&self, css: &str) -> String {
        let found = self
            .command("element", json!({"using": "css selector", "value": css}))
            .await;
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Presses and releases a key, wherever the focus is.
    pub async fn press(&self, key: &str) {
        let keys = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let actions = json!({"actions": [{"type": "key", "id": "keyboard", "actions": keys}]});
        self.command("actions", actions).await;
    }

    /// Nothing scrolls sideways, and axe-core finds nothing.
    pub async fn assert_accessible(&self, axe: Option<&str>) {
        let wide = self
            .run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
            .await;
        assert_eq!(wide, 0);
        let Some(axe) = axe else {
            return;
        };
        // The page's policy does not apply to scripts that WebDriver runs in it.
        let missing = self.run("return window.axe === undefined").await;
        if missing == true {
            self.run(&format!("{axe}; window.axe = axe;")).await;
        }
        let found = self
            .run_async(
                "axe.run({resultTypes: ['violations']}).then((result) => done(result.violations.map(
                     (v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => `${n.target}: ${n.failureSummary}`)])))",
            )
            .await;
        assert_eq!(found, json!([]), "{found:#}");
    }

    /// Fails if the page did what its policy forbids, or the console has an error. Requests
    /// that failed are none: some tests want them to.
    pub async fn assert_clean(&self) {
        let violations = self.run("return window.violations").await;
        assert_eq!(violations, json!([]));
        let log = self.command("se/log", json!({"type": "browser"})).await;
        let errors: Vec<&Value> = log
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["source"] != "network")
            .collect();
        assert!(errors.is_empty(), "{errors:#?}");
    }

    /// Writes what the tab shows as a PNG, all of it or what fits the screen.
    pub async fn screenshot(&self, path: &Path, whole: bool) {
        let params = json!({"format": "png", "captureBeyondViewport": whole});
        let taken = self.devtools("Page.captureScreenshot", params).await;
        let png = STANDARD.decode(taken["data"].as_str().unwrap()).unwrap();
        std::fs::write(path, png).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Killed alone, the driver would leave the browser behind.
        let end = || -> std::io::Result<()> {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(DEADLINE))?;
            let request = format!(
                "DELETE {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
                self.session
            );
            stream.write_all(request.as_bytes())?;
            stream.read_exact(&mut [0; 12])
        };
        if let Err(error) = end() {
            eprintln!("the browser may be left behind: {error}");
        }
        self.driver.start_kill().ok();
    }
}

/// The accessibility checker axe-core, which `make setup` brings.
pub fn axe() -> Option<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".elf/axe.min.js");
    std::fs::read_to_string(path).ok()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}
