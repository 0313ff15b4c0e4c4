//! Detects a Postgres that lost its newest transactions, before the worker acks anything under
//! a token that Postgres issues a second time.
//!
//! There are four signs:
//!
//! 1. The index holds revisions above the last token. A worker looks at the start, after every
//!    outage and after every new connection.
//! 2. Postgres was promoted or restored: its system identifier or timeline changed. A worker
//!    looks at the same moments.
//! 3. A claim's token is not above the token of the claim before.
//! 4. Points of a batch's own notes are above the batch's token, though no later claim has
//!    taken the notes.
//!
//! The worker that sees one of them raises the tokens above every revision in the index, and
//! requests a verify of the whole index. One worker then repairs what Postgres lost, and all
//! workers resume.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::Shared;
use super::lease::{self, Survived};
use crate::serving::{self, ServingError};
use crate::store::Claim;

/// What this process knows about the tokens of its Postgres.
#[derive(Debug, Default)]
pub struct Watch {
    /// The token of the last claim.
    last: AtomicI64,
    /// The number of connections made when the index was last checked.
    connections: AtomicU64,
}

impl Watch {
    /// Whether a claim's token is above that of the claim before.
    fn rises(&self, token: i64) -> bool {
        self.last.swap(token, Ordering::Relaxed) < token
    }
}

/// Called before a claim. A new connection may lead to another server, so the worker checks
/// the index before that server issues a token.
pub async fn ensure_tokens_after_reconnect(shared: &Shared) -> Result<(), ServingError> {
    let (store, version) = shared.store_and_version();
    let connections = store.connections();
    if shared.watch.connections.load(Ordering::Relaxed) != connections {
        serving::ensure_tokens(&shared.pipeline.serving, version).await?;
        // The check may have requested a verify.
        shared.verify.notify_one();
        shared
            .watch
            .connections
            .store(connections, Ordering::Relaxed);
    }
    Ok(())
}

/// Called after a claim: releases it if Postgres had issued its token before.
pub async fn release_if_token_repeats(
    shared: &Shared,
    claim: Claim,
) -> Result<Claim, ServingError> {
    if shared.watch.rises(claim.token) {
        return Ok(claim);
    }
    lease::release(shared, claim.token, &claim.note_ids(), Survived::Unknown).await;
    let (_, version) = shared.store_and_version();
    serving::raise_tokens(&shared.pipeline.serving, version).await?;
    Err(ServingError::RolledBack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_was_given_out_before_does_not_rise() {
        let watch = Watch::default();
        assert!(watch.rises(7) && watch.rises(9));
        assert!(!watch.rises(9) && !watch.rises(3));
        assert!(watch.rises(4));
    }
}
