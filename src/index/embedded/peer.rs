//! Asks the process that has the folder open.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::bytes::BytesMut;

use super::frames::{self, Frames, Greeting};
use super::request::{Reply, Request};
use super::socket;
use crate::index::IndexError;

/// How long the process may take to greet: longer than it waits for clients that say nothing.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// Requests of this process at once: fewer than the other one has places, so that some are left for
/// others.
const IN_FLIGHT: usize = 24;

/// Another process, or another part of this one, that has the folder open.
#[derive(Debug)]
pub(super) struct Peer {
    dir: PathBuf,
    /// `process 4711 (elf)`
    pub(super) process: String,
    in_flight: Semaphore,
}

/// Why a peer gave no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// It has ended, or does not listen yet. Who has the folder now?
    Gone,
    /// It ended after it had the request, or failed on it.
    Cut,
    /// It cannot be asked: it is stopped, of another version or of another user.
    Unavailable(String),
    /// The request is too large.
    TooLarge(String),
}

impl Peer {
    /// Finds out who answers in the folder. `holder` is who has locked it.
    pub(super) async fn meet(dir: &Path, holder: &str, deadline: Instant) -> Result<Self, Silence> {
        let (_, greeting) = greeted(dir, holder, deadline).await?;
        Ok(Self {
            dir: dir.to_owned(),
            process: greeting.process,
            in_flight: Semaphore::new(IN_FLIGHT),
        })
    }

    /// Sends a request, and waits for the reply.
    pub(super) async fn ask(
        &self,
        request: &Request<'_>,
        deadline: Instant,
    ) -> Result<Result<Reply, IndexError>, Silence> {
        let request = frames::encoded(request)
            .map_err(|error| Silence::TooLarge(format!("the request is too large: {error}")))?;
        let Ok(_turn) = tokio::time::timeout_at(deadline, self.in_flight.acquire()).await else {
            return Err(self.late());
        };
        let (mut frames, greeting) = greeted(&self.dir, &self.process, deadline).await?;
        if greeting.process != self.process {
            return Err(Silence::Gone);
        }
        let cut = |error| match silence(error, &self.process) {
            Silence::Gone => Silence::Cut,
            other => other,
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        let sent = tokio::time::timeout(limit, frames.send(request)).await;
        sent.map_err(|_| self.late())?.map_err(cut)?;
        // A request may take longer than the limit: an empty frame says that the process works on it.
        loop {
            let frame = tokio::time::timeout(limit, next(&mut frames)).await;
            let frame = frame.map_err(|_| self.late())?.map_err(cut)?;
            if !frame.is_empty() {
                return frames::decoded(&frame).map_err(cut);
            }
        }
    }

    fn late(&self) -> Silence {
        Silence::Unavailable(format!(
            "{} has the folder open and gave no answer within storage.qdrant.timeout_ms",
            self.process
        ))
    }
}

/// A connection to the process that answers in the folder, and what it said first.
async fn greeted(
    dir: &Path,
    holder: &str,
    deadline: Instant,
) -> Result<(Frames, Greeting), Silence> {
    let greeted = async {
        let mut frames = frames::over(socket::connect(dir).await?);
        let greeting = frames::decoded::<Greeting>(&next(&mut frames).await?)?;
        Ok((frames, greeting))
    };
    let deadline = deadline.min(Instant::now() + GREETING_LIMIT);
    let Ok(greeted) = tokio::time::timeout_at(deadline, greeted).await else {
        return Err(Silence::Unavailable(format!(
            "{holder} has the folder open and does not answer: is it stopped?"
        )));
    };
    let (frames, greeting) = greeted.map_err(|error| silence(error, holder))?;
    match greeting.misfit() {
        Some(misfit) => Err(Silence::Unavailable(misfit)),
        None => Ok((frames, greeting)),
    }
}

async fn next(frames: &mut Frames) -> io::Result<BytesMut> {
    let end = || Err(io::ErrorKind::UnexpectedEof.into());
    frames.next().await.unwrap_or_else(end)
}

fn silence(error: io::Error, holder: &str) -> Silence {
    use io::ErrorKind::*;
    match error.kind() {
        // `WouldBlock`: more wait than its backlog holds. `Other`: the end within a frame.
        NotFound | ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof
        | WouldBlock | Other => Silence::Gone,
        _ => Silence::Unavailable(format!(
            "{holder} has the folder open, and cannot be asked: {error}"
        )),
    }
}
