//! The connections of the admin port: their number and their timeouts are bounded.

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

use super::REQUEST_TIMEOUT;

/// Browsers, Prometheus and health checks keep a handful open. Further ones wait in the accept
/// queue of the system until a connection ends.
const MAX_CONNECTIONS: usize = 64;

/// Time limit for the head of a request, and for the next request on a kept-alive connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a whole connection: it bounds a client that reads a byte a minute. A client
/// that polls reconnects.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause after a failed `accept`. Usually the process has run out of file descriptors.
const PAUSE: Duration = Duration::from_millis(500);

/// Accepts connections and serves `app` on each. Never returns.
pub async fn accept(listener: TcpListener, app: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await;
        match listener.accept().await {
            Ok((stream, peer)) => {
                let app = app.clone();
                tokio::spawn(async move {
                    serve(stream, peer, app).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin port failed to accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, peer: SocketAddr, app: Router) {
    let app = app.layer(Extension(ConnectInfo(peer)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    tokio::pin!(connection);
    // A connection that a client breaks off is not an error of ELF.
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(REQUEST_TIMEOUT, connection).await;
}
