//! The vector engine that the benches measure on.

use std::collections::HashMap;
use std::time::Duration;

use elf::config::Bm25Options;
use qdrant_client::Qdrant;
use qdrant_client::qdrant::{CollectionStatus, Value};

use crate::report::Report;
use crate::{Options, Result, qdrant_server};

/// An engine, and what the report calls it.
#[derive(Clone)]
pub struct Engine {
    /// For `storage.qdrant.url`.
    pub url: String,
    pub name: String,
    /// A bare client can talk to it.
    pub is_server: bool,
}

impl Engine {
    /// The server at `QDRANT_URL`, else the `qdrant` program on the PATH, else the engine in the
    /// process of ELF.
    pub async fn find() -> Result<Self> {
        let Some(url) = qdrant_server::url() else {
            return Ok(Self {
                url: "embedded:index".into(),
                name: "the embedded engine".into(),
                is_server: false,
            });
        };
        let version = client(url)?.health_check().await?.version;
        Ok(Self {
            url: url.to_owned(),
            name: format!("Qdrant {version}"),
            is_server: true,
        })
    }
}

/// The server and the report of a bench that takes one. Without a server the report says that the
/// bench was skipped.
pub async fn server(bench: &'static str, options: Options) -> Result<Option<(Engine, Report)>> {
    let engine = Engine::find().await?;
    let mut report = Report::new(bench, options, &engine.name);
    if engine.is_server {
        return Ok(Some((engine, report)));
    }
    report.fact(
        "skipped",
        "it takes a Qdrant server (QDRANT_URL, or qdrant on the PATH)",
    );
    report.write()?;
    Ok(None)
}

/// A client as an application would have it.
pub fn client(url: &str) -> Result<Qdrant> {
    Ok(Qdrant::from_url(url)
        .timeout(Duration::from_secs(120))
        .skip_compatibility_check()
        .build()?)
}

/// Waits until the collection has its graphs.
pub async fn wait_for_graphs(client: &Qdrant, collection: &str) -> Result<()> {
    loop {
        let info = client.collection_info(collection).await?;
        if info.result.ok_or("no collection")?.status() == CollectionStatus::Green {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The options of a text for the server's BM25, without stopwords of one's own.
pub fn bm25_options(bm25: &Bm25Options) -> Result<HashMap<String, Value>> {
    let mut json = serde_json::to_value(bm25)?;
    let options = json.as_object_mut().ok_or("no object")?;
    options.retain(|name, _| !matches!(name.as_str(), "stopwords" | "lead"));
    values(&json)
}

/// A JSON object as the client has it.
pub fn values(json: &serde_json::Value) -> Result<HashMap<String, Value>> {
    let value = |json: &serde_json::Value| -> Value {
        match json {
            serde_json::Value::String(text) => text.clone().into(),
            serde_json::Value::Number(n) => match n.as_i64() {
                Some(integer) => integer.into(),
                None => n.as_f64().unwrap_or(f64::NAN).into(),
            },
            serde_json::Value::Bool(is_true) => (*is_true).into(),
            other => unreachable!("a payload has no {other}"),
        }
    };
    let object = json.as_object().ok_or("no object")?;
    Ok(object
        .iter()
        .map(|(name, json)| (name.clone(), value(json)))
        .collect())
}
