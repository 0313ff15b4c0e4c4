//! Who sends a request: the key in its `Authorization` header.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use moka::sync::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::error::ApiError;
use super::places::Held;
use super::{Api, Shared};
use crate::http::connection::refuse;
use crate::shares::{Holder, Shares};
use crate::store::{ApiKey, Reach, SecretHash, Store};

/// What a secret begins with, so that scanners of source code can find one that leaked.
const PREFIX: &str = "elf_";

/// Keys that are looked up at once. More would wait for a connection until they time out, beside
/// the requests that have a place.
const KNOWN_LOOKUPS: u64 = 16;

/// How many requests with known keys wait for that, over all keys.
const KNOWN_WAITING: u64 = 256;

/// The same for secrets that are not known to be keys: whoever has no key may send as many as it can.
const UNKNOWN_LOOKUPS: usize = 4;

/// How many of these wait for their turn.
const UNKNOWN_WAITING: usize = 64;

/// How long a request waits for its turn to have its key looked up.
const MAX_LOOKUP_WAIT: Duration = Duration::from_secs(2);

/// How many secrets count as known: those that are keys at the start, and those found since.
const MAX_KNOWN: u64 = 10_000;

pub fn new_secret() -> (String, SecretHash) {
    let random: [u8; 32] = rand::random();
    let secret = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random));
    let hash = hash(&secret);
    (secret, hash)
}

fn hash(secret: &str) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}

/// The turns of look-ups. Each request has its key looked up, known or not: a key that was revoked
/// ends at once. Known keys share their turns by tenant and key.
pub struct Lookups {
    of_known: Arc<Shares>,
    known_waiting: Arc<Shares>,
    of_unknown: Semaphore,
    unknown_waiting: Semaphore,
    /// The holder of each known key.
    known: Cache<[u8; 32], Holder>,
}

impl Lookups {
    /// With the keys of now: strangers who send secrets at the start keep none of them out.
    pub async fn of(store: &Store) -> Self {
        let known = Cache::new(MAX_KNOWN);
        match store.known_api_keys(MAX_KNOWN).await {
            Ok(keys) => {
                for (hash, tenant, key) in keys {
                    known.insert(hash.0, Holder::of_key(&tenant, key));
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not read the keys, finding them one by one")
            }
        }
        Self {
            of_known: Shares::new(KNOWN_LOOKUPS),
            known_waiting: Shares::new(KNOWN_WAITING),
            of_unknown: Semaphore::new(UNKNOWN_LOOKUPS),
            unknown_waiting: Semaphore::new(UNKNOWN_WAITING),
            known,
        }
    }

    async fn key(&self, api: &Api, secret: &str) -> Result<Option<ApiKey>, ApiError> {
        let hash = hash(secret);
        let known = hash.0;
        let found = match self.known.get(&known) {
            Some(holder) => self.look_up_known(api, hash, &holder).await?,
            None => self.look_up_unknown(api, hash).await?,
        };
        match &found {
            Some(key) => self
                .known
                .insert(known, Holder::of_key(&key.reach.tenant_id, key.key_id)),
            None => self.known.invalidate(&known),
        }
        Ok(found)
    }

    async fn look_up_known(
        &self,
        api: &Api,
        hash: SecretHash,
        holder: &Holder,
    ) -> Result<Option<ApiKey>, ApiError> {
        let _waits = self.known_waiting.take(holder, 1).ok_or_else(refused)?;
        let turn = self.of_known.take_within(holder, 1, MAX_LOOKUP_WAIT);
        let _turn = turn.await.ok_or_else(refused)?;
        Ok(api.store.api_key(hash, &api.version).await?)
    }

    async fn look_up_unknown(
        &self,
        api: &Api,
        hash: SecretHash,
    ) -> Result<Option<ApiKey>, ApiError> {
        let _waits = self.unknown_waiting.try_acquire().map_err(|_| refused())?;
        let turn = tokio::time::timeout(MAX_LOOKUP_WAIT, self.of_unknown.acquire());
        let _turn = turn.await.map_err(|_| refused())?;
        Ok(api.store.api_key(hash, &api.version).await?)
    }
}

fn refused() -> ApiError {
    refuse("keys");
    ApiError::too_many()
}

/// The key that a request was sent with, and what the request holds.
#[derive(Clone)]
pub struct Caller {
    pub key: ApiKey,
    /// Who takes a share of what all requests need.
    pub holder: Holder,
    pub held: Held,
}

/// A key that may change notes. Before the body of a request is read.
pub struct Writer(pub Caller);

/// Gives a request its place, if it has a key. Both are found out before its body is read.
pub async fn admit(
    State(shared): State<Arc<Shared>>,
    mut request: Request,
    next: Next,
) -> Response {
    let key = match key(request.headers(), &shared).await {
        Ok(key) => key,
        Err(error) => {
            // A page asks before its user has given it a key.
            let has_key = request.headers().contains_key(header::AUTHORIZATION);
            if has_key && error.status == StatusCode::UNAUTHORIZED {
                shared.refused.count(&request);
            }
            return error.into_response();
        }
    };
    let holder = Holder::of_key(&key.reach.tenant_id, key.key_id);
    let held = match shared.places.request(&holder) {
        Ok(held) => held,
        Err(error) => {
            shared.places.throw_away(request.into_body()).await;
            return error.into_response();
        }
    };
    let caller = Caller {
        key,
        holder,
        held: held.clone(),
    };
    request.extensions_mut().insert(caller);
    held.until_sent(next.run(request).await)
}

impl Caller {
    /// The caller whom [`admit`] has left with a request.
    pub fn of(extensions: &Extensions) -> Result<Self, ApiError> {
        let caller = extensions.get::<Self>().cloned();
        caller.ok_or_else(|| ApiError::unavailable("the request has no key"))
    }
}

async fn key(headers: &HeaderMap, shared: &Shared) -> Result<ApiKey, ApiError> {
    let secret = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, secret)| secret.trim_start())
        .filter(|secret| secret.starts_with(PREFIX));
    let key = match secret {
        Some(secret) => shared.lookups.key(&shared.api, secret).await?,
        None => None,
    };
    let key = key.ok_or_else(|| {
        ApiError::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "send a key that is not revoked as `Authorization: Bearer elf_…`; \
             `elf key create` makes one",
        )
    })?;
    if key.is_replaced {
        tracing::error!(
            version = shared.api.version,
            "version replaced, restart with the configuration of the active one"
        );
        return Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "version_replaced",
            "this process serves an embedding version that another one has replaced: the \
             operator has to restart it with the new configuration",
        ));
    }
    Ok(key)
}

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Shared>) -> Result<Self, ApiError> {
        Self::of(&parts.extensions)
    }
}

