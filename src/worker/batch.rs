//! The way of a batch of notes, from the claim to the ack.
//!
//! [`run`] → `converge`: `load` the rows, `cut` them into chunks, start the
//! [`Embedding`], and write slices of notes whose vectors have arrived (`converge_slices`).
//! A slice goes through `write_or_split` (`blame.rs`, which splits what a store rejects) to
//! `write`: `commit` to Postgres, `index` (upsert the points, delete the older ones), check the
//! tokens, `ack`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use metrics::{counter, histogram};
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::embedding::Embedding;
use super::lease::{self, Heartbeat, Survived};
use super::plan::{self, ChunkedNote, Unwritable, Vectors};
use super::{Report, Shared, Stage, WorkerContext};
use crate::index::{Filter, IndexError, Point, UpsertMode};
use crate::note::{Note, TextHash};
use crate::registry::{self, IndexContext, SetupError, StoresError};
use crate::store::{
    ChunkWrite, Claim, Claimed, Committed, LOST_CLAIMS_UNTIL_ALONE, LiveChunk, NoteWrite,
    StoreError, Version,
};
use crate::telemetry;

/// A batch whose vectors all arrive within this time is written in one transaction.
const FIRST_SLICE: Duration = Duration::from_millis(100);

/// After that, notes whose vectors have arrived are written at this interval. A killed process
/// loses at most the embeddings of one interval, and a slice is large enough for a transaction.
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
    /// What needs no text: points of notes that are not live are deleted, points of live notes
    /// get the access labels of their rows. The outbox rows of live notes stay due.
    Access,
}

async fn converge_or_release(shared: &Arc<Shared>, claim: Claim, extent: Extent) {
    let heartbeat = Heartbeat::start(shared, &claim);
    let batch = Batch {
        shared,
        token: claim.token,
        oldest_first: claim.note_ids(),
        notes: claim.notes.iter().map(|n| (n.note_id, n)).collect(),
        spans: note_spans(&claim.notes),
    };
    shared.reached(Stage::Claimed).await;
    let converged = match extent {
        Extent::Whole => batch.converge().await,
        Extent::Access => batch.converge_access_and_release().await,
    };
    if let Err(interruption) = converged {
        // Notes that were acked before have no lease any more: the release skips them.
        shared.in_flight.release(shared, claim.token).await;
        shared.circuit.open(interruption.to_string());
    } else {
        shared.circuit.succeeded();
        shared.in_flight.forget(claim.token);
    }
    drop(heartbeat);
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

/// A store failed: the batch ends, and no note is to blame.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interruption {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl From<StoresError> for Interruption {
    fn from(error: StoresError) -> Self {
        match error {
            StoresError::Store(error) => Self::Store(error),
            StoresError::Index(error) => Self::Index(error),
        }
    }
}

impl Interruption {
    /// Whether the index may have applied the write, or may still apply it.
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Index(IndexError::Unavailable { .. }))
    }
}

/// Notes that are leased under one token.
pub(super) struct Batch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) token: i64,
    oldest_first: Vec<Uuid>,
    pub(super) notes: HashMap<Uuid, &'a Claimed>,
    pub(super) spans: NoteSpans,
}

