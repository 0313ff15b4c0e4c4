//! What stands between an [`Embedder`] and those who want vectors: requests at
//! the provider's pace, limits, one send per text, and whose fault a failure is.

mod circuit;
mod clock;
mod concurrency;
mod in_flight;
mod metrics;
mod pace;
mod queue;
mod rate;
#[cfg(test)]
mod simulated;
mod speed;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use circuit::{CircuitState, Timing};
pub use in_flight::Outcome;

use super::{EmbedError, Embedder, PROBE, probe};
use crate::config;
use crate::note::TextHash;
use circuit::Circuit;
use clock::Clock;
use concurrency::{AdaptiveConcurrency, Lane};
use in_flight::{Claim, InFlightTexts};
use queue::{Part, Queue, Text};
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

/// Texts that a call has claimed, by their hashes as they are sent.
pub struct Claims<'a>(HashMap<TextHash, Claim<'a>>);

impl Claims<'_> {
    /// Those that no other call has in flight.
    pub fn mine(&self) -> impl Iterator<Item = TextHash> {
        let is_mine = |claim: &Claim| matches!(claim, Claim::Mine(_));
        let mine = self.0.iter().filter(move |(_, claim)| is_mine(claim));
        mine.map(|(hash, _)| *hash)
    }

    /// Tells other calls the vector of a text, which need not be sent.
    pub fn is_known(&mut self, hash: TextHash, vector: Arc<[f32]>) {
        if let Some(Claim::Mine(ticket)) = self.0.remove(&hash) {
            ticket.settle(Ok(vector));
        }
    }
}

/// What becomes of the texts of a request.
enum Ended {
    /// They have an outcome each.
    Settled(Vec<Outcome>),
    /// They are sent again, before everything else.
    Next,
    /// They are sent again, after everything else.
    Last,
}

