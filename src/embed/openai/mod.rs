//! Any server that speaks OpenAI's embeddings API: OpenAI, Azure, TEI, vLLM, Ollama,
//! LM Studio.

mod format;
mod refusal;
mod tls;
mod url;
mod wire;

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url, redirect};
use serde_json::Value;

use super::{EmbedError, Embedded, Embedder, Limits, Purpose, check, limits_of, readable, redact};
use crate::config;
use format::{AboutFormat, Format, Negotiation};
use refusal::Refusal;

/// A reachable server completes a handshake sooner than this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A float as decimal text, with the indentation that some servers add.
const MAX_FLOAT_BYTES: usize = 40;

/// The JSON around one vector in an answer.
const MAX_ITEM_BYTES: usize = 1 << 10;

/// The JSON around all vectors of an answer.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// The largest dimension that ELF accepts from the first answer, where none is configured.
const MAX_DIM: usize = 1 << 16;

/// How much ELF reads of an answer without vectors.
const MAX_REFUSAL_BYTES: usize = 64 << 10;

/// A proxy that answers 504 sooner has not waited for a slow server.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// An embeddings endpoint with everything it is sent.
pub struct OpenAi {
    client: Client,
    url: Url,
    /// The URL in messages, without its query.
    name: String,
    model: String,
    /// Asked for in every request.
    dimensions: Option<usize>,
    /// Further fields of the body, for notes and for queries.
    note_fields: BTreeMap<String, Value>,
    query_fields: BTreeMap<String, Value>,
    /// Floats that every vector must have. The first answer sets it where it is unknown.
    dim: OnceLock<usize>,
    limits: Limits,
    formats: Negotiation,
    /// Values that no message may contain.
    secrets: Vec<String>,
}

/// Why one request returned no vectors.
struct Failure {
    error: EmbedError,
    about_format: AboutFormat,
}

impl From<EmbedError> for Failure {
    fn from(error: EmbedError) -> Self {
        Self {
            error,
            about_format: AboutFormat::No,
        }
    }
}

impl OpenAi {
    /// The endpoint of `settings`; vectors must have `dim` floats, where it is
    /// known. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// `Config` when the address, the key or a header cannot be sent.
    pub fn new(settings: &config::Embedding, dim: Option<usize>) -> Result<Self, EmbedError> {
        let url = url::endpoint(&settings.api_base, &settings.path)?;
        let timeout = Duration::from_millis(settings.timeout_ms);
        let client = tls::trust(Client::builder(), settings)?
            .user_agent(concat!("elf/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers(settings)?)
            .timeout(timeout)
            .connect_timeout(timeout.min(CONNECT_TIMEOUT))
            // A redirected POST loses its body, and the key is meant for one host.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| {
                EmbedError::config(format!(
                    "failed to set up the HTTP client: {}",
                    causes(&error)
                ))
            })?;
        let secrets = settings.api_key.iter().chain(settings.headers.values());
        Ok(Self {
            client,
            name: url::without_query(&url),
            url,
            model: settings.model.clone(),
            dimensions: settings.dimensions,
            note_fields: settings.document_fields.clone(),
            query_fields: settings.query_fields.clone(),
            dim: dim.map(OnceLock::from).unwrap_or_default(),
            limits: limits_of(settings),
            formats: Negotiation::new(),
            secrets: secrets.map(|secret| secret.expose().to_owned()).collect(),
        })
    }

    async fn request(&self, texts: &[&str], purpose: Purpose) -> Result<Embedded, EmbedError> {
        let mut format = self.formats.current();
        let mut unclear = None;
        loop {
            let failure = match self.send(texts, purpose, format).await {
                Ok(embedded) => {
                    if self.formats.worked(format) {
                        tracing::info!(url = self.name, ?format, "vectors come in another form");
                    }
                    return Ok(embedded);
                }
                Err(failure) => failure,
            };
            let next = self.formats.after(format, failure.about_format);
            // If no form works, the first failure without a reason tells most.
            let error = match failure.about_format {
                AboutFormat::Perhaps => unclear.take().unwrap_or(failure.error),
                AboutFormat::Yes | AboutFormat::No => failure.error,
            };
            let Some(next) = next else {
                return Err(error);
            };
            format = next;
            unclear = (failure.about_format == AboutFormat::Perhaps).then_some(error);
        }
    }

