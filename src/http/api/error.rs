//! Errors of the API, in one shape: `{"error":{"code","message","details"}}`.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::misfit::misfit;
use crate::error_class::ErrorClass;
use crate::search::SearchError;
use crate::store::StoreError;

/// How long a client waits before it tries again, in seconds.
const RETRY_AFTER: &str = "1";

/// Most bytes of a message: it may show what the client sent.
const MAX_MESSAGE: usize = 1000;

/// The beginning of a text that a client sent, of at most `most` bytes.
pub fn excerpt(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => format!("{}…", &text[..text.floor_char_boundary(most)]),
    }
}

/// An answer that is an error.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    error: Problem,
}

/// The body of an error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    error: Problem,
}

/// What is wrong.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// A word for programs, such as `not_found`.
    code: &'static str,
    /// A sentence for people.
    message: String,
    /// More for programs, such as the name of the field.
    details: Value,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = excerpt(&message.into(), MAX_MESSAGE);
        let details = json!({});
        let error = Problem {
            code,
            message,
            details,
        };
        Self { status, error }
    }

    /// A value that ELF does not take.
    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message);
        error.error.details = json!({ "field": excerpt(field, MAX_MESSAGE) });
        error
    }

    /// Of the note at this place in the request.
    pub fn of_note(mut self, place: usize) -> Self {
        self.error.details["note"] = json!(place);
        self
    }

    pub fn not_found(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub fn unavailable(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    /// The answer to a write that may have been done, or may be done later.
    pub fn outcome_unknown() -> Self {
        let message = "the database did not confirm the write in time: it may have been done, or be done later. \
                       Send the request again: a note with a `key` is one note, however often it is sent";
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "outcome_unknown", message);
        error.error.details = json!({ "outcome": "unknown" });
        error
    }

    /// The error of a write, which says in `details.outcome` if nothing was written although the request is right.
    pub fn of_write(error: StoreError) -> Self {
        let mut error = Self::from(error);
        if error.error.code == "unavailable" {
            error.error.details["outcome"] = json!("not_written");
        }
        error
    }

    pub fn too_many() -> Self {
        let message = "too many requests are being answered: try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", message)
    }
}

impl From<ApiError> for ErrorBody {
    fn from(ApiError { error, .. }: ApiError) -> Self {
        Self { error }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, error } = self;
        let mut response = (status, Json(ErrorBody { error })).into_response();
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
            }
            _ => {}
        }
        response
    }
}

impl From<JsonRejection> for ApiError {
    fn from(rejection: JsonRejection) -> Self {
        let said = rejection.body_text();
        let status = rejection.status();
        match status {
            StatusCode::UNPROCESSABLE_ENTITY => misfit(&said, "body"),
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(status, "too_large", said),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                let message =
                    "send the body as JSON, with the header `content-type: application/json`";
                Self::new(status, "not_json", message)
            }
            _ => {
                let reason = said.split_once(": ").map_or(&*said, |(_, reason)| reason);
                Self::new(
                    status,
                    "bad_request",
                    format!("the body is not JSON: {reason}"),
                )
            }
        }
    }
}

impl From<StoreError> for ApiError {
    /// The answer does not say what Postgres said: it may name hosts and columns. The log does.
    fn from(error: StoreError) -> Self {
        if let StoreError::Unreadable(_) = error {
            tracing::error!(%error, "request failed");
            let message =
                "the database cannot read what was asked for: its operator has to restore it";
            return Self::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", message);
        }
        if let StoreError::OfRow(message) = error {
            return Self::new(StatusCode::CONFLICT, "follows_a_row", message);
        }
        match error.class() {
            _ if matches!(error, StoreError::KeyTaken(_)) => Self::new(
                StatusCode::CONFLICT,
                "key_taken",
                "another note of the same tenant, project, agent and scope has this key",
            ),
            _ if matches!(error, StoreError::Unconfirmed(_)) => {
                tracing::warn!(%error, "request failed");
                Self::outcome_unknown()
            }
            ErrorClass::Item => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "rejected",
                "the database rejects a value, for example a NUL character, or a check or a \
                 trigger of the application does",
            ),
            ErrorClass::Storage => {
                tracing::warn!(%error, "request failed");
                Self::unavailable("the database is unavailable: try again later")
            }
            _ => {
                tracing::error!(%error, "request failed");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    "the server is not set up correctly, or memory_notes is a table of the \
                     application with other columns than ELF's: the log says why",
                )
            }
        }
    }
}

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Store(error) => error.into(),
            SearchError::Index(error) => {
                tracing::warn!(%error, "search failed");
                Self::new(
                    StatusCode::BAD_GATEWAY,
                    "bad_gateway",
                    "the vector engine refuses the search: the log of the server says why",
                )
            }
        }
    }
}
