//! What a search reads: chunks of live notes, the text around them, and without the index the
//! candidates too.

use std::collections::{HashMap, HashSet};
use std::iter;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::unreadable::read_those_that_can_be;
use super::{Shown, Store, StoreError, Transaction};
use crate::unicode::{self, decomposed};

/// A longer note is shown without the text around its chunks: Postgres would read all of it.
const MAX_CONTEXT_BYTES: i32 = 1 << 20;

/// What a search without the index scans at most, the newest notes first.
#[derive(Debug, Clone, Copy)]
pub struct Scan {
    notes: i64,
    chunks: i64,
}

impl Scan {
    /// A processor is busy with it for one to five seconds: the more of the words a chunk has, the
    /// longer.
    pub const FULL: Self = Self {
        notes: 10_000,
        chunks: 20_000,
    };

    /// Takes a tenth of that.
    pub const SMALL: Self = Self {
        notes: 1_000,
        chunks: 2_000,
    };
}

/// A chunk of a live note, as a search result needs it.
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct ChunkText {
    pub chunk_id: Uuid,
    pub note_id: Uuid,
    pub note: FoundNote,
    pub chunk_index: u32,
    pub start_offset: usize,
    pub end_offset: usize,
    pub text: String,
    pub importance: f32,
    /// The lease token under which a worker has made it.
    pub revision: i64,
}

/// What a result shows of its note.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct FoundNote {
    /// The application's name for the note.
    pub key: Option<String>,
    /// Left out without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[expect(missing_docs, reason = "as the column")]
    pub project_id: String,
    #[expect(missing_docs, reason = "as the column")]
    pub agent_id: String,
    #[expect(missing_docs, reason = "as the column")]
    pub scope: String,
    #[expect(missing_docs, reason = "as the column")]
    #[serde(rename = "type")]
    pub kind: String,
    #[expect(missing_docs, reason = "as the column")]
    pub updated_at: DateTime<Utc>,
    /// The application's own fields. Left out without any.
    #[serde(skip_serializing_if = "Shown::is_empty")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Shown,
    /// Where the note comes from, without `cuts`. Left out if it is empty, and by a search with `max_tokens`.
    #[serde(skip_serializing_if = "Shown::is_empty")]
    #[schema(value_type = Option<Object>)]
    pub source_ref: Shown,
    /// The source whose row the note follows. Left out without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The key of that row. Left out without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_id: Option<String>,
}

/// A slice of a note's text: the parent of a chunk, or from the start of the chunk before to the end of the chunk
/// after.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The UTF-8 byte offset of the slice in the note's text.
    pub start_offset: usize,
    /// The bytes of the note's text at this offset. The text may have changed since it was
    /// chunked, so these may cut through a character. `None` for a note of more than 1 MiB.
    pub bytes: Option<Vec<u8>>,
}

/// A search without the index.
#[derive(Debug, Clone, Copy)]
pub struct PostgresQuery<'a> {
    /// The embedded query.
    pub vector: Option<&'a [f32]>,
    /// The words of the query.
    pub words: Option<&'a str>,
    /// Words that do not count.
    pub stopwords: &'a [String],
    /// What a note must be like ([`crate::index::Filter::of_note`]).
    pub wanted: &'a Value,
    /// How many candidates each of the two rankings gives.
    pub candidates: usize,
}

/// A chunk that such a search found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundChunk {
    /// See [`crate::note::chunk_id`].
    pub chunk_id: Uuid,
    /// Cosine of the query's vector and the chunk's, -1 to 1.
    pub dense: Option<f32>,
    /// How well its words match (as BM25, without the length of the chunk), 0 without a word of the
    /// query.
    pub words: f32,
}

impl Store {
    /// Those of the chunks that belong to a live note as `wanted`, with their text.
    pub async fn revalidate(
        &self,
        version: &str,
        chunks: &[Uuid],
        wanted: &Value,
    ) -> Result<HashMap<Uuid, ChunkText>, StoreError> {
        let work = async {
            let rows = read_those_that_can_be(chunks, |chunks| async move {
                sqlx::query_file!("sql/queries/revalidate.sql", version, chunks, wanted)
                    .fetch_all(&self.keyed)
                    .await
                    .map_err(StoreError::from)
            })
            .await?;
            let chunks = rows.into_iter().map(|row| ChunkText {
                chunk_id: row.chunk_id,
                note_id: row.note_id,
                note: FoundNote {
                    key: row.key,
                    title: row.title,
                    project_id: row.project_id,
                    agent_id: row.agent_id,
                    scope: row.scope,
                    kind: row.kind,
                    updated_at: row.updated_at,
                    metadata: row.metadata,
                    source_ref: row.source_ref,
                    source: row.source,
                    source_id: row.source_id,
                },
                chunk_index: row.chunk_index as u32,
                start_offset: row.start_offset as usize,
                end_offset: row.end_offset as usize,
                text: row.text,
                importance: row.importance,
                revision: row.revision,
            });
            Ok(chunks.map(|chunk| (chunk.chunk_id, chunk)).collect())
        };
        self.measured("search", work).await
    }