    async fn send(
        &self,
        texts: &[&str],
        purpose: Purpose,
        format: Format,
    ) -> Result<Embedded, Failure> {
        let request = wire::Request {
            model: &self.model,
            input: texts,
            encoding_format: format.value(),
            dimensions: self.dimensions,
            fields: match purpose {
                Purpose::Note => &self.note_fields,
                Purpose::Query => &self.query_fields,
            },
        };
        let sent = Instant::now();
        let response = self
            .client
            .post(self.url.clone())
            .json(&request)
            .send()
            .await
            .map_err(|error| self.broken(&error))?;
        if !response.status().is_success() {
            let waited = sent.elapsed() >= SHORTEST_WAIT;
            return Err(self.refused(response, texts, waited).await);
        }
        let kind = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or("no content type")
            .to_owned();
        let dim = self.dim.get().copied();
        let max_bytes = max_answer_bytes(texts.len(), dim);
        let (body, whole) = read(response, max_bytes)
            .await
            .map_err(|error| self.broken(&error))?;
        if !whole {
            return Err(Failure::from(EmbedError::failed(format!(
                "{} answered with more than {max_bytes} bytes, which is more than {} vectors of \
                 {} floats take; check `providers.embedding.api_base`, `path`, `model` and \
                 `dimensions`",
                self.name,
                texts.len(),
                dim.unwrap_or(MAX_DIM)
            ))));
        }
        let perhaps = |error: EmbedError| Failure {
            about_format: match error {
                EmbedError::Input { .. } | EmbedError::TooMuch { .. } => AboutFormat::No,
                _ => AboutFormat::Perhaps,
            },
            error,
        };
        let answer = match wire::parse(&body) {
            Ok(answer) => answer,
            Err(error) => {
                if let Some(refusal) = Refusal::in_success(&body) {
                    return Err(self.failure(refusal, texts, false));
                }
                let said = readable(&body[..body.len().min(2000)]);
                return Err(perhaps(EmbedError::failed(format!(
                    "{} answered 200 with something other than embeddings ({kind}; {error}): {}",
                    self.name,
                    self.redact(&said, texts)
                ))));
            }
        };
        let vectors = check::answer(answer.vectors, texts.len(), dim).map_err(perhaps)?;
        if let Some(first) = vectors.first() {
            self.dim.get_or_init(|| first.len());
        }
        Ok(Embedded {
            vectors,
            tokens: answer.tokens,
        })
    }

    async fn refused(&self, response: Response, texts: &[&str], waited: bool) -> Failure {
        let (status, headers) = (response.status(), response.headers().clone());
        // Where the body cannot be read, the status is enough.
        let (body, _) = read(response, MAX_REFUSAL_BYTES).await.unwrap_or_default();
        let refusal = Refusal::new(status, &headers, &body, chrono::Utc::now());
        self.failure(refusal, texts, waited)
    }

    fn failure(&self, mut refusal: Refusal, texts: &[&str], waited: bool) -> Failure {
        // Before the texts are taken out, which may be digits.
        let most = refusal.most(texts.len());
        let about_format = refusal.about_format();
        refusal.message = self.redact(&refusal.message, texts);
        let error = match refusal.to_error(&self.name, &self.model, most) {
            EmbedError::TimedOut { reason } if !waited => EmbedError::failed(reason),
            error => error,
        };
        Failure {
            error,
            about_format,
        }
    }

    fn broken(&self, error: &reqwest::Error) -> EmbedError {
        let url = &self.name;
        if error.is_connect() {
            return EmbedError::unavailable(format!("cannot connect to {url}: {}", causes(error)));
        }
        if error.is_timeout() {
            return EmbedError::TimedOut {
                reason: format!("{url} did not answer within `providers.embedding.timeout_ms`"),
            };
        }
        EmbedError::failed(format!(
            "the answer of {url} was cut off: {}",
            causes(error)
        ))
    }

    fn redact(&self, message: &str, texts: &[&str]) -> String {
        let secrets: Vec<&str> = self.secrets.iter().map(String::as_str).collect();
        redact(message, texts, &secrets)
    }
}

impl Embedder for OpenAi {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>> {
        self.request(texts, purpose).boxed()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

fn headers(settings: &config::Embedding) -> Result<HeaderMap, EmbedError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &settings.api_key {
        headers.insert(
            AUTHORIZATION,
            secret_value(&format!("Bearer {}", key.expose()), "api_key")?,
        );
    }
    // After the key, so that an operator can send another kind of authorization.
    for (name, value) in &settings.headers {
        let key = format!("headers.{name}");
        let name = HeaderName::try_from(name).map_err(|_| {
            EmbedError::config(format!(
                "`providers.embedding.{key}` is not an HTTP header name"
            ))
        })?;
        headers.insert(name, secret_value(value.expose(), &key)?);
    }
    Ok(headers)
}

fn secret_value(value: &str, key: &str) -> Result<HeaderValue, EmbedError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        EmbedError::config(format!(
            "`providers.embedding.{key}` holds a character that no HTTP header can carry, such as \
             a line break"
        ))
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The longest body that `inputs` vectors of `dim` floats take.
fn max_answer_bytes(inputs: usize, dim: Option<usize>) -> usize {
    let vector_bytes = dim.unwrap_or(MAX_DIM) * MAX_FLOAT_BYTES + MAX_ITEM_BYTES;
    MAX_FRAME_BYTES + inputs * vector_bytes
}

/// The decompressed body up to `max_bytes`, and whether that is all of it.
pub(crate) async fn read(
    mut response: Response,
    max_bytes: usize,
) -> reqwest::Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await? {
        body.extend_from_slice(&part);
        if body.len() > max_bytes {
            body.truncate(max_bytes);
            return Ok((body, false));
        }
    }
    Ok((body, true))
}

/// The error with all its sources: reqwest's own message says only that sending failed.
fn causes(error: &reqwest::Error) -> String {
    let mut line = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        cause = error.source();
        // The outermost message repeats the URL, which the caller prints already.
        if line.is_empty() && cause.is_some() && error.is::<reqwest::Error>() {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&error.to_string());
    }
    line
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_without_telling_it() {
        let error = secret_value("Bearer abc\ndef", "api_key").unwrap_err();
        assert!(error.to_string().contains("providers.embedding.api_key"));
        assert!(!error.to_string().contains("abc"));
    }
}
