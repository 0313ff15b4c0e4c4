//! Estimates the cost of a version, before anything is written.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use crate::chunk::{self, NoteChunker, Subject};
use crate::note::TextHash;
use crate::serving::Progress;
use crate::store::{LiveText, Store, StoreError, Version};
use crate::worker::{self, HashedChunk};

/// Notes, and bytes of their texts, that an estimate holds in memory at once.
const PAGE_NOTES: usize = 1_000;
const PAGE_BYTES: usize = 4 << 20;

/// The cost of building a version.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Estimate {
    /// The version that the configuration asks for.
    pub version: String,
    /// Live notes.
    pub notes: u64,
    /// Chunks that they would be split into.
    pub chunks: u64,
    /// Chunks whose text has a vector already.
    pub known: u64,
    /// Texts that would be embedded. An upper bound: the same text in two pages of notes is
    /// counted twice.
    pub to_embed: u64,
    /// Tokens of those texts, prefix included.
    pub tokens: u64,
}

/// Reads and chunks every live note and counts; writes nothing. `progress` counts notes.
pub async fn estimate(
    store: &Store,
    chunker: &Arc<NoteChunker>,
    version: &Version,
    progress: &Progress,
) -> Result<Estimate, StoreError> {
    let mut estimate = Estimate {
        version: version.name.clone(),
        ..Estimate::default()
    };
    let live = store.note_counts(&version.name).await?.live;
    progress.set(0, live as u64);
    let mut after = Uuid::nil();
    loop {
        let page = store.live_texts(after, PAGE_NOTES, PAGE_BYTES).await?;
        let Some(last) = page.last() else {
            return Ok(estimate);
        };
        after = last.note_id;
        let notes = page.len() as u64;
        let cut = {
            let chunker = chunker.clone();
            move || -> Vec<HashedChunk> {
                let chunks = |note: &LiveText| {
                    let cuts = note.cuts.as_deref();
                    let cuts = cuts.map(|json| chunk::cuts(json, &note.text));
                    let subject = Subject {
                        kind: &note.kind,
                        title: note.title.as_deref(),
                        cuts: &cuts.and_then(Result::ok).unwrap_or_default(),
                        updated_at: note.updated_at,
                    };
                    worker::hashed_chunks(&chunker, &note.text, subject).ok()
                };
                // A note that cannot be chunked is dead-lettered and never embedded.
                page.iter().filter_map(chunks).flatten().collect()
            }
        };
        let hashed_chunks = tokio::task::spawn_blocking(cut)
            .await
            .expect("a panic is caught note by note");
        let hashes: Vec<TextHash> = hashed_chunks.iter().map(|chunk| chunk.hash).collect();
        let mut known: HashSet<TextHash> = store
            .known_hashes(version, &hashes)
            .await?
            .into_iter()
            .collect();
        estimate.notes += notes;
        for HashedChunk { chunk, hash, .. } in hashed_chunks {
            estimate.chunks += 1;
            if !known.insert(hash) {
                estimate.known += 1;
            } else {
                estimate.to_embed += 1;
                estimate.tokens += chunk.tokens as u64;
            }
        }
        progress.add(notes);
    }
}
