//! A client of the HTTP API.

use reqwest::{Method, StatusCode};
use serde_json::Value;

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