impl Batch<'_> {
    async fn converge(&self) -> Result<(), Interruption> {
        // A note that may end the worker is claimed alone. Its deletion and its access labels
        // come first, because they do not need the text that may end the worker.
        let lost_claims = |note: &Claimed| note.claims_lost >= LOST_CLAIMS_UNTIL_ALONE;
        if self.notes.values().any(|note| lost_claims(note))
            && (Box::pin(self.converge_access()).await?.is_empty()
                || self.dead_letter_after_lost_claims().await?)
        {
            return Ok(());
        }
        let max_bytes = self.shared.settings.max_note_bytes;
        let rows = stage("load", self.load(max_bytes)).await?;
        let cuts = stage("cut", self.cut(rows)).await;
        self.shared.reached(Stage::Chunked).await;

        let cuts = Arc::new(cuts);
        let mut embedding = Embedding::start(self.shared, cuts.clone());
        let converged = Box::pin(self.converge_slices(&cuts, &mut embedding)).await;
        if converged.is_err() {
            embedding.stop_sending();
        }
        converged
    }

    /// Writes notes as their vectors arrive.
    async fn converge_slices(
        &self,
        cuts: &[ChunkedNote],
        embedding: &mut Embedding,
    ) -> Result<(), Interruption> {
        let fixed_tokens = self.shared.context.chunker.fixed_tokens();
        let mut undecided: Vec<&ChunkedNote> = cuts.iter().collect();
        let mut time = FIRST_SLICE;
        loop {
            let more = stage("embed", embedding.collect(time)).await?;
            let Embedding { vectors, fresh, .. } = &mut *embedding;
            let (slice, rest) = undecided
                .into_iter()
                .partition(|cut| !more || plan::is_decided(cut, vectors, fixed_tokens));
            undecided = rest;
            time = SLICE;
            if !slice.is_empty() {
                self.shared.reached(Stage::Embedded).await;
                // Boxed, as is what it awaits: a batch is one task, and its stack is small.
                Box::pin(self.converge_slice(&slice, vectors, fresh)).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Loads the rows as they are now: they are newer than every outbox row of the claim.
    async fn load(
        &self,
        max_bytes: u64,
    ) -> Result<(HashMap<Uuid, Note>, DateTime<Utc>), StoreError> {
        let store = &self.shared.context.stores.store;
        store.load_notes(&self.oldest_first, max_bytes).await
    }

    async fn cut(&self, (mut rows, now): (HashMap<Uuid, Note>, DateTime<Utc>)) -> Vec<ChunkedNote> {
        let chunker = self.shared.context.chunker.clone();
        let max_bytes = self.shared.settings.max_note_bytes;
        let oldest_first = self.oldest_first.iter();
        let notes: Vec<(Uuid, Option<Note>)> =
            oldest_first.map(|id| (*id, rows.remove(id))).collect();
        let cut_all = move || {
            notes
                .into_iter()
                .map(|(id, note)| plan::cut(&chunker, id, note, now, max_bytes))
                .collect()
        };
        tokio::task::spawn_blocking(cut_all)
            .await
            .expect("a panic is caught note by note")
    }

    async fn converge_access_and_release(&self) -> Result<(), Interruption> {
        let live = self.converge_access().await?;
        lease::release(self.shared, self.token, &live, Survived::Unknown).await;
        Ok(())
    }

    /// Does what needs no text: converges notes that are not live, and gives the points of
    /// live notes the access labels of their rows. Returns the live notes.
    async fn converge_access(&self) -> Result<Vec<Uuid>, Interruption> {
        let (mut rows, now) = stage("load", self.load(0)).await?;
        let without_text = |id: &Uuid| {
            let note = rows.remove(id);
            ChunkedNote {
                note_id: *id,
                live: note.as_ref().is_some_and(|note| note.is_live(now)),
                note,
                hashed_chunks: Ok(Vec::new()),
            }
        };
        let (live, gone): (Vec<ChunkedNote>, Vec<ChunkedNote>) = self
            .oldest_first
            .iter()
            .map(without_text)
            .partition(|cut| cut.live);
        let notes = gone.iter().map(|cut| (cut.note_id, cut)).collect();
        let writes: Vec<NoteWrite> = gone.iter().map(plan::removal_of).collect();
        self.write_or_split(&writes, &notes, &mut HashSet::new())
            .await?;
        self.follow_access(live.iter()).await?;
        Ok(live.iter().map(|cut| cut.note_id).collect())
    }

    /// Writes the notes that have all of their vectors. Each of the others fails or waits, and
    /// its points get the access labels of its row.
    async fn converge_slice(
        &self,
        slice: &[&ChunkedNote],
        vectors: &Vectors,
        fresh: &mut HashSet<TextHash>,
    ) -> Result<(), Interruption> {
        let fixed_tokens = self.shared.context.chunker.fixed_tokens();
        let notes: HashMap<Uuid, &ChunkedNote> =
            slice.iter().map(|cut| (cut.note_id, *cut)).collect();
        let (mut writes, mut unwritable) = (Vec::new(), Vec::new());
        for cut in slice {
            match plan::write_of(cut, vectors, fixed_tokens) {
                Ok(write) => writes.push(write),
                Err(why) => unwritable.push((*cut, why)),
            }
        }
        self.write_or_split(&writes, &notes, fresh).await?;
        self.follow_access(unwritable.iter().map(|(cut, _)| *cut))
            .await?;
        let mut waiting = Vec::new();
        for (cut, why) in unwritable {
            match why {
                Unwritable::Waits => waiting.push(cut.note_id),
                Unwritable::Fails {
                    reason,
                    by,
                    permanent,
                } => {
                    let text = TextHash::of(cut.note.as_ref().map_or("", |note| &note.text));
                    self.fail(cut.note_id, text, by, &reason, permanent).await?;
                }
            }
        }
        if !waiting.is_empty() {
            lease::release(self.shared, self.token, &waiting, Survived::Yes).await;
        }
        Ok(())
    }

    pub(super) async fn write(
        &self,
        writes: &[NoteWrite<'_>],
        notes: &HashMap<Uuid, &ChunkedNote>,
        fresh: &mut HashSet<TextHash>,
    ) -> Result<(), Interruption> {
        if writes.is_empty() {
            return Ok(());
        }
        let committed = stage("commit", self.commit(writes)).await?;
        self.shared.reached(Stage::Committed).await;

        let done: Vec<&NoteWrite> = writes
            .iter()
            .filter(|w| committed.notes.contains(&w.note_id))
            .collect();
        let ids: Vec<Uuid> = done.iter().map(|w| w.note_id).collect();
        let points = self.index(&committed, &done, notes).await?;
        // A Postgres that was rolled back issues old tokens again, and the index ignores upserts
        // under them. The check finds that before the ack.
        let WorkerContext {
            stores, version, ..
        } = &self.shared.context;
        let checked = registry::check_tokens(
            stores,
            &version.name,
            self.token,
            &ids,
            &committed.collections,
        );
        stage("check", checked).await?;
        let acked = stage("ack", self.ack(&done, notes)).await?;
        self.shared.reached(Stage::Acked).await;

        let cuts = done.iter().map(|write| notes[&write.note_id]);
        self.shared.totals.add(&Report {
            notes: acked,
            points,
            ..plan::count_work(cuts, fresh)
        });
        Ok(())
    }

    async fn commit(&self, writes: &[NoteWrite<'_>]) -> Result<Committed, StoreError> {
        let context = &self.shared.context;
        let Version { name, dim, .. } = &context.version;
        let committed = context
            .stores
            .store
            .commit(name, *dim, self.token, writes)
            .await?;
        let held: Vec<Uuid> = writes
            .iter()
            .map(|w| w.note_id)
            .filter(|id| !committed.notes.contains(id))
            .collect();
        if !held.is_empty() {
            lease::defer_held(self.shared, self.token, &held).await;
        }
        let done = writes
            .iter()
            .filter(|w| committed.notes.contains(&w.note_id));
        self.shared
            .uncommitted
            .forget_committed(done.flat_map(|w| &w.chunks).map(|chunk| &chunk.hash));
        Ok(committed)
    }

    /// Upserts the new points and then deletes the old ones, so that the note is searchable
    /// all the time. Returns how many points were written.
    async fn index(
        &self,
        committed: &Committed,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &ChunkedNote>,
    ) -> Result<u64, Interruption> {
        if done.is_empty() {
            return Ok(0);
        }
        if committed.collections.is_empty() {
            return Err(self.no_collection());
        }
        let points: Vec<Point> = done
            .iter()
            .filter_map(|write| Some((write, notes[&write.note_id].note.as_ref()?)))
            .flat_map(|(write, note)| write.chunks.iter().map(|chunk| self.point(note, chunk)))
            .collect();
        let written: Vec<Uuid> = points.iter().map(|p| p.payload.chunk_id).collect();
        let count = written.len() as u64;
        self.upsert(&committed.collections, points).await?;
        self.shared.reached(Stage::Upserted).await;
        let done: Vec<Uuid> = done.iter().map(|w| w.note_id).collect();
        self.prune(&committed.collections, done, written).await?;
        self.shared.reached(Stage::Pruned).await;
        Ok(count)
    }

    /// Acking without a target collection would lose the notes. The next
    /// [`registry::ensure_ready`] registers one.
    pub(super) fn no_collection(&self) -> Interruption {
        SetupError::Mismatch(format!(
            "no collection is registered for {}",
            self.shared.context.version.name
        ))
        .into()
    }

    pub(super) async fn upsert(
        &self,
        collections: &[String],
        points: Vec<Point>,
    ) -> Result<(), Interruption> {
        let notes: HashSet<Uuid> = points.iter().map(|p| p.payload.note_id).collect();
        let notes: Vec<Uuid> = notes.into_iter().collect();
        let in_flight = &self.shared.in_flight;
        in_flight.sending(self.token, &notes);
        let upserted = self.upsert_into(collections, points).await;
        let is_answered = !upserted.as_ref().is_err_and(Interruption::is_unanswered);
        in_flight.sent(self.token, &notes, is_answered);
        upserted
    }

    async fn upsert_into(
        &self,
        collections: &[String],
        points: Vec<Point>,
    ) -> Result<(), Interruption> {
        if points.is_empty() {
            return Ok(());
        }
        let index = &self.shared.context.stores.index;
        for collection in collections {
            let upserted = index.upsert(collection, points.clone(), UpsertMode::NotNewer);
            let upserted = stage("upsert", upserted).await;
            self.unless_retired(collection, upserted).await?;
        }
        Ok(())
    }

    /// Deletes the points of `notes` with this batch's revision or an older one, except those
    /// it has `written`. Points of the same revision count too: a retry under the same token
    /// may have fewer chunks than the first try.
    pub(super) async fn prune(
        &self,
        collections: &[String],
        notes: Vec<Uuid>,
        written: Vec<Uuid>,
    ) -> Result<(), Interruption> {
        let older = Filter {
            note_ids: Some(notes),
            except_chunk_ids: Some(written),
            revision_below: Some(self.token + 1),
            ..Filter::default()
        };
        for collection in collections {
            let deleted = self.shared.context.stores.index.delete(collection, &older);
            let deleted = stage("prune", deleted).await;
            self.unless_retired(collection, deleted).await?;
        }
        Ok(())
    }

    /// Ignores a missing collection if a rebuild or a drop retired it between this batch's
    /// commit and its write: the collection that replaces it has these chunks already.
    async fn unless_retired(
        &self,
        collection: &str,
        written: Result<(), IndexError>,
    ) -> Result<(), Interruption> {
        let Err(error @ IndexError::NotFound { .. }) = written else {
            return Ok(written?);
        };
        let WorkerContext {
            stores: IndexContext { store, .. },
            version,
            ..
        } = &self.shared.context;
        let targets = store.collections(&version.name).await?;
        if targets.iter().any(|target| target.name == collection) {
            return Err(error.into());
        }
        tracing::debug!(collection, "collection retired before the write");
        Ok(())
    }

    pub(super) fn point(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Point {
        let live = LiveChunk {
            chunk_id: chunk.chunk_id,
            note_id: note.note_id,
            chunk_index: chunk.chunk_index,
            start: chunk.start,
            end: chunk.end,
            revision: self.token,
            text: None,
            has_vector: true,
            vector: None,
            status: note.status.clone(),
            expires_at: note.expires_at,
            labels: note.labels.clone(),
        };
        Point {
            payload: registry::payload(&live, &self.shared.context.version.name),
            vector: chunk.vector.to_vec(),
            text: chunk.text.to_owned(),
        }
    }

    /// Deletes the outbox rows that the claim saw. Returns the number of notes acked.
    async fn ack(
        &self,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &ChunkedNote>,
    ) -> Result<u64, StoreError> {
        let context = &self.shared.context;
        let version = &context.version.name;
        let claimed: Vec<(&Claimed, _)> = done
            .iter()
            .map(|write| (self.notes[&write.note_id], write.access))
            .collect();
        let done: HashSet<Uuid> = done.iter().map(|w| w.note_id).collect();
        // The index may still apply an upsert that it did not answer, after the points of a
        // later claim. Indexing the note once more after the lease removes them.
        let ids: Vec<Uuid> = done.iter().copied().collect();
        let unanswered = self.shared.in_flight.unanswered(self.token, &ids);
        if !unanswered.is_empty() {
            let lease = self.shared.settings.lease();
            context
                .stores
                .store
                .requeue_after(version, &unanswered, lease)
                .await?;
            self.shared.in_flight.wait_for_late(lease);
        }
        let keep_done = !self.shared.keep_done.is_zero();
        let acked = context
            .stores
            .store
            .ack(version, self.token, &claimed, keep_done)
            .await?;
        let acked: HashSet<Uuid> = acked.into_iter().collect();

        // Another worker holds these notes now, and may have deleted old points before this
        // batch wrote its own. Indexing them once more under a higher token removes those.
        let lost: Vec<Uuid> = done.difference(&acked).copied().collect();
        if !lost.is_empty() {
            tracing::warn!(
                notes = lost.len(),
                token = self.token,
                "leases lost to another process, requeueing the notes"
            );
            counter!("elf_leases_lost_total").increment(lost.len() as u64);
            context.stores.store.requeue(version, &lost).await?;
        }
        let gone: Vec<Uuid> = acked
            .iter()
            .filter(|id| notes[*id].note.is_none())
            .copied()
            .collect();
        if !gone.is_empty() {
            context
                .stores
                .store
                .forget(version, self.token, &gone)
                .await?;
        }
        let now = Utc::now();
        for (claimed, _) in claimed.iter().filter(|(c, _)| acked.contains(&c.note_id)) {
            let age = (now - claimed.oldest).to_std().unwrap_or_default();
            self.shared.totals.became_searchable(age);
            self.spans[&claimed.note_id].record("outcome", "indexed");
        }
        Ok(acked.len() as u64)
    }
}

/// Runs `work` as the named stage of a batch, in a span and with its duration recorded.
pub(super) fn stage<'w, T>(
    name: &'static str,
    work: impl Future<Output = T> + Send + 'w,
) -> BoxFuture<'w, T> {
    let span = tracing::info_span!("stage", otel.name = name, name);
    let seconds = histogram!("elf_stage_seconds", "stage" => name);
    telemetry::timed(span, seconds, work)
}
