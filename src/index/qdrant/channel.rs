//! A connection for upserts. The client would send them again by itself, when its connection breaks.

use std::error::Error;
use std::iter;
use std::sync::Mutex;
use std::time::Duration;

use qdrant_client::qdrant::points_client::PointsClient;
use qdrant_client::qdrant::{PointsOperationResponse, UpsertPoints};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{self, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

use crate::config;
use crate::lock::lock;

/// How often the server is asked whether it is still there. It has the time of a request to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// A connection to the server, made when it is needed and again when it has broken.
pub(super) struct Channel {
    endpoint: Endpoint,
    connection: Mutex<transport::Channel>,
    api_key: Option<AsciiMetadataValue>,
}

impl Channel {
    /// An error says which setting is wrong.
    pub(super) fn new(
        settings: &config::Qdrant,
        timeout: Duration,
        connect_timeout: Duration,
    ) -> Result<Self, String> {
        let wrong = |error: transport::Error| format!("storage.qdrant.url: {}", root_cause(&error));
        let mut endpoint = Endpoint::from_shared(settings.url.clone())
            .map_err(wrong)?
            .timeout(timeout)
            .connect_timeout(connect_timeout)
            // So that the next upsert does not wait in vain for a server that is gone without a word.
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(timeout)
            .keep_alive_while_idle(true)
            .user_agent(concat!("elf/", env!("CARGO_PKG_VERSION")))
            .map_err(wrong)?;
        if endpoint.uri().scheme_str() == Some("https") {
            let tls = ClientTlsConfig::new().with_native_roots();
            endpoint = endpoint.tls_config(tls).map_err(wrong)?;
        }
        let api_key = settings
            .api_key
            .as_ref()
            .map(|key| key.expose().parse::<AsciiMetadataValue>())
            .transpose()
            .map_err(|_| "storage.qdrant.api_key: a header cannot hold these characters")?
            .map(|mut key| {
                key.set_sensitive(true);
                key
            });
        Ok(Self {
            connection: Mutex::new(endpoint.connect_lazy()),
            endpoint,
            api_key,
        })
    }

    /// Sends an upsert, once: the server may apply one that it has not answered after a later one
    /// that it has, and the caller has to know.
    pub(super) async fn upsert(
        &self,
        request: UpsertPoints,
    ) -> Result<PointsOperationResponse, Status> {
        self.send(request).await.map_err(|status| {
            if !is_an_answer(&status) {
                *lock(&self.connection) = self.endpoint.connect_lazy();
            }
            with_root_cause(status)
        })
    }

    async fn send(&self, request: UpsertPoints) -> Result<PointsOperationResponse, Status> {
        let mut points = PointsClient::new(lock(&self.connection).clone());
        let mut request = Request::new(request);
        if let Some(key) = &self.api_key {
            request.metadata_mut().insert("api-key", key.clone());
        }
        Ok(points.upsert(request).await?.into_inner())
    }
}

/// Whether the server, or a proxy before it, sent this. If not, no answer came in time, or the connection
/// broke or was never made. `Unknown` is also what the generated client says of a connection that takes no
/// requests any more.
fn is_an_answer(status: &Status) -> bool {
    status.source().is_none() && status.code() != Code::Unknown
}

/// The status with what caused it: a broken connection is "transport error" without.
fn with_root_cause(status: Status) -> Status {
    let message = status.message();
    match status.source().map(root_cause) {
        Some(cause) if !message.ends_with(&cause) => {
            Status::new(status.code(), format!("{message}: {cause}"))
        }
        _ => status,
    }
}

fn root_cause(error: &(dyn Error + 'static)) -> String {
    iter::successors(Some(error), |&error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}

#[cfg(test)]
mod tests {
    use tonic::TimeoutExpired;

    use super::*;

    #[test]
    fn a_status_without_a_cause_is_an_answer() {
        for said in [
            Status::internal("No space left on device"),
            Status::unavailable("The update queue is full"),
            Status::cancelled("Timeout expired"),
        ] {
            assert!(is_an_answer(&said), "{said}");
        }
        let timed_out = Status::from_error(TimeoutExpired(()).into());
        let reset = || std::io::Error::other("connection reset");
        let broken = Status::from_error(reset().into());
        let never_made = Status::from_error(tonic::ConnectError(reset().into()).into());
        let unready = Status::unknown("Service was not ready: buffer's worker closed unexpectedly");
        for failure in [timed_out, broken, never_made, unready] {
            assert!(!is_an_answer(&failure), "{failure}");
        }
    }

    #[test]
    fn a_message_ends_with_the_cause_once() {
        let timed_out = Status::from_error(TimeoutExpired(()).into());
        assert_eq!(with_root_cause(timed_out).message(), "Timeout expired");
        let said = Status::internal("No space left on device");
        assert_eq!(with_root_cause(said).message(), "No space left on device");
        let refused = std::io::Error::other("connection refused");
        let never_made = Status::from_error(tonic::ConnectError(refused.into()).into());
        let message = with_root_cause(never_made).message().to_owned();
        assert!(message.ends_with("connection refused"), "{message}");
    }
}
