//! The way of a batch of notes, from the claim to the ack.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use metrics::{counter, histogram};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::embedding::{Embedding, Missing};
use super::lease::{self, Heartbeat};
use super::plan::{self, CutNote, Piece, Unwritable, Vectors};
use super::setup::{self, SetupError};
use super::{Report, Shared, Stage, Tools, retry, rollback};
use crate::backfill::{Target, TargetError};
use crate::embed::provider::Input;
use crate::index::{Filter, IndexError, Payload, Point, UpsertMode};
use crate::note::{Note, TextHash};
use crate::store::{
    CLAIMS_LOST_TOGETHER, ChunkWrite, Claim, Claimed, Committed, Depth, FailedBy, Failure,
    NoteWrite, Retry, StoreError, Version,
};
use crate::telemetry;

/// A batch whose vectors are all there by then is written at once.
const FIRST_SLICE: Duration = Duration::from_millis(100);

/// From then on what has its vectors is written so often: a process that is killed has paid
/// for this much, and a slice is still worth its transaction.
const SLICE: Duration = Duration::from_secs(1);

/// How often the write of a note alone is tried when it is interrupted though both stores
/// work.
const MAX_TRIES_ALONE: u32 = 3;

/// A note that has lost so many claims, all but the first two of them alone, is
/// dead-lettered, once the worker that claims it has indexed another one: where each worker
/// dies before it has indexed any, no note is to blame.
pub(super) const MAX_CLAIMS_LOST: u32 = CLAIMS_LOST_TOGETHER + 8;

/// Takes a batch all the way. What cannot be done now is released; what a note itself is
/// to blame for counts against that note alone.
pub(super) async fn run(shared: &Arc<Shared>, claim: Claim) {
    let notes = claim.notes.len();
    let span = tracing::info_span!("batch", token = claim.token, notes);
    histogram!("elf_batch_notes").record(notes as f64);
    let _in_flight = shared.totals.began_batch();
    converge_or_release(shared, claim).instrument(span).await;
}

async fn converge_or_release(shared: &Arc<Shared>, claim: Claim) {
    let heartbeat = Heartbeat::start(shared, &claim);
    let batch = Batch {
        shared,
        token: claim.token,
        notes: claim.notes.iter().map(|n| (n.note_id, n)).collect(),
        spans: note_spans(&claim.notes),
    };
    shared.reached(Stage::Claimed).await;
    if let Err(interruption) = batch.converge().await {
        // Those that were acked before are not leased any more; this changes nothing for them.
        lease::release(shared, claim.token, &claim.note_ids()).await;
        shared.gate.close(interruption.to_string());
    } else {
        shared.gate.worked();
    }
    drop(heartbeat);
}

/// A span for every note, so that the way of one can be found in a trace by its id.
type NoteSpans = HashMap<Uuid, Span>;

fn note_spans(notes: &[Claimed]) -> NoteSpans {
    let span = |note: &Claimed| {
        let (note_id, rows) = (note.note_id, note.outbox_ids.len());
        let outcome = tracing::field::Empty;
        let span = tracing::info_span!("note", %note_id, rows, chunks = outcome, outcome);
        (note_id, span)
    };
    notes.iter().map(span).collect()
}

/// A store failed, so that nothing can be said of any note.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interruption {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl From<TargetError> for Interruption {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Store(error) => Self::Store(error),
            TargetError::Index(error) => Self::Index(error),
        }
    }
}

impl Interruption {
    /// Which store it was, where what was sent may be the reason and not the store's state.
    fn store(&self) -> Option<FailedBy> {
        match self {
            Self::Store(StoreError::Rejected(_) | StoreError::Unavailable(_)) => {
                Some(FailedBy::Postgres)
            }
            Self::Index(IndexError::Refused { .. } | IndexError::Unavailable { .. }) => {
                Some(FailedBy::Index)
            }
            _ => None,
        }
    }

    /// Whether the store answered that it does not take what was sent.
    pub(super) fn is_rejection(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Rejected(_)) | Self::Index(IndexError::Refused { .. })
        )
    }
}

/// Notes that are leased under one token.
pub(super) struct Batch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) token: i64,
    pub(super) notes: HashMap<Uuid, &'a Claimed>,
    spans: NoteSpans,
}

