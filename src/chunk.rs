//! Text → chunks, by the crate `elf-chunk`, with the tokenizer that the configuration names. Knows no database and
//! no network, except for the tokenizer's one-time download.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, Utc};
pub use elf_chunk::{Chunk, ChunkError, Chunker, Split, Strategy, Tokenizer};

use crate::config::{Chunking, LeadPart};
use crate::error_class::ErrorClass;
use crate::hub::{HubError, ModelFiles};

/// Splits the texts of notes, each as its type asks.
#[derive(Debug)]
pub struct NoteChunker {
    usual: Chunker,
    by_type: HashMap<String, Chunker>,
    lead: Vec<LeadPart>,
}

/// What decides how a note is split, beside its text.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// The note's type.
    pub kind: &'a str,
    /// Its title.
    pub title: Option<&'a str>,
    /// When the note changed last.
    pub updated_at: DateTime<Utc>,
}

impl NoteChunker {
    /// A chunker for `[chunking]`. Fails if a part of it leaves no room for text.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        chunking: &Chunking,
        document_prefix: &str,
    ) -> Result<Self, ChunkError> {
        let chunker = |settings| Chunker::new(tokenizer.clone(), settings, document_prefix);
        let by_type = chunking.by_type.iter();
        let by_type = by_type.map(|(kind, settings)| Ok((kind.clone(), chunker(settings)?)));
        Ok(Self {
            usual: chunker(&chunking.settings)?,
            by_type: by_type.collect::<Result<_, ChunkError>>()?,
            lead: chunking.lead.clone(),
        })
    }

    /// The tokenizer that counts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.usual.tokenizer()
    }

    /// Tokens of a chunk besides its text and its lead: prefix and special tokens.
    pub fn fixed_tokens(&self) -> usize {
        self.usual.fixed_tokens()
    }

    /// Splits the text of a note.
    pub fn split<'t>(&self, text: &'t str, note: Subject<'_>) -> Result<Split<'t>, ChunkError> {
        let chunker = self.by_type.get(note.kind).unwrap_or(&self.usual);
        let title = title_of(&self.lead, note.title);
        chunker.split(text, &|headings| {
            line_of(&self.lead, &title, headings, note.updated_at)
        })
    }

    /// How the text of a note is split: the strategy of its type, and the one that it makes of the text.
    pub fn strategies<'s>(&'s self, text: &str, kind: &str) -> [&'s Strategy; 2] {
        let chunker = self.by_type.get(kind).unwrap_or(&self.usual);
        [chunker.strategy(), chunker.strategy().of(text)]
    }
}

/// A title as leads have it: on one line; empty if they have none.
fn title_of(lead: &[LeadPart], title: Option<&str>) -> String {
    let title = title.filter(|_| lead.contains(&LeadPart::Title));
    let words: Vec<&str> = title.unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

/// The line that leads a chunk, such as `Manual > Engine > Oil (2026-11-28)`.
fn line_of(lead: &[LeadPart], title: &str, headings: &[&str], updated_at: DateTime<Utc>) -> String {
    let mut path: Vec<&str> = Vec::new();
    if !title.is_empty() {
        path.push(title);
    }
    if lead.contains(&LeadPart::Headings) {
        // The first heading of a text often is its title.
        let is_title = headings.first() == Some(&title);
        path.extend(&headings[usize::from(is_title)..]);
    }
    let mut line = path.join(" > ");
    if lead.contains(&LeadPart::Date) {
        let space = if line.is_empty() { "" } else { " " };
        let day = updated_at.format("%F");
        line.push_str(&format!("{space}({day})"));
    }
    line
}

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
    fn a_title_stands_first_on_one_line_and_once() {
        let line = |lead: &[LeadPart], title, headings: &[&str]| {
            let title = title_of(lead, title);
            line_of(lead, &title, headings, DateTime::UNIX_EPOCH)
        };
        use LeadPart::{Date, Headings, Title};
        let all = [Date, Headings, Title];
        let oil = ["Engine", "Oil"];
        assert_eq!(
            line(&all, Some(" The\r\n manual "), &oil),
            "The manual > Engine > Oil (1970-01-01)"
        );
        assert_eq!(
            line(&all, Some("Engine"), &oil),
            "Engine > Oil (1970-01-01)"
        );
        assert_eq!(line(&[Title], Some("Engine"), &oil), "Engine");
        assert_eq!(line(&[Headings], Some("Manual"), &oil), "Engine > Oil");
        for none in [None, Some(""), Some(" \n")] {
            assert_eq!(line(&[Title, Headings], none, &oil), "Engine > Oil");
            assert_eq!(line(&[Title], none, &[""]), "");
        }
    }

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
