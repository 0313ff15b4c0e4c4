//! Claims the notes of a batch.

use std::time::Instant;

use metrics::{counter, histogram};

use super::{Pipeline, Shared, blame, lost_transactions, unacked};
use crate::store::{Blame, Claim, ClaimScope, Due, LOST_CLAIMS_UNTIL_ALONE, StoreError};

/// Text claimed at once, so that a batch of long notes does not fill the memory.
const BATCH_BYTES: usize = 4 << 20;

impl Shared {
    /// Claims a batch of the notes that are `due`. `None` when there is none, or Postgres is
    /// unavailable.
    pub(super) async fn claim(&self, due: Due) -> Option<Claim> {
        self.claim_some(due, false).await
    }

    /// [`Self::claim`] beside batches in flight, of which one may kill the worker: it takes no suspect, and if the
    /// worker dies these notes are not to blame.
    pub(super) async fn claim_beside(&self, due: Due) -> Option<Claim> {
        self.claim_some(due, true).await
    }

    async fn claim_some(&self, due: Due, beside: bool) -> Option<Claim> {
        if let Err(error) = lost_transactions::ensure_tokens_after_reconnect(self).await {
            self.circuit.open(error.to_string());
            return None;
        }
        // Before the claim, so that a drain that claims nothing leaves no such note behind.
        if let Err(error) = unacked::requeue_lost(self).await {
            self.circuit.open(error.to_string());
            return None;
        }
        let began = Instant::now();
        let claimed = match beside {
            true => {
                self.claim_below(due, LOST_CLAIMS_UNTIL_ALONE, Blame::Never)
                    .await
            }
            // A note with enough lost claims to be dead-lettered comes last: the worker first indexes
            // another note, if one is due.
            false if self.totals.report().notes == 0 => {
                let below = blame::LOST_CLAIMS_UNTIL_DEAD;
                match self.claim_below(due, below, Blame::IfLost).await {
                    Ok(None) => self.claim_below(due, u32::MAX, Blame::IfLost).await,
                    claimed => claimed,
                }
            }
            false => self.claim_below(due, u32::MAX, Blame::IfLost).await,
        };
        histogram!("elf_claim_seconds").record(began.elapsed());
        let outcome = match &claimed {
            Ok(Some(_)) => "notes",
            Ok(None) => "empty",
            Err(_) => "error",
        };
        counter!("elf_claims_total", "outcome" => outcome).increment(1);
        let admitted = match claimed {
            Ok(Some(claim)) => lost_transactions::release_if_token_repeats(self, claim)
                .await
                .map(Some),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        };
        match admitted {
            Ok(claim) => claim,
            Err(error) => {
                self.circuit.open(error.to_string());
                None
            }
        }
    }

    async fn claim_below(
        &self,
        due: Due,
        lost_below: u32,
        blame: Blame,
    ) -> Result<Option<Claim>, StoreError> {
        let scope = ClaimScope {
            due,
            lost_below,
            blame,
        };
        let Pipeline {
            serving, version, ..
        } = &self.pipeline;
        let lease = self.settings.lease();
        let notes = self.settings.batch_notes;
        let store = &serving.store;
        store
            .claim(
                &version.name,
                &self.holder,
                lease,
                notes,
                BATCH_BYTES,
                scope,
            )
            .await
    }
}
