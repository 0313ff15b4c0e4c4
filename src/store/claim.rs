//! Leases: which worker indexes a note, under which token, and with which outcome.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Limit, Store, StoreError};
use crate::note::{AccessHash, TextHash};

/// A note with this many lost claims is claimed alone, and indexed while its worker has nothing else in flight.
/// If it kills the next worker too, no other note loses its claim.
pub const LOST_CLAIMS_UNTIL_ALONE: u32 = 2;

/// Notes of a claim that may not read how long they are, and how it says so.
const NOTES_OF_ANY_LENGTH: usize = 16;
const ANY_LENGTH: i64 = -1;

/// A batch of notes leased to one worker under one token.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The lease token, higher than that of any earlier claim of these notes. It is the
    /// revision of the points written under it.
    pub token: i64,
    /// The notes, each once.
    pub notes: Vec<Claimed>,
    /// The last outbox row that the claim picked.
    pub upto: Position,
    /// Whether there may be more notes of its scope.
    pub has_more: bool,
}

/// Which of the outbox rows that are due a claim reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// All of them.
    All,
    /// Those behind this one.
    After(Position),
    /// Those that became due within this time.
    Within(Duration),
}

/// Which of the notes that are due a claim takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimScope {
    /// Only notes with such a row.
    pub due: Due,
    /// Only notes with fewer lost claims than this.
    pub lost_below: u32,
    /// What it means for the notes if the claim is lost.
    pub blame: Blame,
}

/// Whether a note may be to blame for a claim of it that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The next claim counts it.
    IfLost,
    /// No text is indexed under the claim.
    Never,
}

impl ClaimScope {
    /// All due notes.
    pub const ALL: Self = Self {
        due: Due::All,
        lost_below: u32::MAX,
        blame: Blame::IfLost,
    };
}

/// A place in the order in which claims pick outbox rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// When the row was due.
    pub available_at: DateTime<Utc>,
    /// Orders the rows that were due at the same time.
    pub outbox_id: Uuid,
}

/// A leased note and the outbox rows that its ack deletes.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// It may be deleted: an outbox row outlives its note.
    pub note_id: Uuid,
    /// The rows that were committed before the claim, the newest last.
    pub outbox_ids: Vec<Uuid>,
    /// The text that failed last, and how often in a row. `None` when the last attempt
    /// succeeded.
    pub failed: Option<(TextHash, u32)>,
    /// Claims in a row, before this one, whose lease expired because their workers died.
    pub lost_claims: u32,
    /// The hash of the access labels of its points, where it is known.
    pub access: Option<AccessHash>,
    /// The number of chunks when it was last indexed; 0 means that it has no points.
    pub chunk_count: u32,
    /// The text whose chunks Postgres has.
    pub text: Option<TextHash>,
    /// Since when the oldest row waits: since it was written, or since it was due if an
    /// application scheduled it for later.
    pub oldest: DateTime<Utc>,
}

/// Host and process of this worker, so that an operator can see which one holds a lease.
pub fn holder() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!(
        "{}:{}:{:04x}",
        host.trim(),
        std::process::id(),
        rand::random::<u16>()
    )
}

impl Claim {
    /// The ids of the claimed notes.
    pub fn note_ids(&self) -> Vec<Uuid> {
        self.notes.iter().map(|n| n.note_id).collect()
    }
}

impl Store {
    /// Leases up to `max_notes` due notes of `scope` with about `max_bytes` of text together,
    /// oldest first. A note with [`LOST_CLAIMS_UNTIL_ALONE`] lost claims is claimed alone.
    /// `None` when no note is due. If Postgres cannot read how long a note is, because a page is lost
    /// on its disk, the claim is of few notes of any length: loading them finds the one.
    pub async fn claim(
        &self,
        version: &str,
        holder: &str,
        lease: Duration,
        max_notes: usize,
        max_bytes: usize,
        scope: ClaimScope,
    ) -> Result<Option<Claim>, StoreError> {
        let bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let sized = self.claim_sized(version, holder, lease, max_notes, bytes, scope);
        match sized.await {
            Err(StoreError::Unreadable(_)) => {
                let few = max_notes.min(NOTES_OF_ANY_LENGTH);
                self.claim_sized(version, holder, lease, few, ANY_LENGTH, scope)
                    .await
            }
            claimed => claimed,
        }
    }

