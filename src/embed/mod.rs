//! Texts → vectors. Knows no database.
//!
//! - An [`Embedder`] carries one request to one kind of provider; it decides nothing. [`connect`]
//!   builds the one that the configuration names.
//! - The [`provider::Provider`], which the rest of ELF calls, decides which texts are sent, when,
//!   and what a failure means; it sends them through its embedder.
//!
//! Another kind of provider is a folder here with an [`Embedder`], and a variant of
//! `config::ProviderKind` with its defaults in `config/read.rs`. It has an arm in [`connect`],
//! and one in `serving/version.rs`, where its name becomes part of the version.

pub mod check;
#[cfg(feature = "local")]
pub mod local;
pub mod openai;
pub mod provider;
mod redact;

pub(crate) use redact::{readable, redact};

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::config;
use crate::error_class::ErrorClass;

/// Carries one request to one kind of provider, `openai` to a server or `local` to a model in this
/// process; a [`provider::Provider`] decides which requests, and when.
pub trait Embedder: Send + Sync {
    /// One vector of the same dimension for each of `texts`, in their order.
    /// The texts carry their prefix already. A success holds exactly
    /// `texts.len()` vectors, each finite and not all zero.
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        purpose: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>>;

    /// How much one call of [`Embedder::embed`] may hold.
    fn limits(&self) -> Limits;
}

/// What a text is. Some models make other vectors of queries than of notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A chunk of a note.
    Note,
    /// What a search looks for. Its failure is that search's alone.
    Query,
}

/// The answer to one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embedded {
    /// One vector for each text, in their order.
    pub vectors: Vec<Vec<f32>>,
    /// Tokens that the provider counted in all texts, where it says so.
    pub tokens: Option<u64>,
}

/// How much one request may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Texts in one request.
    pub max_inputs: usize,
    /// Tokens in one request, all texts together.
    pub max_tokens: usize,
}

/// Why a request returned no vectors, classed by the reaction that it needs.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EmbedError {
    /// At least one of the texts cannot be embedded. Splitting the batch finds it.
    #[error("the embedding provider rejected an input: {reason}")]
    Input {
        /// What the provider said.
        reason: String,
    },
    /// The request holds more than the provider takes, and the provider says how much that is.
    /// Only an [`Embedder`] returns this; [`provider::Provider`] makes its requests smaller.
    #[error("the embedding provider takes smaller requests: {reason}")]
    TooMuch {
        /// What the provider said.
        reason: String,
        /// What it takes.
        most: Most,
    },
    /// The provider is unavailable or busy; the same request may work later.
    #[error("the embedding provider is unavailable: {reason}")]
    Unavailable {
        /// What the provider said, or why it was not reached.
        reason: String,
        /// The pause that the provider asked for.
        retry_after: Option<Duration>,
        /// Whether this request may be the cause. True for a 500 or a malformed
        /// answer; false for a 429, a refused connection, and whatever comes with a
        /// `Retry-After`. [`provider::Provider`] finds out by embedding another text.
        perhaps_input: bool,
    },
    /// The provider did not answer in time, and may still be computing the answer. Only
    /// an [`Embedder`] returns this; [`provider::Provider`] and [`connect`] turn it into
    /// another variant.
    #[error("the embedding provider timed out: {reason}")]
    TimedOut {
        /// What timed out.
        reason: String,
    },
    /// Nothing will work until an operator changes something. From an [`Embedder`] it is a
    /// guess: a firewall answers 403 to one text among many. [`provider::Provider`] finds
    /// out by embedding another text.
    #[error("the embedding provider refuses the configuration: {reason}")]
    Config {
        /// What is wrong and which key of `elf.toml` to change.
        reason: String,
    },
}

/// The largest request that a provider takes, by its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Most {
    /// Texts in a request.
    Texts(usize),
    /// Tokens in a request, all texts together.
    Tokens(usize),
}

impl EmbedError {
    fn input(reason: impl Into<String>) -> Self {
        Self::Input {
            reason: reason.into(),
        }
    }

    fn config(reason: impl Into<String>) -> Self {
        Self::Config {
            reason: reason.into(),
        }
    }

    /// The same, with a pause of at most `longest`.
    fn within(mut self, longest: Duration) -> Self {
        if let Self::Unavailable { retry_after, .. } = &mut self {
            *retry_after = retry_after.map(|asked| asked.min(longest));
        }
        self
    }

    /// The provider failed on this request, because of its own state or of one of the texts.
    fn failed(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            retry_after: None,
            perhaps_input: true,
        }
    }

    /// The provider is unavailable for every request.
    fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            retry_after: None,
            perhaps_input: false,
        }
    }

    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Input { .. } | Self::TooMuch { .. } => ErrorClass::Item,
            Self::Unavailable { .. } | Self::TimedOut { .. } => ErrorClass::Provider,
            Self::Config { .. } => ErrorClass::Configuration,
        }
    }

    /// What happened, without the class of the error in front.
    pub fn reason(&self) -> &str {
        match self {
            Self::Input { reason }
            | Self::TooMuch { reason, .. }
            | Self::Unavailable { reason, .. }
            | Self::TimedOut { reason }
            | Self::Config { reason } => reason,
        }
    }
}

