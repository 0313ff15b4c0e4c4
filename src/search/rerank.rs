//! Reranking: a cross-encoder reads the query and each context together, and says how well the one
//! answers the other. It is slower and more exact than a comparison of vectors.
//!
//! Two forms of the request are in use. Cohere's (also Jina, Voyage, vLLM, Infinity):
//! <https://docs.cohere.com/reference/rerank>. TEI's:
//! <https://huggingface.github.io/text-embeddings-inference/>. The forms of their answers differ in
//! names alone.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, redirect};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::pause::Pause;
use crate::config::{self, RerankApi};
use crate::embed::redact;

/// Bytes of an answer that are read for each text, and once beside. Cohere has about 60. Others send
/// the texts back: JSON writes a byte as six (`\u0000`) at most.
const MAX_ANSWER_BYTES: usize = 4 << 10;
const MAX_ESCAPED_BYTES: usize = 6;

/// How long searches do without a reranker that is unavailable. Otherwise each would wait for it.
const PAUSE: Duration = Duration::from_secs(5);

/// Answers that are remembered at most: 400 KB with 100 scores each.
const MAX_REMEMBERED: u64 = 1000;

/// How long an answer is remembered. It becomes wrong only if another model answers at the same URL.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The tenant that is searched, and the SHA-256 of a request. A tenant must not learn, by the time
/// of an answer, what another one asked.
type Asked = (Option<String>, [u8; 32]);

/// A reranker behind HTTP.
pub struct Reranker {
    client: Client,
    settings: config::Rerank,
    pause: Pause,
    /// By whole requests: some models score a text by the others beside it.
    remembered: Cache<Asked, Arc<[f32]>>,
}

/// Why the texts have no scores.
#[derive(Debug, thiserror::Error)]
pub enum RerankError {
    /// The settings cannot be used.
    #[error("search.rerank cannot be used: {0}")]
    Config(String),
    /// It did not answer, or not within its time.
    #[error("the reranker {url} did not rank the results: {reason}")]
    Unavailable {
        /// Where it is.
        url: String,
        /// What happened.
        reason: String,
    },
}

/// The score of one text.
#[derive(Debug, Deserialize)]
struct Scored {
    /// Its place in the request.
    index: usize,
    #[serde(alias = "relevance_score")]
    score: f32,
}

/// The answers of Cohere and Jina, of Voyage, and of TEI.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Answer {
    Cohere { results: Vec<Scored> },
    Voyage { data: Vec<Scored> },
    Tei(Vec<Scored>),
}

