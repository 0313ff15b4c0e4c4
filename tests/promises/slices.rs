//! A batch is committed as its vectors arrive.

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::Harness;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_batch_that_is_killed_has_paid_for_little_that_is_not_committed() {
    let h = Harness::start_with(|toml| {
        toml.replace("batch_notes = 16", "batch_notes = 256")
            .replace(
                "timeout_ms = 6000",
                "timeout_ms = 60000\nmax_batch_inputs = 8",
            )
    })
    .await;
    h.provider.poison("glacier", Behaviour::Never);
    for i in 0..100 {
        h.insert(&format!("quick note {i}")).await;
    }
    h.insert("as slow as a glacier").await;
    let worker = h.worker();
    let drain = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
    // Up to seven texts share the request that does not end.
    eventually(async || h.count("indexing_outbox").await <= 8).await;
    drain.abort();
    drain.await.unwrap_err();
    h.provider.heal();
    h.expire_leases().await;
    // Until nothing is due: a renewal in flight may have come after that.
    h.drain_with_retries().await;
    h.assert_converged().await;
    let mut texts = h.provider.texts_seen();
    let sent = texts.len();
    texts.sort();
    texts.dedup();
    assert!(
        sent - texts.len() <= 8,
        "{} texts were paid for twice",
        sent - texts.len()
    );
}

/// Two batches have the same text. The first has its vector and waits for another vector.
#[tokio::test]
async fn a_text_is_paid_for_once_though_requests_of_a_batch_end_at_different_times() {
    let h = Harness::start_with(|toml| {
        toml.replace("batch_notes = 16", "batch_notes = 2").replace(
            "timeout_ms = 6000",
            "timeout_ms = 4000\nmax_batch_inputs = 1",
        )
    })
    .await;
    h.provider.poison("glacier", Behaviour::Never);
    h.insert("the same words").await;
    h.insert("as slow as a glacier").await;
    let working = h.work();
    let times_sent = |text: &str| {
        let seen = h.provider.texts_seen();
        seen.iter().filter(|t| t.contains(text)).count()
    };
    eventually(async || times_sent("same") > 0 && times_sent("glacier") > 0).await;
    for _ in 0..5 {
        h.insert("the same words").await;
    }
    eventually(async || h.count("indexing_outbox").await == 1).await;
    assert_eq!(times_sent("same"), 1);
    h.provider.heal();
    drop(working);
}
