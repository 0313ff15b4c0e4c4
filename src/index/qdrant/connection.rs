//! The connection to a server that is new enough, and how long a request may take.

use std::sync::Mutex;
use std::time::Duration;

use qdrant_client::{Qdrant, QdrantError};
use tokio::sync::Semaphore;

use super::channel::Channel;
use super::{Server, UPSERTS_IN_FLIGHT, status};
use crate::config;
use crate::index::IndexError;

/// Conditional upserts came with 1.16, insert-only ones with 1.17.
const OLDEST: (u32, u32) = (1, 17);

impl Server {
    /// A server that connects with its first request.
    pub(in crate::index) fn new(settings: &config::Qdrant) -> Result<Self, IndexError> {
        let engine = format!("qdrant at {}", settings.url);
        let (timeout, timeout_secs) = timeouts(settings.timeout_ms);
        let connect_timeout = timeout.min(Duration::from_secs(5));
        let client = Qdrant::from_url(&settings.url)
            .api_key(settings.api_key.as_ref().map(|key| key.expose().to_owned()))
            .timeout(timeout)
            .connect_timeout(connect_timeout)
            // The client's check prints to stdout and only warns; `check_version` refuses.
            .skip_compatibility_check()
            .build()
            .map_err(|error| status::classify(&engine, "", error))?;
        let channel = Channel::new(settings, timeout, connect_timeout).map_err(|reason| {
            let engine = engine.clone();
            IndexError::Denied { engine, reason }
        })?;
        Ok(Self {
            client,
            channel,
            settings: settings.clone(),
            engine,
            timeout_secs,
            options: Mutex::default(),
            upserts: Semaphore::new(UPSERTS_IN_FLIGHT),
        })
    }

    /// Asks the server for its version. A server that is too old is an error.
    pub(in crate::index) async fn ask_version(&mut self) -> Result<(), IndexError> {
        let url = &self.settings.url;
        let health = self.client.health_check().await;
        let version = health
            .map_err(|error| unreachable_at(url, &self.engine, error))?
            .version;
        if let Err(reason) = check_version(&version) {
            let engine = self.engine.clone();
            return Err(IndexError::Denied { engine, reason });
        }
        self.engine = format!("qdrant {version} at {url}");
        Ok(())
    }
}

/// How long the client waits, and how many whole seconds it gives the server:
/// fewer, so that the server's own answer comes first.
fn timeouts(timeout_ms: u64) -> (Duration, u64) {
    let server_secs = (timeout_ms / 1000).saturating_sub(1).max(1);
    let client_ms = timeout_ms.max(server_secs * 1000 + 500);
    (Duration::from_millis(client_ms), server_secs)
}

/// Whether a server of this version can do what ELF asks of it.
fn check_version(found: &str) -> Result<(), String> {
    if version(found).is_some_and(|found| found >= OLDEST) {
        return Ok(());
    }
    let (major, minor) = OLDEST;
    Err(format!(
        "the server is version {found:?}, ELF needs {major}.{minor} or newer (for insert-only \
         upserts): update the server"
    ))
}

/// Major and minor of `1.18.3` or `1.19.0-dev`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first request failed: say so, and which port to try.
fn unreachable_at(url: &str, engine: &str, error: QdrantError) -> IndexError {
    match status::classify(engine, "", error) {
        IndexError::Unavailable { engine, reason }
            if !url.trim_end_matches('/').ends_with(":6334") =>
        {
            let reason = format!(
                "{reason}; storage.qdrant.url must name the server's gRPC port, usually 6334 \
                 (6333 is the one for REST)"
            );
            IndexError::Unavailable { engine, reason }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn the_server_times_out_before_the_client() {
        for timeout_ms in [1, 900, 1_000, 1_999, 2_000, 10_000, 61_500] {
            let (client, server_secs) = timeouts(timeout_ms);
            assert!(server_secs >= 1, "0 seconds are refused by the server");
            assert!(Duration::from_secs(server_secs) < client, "{timeout_ms} ms");
        }
        assert_eq!(timeouts(10_000), (Duration::from_secs(10), 9));
    }

    #[test]
    fn an_old_server_is_refused_and_both_versions_named() {
        for enough in ["1.17.0", "1.18.3", "1.100.0", "1.19.0-dev", "2.0.0"] {
            assert_eq!(check_version(enough), Ok(()));
        }
        for old in ["1.9.9", "1.16.3", "0.99.0", "", "unknown"] {
            let reason = check_version(old).unwrap_err();
            assert!(
                reason.contains(&format!("{old:?}")) && reason.contains("1.17"),
                "{reason}"
            );
        }
    }
}
