//! The transaction that commits chunks and vectors of a batch of notes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pgvector::Vector;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::{Limit, Store, StoreError};
use crate::note::{AccessHash, TextHash};

/// The new chunks and vectors of a note.
#[derive(Debug)]
pub struct NoteWrite<'a> {
    /// The note.
    pub note_id: Uuid,
    /// The hash of the whole text.
    pub text_hash: TextHash,
    /// Its chunks in order. Without chunks the note leaves the index.
    pub chunks: Vec<ChunkWrite<'a>>,
    /// The mean of the chunks' vectors; `None` when there are no chunks, or one has no vector.
    pub pooled: Option<Vec<f32>>,
    /// The hash of the access labels of its points; `None` when it gets no points, or points of a
    /// chunk without a vector.
    pub access: Option<AccessHash>,
    /// Whether the note is live. The chunks of a note that is not live stay as they are: if it
    /// becomes live again, its text need not be embedded again.
    pub live: bool,
    /// Whether Postgres may have chunks of it already.
    pub had_chunks: bool,
}

/// A chunk and its vector.
#[derive(Debug, Clone)]
pub struct ChunkWrite<'a> {
    /// See [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// 0 for the first chunk of the note.
    pub chunk_index: u32,
    /// Byte offset of the first byte in the note's text.
    pub start: usize,
    /// Byte offset behind the last byte.
    pub end: usize,
    /// `note.text[start..end]`
    pub text: &'a str,
    /// The hash of `text`.
    pub hash: TextHash,
    /// The vector of `text`; `None` while the provider cannot make it.
    pub vector: Option<Arc<[f32]>>,
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// The notes that were written. The others lost their lease, or an application holds or
    /// deletes their row; a later claim handles them.
    pub notes: HashSet<Uuid>,
    /// The collections that must have the points now.
    pub collections: Vec<String>,
}

/// Bytes of rows in one statement, about. Over a slow network too, one statement has to arrive
/// within the time that a transaction may be idle.
const STATEMENT_BYTES: usize = 4 << 20;

/// Bytes of a row without its text and its vector, about.
const ROW_BYTES: usize = 128;

impl Store {
    /// Writes chunks, vectors and pooled vectors of all notes whose lease is still held under
    /// `token`, in one transaction.
    pub async fn commit(
        &self,
        version: &str,
        dim: usize,
        token: i64,
        notes: &[&NoteWrite<'_>],
    ) -> Result<Committed, StoreError> {
        let work = async {
            let mut tx = self.begin().await?;
            let before = embedded_hashes(&mut tx, version, notes).await?;
            let mut committed = None;
            for rows in statements(notes, &before) {
                committed = Some(write(&mut tx, version, dim, token, notes, &rows).await?);
            }
            tx.commit().await?;
            Ok(committed.expect("there is always a statement"))
        };
        // The commit of a note of many megabytes takes longer.
        self.measured_within(Limit::Batch, "commit", work).await
    }
}

type Tx = Transaction<'static, Postgres>;

/// The text hashes of those chunks that Postgres has with a vector, by chunk id. No other
/// worker can change them while the lease is held, and without it nothing is written.
async fn embedded_hashes(
    tx: &mut Tx,
    version: &str,
    notes: &[&NoteWrite<'_>],
) -> Result<HashMap<Uuid, Vec<u8>>, StoreError> {
    let rewritten = notes.iter().filter(|n| n.live && n.had_chunks);
    let ids: Vec<Uuid> = rewritten
        .flat_map(|n| &n.chunks)
        .map(|c| c.chunk_id)
        .collect();
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = sqlx::query_file!("sql/queries/chunk_hashes.sql", version, &ids)
        .fetch_all(&mut **tx)
        .await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.chunk_id, row.text_sha256))
        .collect())
}