struct Shared {
    embedder: Arc<dyn Embedder>,
    circuit: Circuit,
    lanes: AdaptiveConcurrency,
    rate: Rate,
    in_flight: InFlightTexts,
    clock: Clock,
    model: String,
    usd_per_token: Option<f64>,
    /// Requests that gave vectors, ever; probes are among them.
    successes: AtomicU64,
    /// Requests with real texts that gave vectors, ever.
    answers: AtomicU64,
    /// Held while a request that failed asks whether the provider works at all.
    probing: Mutex<()>,
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
            lanes: AdaptiveConcurrency::new(embedder.limits(), settings, clock.clone()),
            embedder,
            circuit: Circuit::new(timing, clock.clone()),
            rate: Rate::new(settings, clock.clone()),
            in_flight: InFlightTexts::default(),
            clock,
            model: settings.model.clone(),
            usd_per_token: settings.usd_per_million_tokens.map(|usd| usd / 1e6),
            successes: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            probing: Mutex::new(()),
        }))
    }

    /// One outcome for each of `inputs`, in their order. Equal texts are sent
    /// once, also when another call has one of them in flight.
    pub async fn embed(&self, inputs: &[Input<'_>]) -> Vec<Outcome> {
        let mut outcomes = HashMap::with_capacity(inputs.len());
        let claims = self.claim(inputs.iter().map(|input| input.hash));
        let never = CancellationToken::new();
        self.embed_each(inputs, claims, &never, |hash, outcome, _| {
            outcomes.insert(hash, outcome.clone());
        })
        .await;
        let outcome = |input: &Input| outcomes.get(&input.hash).cloned();
        inputs
            .iter()
            .map(|input| outcome(input).expect("every text has an outcome"))
            .collect()
    }

    /// Claims texts by their hashes as they are sent. Until such a claim is dropped, no
    /// other call sends the text: who claims first and then looks where vectors are kept
    /// finds what any call before was answered.
    pub fn claim(&self, hashes: impl Iterator<Item = TextHash>) -> Claims<'_> {
        let mut claims = HashMap::new();
        for hash in hashes {
            claims
                .entry(hash)
                .or_insert_with(|| self.0.in_flight.claim(hash));
        }
        Claims(claims)
    }

    /// Calls `each` once for every distinct text of `inputs`, as soon as its
    /// outcome is known: when its own request ended, or that of another call
    /// which has the text in flight. `each` is told which of the two it was: whether
    /// this call sent the text. After `stop` nothing more is sent, and what is in flight
    /// ends: the provider computes it in any case.
    pub async fn embed_each(
        &self,
        inputs: &[Input<'_>],
        Claims(mut claims): Claims<'_>,
        stop: &CancellationToken,
        mut each: impl FnMut(TextHash, &Outcome, bool) + Send,
    ) {
        let shared = &*self.0;
        let before = shared.successes();
        let mut seen = HashSet::new();
        let mut unclaimed: Vec<&Input> = inputs
            .iter()
            .filter(|input| seen.insert(input.hash))
            .collect();
        let mut queue = Queue::default();
        let mut theirs = FuturesUnordered::new();
        let mut requests = FuturesUnordered::new();
        // One turn at a time, kept over the rounds of the loop: a new one would
        // have to queue up again behind the other calls.
        let mut turn = pin!(shared.turn());
        loop {
            for input in unclaimed.drain(..) {
                let claimed = claims.remove(&input.hash);
                match claimed.unwrap_or_else(|| shared.in_flight.claim(input.hash)) {
                    Claim::Mine(ticket) => queue.push((input, ticket)),
                    Claim::Theirs(pending) => {
                        theirs.push(async move { (input, in_flight::wait(pending).await) });
                    }
                }
            }
            if stop.is_cancelled() {
                // Other calls may have the texts.
                queue.drain().for_each(drop);
                theirs.clear();
            }
            tokio::select! {
                biased;
                () = stop.cancelled(), if !queue.is_empty() || !theirs.is_empty() => {}
                Some((input, outcome)) = theirs.next() => match outcome {
                    Some(outcome) => each(input.hash, &outcome, false),
                    None => unclaimed.push(input),
                },
                Some((part, ended)) = requests.next() => match ended {
                    Ended::Settled(outcomes) => {
                        let part: Part = part;
                        for (text, outcome) in part.texts.into_iter().zip(outcomes) {
                            settle(text, outcome, &mut each);
                        }
                    }
                    Ended::Next => queue.push_front(part),
                    Ended::Last => queue.push_back(part),
                },
                lane = &mut turn, if !queue.is_empty() => {
                    match lane {
                        Ok(lane) => {
                            let part = queue.take(|tokens| lane.fits(tokens));
                            requests.extend(part.map(|part| self.request(lane, part, before)));
                        }
                        Err(error) => {
                            for text in queue.drain() {
                                settle(text, Err(error.clone()), &mut each);
                            }
                        }
                    }
                    turn.set(shared.turn());
                }
                else => break,
            }
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

    /// One request with `part`, and what is to become of its texts. `before` is
    /// the count of successes when the call began.
    async fn request<'a>(
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
                return (part, Ended::Settled(vectors.collect()));
            }
            // The halves will tell.
            Err(EmbedError::Input { .. }) if !alone => {
                metrics::retries(2);
                return (part.halved(), Ended::Next);
            }
            Err(error @ EmbedError::Input { .. }) => match self.still_works(before).await {
                Ok(()) => error,
                Err(outage) => outage,
            },
            Err(EmbedError::Unavailable {
                reason,
                perhaps_input: true,
                ..
            }) => match self.still_works(before_request).await {
                Err(outage) => outage,
                // A hiccup is over by the second try.
                Ok(()) if !part.failed => {
                    metrics::retries(1);
                    part.failed = true;
                    return (part, Ended::Next);
                }
                // A provider that serves others, and on these texts fails again,
                // chokes on them.
                Ok(()) if !alone => {
                    metrics::retries(2);
                    return (part.halved(), Ended::Next);
                }
                Ok(()) => EmbedError::Input { reason },
            },
            // The provider may still compute these texts: they go in smaller
            // requests, and only after everything else.
            Err(EmbedError::TimedOut { reason }) => {
                let suspected = part.timed_out.is_some();
                let since = *part.timed_out.get_or_insert(answers);
                match self.still_works(before_request).await {
                    Err(outage) => outage,
                    Ok(()) if !alone => {
                        metrics::retries(2);
                        return (part.halved(), Ended::Last);
                    }
                    // Others like it are quick.
                    Ok(()) if unexplained && shared.answers() > since => {
                        if !suspected {
                            metrics::retries(1);
                            return (part, Ended::Last);
                        }
                        EmbedError::Input { reason }
                    }
                    // The provider is slow, and one text cannot be made smaller.
                    Ok(()) => self.opened(EmbedError::failed(format!(
                        "{reason} to a single text, although it answers a short one"
                    ))),
                }
            }
            Err(error) => self.opened(error),
        };
        let outcomes = vec![Err(error); part.texts.len()];
        (part, Ended::Settled(outcomes))
    }

    /// Makes sure that the provider embedded something since there were `before`
    /// successes; else asks it, and opens the circuit where it does not.
    async fn still_works(&self, before: u64) -> Result<(), EmbedError> {
        // Requests that failed together wait for one probe.
        let _one = self.0.probing.lock().await;
        if self.0.successes() > before {
            return Ok(());
        }
        if let Some(error) = self.0.circuit.state().error() {
            return Err(error.clone());
        }
        self.0.probe().await.map_err(|error| self.opened(error))
    }

    /// `error`, for which the circuit is open now.
    fn opened(&self, error: EmbedError) -> EmbedError {
        if self.0.circuit.open(&error) {
            tokio::spawn(probe_until_closed(Arc::downgrade(&self.0)));
        }
        error
    }
}

impl Shared {
    /// Waits for a free lane, or returns why nothing is sent.
    async fn turn(&self) -> Result<Lane<'_>, EmbedError> {
        tokio::select! {
            biased;
            error = self.circuit.refused() => Err(error),
            lane = self.lanes.enter() => Ok(lane),
        }
    }

    /// One request, as soon as the rate limits let it. Returns, too, whether it
    /// took longer than the provider's pace explains.
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

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }
}

/// Tells whoever waits for the text, and the caller.
fn settle(
    (input, ticket): Text<'_>,
    outcome: Outcome,
    each: &mut impl FnMut(TextHash, &Outcome, bool),
) {
    each(input.hash, &outcome, true);
    ticket.settle(outcome);
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

#[cfg(test)]
mod tests;
