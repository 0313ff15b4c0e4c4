//! Claims the notes of a batch.

use std::time::Instant;

use metrics::{counter, histogram};

use super::{Shared, blame, lost_transactions, unacked};
use crate::serving::ServingError;
use crate::store::{Blame, Claim, ClaimScope, Due, LOST_CLAIMS_UNTIL_ALONE, StoreError};

/// Bytes of text in a claim, about, so that a batch of long notes does not fill the memory.
const BATCH_BYTES: usize = 4 << 20;

impl Shared {
    /// Claims a batch of the notes that are `due`. `None` when there is none, or Postgres is
    /// unavailable. Batches in flight `beside` it may kill the worker: then the claim takes no suspect,
    /// and its notes are never to blame.
    pub(super) async fn claim(&self, due: Due, beside: bool) -> Option<Claim> {
        let claimed = self.try_to_claim(due, beside).await;
        claimed.unwrap_or_else(|error| {
            self.circuit.open(error.to_string());
            None
        })
    }

    async fn try_to_claim(&self, due: Due, beside: bool) -> Result<Option<Claim>, ServingError> {
        lost_transactions::ensure_tokens_after_reconnect(self).await?;
        // Before the claim, so that a drain that claims nothing leaves no such note behind.
        unacked::requeue_lost(self).await?;
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
        match claimed? {
            Some(claim) => {
                let admitted = lost_transactions::release_if_token_repeats(self, claim);
                Ok(Some(admitted.await?))
            }
            None => Ok(None),
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
        let (store, version) = self.store_and_version();
        let (lease, notes) = (self.settings.lease(), self.settings.batch_notes);
        store
            .claim(version, &self.holder, lease, notes, BATCH_BYTES, scope)
            .await
    }
}
