//! Finds the note of a batch that makes a write fail, and counts the failure against it.

use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

use super::batch::{Batch, WriteError};
use super::plan::PlannedWrite;
use super::{Shared, lease, retry};
use crate::error_class::ErrorClass;
use crate::index::UpsertMode;
use crate::note::TextHash;
use crate::serving::{self, CollectionTarget, ServingError};
use crate::store::{
    Claim, Claimed, Depth, FailedBy, Failure, LOST_CLAIMS_UNTIL_ALONE, LiveChunk, NoteWrite, Retry,
    StoreError,
};

/// A single note is to blame after so many writes of it were interrupted, or so many were rejected, each while
/// another note was taken. More than one, because an outage may end between the two writes.
const MAX_INTERRUPTIONS: u32 = 3;
const MAX_REJECTIONS: u32 = 2;

/// The worker dead-letters a note that has lost this many claims in a row, the last of them alone ("Blame" in
/// docs/inside/decisions.md). It must have indexed another note before: if workers die before they
/// index any note, no note is to blame.
pub(super) const LOST_CLAIMS_UNTIL_DEAD: u32 = LOST_CLAIMS_UNTIL_ALONE + 4;

/// For so long after an outage of Postgres or the index, this worker dead-letters no note for its lost claims:
/// during the outage, leases of workers that live expire too.
const NO_BLAME_AFTER_OUTAGE: Duration = Duration::from_secs(600);

/// Whether the claim holds a suspect: a note that may kill its worker.
pub(super) fn is_suspect(claim: &Claim) -> bool {
    let lost = claim.notes.iter().map(|note| note.lost_claims);
    lost.max().unwrap_or(0) >= LOST_CLAIMS_UNTIL_ALONE
}

/// Which of Postgres and the index failed, if the data that was sent may be the cause: the server
/// rejected it, or did not survive it.
fn possible_rejecter(error: &ServingError) -> Option<FailedBy> {
    match error {
        ServingError::Store(error) if error.may_be_data() => Some(FailedBy::Postgres),
        ServingError::Index(error)
            if matches!(error.class(), ErrorClass::Item | ErrorClass::Storage) =>
        {
            Some(FailedBy::Index)
        }
        _ => None,
    }
}

/// Whether Postgres may lack something for one note alone: memory or time for a long one, or the disk
/// under a part of a table. Then no note is to blame, but the others must not wait.
fn may_be_one_notes(error: &ServingError) -> bool {
    matches!(error, ServingError::Store(StoreError::Unavailable(_)))
}

/// What happened when the worker wrote another note, as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherNote {
    /// It was taken: the note that failed may be to blame.
    Taken,
    /// It was rejected too: no note is to blame.
    Rejected,
    /// There is no other note that is indexed.
    Missing,
}

