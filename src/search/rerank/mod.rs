//! Reranking: a cross-encoder reads the query and each context together, and says how well the one
//! answers the other. It is slower and more exact than a comparison of vectors.

mod http;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::pause::Pause;
use crate::config::{self, RerankApi};
#[cfg(feature = "local")]
use crate::embed::{EmbedError, local::CrossEncoder};
use crate::error_class::ErrorClass;
use crate::unicode::composed;
use http::Http;

/// How long searches do without a reranker that is unavailable. Otherwise each would wait for it.
const PAUSE: Duration = Duration::from_secs(5);

/// What every working reranker ranks. It is part of no note and of no query.
const PROBE: &str = "probe";

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
    health: Arc<Health>,
    /// By all texts together: some models score a text by the others beside it.
    remembered: Cache<Asked, Arc<[f32]>>,
}

/// Whether it works for searches at all. What one search meets is that search's alone: a firewall
/// answers 403 to one text, and a model may need longer than its time for one.
struct Health {
    model: Model,
    pause: Pause,
    /// Held while a probe is in flight.
    probing: Mutex<()>,
}

impl Health {
    /// Begins the pause if the reranker does not rank a plain text either.
    async fn probe(&self) {
        let Ok(_one) = self.probing.try_lock() else {
            return;
        };
        if self.model.scores(PROBE, &[PROBE]).await.is_err() {
            self.pause.begin(PAUSE);
        }
    }
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
    #[error("the reranker {name} is unavailable: {reason}")]
    Unavailable {
        /// Its URL, or its model.
        name: String,
        /// What the reranker said, or why it was not reached.
        reason: String,
    },
}

impl RerankError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Config(_) => ErrorClass::Configuration,
            Self::Unavailable { .. } => ErrorClass::Provider,
        }
    }
}

impl Model {
    /// A score for each text, in their order, or why there is none.
    async fn scores(&self, query: &str, texts: &[&str]) -> Result<Vec<f32>, String> {
        match self {
            Self::Http(http) => http.scores(query, texts).await,
            #[cfg(feature = "local")]
            Self::Local { encoder, time } => local_scores(encoder, *time, query, texts).await,
        }
    }
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
                encoder: CrossEncoder::open(&settings.model).await.map_err(
                    |error| match error {
                        // The hub may answer later.
                        EmbedError::Unavailable { reason, .. } => RerankError::Unavailable {
                            name: name.clone(),
                            reason,
                        },
                        error => RerankError::Config(error.reason().to_owned()),
                    },
                )?,
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
            health: Arc::new(Health {
                model,
                pause: Pause::default(),
                probing: Mutex::default(),
            }),
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
        if self.health.pause.is_on() {
            return Err(unavailable("it failed a moment ago".into()));
        }
        let scores = match self.health.model.scores(query, texts).await {
            Ok(scores) => scores,
            Err(reason) => {
                // Not awaited: the answer to this search is late enough.
                let health = self.health.clone();
                tokio::spawn(async move { health.probe().await });
                return Err(unavailable(reason));
            }
        };
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

#[cfg(feature = "local")]
async fn local_scores(
    encoder: &CrossEncoder,
    time: Duration,
    query: &str,
    texts: &[&str],
) -> Result<Vec<f32>, String> {
    match tokio::time::timeout(time, encoder.scores(query, texts)).await {
        Ok(scored) => scored.map_err(|error| error.reason().to_owned()),
        Err(_) => Err(format!(
            "no scores within {} ms (search.rerank.timeout_ms)",
            time.as_millis()
        )),
    }
}
