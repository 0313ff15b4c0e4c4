//! The way of a batch of notes, from the claim to the ack.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::lease::{self, Heartbeat};
use super::{Report, Shared, Stage, pooled, retry};
use crate::chunk::{Chunk, ChunkError, Chunker};
use crate::embed::EmbedError;
use crate::embed::provider::Input;
use crate::index::{Filter, IndexError, Payload, Point, UpsertMode};
use crate::note::{Note, TextHash, chunk_id};
use crate::store::{ChunkWrite, Claim, Claimed, Committed, NoteWrite, Retry, StoreError, Version};
use crate::telemetry;

/// Takes a batch all the way. What cannot be done now is given back; what a note
/// itself is to blame for is counted against that note alone.
pub(super) async fn run(shared: &Arc<Shared>, claim: Claim) {
    let heartbeat = Heartbeat::start(shared, &claim);
    let batch = Batch {
        shared,
        claim: &claim,
    };
    shared.reached(Stage::Claimed).await;
    if let Err(interruption) = batch.converge().await {
        // Those that were acked before are not leased any more; this changes nothing for them.
        lease::release(shared, claim.token, &claim.note_ids()).await;
        shared.gate.close(interruption.to_string());
    }
    drop(heartbeat);
}

struct Batch<'a> {
    shared: &'a Arc<Shared>,
    claim: &'a Claim,
}

/// A store failed, so that nothing can be said of any note.
#[derive(Debug, thiserror::Error)]
enum Interruption {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// A note of the batch, read and cut.
struct Cut {
    note_id: Uuid,
    /// `None` when its row is gone.
    note: Option<Note>,
    /// Whether it is to be found.
    live: bool,
    pieces: Result<Vec<Piece>, ChunkError>,
}

/// A chunk before it has its vector.
#[derive(Clone, Copy)]
struct Piece {
    chunk: Chunk,
    hash: TextHash,
}

type Vectors = HashMap<TextHash, Result<Arc<[f32]>, EmbedError>>;

impl Batch<'_> {
    async fn converge(&self) -> Result<(), Interruption> {
        let cuts = self.cut(self.load().await?).await;
        self.shared.reached(Stage::Chunked).await;

        let (vectors, embedded) = self.vectors(&cuts).await?;
        self.shared.reached(Stage::Embedded).await;

        let mut writes = Vec::new();
        for cut in &cuts {
            match write_of(cut, &vectors, self.shared.tools.chunker.fixed_tokens()) {
                Ok(write) => writes.push(write),
                Err(Blame::Nobody) => self.give_back(cut.note_id).await,
                Err(Blame::Note { reason, permanent }) => {
                    self.fail(cut.note_id, &reason, permanent).await?;
                }
            }
        }
        let notes: HashMap<Uuid, &Note> = cuts
            .iter()
            .filter_map(|c| Some((c.note_id, c.note.as_ref()?)))
            .collect();
        let (chunks, points) = self.write(&writes, &notes).await?;
        self.shared.totals.add(&Report {
            chunks,
            points,
            embedded: embedded as u64,
            reused: chunks.saturating_sub(embedded as u64),
            ..Report::default()
        });
        Ok(())
    }

    /// The rows as they are now: later than every outbox row of the claim.
    async fn load(&self) -> Result<(HashMap<Uuid, Note>, DateTime<Utc>), StoreError> {
        self.shared
            .tools
            .store
            .load_notes(&self.claim.note_ids())
            .await
    }

    async fn cut(&self, (mut rows, now): (HashMap<Uuid, Note>, DateTime<Utc>)) -> Vec<Cut> {
        let chunker = self.shared.tools.chunker.clone();
        let notes: Vec<(Uuid, Option<Note>)> = self
            .claim
            .notes
            .iter()
            .map(|c| (c.note_id, rows.remove(&c.note_id)))
            .collect();
        let cut_all = move || {
            notes
                .into_iter()
                .map(|(id, note)| cut(&chunker, id, note, now))
                .collect()
        };
        tokio::task::spawn_blocking(cut_all)
            .await
            .expect("cutting does not panic")
    }

    /// A vector, or why there is none, for every text of the batch; and how many
    /// texts were embedded for it.
    async fn vectors(&self, cuts: &[Cut]) -> Result<(Vectors, usize), StoreError> {
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
        let known = tools
            .store
            .known_vectors(&tools.version.name, &hashes)
            .await?;
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
        let outcomes = tools.provider.embed(&inputs).await;
        let embedded = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let fresh = unknown.iter().map(|(hash, _)| *hash).zip(outcomes);
        Ok((
            known
                .into_iter()
                .map(|(hash, vector)| (hash, Ok(vector)))
                .chain(fresh)
                .collect(),
            embedded,
        ))
    }

