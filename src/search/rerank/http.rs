//! Rerankers behind HTTP.
//!
//! Two forms of the request are in use. Cohere's (also Jina, Voyage, vLLM, Infinity):
//! <https://docs.cohere.com/reference/rerank>. TEI's:
//! <https://huggingface.github.io/text-embeddings-inference/>. The forms of their answers differ in
//! names alone.

use std::time::Duration;

use reqwest::{Client, redirect};
use serde::Deserialize;
use serde_json::{Value, json};

use super::RerankError;
use crate::config::{self, RerankApi};
use crate::embed::openai::read;
use crate::embed::{readable, redact};

/// Bytes of an answer that are read for each text, and once beside. Cohere has about 60. Others send
/// the texts back: JSON writes a byte as six (`\u0000`) at most.
const MAX_ANSWER_BYTES: usize = 4 << 10;
const MAX_ESCAPED_BYTES: usize = 6;

pub struct Http {
    client: Client,
    settings: config::Rerank,
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

impl Http {
    pub fn new(settings: config::Rerank) -> Result<Self, RerankError> {
        let client = Client::builder()
            .user_agent(concat!("elf/", env!("CARGO_PKG_VERSION")))
            .timeout(Duration::from_millis(settings.timeout_ms))
            // A redirected POST loses its body, and the key is meant for one host.
            .redirect(redirect::Policy::none())
            .build()
            .map_err(|error| RerankError::Config(error.to_string()))?;
        Ok(Self { client, settings })
    }

    /// A score for each text, in their order.
    pub async fn scores(&self, query: &str, texts: &[&str]) -> Result<Vec<f32>, String> {
        let body = body(&self.settings, query, texts);
        let mut asking = self.client.post(&self.settings.url).json(&body);
        if let Some(key) = &self.settings.api_key {
            asking = asking.bearer_auth(key.expose());
        }
        let unanswered = |error| self.unanswered(error);
        let response = asking.send().await.map_err(unanswered)?;
        let status = response.status();
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let limit = MAX_ANSWER_BYTES * (texts.len() + 1) + MAX_ESCAPED_BYTES * bytes;
        let (answer, is_whole) = read(response, limit).await.map_err(unanswered)?;
        if !status.is_success() {
            let key = self.settings.api_key.as_ref();
            let secrets: Vec<&str> = key.into_iter().map(config::Secret::expose).collect();
            let quoted = [texts, &[query]].concat();
            let said = redact(&readable(&answer), &quoted, &secrets);
            return Err(format!("status {status}: {said}"));
        }
        if !is_whole {
            return Err(format!("its answer is longer than {limit} bytes"));
        }
        scores_of(&answer, texts.len())
    }

    fn unanswered(&self, error: reqwest::Error) -> String {
        match error.is_timeout() {
            true => format!(
                "no answer within {} ms (search.rerank.timeout_ms)",
                self.settings.timeout_ms
            ),
            // The message of the caller has the URL already.
            false => error.without_url().to_string(),
        }
    }
}

fn body(settings: &config::Rerank, query: &str, texts: &[&str]) -> Value {
    match (settings.api, &*settings.model) {
        (RerankApi::Tei, _) => json!({ "query": query, "texts": texts, "truncate": true }),
        (_, "") => json!({ "query": query, "documents": texts }),
        (_, model) => json!({ "model": model, "query": query, "documents": texts }),
    }
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
