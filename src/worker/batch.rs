//! The way of a batch of notes, from the claim to the ack.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use metrics::{counter, histogram};
use tracing::{Instrument, Span};
use uuid::Uuid;

use super::lease::{self, Heartbeat};
use super::plan::{self, Blame, Cut, Piece, Vectors};
use super::setup::{self, SetupError};
use super::{Report, Shared, Stage, Tools, retry, rollback};
use crate::embed::provider::Input;
use crate::index::{Filter, IndexError, Payload, Point, UpsertMode};
use crate::note::{Note, TextHash};
use crate::store::{
    ChunkWrite, Claim, Claimed, Committed, FailedBy, Failure, NoteWrite, Retry, StoreError, Version,
};
use crate::telemetry;

/// Takes a batch all the way. What cannot be done now is given back; what a note
/// itself is to blame for is counted against that note alone.
pub(super) async fn run(shared: &Arc<Shared>, claim: Claim) {
    let notes = claim.notes.len();
    let span = tracing::info_span!("batch", token = claim.token, notes);
    histogram!("elf_batch_notes").record(notes as f64);
    let _in_flight = shared.totals.began_batch();
    go(shared, claim).instrument(span).await;
}

async fn go(shared: &Arc<Shared>, claim: Claim) {
    let heartbeat = Heartbeat::start(shared, &claim);
    let spans = note_spans(&claim.notes);
    shared.reached(Stage::Claimed).await;
    if let Err(interruption) = settle(shared, claim.token, &claim.notes, &spans).await {
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
enum Interruption {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl Interruption {
    /// Who rejects what was sent, where that may be to blame and not who it was sent to.
    fn rejected_by(&self) -> Option<FailedBy> {
        match self {
            Self::Store(StoreError::Rejected(_)) => Some(FailedBy::Postgres),
            Self::Index(IndexError::Refused { .. }) => Some(FailedBy::Index),
            _ => None,
        }
    }
}

/// Converges notes. When a store rejects something of theirs, each half goes
/// again by itself, until the note to blame stands alone.
async fn settle(
    shared: &Arc<Shared>,
    token: i64,
    notes: &[Claimed],
    spans: &NoteSpans,
) -> Result<(), Interruption> {
    let batch = Batch {
        shared,
        token,
        notes,
        spans,
    };
    let Err(rejection) = batch.converge().await else {
        return Ok(());
    };
    let Some(by) = rejection.rejected_by() else {
        return Err(rejection);
    };
    // A database or a collection that is not as it must be is no note's fault.
    setup::check(&shared.tools).await?;
    if let [only] = notes {
        // Which text it was is not known; it counts as the same each time.
        let text = TextHash::of("");
        return Ok(batch
            .fail(only.note_id, text, by, &rejection.to_string(), false)
            .await?);
    }
    let (left, right) = notes.split_at(notes.len() / 2);
    Box::pin(settle(shared, token, left, spans)).await?;
    Box::pin(settle(shared, token, right, spans)).await
}

struct Batch<'a> {
    shared: &'a Arc<Shared>,
    token: i64,
    notes: &'a [Claimed],
    spans: &'a NoteSpans,
}

impl Batch<'_> {
    async fn converge(&self) -> Result<(), Interruption> {
        let rows = stage("load", self.load()).await?;
        let cuts = stage("cut", self.cut(rows)).await;
        self.shared.reached(Stage::Chunked).await;

        let (vectors, fresh) = self.vectors(&cuts).await?;
        self.shared.reached(Stage::Embedded).await;

        let writes = self.writes(&cuts, &vectors).await?;
        let committed = stage("commit", self.commit(&writes)).await?;
        self.shared.reached(Stage::Committed).await;

        let done: Vec<&NoteWrite> = writes
            .iter()
            .filter(|w| committed.notes.contains(&w.note_id))
            .collect();
        let notes: HashMap<Uuid, &Note> = cuts
            .iter()
            .filter_map(|c| Some((c.note_id, c.note.as_ref()?)))
            .collect();
        let points = self.index(&committed, &done, &notes).await?;
        // A Postgres that was rolled back gives out tokens again, and upserts under them change
        // nothing: seen before the ack.
        let ids: Vec<Uuid> = done.iter().map(|w| w.note_id).collect();
        let checked = rollback::check(&self.shared.tools, self.token, &ids, &committed.collections);
        stage("check", checked).await?;
        let acked = stage("ack", self.ack(&done, &notes)).await?;
        self.shared.reached(Stage::Acked).await;

        let done: HashSet<Uuid> = done.iter().map(|w| w.note_id).collect();
        let done = cuts.iter().filter(|cut| done.contains(&cut.note_id));
        self.shared.totals.add(&Report {
            notes: acked,
            points,
            ..plan::effort(done, &fresh)
        });
        Ok(())
    }

    /// The rows as they are now: later than every outbox row of the claim.
    async fn load(&self) -> Result<(HashMap<Uuid, Note>, DateTime<Utc>), StoreError> {
        let ids: Vec<Uuid> = self.notes.iter().map(|n| n.note_id).collect();
        self.shared.tools.store.load_notes(&ids).await
    }

    async fn cut(&self, (mut rows, now): (HashMap<Uuid, Note>, DateTime<Utc>)) -> Vec<Cut> {
        let chunker = self.shared.tools.chunker.clone();
        let notes: Vec<(Uuid, Option<Note>)> = self
            .notes
            .iter()
            .map(|n| (n.note_id, rows.remove(&n.note_id)))
            .collect();
        let cut_all = move || {
            notes
                .into_iter()
                .map(|(id, note)| plan::cut(&chunker, id, note, now))
                .collect()
        };
        tokio::task::spawn_blocking(cut_all)
            .await
            .expect("a panic is caught note by note")
    }

    /// A vector, or why there is none, for every text of the batch; and which
    /// texts were embedded for it.
    async fn vectors(&self, cuts: &[Cut]) -> Result<(Vectors, HashSet<TextHash>), StoreError> {
        let tools = &self.shared.tools;
        let mut texts: HashMap<TextHash, (&str, usize)> = HashMap::new();
        for cut in cuts {
            let (Some(note), Ok(pieces)) = (&cut.note, &cut.pieces) else {
                continue;
            };
            for Piece { chunk, hash } in pieces {
                texts.insert(*hash, (&note.text[chunk.start..chunk.end], chunk.tokens));
            }
        }
        let hashes: Vec<TextHash> = texts.keys().copied().collect();
        let mut known = stage(
            "lookup",
            tools.store.known_vectors(&tools.version.name, &hashes),
        )
        .await?;
        for hash in &hashes {
            if let Some(vector) = self.shared.unspent.get(hash) {
                known.insert(*hash, vector);
            }
        }
        let unknown: Vec<(TextHash, (&str, usize))> = texts
            .into_iter()
            .filter(|(hash, (_, tokens))| {
                !known.contains_key(hash) && *tokens > tools.chunker.fixed_tokens()
            })
            .collect();
        let inputs: Vec<Input> = unknown
            .iter()
            .map(|(_, (text, tokens))| {
                Input::new(format!("{}{text}", tools.document_prefix), *tokens)
            })
            .collect();
        let outcomes = stage("embed", tools.provider.embed(&inputs)).await;
        let mut fresh = HashSet::new();
        let mut vectors: Vectors = known
            .into_iter()
            .map(|(hash, vector)| (hash, Ok(vector)))
            .collect();
        let mut tokens = 0;
        for ((hash, (_, count)), outcome) in unknown.into_iter().zip(outcomes) {
            if let Ok(vector) = &outcome {
                tokens += count as u64;
                self.shared.unspent.keep(hash, vector.clone());
                fresh.insert(hash);
            }
            vectors.insert(hash, outcome);
        }
        self.shared.totals.add(&Report {
            embedded: fresh.len() as u64,
            tokens,
            ..Report::default()
        });
        Ok((vectors, fresh))
    }

    /// What can be written. Of the other notes, each is failed or given back.
    async fn writes<'c>(
        &self,
        cuts: &'c [Cut],
        vectors: &Vectors,
    ) -> Result<Vec<NoteWrite<'c>>, StoreError> {
        let fixed_tokens = self.shared.tools.chunker.fixed_tokens();
        let (mut writes, mut waiting) = (Vec::new(), Vec::new());
        for cut in cuts {
            match plan::write_of(cut, vectors, fixed_tokens) {
                Ok(write) => writes.push(write),
                Err(Blame::Nobody) => waiting.push(cut.note_id),
                Err(Blame::Note {
                    reason,
                    by,
                    permanent,
                }) => {
                    let text = TextHash::of(cut.note.as_ref().map_or("", |note| &note.text));
                    self.fail(cut.note_id, text, by, &reason, permanent).await?;
                }
            }
        }
        if !waiting.is_empty() {
            lease::release(self.shared, self.token, &waiting).await;
        }
        Ok(writes)
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
        notes: &HashMap<Uuid, &Note>,
    ) -> Result<u64, Interruption> {
        if done.is_empty() {
            return Ok(0);
        }
        if committed.collections.is_empty() {
            // To ack what nobody has would be to lose it. The check registers one.
            return Err(SetupError::Mismatch(format!(
                "no collection is registered for {}",
                self.shared.tools.version.name
            ))
            .into());
        }
        let index = &self.shared.tools.index;
        let points: Vec<Point> = done
            .iter()
            .filter_map(|write| Some((write, notes.get(&write.note_id)?)))
            .flat_map(|(write, note)| write.chunks.iter().map(|chunk| self.point(note, chunk)))
            .collect();
        let written = points.len() as u64;
        if !points.is_empty() {
            for collection in &committed.collections {
                let upserted = index.upsert(collection, points.clone(), UpsertMode::NotNewer);
                let upserted = stage("upsert", upserted).await;
                self.unless_retired(collection, upserted).await?;
            }
        }
        self.shared.reached(Stage::Upserted).await;

        // A retry under the same token may find fewer chunks than the try before has written.
        let written_ids = done.iter().flat_map(|w| &w.chunks).map(|c| c.chunk_id);
        let older = Filter {
            note_ids: Some(done.iter().map(|w| w.note_id).collect()),
            except_chunk_ids: Some(written_ids.collect()),
            revision_below: Some(self.token + 1),
            ..Filter::default()
        };
        for collection in &committed.collections {
            let deleted = stage("prune", index.delete(collection, &older)).await;
            self.unless_retired(collection, deleted).await?;
        }
        self.shared.reached(Stage::Pruned).await;
        Ok(written)
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

    fn point(&self, note: &Note, chunk: &ChunkWrite<'_>) -> Point {
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

    /// Settles the outbox rows, and returns of how many notes.
    async fn ack(
        &self,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &Note>,
    ) -> Result<u64, StoreError> {
        let tools = &self.shared.tools;
        let version = &tools.version.name;
        let done: HashSet<Uuid> = done.iter().map(|w| w.note_id).collect();
        let claimed: Vec<&Claimed> = self
            .notes
            .iter()
            .filter(|c| done.contains(&c.note_id))
            .collect();
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
            .filter(|id| !notes.contains_key(id))
            .copied()
            .collect();
        if !gone.is_empty() {
            tools.store.forget(version, self.token, &gone).await?;
        }
        let now = Utc::now();
        for claimed in claimed.iter().filter(|c| acked.contains(&c.note_id)) {
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
        let Some(claimed) = self.notes.iter().find(|c| c.note_id == note_id) else {
            return Ok(());
        };
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
        let told = matches!(by, FailedBy::Text | FailedBy::Provider).then_some(reason);
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
                    "gave a note up; see `elf dead list`"
                );
            }
            Retry::After(delay) => {
                span.record("outcome", "failed");
                tracing::info!(
                    failures,
                    ?delay,
                    by = by.as_str(),
                    reason = told,
                    "a note failed"
                );
            }
        }
        Ok(())
    }
}

/// Times a part of a batch's way, and makes it a span.
async fn stage<T>(name: &'static str, work: impl Future<Output = T>) -> T {
    let span = tracing::info_span!("stage", otel.name = name, name);
    let seconds = histogram!("elf_stage_seconds", "stage" => name);
    telemetry::timed(span, seconds, work).await
}
