//! Tokens of leases, held against the revisions that the index has seen. A Postgres that lost
//! its newest transactions (a failover to a standby that lagged, or a restore) has forgotten
//! tokens that the index knows, and a conditional upsert under a token that is given out again
//! silently changes nothing. See ADR 13.

use metrics::counter;
use uuid::Uuid;

use super::{IndexContext, SetupError};
use crate::index::{Filter, IndexError, MAX_REVISION};

/// Between the writes of a batch and its ack: an error unless every point of its notes is as
/// old as `token` or older, or a later claim has taken the note.
pub async fn check_tokens(
    context: &IndexContext,
    version: &str,
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
            if count(context, collection, &newer).await? == 0 {
                break;
            }
            // After the count: a claim is committed before its points are written.
            let still = context.store.held(version, token, &held).await?;
            if still.len() == held.len() {
                return Err(raise_tokens(context, version).await?);
            }
            held = still;
        }
    }
    Ok(())
}

/// Raises the tokens above all that the index has seen, if it has seen any that Postgres has
/// not given out. A server that was promoted or restored since workers last saw it is
/// verified in any case: it may have lost transactions and none of its tokens.
pub async fn ensure_tokens(context: &IndexContext, version: &str) -> Result<(), SetupError> {
    if raise(context, version).await? {
        request_repair(context, version).await?;
    }
    if context.store.is_another_server().await? {
        tracing::warn!(
            "Postgres was promoted or restored since workers last saw it; verifying the index"
        );
    }
    Ok(())
}

/// Makes sure that no token is given out twice from now on, and says what happened.
pub async fn raise_tokens(context: &IndexContext, version: &str) -> Result<SetupError, SetupError> {
    raise(context, version).await?;
    request_repair(context, version).await
}

async fn request_repair(context: &IndexContext, version: &str) -> Result<SetupError, SetupError> {
    context.store.request_verify(version).await?;
    counter!("elf_postgres_rollbacks_total").increment(1);
    let rolled_back = SetupError::RolledBack;
    tracing::error!("{rolled_back}");
    Ok(rolled_back)
}

/// Whether Postgres had forgotten tokens. None of them is given out again.
async fn raise(context: &IndexContext, version: &str) -> Result<bool, SetupError> {
    let store = &context.store;
    let mut raised = false;
    for collection in store.collections(version).await? {
        let mut last = store.last_token().await?;
        while let Some(highest) = highest_above(context, &collection.name, last).await? {
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
    context: &IndexContext,
    collection: &str,
    last: i64,
) -> Result<Option<i64>, SetupError> {
    let is_there = async |above: i64| {
        let above = Filter {
            revision_above: Some(above),
            revision_below: Some(MAX_REVISION),
            ..Filter::default()
        };
        Ok::<_, IndexError>(count(context, collection, &above).await? > 0)
    };
    if !is_there(last).await? {
        return Ok(None);
    }
    // There is one above `low`, and none above `high`.
    let (mut low, mut step) = (last, 1);
    while low + step < MAX_REVISION && is_there(low + step).await? {
        low += step;
        step *= 2;
    }
    let mut high = (low + step).min(MAX_REVISION);
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
async fn count(
    context: &IndexContext,
    collection: &str,
    filter: &Filter,
) -> Result<u64, IndexError> {
    match context.index.count(collection, filter).await {
        Err(IndexError::NotFound { .. }) => Ok(0),
        counted => counted,
    }
}