/// Rows of one statement. Each has the place of its note among the notes of the commit, from 1.
#[derive(Debug, Default)]
struct Rows<'a> {
    chunks: Vec<(i32, &'a ChunkWrite<'a>)>,
    vectors: Vec<(i32, Uuid, &'a [f32])>,
    pooled: Vec<(i32, &'a [f32])>,
    bytes: usize,
}

/// Splits the rows of `notes` into statements, at least one, without the vectors of texts that
/// are the same as `before`. A row that is too large gets a statement of its own.
fn statements<'a>(notes: &'a [&NoteWrite<'a>], before: &HashMap<Uuid, Vec<u8>>) -> Vec<Rows<'a>> {
    let mut statements = vec![Rows::default()];
    for (place, note) in (1..).zip(notes).filter(|(_, note)| note.live) {
        for chunk in &note.chunks {
            let has_changed = before
                .get(&chunk.chunk_id)
                .is_none_or(|old| old[..] != chunk.hash.0);
            let vector = chunk.vector.as_deref().filter(|_| has_changed);
            let rows = with_room(
                &mut statements,
                chunk.text.len() + vector.map_or(0, size_of_val),
            );
            rows.chunks.push((place, chunk));
            rows.vectors
                .extend(vector.map(|vector| (place, chunk.chunk_id, vector)));
        }
        if let Some(pooled) = &note.pooled {
            with_room(&mut statements, size_of_val(&**pooled))
                .pooled
                .push((place, pooled));
        }
    }
    statements
}

/// The statement that a row of so many bytes goes into.
fn with_room<'s, 'a>(statements: &'s mut Vec<Rows<'a>>, bytes: usize) -> &'s mut Rows<'a> {
    let last = statements.last().map_or(0, |rows| rows.bytes);
    if last > 0 && last + ROW_BYTES + bytes > STATEMENT_BYTES {
        statements.push(Rows::default());
    }
    let rows = statements.last_mut().expect("there is always a statement");
    rows.bytes += ROW_BYTES + bytes;
    rows
}

async fn write(
    tx: &mut Tx,
    version: &str,
    dim: usize,
    token: i64,
    notes: &[&NoteWrite<'_>],
    rows: &Rows<'_>,
) -> Result<Committed, StoreError> {
    let note_ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
    let live: Vec<bool> = notes.iter().map(|n| n.live).collect();
    let text_hashes: Vec<&[u8]> = notes.iter().map(|n| &n.text_hash.0[..]).collect();
    let counts: Vec<i32> = notes.iter().map(|n| n.chunks.len() as i32).collect();
    let access = notes.iter().map(|n| n.access.as_ref());
    let access: Vec<Option<&[u8]>> = access.map(|hash| Some(&hash?.0[..])).collect();
    let have_pooled: Vec<bool> = notes.iter().map(|n| n.pooled.is_some()).collect();
    let (pooled_places, pooled): (Vec<i32>, Vec<Vector>) = rows
        .pooled
        .iter()
        .map(|(place, vector)| (*place, Vector::from(vector.to_vec())))
        .unzip();
    let chunks = || rows.chunks.iter().map(|(_, chunk)| *chunk);
    let chunk_places: Vec<i32> = rows.chunks.iter().map(|(place, _)| *place).collect();
    let chunk_ids: Vec<Uuid> = chunks().map(|c| c.chunk_id).collect();
    let indexes: Vec<i32> = chunks().map(|c| c.chunk_index as i32).collect();
    let starts: Vec<i32> = chunks().map(|c| c.start as i32).collect();
    let ends: Vec<i32> = chunks().map(|c| c.end as i32).collect();
    let texts: Vec<&str> = chunks().map(|c| c.text).collect();
    let hashes: Vec<&[u8]> = chunks().map(|c| &c.hash.0[..]).collect();
    let awaits: Vec<bool> = chunks().map(|c| c.vector.is_none()).collect();
    let vector_places: Vec<i32> = rows.vectors.iter().map(|(place, ..)| *place).collect();
    let vector_ids: Vec<Uuid> = rows.vectors.iter().map(|(_, id, _)| *id).collect();
    let vectors = rows.vectors.iter();
    let vectors: Vec<Vector> = vectors
        .map(|(.., vector)| Vector::from(vector.to_vec()))
        .collect();
    let committed = sqlx::query_file!(
        "sql/queries/commit_notes.sql",
        version,
        dim as i32,
        token,
        &note_ids,
        &live,
        &text_hashes as _,
        &counts,
        &access as _,
        &have_pooled,
        &pooled_places,
        &pooled as _,
        &chunk_ids,
        &chunk_places,
        &indexes,
        &starts,
        &ends,
        &texts as _,
        &hashes as _,
        &awaits,
        &vector_ids,
        &vector_places,
        &vectors as _,
    )
    .fetch_one(&mut **tx)
    .await?;
    Ok(Committed {
        notes: committed.notes.into_iter().collect(),
        collections: committed.collections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(chunks: Vec<ChunkWrite<'_>>) -> NoteWrite<'_> {
        NoteWrite {
            note_id: Uuid::nil(),
            text_hash: TextHash::of(""),
            chunks,
            pooled: Some(vec![0.0; 4]),
            access: None,
            live: true,
            had_chunks: false,
        }
    }

    fn chunk(text: &str) -> ChunkWrite<'_> {
        ChunkWrite {
            chunk_id: Uuid::from_u128(text.len() as u128),
            chunk_index: 0,
            start: 0,
            end: text.len(),
            text,
            hash: TextHash::of(text),
            vector: Some(Arc::from([0.0; 4])),
        }
    }

    /// The number of chunks, vectors and pooled vectors of each statement.
    fn sizes(notes: &[&NoteWrite], before: &HashMap<Uuid, Vec<u8>>) -> Vec<[usize; 3]> {
        let size = |rows: &Rows| [rows.chunks.len(), rows.vectors.len(), rows.pooled.len()];
        statements(notes, before).iter().map(size).collect()
    }

    #[test]
    fn every_row_is_in_one_statement_and_no_statement_is_too_large() {
        let before = HashMap::new();
        assert_eq!(sizes(&[], &before), [[0, 0, 0]]);
        let half = "x".repeat(STATEMENT_BYTES / 2 - 1_000);
        let small = note(vec![chunk("one"), chunk("three")]);
        let large = note(vec![chunk(&half), chunk(&half), chunk("one")]);
        assert_eq!(sizes(&[&small, &small], &before), [[4, 4, 2]]);
        assert_eq!(sizes(&[&large, &small], &before), [[5, 5, 2]]);
        assert_eq!(sizes(&[&large, &large], &before), [[3, 3, 1], [3, 3, 1]]);
        let huge = "x".repeat(STATEMENT_BYTES + 1);
        let huge = note(vec![chunk("one"), chunk(&huge), chunk("three")]);
        assert_eq!(sizes(&[&huge], &before), [[1, 1, 0], [1, 1, 0], [1, 1, 1]]);
    }

    #[test]
    fn a_vector_of_the_same_text_is_not_sent_again() {
        let (same, new) = (chunk("same"), chunk("changed"));
        let before = HashMap::from([
            (same.chunk_id, same.hash.0.to_vec()),
            (new.chunk_id, TextHash::of("another").0.to_vec()),
        ]);
        assert_eq!(sizes(&[&note(vec![same, new])], &before), [[2, 1, 1]]);
    }

    #[test]
    fn a_note_that_is_not_live_has_no_rows() {
        let gone = NoteWrite {
            live: false,
            ..note(vec![chunk("one")])
        };
        assert_eq!(sizes(&[&gone], &HashMap::new()), [[0, 0, 0]]);
    }
}
