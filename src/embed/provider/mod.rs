//! What stands between an [`Embedder`] and those who want vectors: batches,
//! limits, one send per text, and whose fault a failure is.

mod circuit;
mod clock;
mod in_flight;
mod lanes;
mod metrics;
mod rate;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures::future::join_all;
use tracing::Instrument;

pub use circuit::{CircuitState, Timing};
pub use in_flight::Outcome;

use super::{EmbedError, Embedder, Limits, PROBE, probe};
use crate::config;
use crate::note::TextHash;
use circuit::Circuit;
use clock::Clock;
use in_flight::{Claim, InFlight, Ticket};
use lanes::Lanes;
use rate::Rate;

/// A text as it is sent, prefix included.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The hash of `text`.
    pub hash: TextHash,
    /// Prefix and chunk, or prefix and query.
    pub text: Cow<'a, str>,
    /// Tokens of `text`, special ones included.
    pub tokens: usize,
}

impl<'a> Input<'a> {
    /// `text` with its hash.
    pub fn new(text: impl Into<Cow<'a, str>>, tokens: usize) -> Self {
        let text = text.into();
        Self {
            hash: TextHash::of(&text),
            text,
            tokens,
        }
    }
}

/// An embedding provider as the rest of ELF sees it. Clones share everything.
///
/// A failure is the fault of a text only if the text stands alone and the
/// provider embedded something else meanwhile. Everything else that fails opens
/// the circuit: every call returns at once with `Unavailable` or `Config`,
/// nothing is sent but one probe after a pause, and the probe that succeeds
/// closes it again.
#[derive(Clone)]
pub struct Provider(Arc<Shared>);

struct Shared {
    embedder: Arc<dyn Embedder>,
    limits: Limits,
    circuit: Circuit,
    lanes: Lanes,
    rate: Rate,
    in_flight: InFlight,
    clock: Clock,
    model: String,
    usd_per_token: Option<f64>,
    /// Requests that gave vectors, ever.
    successes: AtomicU64,
}

impl Provider {
    /// `embedder` within the limits of `settings`.
    pub fn new(embedder: Arc<dyn Embedder>, settings: &config::Embedding) -> Self {
        Self::with_timing(embedder, settings, Timing::default())
    }

    /// [`Provider::new`] with pauses of the caller's choice.
    pub fn with_timing(
        embedder: Arc<dyn Embedder>,
        settings: &config::Embedding,
        timing: Timing,
    ) -> Self {
        Self::with_clock(embedder, settings, timing, Clock::System)
    }

    fn with_clock(
        embedder: Arc<dyn Embedder>,
        settings: &config::Embedding,
        timing: Timing,
        clock: Clock,
    ) -> Self {
        Self(Arc::new(Shared {
            limits: embedder.limits(),
            embedder,
            circuit: Circuit::new(timing, clock.clone()),
            lanes: Lanes::new(settings.concurrency),
            rate: Rate::new(settings, clock.clone()),
            in_flight: InFlight::default(),
            clock,
            model: settings.model.clone(),
            usd_per_token: settings.usd_per_million_tokens.map(|usd| usd / 1e6),
            successes: AtomicU64::new(0),
        }))
    }