impl Reranker {
    /// The reranker of `[search.rerank]`.
    pub fn new(settings: config::Rerank) -> Result<Self, RerankError> {
        let unusable = |reason: String| RerankError::Config(reason);
        let mut headers = HeaderMap::new();
        if let Some(key) = &settings.api_key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
                .map_err(|_| unusable("api_key has characters that a header cannot have".into()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .user_agent(concat!("elf/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers)
            .timeout(Duration::from_millis(settings.timeout_ms))
            // A redirected POST loses its body, and the key is meant for one host.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        Ok(Self {
            client,
            settings,
            pause: Pause::default(),
            remembered: Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .time_to_live(REMEMBERED)
                .build(),
        })
    }

    /// How many notes it ranks.
    pub fn notes(&self) -> usize {
        self.settings.notes
    }

    /// How well each of the texts of a tenant answers the query: a score for each, in their order.
    /// Larger is better; the scale is the model's.
    pub async fn scores(
        &self,
        tenant: Option<&String>,
        query: &str,
        texts: &[&str],
    ) -> Result<Arc<[f32]>, RerankError> {
        let unavailable = |reason: String| RerankError::Unavailable {
            url: self.settings.url.clone(),
            reason,
        };
        if texts.is_empty() {
            return Ok(Arc::default());
        }
        let body = body(&self.settings, query, texts).to_string();
        let asked = (tenant.cloned(), Sha256::digest(&body).into());
        if let Some(scores) = self.remembered.get(&asked) {
            return Ok(scores);
        }
        if self.pause.is_on() {
            return Err(unavailable("it failed a moment ago".into()));
        }
        let answered = self.ask(body, query, texts).await;
        let scores: Arc<[f32]> = answered
            .map_err(|failure| {
                if failure.is_its_state {
                    self.pause.begin(PAUSE);
                }
                unavailable(failure.reason)
            })?
            .into();
        self.remembered.insert(asked, scores.clone());
        Ok(scores)
    }

    /// Sends a body that has the query and the texts.
    async fn ask(&self, body: String, query: &str, texts: &[&str]) -> Result<Vec<f32>, Failure> {
        let asking = self
            .client
            .post(&self.settings.url)
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .send();
        let unanswered = |error| self.unanswered(error);
        let response = asking.await.map_err(unanswered)?;
        let status = response.status();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let limit = MAX_ANSWER_BYTES * (texts.len() + 1) + MAX_ESCAPED_BYTES * bytes;
        let answer = read(response, limit).await.map_err(unanswered)?;
        if !status.is_success() {
            let key = self.settings.api_key.as_ref();
            let secrets: Vec<&str> = key.into_iter().map(config::Secret::expose).collect();
            let quoted = [texts, &[query]].concat();
            let said = redact(&String::from_utf8_lossy(&answer), &quoted, &secrets);
            return Err(Failure {
                reason: format!("status {status}: {said}"),
                is_its_state: status.is_server_error()
                    || [401, 403, 404, 408, 429].contains(&status.as_u16()),
            });
        }
        let about_this = |reason| Failure {
            reason,
            is_its_state: false,
        };
        if answer.len() == limit {
            return Err(about_this(format!(
                "its answer is longer than {limit} bytes"
            )));
        }
        scores_of(&answer, texts.len()).map_err(about_this)
    }

    fn unanswered(&self, error: reqwest::Error) -> Failure {
        Failure {
            reason: match error.is_timeout() {
                true => format!(
                    "no answer within {} ms (search.rerank.timeout_ms)",
                    self.settings.timeout_ms
                ),
                // The message of the caller has the URL already.
                false => error.without_url().to_string(),
            },
            is_its_state: true,
        }
    }
}

/// Why one request has no scores.
struct Failure {
    reason: String,
    /// Whether the next request is likely to fail too: the reranker is unavailable or refuses the
    /// key. If not, the cause may be in this request, and others go on.
    is_its_state: bool,
}

fn body(settings: &config::Rerank, query: &str, texts: &[&str]) -> Value {
    match settings.api {
        RerankApi::Cohere if settings.model.is_empty() => {
            json!({ "query": query, "documents": texts })
        }
        RerankApi::Cohere => json!({
            "model": settings.model, "query": query, "documents": texts,
        }),
        RerankApi::Tei => json!({ "query": query, "texts": texts, "truncate": true }),
    }
}

/// The first `limit` bytes of an answer.
async fn read(mut response: Response, limit: usize) -> reqwest::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < limit
        && let Some(part) = response.chunk().await?
    {
        bytes.extend_from_slice(&part);
    }
    bytes.truncate(limit);
    Ok(bytes)
}

/// The scores in the order of the texts. Every text must have one.
fn scores_of(answer: &[u8], texts: usize) -> Result<Vec<f32>, String> {
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|_| "its answer is not that of a reranker".to_owned())?;
    let (Answer::Cohere { results: scored }
    | Answer::Voyage { data: scored }
    | Answer::Tei(scored)) = answer;
    let mut scores = vec![None; texts];
    for Scored { index, score } in scored {
        let place = scores
            .get_mut(index)
            .ok_or_else(|| format!("a score for text {index} of {texts}"))?;
        if !score.is_finite() || place.replace(score).is_some() {
            return Err(format!("no single score for text {index}"));
        }
    }
    scores
        .into_iter()
        .collect::<Option<Vec<f32>>>()
        .ok_or_else(|| format!("less than {texts} scores for {texts} texts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_all_servers_are_read() {
        for answer in [
            r#"{"id":"x","results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.1}],"meta":{}}"#,
            r#"{"object":"list","data":[{"relevance_score":0.9,"index":1},{"relevance_score":0.1,"index":0}],"model":"rerank-2"}"#,
            r#"[{"index":1,"score":0.9},{"index":0,"score":0.1}]"#,
        ] {
            assert_eq!(scores_of(answer.as_bytes(), 2), Ok(vec![0.1, 0.9]));
        }
    }

    #[test]
    fn an_answer_that_leaves_a_text_out_or_names_another_is_refused() {
        for answer in [
            "{}",
            "no JSON",
            r#"[{"index":0,"score":1}]"#,
            r#"[{"index":0,"score":1},{"index":0,"score":2}]"#,
            r#"[{"index":0,"score":1},{"index":2,"score":2}]"#,
            r#"[{"index":0,"score":1e999},{"index":1,"score":2}]"#,
        ] {
            assert!(scores_of(answer.as_bytes(), 2).is_err(), "{answer}");
        }
    }
}
