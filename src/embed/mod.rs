//! Texts → vectors. Knows no database.

use std::time::Duration;

use futures::future::BoxFuture;

/// Turns texts into vectors. One call is one request to the provider.
pub trait Embedder: Send + Sync {
    /// One vector of the same dimension for each of `texts`, in their order.
    /// The texts carry their prefix already. A success holds exactly
    /// `texts.len()` vectors, each finite and not all zero.
    fn embed<'a>(&'a self, texts: &'a [&'a str]) -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>>;

    /// How much one call of [`Embedder::embed`] may hold.
    fn limits(&self) -> Limits;
}

/// How much one request may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Texts in one request.
    pub max_inputs: usize,
    /// Tokens in one request, all texts together.
    pub max_tokens: usize,
}

/// Why a request gave no vectors, by who has to do something about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EmbedError {
    /// At least one of the texts cannot be embedded. Splitting the batch finds it.
    #[error("the embedding provider rejected an input: {reason}")]
    Input {
        /// What the provider said.
        reason: String,
    },
    /// The provider is away or busy; the same request may work later.
    #[error("the embedding provider is unavailable: {reason}")]
    Unavailable {
        /// What happened.
        reason: String,
        /// How long the provider asked to be left alone.
        retry_after: Option<Duration>,
    },
    /// Nothing will work until an operator changes something.
    #[error("the embedding provider refuses the configuration: {reason}")]
    Config {
        /// What is wrong and which key of `elf.toml` to change.
        reason: String,
    },
}
