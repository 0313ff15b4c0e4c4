//! What Postgres has of the notes of a commit.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use super::{AccessColumns, ChunkWrite, NoteWrite};
use crate::store::{StoreError, Transaction};

/// What a lock of the notes has found.
#[derive(Debug, Default)]
pub(super) struct Locked {
    /// The notes that can be written.
    pub(super) notes: HashSet<Uuid>,
    /// Those that were committed before.
    pub(super) indexed: HashSet<Uuid>,
    /// Those whose points equal their chunks.
    pub(super) current: HashMap<Uuid, Current>,
    /// Those of their chunks that have a vector, by chunk id.
    pub(super) chunks: HashMap<Uuid, LockedChunk>,
}

/// The points of a note: all that its last commit asked for, and no others.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) revision: i64,
    pub(super) chunk_count: usize,
}

/// A chunk as the last commit left it.
#[derive(Debug)]
pub(super) struct LockedChunk {
    pub(super) hash: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) parent: Option<(usize, usize)>,
}

impl Locked {
    pub(super) fn has_vector_of(&self, chunk: &ChunkWrite<'_>) -> bool {
        let before = self.chunks.get(&chunk.chunk_id);
        before.is_some_and(|before| before.hash[..] == chunk.hash.0)
    }

    /// Whether a commit has nothing to write for a chunk of a note whose points equal its chunks.
    pub(super) fn has(&self, chunk: &ChunkWrite<'_>) -> bool {
        chunk.vector.is_some()
            && self.has_vector_of(chunk)
            && self.chunks.get(&chunk.chunk_id).is_some_and(|before| {
                (before.start, before.end) == (chunk.start, chunk.end)
                    && before.parent == chunk.parent
            })
    }

    /// The revision of the points of a note, if they are of exactly these chunks.
    pub(super) fn unchanged(&self, note: &NoteWrite<'_>) -> Option<i64> {
        let current = self.current.get(&note.note_id)?;
        let is_same = note.live
            && !note.chunks.is_empty()
            && note.chunks.len() == current.chunk_count
            && note.chunks.iter().all(|chunk| self.has(chunk));
        is_same.then_some(current.revision)
    }
}

pub(super) async fn lock(
    tx: &mut Transaction,
    version: &str,
    token: i64,
    notes: &[&NoteWrite<'_>],
) -> Result<Locked, StoreError> {
    let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
    let live: Vec<bool> = notes.iter().map(|n| n.live).collect();
    let rewritten = notes.iter().filter(|n| n.had_chunks);
    let chunks: Vec<Uuid> = rewritten
        .flat_map(|n| &n.chunks)
        .map(|c| c.chunk_id)
        .collect();
    let AccessColumns([tenants, projects, agents, scopes]) = AccessColumns::of(notes);
    let locked = sqlx::query_file!(
        "sql/queries/lock_notes.sql",
        version,
        token,
        &ids,
        &live,
        &chunks,
        &tenants as _,
        &projects as _,
        &agents as _,
        &scopes as _
    )
    .fetch_one(&mut **tx)
    .await?;
    let current = locked.revisions.into_iter().zip(locked.chunk_counts);
    let current = current.map(|(revision, chunk_count)| Current {
        revision,
        chunk_count: chunk_count as usize,
    });
    let offsets = locked.starts.into_iter().zip(locked.ends);
    let parents = locked.parent_starts.into_iter().zip(locked.parent_ends);
    let chunks = locked.hashes.into_iter().zip(offsets.zip(parents));
    let chunks = chunks.map(|(hash, ((start, end), parent))| LockedChunk {
        hash,
        start: start as usize,
        end: end as usize,
        parent: Option::zip(parent.0, parent.1).map(|(start, end)| (start as usize, end as usize)),
    });
    Ok(Locked {
        notes: locked.notes.into_iter().collect(),
        indexed: locked.indexed.into_iter().collect(),
        current: locked.current.into_iter().zip(current).collect(),
        chunks: locked.chunks.into_iter().zip(chunks).collect(),
    })
}

pub(super) fn unchanged(notes: &[&NoteWrite<'_>], locked: &Locked) -> HashMap<Uuid, i64> {
    let notes = notes.iter().filter(|n| locked.notes.contains(&n.note_id));
    let revision = |note: &&NoteWrite| Some((note.note_id, locked.unchanged(note)?));
    notes.filter_map(revision).collect()
}
