//! Text → chunks, by the crate `elf-chunk`, with the tokenizer that the configuration names. Knows no database and
//! no network, except for the tokenizer's one-time download.

use std::path::PathBuf;

pub use elf_chunk::{Chunk, ChunkError, Chunker, Tokenizer};

use crate::error_class::ErrorClass;
use crate::hub::{HubError, ModelFiles};

/// Why the tokenizer of the configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// Its file is not available.
    #[error("failed to find the tokenizer: {0}; or name another one in chunking.tokenizer_repo")]
    Files(#[from] HubError),
    /// The file exists and cannot be read.
    #[error("failed to read the tokenizer {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no tokenizer that ELF can use.
    #[error("{0}; name another in chunking.tokenizer_repo")]
    Unusable(#[from] elf_chunk::TokenizerError),
}

impl TokenizerError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Files(hub) => hub.class(),
            Self::Read { .. } | Self::Unusable(_) => ErrorClass::Configuration,
        }
    }
}

/// The tokenizer of `model`: a folder, a `tokenizer.json`, or a repository on the Hugging Face hub.
pub async fn open_tokenizer(model: &str) -> Result<Tokenizer, TokenizerError> {
    let path = ModelFiles::open(model)
        .await?
        .file("tokenizer.json")
        .await?;
    let json = tokio::fs::read(&path)
        .await
        .map_err(|source| TokenizerError::Read { path, source })?;
    Ok(Tokenizer::from_json(&json)?)
}

/// What has to change before the text has chunks.
pub fn class_of(error: &ChunkError) -> ErrorClass {
    match error {
        ChunkError::NoRoom { .. } => ErrorClass::Configuration,
        ChunkError::Indivisible { .. } | ChunkError::NoTokens { .. } | ChunkError::Cut { .. } => {
            ErrorClass::Item
        }
        ChunkError::Tokenizer(elf_chunk::TokenizerError::Parse(_)) => ErrorClass::Configuration,
        ChunkError::Tokenizer(elf_chunk::TokenizerError::Encode { .. }) => ErrorClass::Item,
    }
}

/// The error of a note, with the key of the setting that it names.
pub fn reason(error: &ChunkError) -> String {
    match error {
        ChunkError::Indivisible { .. } => format!("{error}; the setting is chunking.max_tokens"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_too_large_names_the_key() {
        let error = ChunkError::Indivisible {
            offset: 3,
            tokens: 40,
            max_tokens: 32,
        };
        assert!(reason(&error).contains("chunking.max_tokens"));
    }
}
