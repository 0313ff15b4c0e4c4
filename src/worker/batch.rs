//! The way of a batch of notes, from the claim to the ack.
//!
//! [`run`] → `converge`: `load` the rows, `chunk` their texts, start the
//! [`Embedding`], and write slices of notes whose vectors have arrived (`converge_slices`).
//! A slice goes through `write_or_split` (`blame.rs`, which splits what Postgres or the index
//! rejects) to `write`: `commit` to Postgres, `index_points` (upsert the points, delete the older
//! ones), check the tokens, `ack`. With `worker.bm25_first`, notes whose vectors cannot be made now
//! go the same way without them, and are released instead of acked.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::embedding::Embedding;
use super::lease::{self, Survived};
use super::plan::{self, ChunkedNote, PlannedWrite, Unwritable, Vectors};
use super::stage::stage;
use super::{Checkpoint, Report, Shared, unacked};
use crate::note::{AccessHash, Note, TextHash};
use crate::serving::{self, ServingError};
use crate::store::{
    Claim, Claimed, Committed, LOST_CLAIMS_UNTIL_ALONE, LoadedNotes, NoteWrite, StoreError,
};

/// A batch whose vectors all arrive within this time is written in one transaction.
const FIRST_SLICE: Duration = Duration::from_millis(100);

/// After that, a batch writes at this interval a slice: the notes whose vectors have arrived. A killed
/// process loses at most the embeddings of one interval, and a slice is large enough for a transaction.
const SLICE: Duration = Duration::from_secs(1);

/// Takes a batch from the claim to the ack. Notes that cannot be indexed now are released. A
/// failure that a note itself causes counts against that note alone.
pub(super) async fn run(shared: &Arc<Shared>, claim: Claim, extent: Extent) {
    let notes = claim.notes.len();
    let span = tracing::info_span!("batch", token = claim.token, notes);
    histogram!("elf_batch_notes").record(notes as f64);
    let _in_flight = shared.totals.began_batch();
    converge_or_release(shared, claim, extent)
        .instrument(span)
        .await;
}

/// How much of its notes a batch makes equal to their rows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Extent {
    /// Chunks, vectors and points.
    Whole,
    /// What needs no text: the batch deletes the points of notes that are not live, and gives those of
    /// live notes the access labels of their rows. The outbox rows of live notes stay due.
    Access,
}

async fn converge_or_release(shared: &Arc<Shared>, claim: Claim, extent: Extent) {
    let renewal = lease::renew(shared, &claim);
    let batch = Batch {
        shared,
        token: claim.token,
        oldest_first: claim.note_ids(),
        notes: claim.notes.iter().map(|n| (n.note_id, n)).collect(),
        spans: note_spans(&claim.notes),
        loaded: OnceLock::new(),
    };
    shared.call_breakpoint(Checkpoint::Claimed).await;
    let converged = match extent {
        Extent::Whole => batch.converge().await,
        Extent::Access => batch.converge_access_and_release().await,
    };
    if let Err(error) = converged {
        // Notes that were acked before have no lease any more: the release skips them.
        shared.leases.release(shared, claim.token).await;
        shared.circuit.open(error.to_string());
    } else {
        shared.circuit.succeeded();
        shared.leases.end(shared, claim.token);
    }
    drop(renewal);
}

/// A span for every note, so that a trace can be searched by a note's id.
pub(super) type NoteSpans = HashMap<Uuid, Span>;

fn note_spans(notes: &[Claimed]) -> NoteSpans {
    let span = |note: &Claimed| {
        let (note_id, rows) = (note.note_id, note.outbox_ids.len());
        let outcome = tracing::field::Empty;
        let span = tracing::info_span!("note", %note_id, rows, chunks = outcome, outcome);
        (note_id, span)
    };
    notes.iter().map(span).collect()
}

/// Why notes were not written and acked.
pub(super) enum WriteError {
    /// Postgres or the index failed on a request that held data of the notes.
    Data(ServingError),
    /// The check of the tokens failed. It sends no data of a note, so no note is to blame.
    Check(ServingError),
}

impl<E: Into<ServingError>> From<E> for WriteError {
    fn from(error: E) -> Self {
        Self::Data(error.into())
    }
}