    /// The text around chunks, of those whose note is live and as `wanted`.
    pub async fn surroundings(
        &self,
        version: &str,
        chunks: &[Uuid],
        wanted: &Value,
    ) -> Result<HashMap<Uuid, Surroundings>, StoreError> {
        let work = async {
            let rows = read_those_that_can_be(chunks, |chunks| async move {
                sqlx::query_file!(
                    "sql/queries/search_context.sql",
                    version,
                    chunks,
                    wanted,
                    MAX_CONTEXT_BYTES
                )
                .fetch_all(&self.keyed)
                .await
                .map_err(StoreError::from)
            })
            .await?;
            let surroundings = rows.into_iter().map(|row| {
                let start_offset = row.start_offset as usize;
                let bytes = row.bytes;
                let surroundings = Surroundings {
                    start_offset,
                    bytes,
                };
                (row.chunk_id, surroundings)
            });
            Ok(surroundings.collect())
        };
        self.measured("search", work).await
    }

    /// The vectors of chunks.
    pub async fn chunk_vectors(
        &self,
        version: &str,
        chunks: &[Uuid],
    ) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let work = async {
            let rows = read_those_that_can_be(chunks, |chunks| async move {
                sqlx::query_file!("sql/queries/chunk_vectors.sql", version, chunks)
                    .fetch_all(&self.keyed)
                    .await
                    .map_err(StoreError::from)
            })
            .await?;
            let vectors = rows
                .into_iter()
                .map(|row| (row.chunk_id, Vec::from(row.vec)));
            Ok(vectors.collect())
        };
        self.measured("search", work).await
    }

    /// The vectors of chunks of different notes: those next to `ids`.
    pub async fn spread_vectors(
        &self,
        version: &str,
        ids: &[Uuid],
    ) -> Result<Vec<Vec<f32>>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/spread_vectors.sql", version, ids);
        let rows = self.asked("search", rows.fetch_all(&self.keyed)).await?;
        Ok(rows.into_iter().map(|row| Vec::from(row.vec)).collect())
    }

    /// Finds chunks without the index, in the order of their ids.
    pub async fn search(
        &self,
        version: &str,
        query: PostgresQuery<'_>,
        scan: Scan,
    ) -> Result<Vec<FoundChunk>, StoreError> {
        let work = async {
            let vector = query
                .vector
                .map(|vector| pgvector::Vector::from(vector.to_vec()));
            let words = query.words.map(|text| words(text, query.stopwords));
            let words = words.unwrap_or_default();
            let patterns = patterns(&words);
            let mut tx = Transaction::begin(&self.pool, BOUNDED).await?;
            let rows = sqlx::query_file!(
                "sql/queries/search_postgres.sql",
                version,
                vector as _,
                &words,
                &patterns,
                query.wanted,
                scan.notes,
                scan.chunks,
                query.candidates as i64
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            let mut found: Vec<FoundChunk> = rows
                .into_iter()
                .map(|row| FoundChunk {
                    chunk_id: row.chunk_id,
                    dense: row.dense,
                    words: row.words,
                })
                .collect();
            found.sort_by_key(|found| found.chunk_id);
            Ok(found)
        };
        self.measured("search", work).await
    }
}

/// Postgres ends the scan itself, also when this process stops waiting.
pub(super) const BOUNDED: &str = "begin isolation level read committed read only; \
                    set local statement_timeout = '5s'";

/// Words of a query that count in a search without the index: each costs time in every chunk.
const MAX_WORDS: usize = 16;

/// The longest words of a query, each once: they are mostly the rarest.
fn words(query: &str, stopwords: &[String]) -> Vec<String> {
    let stopwords = stopwords
        .iter()
        .flat_map(|word| unicode::words(word, false));
    let mut seen: HashSet<String> = stopwords.collect();
    let mut words = unicode::words(query, false);
    words.retain(|word| seen.insert(word.clone()));
    words.sort_by_key(|word| std::cmp::Reverse(word.chars().count()));
    words.truncate(MAX_WORDS);
    words
}

/// Patterns for `ilike`, one for each word, and for its other form (NFD).
fn patterns(words: &[String]) -> Vec<String> {
    let forms = words.iter().flat_map(|word| {
        let decomposed = decomposed(word);
        let is_another = decomposed != *word;
        iter::once(word.clone()).chain(is_another.then_some(decomposed))
    });
    forms.map(|word| format!("%{word}%")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_a_pattern_for_each_of_its_words() {
        assert_eq!(
            patterns(&words("ERR-4417, twice: err 100%", &[])),
            ["%twice%", "%4417%", "%err%", "%100%"]
        );
        let own = ["Twice".to_owned()];
        assert_eq!(words("twice: err", &own), ["err"]);
        let accented = words("Br\u{fb}l", &[]);
        assert_eq!(patterns(&accented), ["%br\u{fb}l%", "%bru\u{302}l%"]);
        let long = (0..100).map(|n| format!("w{n} ")).collect::<String>();
        assert_eq!(words(&format!("{long}longest"), &[])[0], "longest");
        assert_eq!(words(&long, &[]).len(), MAX_WORDS);
        assert!(words("... !", &[]).is_empty());
    }
}
