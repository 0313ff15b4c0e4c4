//! Claims the notes of a batch.

use std::time::Instant;

use metrics::{counter, histogram};

use super::{Shared, blame, lost_transactions, unacked};
use crate::store::{Claim, ClaimScope, Due};

/// Text claimed at once, so that a batch of long notes does not fill the memory.
const BATCH_BYTES: usize = 4 << 20;

impl Shared {
    /// Claims a batch of the notes that are `due`. `None` when there is none, or Postgres is
    /// unavailable.
    pub(super) async fn claim(&self, due: Due) -> Option<Claim> {
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
        let claim = |lost_below| {
            self.pipeline.serving.store.claim(
                &self.pipeline.version.name,
                &self.holder,
                self.settings.lease(),
                self.settings.batch_notes,
                BATCH_BYTES,
                ClaimScope { due, lost_below },
            )
        };
        // A note with enough lost claims to be dead-lettered comes last: the worker first indexes
        // another note, if one is due.
        let claimed = match self.totals.report().notes {
            0 => match claim(blame::LOST_CLAIMS_UNTIL_DEAD).await {
                Ok(None) => claim(u32::MAX).await,
                claimed => claimed,
            },
            _ => claim(u32::MAX).await,
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
}