/// Notes that are leased under one token.
pub(super) struct Batch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) token: i64,
    pub(super) oldest_first: Vec<Uuid>,
    pub(super) notes: HashMap<Uuid, &'a Claimed>,
    pub(super) spans: NoteSpans,
    /// The time of Postgres when the rows were loaded, and of this process.
    loaded: OnceLock<(DateTime<Utc>, Instant)>,
}

impl Batch<'_> {
    async fn converge(&self) -> Result<(), ServingError> {
        // A note that is claimed alone may kill the worker. Its deletion and its access labels
        // come first, because they do not need the text, which may be what kills the worker.
        let is_alone = |note: &Claimed| note.lost_claims >= LOST_CLAIMS_UNTIL_ALONE;
        if self.notes.values().any(|note| is_alone(note))
            && (Box::pin(self.load_and_converge_access()).await?.is_empty()
                || self.dead_letter_after_lost_claims().await?)
        {
            return Ok(());
        }
        let max_bytes = self.shared.settings.max_note_bytes;
        let rows = stage("load", self.load(max_bytes)).await?;
        let chunked_notes = stage("chunk", self.chunk(rows)).await;
        self.shared.call_breakpoint(Checkpoint::Chunked).await;

        let chunked_notes = Arc::new(chunked_notes);
        let mut embedding = Embedding::start(self.shared, chunked_notes.clone());
        let converged = Box::pin(self.converge_slices(&chunked_notes, &mut embedding)).await;
        embedding.stop_sending();
        converged
    }

    /// Writes notes as their vectors arrive. A note whose access changes meanwhile does not wait
    /// for its vectors.
    async fn converge_slices(
        &self,
        chunked_notes: &[ChunkedNote],
        embedding: &mut Embedding,
    ) -> Result<(), ServingError> {
        let mut undecided: Vec<&ChunkedNote> = chunked_notes.iter().collect();
        let mut time = FIRST_SLICE;
        loop {
            let more = stage("embed", embedding.collect(time)).await?;
            if more && time == SLICE {
                let changed = Box::pin(self.converge_changed_access(&undecided)).await?;
                undecided.retain(|chunked| !changed.contains(&chunked.note_id));
            }
            let Embedding {
                vectors,
                newly_embedded,
                ..
            } = &mut *embedding;
            let (slice, rest) = undecided
                .into_iter()
                .partition(|chunked| !more || plan::is_decided(chunked, vectors));
            undecided = rest;
            time = SLICE;
            if !slice.is_empty() {
                self.shared.call_breakpoint(Checkpoint::Embedded).await;
                // Boxed, as is what it awaits: a batch is one task, and its stack is small.
                Box::pin(self.converge_slice(&slice, vectors, newly_embedded)).await?;
            }
            if !more || undecided.is_empty() {
                return Ok(());
            }
        }
    }

    /// Loads the rows as they are now: they are newer than every outbox row of the claim.
    pub(super) async fn load(&self, max_bytes: u64) -> Result<LoadedNotes, StoreError> {
        let (store, _) = self.shared.store_and_version();
        let loaded = store.load_notes(&self.oldest_first, max_bytes).await?;
        self.loaded.get_or_init(|| (loaded.now, Instant::now()));
        Ok(loaded)
    }

    /// Whether the note was live when it was loaded and has expired since, by the clock of Postgres.
    /// Such a note the batch requeues, because the upkeep may not: it passes over a note that is due,
    /// and does not look back for ever.
    fn has_expired(&self, chunked: &ChunkedNote) -> bool {
        let now = self.loaded.get().map(|(at, since)| *at + since.elapsed());
        let is_over = |note: &Note| now.is_some_and(|now| !note.is_live(now));
        chunked.live && chunked.note.as_ref().is_some_and(is_over)
    }

    async fn chunk(&self, mut rows: LoadedNotes) -> Vec<ChunkedNote> {
        let chunker = self.shared.pipeline.chunker.clone();
        let max_bytes = self.shared.settings.max_note_bytes;
        let oldest_first = self.oldest_first.iter();
        let notes: Vec<(Uuid, Option<Note>)> = oldest_first
            .map(|id| (*id, rows.notes.remove(id)))
            .collect();
        let (now, unreadable) = (rows.now, rows.unreadable);
        let chunk_all = move || {
            notes
                .into_iter()
                .map(|(id, note)| match unreadable.get(&id) {
                    Some(reason) => plan::unreadable_note(id, note, now, reason),
                    None => plan::chunk_note(&chunker, id, note, now, max_bytes),
                })
                .collect()
        };
        tokio::task::spawn_blocking(chunk_all)
            .await
            .expect("a panic is caught note by note")
    }

    /// Writes the notes that have all of their vectors, or may be found by keyword first. Each of
    /// the others fails or waits, and its points get the access labels of its row.
    async fn converge_slice(
        &self,
        slice: &[&ChunkedNote],
        vectors: &Vectors,
        newly_embedded: &mut HashSet<TextHash>,
    ) -> Result<(), ServingError> {
        let (mut writes, mut unwritable) = (Vec::new(), Vec::new());
        for chunked in slice {
            let without_vectors = self.shared.settings.bm25_first && !self.has_points(chunked);
            let had_chunks = self.notes[&chunked.note_id].text.is_some();
            match plan::write_of(chunked, vectors, had_chunks, without_vectors) {
                Ok(write) => writes.push(write),
                Err(why) => unwritable.push((*chunked, why)),
            }
        }
        self.write_or_split(&writes, newly_embedded).await?;
        self.apply_access_labels(unwritable.iter().map(|(chunked, _)| *chunked))
            .await?;
        let mut waiting = Vec::new();
        for (chunked, why) in unwritable {
            match why {
                // The next claim takes it out of the index.
                _ if self.has_expired(chunked) => waiting.push(chunked.note_id),
                Unwritable::Waits => waiting.push(chunked.note_id),
                Unwritable::Fails {
                    reason,
                    by,
                    permanent,
                } => {
                    let text = TextHash::of(chunked.note.as_ref().map_or("", |note| &note.text));
                    self.fail(chunked.note_id, text, by, &reason, permanent)
                        .await?;
                }
            }
        }
        if !waiting.is_empty() {
            lease::release(self.shared, self.token, &waiting, Survived::Yes).await;
        }
        Ok(())
    }

    /// Whether the index has points of the text and the access labels that the note has now.
    fn has_points(&self, chunked: &ChunkedNote) -> bool {
        let claimed = self.notes[&chunked.note_id];
        chunked.note.as_ref().is_some_and(|note| {
            claimed.access == Some(note.labels.access())
                && claimed.text == Some(TextHash::of(&note.text))
        })
    }

    pub(super) async fn write(
        &self,
        writes: &[PlannedWrite<'_>],
        newly_embedded: &mut HashSet<TextHash>,
    ) -> Result<(), WriteError> {
        if writes.is_empty() {
            return Ok(());
        }
        let committed = stage("commit", self.commit(writes)).await?;
        self.shared.call_breakpoint(Checkpoint::Committed).await;
        let (done, skipped): (Vec<&PlannedWrite>, Vec<&PlannedWrite>) = writes
            .iter()
            .partition(|write| committed.notes.contains(&write.chunked.note_id));
        if !skipped.is_empty() {
            let skipped: Vec<Uuid> = skipped.iter().map(|write| write.chunked.note_id).collect();
            lease::release_skipped(self.shared, self.token, &skipped).await;
        }
        let chunks = done.iter().flat_map(|write| &write.rows.chunks);
        let embedded = chunks.filter(|chunk| chunk.vector.is_some());
        embedded.for_each(|chunk| self.shared.uncommitted.invalidate(&chunk.hash));

        let points = self.index_points(&committed, &done).await?;
        let ids: Vec<Uuid> = done.iter().map(|write| write.chunked.note_id).collect();
        // A Postgres that was rolled back issues old tokens again, and the index ignores upserts
        // under them. The check finds that before the ack.
        let (_, version) = self.shared.store_and_version();
        let (serving, targets) = (&self.shared.pipeline.serving, &committed.targets);
        let checked = serving::check_tokens(serving, version, self.token, &ids, targets);
        stage("check", checked).await.map_err(WriteError::Check)?;
        let (awaiting, whole): (Vec<&PlannedWrite>, Vec<&PlannedWrite>) =
            done.into_iter().partition(|write| write.awaits_vectors());
        if !awaiting.is_empty() {
            self.release_awaiting(&awaiting).await?;
        }
        let acked = stage("ack", self.ack(&whole)).await?;
        self.shared.call_breakpoint(Checkpoint::Acked).await;

        self.shared.totals.add(&Report {
            notes: acked,
            points,
            ..plan::count_work(whole.iter().map(|write| write.chunked), newly_embedded)
        });
        Ok(())
    }

    /// Releases notes that are found by keyword now: they are due until they have their vectors.
    async fn release_awaiting(&self, awaiting: &[&PlannedWrite<'_>]) -> Result<(), ServingError> {
        let labelled = |write: &&PlannedWrite| {
            let note = write.chunked.note.as_ref()?;
            Some((write.chunked.note_id, note.labels.access()))
        };
        let access: Vec<(Uuid, AccessHash)> = awaiting.iter().filter_map(labelled).collect();
        let (store, version) = self.shared.store_and_version();
        store.record_access(version, self.token, &access).await?;
        counter!("elf_notes_without_vectors_total").increment(access.len() as u64);
        let notes: Vec<Uuid> = access.into_iter().map(|(note, _)| note).collect();
        lease::release(self.shared, self.token, &notes, Survived::Yes).await;
        Ok(())
    }

    async fn commit(&self, writes: &[PlannedWrite<'_>]) -> Result<Committed, StoreError> {
        let (store, version) = self.shared.store_and_version();
        let rows: Vec<&NoteWrite> = writes.iter().map(|write| &write.rows).collect();
        let dim = self.shared.pipeline.version.dim;
        store.commit(version, dim, self.token, &rows).await
    }

    /// Deletes the outbox rows that the claim saw. Returns the number of notes acked.
    async fn ack(&self, done: &[&PlannedWrite<'_>]) -> Result<u64, StoreError> {
        let (store, version) = self.shared.store_and_version();
        let claimed: Vec<(&Claimed, _)> = done
            .iter()
            .map(|write| (self.notes[&write.chunked.note_id], write.rows.access))
            .collect();
        let ids: Vec<Uuid> = done.iter().map(|write| write.chunked.note_id).collect();
        // The index may still apply an upsert that it did not answer, after the points of a
        // later claim. Indexing the note once more after the lease removes what the upsert wrote.
        let unanswered = self.shared.leases.unanswered(self.token, &ids);
        if !unanswered.is_empty() {
            let lease = self.shared.settings.lease();
            store.requeue_after(version, &unanswered, lease).await?;
            self.shared.leases.wait_for_unanswered(lease);
        }
        let expired = done.iter().filter(|write| self.has_expired(write.chunked));
        let expired: Vec<Uuid> = expired.map(|write| write.chunked.note_id).collect();
        if !expired.is_empty() {
            store.requeue(version, &expired).await?;
        }
        let keep_done = !self.shared.keep_done.is_zero();
        let acked = store.ack(version, self.token, &claimed, keep_done).await?;
        let acked: HashSet<Uuid> = acked.into_iter().collect();
        let (acked, lost): (Vec<&PlannedWrite>, Vec<&PlannedWrite>) = done
            .iter()
            .partition(|write| acked.contains(&write.chunked.note_id));

        // Another worker holds these notes now, and may have deleted old points before this
        // batch wrote its own. Indexing them once more under a higher token removes those.
        if !lost.is_empty() {
            let lost: Vec<Uuid> = lost.iter().map(|write| write.chunked.note_id).collect();
            store.requeue(version, &lost).await?;
            unacked::report_lost(self.token, &lost);
        }
        self.shared.leases.ended(self.token, &ids);
        let gone = acked.iter().filter(|write| write.chunked.note.is_none());
        let gone: Vec<Uuid> = gone.map(|write| write.chunked.note_id).collect();
        if !gone.is_empty() {
            store.forget(version, self.token, &gone).await?;
        }
        let now = Utc::now();
        for PlannedWrite { chunked, .. } in &acked {
            let oldest = self.notes[&chunked.note_id].oldest;
            let age = (now - oldest).to_std().unwrap_or_default();
            self.shared.totals.became_searchable(age);
            self.spans[&chunked.note_id].record("outcome", "indexed");
        }
        Ok(acked.len() as u64)
    }
}
