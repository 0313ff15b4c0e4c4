//! Reranking: a cross-encoder reads the query and each context together, and says how well the one
//! answers the other. It is slower and more exact than a comparison of vectors.

mod http;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use sha2::{Digest, Sha256};

use super::pause::Pause;
use crate::config::{self, RerankApi};
#[cfg(feature = "local")]
use crate::embed::{EmbedError, local::CrossEncoder};
use crate::unicode::composed;
use http::Http;

/// How long searches do without a reranker that is unavailable. Otherwise each would wait for it.
const PAUSE: Duration = Duration::from_secs(5);

/// Answers that are remembered at most: 400 KB with 100 scores each.
const MAX_REMEMBERED: u64 = 1000;

/// How long an answer is remembered. It becomes wrong only if another model answers at the same URL.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The tenant that is searched, and the SHA-256 of the query and the texts. A tenant must not
/// learn, by the time of an answer, what another one asked.
type Asked = (Option<String>, [u8; 32]);

/// Puts texts in the order in which they answer a query.
pub struct Reranker {
    /// Its URL, or its model.
    name: String,
    notes: usize,
    model: Model,
    pause: Pause,
    /// By all texts together: some models score a text by the others beside it.
    remembered: Cache<Asked, Arc<[f32]>>,
}

enum Model {
    Http(Http),
    #[cfg(feature = "local")]
    Local {
        encoder: CrossEncoder,
        time: Duration,
    },
}

/// Why the texts have no scores.
#[derive(Debug, thiserror::Error)]
pub enum RerankError {
    /// The settings cannot be used.
    #[error("search.rerank cannot be used: {0}")]
    Config(String),
    /// It did not answer, or not within its time.
    #[error("the reranker {name} did not rank the results: {reason}")]
    Unavailable {
        /// Its URL, or its model.
        name: String,
        /// What happened.
        reason: String,
    },
}

/// Why one request has no scores.
struct Failure {
    reason: String,
    /// Whether the next request is likely to fail too: the reranker is unavailable or refuses the
    /// key. If not, the cause may be in this request, and others go on.
    is_its_state: bool,
}

impl Reranker {
    /// The reranker of `[search.rerank]`. Loads the model of a local one.
    pub async fn open(settings: config::Rerank) -> Result<Self, RerankError> {
        let (name, notes) = match settings.api {
            RerankApi::Local => (settings.model.clone(), settings.notes),
            RerankApi::Cohere | RerankApi::Tei => (settings.url.clone(), settings.notes),
        };
        let model = match settings.api {
            #[cfg(feature = "local")]
            RerankApi::Local => Model::Local {
                time: Duration::from_millis(settings.timeout_ms),
                encoder: CrossEncoder::open(&settings.model)
                    .await
                    .map_err(|error| RerankError::Config(reason(error)))?,
            },
            #[cfg(not(feature = "local"))]
            RerankApi::Local => {
                return Err(RerankError::Config(
                    "this elf was built without the feature `local`; set search.rerank.api and \
                     search.rerank.url for a reranker behind HTTP"
                        .into(),
                ));
            }
            RerankApi::Cohere | RerankApi::Tei => Model::Http(Http::new(settings)?),
        };
        Ok(Self {
            name,
            notes,
            model,
            pause: Pause::default(),
            remembered: Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .time_to_live(REMEMBERED)
                .build(),
        })
    }

    /// How many notes it ranks.
    pub fn notes(&self) -> usize {
        self.notes
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
            name: self.name.clone(),
            reason,
        };
        if texts.is_empty() {
            return Ok(Arc::default());
        }
        // As the embedder gets them.
        let query = &*composed(query);
        let texts: Vec<Cow<'_, str>> = texts.iter().map(|text| composed(text)).collect();
        let texts: &[&str] = &texts.iter().map(AsRef::as_ref).collect::<Vec<_>>();
        let asked = (tenant.cloned(), hash(query, texts));
        if let Some(scores) = self.remembered.get(&asked) {
            return Ok(scores);
        }
        if self.pause.is_on() {
            return Err(unavailable("it failed a moment ago".into()));
        }
        let answered = match &self.model {
            Model::Http(http) => http.scores(query, texts).await,
            #[cfg(feature = "local")]
            Model::Local { encoder, time } => local_scores(encoder, *time, query, texts).await,
        };
        let scores = answered.map_err(|failure| {
            if failure.is_its_state {
                self.pause.begin(PAUSE);
            }
            unavailable(failure.reason)
        })?;
        let scores: Arc<[f32]> = scores.into();
        self.remembered.insert(asked, scores.clone());
        Ok(scores)
    }
}

/// The SHA-256 of a query and texts, each with its length before it.
fn hash(query: &str, texts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in std::iter::once(&query).chain(texts) {
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

/// What happened, without a word of the embedding provider.
#[cfg(feature = "local")]
fn reason(error: EmbedError) -> String {
    match error {
        EmbedError::Input { reason }
        | EmbedError::Config { reason }
        | EmbedError::Unavailable { reason, .. } => reason,
        late @ EmbedError::TimedOut { .. } => late.to_string(),
    }
}

#[cfg(feature = "local")]
async fn local_scores(
    encoder: &CrossEncoder,
    time: Duration,
    query: &str,
    texts: &[&str],
) -> Result<Vec<f32>, Failure> {
    // Another query may be shorter, or its texts.
    let failure = |reason| Failure {
        reason,
        is_its_state: false,
    };
    match tokio::time::timeout(time, encoder.scores(query, texts)).await {
        Ok(scored) => scored.map_err(|error| failure(reason(error))),
        Err(_) => Err(failure(format!(
            "no scores within {} ms (search.rerank.timeout_ms)",
            time.as_millis()
        ))),
    }
}
