//! The body of a request: its size, its time and the memory for it are bounded. It is read only
//! after the key of the request is known.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::HttpBody;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use futures::StreamExt;
use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Shared;
use super::auth::Caller;
use super::error::ApiError;
use crate::http::bounds::COPIES;

pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Time limit for the next part of a body.
const PART_TIMEOUT: Duration = Duration::from_secs(10);

/// Most bytes of a body without the text of a note.
pub const MAX_SMALL_BODY: usize = 64 << 10;

/// Of a body that is refused, as much is read and thrown away. A client that still sends when
/// the connection closes gets a broken pipe instead of the answer.
const MAX_DRAINED: usize = 64 << 20;

/// Most bytes of the bodies of a route.
#[derive(Clone, Copy)]
pub struct BodyLimit(pub usize);

/// A JSON body, whose errors have the shape of all others.
pub struct Body<T>(pub T);

impl<T: serde::de::DeserializeOwned> FromRequest<Arc<Shared>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let limit = request.extensions().get::<BodyLimit>();
        let limit = limit.map_or(MAX_SMALL_BODY, |limit| limit.0);
        let caller = Caller::of(request.extensions())?;
        let (head, body) = request.into_parts();
        let bytes = read_in_time(shared, &caller, body, limit, COPIES).await?;
        let request = Request::from_parts(head, bytes.into());
        let Json(body) = Json::from_request(request, shared).await?;
        Ok(Self(body))
    }
}

/// The bytes of a body that has at most `limit` and comes within [`BODY_TIMEOUT`]. It takes
/// `copies` times its bytes of memory, which the caller holds until its answer is sent.
pub async fn read_in_time(
    shared: &Shared,
    caller: &Caller,
    body: axum::body::Body,
    limit: usize,
    copies: u64,
) -> Result<Vec<u8>, ApiError> {
    let read = read(shared, caller, body, limit, copies);
    tokio::time::timeout(BODY_TIMEOUT, read)
        .await
        .unwrap_or_else(|_| Err(late()))
}

fn late() -> ApiError {
    let message = "the body is late";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
}

async fn read(
    shared: &Shared,
    caller: &Caller,
    body: axum::body::Body,
    limit: usize,
    copies: u64,
) -> Result<Vec<u8>, ApiError> {
    // All at once where the client says how long the body is: of many that come at the same time,
    // some get memory for all of theirs.
    let announced = body.size_hint().exact().unwrap_or(0);
    let mut refused = (announced > limit as u64).then(|| too_large(limit));
    let mut memory = None;
    if refused.is_none() {
        match shared.places.memory(caller, announced * copies).await {
            Ok(share) => memory = Some(share),
            Err(error) => refused = Some(error),
        }
    }
    let mut granted = announced as usize;
    let (mut bytes, mut total) = (Vec::new(), 0);
    let mut parts = body.into_data_stream();
    loop {
        let part = tokio::time::timeout(PART_TIMEOUT, parts.next());
        let Some(part) = part.await.map_err(|_| late())? else {
            break;
        };
        let broken =
            |_| ApiError::new(StatusCode::BAD_REQUEST, "bad_request", "the body broke off");
        let part = part.map_err(broken)?;
        total += part.len();
        if refused.is_none() && total > limit {
            refused = Some(too_large(limit));
        }
        if refused.is_none()
            && total > granted
            && let Some(share) = &mut memory
        {
            match share.grow((total - granted) as u64 * copies) {
                true => granted = total,
                false => refused = Some(ApiError::too_many()),
            }
        }
        match refused {
            None => bytes.extend_from_slice(&part),
            Some(_) if total <= limit + MAX_DRAINED => (bytes, memory) = (Vec::new(), None),
            Some(_) => break,
        }
    }
    if let Some(error) = refused {
        return Err(error);
    }
    if let Some(memory) = memory {
        caller.held.keep(memory);
    }
    Ok(bytes)
}

/// A list of which at most `MOST` elements are wanted, and one more if there are more. The others are
/// read and not kept: a short element may take ten times its bytes of memory.
pub fn at_most<'d, const MOST: usize, D, T>(list: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'d>,
    T: Deserialize<'d>,
{
    struct List<const MOST: usize, T>(PhantomData<T>);

    impl<'d, const MOST: usize, T: Deserialize<'d>> Visitor<'d> for List<MOST, T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
            formatter.write_str("a sequence")
        }

        fn visit_seq<A: SeqAccess<'d>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut kept = Vec::new();
            while kept.len() <= MOST
                && let Some(element) = list.next_element()?
            {
                kept.push(element);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(kept)
        }
    }

    list.deserialize_seq(List::<MOST, T>(PhantomData))
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the body has more than {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}
