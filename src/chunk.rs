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
use crate::note::MAX_CUTS;

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
    /// `memory_notes.type`: it may have chunking settings of its own.
    pub kind: &'a str,
    /// It may stand in the lead.
    pub title: Option<&'a str>,
    /// Where its application cuts it; empty if the strategy does.
    pub cuts: &'a [usize],
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
        let line = |headings: &[&str]| line_of(&self.lead, &title, headings, note.updated_at);
        match note.cuts {
            [] => chunker.split(text, &line),
            cuts => chunker.split_at(text, cuts, &line),
        }
    }

    /// How the text of a note is split: the strategy of its type, and the one that it makes of the text.
    pub fn strategies<'s>(&'s self, text: &str, kind: &str) -> [&'s Strategy; 2] {
        let chunker = self.by_type.get(kind).unwrap_or(&self.usual);
        [chunker.strategy(), chunker.strategy().of(text)]
    }
}

/// The cuts in `json`, which is what a note has as `source_ref.cuts`: an array of byte offsets in its text. Null is
/// none; 0 and the length of the text are left out. The error says what is wrong.
pub fn cuts(json: &str, text: &str) -> Result<Vec<usize>, String> {
    let cuts = all_cuts(json, text).map_err(|wrong| format!("source_ref.cuts: {wrong}"))?;
    let is_inside = |cut: &usize| (1..text.len()).contains(cut);
    Ok(cuts.into_iter().filter(is_inside).collect())
}

fn all_cuts(json: &str, text: &str) -> Result<Vec<usize>, String> {
    let too_many =
        || format!("there are more than {MAX_CUTS}, or more than the text has characters");
    // The store leaves out what is longer than any good cuts are.
    if json.is_empty() {
        return Err(too_many());
    }
    if json == "null" {
        return Ok(Vec::new());
    }
    // It is JSON, so between two commas is a number, or a part of what is none.
    let items = json.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let items = items.ok_or("it is no array of byte offsets")?.trim();
    if items.is_empty() {
        return Ok(Vec::new());
    }
    let offset = |(index, item): (usize, &str)| {
        let offset = item.trim().parse::<usize>();
        offset.map_err(|_| format!("cut {index} is no byte offset"))
    };
    let first = items.split(',').take(MAX_CUTS + 1).enumerate();
    let cuts = first.map(offset).collect::<Result<Vec<usize>, String>>()?;
    if cuts.len() > MAX_CUTS {
        return Err(too_many());
    }
    elf_chunk::check_cuts(text, &cuts).map_err(|error| error.to_string())?;
    Ok(cuts)
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
        /// The `tokenizer.json`.
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
    fn cuts_are_byte_offsets_that_ascend_from_character_to_character() {
        let text = "aé\nb";
        for (json, expected) in [
            ("[1, 3]", &[1, 3][..]),
            ("[0,1,5]", &[1]),
            ("[0, 5]", &[]),
            ("[ ]", &[]),
            ("null", &[]),
        ] {
            assert_eq!(cuts(json, text), Ok(expected.to_vec()), "{json}");
        }
        for (json, reason) in [
            ("", "more than 100000"),
            ("{}", "source_ref.cuts: it is no array of byte offsets"),
            ("\"1\"", "no array of byte offsets"),
            ("[1, 2]", "cut 1 at byte 2 lies inside a character"),
            ("[1, 6]", "cut 1 at byte 6 lies behind the end"),
            ("[3, 1]", "cut 1 at byte 1 does not lie behind"),
            ("[0, 0]", "cut 1 at byte 0 does not lie behind"),
            ("[1, \"3\"]", "cut 1 is no byte offset"),
            ("[1.5]", "cut 0 is no byte offset"),
            ("[-1]", "cut 0 is no byte offset"),
            ("[99999999999999999999]", "cut 0 is no byte offset"),
            ("[1, [3]]", "cut 1 is no byte offset"),
            ("[{\"a\": 1}]", "cut 0 is no byte offset"),
        ] {
            let said = cuts(json, text).expect_err(json);
            assert!(said.contains(reason), "{json}: {said}");
        }
        let many = format!("[{}]", vec!["1"; MAX_CUTS + 1].join(","));
        let said = cuts(&many, text).expect_err("too many");
        assert!(said.contains("more than 100000"), "{said}");
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
