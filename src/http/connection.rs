//! The connections of the admin port: how many, and how long each may take.

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

/// Browsers, Prometheus and probes keep a handful open. More wait in the system's queue
/// until one ends.
const MAX_CONNECTIONS: usize = 64;

/// For the head of a request, and for the next request on a connection that is kept open.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// For a whole connection: a reader that takes a byte a minute ends here. Who polls
/// connects again.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(300);

/// After a refused `accept`: the process has no file descriptor to spare, most likely.
const PAUSE: Duration = Duration::from_millis(500);

/// Serves `app` to everyone who connects, for ever.
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
                tracing::warn!(%error, "the admin port accepts no connection");
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
    // How a client ends a connection is its own matter.
    tokio::select! {
        _ = &mut connection => return,
        () = tokio::time::sleep(CONNECTION_TIMEOUT) => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(REQUEST_TIMEOUT, connection).await;
}
