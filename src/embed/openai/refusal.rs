//! Classes an answer with a status other than 200.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use serde_json::Value;

use crate::embed::EmbedError;

/// The parts of an answer without vectors that decide its class.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    status: StatusCode,
    /// The server's own words.
    pub message: String,
    /// OpenAI's `error.code`, such as `model_not_found`.
    code: String,
    /// OpenAI's `error.param`: the field that is wrong.
    param: String,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// Reads an answer. `now` is for a `Retry-After` that is a date.
    pub fn new(status: StatusCode, headers: &HeaderMap, body: &[u8], now: DateTime<Utc>) -> Self {
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let body = String::from_utf8_lossy(body);
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        let field = |name| json["error"][name].as_str().unwrap_or_default().to_owned();
        let message = match header(LOCATION) {
            Some(elsewhere) if status.is_redirection() => format!("it redirects to {elsewhere}"),
            _ => message(&json).unwrap_or_else(|| body.trim().to_owned()),
        };
        Self {
            status,
            message,
            code: field("code"),
            param: field("param"),
            retry_after: header(RETRY_AFTER).and_then(|value| retry_after(value, now)),
        }
    }

    /// Whether the server refused the field `encoding_format` or its value base64.
    pub fn is_about_base64(&self) -> bool {
        let message = self.message.to_lowercase();
        matches!(self.status.as_u16(), 400 | 415 | 422 | 501)
            && (self.param == "encoding_format"
                || message.contains("encoding_format")
                || message.contains("encoding format")
                || message.contains("base64"))
    }

    /// The error of its class, which says what to do about it.
    pub fn to_error(&self, url: &str, model: &str) -> EmbedError {
        let said = format!("{url} answered {}: {}", self.status.as_u16(), self.message);
        match self.status.as_u16() {
            400 | 413 | 422 => match self.wrong_key() {
                Some(key) => EmbedError::config(format!(
                    "{said} (model {model}); change `providers.embedding.{key}`"
                )),
                None => EmbedError::input(said),
            },
            401 | 403 => EmbedError::config(format!(
                "{said}; check `providers.embedding.api_key`, and that the key may use {model}"
            )),
            404 => EmbedError::config(format!(
                "{said}; check `providers.embedding.model` ({model}), `api_base` and `path`"
            )),
            // 402: the account has no credit. No key of `elf.toml` changes that.
            402 | 425 | 429 | 503 | 529 => self.unavailable(said, false),
            // A proxy in front of a slow server answers with these.
            408 | 504 if self.retry_after.is_none() => EmbedError::TimedOut { reason: said },
            408 | 500..=599 => self.unavailable(said, true),
            _ => EmbedError::config(format!(
                "{said}; check `providers.embedding.api_base` and `path`"
            )),
        }
    }

    fn unavailable(&self, reason: String, perhaps_input: bool) -> EmbedError {
        EmbedError::Unavailable {
            reason,
            retry_after: self.retry_after,
            // A server that sends `Retry-After` does not blame the request.
            perhaps_input: perhaps_input && self.retry_after.is_none(),
        }
    }

    /// The key that a 400 blames, where it blames a setting and not a text.
    fn wrong_key(&self) -> Option<&'static str> {
        let message = self.message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        // "This model's maximum context length is 8192 tokens" names the model and means the text.
        if self.param == "input" || says(&["context length", "token", "too long", "too large"]) {
            return None;
        }
        if self.param == "dimensions" || says(&["dimension", "matryoshka"]) {
            return Some("dimensions");
        }
        let unknown = [
            "not found",
            "not exist",
            "unknown",
            "invalid model",
            "not support",
            "not available",
            "not loaded",
            "no model",
            "not an embedding",
        ];
        let blames_model = message.contains("model") && says(&unknown);
        (self.param == "model" || self.code == "model_not_found" || blames_model).then_some("model")
    }
}

