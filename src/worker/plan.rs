//! Decides what is written for a note. `batch` writes it.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Report, pooled};
use crate::chunk::{self, Chunk, ChunkError, NoteChunker, Subject};
use crate::embed::EmbedError;
use crate::note::{Note, TextHash, chunk_id};
use crate::store::{ChunkWrite, FailedBy, NoteWrite};

/// A note and its chunks.
#[derive(Debug)]
pub struct ChunkedNote {
    /// The note's id.
    pub note_id: Uuid,
    /// `None` when its row is deleted.
    pub note: Option<Note>,
    /// Whether it is live, so that searches may find it.
    pub live: bool,
    /// Its chunks, or why it has none.
    pub hashed_chunks: Result<Vec<HashedChunk>, NoChunks>,
}

/// Why a note has no chunks, which no retry changes.
#[derive(Debug, Clone, PartialEq)]
pub struct NoChunks {
    /// What rejects it.
    pub by: FailedBy,
    /// For `elf dead show`. Never holds the text.
    pub reason: String,
}

impl From<String> for NoChunks {
    fn from(reason: String) -> Self {
        let by = FailedBy::Text;
        Self { by, reason }
    }
}

/// A chunk before it has its vector.
#[derive(Debug, Clone)]
pub struct HashedChunk {
    /// Its offsets and token count.
    pub chunk: Chunk,
    /// What is sent before its text.
    pub lead: String,
    /// The hash of both.
    pub hash: TextHash,
}

/// For each text its vector, or the reason why it has none.
pub type Vectors = HashMap<TextHash, Result<Arc<[f32]>, EmbedError>>;

/// A note and the rows to write for it.
#[derive(Debug)]
pub struct PlannedWrite<'a> {
    /// The note as it was loaded.
    pub chunked: &'a ChunkedNote,
    /// What the commit writes.
    pub rows: NoteWrite<'a>,
}

/// Why a note cannot be written now.
#[derive(Debug, PartialEq)]
pub enum Unwritable {
    /// The provider is unavailable: the note is due as before.
    Waits,
    /// The note itself is the cause: one more failed attempt.
    Fails {
        /// For `elf dead show`. Never holds the text.
        reason: String,
        /// The component that rejects it.
        by: FailedBy,
        /// Whether it can never work.
        permanent: bool,
    },
}

/// Chunks a note that is live at `now`; any other note has no chunks. A text of more than
/// `max_bytes` was not loaded and is an error.
pub fn chunk_note(
    chunker: &NoteChunker,
    note_id: Uuid,
    note: Option<Note>,
    now: DateTime<Utc>,
    max_bytes: u64,
) -> ChunkedNote {
    let live = note.as_ref().is_some_and(|n| n.is_live(now));
    let hashed_chunks = match &note {
        Some(note) if live && note.text_bytes > max_bytes => Err(format!(
            "its text has {} bytes, and `worker.max_note_bytes` allows {max_bytes}: shorten \
             the note or raise the limit, then run `elf dead retry {note_id}`",
            note.text_bytes
        )
        .into()),
        Some(note) if live => {
            let cuts = cuts_or_warn(note);
            let subject = Subject {
                kind: &note.labels.kind,
                title: note.title.as_deref(),
                cuts: &cuts,
                updated_at: note.labels.updated_at,
            };
            hashed_chunks(chunker, &note.text, subject).map_err(NoChunks::from)
        }
        _ => Ok(Vec::new()),
    };
    ChunkedNote {
        note_id,
        note,
        live,
        hashed_chunks,
    }
}

/// The cuts that the application gives a note. If they are wrong, none: the strategy cuts it.
fn cuts_or_warn(note: &Note) -> Vec<usize> {
    let Some(json) = &note.cuts else {
        return Vec::new();
    };
    chunk::cuts(json, &note.text).unwrap_or_else(|reason| {
        tracing::warn!(
            note_id = %note.note_id,
            "wrong cuts, chunking the note by its strategy: {reason}"
        );
        Vec::new()
    })
}

