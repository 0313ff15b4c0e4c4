#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! `config` and `layout` read the small files of a model, `weights` its tensors. `encoder` makes a vector of each
//! token, `layer` by layer, with the kernels of `cpu`; `pooling` makes one vector of a text. `batches` says which
//! texts go through the model together. [`BiEncoder`] and [`CrossEncoder`] are what they are for.

mod batches;
mod bi_encoder;
mod config;
mod cpu;
mod cross_encoder;
mod encoder;
mod files;
mod layer;
mod layout;
mod pooling;
mod weights;

#[cfg(test)]
mod reference;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;

pub use bi_encoder::BiEncoder;
pub use cross_encoder::CrossEncoder;
pub use files::{Wanted, files_of_bi_encoder, files_of_cross_encoder};

/// Why a model cannot be loaded. The message finishes "the model …".
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct LoadError(String);

impl From<String> for LoadError {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

/// Why a model has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It cannot read a text.
    #[error("{0}")]
    Input(String),
    /// It gave no answer, or one that is no number.
    #[error("the model {0}")]
    Failed(String),
}

impl Error {
    fn tokenizer(error: &tokenizers::Error) -> Self {
        Self::Input(format!("the tokenizer failed: {error}"))
    }

    fn failed(reason: impl std::fmt::Display) -> Self {
        Self::Failed(format!("failed: {reason}"))
    }
}
