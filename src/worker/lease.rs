//! Renews leases while a batch is in flight, and releases them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::Shared;
use crate::lock::lock;
use crate::store::Claim;

/// The pause of a note whose row an application holds.
const SKIPPED: Duration = Duration::from_millis(500);

/// For so long the worker sets a note aside that Postgres does not take, although it takes others. A deletion of the
/// note waits as long.
const SET_ASIDE: Duration = Duration::from_secs(10);

/// The notes of the batches in flight, by token. The renewal renews the leases of those that have no outcome yet, and
/// the end of the batch releases them.
#[derive(Debug, Default)]
pub struct ActiveLeases {
    claims: Mutex<HashMap<i64, HashMap<Uuid, Leased>>>,
    /// When the last of the notes with unanswered upserts is due again.
    unanswered_until: Mutex<Option<Instant>>,
}

/// A note of a batch.
#[derive(Debug, Clone, Copy)]
struct Leased {
    /// Whether it has no outcome yet.
    is_open: bool,
    /// What the batch has sent to the index. [`Upsert::None`] again after a statement under its token has ended
    /// the claim.
    upsert: Upsert,
}

/// The upsert of a note's points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upsert {
    None,
    Sending,
    Answered,
    /// The index did not answer an upsert, even if it answered a later one. It may still apply the first.
    Unanswered,
}

impl Upsert {
    fn may_still_be_applied(self) -> bool {
        matches!(self, Self::Sending | Self::Unanswered)
    }
}

impl ActiveLeases {
    pub async fn release_all(&self, shared: &Shared) {
        let tokens: Vec<i64> = lock(&self.claims).keys().copied().collect();
        for token in tokens {
            self.release(shared, token).await;
        }
    }

    /// Releases the leases that are active under `token`.
    pub async fn release(&self, shared: &Shared, token: i64) {
        let open = self.open(token);
        release(shared, token, &open, Survived::Unknown).await;
        self.end(shared, token);
    }

    /// Remembers that notes with unanswered upserts are due after `time`.
    pub fn wait_for_unanswered(&self, time: Duration) {
        let until = Some(Instant::now() + time);
        let mut last = lock(&self.unanswered_until);
        *last = until.max(*last);
    }

    /// When the last of these notes is due. Forgets it: the next call returns `None`.
    pub fn take_unanswered_due(&self) -> Option<Instant> {
        lock(&self.unanswered_until).take()
    }

    /// Forgets the leases of a batch that has ended. [`super::unacked`] remembers what the batch
    /// upserted under leases that it may have lost.
    pub fn end(&self, shared: &Shared, token: i64) {
        let mut leased = lock(&self.claims).remove(&token).unwrap_or_default();
        leased.retain(|_, note| note.upsert != Upsert::None);
        let (late, others): (Vec<Uuid>, Vec<Uuid>) = leased
            .keys()
            .partition(|note| leased[note].upsert.may_still_be_applied());
        let now = Instant::now();
        shared.unacked.add(token, others, now);
        shared
            .unacked
            .add(token, late, now + shared.settings.lease());
    }

    /// Records that a statement under `token` has ended the claim of these notes. Their next claim
    /// comes after their upserts, and removes the points that those leave behind.
    pub fn ended(&self, token: i64, notes: &[Uuid]) {
        self.each(token, notes, |note| note.upsert = Upsert::None);
    }

    /// Splits `notes` into those with an upsert that the index may still apply, and the others.
    pub fn split_off_late(&self, token: i64, notes: &[Uuid]) -> (Vec<Uuid>, Vec<Uuid>) {
        notes
            .iter()
            .partition(|note| self.upsert(token, note).may_still_be_applied())
    }

    /// Stops the renewal for notes that have their outcome: it would only delay their next
    /// claim.
    pub fn remove(&self, token: i64, notes: &[Uuid]) {
        self.each(token, notes, |note| note.is_open = false);
    }

    /// Records that an upsert of these notes' points begins.
    pub fn sending(&self, token: i64, notes: &[Uuid]) {
        self.each(token, notes, |note| {
            if note.upsert != Upsert::Unanswered {
                note.upsert = Upsert::Sending;
            }
        });
    }

    /// Records that the upsert has ended. `is_answered` is false if the index may still apply it.
    pub fn sent(&self, token: i64, notes: &[Uuid], is_answered: bool) {
        self.each(token, notes, |note| {
            note.upsert = match is_answered && note.upsert != Upsert::Unanswered {
                true => Upsert::Answered,
                false => Upsert::Unanswered,
            };
        });
    }