    /// Postgres, then the index, then the outbox. Returns chunks and points written.
    async fn write(
        &self,
        writes: &[NoteWrite<'_>],
        notes: &HashMap<Uuid, &Note>,
    ) -> Result<(u64, u64), Interruption> {
        if writes.is_empty() {
            return Ok((0, 0));
        }
        let committed = match self.commit(writes).await {
            Ok(committed) => committed,
            // One of the notes has something that Postgres does not take.
            Err(StoreError::Rejected(error)) => {
                let [only] = writes else {
                    let (left, right) = writes.split_at(writes.len() / 2);
                    let one = Box::pin(self.write(left, notes)).await?;
                    let other = Box::pin(self.write(right, notes)).await?;
                    return Ok((one.0 + other.0, one.1 + other.1));
                };
                self.fail(
                    only.note_id,
                    &format!("Postgres rejected it: {error}"),
                    false,
                )
                .await?;
                return Ok((0, 0));
            }
            Err(error) => return Err(error.into()),
        };
        self.shared.reached(Stage::Committed).await;

        let done: Vec<&NoteWrite> = writes
            .iter()
            .filter(|w| committed.notes.contains(&w.note_id))
            .collect();
        let chunks = done.iter().map(|w| w.chunks.len() as u64).sum();
        let points = self.index(&committed, &done, notes).await?;
        self.ack(&done, notes).await?;
        Ok((chunks, points))
    }

    async fn commit(&self, writes: &[NoteWrite<'_>]) -> Result<Committed, StoreError> {
        let tools = &self.shared.tools;
        let Version { name, dim, .. } = &tools.version;
        let committed = tools
            .store
            .commit(name, *dim, self.claim.token, writes)
            .await?;
        for write in writes
            .iter()
            .filter(|w| !committed.notes.contains(&w.note_id))
        {
            self.give_back(write.note_id).await;
        }
        Ok(committed)
    }

    /// First the new points, then away with the old ones: there is no moment
    /// without any.
    async fn index(
        &self,
        committed: &Committed,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &Note>,
    ) -> Result<u64, IndexError> {
        let index = &self.shared.tools.index;
        let points: Vec<Point> = done
            .iter()
            .filter_map(|write| Some((write, notes.get(&write.note_id)?)))
            .flat_map(|(write, note)| write.chunks.iter().map(|chunk| self.point(note, chunk)))
            .collect();
        let written = points.len() as u64;
        if !points.is_empty() {
            for collection in &committed.collections {
                index
                    .upsert(collection, points.clone(), UpsertMode::NotNewer)
                    .await?;
            }
        }
        self.shared.reached(Stage::Upserted).await;

        let older = Filter {
            note_ids: Some(done.iter().map(|w| w.note_id).collect()),
            revision_below: Some(self.claim.token),
            ..Filter::default()
        };
        for collection in &committed.collections {
            index.delete(collection, &older).await?;
        }
        self.shared.reached(Stage::Pruned).await;
        Ok(written)
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
                revision: self.claim.token,
            },
            vector: chunk.vector.to_vec(),
            text: chunk.text.to_owned(),
        }
    }

