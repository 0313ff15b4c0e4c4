//! How many requests are answered at once, in all and for one tenant. A request takes its place
//! when its body is there, and gives it back when its answer is sent. A write that waits for the
//! index has a place among those that wait instead.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::access::Caller;
use super::error::ApiError;

/// Requests at once, in all and of one tenant: others find a place while it sends as many as it
/// can.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    all: usize,
    of_tenant: usize,
}

/// Requests that are answered. A further one is told to come back.
pub const ANSWERED: Most = Most {
    all: 64,
    of_tenant: 32,
};

/// Writes that wait for the index. A further one is answered without waiting.
pub const WAITING: Most = Most {
    all: 256,
    of_tenant: 64,
};

/// The requests of now.
pub struct Places {
    most: Most,
    by_tenant: Mutex<HashMap<String, usize>>,
}

/// The place of a request, until it is dropped.
pub struct Place {
    places: Arc<Places>,
    tenant: String,
}

impl Places {
    /// As many places, all free.
    pub fn new(most: Most) -> Arc<Self> {
        Arc::new(Self {
            most,
            by_tenant: Mutex::default(),
        })
    }

    /// Takes a place, or says that there is none.
    pub fn take(self: &Arc<Self>, caller: &Caller) -> Result<Place, ApiError> {
        let tenant = &caller.reach().tenant_id;
        let mut taken = self.lock();
        let of_tenant = taken.get(tenant).copied().unwrap_or(0);
        if of_tenant >= self.most.of_tenant || taken.values().sum::<usize>() >= self.most.all {
            return Err(ApiError::too_many());
        }
        taken.insert(tenant.clone(), of_tenant + 1);
        Ok(Place {
            places: self.clone(),
            tenant: tenant.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        let taken = self.by_tenant.lock();
        taken.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(of_tenant) = taken.get_mut(&self.tenant) {
            *of_tenant -= 1;
            if *of_tenant == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

/// An answer in JSON that keeps its place until it is sent: a client that does not read keeps the
/// answer in memory.
pub struct Placed<T>(pub T, pub Place);

/// The server takes the next part of an answer when it has sent most of those before.
const PART_BYTES: usize = 64 << 10;

impl<T: Serialize> IntoResponse for Placed<T> {
    fn into_response(self) -> Response {
        let Self(answer, place) = self;
        let json = serde_json::to_vec(&answer).expect("the keys of an answer are strings");
        let head = [(header::CONTENT_TYPE, "application/json")];
        keep_until_sent((head, json).into_response(), place)
    }
}

/// The place of an answer that a library sends: what makes the answer leaves its place here.
#[derive(Clone, Default)]
pub struct PlaceOfAnswer(Arc<Mutex<Option<Place>>>);

impl PlaceOfAnswer {
    /// Leaves the place of the answer.
    pub fn leave(&self, place: Place) {
        *self.lock() = Some(place);
    }

    /// The answer, which keeps the place that was left until it is sent.
    pub fn keep_until_sent(&self, answer: Response) -> Response {
        match self.lock().take() {
            Some(place) => keep_until_sent(answer, place),
            None => answer,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep_until_sent(answer: Response, place: Place) -> Response {
    let (head, body) = answer.into_parts();
    let parts = body.into_data_stream().map_ok(|bytes| {
        let parts = (0..bytes.len()).step_by(PART_BYTES);
        let part = move |at| bytes.slice(at..bytes.len().min(at + PART_BYTES));
        stream::iter(parts.map(part).map(Ok::<_, axum::Error>))
    });
    let parts = parts.try_flatten().inspect(move |_| {
        let _until_sent = &place;
    });
    let mut answer = Response::from_parts(head, Body::from_stream(parts));
    // The parts are sent as chunks.
    answer.headers_mut().remove(header::CONTENT_LENGTH);
    answer
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::{ApiKey, Reach};

    fn caller(tenant: &str) -> Caller {
        Caller(ApiKey {
            key_id: Uuid::nil(),
            reach: Reach {
                tenant_id: tenant.into(),
                project_id: None,
                agent_id: None,
            },
            can_write: false,
            is_replaced: false,
        })
    }

    #[test]
    fn one_tenant_leaves_places_for_others() {
        let places = Places::new(ANSWERED);
        let take = |tenant| places.take(&caller(tenant)).ok();
        let mut taken: Vec<Place> = (0..100).filter_map(|_| take("a")).collect();
        assert_eq!(taken.len(), ANSWERED.of_tenant);
        taken.extend((0..100).filter_map(|_| take("b")));
        assert_eq!(taken.len(), ANSWERED.all);
        assert!(take("c").is_none());
        taken.clear();
        assert!(take("c").is_some() && places.lock().is_empty());
    }
}
