//! One request, and what happens to its texts when it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::Instrument;

use super::ceiling::Learned;
use super::concurrency::Lane;
use super::failing::{Answers, History, MOST_FAILURES_ALONE};
use super::in_flight::Outcome;
use super::queue::Part;
use super::{Provider, Shared, metrics, pace};
use crate::embed::{EmbedError, Most, Purpose};
use crate::note::TextHash;

/// The longest pause that a provider gets which asks for one because of one text, and embeds others.
const SHORT_PAUSE: Duration = Duration::from_secs(30);

/// What happens to the texts of a request that ended.
pub(super) enum Ended {
    /// Each text has its outcome.
    Answered(Vec<Outcome>),
    /// The texts are sent again, before all others.
    Next,
    /// The texts are sent again, after all others.
    Last,
}

/// A request that failed and does not say that a text is at fault.
struct Failed {
    error: EmbedError,
    purpose: Purpose,
    /// The answers when it was sent.
    began: Answers,
    /// Whether it took longer than the provider's pace explains.
    unexplained: bool,
}

impl Provider {
    /// Sends one request with `part` and decides what happens to its texts. `before`
    /// is the count of answers when the call began.
    pub(super) async fn request<'a>(
        &self,
        mut lane: Lane<'_>,
        part: Part<'a>,
        purpose: Purpose,
        before: u64,
    ) -> (Part<'a>, Ended) {
        let shared = &*self.0;
        let texts = part.texts.len();
        if let Err(error) = shared.wait_for_rate(&part).await {
            return (part, Ended::Answered(vec![Err(error); texts]));
        }
        let began = shared.answers();
        let (result, unexplained) = shared.send(&mut lane, &part, purpose).await;
        match result {
            Ok(vectors) => {
                shared.took(&part, purpose);
                let vectors = vectors.into_iter().map(|vector| Ok(vector.into()));
                let answered = Ended::Answered(vectors.collect());
                (part, answered)
            }
            Err(EmbedError::TooMuch { most, .. }) if texts > 1 => {
                let (learned, most) = match most {
                    Most::Texts(most) => (Learned::Texts(most), most),
                    Most::Tokens(most) => (Learned::Tokens(most), texts / 2),
                };
                shared.lanes.learn(learned);
                metrics::retries(texts.div_ceil(most.max(1)) as u64);
                (part.split(most), Ended::Next)
            }
            // Halving the request finds the text at fault.
            Err(EmbedError::Input { .. }) if texts > 1 => {
                metrics::retries(2);
                (part.halved(), Ended::Next)
            }
            Err(EmbedError::Input { reason } | EmbedError::TooMuch { reason, .. }) => {
                let outage = self.probe_unless_embedded_since(before).await.err();
                let error = outage.unwrap_or(EmbedError::Input { reason });
                (part, Ended::Answered(vec![Err(error)]))
            }
            Err(error) => {
                let failed = Failed {
                    error,
                    purpose,
                    began,
                    unexplained,
                };
                self.retry_halve_or_blame(part, failed).await
            }
        }
    }

    /// Finds out whether the provider fails on these texts or on all. The provider's own words
    /// are no proof: what is before it answers 403, 500 or nothing to one text among many.
    async fn retry_halve_or_blame<'a>(
        &self,
        mut part: Part<'a>,
        failed: Failed,
    ) -> (Part<'a>, Ended) {
        let shared = &*self.0;
        let alone = part.texts.len() == 1;
        let now = shared.answers();
        let before = part.history;
        part.history = failed.history(before, part.texts.len(), now);
        let end = |part: Part<'a>, error: EmbedError| {
            shared.note_failure(&part, failed.purpose);
            let outcomes = vec![Err(error); part.texts.len()];
            (part, Ended::Answered(outcomes))
        };
        let blame = EmbedError::input(failed.error.reason());
        let failed_too_often = alone && part.history.failures_alone >= MOST_FAILURES_ALONE;
        // The provider asks for a pause. A query alone is no reason for one.
        if failed.asks_for_pause() && failed.purpose == Purpose::Note {
            // It has embedded other texts since it asked before: it may mean these texts alone.
            let asks_again = before.failures > 0 && part.history.failures > before.failures;
            return match alone {
                true if failed_too_often => end(part, blame),
                true if asks_again => end(part, self.opened(failed.error.within(SHORT_PAUSE))),
                false if asks_again => {
                    metrics::retries(2);
                    (part.halved(), Ended::Last)
                }
                _ => end(part, self.opened(failed.error)),
            };
        }
        // Before a text is blamed for a refusal, the provider embeds another one: an answer that came
        // earlier may be older than an outage. A timeout has lasted long enough.
        let since = match alone && !failed.timed_out() {
            true => now.all,
            false => failed.began.all,
        };
        if let Err(outage) = self.probe_unless_embedded_since(since).await {
            return end(part, if failed_too_often { blame } else { outage });
        }
        match failed.error {
            // The provider may still be computing these texts, so they are sent in
            // smaller requests, after all others.
            EmbedError::TimedOut { .. } if !alone => {
                metrics::retries(2);
                let mut halves = part.halved();
                // The pace has learned from the timeout.
                halves.split = None;
                (halves, Ended::Last)
            }
            // The pace does not explain the timeout, and other texts were embedded since: after
            // one more try this text is at fault, and remains so although the pace learns from it.
            EmbedError::TimedOut { .. }
                if before.at_fault
                    || failed.unexplained
                        && part
                            .history
                            .timed_out
                            .is_some_and(|since| now.texts > since) =>
            {
                if before.timed_out.is_some() {
                    part.history.at_fault = true;
                    return end(part, blame);
                }
                metrics::retries(1);
                (part, Ended::Last)
            }
            EmbedError::TimedOut { .. } if failed_too_often => end(part, blame),
            EmbedError::TimedOut { reason } => {
                let error = EmbedError::failed(format!(
                    "{reason}: one text alone timed out, although a short probe did not"
                ));
                // The provider is slow, and one text cannot be made smaller.
                match failed.purpose {
                    Purpose::Note => end(part, self.opened(error)),
                    Purpose::Query => end(part, error),
                }
            }
            error @ EmbedError::Unavailable {
                perhaps_input: false,
                ..
            } => end(part, error),
            // The failure may be transient: the same texts are sent once more.
            EmbedError::Unavailable { .. }
                if !before.failed && (alone || before.most == usize::MAX) =>
            {
                metrics::retries(1);
                part.history.failed = true;
                (part, Ended::Next)
            }
            // The provider embeds other texts: one of these is at fault.
            _ if !alone => {
                metrics::retries(2);
                (part.halved(), Ended::Next)
            }
            _ => end(part, blame),
        }
    }
}

