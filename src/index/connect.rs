//! From `storage.qdrant.url` to an engine.

use std::sync::Arc;

use super::measured::Measured;
use super::{IndexError, VectorIndex, qdrant};
use crate::config;

/// Opens the engine that `storage.qdrant.url` names: `http(s)://host:6334` is a
/// server, `embedded:DIR` the engine in this process.
///
/// Returns `Denied` for what cannot work later either: a URL of another kind, a
/// server that is too old, an engine that this build lacks. A folder that another
/// process has open is `InUse`, a server that does not answer `Unavailable`.
pub async fn connect(settings: &config::Qdrant) -> Result<Arc<dyn VectorIndex>, IndexError> {
    Ok(Arc::new(Measured(open(settings, Purpose::All).await?)))
}

/// Like [`connect`], for a process that only searches: it does without a server that does not
/// answer, now as later, and writes nothing that would need a new one.
pub async fn connect_to_search(
    settings: &config::Qdrant,
) -> Result<Arc<dyn VectorIndex>, IndexError> {
    Ok(Arc::new(Measured(open(settings, Purpose::Search).await?)))
}

#[derive(PartialEq)]
enum Purpose {
    All,
    Search,
}

async fn open(
    settings: &config::Qdrant,
    purpose: Purpose,
) -> Result<Arc<dyn VectorIndex>, IndexError> {
    settings
        .bm25
        .check()
        .map_err(|reason| denied("the index", reason))?;
    if let Some(dir) = settings.url.strip_prefix("embedded:") {
        return open_embedded(dir, settings).await;
    }
    if settings.url.starts_with("http://") || settings.url.starts_with("https://") {
        let mut server = qdrant::Server::new(settings)?;
        match server.ask_version().await {
            Err(IndexError::Unavailable { engine, reason }) if purpose == Purpose::Search => {
                tracing::warn!(reason, "{engine} is unavailable, Postgres searches instead");
            }
            asked => asked?,
        }
        return Ok(Arc::new(server));
    }
    Err(denied(
        "the index",
        format!(
            "storage.qdrant.url {:?} names no engine: write \"http://host:6334\" (gRPC) or \"embedded:DIR\"",
            settings.url
        ),
    ))
}

#[cfg(feature = "embedded")]
async fn open_embedded(
    dir: &str,
    settings: &config::Qdrant,
) -> Result<Arc<dyn VectorIndex>, IndexError> {
    if dir.is_empty() {
        return Err(denied(
            "the embedded engine",
            "storage.qdrant.url names no folder: write \"embedded:DIR\"".into(),
        ));
    }
    let (dir, on_disk) = (std::path::PathBuf::from(dir), settings.on_disk);
    Ok(Arc::new(
        super::embedded::Embedded::open(dir, on_disk).await?,
    ))
}

#[cfg(not(feature = "embedded"))]
async fn open_embedded(
    _dir: &str,
    _settings: &config::Qdrant,
) -> Result<Arc<dyn VectorIndex>, IndexError> {
    Err(denied(
        "the embedded engine",
        "this build of elf lacks it: build with `--features embedded`, or set storage.qdrant.url to a server, \"http://host:6334\"".into(),
    ))
}

fn denied(engine: &str, reason: String) -> IndexError {
    IndexError::Denied {
        engine: engine.into(),
        reason,
    }
}
