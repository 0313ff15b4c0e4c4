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

/// Rows in one statement, and bytes of their texts or vectors. Over a slow network too, one
/// statement has to arrive within the time that a transaction may be idle.
const STATEMENT_ROWS: usize = 1_000;
const STATEMENT_BYTES: usize = 4 << 20;

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
            let note_ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
            let leased =
                sqlx::query_file!("sql/queries/lock_leases.sql", version, &note_ids, token)
                    .fetch_all(&mut *tx)
                    .await?;
            let indexed_before: HashSet<Uuid> = leased
                .iter()
                .filter(|row| row.was_indexed)
                .map(|row| row.note_id)
                .collect();
            let leased: HashSet<Uuid> = leased.into_iter().map(|row| row.note_id).collect();

            let with_rows: Vec<Uuid> = notes.iter().filter(|n| n.live).map(|n| n.note_id).collect();
            let present: HashSet<Uuid> =
                sqlx::query_file_scalar!("sql/queries/lock_notes.sql", &with_rows)
                    .fetch_all(&mut *tx)
                    .await?
                    .into_iter()
                    .collect();
            let written: Vec<&NoteWrite> = notes
                .iter()
                .copied()
                .filter(|n| {
                    leased.contains(&n.note_id) && (!n.live || present.contains(&n.note_id))
                })
                .collect();
            let live: Vec<&NoteWrite> = written.iter().copied().filter(|n| n.live).collect();

            let rewritten: Vec<&NoteWrite> = live
                .iter()
                .copied()
                .filter(|n| indexed_before.contains(&n.note_id))
                .collect();
            let before = embedded_hashes(&mut tx, version, &rewritten).await?;
            if !rewritten.is_empty() {
                delete_surplus(&mut tx, version, &rewritten).await?;
            }
            write_chunks(&mut tx, version, token, &live).await?;
            delete_old_vectors(&mut tx, version, &live, &before).await?;
            write_vectors(&mut tx, version, dim, &live, &before).await?;
            write_pooled(&mut tx, version, dim, &live).await?;
            record_revision(&mut tx, version, token, &written).await?;
            let collections =
                sqlx::query_file_scalar!("sql/queries/target_collections.sql", version)
                    .fetch_all(&mut *tx)
                    .await?;
            tx.commit().await?;
            Ok(Committed {
                notes: written.iter().map(|n| n.note_id).collect(),
                collections,
            })
        };
        // The commit of a note of many megabytes takes longer.
        self.measured_within(Limit::Batch, "commit", work).await
    }
}

type Tx = Transaction<'static, Postgres>;

