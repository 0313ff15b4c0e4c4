//! A connection for requests that are bytes already. The client takes its own types alone.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;
use prost::bytes::BufMut;
use qdrant_client::qdrant::PointsOperationResponse;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{self, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};

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
        let wrong_url = |error: transport::Error| format!("storage.qdrant.url: {error:?}");
        let mut endpoint = Endpoint::from_shared(settings.url.clone())
            .map_err(wrong_url)?
            .timeout(timeout)
            .connect_timeout(connect_timeout)
            .keep_alive_while_idle(true)
            .user_agent(concat!("elf/", env!("CARGO_PKG_VERSION")))
            .map_err(wrong_url)?;
        if endpoint.uri().scheme_str() == Some("https") {
            let tls = ClientTlsConfig::new().with_native_roots();
            endpoint = endpoint.tls_config(tls).map_err(wrong_url)?;
        }
        let api_key = settings
            .api_key
            .as_ref()
            .map(|key| key.expose().parse())
            .transpose()
            .map_err(|_| "storage.qdrant.api_key: a header cannot hold these characters")?;
        Ok(Self {
            connection: Mutex::new(endpoint.connect_lazy()),
            endpoint,
            api_key,
        })
    }

    /// Sends an upsert, and a second time if the connection broke, as the client does. The server may
    /// still work on one that timed out: that is not sent again.
    pub(super) async fn upsert(&self, request: Vec<u8>) -> Result<PointsOperationResponse, Status> {
        let request = Arc::new(request);
        let answer = self.send(request.clone()).await;
        let Some(code) = answer.as_ref().err().map(Status::code) else {
            return answer;
        };
        match code {
            Code::Internal | Code::Unavailable | Code::Unknown => {
                self.connect_again();
                self.send(request).await
            }
            // Timed out: perhaps the server is gone without a word.
            Code::Cancelled => {
                self.connect_again();
                answer
            }
            _ => answer,
        }
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
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let mut request = Request::new(bytes);
        if let Some(key) = &self.api_key {
            request.metadata_mut().insert("api-key", key.clone());
        }
        let path = "/qdrant.Points/Upsert".parse().expect("a path");
        let answer = grpc.unary(request, path, Bytes).await;
        Ok(answer.map_err(with_cause)?.into_inner())
    }
}

/// The status with its first cause: a broken connection is "transport error" without it.
fn with_cause(status: Status) -> Status {
    let mut cause = status.source();
    while let Some(next) = cause.and_then(Error::source) {
        cause = Some(next);
    }
    match cause {
        Some(cause) => Status::new(status.code(), format!("{}: {cause}", status.message())),
        None => status,
    }
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
