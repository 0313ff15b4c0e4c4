//! Any server that speaks OpenAI's embeddings API: OpenAI, TEI, vLLM, Ollama,
//! LM Studio.

mod refusal;
mod tls;
mod wire;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use super::redact::redact;
use super::{EmbedError, Embedder, Limits, check, limits_of};
use crate::config;
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

/// An embeddings endpoint with everything it is sent.
pub struct OpenAi {
    client: Client,
    url: Url,
    model: String,
    /// Asked for in every request.
    dimensions: Option<usize>,
    /// Floats that every vector must have. The first answer sets it where it is unknown.
    dim: OnceLock<usize>,
    limits: Limits,
    /// Whether the server has not yet refused base64 vectors, which are a third
    /// of the size of decimal ones and cost no parsing.
    base64: AtomicBool,
    /// Values that no message may contain.
    secrets: Vec<String>,
}

impl OpenAi {
    /// The endpoint of `settings`; vectors must have `dim` floats, where it is
    /// known. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// `Config` when the address, the key or a header cannot be sent.
    pub fn new(settings: &config::Embedding, dim: Option<usize>) -> Result<Self, EmbedError> {
        let url = endpoint(&settings.api_base, &settings.path)?;
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
            url,
            model: settings.model.clone(),
            dimensions: settings.dimensions,
            dim: dim.map(OnceLock::from).unwrap_or_default(),
            limits: limits_of(settings),
            base64: AtomicBool::new(true),
            secrets: secrets.map(|secret| secret.expose().to_owned()).collect(),
        })
    }

    async fn request(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let base64 = self.base64.load(Ordering::Relaxed);
        match self.send(texts, base64).await? {
            Ok(vectors) => Ok(vectors),
            Err(refusal) if base64 && refusal.is_about_base64() => {
                tracing::info!(url = %self.url, "base64 vectors refused, requesting decimal ones");
                self.base64.store(false, Ordering::Relaxed);
                self.send(texts, false)
                    .await?
                    .map_err(|refusal| self.to_error(&refusal))
            }
            Err(refusal) => Err(self.to_error(&refusal)),
        }
    }

    /// The inner error is a status other than 200.
    async fn send(
        &self,
        texts: &[&str],
        base64: bool,
    ) -> Result<Result<Vec<Vec<f32>>, Refusal>, EmbedError> {
        let request = wire::Request {
            model: &self.model,
            input: texts,
            encoding_format: base64.then_some("base64"),
            dimensions: self.dimensions,
        };
        let response = self
            .client
            .post(self.url.clone())
            .json(&request)
            .send()
            .await
            .map_err(|error| self.broken(&error))?;
        let status = response.status();
        if status != StatusCode::OK {
            return Ok(Err(self.refusal(status, response, texts).await));
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
            return Err(EmbedError::failed(format!(
                "{} answered with more than {max_bytes} bytes, which is more than {} vectors of \
                 {} floats take; check `providers.embedding.api_base`, `path`, `model` and \
                 `dimensions`",
                self.url,
                texts.len(),
                dim.unwrap_or(MAX_DIM)
            )));
        }
        let answer = wire::parse(&body).map_err(|error| {
            EmbedError::failed(format!(
                "{} answered 200 with something other than embeddings ({kind}; {error}): {}",
                self.url,
                self.redact(
                    &String::from_utf8_lossy(&body[..body.len().min(2000)]),
                    texts
                )
            ))
        })?;
        let vectors = check::answer(answer, texts.len(), dim)?;
        if let Some(first) = vectors.first() {
            self.dim.get_or_init(|| first.len());
        }
        Ok(Ok(vectors))
    }

    async fn refusal(&self, status: StatusCode, response: Response, texts: &[&str]) -> Refusal {
        let headers = response.headers().clone();
        // Where the body cannot be read, the status is enough.
        let (body, _) = read(response, MAX_REFUSAL_BYTES).await.unwrap_or_default();
        let mut refusal = Refusal::new(status, &headers, &body, chrono::Utc::now());
        refusal.message = self.redact(&refusal.message, texts);
        refusal
    }

    fn to_error(&self, refusal: &Refusal) -> EmbedError {
        refusal.to_error(self.url.as_str(), &self.model)
    }

    fn broken(&self, error: &reqwest::Error) -> EmbedError {
        let url = &self.url;
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
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>> {
        self.request(texts).boxed()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

fn endpoint(base: &str, path: &str) -> Result<Url, EmbedError> {
    let joined = format!(
        "{}/{}",
        base.trim_end_matches('/'),
        path.trim_start_matches('/')
    );
    let url = Url::parse(joined.trim_end_matches('/')).map_err(|error| {
        EmbedError::config(format!(
            "`providers.embedding.api_base` and `path` do not form a URL ({joined}): {error}"
        ))
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(EmbedError::config(format!(
            "`providers.embedding.api_base` must begin with http:// or https://, not {}:",
            url.scheme()
        )));
    }
    if url.password().is_some() || !url.username().is_empty() {
        return Err(EmbedError::config(
            "`providers.embedding.api_base` holds a user or password, which logs would show; \
             put them into `providers.embedding.headers`",
        ));
    }
    Ok(url)
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
async fn read(mut response: Response, max_bytes: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
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
    fn the_path_goes_below_the_base_whatever_the_slashes() {
        for (base, path) in [
            ("https://api.openai.com/v1", "embeddings"),
            ("https://api.openai.com/v1/", "/embeddings"),
            ("https://api.openai.com", "/v1/embeddings"),
            ("https://api.openai.com/v1/embeddings", ""),
        ] {
            let url = endpoint(base, path).unwrap();
            assert_eq!(url.as_str(), "https://api.openai.com/v1/embeddings");
        }
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_with_its_key() {
        for base in [
            "",
            "localhost:8080",
            "ftp://host/",
            "http://me:secret@host/",
        ] {
            let error = endpoint(base, "/v1/embeddings").unwrap_err();
            assert!(matches!(&error, EmbedError::Config { reason }
                if reason.contains("providers.embedding.api_base") && !reason.contains("secret")));
        }
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_without_telling_it() {
        let error = secret_value("Bearer abc\ndef", "api_key").unwrap_err();
        assert!(error.to_string().contains("providers.embedding.api_key"));
        assert!(!error.to_string().contains("abc"));
    }
}
