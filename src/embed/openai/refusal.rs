//! Classes an answer without vectors.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use serde_json::Value;

use super::format::AboutFormat;
use crate::embed::{EmbedError, Most, readable};

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
        let body = readable(body);
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

    /// An answer with status 200 that holds an error instead of vectors, as gateways write it.
    pub fn in_success(body: &[u8]) -> Option<Self> {
        let json: Value = serde_json::from_str(&readable(body)).ok()?;
        let error = json.get("error").filter(|error| !error.is_null())?;
        let code = &error["code"];
        let code = code.as_u64().or_else(|| code.as_str()?.parse().ok());
        let status = code.and_then(|code| StatusCode::from_u16(code as u16).ok());
        let status = status.filter(|status| status.is_client_error() || status.is_server_error());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Some(Self::new(status, &HeaderMap::new(), body, Utc::now()))
    }

    /// Whether the server refused the field `encoding_format` or its value.
    pub fn about_format(&self) -> AboutFormat {
        let message = self.message.to_lowercase();
        let says = |word: &&str| message.contains(word);
        match self.status.as_u16() {
            400 | 415 | 422 | 500 | 501 => {}
            _ => return AboutFormat::No,
        }
        let words = ["encoding_format", "encoding format", "base64"];
        match self.param == "encoding_format" || words.iter().any(says) {
            true => AboutFormat::Yes,
            false => AboutFormat::Perhaps,
        }
    }

    /// How much a request may hold, if the server says so about this one with `texts` texts.
    pub fn most(&self, texts: usize) -> Option<Most> {
        // 429: OpenAI refuses so what is more than a minute's tokens.
        if texts < 2 || !matches!(self.status.as_u16(), 400 | 413 | 422 | 429) {
            return None;
        }
        let message = self.message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
        let limits = [
            "maximum",
            "max",
            "at most",
            "no more than",
            "larger than",
            "greater than",
            "up to",
            "limit",
            "exceed",
            "allowed",
            "超过",
        ];
        // What one text may hold is no limit of the request.
        if !says(&limits) || says(&["context", "sequence length"]) {
            return None;
        }
        let numbers = numbers(&message);
        let lists = [
            "batch",
            "array",
            "inputs",
            "texts",
            "items",
            "elements",
            "documents",
            "instances",
            "requests",
            "数组",
        ];
        let fewer = numbers.iter().filter(|number| (1..texts).contains(*number));
        match fewer.max() {
            Some(most) if says(&lists) => Some(Most::Texts(*most)),
            _ if says(&["token"]) && says(&["request", "batch", "total"]) => {
                let least = numbers.iter().filter(|number| **number >= MIN_TOKENS).min();
                least.map(|tokens| Most::Tokens(*tokens))
            }
            _ => None,
        }
    }

    /// The error of its class, which says what to do about it. `most` is [`Self::most`].
    pub fn to_error(&self, name: &str, model: &str, most: Option<Most>) -> EmbedError {
        let reason = format!("{name} answered {}: {}", self.status.as_u16(), self.message);
        if let Some(most) = most {
            return EmbedError::TooMuch { reason, most };
        }
        match self.status.as_u16() {
            400 | 413 | 422 => match self.wrong_key() {
                Some(key) => EmbedError::config(format!(
                    "{reason} (model {model}); change `providers.embedding.{key}`"
                )),
                None => EmbedError::input(reason),
            },
            401 | 403 | 407 => EmbedError::config(format!(
                "{reason}; check `providers.embedding.api_key`, and that the key may use {model}"
            )),
            404 | 410 => EmbedError::config(format!(
                "{reason}; check `providers.embedding.model` ({model}), `api_base` and `path`"
            )),
            300..=399 | 405 | 406 | 411 | 414 | 415 | 417 | 426 | 428 | 431 | 501 | 505 => {
                EmbedError::config(format!(
                    "{reason}; check `providers.embedding.api_base` and `path`"
                ))
            }
            // 402: the account has no credit. No key of `elf.toml` changes that.
            402 | 429 => self.unavailable(reason, false),
            // A proxy in front of a slow server answers with these.
            408 | 504 if self.retry_after.is_none() => EmbedError::TimedOut { reason },
            // 409, 424, 451, 498, 499, 503, 529 and what a gateway may invent yet.
            _ => self.unavailable(reason, true),
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

/// The least that ELF takes for a limit of tokens: smaller numbers in a message are something else.
const MIN_TOKENS: usize = 256;

/// The whole numbers of a message; a comma or an underscore may group their digits.
fn numbers(message: &str) -> Vec<usize> {
    let groups = message.split(|letter: char| !(letter.is_ascii_digit() || ",_.".contains(letter)));
    let number = |group: &str| {
        let digits: String = group.chars().filter(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let whole = |group: &&str| {
        let group = group.trim_matches([',', '_', '.']);
        // "10.5" and "1.2.3" are no counts.
        !group.contains('.')
    };
    groups.filter(whole).filter_map(number).collect()
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
        refusal(status, body).to_error("http://host/v1/embeddings", "m", None)
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
            (501, ["api_base", "path"]),
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
            (409, true),
            (424, true),
            (451, true),
            (498, true),
            (499, true),
            (500, true),
            (502, true),
            (503, true),
            (529, true),
            (599, true),
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
        for (status, body) in [
            (
                400,
                r#"{"error":{"message":"bad","param":"encoding_format"}}"#,
            ),
            (
                422,
                r#"{"detail":[{"loc":["body","encoding_format"],"msg":"extra fields not permitted"}]}"#,
            ),
            (500, "base64"),
        ] {
            let about = refusal(status, body).about_format();
            assert_eq!(about, AboutFormat::Yes, "{body}");
        }
        let empty = r#"{"error":{"message":"input is empty"}}"#;
        assert_eq!(refusal(400, empty).about_format(), AboutFormat::Perhaps);
        assert_eq!(refusal(503, "base64").about_format(), AboutFormat::No);
    }

    #[test]
    fn a_limit_is_read_from_what_servers_say() {
        use Most::{Texts, Tokens};
        for (texts, said, most) in [
            (
                64,
                "batch size 64 > maximum allowed batch size 32",
                Texts(32),
            ),
            (
                2049,
                "Invalid 'input': array too long. Expected an array with maximum length 2048, but got an array with length 2049 instead.",
                Texts(2048),
            ),
            (
                100,
                "invalid request: total number of texts must be at most 96 - received 100",
                Texts(96),
            ),
            (
                64,
                "Value error, batch size is invalid, it should not be larger than 10.: input.contents",
                Texts(10),
            ),
            (
                256,
                "* BatchEmbedContentsRequest.requests: at most 100 requests can be in one batch",
                Texts(100),
            ),
            (80, "input数组最大不得超过64条", Texts(64)),
            (
                200,
                "Invalid 'input': maximum request size is 300000 tokens per request.",
                Tokens(300_000),
            ),
            (
                200,
                "The max allowed tokens per submitted batch is 120,000. Your batch has 150000 tokens after truncation.",
                Tokens(120_000),
            ),
        ] {
            let body = serde_json::json!({"error": {"message": said}}).to_string();
            assert_eq!(refusal(400, &body).most(texts), Some(most), "{said}");
        }
        for (texts, said) in [
            (1, "batch size 64 > maximum allowed batch size 32"),
            (
                16,
                "This model's maximum context length is 8192 tokens, however you requested 9000 tokens",
            ),
            (16, "`inputs` must have less than 512 tokens. Given: 600"),
            (
                16,
                "request (24273 tokens) exceeds the available context size (8192 tokens)",
            ),
            (16, "the input at index 3 is too long"),
            (16, "Request Entity Too Large"),
            (16, "internal error 7"),
        ] {
            assert_eq!(refusal(413, said).most(texts), None, "{said}");
        }
    }

    #[test]
    fn an_error_in_an_answer_with_status_200_is_a_refusal() {
        for (body, status) in [
            (r#"{"error":{"message":"no","code":429}}"#, 429),
            (r#"{"error":{"message":"no","code":"403"}}"#, 403),
            (r#"{"error":{"message":"no","code":"nope"}}"#, 500),
            (r#"{"error":"no"}"#, 500),
        ] {
            let refusal = Refusal::in_success(body.as_bytes()).unwrap();
            assert_eq!(refusal.status.as_u16(), status, "{body}");
            assert_eq!(refusal.message, "no");
        }
        for body in ["<html>", "{}", r#"{"error":null}"#, r#"{"data":null}"#] {
            assert_eq!(Refusal::in_success(body.as_bytes()), None, "{body}");
        }
    }
}
