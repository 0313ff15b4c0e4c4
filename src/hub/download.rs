//! Downloads a file of a repository, and says why that failed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hf_hub::api::tokio::{ApiError, ApiRepo, Progress};
use tokio::sync::Notify;

use super::{Hub, HubError, ModelFiles};

/// The hub's client has no timeouts of its own. A live download, however large,
/// moves bytes more often than this; a dead one should be reported while the
/// operator still watches.
pub(super) const STALL: Duration = Duration::from_secs(30);

const UNREACHABLE: &str = "set providers.embedding.model to a folder that holds the model, \
                           set HF_ENDPOINT to a mirror that can be reached, or try again";

impl ModelFiles {
    /// Downloads the file `name` into the cache, and returns where it lies there.
    pub(super) async fn download(
        &self,
        hub: &Hub,
        api: &ApiRepo,
        name: &str,
    ) -> Result<PathBuf, HubError> {
        self.receive(hub, api, name)
            .await
            .map_err(|error| match error {
                DownloadError::Stalled => HubError::Download {
                    model: self.model.clone(),
                    url: api.url(name),
                    status: None,
                    reason: format!("sent nothing for {} seconds", self.stall.as_secs()),
                    advice: UNREACHABLE,
                },
                DownloadError::Api(ApiError::IoError(source)) => HubError::Disk {
                    path: hub.cache.clone(),
                    source,
                },
                DownloadError::Api(error) => download_error(&self.model, api.url(name), &error),
            })
    }

    async fn receive(
        &self,
        hub: &Hub,
        api: &ApiRepo,
        name: &str,
    ) -> Result<PathBuf, DownloadError> {
        loop {
            let pulse = Pulse::default();
            let download = api.download_with_progress(name, pulse.clone());
            tokio::pin!(download);
            let result = loop {
                tokio::select! {
                    result = &mut download => break result,
                    () = pulse.0.notified() => {}
                    () = tokio::time::sleep(self.stall) => return Err(DownloadError::Stalled),
                }
            };
            match result {
                // The process that holds the lock downloads the file or times out.
                Err(ApiError::LockAcquisition(_)) => {
                    tracing::info!(
                        model = self.model,
                        file = name,
                        "another process is downloading the file, waiting"
                    );
                    if let Some(path) = self.cached(hub, name) {
                        return Ok(path);
                    }
                }
                result => return result.map_err(DownloadError::Api),
            }
        }
    }
}

enum DownloadError {
    Stalled,
    Api(ApiError),
}

/// Signals that bytes arrive.
#[derive(Clone, Default)]
struct Pulse(Arc<Notify>);

impl Progress for Pulse {
    async fn init(&mut self, size: usize, filename: &str) {
        tracing::info!(file = filename, bytes = size, "downloading from the hub");
        self.0.notify_one();
    }

    async fn update(&mut self, _size: usize) {
        self.0.notify_one();
    }

    async fn finish(&mut self) {
        self.0.notify_one();
    }
}

pub(super) fn download_error(model: &str, url: String, error: &ApiError) -> HubError {
    let status = match error {
        ApiError::RequestError(error) => error.status().map(|status| status.as_u16()),
        _ => None,
    };
    let (reason, advice) = match status {
        Some(404) => (
            "answered 404: the repository has no such file".to_owned(),
            "check the name of the model",
        ),
        // The hub answers so for a repository that does not exist, too.
        Some(status @ (401 | 403)) => (
            format!("answered {status}: the repository does not exist or needs a token"),
            "check the name of the model, or set HF_TOKEN to a token that may read it",
        ),
        Some(429) => (
            "answered 429: too many requests from here".to_owned(),
            "wait and try again, or set HF_TOKEN",
        ),
        Some(status) => (format!("answered {status}"), UNREACHABLE),
        None => (
            format!("could not be downloaded: {}", causes(error)),
            UNREACHABLE,
        ),
    };
    HubError::Download {
        model: model.to_owned(),
        url,
        status,
        reason,
        advice,
    }
}

/// The error with its sources: the client's own message ends at "error sending
/// request", and only the sources say why.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let message = cause.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = cause.source();
    }
    text
}