impl Failed {
    /// Whether the provider says that it takes no request now, whichever it is.
    fn asks_for_pause(&self) -> bool {
        let error = &self.error;
        matches!(error, EmbedError::Unavailable { perhaps_input, .. } if !perhaps_input)
    }

    fn timed_out(&self) -> bool {
        matches!(self.error, EmbedError::TimedOut { .. })
    }

    fn history(&self, before: History, texts: usize, now: Answers) -> History {
        let timed_out = self.timed_out();
        // A limit of requests or tokens lets probes pass, and so does a slow server.
        let others = |before: Answers, now: Answers| match self.asks_for_pause() || timed_out {
            true => now.texts > before.texts,
            false => now.all > before.all,
        };
        let mut history = before.after_failure(texts, now, others);
        if timed_out {
            history.timed_out.get_or_insert(self.began.texts);
            history.hangs |= self.unexplained;
        }
        history
    }
}

impl Shared {
    /// Waits until the rate limits allow a request, or returns why it is not sent.
    async fn wait_for_rate(&self, part: &Part<'_>) -> Result<(), EmbedError> {
        tokio::select! {
            biased;
            error = self.circuit.refused() => Err(error),
            () = self.rate.wait(part.tokens().iter().sum()) => Ok(()),
        }
    }

    /// Sends one request. Also returns whether it took longer than the provider's pace explains.
    async fn send(
        &self,
        lane: &mut Lane<'_>,
        part: &Part<'_>,
        purpose: Purpose,
    ) -> (Result<Vec<Vec<f32>>, EmbedError>, bool) {
        let texts: Vec<&str> = part.texts.iter().map(|(input, _)| &*input.text).collect();
        let tokens = part.tokens();
        let total = tokens.iter().sum();
        lane.send(&tokens);
        metrics::request_size(texts.len());
        let span = tracing::debug_span!("request", texts = texts.len(), tokens = total);
        let query = (purpose == Purpose::Query).then(|| UnansweredQuery::of(self, part));
        let result = self.embedder.embed(&texts, purpose).instrument(span).await;
        if let Some(query) = query {
            query.answered();
        }
        let (took, unexplained) = lane.end(&result);
        metrics::request(&result, took, total, self.usd_per_token);
        let embedded = match result {
            Ok(embedded) => embedded,
            Err(error) => return (Err(error), unexplained),
        };
        for count in &self.answered {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.circuit.worked();
        if purpose == Purpose::Note {
            self.truncation.watch(total, embedded.tokens);
        }
        (Ok(embedded.vectors), unexplained)
    }

    /// The provider took a request.
    fn took(&self, part: &Part<'_>, purpose: Purpose) {
        if part.history != History::default() {
            for (input, _) in &part.texts {
                self.failing.forget(purpose, input.hash);
            }
        }
        if let Some(split) = &part.split {
            let weight = pace::weight(part.tokens());
            if let Some(most) = split.took(part.texts.len(), weight) {
                self.lanes.learn(Learned::Weight(most));
            }
        }
    }

    /// Remembers that one of these texts may be why the provider failed.
    fn note_failure(&self, part: &Part<'_>, purpose: Purpose) {
        let history = History {
            most: (part.texts.len() / 2).max(1),
            ..part.history
        };
        for (input, _) in &part.texts {
            self.failing.remember(purpose, input.hash, history);
        }
    }
}

/// A query in flight. If its search gives it up, it may hang: the next request for it goes apart.
struct UnansweredQuery<'a> {
    shared: &'a Shared,
    texts: Vec<TextHash>,
    began: Answers,
}

impl<'a> UnansweredQuery<'a> {
    fn of(shared: &'a Shared, part: &Part<'_>) -> Self {
        Self {
            shared,
            texts: part.texts.iter().map(|(input, _)| input.hash).collect(),
            began: shared.answers(),
        }
    }

    fn answered(mut self) {
        self.texts.clear();
    }
}

impl Drop for UnansweredQuery<'_> {
    fn drop(&mut self) {
        let failing = &self.shared.failing;
        for &hash in &self.texts {
            let mut history = failing.history(Purpose::Query, hash);
            history.failed_at = Some(self.shared.answers());
            history.timed_out.get_or_insert(self.began.texts);
            history.hangs = true;
            failing.remember(Purpose::Query, hash, history);
        }
    }
}