impl Batch<'_> {
    async fn converge(&self) -> Result<(), Interruption> {
        if self.fail_lost().await? {
            return Ok(());
        }
        let rows = stage("load", self.load()).await?;
        let cuts = stage("cut", self.cut(rows)).await;
        self.shared.reached(Stage::Chunked).await;

        let mut vectors = self.known_vectors(&cuts).await?;
        let missing = self.missing(&cuts, &vectors);
        let mut fresh: HashSet<TextHash> = missing.iter().map(|m| m.hash).collect();
        let mut embedding = Embedding::start(self.shared, missing);
        let fixed_tokens = self.shared.tools.chunker.fixed_tokens();
        let mut undecided: Vec<&CutNote> = cuts.iter().collect();
        let mut time = FIRST_SLICE;
        loop {
            let more = stage("embed", embedding.collect(time, &mut vectors)).await;
            let (slice, rest) = undecided
                .into_iter()
                .partition(|cut| !more || plan::is_decided(cut, &vectors, fixed_tokens));
            undecided = rest;
            time = SLICE;
            if !slice.is_empty() {
                self.shared.reached(Stage::Embedded).await;
                // Boxed, as is what it awaits: a batch is one task, and its stack is small.
                Box::pin(self.converge_slice(&slice, &vectors, &mut fresh)).await?;
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Dead-letters a note that was claimed alone and ended each process that worked on it.
    async fn fail_lost(&self) -> Result<bool, StoreError> {
        let is_lost = |note: &&&Claimed| note.claims_lost >= MAX_CLAIMS_LOST;
        let Some(lost) = self.notes.values().find(is_lost) else {
            return Ok(false);
        };
        if self.shared.totals.report().notes == 0 {
            return Ok(false);
        }
        let reason = format!(
            "{} claims of it in a row never ended, the last {} of them of this note alone: each \
             time the worker died or lost Postgres for longer than a lease. Look for its end in \
             the log of the workers (out of memory, an abort in the tokenizer)",
            lost.claims_lost,
            lost.claims_lost - CLAIMS_LOST_TOGETHER
        );
        // Its text is not read: to read it may be what ended the others.
        let text = TextHash::of("");
        self.fail(lost.note_id, text, FailedBy::Process, &reason, true)
            .await?;
        Ok(true)
    }

    /// The rows as they are now: later than every outbox row of the claim.
    async fn load(&self) -> Result<(HashMap<Uuid, Note>, DateTime<Utc>), StoreError> {
        let ids: Vec<Uuid> = self.notes.keys().copied().collect();
        let max_bytes = self.shared.settings.max_note_bytes;
        self.shared.tools.store.load_notes(&ids, max_bytes).await
    }

    async fn cut(&self, (mut rows, now): (HashMap<Uuid, Note>, DateTime<Utc>)) -> Vec<CutNote> {
        let chunker = self.shared.tools.chunker.clone();
        let max_bytes = self.shared.settings.max_note_bytes;
        let notes: Vec<(Uuid, Option<Note>)> =
            self.notes.keys().map(|id| (*id, rows.remove(id))).collect();
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

    /// The vectors that need not be paid for again.
    async fn known_vectors(&self, cuts: &[CutNote]) -> Result<Vectors, StoreError> {
        let tools = &self.shared.tools;
        let pieces = cuts.iter().flat_map(|cut| cut.pieces.iter().flatten());
        let hashes: HashSet<TextHash> = pieces.map(|piece| piece.hash).collect();
        let mut vectors = Vectors::new();
        let mut unknown = Vec::new();
        // First those that no commit has yet: one that is committed between the two looks
        // is found by the second.
        for hash in hashes {
            match self.shared.unspent.get(&hash) {
                Some(vector) => drop(vectors.insert(hash, Ok(vector))),
                None => unknown.push(hash),
            }
        }
        let lookup = tools.store.known_vectors(&tools.version.name, &unknown);
        let known = stage("lookup", lookup).await?;
        vectors.extend(known.into_iter().map(|(hash, vector)| (hash, Ok(vector))));
        Ok(vectors)
    }

    /// The texts that have no vector yet, each once. A text without a token is not sent.
    fn missing(&self, cuts: &[CutNote], vectors: &Vectors) -> Vec<Missing> {
        let tools = &self.shared.tools;
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        for cut in cuts {
            let (Some(note), Ok(pieces)) = (&cut.note, &cut.pieces) else {
                continue;
            };
            for Piece { chunk, hash } in pieces {
                let is_sent = chunk.tokens > tools.chunker.fixed_tokens();
                if is_sent && !vectors.contains_key(hash) && seen.insert(*hash) {
                    let text = &note.text[chunk.start..chunk.end];
                    let text = format!("{}{text}", tools.document_prefix);
                    let input = Input::new(text, chunk.tokens);
                    missing.push(Missing { hash: *hash, input });
                }
            }
        }
        missing
    }

    /// Writes the notes that have all of their vectors. Of the others, each fails or waits;
    /// their points follow the access labels of their rows all the same.
    async fn converge_slice(
        &self,
        slice: &[&CutNote],
        vectors: &Vectors,
        fresh: &mut HashSet<TextHash>,
    ) -> Result<(), Interruption> {
        let fixed_tokens = self.shared.tools.chunker.fixed_tokens();
        let notes: HashMap<Uuid, &CutNote> = slice.iter().map(|cut| (cut.note_id, *cut)).collect();
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
            lease::release(self.shared, self.token, &waiting).await;
        }
        Ok(())
    }

    /// Writes notes to both stores and acks them. When a store does not take a write, each
    /// half is written by itself, until the note to blame stands alone. A loop and not a
    /// recursion, so that the stack does not grow with the batch.
    async fn write_or_split(
        &self,
        writes: &[NoteWrite<'_>],
        notes: &HashMap<Uuid, &CutNote>,
        fresh: &mut HashSet<TextHash>,
    ) -> Result<(), Interruption> {
        let mut parts = vec![(writes, 1)];
        while let Some((part, tries)) = parts.pop() {
            let Err(error) = Box::pin(self.write(part, notes, fresh)).await else {
                continue;
            };
            let Some(by) = error.store() else {
                return Err(error);
            };
            // A database or a collection that is not as it must be is no note's fault.
            Box::pin(setup::check(&self.shared.tools)).await?;
            match part {
                [only] if by == FailedBy::Postgres && error.is_rejection() => {
                    self.fail_alone(only, notes, by, &error).await?;
                }
                // The rejection of a part says that some note of it may be to blame; anything
                // else may be the state of the store, and so may the rejection of one alone.
                _ if (part.len() == 1 || !error.is_rejection())
                    && !Box::pin(self.is_another_taken(part)).await? =>
                {
                    return Err(error);
                }
                [only] if error.is_rejection() || tries >= MAX_TRIES_ALONE => {
                    self.fail_alone(only, notes, by, &error).await?;
                }
                [_] => parts.push((part, tries + 1)),
                _ => {
                    let (left, right) = part.split_at(part.len() / 2);
                    parts.push((right, 1));
                    parts.push((left, 1));
                }
            }
        }
        Ok(())
    }

    /// Counts a write that no store takes against its note.
    async fn fail_alone(
        &self,
        write: &NoteWrite<'_>,
        notes: &HashMap<Uuid, &CutNote>,
        by: FailedBy,
        error: &Interruption,
    ) -> Result<(), Interruption> {
        self.follow_access(notes.get(&write.note_id).copied().into_iter())
            .await?;
        let reason = error.to_string();
        self.fail(write.note_id, write.text_hash, by, &reason, false)
            .await?;
        Ok(())
    }

    /// Whether the index takes a point of another note, as it is already. What takes no
    /// point of any note blames none.
    async fn is_another_taken(&self, part: &[NoteWrite<'_>]) -> Result<bool, Interruption> {
        let Tools {
            store,
            index,
            version,
            ..
        } = &self.shared.tools;
        let blamed: HashSet<Uuid> = part.iter().map(|write| write.note_id).collect();
        let mut another = None;
        for after in [Uuid::new_v4(), Uuid::nil()] {
            let page = store
                .live_chunks(&version.name, after, Uuid::max(), 64, Depth::Whole)
                .await?;
            let is_another = |chunk: &crate::store::LiveChunk| {
                chunk.has_vector && !blamed.contains(&chunk.note_id)
            };
            another = another.or(page.into_iter().find(is_another));
        }
        let Some(another) = another else {
            return Ok(false);
        };
        for collection in store.collections(&version.name).await? {
            let target = Target {
                store: store.clone(),
                index: index.clone(),
                version: version.name.clone(),
                collection: collection.name,
                writes: TaskTracker::new(),
            };
            let write = target.write(vec![another.clone()], UpsertMode::NotNewer);
            let is_taken = write.await.is_ok_and(|written| written.refused.is_empty());
            if !is_taken {
                tracing::debug!("the index does not take the point of another note either");
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn write(
        &self,
        writes: &[NoteWrite<'_>],
        notes: &HashMap<Uuid, &CutNote>,
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
        let points = self.index(&committed, &done, notes).await?;
        // A Postgres that was rolled back gives out tokens again, and upserts under them change
        // nothing: seen before the ack.
        let ids: Vec<Uuid> = done.iter().map(|w| w.note_id).collect();
        let checked = rollback::check(&self.shared.tools, self.token, &ids, &committed.collections);
        stage("check", checked).await?;
        let acked = stage("ack", self.ack(&done, notes)).await?;
        self.shared.reached(Stage::Acked).await;

        let cuts = done.iter().map(|write| notes[&write.note_id]);
        self.shared.totals.add(&Report {
            notes: acked,
            points,
            ..plan::effort(cuts, fresh)
        });
        Ok(())
    }

    async fn commit(&self, writes: &[NoteWrite<'_>]) -> Result<Committed, StoreError> {
        let tools = &self.shared.tools;
        let Version { name, dim, .. } = &tools.version;
        let committed = tools.store.commit(name, *dim, self.token, writes).await?;
        let held: Vec<Uuid> = writes
            .iter()
            .map(|w| w.note_id)
            .filter(|id| !committed.notes.contains(id))
            .collect();
        if !held.is_empty() {
            lease::defer(self.shared, self.token, &held).await;
        }
        let done = writes
            .iter()
            .filter(|w| committed.notes.contains(&w.note_id));
        self.shared
            .unspent
            .spend(done.flat_map(|w| &w.chunks).map(|chunk| &chunk.hash));
        Ok(committed)
    }

    /// First the new points, then away with the old ones: there is no moment
    /// without any. Returns how many were written.
    async fn index(
        &self,
        committed: &Committed,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &CutNote>,
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

    /// Acking without a target collection would lose the notes. The check registers one.
    pub(super) fn no_collection(&self) -> Interruption {
        SetupError::Mismatch(format!(
            "no collection is registered for {}",
            self.shared.tools.version.name
        ))
        .into()
    }

    pub(super) async fn upsert(
        &self,
        collections: &[String],
        points: Vec<Point>,
    ) -> Result<(), Interruption> {
        if points.is_empty() {
            return Ok(());
        }
        let index = &self.shared.tools.index;
        for collection in collections {
            let upserted = index.upsert(collection, points.clone(), UpsertMode::NotNewer);
            let upserted = stage("upsert", upserted).await;
            self.unless_retired(collection, upserted).await?;
        }
        Ok(())
    }

    /// Deletes the points of notes that are not newer than this batch, but for those that it
    /// has `written`. Not only the older ones: a retry under the same token may have fewer
    /// chunks than the try before it.
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
            let deleted = self.shared.tools.index.delete(collection, &older);
            let deleted = stage("prune", deleted).await;
            self.unless_retired(collection, deleted).await?;
        }
        Ok(())
    }

    /// A collection that is not there is no matter where a rebuild or a drop has retired
    /// it between our commit and our write: what follows it has our chunks already.
    async fn unless_retired(
        &self,
        collection: &str,
        written: Result<(), IndexError>,
    ) -> Result<(), Interruption> {
        let Err(error @ IndexError::NotFound { .. }) = written else {
            return Ok(written?);
        };
        let Tools { store, version, .. } = &self.shared.tools;
        let targets = store.collections(&version.name).await?;
        if targets.iter().any(|target| target.name == collection) {
            return Err(error.into());
        }
        tracing::debug!(collection, "was retired before it was written");
        Ok(())
    }

    pub(super) fn point(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Point {
        Point {
            payload: Payload {
                note_id: note.note_id,
                chunk_id: chunk.chunk_id,
                chunk_index: chunk.chunk_index,
                start_offset: chunk.start as u64,
                end_offset: chunk.end as u64,
                status: note.status.clone(),
                expires_at: note.expires_at,
                labels: note.labels.clone(),
                embedding_version: self.shared.tools.version.name.clone(),
                revision: self.token,
            },
            vector: chunk.vector.to_vec(),
            text: chunk.text.to_owned(),
        }
    }

    /// Deletes the outbox rows that the claim saw, and returns of how many notes.
    async fn ack(
        &self,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &CutNote>,
    ) -> Result<u64, StoreError> {
        let tools = &self.shared.tools;
        let version = &tools.version.name;
        let claimed: Vec<(&Claimed, _)> = done
            .iter()
            .map(|write| (self.notes[&write.note_id], write.access))
            .collect();
        let done: HashSet<Uuid> = done.iter().map(|w| w.note_id).collect();
        let keep_done = !self.shared.keep_done.is_zero();
        let acked = tools
            .store
            .ack(version, self.token, &claimed, keep_done)
            .await?;
        let acked: HashSet<Uuid> = acked.into_iter().collect();

        // Somebody else holds these now and may have cleaned up before our points
        // came. One more round, under a higher token, leaves no trace of them.
        let lost: Vec<Uuid> = done.difference(&acked).copied().collect();
        if !lost.is_empty() {
            tracing::warn!(
                notes = lost.len(),
                token = self.token,
                "leases ran out before the work was done"
            );
            counter!("elf_leases_lost_total").increment(lost.len() as u64);
            tools.store.requeue(version, &lost).await?;
        }
        let gone: Vec<Uuid> = acked
            .iter()
            .filter(|id| notes[*id].note.is_none())
            .copied()
            .collect();
        if !gone.is_empty() {
            tools.store.forget(version, self.token, &gone).await?;
        }
        let now = Utc::now();
        for (claimed, _) in claimed.iter().filter(|(c, _)| acked.contains(&c.note_id)) {
            let age = (now - claimed.oldest).to_std().unwrap_or_default();
            self.shared.totals.became_searchable(age);
            self.spans[&claimed.note_id].record("outcome", "indexed");
        }
        Ok(acked.len() as u64)
    }

    /// Counts a failure of `text` against its note.
    async fn fail(
        &self,
        note_id: Uuid,
        text: TextHash,
        by: FailedBy,
        reason: &str,
        permanent: bool,
    ) -> Result<(), StoreError> {
        let claimed = self.notes[&note_id];
        let Shared {
            tools,
            settings,
            totals,
            ..
        } = &**self.shared;
        let failures = match claimed.failed {
            Some((same, failures)) if same == text => failures + 1,
            _ => 1,
        };
        let retry = retry::after_failure(settings, failures, permanent, rand::random());
        let failure = Failure {
            reason,
            by,
            text,
            failures,
            retry,
            // What ended its workers is claimed alone when it comes back, and gets as many
            // tries again.
            claims_lost: match by {
                FailedBy::Process => CLAIMS_LOST_TOGETHER,
                _ => 0,
            },
        };
        let version = &tools.version.name;
        self.shared.in_flight.settle(self.token, &[note_id]);
        if !tools
            .store
            .fail(version, self.token, claimed, failure)
            .await?
        {
            return Ok(());
        }
        totals.failed();
        // What a trigger of the application's says may hold the text; `elf dead show` has it.
        let told =
            matches!(by, FailedBy::Text | FailedBy::Provider | FailedBy::Process).then_some(reason);
        let span = &self.spans[&note_id];
        let _inside = span.enter();
        match retry {
            Retry::Never => {
                totals.died(by);
                span.record("outcome", "dead");
                tracing::warn!(
                    failures,
                    by = by.as_str(),
                    reason = told,
                    "note dead-lettered; see `elf dead list`"
                );
            }
            Retry::After(delay) => {
                span.record("outcome", "failed");
                tracing::info!(
                    failures,
                    ?delay,
                    by = by.as_str(),
                    reason = told,
                    "note failed, to be retried"
                );
            }
        }
        Ok(())
    }
}

/// Times a part of a batch's way, and makes it a span.
pub(super) fn stage<'w, T>(
    name: &'static str,
    work: impl Future<Output = T> + Send + 'w,
) -> BoxFuture<'w, T> {
    let span = tracing::info_span!("stage", otel.name = name, name);
    let seconds = histogram!("elf_stage_seconds", "stage" => name);
    telemetry::timed(span, seconds, work)
}
