//! A connection for requests that are bytes already. The client takes only its own types.

use std::error::Error;
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;
use prost::bytes::BufMut;
use qdrant_client::qdrant::PointsOperationResponse;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{self, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, TimeoutExpired};

use crate::config;

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

    /// Sends an upsert, and a second time if the connection broke. The server may still work on one that
    /// timed out: that is not sent again.
    pub(super) async fn upsert(&self, request: Vec<u8>) -> Result<PointsOperationResponse, Status> {
        let request = Arc::new(request);
        let answer = match self.send(request.clone()).await {
            Err(status) => match Failure::of(&status) {
                Failure::Answered => Err(status),
                // Perhaps the server is gone without a word.
                Failure::TimedOut => {
                    self.connect_again();
                    Err(status)
                }
                Failure::Broken => {
                    self.connect_again();
                    self.send(request).await
                }
            },
            answer => answer,
        };
        answer.map_err(with_root_cause)
    }

    fn connect_again(&self) {
        *self.connection() = self.endpoint.connect_lazy();
    }

    fn connection(&self) -> MutexGuard<'_, transport::Channel> {
        self.connection.lock().expect("no holder panics")
    }

    async fn send(&self, bytes: Arc<Vec<u8>>) -> Result<PointsOperationResponse, Status> {
        let mut grpc = Grpc::new(self.connection().clone());
        grpc.ready()
            .await
            .map_err(|error| Status::from_error(error.into()))?;
        let mut request = Request::new(bytes);
        if let Some(key) = &self.api_key {
            request.metadata_mut().insert("api-key", key.clone());
        }
        let path = "/qdrant.Points/Upsert".parse().expect("a path");
        Ok(grpc.unary(request, path, Bytes).await?.into_inner())
    }
}

/// Why a request has failed.
#[derive(Debug, PartialEq)]
enum Failure {
    /// The server, or a proxy before it, says so.
    Answered,
    /// No answer came in time.
    TimedOut,
    /// The connection broke, or was never made.
    Broken,
}

impl Failure {
    fn of(status: &Status) -> Self {
        let mut causes = iter::successors(status.source(), |&cause| cause.source()).peekable();
        if causes.peek().is_none() {
            return Self::Answered;
        }
        match causes.any(|cause| cause.is::<TimeoutExpired>()) {
            true => Self::TimedOut,
            false => Self::Broken,
        }
    }
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

/// Sends bytes as they are.
struct Bytes;

impl Codec for Bytes {
    type Encode = Arc<Vec<u8>>;
    type Decode = PointsOperationResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Arc<Vec<u8>>;
    type Error = Status;

    fn encode(&mut self, bytes: Self::Item, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(bytes.len());
        out.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = PointsOperationResponse;
    type Error = Status;

    fn decode(&mut self, answer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let decoded = PointsOperationResponse::decode(answer);
        decoded
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_broken_connection_is_worth_a_second_try() {
        for said in [
            Status::internal("No space left on device"),
            Status::unavailable("The update queue is full"),
            Status::cancelled("Timeout expired"),
        ] {
            assert_eq!(Failure::of(&said), Failure::Answered, "{said}");
        }
        let timed_out = Status::from_error(TimeoutExpired(()).into());
        assert_eq!(Failure::of(&timed_out), Failure::TimedOut);
        let reset = || std::io::Error::other("connection reset");
        let broken = Status::from_error(reset().into());
        assert_eq!(Failure::of(&broken), Failure::Broken);
        let never_made = Status::from_error(tonic::ConnectError(reset().into()).into());
        assert_eq!(Failure::of(&never_made), Failure::Broken);
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
