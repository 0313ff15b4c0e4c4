//! Notices a Postgres that lost its newest transactions before anything is acked under a token
//! that it gives out again. See ADR 13.
//!
//! It shows in four ways. At the start, after every outage and behind every new connection a
//! worker looks whether the index holds revisions above the last token, and whether Postgres
//! was promoted or restored (by its system identifier and timeline). A claim's token is not
//! above the one before. And points of a batch's own notes are above the batch's token while
//! no later claim has taken the notes. The worker that sees one of them raises the tokens above
//! all that the index has seen, before anything is acked, and demands a verify of the whole
//! index: one worker repairs what Postgres forgot, and all of them go on.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use super::lease::{self, Survived};
use super::{Shared, WorkerContext};
use crate::registry::{self, SetupError};
use crate::store::Claim;

/// What this process knows of the tokens of its Postgres.
#[derive(Debug, Default)]
pub struct Watch {
    /// The token of the last claim.
    last: AtomicI64,
    /// Connections that were made when the index was last looked at.
    connections: AtomicU64,
}

impl Watch {
    /// Whether a claim's token is above that of the claim before.
    fn rises(&self, token: i64) -> bool {
        self.last.swap(token, Ordering::Relaxed) < token
    }
}

/// Before a claim: behind a new connection may be another server, so the index is looked at
/// before that one gives out a token.
pub async fn look_behind_new_connections(shared: &Shared) -> Result<(), SetupError> {
    let connections = shared.context.stores.store.connections();
    if shared.watch.connections.load(Ordering::Relaxed) != connections {
        registry::ensure_tokens(&shared.context.stores, &shared.context.version.name).await?;
        // It may have demanded a verify.
        shared.verify.notify_one();
        shared
            .watch
            .connections
            .store(connections, Ordering::Relaxed);
    }
    Ok(())
}

/// After a claim: gives it back if its token was given out before.
pub async fn admit(shared: &Shared, claim: Claim) -> Result<Claim, SetupError> {
    if shared.watch.rises(claim.token) {
        return Ok(claim);
    }
    lease::release(shared, claim.token, &claim.note_ids(), Survived::Unknown).await;
    let WorkerContext {
        stores, version, ..
    } = &shared.context;
    Err(registry::raise_tokens(stores, &version.name).await?)
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
