//! What a failed request means for the caller.

use qdrant_client::QdrantError;
use tonic::Code;

use crate::index::IndexError;
use crate::index::payload::OTHER_MODEL;

/// The error of `engine` about the collection or alias `name`.
pub(super) fn classify(engine: &str, name: &str, error: QdrantError) -> IndexError {
    match error {
        QdrantError::ResponseError { status } => {
            from_status(engine, name, status.code(), status.message())
        }
        QdrantError::ResourceExhaustedError {
            status,
            retry_after_seconds,
        } => IndexError::Unavailable {
            engine: engine.into(),
            reason: format!(
                "{} (it asks for a retry after {retry_after_seconds} s)",
                status.message()
            ),
        },
        QdrantError::InvalidUri(error) => IndexError::Denied {
            engine: engine.into(),
            reason: format!("storage.qdrant.url is not a URL: {error}"),
        },
        other => IndexError::Unavailable {
            engine: engine.into(),
            reason: other.to_string(),
        },
    }
}

/// Whether the request failed because what it makes exists already.
pub(super) fn already_exists(error: &QdrantError) -> bool {
    let QdrantError::ResponseError { status } = error else {
        return false;
    };
    status.code() == Code::AlreadyExists || status.message().contains("already exists")
}

fn from_status(engine: &str, name: &str, code: Code, message: &str) -> IndexError {
    let engine = engine.to_owned();
    let subject = if name.is_empty() {
        String::new()
    } else {
        format!("{name:?}: ")
    };
    match refusal(code, message) {
        Refusal::Missing => IndexError::NotFound {
            engine,
            name: name.into(),
        },
        Refusal::Transient => IndexError::Unavailable {
            engine,
            reason: readable(message).into(),
        },
        Refusal::Denied(advice) => IndexError::Denied {
            engine,
            reason: format!("{subject}{message}; {advice}"),
        },
        Refusal::Content => IndexError::Refused {
            engine,
            reason: format!("{subject}{message}"),
        },
    }
}