/// A note that Postgres cannot read. Its row may be readable without its text.
pub fn unreadable_note(
    note_id: Uuid,
    note: Option<Note>,
    now: DateTime<Utc>,
    reason: &str,
) -> ChunkedNote {
    let live = note.as_ref().is_some_and(|note| note.is_live(now));
    let is_over = note.is_some() && !live;
    let reason = format!(
        "Postgres cannot read it: {reason}; restore the note from a backup, or delete it and insert it again"
    );
    let by = FailedBy::Postgres;
    ChunkedNote {
        note_id,
        note,
        live,
        hashed_chunks: match is_over {
            true => Ok(Vec::new()),
            false => Err(NoChunks { by, reason }),
        },
    }
}

/// The chunks of a text that have a token of it, or the reason why none has one. A chunk may be
/// all invisible characters, of which the tokenizer's normalisation leaves nothing.
pub fn hashed_chunks(
    chunker: &NoteChunker,
    text: &str,
    subject: Subject<'_>,
) -> Result<Vec<HashedChunk>, String> {
    // A tokenizer is third-party code that runs on a third-party file. A panic over one text
    // must not fail the other notes of the batch.
    let split = match catch_unwind(AssertUnwindSafe(|| chunker.split(text, subject))) {
        Ok(split) => split.map_err(|error| chunk::reason(&error))?,
        Err(_) => return Err("the tokenizer panicked; the log has its message".to_owned()),
    };
    let with_tokens = split
        .chunks
        .iter()
        .filter(|chunk| chunk.tokens > chunker.fixed_tokens());
    let hashed = with_tokens.map(|chunk| {
        let lead = split.lead(chunk);
        HashedChunk {
            chunk: *chunk,
            hash: TextHash::of_both(&lead, split.text(chunk)),
            lead,
        }
    });
    let with_tokens: Vec<HashedChunk> = hashed.collect();
    match (
        with_tokens.is_empty(),
        split.chunks.first(),
        split.chunks.last(),
    ) {
        (true, Some(first), Some(last)) => Err(ChunkError::NoTokens {
            start: first.start,
            end: last.end,
        }
        .to_string()),
        _ => Ok(with_tokens),
    }
}

/// What to write for a note. If the provider cannot make some of its vectors now, that is nothing, or
/// with `without_vectors` its chunks, so that searches find it by keyword. With `had_chunks`, Postgres
/// may have chunks of it already.
pub fn write_of<'a>(
    chunked: &'a ChunkedNote,
    vectors: &Vectors,
    had_chunks: bool,
    without_vectors: bool,
) -> Result<PlannedWrite<'a>, Unwritable> {
    let hashed_chunks = chunked
        .hashed_chunks
        .as_ref()
        .map_err(|NoChunks { by, reason }| Unwritable::Fails {
            reason: reason.clone(),
            by: *by,
            // Chunking is deterministic: a retry would fail the same way.
            permanent: true,
        })?;
    let text = chunked.note.as_ref().map_or("", |note| note.text.as_str());
    let mut chunks = Vec::with_capacity(hashed_chunks.len());
    for (i, chunk) in hashed_chunks.iter().enumerate() {
        let Chunk {
            start, end, parent, ..
        } = chunk.chunk;
        let vector = match vector_of(chunk, vectors) {
            Ok(vector) => Some(vector),
            // Another chunk of the note may fail, and then the note fails instead of waiting.
            Err(Unwritable::Waits) => None,
            Err(fails) => return Err(fails),
        };
        chunks.push(ChunkWrite {
            chunk_id: chunk_id(chunked.note_id, i as u32),
            chunk_index: i as u32,
            start,
            end,
            parent: parent.map(|parent| (parent.start, parent.end)),
            lead: &chunk.lead,
            text: &text[start..end],
            hash: chunk.hash,
            vector,
        });
    }
    let all: Option<Vec<Arc<[f32]>>> = chunks.iter().map(|c| c.vector.clone()).collect();
    if all.is_none() && !without_vectors {
        return Err(Unwritable::Waits);
    }
    let rows = NoteWrite {
        note_id: chunked.note_id,
        text_hash: TextHash::of(text),
        access: match (&chunked.note, &all) {
            (Some(note), Some(all)) if !all.is_empty() => Some(note.labels.access()),
            _ => None,
        },
        pooled: all.and_then(|all| pooled::mean(&all)),
        chunks,
        live: chunked.live,
        labels: chunked.note.as_ref().map(|note| &note.labels),
        had_chunks,
    };
    Ok(PlannedWrite { chunked, rows })
}