/// What is known of a model once it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Floats in each vector.
    pub dim: usize,
    /// Tokens that the model reads, special ones included. `None` for a server, which
    /// does not report it.
    pub window: Option<usize>,
    /// The SHA-256 of a local model's weights, pooling, normalisation and lowercasing.
    /// `None` for a server.
    pub weights: Option<[u8; 32]>,
}

/// The text that ELF sends to find out whether a provider works. It is part of no note.
pub const PROBE: &str = "probe";

/// The embedder that the configuration names. Of a known dimension `dim`, it sends a
/// server nothing yet, and an answer of another dimension is a configuration error.
/// Otherwise it embeds one short text to learn the dimension, and returns `Unavailable`
/// if the server is. Unlike `dimensions` of the configuration, `dim` is not sent.
pub async fn connect(
    settings: &config::Embedding,
    dim: Option<usize>,
) -> Result<(Arc<dyn Embedder>, ModelFacts), EmbedError> {
    if let (Some(wanted), Some(known)) = (settings.dimensions, dim)
        && wanted != known
    {
        return Err(EmbedError::config(format!(
            "`providers.embedding.dimensions` is {wanted}, but the vectors of this embedding \
             version have {known}; change it back, or move to another version with `elf reindex`"
        )));
    }
    match settings.provider {
        config::ProviderKind::Openai => {
            let embedder = openai::OpenAi::new(settings, dim)?;
            let dim = match dim {
                Some(dim) => dim,
                None => probe(&embedder).await?,
            };
            let facts = ModelFacts {
                dim,
                window: None,
                weights: None,
            };
            Ok((Arc::new(embedder), facts))
        }
        config::ProviderKind::Local => connect_local(settings, dim).await,
    }
}

#[cfg(feature = "local")]
async fn connect_local(
    settings: &config::Embedding,
    dim: Option<usize>,
) -> Result<(Arc<dyn Embedder>, ModelFacts), EmbedError> {
    let embedder = local::Local::open(&settings.model, limits_of(settings)).await?;
    let facts = ModelFacts {
        dim: embedder.dim(),
        window: Some(embedder.window()),
        weights: Some(embedder.weights()),
    };
    if let Some(wanted) = dim
        && wanted != facts.dim
    {
        return Err(EmbedError::config(format!(
            "the model {} gives vectors of {} dimensions, not {wanted}; change \
             `providers.embedding.dimensions` or `providers.embedding.model`",
            settings.model, facts.dim
        )));
    }
    Ok((Arc::new(embedder), facts))
}

#[cfg(not(feature = "local"))]
async fn connect_local(
    _settings: &config::Embedding,
    _dim: Option<usize>,
) -> Result<(Arc<dyn Embedder>, ModelFacts), EmbedError> {
    Err(EmbedError::config(
        "this build of elf has no local models; build it with the cargo feature `local`, or set \
         `providers.embedding.provider = \"openai\"` and point `api_base` at a server",
    ))
}

/// The dimension of the vectors that `embedder` returns, learned by embedding
/// [`PROBE`]. At start, its error tells a refused configuration from a provider that
/// is unavailable.
pub async fn probe(embedder: &dyn Embedder) -> Result<usize, EmbedError> {
    let embedded = embedder.embed(&[PROBE], Purpose::Note).await;
    let embedded = embedded.map_err(|error| match error {
        // A provider that rejects this text rejects every text: its settings are wrong.
        EmbedError::Input { reason } | EmbedError::TooMuch { reason, .. } => {
            EmbedError::config(format!(
                "it rejects every text, even {PROBE:?}: {reason}; check `model`, `path` and \
                 `document_fields` of [providers.embedding]"
            ))
        }
        EmbedError::TimedOut { reason } => EmbedError::failed(reason),
        error => error,
    })?;
    match embedded.vectors.first() {
        Some(vector) => Ok(vector.len()),
        None => Err(EmbedError::failed("it gave no vector for one text")),
    }
}

/// Refuses chunks longer than the model's window: the model would ignore their end.
pub fn check_window(
    (key, max_tokens): (&str, usize),
    window: Option<usize>,
    model: &str,
) -> Result<(), EmbedError> {
    match window {
        Some(window) if max_tokens > window => Err(EmbedError::config(format!(
            "`{key}` is {max_tokens}, but the model {model} reads {window} tokens at \
             most; set `{key}` to {window} or less, or choose another model"
        ))),
        _ => Ok(()),
    }
}

fn limits_of(settings: &config::Embedding) -> Limits {
    Limits {
        max_inputs: settings.max_batch_inputs.max(1),
        max_tokens: settings.max_batch_tokens.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_beyond_the_window_is_refused_by_name() {
        let key = "chunking.by_type.log.max_tokens";
        let refused = check_window((key, 512), Some(256), "all-MiniLM-L6-v2").expect_err("large");
        for word in ["512", "256", "all-MiniLM-L6-v2", key] {
            assert!(refused.to_string().contains(word), "{refused} lacks {word}");
        }
        assert!(matches!(refused, EmbedError::Config { .. }));
        assert_eq!(check_window((key, 256), Some(256), "m"), Ok(()));
        assert_eq!(check_window((key, 9999), None, "m"), Ok(()));
    }
}