    /// The notes with an upsert that the index did not answer, even if it answered a later one.
    pub fn unanswered(&self, token: i64, notes: &[Uuid]) -> Vec<Uuid> {
        let is_unanswered = |note: &&Uuid| self.upsert(token, note) == Upsert::Unanswered;
        notes.iter().filter(is_unanswered).copied().collect()
    }

    fn each(&self, token: i64, notes: &[Uuid], change: impl Fn(&mut Leased)) {
        if let Some(leased) = lock(&self.claims).get_mut(&token) {
            for note in notes {
                leased.get_mut(note).map(&change);
            }
        }
    }

    fn upsert(&self, token: i64, note: &Uuid) -> Upsert {
        let claims = lock(&self.claims);
        let leased = claims.get(&token).and_then(|leased| leased.get(note));
        leased.map_or(Upsert::None, |leased| leased.upsert)
    }

    fn open(&self, token: i64) -> Vec<Uuid> {
        let claims = lock(&self.claims);
        let leased = claims.get(&token).into_iter().flatten();
        let open = leased.filter(|(_, leased)| leased.is_open);
        open.map(|(note, _)| *note).collect()
    }
}

/// Renews the leases of `claim`, four times per lease, until the handle is dropped.
pub fn renew(shared: &Arc<Shared>, claim: &Claim) -> AbortOnDropHandle<()> {
    let token = claim.token;
    let leased = Leased {
        is_open: true,
        upsert: Upsert::None,
    };
    let notes = claim.note_ids().into_iter().map(|note| (note, leased));
    lock(&shared.leases.claims).insert(token, notes.collect());
    let shared = shared.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let (store, version) = shared.store_and_version();
        let lease = shared.settings.lease();
        loop {
            tokio::time::sleep(lease / 4).await;
            let notes = shared.leases.open(token);
            let renewal = store.renew_leases(version, token, &notes, lease);
            // A renewal without an answer must not delay the next one.
            match tokio::time::timeout(lease / 3, renewal).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, token, "could not renew leases"),
                Err(_) => tracing::debug!(token, "renewing leases timed out"),
            }
        }
    }))
}

/// Whether the worker that claimed a note is known to have survived it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survived {
    /// The worker loaded and chunked the note: the count of claims lost in a row starts anew.
    Yes,
    /// The worker stopped before it did that.
    Unknown,
}

/// Releases leases: the notes are due at once.
pub async fn release(shared: &Shared, token: i64, notes: &[Uuid], survived: Survived) {
    release_after(shared, token, notes, Duration::ZERO, survived).await;
}

/// Releases notes that a commit skipped, because an application holds or deletes their rows.
/// Due at once, the notes would be claimed again and again until the application commits.
/// Notes whose lease was lost are left alone: the token no longer matches.
pub async fn release_skipped(shared: &Shared, token: i64, notes: &[Uuid]) {
    release_after(shared, token, notes, SKIPPED, Survived::Unknown).await;
}

/// Releases a note that Postgres does not take in its present state, so that the others are written.
pub async fn set_aside(shared: &Shared, token: i64, note: Uuid) {
    release_after(shared, token, &[note], SET_ASIDE, Survived::Unknown).await;
}

/// Releases leases: the notes are due after `pause`. If that fails the leases expire. The index may apply an
/// unanswered upsert late, after the points of the next claim. Notes with one therefore wait for a
/// whole lease, as they do after the worker is killed.
async fn release_after(
    shared: &Shared,
    token: i64,
    notes: &[Uuid],
    pause: Duration,
    survived: Survived,
) {
    let (late, others) = shared.leases.split_off_late(token, notes);
    if !late.is_empty() {
        let lease = shared.settings.lease();
        end_leases(shared, token, &late, lease, Survived::Unknown).await;
        shared.leases.wait_for_unanswered(lease);
    }
    end_leases(shared, token, &others, pause, survived).await;
}

async fn end_leases(
    shared: &Shared,
    token: i64,
    notes: &[Uuid],
    pause: Duration,
    survived: Survived,
) {
    if notes.is_empty() {
        return;
    }
    shared.leases.remove(token, notes);
    let (store, version) = shared.store_and_version();
    let survived = survived == Survived::Yes;
    match store.release(version, token, notes, pause, survived).await {
        Ok(released) => shared.leases.ended(token, &released),
        Err(error) => tracing::debug!(%error, token, "could not release leases, they will expire"),
    }
}