impl FromRequestParts<Arc<Shared>> for Writer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let caller = Caller::from_request_parts(parts, shared).await?;
        caller.check_may_write()?;
        Ok(Self(caller))
    }
}

impl Caller {
    pub fn check_may_write(&self) -> Result<(), ApiError> {
        match self.key.can_write {
            true => Ok(()),
            false => Err(ApiError::forbidden(
                "this key may only read: `elf key create --write` makes one that may write",
            )),
        }
    }

    pub fn reach(&self) -> &Reach {
        &self.key.reach
    }

    /// The labels of every note that the key reaches.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let Reach {
            tenant_id,
            project_id,
            agent_id,
        } = self.reach();
        let labels = [
            ("tenant_id", Some(tenant_id)),
            ("project_id", project_id.as_ref()),
            ("agent_id", agent_id.as_ref()),
        ];
        labels
            .into_iter()
            .filter_map(|(label, value)| Some((label.to_owned(), value?.clone())))
            .collect()
    }

    /// The project that a request means: the one that it asks for, or the one that the key is
    /// bound to.
    pub fn project(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        bound("project_id", self.key.reach.project_id.as_ref(), asked)
    }

    /// The agent that a request means, likewise.
    pub fn agent(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        bound("agent_id", self.key.reach.agent_id.as_ref(), asked)
    }
}

fn bound(
    label: &str,
    bound: Option<&String>,
    asked: Option<String>,
) -> Result<Option<String>, ApiError> {
    match (bound, asked) {
        (Some(bound), Some(asked)) if *bound != asked => Err(ApiError::forbidden(format!(
            "this key is bound to the {label} {bound:?}"
        ))),
        (Some(bound), _) => Ok(Some(bound.clone())),
        (None, asked) => Ok(asked),
    }
}

/// Names the header in the description of the API.
pub struct BearerKey;

impl utoipa::Modify for BearerKey {
    fn modify(&self, description: &mut OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        description
            .components
            .get_or_insert_default()
            .add_security_scheme("key", SecurityScheme::Http(scheme));
    }
}