impl Batch<'_> {
    /// Dead-letters a note that was claimed alone and killed each process that worked on it.
    pub(super) async fn dead_letter_after_lost_claims(&self) -> Result<bool, StoreError> {
        let is_lost = |note: &&&Claimed| note.lost_claims >= LOST_CLAIMS_UNTIL_DEAD;
        let Some(lost) = self.notes.values().find(is_lost) else {
            return Ok(false);
        };
        if self.shared.totals.report().notes == 0
            || self.shared.circuit.was_open_within(NO_BLAME_AFTER_OUTAGE)
        {
            return Ok(false);
        }
        let reason = format!(
            "{} claims of it in a row were lost: each time the worker died, or lost Postgres for \
             longer than a lease. During the last {} of them the worker had nothing else in flight. \
             Look for the cause in the workers' log (out of memory, an abort in the tokenizer)",
            lost.lost_claims,
            lost.lost_claims - LOST_CLAIMS_UNTIL_ALONE
        );
        // The text is not loaded: loading it may have killed the earlier workers.
        let text = TextHash::of("");
        self.fail(lost.note_id, text, FailedBy::Process, &reason, true)
            .await?;
        Ok(true)
    }

    /// Writes notes to Postgres and the index, and acks them. When one of the two rejects a write,
    /// each half of the notes is written separately, until the note to blame is alone. A loop and
    /// not a recursion, so that the stack does not grow with the batch.
    pub(super) async fn write_or_split(
        &self,
        writes: &[PlannedWrite<'_>],
        newly_embedded: &mut HashSet<TextHash>,
    ) -> Result<(), ServingError> {
        let mut parts = vec![(writes, 1)];
        // Parts that failed while the index had no other note to try.
        let mut failed: Vec<(&[PlannedWrite<'_>], ServingError)> = Vec::new();
        loop {
            let (part, tries) = match parts.pop() {
                Some(part) => part,
                None => match failed.pop() {
                    // The others may have been indexed meanwhile.
                    Some((part, error)) => match Box::pin(self.try_another(&error, part)).await? {
                        OtherNote::Taken => (part, 1),
                        _ => return Err(error),
                    },
                    None => return Ok(()),
                },
            };
            let error = match Box::pin(self.write(part, newly_embedded)).await {
                Ok(()) => continue,
                Err(WriteError::Data(error)) => error,
                Err(WriteError::Check(error)) => return Err(error),
            };
            let by = possible_rejecter(&error);
            if by.is_none() && !may_be_one_notes(&error) {
                return Err(error);
            }
            let is_rejection = error.class() == ErrorClass::Item;
            let pipeline = &self.shared.pipeline;
            // A database or a collection that is missing or misconfigured is no note's fault.
            Box::pin(serving::ensure_ready(&pipeline.serving, &pipeline.version)).await?;
            if let [only] = part {
                let max_tries = match is_rejection {
                    true => MAX_REJECTIONS,
                    false => MAX_INTERRUPTIONS,
                };
                // The cause may be the state of Postgres or of the index.
                match (Box::pin(self.try_another(&error, part)).await?, by) {
                    (OtherNote::Taken, None) => self.set_aside(only, &error).await?,
                    (OtherNote::Taken, Some(by)) if tries >= max_tries => {
                        self.fail_alone(only, by, &error).await?;
                    }
                    (OtherNote::Taken, Some(_)) => parts.push((part, tries + 1)),
                    (OtherNote::Missing, Some(_)) if !parts.is_empty() => {
                        failed.push((part, error));
                    }
                    (OtherNote::Missing | OtherNote::Rejected, _) => return Err(error),
                }
                continue;
            }
            // If several notes fail, one of them may be to blame.
            if !is_rejection {
                match (Box::pin(self.try_another(&error, part)).await?, by) {
                    (OtherNote::Rejected, _) | (OtherNote::Missing, None) => return Err(error),
                    (OtherNote::Taken, _) | (OtherNote::Missing, Some(_)) => {}
                }
            }
            let (left, right) = part.split_at(part.len() / 2);
            parts.push((right, 1));
            parts.push((left, 1));
        }
    }

    /// Leaves a note for later, and counts no attempt.
    async fn set_aside(
        &self,
        write: &PlannedWrite<'_>,
        error: &ServingError,
    ) -> Result<(), ServingError> {
        self.apply_access_labels([write.chunked].into_iter())
            .await?;
        let note_id = write.rows.note_id;
        tracing::warn!(%note_id, %error, "note set aside, Postgres takes others");
        lease::set_aside(self.shared, self.token, note_id).await;
        Ok(())
    }

    /// Counts a write that Postgres or the index rejects as a failure of its note.
    async fn fail_alone(
        &self,
        write: &PlannedWrite<'_>,
        by: FailedBy,
        error: &ServingError,
    ) -> Result<(), ServingError> {
        self.apply_access_labels([write.chunked].into_iter())
            .await?;
        let NoteWrite {
            note_id, text_hash, ..
        } = write.rows;
        let reason = error.to_string();
        self.fail(note_id, text_hash, by, &reason, false).await?;
        Ok(())
    }

    /// Writes another note, as it is, to Postgres or the index, whichever failed with `error`. If it rejects
    /// that note too, the cause is its own state, and no note is to blame.
    async fn try_another(
        &self,
        error: &ServingError,
        part: &[PlannedWrite<'_>],
    ) -> Result<OtherNote, ServingError> {
        let (store, _) = self.shared.store_and_version();
        let Some(another) = self.another_note(part).await? else {
            return Ok(OtherNote::Missing);
        };
        let is_taken = match error {
            ServingError::Store(_) => {
                store
                    .accepts(&self.shared.pipeline.version, &another)
                    .await?
            }
            _ => Some(self.index_accepts(&another).await?),
        };
        Ok(match is_taken {
            Some(true) => OtherNote::Taken,
            Some(false) => {
                tracing::debug!(%error, "another note is rejected too");
                OtherNote::Rejected
            }
            None => OtherNote::Missing,
        })
    }

    /// A chunk of a note that is indexed and not in `part`.
    async fn another_note(
        &self,
        part: &[PlannedWrite<'_>],
    ) -> Result<Option<LiveChunk>, StoreError> {
        let (store, version) = self.shared.store_and_version();
        let blamed: HashSet<Uuid> = part.iter().map(|write| write.chunked.note_id).collect();
        // A chunk without a vector proves nothing about vectors.
        let has_vector = |write: &PlannedWrite<'_>| {
            let mut chunks = write.rows.chunks.iter();
            chunks.any(|chunk| chunk.vector.is_some())
        };
        let needs_vector = part.iter().any(has_vector);
        for after in [Uuid::new_v4(), Uuid::nil()] {
            let page = store
                .live_chunks(version, after, Uuid::max(), 64, 1 << 20, Depth::Whole)
                .await?;
            let is_another = |chunk: &LiveChunk| {
                chunk.has_point()
                    && (chunk.has_vector || !needs_vector)
                    && !blamed.contains(&chunk.note_id)
            };
            if let Some(another) = page.into_iter().find(is_another) {
                return Ok(Some(another));
            }
        }
        Ok(None)
    }

    async fn index_accepts(&self, another: &LiveChunk) -> Result<bool, ServingError> {
        let (store, version) = self.shared.store_and_version();
        for collection in store.collections(version).await? {
            let serving = &self.shared.pipeline.serving;
            let target = CollectionTarget::new(serving, version, collection.name);
            let points = target.points(vec![another.clone()]);
            let write = target.write(points, UpsertMode::NotNewer);
            if !write.await.is_ok_and(|written| written.refused.is_empty()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts a failure of `text` against its note, and schedules the retry or dead-letters it.
    pub(super) async fn fail(
        &self,
        note_id: Uuid,
        text: TextHash,
        by: FailedBy,
        reason: &str,
        permanent: bool,
    ) -> Result<(), StoreError> {
        let claimed = self.notes[&note_id];
        let Shared {
            settings, totals, ..
        } = &**self.shared;
        let failures = match claimed.failed {
            Some((same, failures)) if same == text => failures + 1,
            _ => 1,
        };
        let retry = retry::after_failure(settings, failures, permanent, rand::random());
        let (late, _) = self.shared.leases.split_off_late(self.token, &[note_id]);
        let failure = Failure {
            keep_leased: match late.is_empty() {
                true => Duration::ZERO,
                false => settings.lease(),
            },
            reason,
            by,
            text,
            failures,
            retry,
            // After an operator retries it, the note is claimed alone and gets as many tries
            // again.
            lost_claims: match by {
                FailedBy::Process => LOST_CLAIMS_UNTIL_ALONE,
                _ => 0,
            },
        };
        let (store, version) = self.shared.store_and_version();
        let leases = &self.shared.leases;
        leases.remove(self.token, &[note_id]);
        if !store.fail(version, self.token, claimed, failure).await? {
            return Ok(());
        }
        leases.ended(self.token, &[note_id]);
        totals.failed();
        // An error that a trigger of the application raises may quote the text, so the log
        // leaves it out. `elf dead show` prints it.
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
                    "note failed, will be retried"
                );
            }
        }
        Ok(())
    }
}
