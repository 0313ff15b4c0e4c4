//! What a failed request means for the caller.

use qdrant_client::QdrantError;

use crate::index::IndexError;
use crate::index::payload::OTHER_MODEL;

// gRPC status codes (grpc/grpc doc/statuscodes.md); the enum is in a crate that
// ELF does not depend on itself.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const PERMISSION_DENIED: i32 = 7;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// The error of `engine` about the collection or alias `name`.
pub(super) fn classify(engine: &str, name: &str, error: QdrantError) -> IndexError {
    match error {
        QdrantError::ResponseError { status } => {
            from_status(engine, name, status.code() as i32, status.message())
        }
        QdrantError::ResourceExhaustedError {
            status,
            retry_after_seconds,
        } => IndexError::Unavailable {
            engine: engine.into(),
            reason: format!(
                "{} (it asks for {retry_after_seconds} s of rest)",
                status.message()
            ),
        },
        QdrantError::InvalidUri(error) => IndexError::Refused {
            engine: engine.into(),
            reason: format!("storage.qdrant.url is no URL: {error}"),
        },
        other => IndexError::Unavailable {
            engine: engine.into(),
            reason: other.to_string(),
        },
    }
}

/// Whether the request failed because somebody else has made the thing already.
pub(super) fn already_exists(error: &QdrantError) -> bool {
    let QdrantError::ResponseError { status } = error else {
        return false;
    };
    status.code() as i32 == ALREADY_EXISTS || status.message().contains("already exists")
}

fn from_status(engine: &str, name: &str, code: i32, message: &str) -> IndexError {
    let engine = engine.to_owned();
    if code == NOT_FOUND || (message.contains("Collection `") && message.contains("doesn't exist"))
    {
        return IndexError::NotFound {
            engine,
            name: name.into(),
        };
    }
    let advice = match code {
        UNAUTHENTICATED => "set storage.qdrant.api_key to a key that the server knows",
        PERMISSION_DENIED => {
            "storage.qdrant.api_key must be a key that may read and write this collection"
        }
        UNIMPLEMENTED => {
            "the server is too old or storage.qdrant.url is not its gRPC port (usually 6334)"
        }
        INVALID_ARGUMENT if message.to_lowercase().contains("dimension") => OTHER_MODEL,
        INVALID_ARGUMENT | FAILED_PRECONDITION | OUT_OF_RANGE | ALREADY_EXISTS => {
            "the collection or the server's limits do not allow this request"
        }
        // The rest may pass: cancelled, deadline, exhausted, aborted, internal,
        // unavailable, data loss, unknown.
        _ => {
            return IndexError::Unavailable {
                engine,
                reason: readable(message).into(),
            };
        }
    };
    let subject = if name.is_empty() {
        String::new()
    } else {
        format!("{name:?}: ")
    };
    IndexError::Refused {
        engine,
        reason: format!("{subject}{message}; {advice}"),
    }
}

/// What the system said, out of the debug form of an error that the client puts
/// into its message when it cannot connect.
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

    fn class(code: i32, message: &str) -> IndexError {
        from_status("qdrant", "notes", code, message)
    }

    #[test]
    fn what_may_pass_is_unavailable() {
        // cancelled, unknown, deadline, exhausted, aborted, internal, unavailable, data loss
        for code in [1, 2, 4, 8, 10, 13, 14, 15] {
            assert!(
                matches!(class(code, "busy"), IndexError::Unavailable { .. }),
                "code {code}"
            );
        }
    }

    #[test]
    fn a_missing_collection_is_not_found_whatever_the_code() {
        assert!(matches!(
            class(5, "Not found: Collection `notes` doesn't exist!"),
            IndexError::NotFound { .. }
        ));
        assert!(matches!(
            class(3, "Collection `notes` doesn't exist!"),
            IndexError::NotFound { .. }
        ));
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for (code, message, advice) in [
            (16, "Must provide an API key", "storage.qdrant.api_key"),
            (7, "Forbidden", "read and write"),
            (
                3,
                "Vector dimension error: expected dim: 4, got 3",
                "elf reindex",
            ),
            (12, "unknown service", "6334"),
        ] {
            let error = class(code, message).to_string();
            assert!(
                error.contains(advice) && error.contains(message) && error.contains("notes"),
                "{error}"
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
