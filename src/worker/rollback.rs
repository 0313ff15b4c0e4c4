//! A Postgres that lost its newest transactions: a failover to a standby that lagged, or a
//! restore. It has forgotten tokens that the index has seen, and a conditional upsert under
//! a token that is given out again silently changes nothing. See ADR 13.
//!
//! It shows in four ways. At the start, after every outage and behind every new connection a
//! worker looks whether the index holds revisions above the last token, and whether Postgres
//! was promoted or restored (by its system identifier and timeline). A claim's token is not
//! above the one before. And points of a batch's own notes are above the batch's token while
//! no later claim has taken the notes. Whoever sees one of them raises the tokens above all
//! that the index has seen, before anything is acked, and demands a verify of the whole
//! index: one worker repairs what Postgres forgot, and all of them go on.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use metrics::counter;
use uuid::Uuid;

use super::lease::{self, Survived};
use super::setup::SetupError;
use super::{Shared, Tools};
use crate::index::{Filter, IndexError, VectorIndex};
use crate::store::Claim;

/// Above this an f64, in which engines compare, does not tell every two integers apart; a
/// revision so high was not written by ELF.
const MOST_REVISION: i64 = 1 << 53;

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
    let connections = shared.tools.store.connections();
    if shared.watch.connections.load(Ordering::Relaxed) != connections {
        look(&shared.tools).await?;
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
    Err(recover(&shared.tools).await?)
}

/// Between the writes of a batch and its ack: an error unless every point of its notes is as
/// old as `token` or older, or a later claim has taken the note.
pub async fn check(
    tools: &Tools,
    token: i64,
    notes: &[Uuid],
    collections: &[String],
) -> Result<(), SetupError> {
    for collection in collections {
        let mut held = notes.to_vec();
        while !held.is_empty() {
            let newer = Filter {
                note_ids: Some(held.clone()),
                revision_above: Some(token),
                ..Filter::default()
            };
            if count(tools, collection, &newer).await? == 0 {
                break;
            }
            // After the count: a claim is committed before its points are written.
            let still = tools.store.held(&tools.version.name, token, &held).await?;
            if still.len() == held.len() {
                return Err(recover(tools).await?);
            }
            held = still;
        }
    }
    Ok(())
}

/// Raises the tokens above all that the index has seen, if it has seen any that Postgres has
/// not given out. A server that was promoted or restored since workers last saw it is
/// verified in any case: it may have lost transactions and none of its tokens.
pub async fn look(tools: &Tools) -> Result<(), SetupError> {
    if raise(tools).await? {
        demand_repair(tools).await?;
    }
    if tools.store.is_another_server().await? {
        tracing::warn!(
            "Postgres was promoted or restored since workers last saw it; verifying the index"
        );
    }
    Ok(())
}

/// Makes sure that no token is given out twice from now on, and says what happened.
async fn recover(tools: &Tools) -> Result<SetupError, SetupError> {
    raise(tools).await?;
    demand_repair(tools).await
}

async fn demand_repair(tools: &Tools) -> Result<SetupError, SetupError> {
    tools.store.demand_sweep(&tools.version.name).await?;
    counter!("elf_postgres_rollbacks_total").increment(1);
    let rolled_back = SetupError::RolledBack;
    tracing::error!("{rolled_back}");
    Ok(rolled_back)
}

/// Whether Postgres had forgotten tokens. None of them is given out again.
async fn raise(tools: &Tools) -> Result<bool, SetupError> {
    let Tools { store, version, .. } = tools;
    let mut raised = false;
    for collection in store.collections(&version.name).await? {
        let mut last = store.last_token().await?;
        while let Some(highest) = highest_above(tools, &collection.name, last).await? {
            // Again, after the index: a claim may have drawn tokens and written points since.
            last = store.last_token().await?;
            if last < highest {
                tracing::warn!(
                    last_token = last,
                    highest_revision = highest,
                    collection = collection.name,
                    "the index holds revisions that Postgres has not given out; raising its tokens"
                );
                last = store.raise_tokens(highest).await?;
                raised = true;
            }
        }
    }
    Ok(raised)
}

/// The highest revision above `last` in a collection, by halving: about forty counts, and
/// only where there is one.
async fn highest_above(
    tools: &Tools,
    collection: &str,
    last: i64,
) -> Result<Option<i64>, SetupError> {
    let is_there = async |above: i64| {
        let above = Filter {
            revision_above: Some(above),
            revision_below: Some(MOST_REVISION),
            ..Filter::default()
        };
        Ok::<_, IndexError>(count(tools, collection, &above).await? > 0)
    };
    if !is_there(last).await? {
        return Ok(None);
    }
    // There is one above `low`, and none above `high`.
    let (mut low, mut step) = (last, 1);
    while low + step < MOST_REVISION && is_there(low + step).await? {
        low += step;
        step *= 2;
    }
    let mut high = (low + step).min(MOST_REVISION);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match is_there(middle).await? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(Some(high))
}

/// A collection that is gone holds nothing; whoever writes to it will say so.
async fn count(tools: &Tools, collection: &str, filter: &Filter) -> Result<u64, IndexError> {
    let index: &dyn VectorIndex = &*tools.index;
    match index.count(collection, filter).await {
        Err(IndexError::NotFound { .. }) => Ok(0),
        counted => counted,
    }
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