    async fn claim_sized(
        &self,
        version: &str,
        holder: &str,
        lease: Duration,
        max_notes: usize,
        max_bytes: i64,
        scope: ClaimScope,
    ) -> Result<Option<Claim>, StoreError> {
        let after = match scope.due {
            Due::After(position) => Some(position),
            Due::All | Due::Within(_) => None,
        };
        let within_secs = match scope.due {
            Due::Within(time) => Some(time.as_secs_f64()),
            Due::All | Due::After(_) => None,
        };
        let work = async {
            let rows = sqlx::query_file!(
                "sql/queries/claim.sql",
                version,
                holder,
                lease.as_secs_f64(),
                max_notes as i32,
                max_bytes,
                after.map(|position| position.available_at),
                after.map(|position| position.outbox_id),
                LOST_CLAIMS_UNTIL_ALONE as i32,
                i32::try_from(scope.lost_below).unwrap_or(i32::MAX),
                within_secs,
                scope.blame == Blame::IfLost
            )
            .fetch_all(&self.keyed)
            .await?;
            let Some(token) = rows.first().map(|row| row.lease_token) else {
                return Ok(None);
            };
            let upto = rows.iter().map(|row| Position {
                available_at: row.picked_at,
                outbox_id: row.picked_id,
            });
            let upto = upto.max().expect("a claim without notes has ended above");
            let picks = rows.first().map_or(0, |row| row.picks as usize);
            let notes: Vec<Claimed> = rows
                .into_iter()
                .map(|row| Claimed {
                    note_id: row.note_id,
                    outbox_ids: row.outbox_ids,
                    failed: row.failed_sha256.and_then(|hash| {
                        Some((TextHash(hash.try_into().ok()?), row.failures as u32))
                    }),
                    lost_claims: row.claims_lost as u32,
                    access: row
                        .access_sha256
                        .and_then(|hash| Some(AccessHash(hash.try_into().ok()?))),
                    chunk_count: row.chunk_count as u32,
                    text: row
                        .text_sha256
                        .and_then(|hash| Some(TextHash(hash.try_into().ok()?))),
                    oldest: row.oldest,
                })
                .collect();
            // A suspect is picked alone. A note that is picked and not leased was one too many
            // bytes.
            let is_alone = notes[0].lost_claims >= LOST_CLAIMS_UNTIL_ALONE;
            let has_more = is_alone || picks > notes.len() || picks >= max_notes;
            Ok(Some(Claim {
                token,
                notes,
                upto,
                has_more,
            }))
        };
        self.measured("claim", work).await
    }

    /// Renews the leases on `notes`: they expire in `lease` from now.
    pub async fn renew_leases(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
        lease: Duration,
    ) -> Result<(), StoreError> {
        let secs = lease.as_secs_f64();
        let renew = sqlx::query_file!("sql/queries/renew_leases.sql", version, token, notes, secs);
        self.asked("renew", renew.execute(&self.pool)).await?;
        Ok(())
    }

    /// Those of `notes` that no claim after that of `token` has taken over.
    pub async fn held(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
    ) -> Result<Vec<Uuid>, StoreError> {
        let held = sqlx::query_file_scalar!("sql/queries/held_notes.sql", version, notes, token)
            .fetch_all(&self.pool);
        self.answered(Limit::Statement, held).await
    }

    /// Ends leases: the notes are due again after `pause`, and no attempt is counted. With `survived`
    /// the number of lost claims goes back to 0. Returns those whose lease was still that of
    /// `token`.
    pub async fn release(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
        pause: Duration,
        survived: bool,
    ) -> Result<Vec<Uuid>, StoreError> {
        let released = sqlx::query_file_scalar!(
            "sql/queries/release.sql",
            version,
            token,
            notes,
            pause.as_secs_f64(),
            survived
        );
        self.asked("release", released.fetch_all(&self.pool)).await
    }

    /// Deletes the claimed rows of `notes` and ends their leases. Each note comes with the hash
    /// of the access labels that its points have now. Returns the notes whose lease was still
    /// held; the rows of the others stay.
    pub async fn ack(
        &self,
        version: &str,
        token: i64,
        notes: &[(&Claimed, Option<AccessHash>)],
        keep_done: bool,
    ) -> Result<Vec<Uuid>, StoreError> {
        let note_ids: Vec<Uuid> = notes.iter().map(|(n, _)| n.note_id).collect();
        let access = notes.iter().map(|(_, access)| access.as_ref());
        let access: Vec<Option<&[u8]>> = access.map(|hash| Some(&hash?.0[..])).collect();
        let (mut outbox_ids, mut owners) = (Vec::new(), Vec::new());
        for (note, _) in notes {
            outbox_ids.extend_from_slice(&note.outbox_ids);
            owners.resize(outbox_ids.len(), note.note_id);
        }
        let held = sqlx::query_file_scalar!(
            "sql/queries/ack.sql",
            version,
            token,
            &note_ids,
            &outbox_ids,
            &owners,
            keep_done,
            &access as _
        );
        self.asked("ack", held.fetch_all(&self.keyed)).await
    }

    /// Deletes the state of acked notes that are deleted from `memory_notes`, and what chunks they have left.
    pub async fn forget(
        &self,
        version: &str,
        token: i64,
        notes: &[Uuid],
    ) -> Result<(), StoreError> {
        let forget = sqlx::query_file!("sql/queries/forget.sql", version, token, notes);
        self.asked("ack", forget.execute(&self.keyed)).await?;
        Ok(())
    }

    /// Requeues notes: inserts an outbox row for each, whether it has one or not.
    pub async fn requeue(&self, version: &str, notes: &[Uuid]) -> Result<(), StoreError> {
        self.requeue_after(version, notes, Duration::ZERO).await
    }

    /// [`Self::requeue`], due after `pause`.
    pub async fn requeue_after(
        &self,
        version: &str,
        notes: &[Uuid],
        pause: Duration,
    ) -> Result<(), StoreError> {
        let secs = pause.as_secs_f64();
        let requeue = sqlx::query_file!("sql/queries/requeue.sql", version, notes, secs);
        self.asked("requeue", requeue.execute(&self.pool)).await?;
        Ok(())
    }
}
