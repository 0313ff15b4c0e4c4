//! The connections of a port: their number and their timeouts are bounded.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Time limit for the head of a request, and for the next request on a kept-alive connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a whole connection: it bounds a client that reads a byte a minute. A client
/// that polls reconnects.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause after a failed `accept`. Usually the process has run out of file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// The bounds of a port.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once. Further ones wait in the accept queue of the system.
    pub connections: usize,
    /// Time limit for a request.
    pub request: Duration,
}

/// Accepts connections and serves `app` on each until `stop`. Returns when the requests in flight
/// have ended.
pub async fn accept(listener: TcpListener, app: Router, bounds: Bounds, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(bounds.connections));
    let serving = TaskTracker::new();
    let accepted = async || {
        let place = places.clone().acquire_owned().await;
        (place, listener.accept().await)
    };
    while let Some((place, accepted)) = stop.run_until_cancelled(accepted()).await {
        match accepted {
            Ok((stream, peer)) => {
                let (app, stop) = (app.clone(), stop.clone());
                serving.spawn(async move {
                    serve(stream, peer, app, bounds.request, stop).await;
                    drop(place);
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

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    app: Router,
    request: Duration,
    stop: CancellationToken,
) {
    let app = app.layer(Extension(ConnectInfo(peer)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
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
