//! `POST /v2/searches`

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Datelike, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Caller;
use super::error::{ApiError, ErrorBody};
use super::notes::{check_labels, check_share};
use super::{Body, Shared};
use crate::index::Filter;
use crate::metadata::{self, Conditions};
use crate::search::{Answer, By, Item, Missing, Request};
use crate::store::SearchTrace;

/// Most bytes of a query. A model reads about 512 tokens of it.
const MAX_QUERY_BYTES: usize = 8 << 10;

/// Tokens that an answer may be asked to fit.
const MAX_TOKENS: RangeInclusive<usize> = 100..=1_000_000;

pub const MAX_LIMIT: usize = 100;

/// What to search for.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"query": "when does the library open?"}))]
pub struct SearchRequest {
    /// The query, up to 8 KiB.
    query: String,
    /// Notes to return at most, 1 to 100.
    #[serde(default = "default_limit")]
    #[schema(default = 10, minimum = 1, maximum = 100)]
    limit: usize,
    /// Search by meaning (`dense`), by keyword (`bm25`), or by both.
    #[serde(default = "default_by")]
    #[schema(default = "hybrid")]
    by: By,
    /// Whether the reranker puts the notes in order, if the server has one.
    #[serde(default = "yes")]
    #[schema(default = true)]
    rerank: bool,
    /// For agents: as many notes as fit this many tokens of the embedding model, ids and scores included, 100 to 1000000;
    /// the first in any case. Each comes with its passage alone, without `text` and `context`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100, maximum = 1_000_000)]
    max_tokens: Option<usize>,
    /// Only notes like this.
    #[serde(default)]
    filter: NoteFilter,
}

pub fn default_limit() -> usize {
    10
}

fn default_by() -> By {
    By::Hybrid
}

fn yes() -> bool {
    true
}

/// What a note must be like. The tenant is that of the key.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NoteFilter {
    /// Of this project.
    #[serde(skip_serializing_if = "Option::is_none")]
    project_id: Option<String>,
    /// Of this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<String>,
    /// Of this scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<String>,
    /// Of this type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Of this source.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// Written at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_after: Option<DateTime<Utc>>,
    /// Written before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_before: Option<DateTime<Utc>>,
    /// Of at least this importance, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    min_importance: Option<f32>,
    /// With such values of declared fields: `{"lang": "de", "priority": {"gte": 3}, "tags": {"any": ["bug", "ui"]},
    /// "seen": {"exists": false}}`.
    #[serde(
        default,
        skip_serializing_if = "Map::is_empty",
        deserialize_with = "object"
    )]
    #[schema(value_type = Option<Object>)]
    metadata: Map<String, Value>,
}

/// Reads an object, or its JSON in a string: no schema of a tool has an object of any fields.
pub fn object<'d, D: Deserializer<'d>>(value: D) -> Result<Map<String, Value>, D::Error> {
    match Value::deserialize(value)? {
        Value::Null => Ok(Map::new()),
        Value::Object(fields) => Ok(fields),
        Value::String(json) => serde_json::from_str(&json).map_err(serde::de::Error::custom),
        other => Err(serde::de::Error::custom(format!(
            "invalid type: {other}, expected an object"
        ))),
    }
}

impl NoteFilter {
    /// Whether it names no label, type, key, source or field, so that every note may be like this.
    pub fn is_wide(&self) -> bool {
        let labels = [
            &self.project_id,
            &self.agent_id,
            &self.scope,
            &self.kind,
            &self.key,
            &self.source,
        ];
        labels.into_iter().all(Option::is_none) && self.metadata.is_empty()
    }

    /// The filter, within what a key reaches.
    pub async fn checked(self, shared: &Shared, caller: &Caller) -> Result<Filter, ApiError> {
        check_labels([
            ("project_id", self.project_id.as_deref()),
            ("agent_id", self.agent_id.as_deref()),
            ("scope", self.scope.as_deref()),
            ("type", self.kind.as_deref()),
            ("key", self.key.as_deref()),
            ("source", self.source.as_deref()),
        ])?;
        for (field, time) in [
            ("updated_after", self.updated_after),
            ("updated_before", self.updated_before),
        ] {
            check_time(field, time)?;
        }
        check_share("min_importance", self.min_importance)?;
        let fields = match self.metadata.is_empty() {
            true => Conditions::new(),
            false => {
                let declared = shared.api.store.declared_fields().await?;
                let fields = metadata::conditions(&self.metadata, &declared);
                fields.map_err(|problem| ApiError::invalid("metadata", problem))?
            }
        };
        let labels = [
            ("tenant_id", Some(caller.reach().tenant_id.clone())),
            ("project_id", caller.project(self.project_id)?),
            ("agent_id", caller.agent(self.agent_id)?),
            ("scope", self.scope),
            ("type", self.kind),
            ("key", self.key),
            ("source", self.source),
        ];
        let labels = labels.into_iter();
        Ok(Filter {
            keywords: labels
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect(),
            updated_after: self.updated_after,
            updated_before: self.updated_before,
            min_importance: self.min_importance,
            fields,
            ..Filter::default()
        })
    }
}

