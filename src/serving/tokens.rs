//! Compares the tokens of leases with the revisions in the index. A Postgres that lost its
//! newest transactions (a failover to a standby that lagged, or a restore) has lost tokens that
//! the index has seen. It issues them again, and a conditional upsert under such a token
//! silently changes nothing. `docs/inside/decisions.md` says what else shows it.

use metrics::counter;
use uuid::Uuid;

use super::{Serving, ServingError};
use crate::index::{Filter, IndexError, MAX_REVISION};
use crate::store::Target;

/// Called between the writes of a batch and its ack. Fails if a point of the batch's notes is
/// newer than `token` and no later claim has taken the note.
pub async fn check_tokens(
    serving: &Serving,
    version: &str,
    token: i64,
    notes: &[Uuid],
    targets: &[Target],
) -> Result<(), ServingError> {
    for Target { collection, .. } in targets {
        let mut held = notes.to_vec();
        while !held.is_empty() {
            let newer = Filter {
                note_ids: Some(held.clone()),
                revision_above: Some(token),
                ..Filter::default()
            };
            if count(serving, collection, &newer).await? == 0 {
                break;
            }
            // After the count: a claim is committed before its points are written.
            let still = serving.store.held(version, token, &held).await?;
            if still.len() == held.len() {
                raise_tokens(serving, version).await?;
                return Err(ServingError::RolledBack);
            }
            held = still;
        }
    }
    Ok(())
}

/// Raises the tokens above every revision in the index, if the index has a revision that
/// Postgres has not issued. After a promotion or a restore of Postgres the index is verified in
/// any case: Postgres may have lost transactions but no token.
pub async fn ensure_tokens(serving: &Serving, version: &str) -> Result<(), ServingError> {
    if raise(serving, version).await? {
        request_repair(serving, version).await?;
    }
    if serving.store.record_server_identity().await? {
        tracing::warn!(
            "Postgres was promoted or restored since workers last saw it, verifying the index"
        );
    }
    Ok(())
}

/// Raises the tokens so that Postgres issues none twice, and requests a verify. The caller then
/// reports [`ServingError::RolledBack`].
pub async fn raise_tokens(serving: &Serving, version: &str) -> Result<(), ServingError> {
    raise(serving, version).await?;
    request_repair(serving, version).await
}

async fn request_repair(serving: &Serving, version: &str) -> Result<(), ServingError> {
    serving.store.request_verify(version).await?;
    counter!("elf_postgres_rollbacks_total").increment(1);
    tracing::error!("{}", ServingError::RolledBack);
    Ok(())
}

/// Raises the tokens above every revision in the index. Returns whether Postgres had lost
/// tokens.
async fn raise(serving: &Serving, version: &str) -> Result<bool, ServingError> {
    let store = &serving.store;
    let mut raised = false;
    for collection in store.collections(version).await? {
        let mut last = store.last_token().await?;
        while let Some(highest) = highest_above(serving, &collection.name, last).await? {
            // Read again after the index: a claim may have drawn a token and written points since.
            last = store.last_token().await?;
            if last < highest {
                tracing::warn!(
                    last_token = last,
                    highest_revision = highest,
                    collection = collection.name,
                    "index holds revisions that Postgres has not issued, raising the tokens"
                );
                last = store.raise_tokens(highest).await?;
                raised = true;
            }
        }
    }
    Ok(raised)
}

/// The highest revision above `last` in a collection, found by bisection: one count if there is
/// none, about forty otherwise.
async fn highest_above(
    serving: &Serving,
    collection: &str,
    last: i64,
) -> Result<Option<i64>, ServingError> {
    let is_there = async |above: i64| {
        let above = Filter {
            revision_above: Some(above),
            revision_below: Some(MAX_REVISION),
            ..Filter::default()
        };
        Ok::<_, IndexError>(count(serving, collection, &above).await? > 0)
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

/// Counts points. A missing collection counts as empty; a write to it reports the error.
async fn count(serving: &Serving, collection: &str, filter: &Filter) -> Result<u64, IndexError> {
    match serving.index.count(collection, filter).await {
        Err(IndexError::NotFound { .. }) => Ok(0),
        counted => counted,
    }
}