    /// One outcome for each of `inputs`, in their order. Equal texts are sent
    /// once, also when another call has one of them in flight.
    pub async fn embed(&self, inputs: &[Input<'_>]) -> Vec<Outcome> {
        let mut seen = HashSet::new();
        let mut missing: Vec<&Input> = inputs
            .iter()
            .filter(|input| seen.insert(input.hash))
            .collect();
        let mut outcomes = HashMap::with_capacity(missing.len());
        while !missing.is_empty() {
            let mut mine = Vec::new();
            let mut theirs = Vec::new();
            for input in missing {
                match self.0.in_flight.claim(input.hash) {
                    Claim::Mine(ticket) => mine.push((input, ticket)),
                    Claim::Theirs(pending) => theirs.push((input, pending)),
                }
            }
            // Before waiting for others, who may be waiting for these.
            outcomes.extend(self.embed_mine(mine).await);
            missing = Vec::new();
            for (input, pending) in theirs {
                match in_flight::wait(pending).await {
                    Some(outcome) => {
                        outcomes.insert(input.hash, outcome);
                    }
                    None => missing.push(input),
                }
            }
        }
        let outcome = |input: &Input| outcomes.get(&input.hash).cloned();
        inputs
            .iter()
            .map(|input| outcome(input).expect("the loop ends when no text is missing"))
            .collect()
    }

    /// Interim.
    pub async fn embed_each(&self, inputs: &[Input<'_>], each: impl Fn(TextHash, &Outcome)) {
        for (input, outcome) in inputs.iter().zip(self.embed(inputs).await) {
            each(input.hash, &outcome);
        }
    }

    /// Asks the provider whether it embeds at all. Where it does not, the circuit
    /// opens, and the error says whether waiting can help.
    pub async fn check(&self) -> Result<(), EmbedError> {
        self.still_works(self.0.successes()).await
    }

    /// Waits until texts are sent again: claims pause on it.
    pub async fn ready(&self) {
        self.0.circuit.closed().await;
    }

    /// Whether texts are sent, and why not.
    pub fn state(&self) -> CircuitState {
        self.0.circuit.state()
    }

    /// The model's name, for people.
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// What a token costs in US dollars, where that is configured.
    pub fn usd_per_token(&self) -> Option<f64> {
        self.0.usd_per_token
    }

    async fn embed_mine(
        &self,
        mut texts: Vec<(&Input<'_>, Ticket<'_>)>,
    ) -> Vec<(TextHash, Outcome)> {
        let tokens: Vec<usize> = texts.iter().map(|(input, _)| input.tokens).collect();
        let mut requests: Vec<Vec<_>> = batches(&tokens, self.0.limits)
            .into_iter()
            .rev()
            .map(|batch| texts.split_off(batch.start))
            .collect();
        requests.reverse();
        // All at once: the lanes let as many through as there may be.
        join_all(requests.into_iter().map(|batch| self.settle(batch)))
            .await
            .concat()
    }

    /// Embeds a batch; halves of it where the whole is rejected, until what is
    /// rejected stands alone.
    async fn settle(&self, batch: Vec<(&Input<'_>, Ticket<'_>)>) -> Vec<(TextHash, Outcome)> {
        let before = self.0.successes();
        let mut settled = Vec::with_capacity(batch.len());
        let mut parts = vec![batch];
        while let Some(mut part) = parts.pop() {
            let result = self.ask(&part, before).await;
            if part.len() > 1 && matches!(result, Err(EmbedError::Input { .. })) {
                metrics::retries(2);
                parts.push(part.split_off(part.len() / 2));
                parts.push(part);
                continue;
            }
            let outcomes: Vec<Outcome> = match result {
                Ok(vectors) => vectors
                    .into_iter()
                    .map(|vector| Ok(vector.into()))
                    .collect(),
                Err(error) => vec![Err(error); part.len()],
            };
            for ((input, ticket), outcome) in part.into_iter().zip(outcomes) {
                ticket.settle(outcome.clone());
                settled.push((input.hash, outcome));
            }
        }
        settled
    }

    /// The vectors of `part`, or whose fault it is that there are none: an
    /// `Input` error is the fault of at least one text. `before` is the count of
    /// successes when its batch was first sent.
    async fn ask(
        &self,
        part: &[(&Input<'_>, Ticket<'_>)],
        before: u64,
    ) -> Result<Vec<Vec<f32>>, EmbedError> {
        let shared = &self.0;
        let texts: Vec<&str> = part.iter().map(|(input, _)| &*input.text).collect();
        let tokens = part.iter().map(|(input, _)| input.tokens).sum();
        let mut tries = 0;
        loop {
            tries += 1;
            let before_try = shared.successes();
            match shared.send(&texts, tokens).await {
                Ok(vectors) => return Ok(vectors),
                // The halves will tell.
                Err(error @ EmbedError::Input { .. }) if texts.len() > 1 => return Err(error),
                Err(error @ EmbedError::Input { .. }) => {
                    self.still_works(before).await?;
                    return Err(error);
                }
                Err(EmbedError::Unavailable {
                    reason,
                    perhaps_input: true,
                    ..
                }) => {
                    // A hiccup is over by the second try. A provider that serves
                    // others, and on these texts fails again, chokes on them.
                    self.still_works(before_try).await?;
                    if tries > 1 {
                        return Err(EmbedError::Input { reason });
                    }
                    metrics::retries(1);
                }
                Err(error) => {
                    self.open(&error);
                    return Err(error);
                }
            }
        }
    }

    /// Makes sure that the provider embedded something since there were `before`
    /// successes; else asks it, and opens the circuit where it does not.
    async fn still_works(&self, before: u64) -> Result<(), EmbedError> {
        if self.0.successes() > before {
            return Ok(());
        }
        if let Some(error) = self.0.circuit.state().error() {
            return Err(error.clone());
        }
        let probed = self.0.probe().await;
        if let Err(error) = &probed {
            self.open(error);
        }
        probed
    }

    fn open(&self, error: &EmbedError) {
        if self.0.circuit.open(error) {
            tokio::spawn(probe_until_closed(Arc::downgrade(&self.0)));
        }
    }
}

impl Shared {
    /// One request, as soon as it may be sent.
    async fn send(&self, texts: &[&str], tokens: usize) -> Result<Vec<Vec<f32>>, EmbedError> {
        let admitted = async {
            let lane = self.lanes.enter().await;
            self.rate.wait(tokens).await;
            lane
        };
        let lane = tokio::select! {
            biased;
            error = self.circuit.refused() => return Err(error),
            lane = admitted => lane,
        };
        let sent = self.clock.now();
        let span = tracing::debug_span!("request", texts = texts.len(), tokens);
        let result = self.embedder.embed(texts).instrument(span).await;
        let now = self.clock.now();
        metrics::request(&result, now - sent, tokens, self.usd_per_token);
        drop(lane);
        match &result {
            Ok(_) => {
                self.successes.fetch_add(1, Ordering::Relaxed);
                self.circuit.worked();
                self.lanes.widen();
            }
            Err(EmbedError::Unavailable { .. }) => self.lanes.narrow(sent, now),
            Err(_) => {}
        }
        result
    }

    /// Asks the provider for something that it cannot but embed.
    async fn probe(&self) -> Result<(), EmbedError> {
        self.rate.wait(PROBE.len()).await;
        let sent = self.clock.now();
        let result = probe(&*self.embedder).await;
        metrics::request(&result, self.clock.now() - sent, 0, None);
        result.map(|_| {
            self.successes.fetch_add(1, Ordering::Relaxed);
        })
    }

    fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }
}

/// Sends one probe after each pause. Ends with the circuit closed, or with the
/// last clone of the provider.
async fn probe_until_closed(provider: Weak<Shared>) {
    loop {
        let (clock, state) = match provider.upgrade() {
            Some(shared) => (shared.clock.clone(), shared.circuit.state()),
            None => return,
        };
        let CircuitState::Open { probe_at, .. } = state else {
            return;
        };
        // Without a hold on the provider, or a long pause would keep it alive.
        clock.sleep_until(probe_at).await;
        let Some(shared) = provider.upgrade() else {
            return;
        };
        shared.circuit.half_open();
        match shared.probe().await {
            Ok(()) => return shared.circuit.close(),
            Err(error) => shared.circuit.reopen(error),
        }
    }
}

/// Cuts texts of so many `tokens` into requests within `limits`, in their order.
/// A text that is over the limit by itself goes alone: the provider has the say.
fn batches(tokens: &[usize], limits: Limits) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    let mut sum = 0;
    for (index, &tokens) in tokens.iter().enumerate() {
        match batches.last_mut() {
            Some(batch) if batch.len() < limits.max_inputs && sum + tokens <= limits.max_tokens => {
                batch.end = index + 1;
                sum += tokens;
            }
            _ => {
                batches.push(index..index + 1);
                sum = tokens;
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests;