/// The message of an error body without the rest of it: FastAPI repeats the whole
/// rejected input beside its message.
fn message(json: &Value) -> Option<String> {
    let places = [
        &json["error"]["message"],
        &json["error"],
        &json["message"],
        &json["detail"],
        &json["detail"][0]["msg"],
    ];
    if let Some(message) = places.iter().find_map(|place| place.as_str()) {
        // FastAPI says which field it means in a list beside the message.
        let field: Vec<&str> = json["detail"][0]["loc"]
            .as_array()
            .map(|loc| loc.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        return Some(if field.is_empty() {
            message.to_owned()
        } else {
            format!("{}: {message}", field.join("."))
        });
    }
    json.is_object().then(|| "no message".to_owned())
}

/// Seconds or an HTTP date (RFC 9110, 10.2.3).
fn retry_after(value: &str, now: DateTime<Utc>) -> Option<Duration> {
    let value = value.trim();
    if let Ok(secs) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(secs).ok();
    }
    let date = DateTime::parse_from_rfc2822(value).ok()?;
    Some((date.to_utc() - now).to_std().unwrap_or_default())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn refusal(status: u16, body: &str) -> Refusal {
        let status = StatusCode::from_u16(status).unwrap();
        Refusal::new(status, &HeaderMap::new(), body.as_bytes(), Utc::now())
    }

    fn error(status: u16, body: &str) -> EmbedError {
        refusal(status, body).to_error("http://host/v1/embeddings", "m")
    }

    #[test]
    fn a_text_that_is_too_long_is_not_taken_for_a_wrong_model() {
        for (status, body) in [
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens, however you requested 9000 tokens","code":null,"param":null}}"#,
            ),
            (
                400,
                r#"{"error":{"message":"'$.input' is invalid","param":"input","code":null}}"#,
            ),
            (
                413,
                r#"{"error":"Input validation error: `inputs` must have less than 512 tokens. Given: 600","error_type":"Validation"}"#,
            ),
            (
                422,
                r#"{"detail":[{"loc":["body","input",0],"msg":"str type expected","input":"x"}]}"#,
            ),
            (413, "<html>Request Entity Too Large</html>"),
            (400, ""),
        ] {
            let error = error(status, body);
            assert!(matches!(error, EmbedError::Input { .. }), "{body}: {error}");
        }
    }

    #[test]
    fn a_400_that_blames_a_setting_names_its_key() {
        for (body, key) in [
            (
                r#"{"error":{"message":"invalid model ID","param":"model"}}"#,
                "model",
            ),
            (
                r#"{"error":{"message":"The model `x` does not exist","code":"model_not_found"}}"#,
                "model",
            ),
            (
                r#"{"error":"this model does not support embeddings"}"#,
                "model",
            ),
            (
                r#"{"error":{"message":"dimensions must be at most 1536","param":"dimensions"}}"#,
                "dimensions",
            ),
            (
                r#"{"message":"Model m does not support matryoshka representation, changing output dimensions will lead to poor results."}"#,
                "dimensions",
            ),
        ] {
            let error = error(400, body);
            let key = format!("`providers.embedding.{key}`");
            assert!(
                matches!(&error, EmbedError::Config { reason } if reason.contains(&key)),
                "{body}: {error}"
            );
        }
    }

    #[test]
    fn refusals_of_the_configuration_name_the_keys_to_look_at() {
        for (status, keys) in [
            (401, ["api_key", "api_key"]),
            (403, ["api_key", "m"]),
            (404, ["providers.embedding.model", "api_base"]),
            (405, ["api_base", "path"]),
            (301, ["api_base", "path"]),
        ] {
            let error = error(status, "{}");
            assert!(
                matches!(&error, EmbedError::Config { reason } if keys.iter().all(|key| reason.contains(key))),
                "{status}: {error}"
            );
        }
    }

    #[test]
    fn busy_and_broken_servers_are_unavailable() {
        for (status, doubt) in [
            (402, false),
            (429, false),
            (500, true),
            (502, true),
            (503, false),
            (529, false),
        ] {
            let error = error(
                status,
                r#"{"error":{"message":"no","code":"insufficient_quota"}}"#,
            );
            assert!(
                matches!(&error, EmbedError::Unavailable { perhaps_input, .. } if *perhaps_input == doubt),
                "{status}: {error}"
            );
            assert!(error.to_string().contains(": no"));
        }
    }

    #[test]
    fn a_proxy_timeout_is_a_timeout() {
        for status in [408, 504] {
            let error = error(status, "");
            assert!(matches!(error, EmbedError::TimedOut { .. }), "{error}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now = "2015-10-21T07:27:30Z".parse().unwrap();
        let secs = |value| retry_after(value, now).map(|wait| wait.as_secs_f64());
        assert_eq!(secs("20"), Some(20.0));
        assert_eq!(secs("0.5"), Some(0.5));
        assert_eq!(secs("Wed, 21 Oct 2015 07:28:00 GMT"), Some(30.0));
        assert_eq!(secs("Wed, 21 Oct 2015 07:00:00 GMT"), Some(0.0));
        for nonsense in ["", "soon", "-1", "NaN", "inf"] {
            assert_eq!(secs(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_server_without_base64_is_recognised() {
        assert!(
            refusal(
                400,
                r#"{"error":{"message":"bad","param":"encoding_format"}}"#
            )
            .is_about_base64()
        );
        assert!(refusal(422, r#"{"detail":[{"loc":["body","encoding_format"],"msg":"extra fields not permitted"}]}"#).is_about_base64());
        assert!(!refusal(400, r#"{"error":{"message":"input is empty"}}"#).is_about_base64());
        assert!(!refusal(500, "base64").is_about_base64());
    }
}