/// Why the server did not do what a request asked.
#[derive(Debug, PartialEq)]
enum Refusal {
    Missing,
    /// The same request may work later.
    Transient,
    /// Only an operator can change this; the text says how.
    Denied(&'static str),
    /// The server refuses the content of this request.
    Content,
}

/// The server answers most requests that it refuses with `INVALID_ARGUMENT`, whether the
/// reason is a limit that an operator set or a wrong value. Only the message tells them
/// apart (qdrant 1.18.3, `lib/storage/src/content_manager/conversions.rs` for the codes,
/// `lib/collection/src/operations/verification` for the limits). The message of a strict
/// mode always ends with `Help: ` and advice.
fn refusal(code: Code, message: &str) -> Refusal {
    let says = |part: &str| message.contains(part);
    let is_missing = says("Collection `") && says("doesn't exist");
    match code {
        _ if code == Code::NotFound || is_missing => Refusal::Missing,
        Code::Unauthenticated => {
            Refusal::Denied("set storage.qdrant.api_key to a key that the server knows")
        }
        Code::PermissionDenied => Refusal::Denied(
            "storage.qdrant.api_key must be a key that may read and write this collection",
        ),
        Code::Unimplemented => Refusal::Denied(
            "the server is too old or storage.qdrant.url is not its gRPC port (usually 6334)",
        ),
        Code::AlreadyExists => Refusal::Denied(
            "a collection or an alias has this name already: delete it there if no application \
             uses it, or use another vector engine",
        ),
        // The server, or a proxy in front of it, accepts no message of that size.
        Code::ResourceExhausted | Code::OutOfRange if says("message") && says("larg") => {
            Refusal::Content
        }
        // More than a whole minute's budget in one request: waiting does not help.
        Code::ResourceExhausted if says("rate limit exceeded, ") => Refusal::Denied(
            "raise write_rate_limit and read_rate_limit in the collection's strict mode",
        ),
        Code::FailedPrecondition if says("locked") => {
            Refusal::Denied("unlock the server: an operator or its recovery mode locked it")
        }
        Code::InvalidArgument if message.to_lowercase().contains("dimension") => {
            Refusal::Denied(OTHER_MODEL)
        }
        Code::InvalidArgument if says("Help: ") => {
            Refusal::Denied("the collection's strict mode does not allow it")
        }
        Code::InvalidArgument if says("limit of ") && says(" reached!") => {
            Refusal::Denied("make room, or raise the limit in the collection's strict mode")
        }
        Code::InvalidArgument if says("Not existing vector name") || says("Inference") => {
            Refusal::Denied(
                "the collection or the server cannot hold ELF's vectors: run `elf rebuild`, or update \
             the server",
            )
        }
        Code::InvalidArgument | Code::OutOfRange => Refusal::Content,
        // Cancelled, deadline, exhausted, aborted, internal (such as a full disk),
        // unavailable, data loss, unknown, a precondition of a cluster that changes.
        _ => Refusal::Transient,
    }
}

/// The operating system's message, taken out of the debug form of an error that the
/// client puts into its own message when it cannot connect.
fn readable(message: &str) -> &str {
    let said = message
        .split_once("Os { ")
        .and_then(|(_, os)| os.split_once("message: \""));
    match said.and_then(|(_, text)| text.split_once('"')) {
        Some((text, _)) => text,
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32, message: &str) -> IndexError {
        from_status("qdrant", "notes", code.into(), message)
    }

    #[test]
    fn a_transient_status_is_unavailable() {
        for (code, message) in [
            (1, "Operation cancelled"),
            (2, "transport error"),
            (
                4,
                "Timeout: Timeout error: Operation 'Update' timed out after 9s",
            ),
            (
                8,
                "Rate limiting exceeded: Write rate limit exceeded: Operation requires 40 tokens but \
                 only 3.0 were available. Retry after 12s",
            ),
            (9, "Pre-condition failure: The shard is being transferred"),
            (10, "aborted"),
            (
                13,
                "Service internal error: No space left on device: WAL buffer size exceeds available \
                 disk space",
            ),
            (
                14,
                "Shard temporarily unavailable: The update queue is full",
            ),
            (15, "Checksum mismatch: expected a, actual b"),
        ] {
            assert_eq!(
                refusal(code.into(), message),
                Refusal::Transient,
                "{code}: {message}"
            );
        }
    }

    #[test]
    fn a_missing_collection_is_not_found_whatever_the_code() {
        let message = "Not found: Collection `notes` doesn't exist!";
        for code in [3, 5] {
            assert!(matches!(error(code, message), IndexError::NotFound { .. }));
        }
    }

    /// The messages of a qdrant 1.18.3.
    #[test]
    fn a_refused_setting_is_denied_and_says_what_to_do() {
        for (code, message, advice) in [
            (
                16,
                "Must provide an API key or an Authorization bearer token",
                "storage.qdrant.api_key",
            ),
            (16, "Invalid API key or JWT", "storage.qdrant.api_key"),
            (7, "ExpiredSignature", "storage.qdrant.api_key"),
            (
                7,
                "Forbidden: Write access to collection notes is required",
                "read and write",
            ),
            (7, "Forbidden: Global access is required", "read and write"),
            (
                3,
                "Wrong input: Vector dimension error: expected dim: 4, got 3",
                "elf reindex",
            ),
            (
                3,
                "Wrong input: Not existing vector name error: bm25",
                "elf rebuild",
            ),
            (
                3,
                "Inference required for document but service returned no results",
                "update the server",
            ),
            (12, "unknown service qdrant.Points", "6334"),
            (
                3,
                "Bad request: Limit exceeded 512 > 100 for \"upsert limit\". Help: Reduce the \
                 \"upsert limit\" parameter to or below 100.",
                "strict mode",
            ),
            (
                3,
                "Bad request: Disk usage is at 91% of total capacity, exceeding the configured limit \
                 of 90%. Help: Reduce disk usage (e.g. delete points or drop collections) or raise \
                 `max_disk_usage_percent` in strict mode.",
                "strict mode",
            ),
            (
                3,
                "Bad request: Max points count limit of 1000 reached!",
                "raise the limit",
            ),
            (
                3,
                "Bad request: Max vector storage size limit of 12.5MB reached!",
                "raise the limit",
            ),
            (
                3,
                "Bad request: Max payload storage size limit of 1MB reached!",
                "raise the limit",
            ),
            (
                8,
                "Rate limiting exceeded: Write rate limit exceeded, request larger than rate limiter \
                 capacity, please try to split your request",
                "write_rate_limit",
            ),
            (9, "Storage locked: maintenance", "unlock"),
            (
                6,
                "Wrong input: Collection `notes` already exists!",
                "another vector engine",
            ),
        ] {
            let error = error(code, message);
            assert!(matches!(error, IndexError::Denied { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains(advice) && text.contains(message) && text.contains("notes"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_refused_request_content_is_refused() {
        for (code, message) in [
            (3, "Wrong input: Unable to parse UUID: x"),
            (
                3,
                "Bad request: Sparse vector 'bm25' has a limit of 100 indices, but 128 were provided!",
            ),
            (
                11,
                "Error, decoded message length too large: found 80000000 bytes, the limit is: \
                 67108864 bytes",
            ),
            (
                8,
                "grpc: received message larger than max (80000000 vs. 4194304)",
            ),
        ] {
            assert_eq!(
                refusal(code.into(), message),
                Refusal::Content,
                "{code}: {message}"
            );
        }
    }

    #[test]
    fn a_refused_connection_is_said_in_words() {
        let message = "Failed to connect to http://127.0.0.1:6399/: tonic::transport::Error(Transport, \
            ConnectError(ConnectError(\"tcp connect error\", 127.0.0.1:6399, Os { code: 111, \
            kind: ConnectionRefused, message: \"Connection refused\" })))";
        assert_eq!(readable(message), "Connection refused");
        assert_eq!(readable("busy"), "busy");
    }
}
