//! From `storage.qdrant.url` to an engine.

use std::sync::Arc;

use super::measured::Measured;
use super::{IndexError, VectorIndex, qdrant};
use crate::config;

/// Opens the engine that `storage.qdrant.url` names: `http(s)://host:6334` is a
/// server, `embedded:DIR` the engine in this process, or in the one that has the folder open.
///
/// Returns `Denied` for what cannot work later either: a URL of another kind, a
/// server that is too old, an engine that this build lacks. A server or a process that does not
/// answer is `Unavailable`.
pub async fn connect(settings: &config::Qdrant) -> Result<Arc<dyn VectorIndex>, IndexError> {
    Ok(Arc::new(Measured(open(settings, Purpose::All).await?)))
}

/// Like [`connect`], for a process that only searches: it does without an engine that does not
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

impl Purpose {
    /// Whether it can do with an engine that gave this answer.
    fn allows(&self, asked: Result<(), IndexError>) -> Result<(), IndexError> {
        match asked {
            Err(IndexError::Unavailable { engine, reason }) if *self == Self::Search => {
                tracing::warn!(reason, "{engine} is unavailable, Postgres searches instead");
                Ok(())
            }
            asked => asked,
        }
    }
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
        return open_embedded(dir, settings, purpose).await;
    }
    if settings.url.starts_with("http://") || settings.url.starts_with("https://") {
        let mut server = qdrant::Server::new(settings)?;
        purpose.allows(server.ask_version().await)?;
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
    purpose: Purpose,
) -> Result<Arc<dyn VectorIndex>, IndexError> {
    if dir.is_empty() {
        return Err(denied(
            "the embedded engine",
            "storage.qdrant.url names no folder: write \"embedded:DIR\"".into(),
        ));
    }
    let index = super::embedded::Embedded::new(dir.into(), settings);
    purpose.allows(index.open().await)?;
    Ok(Arc::new(index))
}

#[cfg(not(feature = "embedded"))]
async fn open_embedded(
    _dir: &str,
    _settings: &config::Qdrant,
    _purpose: Purpose,
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