impl PlannedWrite<'_> {
    /// Whether some chunks have no vector yet. Then the note stays due.
    pub fn awaits_vectors(&self) -> bool {
        self.rows.chunks.iter().any(|chunk| chunk.vector.is_none())
    }
}

/// The write for a note that is not live: no chunks, no vectors.
pub fn removal_of(chunked: &ChunkedNote) -> PlannedWrite<'_> {
    let rows = NoteWrite {
        note_id: chunked.note_id,
        text_hash: TextHash::of(""),
        pooled: None,
        access: None,
        chunks: Vec::new(),
        live: false,
        labels: None,
        had_chunks: true,
    };
    PlannedWrite { chunked, rows }
}

/// Whether it is known what becomes of a note: each of its texts has an outcome, or one of them
/// cannot get a vector.
pub fn is_decided(chunked: &ChunkedNote, vectors: &Vectors) -> bool {
    let Ok(hashed_chunks) = &chunked.hashed_chunks else {
        return true;
    };
    let mut is_complete = true;
    for chunk in hashed_chunks {
        match vectors.get(&chunk.hash) {
            Some(Err(EmbedError::Input { .. })) => return true,
            Some(_) => {}
            None => is_complete = false,
        }
    }
    is_complete
}

/// Counts chunks, reused vectors and saved tokens. The first chunk of a text in `newly_embedded` counts
/// as embedded and removes it from `newly_embedded`; every other chunk counts as reused.
pub fn count_work<'c>(
    chunked_notes: impl Iterator<Item = &'c ChunkedNote>,
    newly_embedded: &mut HashSet<TextHash>,
) -> Report {
    let mut report = Report::default();
    for chunked in chunked_notes {
        report.bytes += chunked
            .note
            .as_ref()
            .map_or(0, |note| note.text.len() as u64);
        for HashedChunk { chunk, hash, .. } in chunked.hashed_chunks.iter().flatten() {
            report.chunks += 1;
            if !newly_embedded.remove(hash) {
                report.reused += 1;
                report.tokens_saved += chunk.tokens as u64;
            }
        }
    }
    report
}

fn vector_of(chunk: &HashedChunk, vectors: &Vectors) -> Result<Arc<[f32]>, Unwritable> {
    let Chunk { start, end, .. } = chunk.chunk;
    match vectors.get(&chunk.hash) {
        Some(Ok(vector)) => Ok(vector.clone()),
        Some(Err(EmbedError::Input { reason })) => Err(Unwritable::Fails {
            reason: format!("its text at {start}..{end} cannot be embedded: {reason}"),
            by: FailedBy::Provider,
            permanent: false,
        }),
        _ => Err(Unwritable::Waits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blame_for(error: EmbedError) -> Unwritable {
        let hash = TextHash::of("text");
        let chunk = Chunk {
            start: 0,
            end: 4,
            tokens: 9,
            ..Chunk::default()
        };
        let vectors = Vectors::from([(hash, Err(error))]);
        vector_of(
            &HashedChunk {
                chunk,
                lead: String::new(),
                hash,
            },
            &vectors,
        )
        .expect_err("no vector")
    }

    #[test]
    fn during_an_outage_a_note_waits() {
        let reason = || "not now".to_owned();
        let unavailable = EmbedError::Unavailable {
            reason: reason(),
            retry_after: None,
            perhaps_input: false,
        };
        let refused = EmbedError::Config { reason: reason() };
        assert_eq!(blame_for(unavailable), Unwritable::Waits);
        assert_eq!(blame_for(refused), Unwritable::Waits);
    }

    #[test]
    fn a_rejected_text_is_its_notes_fault_and_may_work_later() {
        let error = EmbedError::Input {
            reason: "no".into(),
        };
        assert!(matches!(
            blame_for(error),
            Unwritable::Fails {
                permanent: false,
                ..
            }
        ));
    }
}