/// What a search found.
#[derive(Debug, Serialize, ToSchema)]
pub struct SearchResponse {
    /// The id of the search for `GET /v2/searches/{id}`; `null` if the search was not recorded.
    search_id: Option<Uuid>,
    /// The best notes, best first, each with its best chunk.
    items: Vec<Item>,
    /// Whether these and the ten best notes are weak hits, of a relevance below 0.3, or there are none: perhaps nothing answers the query.
    nothing_near: bool,
    /// What the search did without: `query_vector` (found by keyword alone), `index` (Postgres searched
    /// the newest notes), `rerank` (the order is that of the fused score).
    degraded: Vec<Missing>,
}

/// Search notes by meaning and by keyword
#[utoipa::path(
    post,
    path = "/v2/searches",
    tag = "searches",
    operation_id = "search_notes",
    request_body = SearchRequest,
    responses(
        (status = 200, body = SearchResponse),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 401, description = "No key, or one that was revoked", body = ErrorBody),
        (status = 403, description = "The key is bound to other labels", body = ErrorBody),
        (status = 422, description = "A field is unknown or has a wrong value", body = ErrorBody),
        (status = 429, description = "Too many requests at once", body = ErrorBody),
        (status = 503, description = "Postgres is unavailable", body = ErrorBody),
    )
)]
pub async fn search(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Body(request): Body<SearchRequest>,
) -> Result<Json<SearchResponse>, ApiError> {
    let asked = without_query(json!(request));
    let max_tokens = request.max_tokens;
    let request = checked(&shared, &caller, request).await?;
    let searcher = &shared.api.searcher;
    let (answer, by_canary) = match &shared.api.canary {
        Some(canary) => canary.search(searcher, caller.key.key_id, &request).await?,
        None => (searcher.search(&request).await?, false),
    };
    let trace = traced(&caller, request, asked, &answer);
    // A record is of the version that is served.
    let search_id = match by_canary {
        true => None,
        false => shared.traces.search(&caller, trace),
    };
    let missing = |degradation: &crate::search::Degradation| {
        let reason = &degradation.reason;
        tracing::warn!(
            missing = degradation.code.as_str(),
            reason,
            "degraded search"
        );
        degradation.code
    };
    let found = SearchResponse {
        search_id,
        degraded: answer.degraded.iter().map(missing).collect(),
        items: match max_tokens {
            Some(most) => searcher.within_tokens(answer.items, most),
            None => answer.items,
        },
        nothing_near: answer.nothing_near,
    };
    Ok(Json(found))
}

fn without_query(mut asked: Value) -> Value {
    if let Some(fields) = asked.as_object_mut() {
        fields.remove("query");
    }
    asked
}

/// What is recorded of a search. `asked` is the request without the query.
fn traced(caller: &Caller, request: Request, asked: Value, answer: &Answer) -> SearchTrace {
    let trace = &answer.trace;
    SearchTrace {
        trace_id: Uuid::new_v4(),
        key_id: caller.key.key_id,
        reach: caller.reach().clone(),
        query: request.text,
        request: asked,
        degraded: answer.degraded.iter().map(|d| d.code.as_str()).collect(),
        candidates: trace.candidates as i32,
        dropped: trace.dropped as i32,
        took_ms: trace.took.ms(),
        created_at: trace.at,
        chunks: trace.chunks.clone(),
    }
}

pub fn check_limit(limit: usize) -> Result<(), ApiError> {
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(());
    }
    let message = format!("limit must be 1 to {MAX_LIMIT}, not {limit}");
    Err(ApiError::invalid("limit", message))
}

/// Refuses times that Postgres or the index cannot hold.
fn check_time(field: &str, time: Option<DateTime<Utc>>) -> Result<(), ApiError> {
    let is_possible = |time: DateTime<Utc>| {
        let is_leap_second = time.timestamp_subsec_nanos() >= 1_000_000_000;
        (1..=9999).contains(&time.year()) && !is_leap_second
    };
    match time {
        Some(time) if !is_possible(time) => {
            let message = format!("{field} must be a time of the years 1 to 9999, not {time}");
            Err(ApiError::invalid(field, message))
        }
        _ => Ok(()),
    }
}

async fn checked(
    shared: &Shared,
    caller: &Caller,
    asked: SearchRequest,
) -> Result<Request, ApiError> {
    let SearchRequest {
        query,
        limit,
        by,
        rerank,
        max_tokens,
        filter,
    } = asked;
    if query.trim().is_empty() {
        return Err(ApiError::invalid("query", "the query is empty"));
    }
    if query.len() > MAX_QUERY_BYTES {
        let message = format!(
            "the query has {} bytes; at most {MAX_QUERY_BYTES} are possible",
            query.len()
        );
        return Err(ApiError::invalid("query", message));
    }
    if query.contains('\0') {
        return Err(ApiError::invalid("query", "the query has a NUL character"));
    }
    check_limit(limit)?;
    if let Some(tokens) = max_tokens
        && !MAX_TOKENS.contains(&tokens)
    {
        let (least, most) = (MAX_TOKENS.start(), MAX_TOKENS.end());
        let message = format!("max_tokens must be {least} to {most}, not {tokens}");
        return Err(ApiError::invalid("max_tokens", message));
    }
    Ok(Request {
        text: query,
        by,
        filter: filter.checked(shared, caller).await?,
        limit,
        rerank,
    })
}
