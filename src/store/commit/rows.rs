//! The rows that a commit writes, statement by statement.

use pgvector::Vector;
use sqlx::PgExecutor;
use uuid::Uuid;

use super::locked::Locked;
use super::{AccessColumns, ChunkWrite, NoteWrite, Target};
use crate::store::StoreError;

/// Bytes of rows in one statement, about. Over a slow network too, one statement has to arrive
/// within the time that a transaction may be idle.
const STATEMENT_BYTES: usize = 4 << 20;

/// Bytes of a row without its text and its vector, about.
const ROW_BYTES: usize = 128;

/// The rows of one statement.
#[derive(Debug, Default)]
pub(super) struct Rows<'a> {
    chunks: Vec<(Uuid, &'a ChunkWrite<'a>)>,
    vectors: Vec<(Uuid, &'a [f32])>,
    pooled: Vec<(Uuid, &'a [f32])>,
    /// About, all together.
    bytes: usize,
    states: Vec<&'a NoteWrite<'a>>,
    /// All notes of the commit, the same in each statement.
    all: Vec<&'a NoteWrite<'a>>,
    /// Notes that may have had more chunks.
    rewritten: Vec<&'a NoteWrite<'a>>,
    /// Chunks whose vector is that of an old text.
    without_vector: Vec<Uuid>,
    /// Notes that have no pooled vector now.
    without_pooled: Vec<Uuid>,
}

/// Splits the rows of the locked notes into statements, at least one. A row that is too large gets a
/// statement of its own. Chunks that did not change and vectors of texts that did not change are
/// left out.
pub(super) fn statements<'a>(notes: &'a [&NoteWrite<'a>], locked: &Locked) -> Vec<Rows<'a>> {
    let mut statements = vec![Rows::default()];
    let written: Vec<&NoteWrite> = notes
        .iter()
        .copied()
        .filter(|n| locked.notes.contains(&n.note_id))
        .collect();
    let live = || written.iter().copied().filter(|n| n.live);
    for note in live() {
        // A row of any other note may be wrong: a verify requeues such notes.
        let is_current = locked.current.contains_key(&note.note_id);
        let is_written = |chunk: &&ChunkWrite| !(is_current && locked.has(chunk));
        for chunk in note.chunks.iter().filter(is_written) {
            let vector = chunk.vector.as_deref();
            let vector = vector.filter(|_| !locked.has_vector_of(chunk));
            let bytes = chunk.lead.len() + chunk.text.len() + vector.map_or(0, size_of_val);
            let rows = with_room(&mut statements, bytes);
            rows.chunks.push((note.note_id, chunk));
            // Beside its chunk or after it, because of the foreign key.
            rows.vectors.extend(vector.map(|v| (chunk.chunk_id, v)));
        }
        // It is the mean of the same vectors.
        let is_unchanged = locked.unchanged(note).is_some();
        if let Some(pooled) = note.pooled.as_ref().filter(|_| !is_unchanged) {
            let rows = with_room(&mut statements, size_of_val(&**pooled));
            rows.pooled.push((note.note_id, pooled));
        }
    }
    let last = statements.last_mut().expect("there is always a statement");
    last.rewritten = live()
        .filter(|n| locked.indexed.contains(&n.note_id))
        .collect();
    last.without_vector = live()
        .flat_map(|n| &n.chunks)
        .filter(|c| c.vector.is_none() && locked.chunks.contains_key(&c.chunk_id))
        .map(|c| c.chunk_id)
        .collect();
    last.without_pooled = live()
        .filter(|n| n.pooled.is_none())
        .map(|n| n.note_id)
        .collect();
    last.states.clone_from(&written);
    for rows in &mut statements {
        rows.all.clone_from(&written);
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

/// The notes that a statement has written, those that were committed before, and the collections that must have their
/// points.
pub(super) struct Written {
    pub(super) notes: Vec<Uuid>,
    pub(super) indexed: Vec<Uuid>,
    pub(super) targets: Vec<Target>,
}

/// Writes the rows. `None` if the connection does not have the settings of [`crate::store::Store::begin`].
pub(super) async fn write(
    connection: impl PgExecutor<'_>,
    version: &str,
    dim: usize,
    token: i64,
    rows: &Rows<'_>,
) -> Result<Option<Written>, StoreError> {
    let chunks = || rows.chunks.iter().map(|(_, chunk)| *chunk);
    let chunk_notes: Vec<Uuid> = rows.chunks.iter().map(|(note, _)| *note).collect();
    let chunk_ids: Vec<Uuid> = chunks().map(|c| c.chunk_id).collect();
    let indexes: Vec<i32> = chunks().map(|c| c.chunk_index as i32).collect();
    let starts: Vec<i32> = chunks().map(|c| c.start as i32).collect();
    let ends: Vec<i32> = chunks().map(|c| c.end as i32).collect();
    let parents = || chunks().map(|c| c.parent);
    let parent_starts: Vec<Option<i32>> = parents().map(|p| Some(p?.0 as i32)).collect();
    let parent_ends: Vec<Option<i32>> = parents().map(|p| Some(p?.1 as i32)).collect();
    let leads: Vec<&str> = chunks().map(|c| c.lead).collect();
    let texts: Vec<&str> = chunks().map(|c| c.text).collect();
    let hashes: Vec<&[u8]> = chunks().map(|c| &c.hash.0[..]).collect();
    let awaits: Vec<bool> = chunks().map(|c| c.vector.is_none()).collect();
    let (vector_ids, vectors) = columns(&rows.vectors);
    let (pooled_ids, pooled) = columns(&rows.pooled);
    let states = || rows.states.iter();
    let state_ids: Vec<Uuid> = states().map(|n| n.note_id).collect();
    let text_hashes: Vec<&[u8]> = states().map(|n| &n.text_hash.0[..]).collect();
    let counts: Vec<i32> = states().map(|n| n.chunks.len() as i32).collect();
    let access = states().map(|n| n.access.as_ref());
    let access: Vec<Option<&[u8]>> = access.map(|hash| Some(&hash?.0[..])).collect();
    let rewritten = || rows.rewritten.iter();
    let rewritten_ids: Vec<Uuid> = rewritten().map(|n| n.note_id).collect();
    let rewritten_counts: Vec<i32> = rewritten().map(|n| n.chunks.len() as i32).collect();
    let all: Vec<Uuid> = rows.all.iter().map(|n| n.note_id).collect();
    let live: Vec<bool> = rows.all.iter().map(|n| n.live).collect();
    let AccessColumns([tenants, projects, agents, scopes]) = AccessColumns::of(&rows.all);
    let written = sqlx::query_file!(
        "sql/queries/commit_notes.sql",
        version,
        dim as i32,
        token,
        &chunk_ids,
        &chunk_notes,
        &indexes,
        &starts,
        &ends,
        &texts as _,
        &hashes as _,
        &awaits,
        &vector_ids,
        &vectors as _,
        &pooled_ids,
        &pooled as _,
        &state_ids,
        &text_hashes as _,
        &counts,
        &access as _,
        &rewritten_ids,
        &rewritten_counts,
        &rows.without_vector,
        &rows.without_pooled,
        &all,
        &live,
        &tenants as _,
        &projects as _,
        &agents as _,
        &scopes as _,
        &leads as _,
        &parent_starts as _,
        &parent_ends as _,
    )
    .fetch_optional(connection)
    .await?;
    Ok(written.map(|row| {
        let targets = row.collections.into_iter().zip(row.building);
        let targets = targets.map(|(collection, is_building)| Target {
            collection,
            is_building,
        });
        Written {
            notes: row.notes,
            indexed: row.indexed,
            targets: targets.collect(),
        }
    }))
}

fn columns(rows: &[(Uuid, &[f32])]) -> (Vec<Uuid>, Vec<Vector>) {
    rows.iter()
        .map(|(id, vector)| (*id, Vector::from(vector.to_vec())))
        .unzip()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::locked::{Current, LockedChunk, unchanged};
    use super::*;
    use crate::note::TextHash;

    fn note(chunks: Vec<ChunkWrite<'_>>) -> NoteWrite<'_> {
        NoteWrite {
            note_id: Uuid::nil(),
            text_hash: TextHash::of(""),
            chunks,
            pooled: Some(vec![0.0; 4]),
            access: None,
            live: true,
            labels: None,
            had_chunks: false,
        }
    }

    fn chunk(text: &str) -> ChunkWrite<'_> {
        ChunkWrite {
            lead: "",
            chunk_id: Uuid::from_u128(text.len() as u128),
            chunk_index: 0,
            start: 0,
            end: text.len(),
            parent: None,
            text,
            hash: TextHash::of(text),
            vector: Some(Arc::from([0.0; 4])),
        }
    }

    /// Notes that can be written, and have the chunks of `before`.
    fn locked(notes: &[&NoteWrite], before: &[&ChunkWrite]) -> Locked {
        let chunk = |chunk: &&ChunkWrite| {
            let locked = LockedChunk {
                hash: chunk.hash.0.to_vec(),
                start: chunk.start,
                end: chunk.end,
                parent: chunk.parent,
            };
            (chunk.chunk_id, locked)
        };
        Locked {
            notes: notes.iter().map(|n| n.note_id).collect(),
            chunks: before.iter().map(chunk).collect(),
            ..Locked::default()
        }
    }

    /// The number of chunks, vectors, pooled vectors and states of each statement.
    fn sizes(notes: &[&NoteWrite], before: &[&ChunkWrite]) -> Vec<[usize; 4]> {
        sizes_of(notes, &locked(notes, before))
    }

    fn sizes_of(notes: &[&NoteWrite], locked: &Locked) -> Vec<[usize; 4]> {
        let size = |rows: &Rows| {
            let Rows {
                chunks,
                vectors,
                pooled,
                states,
                ..
            } = rows;
            [chunks.len(), vectors.len(), pooled.len(), states.len()]
        };
        statements(notes, locked).iter().map(size).collect()
    }

    #[test]
    fn every_row_is_in_one_statement_and_no_statement_is_too_large() {
        assert_eq!(sizes(&[], &[]), [[0, 0, 0, 0]]);
        let half = "x".repeat(STATEMENT_BYTES / 2 - 1_000);
        let small = note(vec![chunk("one"), chunk("three")]);
        let large = note(vec![chunk(&half), chunk(&half), chunk("one")]);
        assert_eq!(sizes(&[&small, &small], &[]), [[4, 4, 2, 2]]);
        assert_eq!(sizes(&[&large, &small], &[]), [[5, 5, 2, 2]]);
        assert_eq!(sizes(&[&large, &large], &[]), [[3, 3, 1, 0], [3, 3, 1, 2]]);
        let huge = "x".repeat(STATEMENT_BYTES + 1);
        let huge = note(vec![chunk("one"), chunk(&huge), chunk("three")]);
        assert_eq!(
            sizes(&[&huge], &[]),
            [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
        );
    }

    #[test]
    fn what_did_not_change_is_not_sent_again() {
        let texts = ["same", "moved", "fostered", "changed"];
        let [same, moved, fostered, new] = texts.map(chunk);
        let mut elsewhere = moved.clone();
        elsewhere.end += 1;
        let mut in_another_parent = fostered.clone();
        in_another_parent.parent = Some((0, 99));
        let mut other_text = new.clone();
        other_text.hash = TextHash::of("another");
        let before = [&same.clone(), &elsewhere, &in_another_parent, &other_text];
        let note = note(vec![same, moved, fostered, new]);
        let mut locked = locked(&[&note], &before);
        assert_eq!(sizes_of(&[&note], &locked), [[4, 1, 1, 1]]);
        let current = Current {
            revision: 7,
            chunk_count: 4,
        };
        locked.current.insert(note.note_id, current);
        assert_eq!(sizes_of(&[&note], &locked), [[3, 1, 1, 1]]);
    }

    #[test]
    fn a_note_is_unchanged_if_its_points_are_of_exactly_its_chunks() {
        let of = |note: &NoteWrite, before: &[&ChunkWrite], chunk_count| {
            let mut locked = locked(&[note], before);
            let current = Current {
                revision: 7,
                chunk_count,
            };
            locked.current.insert(note.note_id, current);
            let sent = statements(&[note], &locked)
                .iter()
                .map(|rows| rows.pooled.len())
                .sum();
            (
                unchanged(&[note], &locked).get(&note.note_id).copied(),
                sent,
            )
        };
        let (one, three) = (chunk("one"), chunk("three"));
        let whole = note(vec![one.clone(), three.clone()]);
        assert_eq!(of(&whole, &[&one, &three], 2), (Some(7), 0));
        assert_eq!(of(&whole, &[&one], 2), (None, 1));
        // It had one more chunk.
        assert_eq!(of(&whole, &[&one, &three], 3), (None, 1));
        let awaits = ChunkWrite {
            vector: None,
            ..three.clone()
        };
        let awaits = note(vec![one.clone(), awaits]);
        assert_eq!(of(&awaits, &[&one, &three], 2), (None, 1));
        let gone = NoteWrite {
            live: false,
            ..note(vec![one.clone()])
        };
        assert_eq!(of(&gone, &[&one], 1), (None, 0));
        // A commit that no ack has followed.
        let locked = locked(&[&whole], &[&one, &three]);
        assert!(unchanged(&[&whole], &locked).is_empty());
    }

    #[test]
    fn a_note_that_is_not_live_has_no_rows_but_a_state() {
        let gone = NoteWrite {
            live: false,
            ..note(vec![chunk("one")])
        };
        assert_eq!(sizes(&[&gone], &[]), [[0, 0, 0, 1]]);
    }

    #[test]
    fn a_note_that_is_not_locked_is_not_written() {
        let note = note(vec![chunk("one")]);
        let notes = [&note];
        let statements = statements(&notes, &Locked::default());
        let rows = &statements[0];
        assert!(rows.chunks.is_empty() && rows.pooled.is_empty() && rows.states.is_empty());
    }
}
