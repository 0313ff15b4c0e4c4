//! The connections of a port: their number, the head of a request, and the pace of a client are
//! bounded. When a port is full, a new client gets the place of the one that has let it wait
//! longest: who opens connections and sends nothing keeps no one out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use futures::TryFutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use metrics::counter;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::clients::{Client, Clients};
use super::kept::Kept;
use super::paced::Paced;

/// Time limit for the head of a request, and for the next request on a kept-alive connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of the head of a request: what other servers take, and a long `traceparent`.
const MAX_HEAD: usize = 32 << 10;

/// Time limit for a whole connection: it bounds a client that reads a byte a minute. A client
/// that polls reconnects.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause after a failed `accept`. Usually the process has run out of file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// The bounds of a port.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once.
    pub connections: usize,
    /// Time limit for a request.
    pub request: Duration,
}

/// Accepts connections and serves `app` on each until `stop`. Returns when the requests in flight
/// have ended.
pub async fn accept(listener: TcpListener, app: Router, bounds: Bounds, stop: CancellationToken) {
    let clients = Clients::new(bounds.connections);
    let serving = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => {
                let Some(client) = stop.run_until_cancelled(clients.enter()).await else {
                    break;
                };
                let (app, stop) = (app.clone(), stop.clone());
                serving.spawn(async move {
                    let left = client.closing().clone();
                    let serving = serve(stream, peer, app, bounds.request, client, stop);
                    if left.run_until_cancelled_owned(serving).await.is_none() {
                        refuse("connection");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    serving.close();
    serving.wait().await;
}

/// Counts what was refused to a client, by what there was not enough of.
pub fn refuse(reason: &'static str) {
    counter!("elf_http_refused_total", "reason" => reason).increment(1);
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    app: Router,
    request: Duration,
    client: Client,
    stop: CancellationToken,
) {
    let client = Arc::new(client);
    let app = TowerToHyperService::new(app.layer(Extension(ConnectInfo(peer))));
    let paced = Paced::new(stream, client.clone());
    let answer = service_fn(move |request: hyper::Request<Incoming>| {
        let working = client.clone().work();
        let answer = app.call(request);
        answer.map_ok(|answer| answer.map(|body| Kept::new(body, working)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(paced), answer);
    tokio::pin!(connection);
    // A connection that a client breaks off is not an error of ELF.
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
        () = stop.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(request, connection).await;
}
