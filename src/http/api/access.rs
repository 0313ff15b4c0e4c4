//! Who sends a request: the key in its `Authorization` header.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::error::ApiError;
use super::{Api, Shared};
use crate::store::{ApiKey, Reach, SecretHash};

/// What a secret begins with, so that scanners of source code can find one that leaked.
const PREFIX: &str = "elf_";

/// Keys that are looked up at once. More would wait for a connection until they time out, beside
/// the requests that have a place.
pub const MAX_LOOKUPS: usize = 32;

/// How long a request waits for its turn to have its key looked up.
const MAX_LOOKUP_WAIT: Duration = Duration::from_secs(2);

/// A new secret, and its hash.
pub fn new_secret() -> (String, SecretHash) {
    let random: [u8; 32] = rand::random();
    let secret = format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(random));
    let hash = hash(&secret);
    (secret, hash)
}

fn hash(secret: &str) -> SecretHash {
    SecretHash(Sha256::digest(secret).into())
}

/// The key that a request was sent with.
#[derive(Clone)]
pub struct Caller(pub ApiKey);

/// A key that may change notes. Before the body of a request is read.
pub struct Writer(pub Caller);

impl FromRequestParts<Arc<Shared>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let given = parts.headers.get(header::AUTHORIZATION);
        let secret = given
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, secret)| secret.trim_start())
            .filter(|secret| secret.starts_with(PREFIX));
        let Api { store, version, .. } = &shared.api;
        let key = match secret {
            Some(secret) => {
                let turn = tokio::time::timeout(MAX_LOOKUP_WAIT, shared.lookups.acquire());
                let _turn = turn.await.map_err(|_| ApiError::too_many())?;
                store.api_key(hash(secret), version).await?
            }
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
                version,
                "version replaced, restart with the configuration of the active one"
            );
            return Err(ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "version_replaced",
                "this process serves an embedding version that another one has replaced: the \
                 operator has to restart it with the new configuration",
            ));
        }
        Ok(Self(key))
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
        match self.0.can_write {
            true => Ok(()),
            false => Err(ApiError::forbidden(
                "this key may only read: `elf key create --write` makes one that may write",
            )),
        }
    }

    pub fn reach(&self) -> &Reach {
        &self.0.reach
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
        bound("project_id", self.0.reach.project_id.as_ref(), asked)
    }

    /// The agent that a request means, likewise.
    pub fn agent(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        bound("agent_id", self.0.reach.agent_id.as_ref(), asked)
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