/// The text hashes of those chunks of these notes that have a vector in Postgres, by chunk id.
async fn embedded_hashes(
    tx: &mut Tx,
    version: &str,
    notes: &[&NoteWrite<'_>],
) -> Result<HashMap<Uuid, Vec<u8>>, StoreError> {
    let chunks = notes.iter().flat_map(|n| &n.chunks);
    let ids: Vec<Uuid> = chunks.map(|c| c.chunk_id).collect();
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

async fn delete_surplus(
    tx: &mut Tx,
    version: &str,
    notes: &[&NoteWrite<'_>],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
    let counts: Vec<i32> = notes.iter().map(|n| n.chunks.len() as i32).collect();
    sqlx::query_file!(
        "sql/queries/delete_surplus_chunks.sql",
        version,
        &ids,
        &counts
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

async fn write_chunks(
    tx: &mut Tx,
    version: &str,
    token: i64,
    notes: &[&NoteWrite<'_>],
) -> Result<(), StoreError> {
    let chunks: Vec<(Uuid, &ChunkWrite)> = notes
        .iter()
        .flat_map(|n| n.chunks.iter().map(|c| (n.note_id, c)))
        .collect();
    for chunks in statements(&chunks, |(_, c)| c.text.len()) {
        let chunk_ids: Vec<Uuid> = chunks.iter().map(|(_, c)| c.chunk_id).collect();
        let note_ids: Vec<Uuid> = chunks.iter().map(|(note, _)| *note).collect();
        let indexes: Vec<i32> = chunks.iter().map(|(_, c)| c.chunk_index as i32).collect();
        let starts: Vec<i32> = chunks.iter().map(|(_, c)| c.start as i32).collect();
        let ends: Vec<i32> = chunks.iter().map(|(_, c)| c.end as i32).collect();
        let texts: Vec<&str> = chunks.iter().map(|(_, c)| c.text).collect();
        let hashes: Vec<&[u8]> = chunks.iter().map(|(_, c)| &c.hash.0[..]).collect();
        let awaits: Vec<bool> = chunks.iter().map(|(_, c)| c.vector.is_none()).collect();
        sqlx::query_file!(
            "sql/queries/upsert_chunks.sql",
            version,
            token,
            &chunk_ids,
            &note_ids,
            &indexes,
            &starts,
            &ends,
            &texts as _,
            &hashes as _,
            &awaits
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

/// Splits rows into statements, by number and `bytes`. A row that is too large gets a statement
/// of its own.
fn statements<T>(rows: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let mut sum = 0;
        let fitting = rest.iter().take(STATEMENT_ROWS).take_while(|row| {
            sum += bytes(row);
            sum <= STATEMENT_BYTES
        });
        let count = fitting.count().max(1);
        let (statement, later) = rest.split_at_checked(count)?;
        rest = later;
        Some(statement)
    })
}

/// Deletes the vectors of old texts of chunks that have no vector now.
async fn delete_old_vectors(
    tx: &mut Tx,
    version: &str,
    notes: &[&NoteWrite<'_>],
    before: &HashMap<Uuid, Vec<u8>>,
) -> Result<(), StoreError> {
    let chunks = notes.iter().flat_map(|n| &n.chunks);
    let ids: Vec<Uuid> = chunks
        .filter(|c| c.vector.is_none() && before.contains_key(&c.chunk_id))
        .map(|c| c.chunk_id)
        .collect();
    if !ids.is_empty() {
        sqlx::query_file!("sql/queries/delete_vectors.sql", version, &ids)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}

/// Writes the vectors of chunks whose text has changed.
async fn write_vectors(
    tx: &mut Tx,
    version: &str,
    dim: usize,
    notes: &[&NoteWrite<'_>],
    before: &HashMap<Uuid, Vec<u8>>,
) -> Result<(), StoreError> {
    let changed = |c: &&ChunkWrite| {
        before
            .get(&c.chunk_id)
            .is_none_or(|old| old[..] != c.hash.0)
    };
    let changed: Vec<(Uuid, &[f32])> = notes
        .iter()
        .flat_map(|n| &n.chunks)
        .filter(changed)
        .filter_map(|c| Some((c.chunk_id, c.vector.as_deref()?)))
        .collect();
    for rows in statements(&changed, |(_, vector)| size_of_val(*vector)) {
        let ids: Vec<Uuid> = rows.iter().map(|(id, _)| *id).collect();
        let vectors: Vec<Vector> = rows
            .iter()
            .map(|(_, vector)| Vector::from(vector.to_vec()))
            .collect();
        sqlx::query_file!(
            "sql/queries/upsert_vectors.sql",
            version,
            dim as i32,
            &ids,
            &vectors as _
        )
        .execute(&mut **tx)
        .await?;
    }
    Ok(())
}

async fn write_pooled(
    tx: &mut Tx,
    version: &str,
    dim: usize,
    notes: &[&NoteWrite<'_>],
) -> Result<(), StoreError> {
    let pooled = |n: &&NoteWrite| Some((n.note_id, Vector::from(n.pooled.clone()?)));
    let (ids, vectors): (Vec<Uuid>, Vec<Vector>) = notes.iter().filter_map(pooled).unzip();
    if !ids.is_empty() {
        sqlx::query_file!(
            "sql/queries/upsert_pooled.sql",
            version,
            dim as i32,
            &ids,
            &vectors as _
        )
        .execute(&mut **tx)
        .await?;
    }
    let without: Vec<Uuid> = notes
        .iter()
        .filter(|n| n.pooled.is_none())
        .map(|n| n.note_id)
        .collect();
    if !without.is_empty() {
        sqlx::query_file!("sql/queries/delete_pooled.sql", version, &without)
            .execute(&mut **tx)
            .await?;
    }
    Ok(())
}

async fn record_revision(
    tx: &mut Tx,
    version: &str,
    token: i64,
    notes: &[&NoteWrite<'_>],
) -> Result<(), StoreError> {
    let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
    let hashes: Vec<&[u8]> = notes.iter().map(|n| &n.text_hash.0[..]).collect();
    let counts: Vec<i32> = notes.iter().map(|n| n.chunks.len() as i32).collect();
    let access: Vec<Option<&[u8]>> = notes
        .iter()
        .map(|n| n.access.as_ref().map(|hash| &hash.0[..]))
        .collect();
    sqlx::query_file!(
        "sql/queries/record_revision.sql",
        version,
        token,
        &ids,
        &hashes as _,
        &counts,
        &access as _
    )
    .execute(&mut **tx)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_in_one_statement_and_no_statement_is_too_large() {
        let sizes = |rows: &[usize]| -> Vec<usize> {
            statements(rows, |bytes| *bytes).map(<[_]>::len).collect()
        };
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[1; 2_500]), [1_000, 1_000, 500]);
        let half = STATEMENT_BYTES / 2;
        assert_eq!(sizes(&[half, half, 1, 3 * half, 1]), [2, 1, 1, 1]);
    }
}