    async fn ack(
        &self,
        done: &[&NoteWrite<'_>],
        notes: &HashMap<Uuid, &Note>,
    ) -> Result<(), StoreError> {
        let tools = &self.shared.tools;
        let (version, token) = (&tools.version.name, self.claim.token);
        let done: HashSet<Uuid> = done.iter().map(|w| w.note_id).collect();
        let claimed: Vec<&Claimed> = self
            .claim
            .notes
            .iter()
            .filter(|c| done.contains(&c.note_id))
            .collect();
        let keep_done = !self.shared.keep_done.is_zero();
        let acked: HashSet<Uuid> = tools
            .store
            .ack(version, token, &claimed, keep_done)
            .await?
            .into_iter()
            .collect();

        // Somebody else holds these now and may have cleaned up before our points
        // came. One more round, under a higher token, leaves no trace of them.
        let lost: Vec<Uuid> = done.difference(&acked).copied().collect();
        if !lost.is_empty() {
            tracing::warn!(
                notes = lost.len(),
                token,
                "leases ran out before the work was done"
            );
            metrics::counter!("elf_leases_lost_total").increment(lost.len() as u64);
            tools.store.requeue(version, &lost).await?;
        }
        let gone: Vec<Uuid> = acked
            .iter()
            .filter(|id| !notes.contains_key(id))
            .copied()
            .collect();
        if !gone.is_empty() {
            tools.store.forget(version, token, &gone).await?;
        }
        let now = Utc::now();
        for claimed in claimed.iter().filter(|c| acked.contains(&c.note_id)) {
            telemetry::freshness(now - claimed.oldest);
        }
        self.shared.totals.add(&Report {
            notes: acked.len() as u64,
            ..Report::default()
        });
        self.shared.reached(Stage::Acked).await;
        Ok(())
    }

    /// No fault of the note: it is due again at once.
    async fn give_back(&self, note_id: Uuid) {
        lease::release(self.shared, self.claim.token, &[note_id]).await;
    }

    async fn fail(&self, note_id: Uuid, reason: &str, permanent: bool) -> Result<(), StoreError> {
        let Some(claimed) = self.claim.notes.iter().find(|c| c.note_id == note_id) else {
            return Ok(());
        };
        let failures = claimed.attempts as u32 + 1;
        let retry =
            retry::after_failure(&self.shared.settings, failures, permanent, rand::random());
        let tools = &self.shared.tools;
        tools
            .store
            .fail(
                &tools.version.name,
                self.claim.token,
                claimed,
                reason,
                retry,
            )
            .await?;
        match retry {
            Retry::Never => {
                tracing::warn!(%note_id, failures, reason, "gave a note up; see `elf dead list`");
                self.shared.totals.died();
            }
            Retry::After(delay) => {
                tracing::info!(%note_id, failures, ?delay, reason, "a note failed")
            }
        }
        Ok(())
    }
}

/// Who is to blame for a note that cannot be written.
enum Blame {
    /// The provider is away: the note is due as before.
    Nobody,
    /// The note: one more failure.
    Note { reason: String, permanent: bool },
}

fn cut(chunker: &Chunker, note_id: Uuid, note: Option<Note>, now: DateTime<Utc>) -> Cut {
    let live = note.as_ref().is_some_and(|n| n.is_live(now));
    let pieces = match &note {
        Some(note) if live => chunker.chunk(&note.text).map(|chunks| {
            let piece = |chunk: Chunk| Piece {
                chunk,
                hash: TextHash::of(&note.text[chunk.start..chunk.end]),
            };
            chunks.into_iter().map(piece).collect()
        }),
        _ => Ok(Vec::new()),
    };
    Cut {
        note_id,
        note,
        live,
        pieces,
    }
}

/// What a note is to become. `fixed_tokens` are those of a text without any.
fn write_of<'a>(
    cut: &'a Cut,
    vectors: &Vectors,
    fixed_tokens: usize,
) -> Result<NoteWrite<'a>, Blame> {
    let pieces = cut.pieces.as_ref().map_err(|error| Blame::Note {
        reason: error.to_string(),
        // The same text is cut the same way next time.
        permanent: true,
    })?;
    let text = cut.note.as_ref().map_or("", |note| note.text.as_str());
    let mut chunks = Vec::with_capacity(pieces.len());
    for (i, Piece { chunk, hash }) in pieces.iter().enumerate() {
        let vector = match vectors.get(hash) {
            Some(Ok(vector)) => vector.clone(),
            Some(Err(EmbedError::Input { reason })) => {
                let (start, end) = (chunk.start, chunk.end);
                let reason = format!("its text at {start}..{end} cannot be embedded: {reason}");
                return Err(Blame::Note {
                    reason,
                    permanent: false,
                });
            }
            None if chunk.tokens <= fixed_tokens => {
                let (start, end) = (chunk.start, chunk.end);
                let reason = format!(
                    "its text at {start}..{end} has no token left after the tokenizer's \
                     normalisation (control characters only?)"
                );
                return Err(Blame::Note {
                    reason,
                    permanent: true,
                });
            }
            _ => return Err(Blame::Nobody),
        };
        chunks.push(ChunkWrite {
            chunk_id: chunk_id(cut.note_id, i as u32),
            chunk_index: i as u32,
            start: chunk.start,
            end: chunk.end,
            text: &text[chunk.start..chunk.end],
            hash: *hash,
            vector,
        });
    }
    let all: Vec<Arc<[f32]>> = chunks.iter().map(|c| c.vector.clone()).collect();
    Ok(NoteWrite {
        note_id: cut.note_id,
        text_hash: TextHash::of(text),
        pooled: pooled::mean(&all),
        chunks,
        live: cut.live,
    })
}
