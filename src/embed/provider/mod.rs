//! The embedding provider as the rest of ELF calls it. Wraps an [`Embedder`]: sends
//! requests at the provider's pace and within its limits, sends each text once, and
//! decides whether a failure is the fault of a text.

mod circuit;
mod clock;
mod concurrency;
mod in_flight;
mod metrics;
mod pace;
mod queue;
mod rate;
mod request;
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

pub use circuit::{CircuitState, Timing};
pub use in_flight::Outcome;

use super::{EmbedError, Embedder, PROBE, probe};
use crate::config;
use crate::note::TextHash;
use circuit::Circuit;
use clock::Clock;
use concurrency::{AdaptiveConcurrency, Lane};
use in_flight::{InFlightTexts, Reservation};
use queue::{Part, Queue, Text};
use rate::Rate;
use request::Ended;

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

/// Decides which texts are sent to the embedding provider, and when; its [`Embedder`] carries each
/// request. The rest of ELF calls this. Clones share everything.
///
/// A failure is the fault of a text only if the request held that text alone and
/// the provider embedded something else meanwhile. Every other failure opens the
/// circuit. While it is open, every call returns at once with `Unavailable` or
/// `Config`, and ELF sends only one probe after each pause. A probe that succeeds
/// closes the circuit.
#[derive(Clone)]
pub struct Provider(Arc<Shared>);

/// Texts that a call has reserved, by the hash of what is sent.
pub struct Reservations<'a>(HashMap<TextHash, Reservation<'a>>);

impl Reservations<'_> {
    /// The texts that this call must embed: no other call has them in flight.
    pub fn mine(&self) -> impl Iterator<Item = TextHash> {
        let is_mine = |reservation: &Reservation| matches!(reservation, Reservation::Mine(_));
        let mine = self
            .0
            .iter()
            .filter(move |(_, reservation)| is_mine(reservation));
        mine.map(|(hash, _)| *hash)
    }

    /// Passes the stored vector of a text to the calls that wait for it: the text need
    /// not be sent.
    pub fn resolve_known(&mut self, hash: TextHash, vector: Arc<[f32]>) {
        if let Some(Reservation::Mine(ticket)) = self.0.remove(&hash) {
            ticket.complete(Ok(vector));
        }
    }
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
    /// Requests that returned vectors since the start, probes included.
    successes: AtomicU64,
    /// Requests that returned vectors since the start, probes not included.
    answers: AtomicU64,
    /// Held while a failed request probes whether the provider works at all.
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
        let reservations = self.reserve(inputs.iter().map(|input| input.hash));
        let never = CancellationToken::new();
        self.embed_each(inputs, reservations, &never, |hash, outcome, _| {
            outcomes.insert(hash, outcome.clone());
        })
        .await;
        let outcome = |input: &Input| outcomes.get(&input.hash).cloned();
        inputs
            .iter()
            .map(|input| outcome(input).expect("every text has an outcome"))
            .collect()
    }

    /// Reserves texts by the hash of what is sent. Until the reservation is dropped, no other call
    /// sends the text. A caller that reserves first and then reads the stored vectors finds
    /// every vector that an earlier call received.
    pub fn reserve(&self, hashes: impl Iterator<Item = TextHash>) -> Reservations<'_> {
        let mut reservations = HashMap::new();
        for hash in hashes {
            reservations
                .entry(hash)
                .or_insert_with(|| self.0.in_flight.reserve(hash));
        }
        Reservations(reservations)
    }

    /// Calls `each` once for every distinct text of `inputs`, as soon as its
    /// outcome is known. The text may be in a request of this call or of another
    /// call. The third argument of `each` is whether this call sent the text. After
    /// `stop` this call sends nothing more, but waits for its requests in flight: the
    /// provider computes them in any case.
    pub async fn embed_each(
        &self,
        inputs: &[Input<'_>],
        Reservations(mut reservations): Reservations<'_>,
        stop: &CancellationToken,
        mut each: impl FnMut(TextHash, &Outcome, bool) + Send,
    ) {
        let shared = &*self.0;
        let before = shared.successes();
        let mut seen = HashSet::new();
        let mut unreserved: Vec<&Input> = inputs
            .iter()
            .filter(|input| seen.insert(input.hash))
            .collect();
        let mut queue = Queue::default();
        let mut theirs = FuturesUnordered::new();
        let mut requests = FuturesUnordered::new();
        // Kept across the iterations of the loop: a new turn would have to queue again
        // behind the other calls.
        let mut turn = pin!(shared.turn());
        loop {
            for input in unreserved.drain(..) {
                let reserved = reservations.remove(&input.hash);
                match reserved.unwrap_or_else(|| shared.in_flight.reserve(input.hash)) {
                    Reservation::Mine(ticket) => queue.push((input, ticket)),
                    Reservation::Theirs(pending) => {
                        theirs.push(async move { (input, in_flight::wait(pending).await) });
                    }
                }
            }
            if stop.is_cancelled() {
                // Dropping the tickets lets other calls reserve the texts.
                queue.drain().for_each(drop);
                theirs.clear();
            }
            tokio::select! {
                biased;
                () = stop.cancelled(), if !queue.is_empty() || !theirs.is_empty() => {}
                Some((input, outcome)) = theirs.next() => match outcome {
                    Some(outcome) => each(input.hash, &outcome, false),
                    None => unreserved.push(input),
                },
                Some((part, ended)) = requests.next() => match ended {
                    Ended::Answered(outcomes) => {
                        let part: Part = part;
                        for (text, outcome) in part.texts.into_iter().zip(outcomes) {
                            answer(text, outcome, &mut each);
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
                                answer(text, Err(error.clone()), &mut each);
                            }
                        }
                    }
                    turn.set(shared.turn());
                }
                else => break,
            }
        }
    }

    /// Probes whether the provider embeds at all. If it does not, the circuit opens,
    /// and the error says whether waiting can help.
    pub async fn check(&self) -> Result<(), EmbedError> {
        self.probe_unless_embedded_since(self.0.successes()).await
    }

    /// Waits until the circuit is closed. Until then the worker claims only to index what needs
    /// no new vector.
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

    /// Whether the provider embedded something after the first `before` successes. If
    /// it did not, sends a probe, and opens the circuit if that fails.
    async fn probe_unless_embedded_since(&self, before: u64) -> Result<(), EmbedError> {
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

    /// Opens the circuit because of `error`, which it returns.
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

    /// Asks the provider for the vector of a text that every working provider embeds.
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

/// Passes the outcome of a text to the caller, and to the calls that wait for it.
fn answer(
    (input, ticket): Text<'_>,
    outcome: Outcome,
    each: &mut impl FnMut(TextHash, &Outcome, bool),
) {
    each(input.hash, &outcome, true);
    ticket.complete(outcome);
}

/// Sends one probe after each pause. Ends when the circuit is closed or the last
/// clone of the provider is dropped.
async fn probe_until_closed(provider: Weak<Shared>) {
    loop {
        let (clock, state) = match provider.upgrade() {
            Some(shared) => (shared.clock.clone(), shared.circuit.state()),
            None => return,
        };
        let CircuitState::Open { probe_at, .. } = state else {
            return;
        };
        // Sleeps without a reference, which would keep the provider alive.
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
