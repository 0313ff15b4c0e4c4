//! A client of the HTTP API.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::site::{Running, Site};

/// What the API answered.
#[derive(Debug)]
pub struct Answered {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Answered {
    /// Fails unless it is an error of this status and code, in the shape of all errors.
    pub fn is_error(&self, status: u16, code: &str) {
        let error = &self.body["error"];
        assert_eq!(
            (self.status.as_u16(), error["code"].as_str()),
            (status, Some(code)),
            "{self:?}"
        );
        assert!(error["message"].as_str().unwrap().len() > 10, "{self:?}");
        assert!(error["details"].is_object(), "{self:?}");
    }
}

/// The secret of a new key.
pub async fn key(site: &Site, args: &[&str]) -> String {
    let made = site.json(&[&["key", "create"], args].concat()).await;
    made["secret"].as_str().unwrap().to_owned()
}

/// Where a process serves the API.
pub async fn url(server: &Running) -> String {
    let line = server.says("HTTP API serves").await;
    let address = line.split("address=").nth(1).unwrap();
    format!("http://{}", address.split_whitespace().next().unwrap())
}

/// Sends one request with a key.
pub async fn ask(
    url: &str,
    method: Method,
    path: &str,
    secret: &str,
    body: Option<Value>,
) -> Answered {
    let mut request = reqwest::Client::new()
        .request(method, format!("{url}{path}"))
        .bearer_auth(secret);
    if let Some(body) = body {
        request = request.json(&body);
    }
    let response = request.send().await.unwrap();
    Answered {
        status: response.status(),
        headers: response.headers().clone(),
        body: response.json().await.unwrap(),
    }
}

/// A worker that serves the API.
pub struct Served {
    pub site: Site,
    pub worker: Running,
    pub url: String,
}

impl Served {
    pub async fn start() -> Self {
        Self::with("").await
    }

    /// With these lines at the end of the configuration.
    pub async fn with(lines: &str) -> Self {
        Self::on(Site::start().await, lines).await
    }

    /// On a site of the test's own making.
    pub async fn on(site: Site, lines: &str) -> Self {
        site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
        site.write("elf.toml", format!("{}{lines}", site.toml()));
        let worker = site.worker();
        let url = url(&worker).await;
        Self { site, worker, url }
    }

    /// The secret of a new key.
    pub async fn key(&self, args: &[&str]) -> String {
        key(&self.site, args).await
    }

    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        secret: &str,
        body: Option<Value>,
    ) -> Answered {
        ask(&self.url, method, path, secret, body).await
    }

    pub async fn search(&self, secret: &str, body: Value) -> Answered {
        self.ask(Method::POST, "/v2/searches", secret, Some(body))
            .await
    }

    /// Adds a note of the project `p` and the agent `a`, and waits until it is indexed.
    pub async fn add(&self, secret: &str, text: &str) -> String {
        let body = json!({"notes": [
            {"project_id": "p", "agent_id": "a", "scope": "s", "type": "n", "text": text}
        ]});
        let path = "/v2/notes?wait=indexed";
        let added = loop {
            let added = self
                .ask(Method::POST, path, secret, Some(body.clone()))
                .await;
            if added.status != StatusCode::TOO_MANY_REQUESTS {
                break added;
            }
        };
        assert_eq!(added.status, 201, "{added:?}");
        assert_eq!(added.body["indexed"], true);
        added.body["note_ids"][0].as_str().unwrap().to_owned()
    }

    /// The ids of the notes that a search finds.
    pub async fn found(&self, secret: &str, query: &str) -> Vec<String> {
        let answered = self.search(secret, json!({ "query": query })).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        let items = answered.body["items"].as_array().unwrap();
        let id = |item: &Value| item["note_id"].as_str().unwrap().to_owned();
        items.iter().map(id).collect()
    }
}

/// The JSON that a tool of `/mcp` answered.
pub fn tool_answer(answered: &Value) -> Value {
    let content = answered["result"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 1, "{answered}");
    serde_json::from_str(content[0]["text"].as_str().unwrap()).unwrap()
}
