//! Answers the other processes, as long as this one has the folder open.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::bytes::Bytes;

use super::engine::Engine;
use super::frames::{self, Greeting};
use super::request::{Reply, Request};
use crate::index::IndexError;

/// Connections at once; the others wait. Each holds one request and its answer.
const PLACES: usize = 64;

/// How long a client may take to send its request, and to read its answer: both are on this
/// machine, and a place is wanted by others.
const CLIENT_LIMIT: Duration = Duration::from_secs(3);

/// How often an empty frame says that this process works on a request.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// How long to wait before the next try to accept a connection: files may be free again.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers one request a connection until it is aborted. What it has begun, it ends.
///
/// It holds the engine only while the engine works, so that who drops the engine closes the folder.
pub(super) async fn serve(listener: UnixListener, engine: Weak<Engine>, greeting: Greeting) {
    let places = Arc::new(Semaphore::new(PLACES));
    loop {
        let place = places.clone().acquire_owned().await;
        let place = place.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "embedded index cannot answer other processes, retrying");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (engine, greeting) = (engine.clone(), greeting.clone());
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &engine, &greeting).await {
                tracing::debug!(%error, "embedded index did not answer another process");
            }
            drop(place);
        });
    }
}

async fn answer(stream: UnixStream, engine: &Weak<Engine>, greeting: &Greeting) -> io::Result<()> {
    // While the engine closes, a greeting would be in vain.
    if engine.strong_count() == 0 {
        return Ok(());
    }
    let mut frames = frames::over(stream);
    in_time(frames.send(frames::encoded(greeting)?)).await?;
    let asked = in_time(async { frames.next().await.transpose() }).await?;
    // A client may only want to know who is here.
    let Some(request) = asked else {
        return Ok(());
    };
    let Some(engine) = engine.upgrade() else {
        return Ok(());
    };
    let reply = {
        let mut working = std::pin::pin!(reply_to(&request, &engine));
        let mut listens = true;
        loop {
            match tokio::time::timeout(SIGN_OF_LIFE, &mut working).await {
                Ok(reply) => break reply,
                // Without a client the work ends all the same.
                Err(_) if !listens => {}
                Err(_) => listens = in_time(frames.send(Bytes::new())).await.is_ok(),
            }
        }
    };
    drop((engine, request));
    in_time(frames.send(reply?)).await
}

/// The frame that answers this one.
async fn reply_to(request: &[u8], engine: &Engine) -> io::Result<Bytes> {
    let unavailable = |reason: String| -> Result<Reply, IndexError> {
        Err(IndexError::Unavailable {
            engine: engine.name().to_owned(),
            reason,
        })
    };
    let reply = match frames::decoded::<Request<'_>>(request) {
        Ok(request) => request.carry_out(engine).await,
        Err(error) => unavailable(format!(
            "it cannot read the request, perhaps of another build of elf: {error}"
        )),
    };
    frames::encoded(&reply).or_else(|error| {
        frames::encoded(&unavailable(format!("its answer cannot be sent: {error}")))
    })
}

async fn in_time<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let done = tokio::time::timeout(CLIENT_LIMIT, work).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
