//! One request, and what happens to its texts when it ends.

use std::sync::atomic::Ordering;

use tracing::Instrument;

use super::concurrency::Lane;
use super::in_flight::Outcome;
use super::queue::Part;
use super::{Provider, Shared, metrics};
use crate::embed::EmbedError;

/// What happens to the texts of a request that ended.
pub(super) enum Ended {
    /// Each text has its outcome.
    Answered(Vec<Outcome>),
    /// The texts are sent again, before all others.
    Next,
    /// The texts are sent again, after all others.
    Last,
}

impl Provider {
    /// Sends one request with `part` and decides what happens to its texts. `before`
    /// is the count of successes when the call began.
    pub(super) async fn request<'a>(
        &self,
        mut lane: Lane<'_>,
        mut part: Part<'a>,
        before: u64,
    ) -> (Part<'a>, Ended) {
        let shared = &*self.0;
        let alone = part.texts.len() == 1;
        let (before_request, answers) = (shared.successes(), shared.answers());
        let (result, unexplained) = shared.send(&mut lane, &part).await;
        let error = match result {
            Ok(vectors) => {
                let vectors = vectors.into_iter().map(|vector| Ok(vector.into()));
                return (part, Ended::Answered(vectors.collect()));
            }
            // Halving the request finds the text at fault.
            Err(EmbedError::Input { .. }) if !alone => {
                metrics::retries(2);
                return (part.halved(), Ended::Next);
            }
            Err(error @ EmbedError::Input { .. }) => {
                match self.probe_unless_embedded_since(before).await {
                    Ok(()) => error,
                    Err(outage) => outage,
                }
            }
            Err(EmbedError::Unavailable {
                reason,
                perhaps_input: true,
                ..
            }) => match self.probe_unless_embedded_since(before_request).await {
                Err(outage) => outage,
                // The failure may be transient: the same texts are sent once more.
                Ok(()) if !part.failed => {
                    metrics::retries(1);
                    part.failed = true;
                    return (part, Ended::Next);
                }
                // The provider embeds other texts and failed twice on these: one of
                // them is at fault.
                Ok(()) if !alone => {
                    metrics::retries(2);
                    return (part.halved(), Ended::Next);
                }
                Ok(()) => EmbedError::Input { reason },
            },
            // The provider may still be computing these texts, so they are sent in
            // smaller requests, after all others.
            Err(EmbedError::TimedOut { reason }) => {
                let timed_out_before = part.timed_out.is_some();
                let since = *part.timed_out.get_or_insert(answers);
                match self.probe_unless_embedded_since(before_request).await {
                    Err(outage) => outage,
                    Ok(()) if !alone => {
                        metrics::retries(2);
                        return (part.halved(), Ended::Last);
                    }
                    // The pace does not explain the timeout, and other texts were
                    // embedded since: after one more try this text is at fault.
                    Ok(()) if unexplained && shared.answers() > since => {
                        if !timed_out_before {
                            metrics::retries(1);
                            return (part, Ended::Last);
                        }
                        EmbedError::Input { reason }
                    }
                    // The provider is slow, and one text cannot be made smaller.
                    Ok(()) => self.opened(EmbedError::failed(format!(
                        "{reason}: one text alone timed out, although a short probe did not"
                    ))),
                }
            }
            Err(error) => self.opened(error),
        };
        let outcomes = vec![Err(error); part.texts.len()];
        (part, Ended::Answered(outcomes))
    }
}

impl Shared {
    /// Sends one request as soon as the rate limits allow. Also returns whether it took
    /// longer than the provider's pace explains.
    async fn send(
        &self,
        lane: &mut Lane<'_>,
        part: &Part<'_>,
    ) -> (Result<Vec<Vec<f32>>, EmbedError>, bool) {
        let texts: Vec<&str> = part.texts.iter().map(|(input, _)| &*input.text).collect();
        let tokens = part.tokens();
        let total = tokens.iter().sum();
        tokio::select! {
            biased;
            error = self.circuit.refused() => return (Err(error), false),
            () = self.rate.wait(total) => {}
        }
        lane.send(&tokens);
        metrics::request_size(texts.len());
        let span = tracing::debug_span!("request", texts = texts.len(), tokens = total);
        let result = self.embedder.embed(&texts).instrument(span).await;
        let (took, unexplained) = lane.end(&result);
        metrics::request(&result, took, total, self.usd_per_token);
        if result.is_ok() {
            self.successes.fetch_add(1, Ordering::Relaxed);
            self.answers.fetch_add(1, Ordering::Relaxed);
            self.circuit.worked();
        }
        (result, unexplained)
    }
}
