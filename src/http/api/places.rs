//! What a request holds until its answer is sent: its place among those that are answered, and
//! memory for its body and its answer. All is shared by tenant and by key ([`Shares`]).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::{StatusCode, header};
use axum::response::Response;
use futures::{StreamExt, TryStreamExt, stream};

use tokio::sync::Semaphore;

use super::Shared;
use super::auth::Caller;
use super::error::ApiError;
use crate::http::bounds::{Bounds, COPIES};
use crate::http::connection::refuse;
use crate::lock::lock;
use crate::shares::{Holder, Share, Shares};

const MEMORY_WAIT: Duration = Duration::from_secs(2);

/// How long a request waits for a connection that statements of clients may hold for long.
const STATEMENT_WAIT: Duration = Duration::from_secs(5);

/// How long ELF reads the body of a refused request.
const THROWN_AWAY_WITHIN: Duration = Duration::from_secs(5);

/// The server takes the next part of an answer when it has sent most of those before.
const PART_BYTES: usize = 64 << 10;

/// What the requests of the API share.
pub struct Places {
    /// Requests that are answered.
    requests: Arc<Shares>,
    /// Writes that wait for the index.
    waiting: Arc<Shares>,
    /// Statements that hold a connection for long: writes and comparisons of many notes.
    statements: Arc<Shares>,
    /// Bytes of bodies and answers.
    bytes: Arc<Shares>,
    most_bytes: u64,
    /// Bodies of refused requests.
    thrown_away: Semaphore,
}

impl Places {
    pub fn new(bounds: Bounds) -> Self {
        Self {
            requests: Shares::new(bounds.requests),
            waiting: Shares::new(bounds.waiting),
            statements: Shares::new(bounds.statements),
            bytes: Shares::new(bounds.bytes),
            most_bytes: bounds.bytes,
            thrown_away: Semaphore::new(bounds.requests as usize),
        }
    }

    pub fn request(&self, holder: &Holder) -> Result<Held, ApiError> {
        let place = self.requests.take(holder, 1);
        Ok(Held(Arc::new(Mutex::new(Holding {
            _place: Some(some_or_refuse(place, "requests")?),
            bytes: Vec::new(),
        }))))
    }

    /// Reads the body of a refused request, for a moment: a client that still sends when the connection
    /// closes gets a broken pipe instead of the answer.
    pub async fn throw_away(&self, body: Body) {
        let Ok(_place) = self.thrown_away.try_acquire() else {
            return;
        };
        let mut parts = body.into_data_stream();
        let reading = async { while let Some(Ok(_)) = parts.next().await {} };
        let _ = tokio::time::timeout(THROWN_AWAY_WITHIN, reading).await;
    }

    /// The place of a write that waits for the index, if there is one. It has given back what it
    /// held before.
    pub fn waiting(&self, caller: &Caller) -> Option<Share> {
        let waiting = self.waiting.take(&caller.holder, 1);
        match waiting {
            Some(_) => caller.held.give_back(),
            None => refuse("waiting"),
        }
        waiting
    }

    /// The right to send Postgres a statement that may take long.
    pub async fn statement(&self, caller: &Caller) -> Result<Share, ApiError> {
        let statements = &self.statements;
        let turn = statements.take_within(&caller.holder, 1, STATEMENT_WAIT);
        some_or_refuse(turn.await, "statements")
    }

    /// Memory for a text of so many bytes, kept until the answer is sent.
    pub async fn text(&self, caller: &Caller, bytes: u64) -> Result<(), ApiError> {
        let needed = bytes.saturating_mul(COPIES);
        if needed > self.most_bytes {
            let message = format!(
                "a text of {bytes} bytes is longer than this server has memory for: read it from \
                 memory_notes"
            );
            let status = StatusCode::UNPROCESSABLE_ENTITY;
            return Err(ApiError::new(status, "too_large", message));
        }
        let memory = self.memory(caller, needed).await?;
        lock(&caller.held.0).bytes.push(memory);
        Ok(())
    }

    pub async fn memory(&self, caller: &Caller, bytes: u64) -> Result<Share, ApiError> {
        let memory = self.bytes.take_within(&caller.holder, bytes, MEMORY_WAIT);
        some_or_refuse(memory.await, "memory")
    }
}

fn some_or_refuse(share: Option<Share>, reason: &'static str) -> Result<Share, ApiError> {
    share.ok_or_else(|| {
        refuse(reason);
        ApiError::too_many()
    })
}

/// What a request holds until its answer is sent.
#[derive(Debug, Clone)]
pub struct Held(Arc<Mutex<Holding>>);

#[derive(Debug, Default)]
struct Holding {
    _place: Option<Share>,
    bytes: Vec<Share>,
}

impl Held {
    /// Adds memory that the request has taken.
    pub fn keep(&self, memory: Share) {
        lock(&self.0).bytes.push(memory);
    }

    fn give_back(&self) {
        *lock(&self.0) = Holding::default();
    }

    /// An answer that keeps all of this until it is sent. When it is made, it needs memory for
    /// itself alone.
    pub fn until_sent(self, answer: Response) -> Response {
        let (head, body) = answer.into_parts();
        if let Some(bytes) = body.size_hint().exact() {
            self.shrink(bytes);
        }
        let parts = body.into_data_stream().map_ok(|bytes| {
            let parts = (0..bytes.len()).step_by(PART_BYTES);
            let part = move |at| bytes.slice(at..bytes.len().min(at + PART_BYTES));
            stream::iter(parts.map(part).map(Ok::<_, axum::Error>))
        });
        let parts = parts.try_flatten().inspect(move |_| {
            let _until_sent = &self;
        });
        let mut answer = Response::from_parts(head, Body::from_stream(parts));
        // The parts are sent as chunks.
        answer.headers_mut().remove(header::CONTENT_LENGTH);
        answer
    }

    fn shrink(&self, bytes: u64) {
        let mut left = bytes;
        for share in &mut lock(&self.0).bytes {
            share.shrink(left);
            left -= share.amount();
        }
    }
}

impl Shared {
    /// Takes memory for the texts of notes before they are read from Postgres.
    pub async fn room_for_notes(
        &self,
        caller: &Caller,
        notes: &[uuid::Uuid],
        at_most: u64,
    ) -> Result<(), ApiError> {
        let bytes = self.api.store.note_bytes(notes, caller.reach()).await?;
        self.places.text(caller, bytes.min(at_most)).await
    }
}
