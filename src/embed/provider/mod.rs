//! The embedding provider as the rest of ELF calls it. Wraps an [`Embedder`]: sends
//! requests at the provider's pace and within its limits, sends each text once, and
//! decides whether a failure is the fault of a text.

mod ceiling;
mod circuit;
mod clock;
mod concurrency;
mod failing;
mod in_flight;
mod metrics;
mod pace;
mod queue;
mod rate;
mod request;
#[cfg(test)]
mod simulated;
mod speed;
mod truncation;

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

use super::{EmbedError, Embedder, PROBE, Purpose, probe};
use crate::config;
use crate::note::TextHash;
use circuit::Circuit;
use clock::Clock;
use concurrency::{AdaptiveConcurrency, Lane};
use failing::{Answers, FailingTexts};
use in_flight::{InFlightTexts, Reservation};
use queue::{Part, Queue, Text};
use rate::Rate;
use request::Ended;
use truncation::Truncation;

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
/// the provider embedded something else meanwhile. What no answer explains opens the
/// circuit. While it is open, every call returns at once with `Unavailable` or
/// `Config`, and ELF sends only one probe after each pause. A probe that succeeds
/// closes the circuit. Texts that may be the cause of a failure are sent after all others
/// then. A query opens the circuit only if a probe fails too.
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
    /// Texts in flight: those of notes, and queries.
    notes: InFlightTexts,
    queries: InFlightTexts,
    failing: FailingTexts,
    truncation: Truncation,
    clock: Clock,
    model: String,
    usd_per_token: Option<f64>,
    /// Requests that returned vectors since the start: all of them, and those with texts.
    answered: [AtomicU64; 2],
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
            notes: InFlightTexts::default(),
            queries: InFlightTexts::default(),
            failing: FailingTexts::new(),
            truncation: Truncation::default(),
            clock,
            model: settings.model.clone(),
            usd_per_token: settings.usd_per_million_tokens.map(|usd| usd / 1e6),
            answered: Default::default(),
            probing: Mutex::new(()),
        }))
    }

    /// One outcome for each of `inputs`, in their order. Equal texts are sent
    /// once, also when another call has one of them in flight.
    pub async fn embed(&self, inputs: &[Input<'_>], purpose: Purpose) -> Vec<Outcome> {
        let mut outcomes = HashMap::with_capacity(inputs.len());
        let never = CancellationToken::new();
        let none = Reservations(HashMap::new());
        self.embed_reserved(inputs, purpose, none, &never, |hash, outcome, _| {
            outcomes.insert(hash, outcome.clone());
        })
        .await;
        let outcome = |input: &Input| outcomes.get(&input.hash).cloned();
        inputs
            .iter()
            .map(|input| outcome(input).expect("every text has an outcome"))
            .collect()
    }

    /// Reserves texts of notes by the hash of what is sent. Until the reservation is dropped, no other call
    /// sends the text. A caller that reserves first and then reads the stored vectors finds
    /// every vector that an earlier call received.
    pub fn reserve(&self, hashes: impl Iterator<Item = TextHash>) -> Reservations<'_> {
        let mut reservations = HashMap::new();
        for hash in hashes {
            reservations
                .entry(hash)
                .or_insert_with(|| self.0.notes.reserve(hash));
        }
        Reservations(reservations)
    }

    /// Embeds texts of notes. Calls `each` once for every distinct text of `inputs`, as soon as its
    /// outcome is known. The text may be in a request of this call or of another
    /// call. The third argument of `each` is whether this call sent the text. After
    /// `stop` this call sends nothing more, but waits for its requests in flight: the
    /// provider computes them in any case.
    pub async fn embed_each(
        &self,
        inputs: &[Input<'_>],
        reservations: Reservations<'_>,
        stop: &CancellationToken,
        each: impl FnMut(TextHash, &Outcome, bool) + Send,
    ) {
        self.embed_reserved(inputs, Purpose::Note, reservations, stop, each)
            .await;
    }

    async fn embed_reserved(
        &self,
        inputs: &[Input<'_>],
        purpose: Purpose,
        Reservations(mut reservations): Reservations<'_>,
        stop: &CancellationToken,
        mut each: impl FnMut(TextHash, &Outcome, bool) + Send,
    ) {
        let shared = &*self.0;
        let in_flight = match purpose {
            Purpose::Note => &shared.notes,
            Purpose::Query => &shared.queries,
        };
        let before = shared.answers().all;
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
        let mut turn = pin!(shared.turn(false));
        let mut apart = pin!(shared.turn(true));
        loop {
            for input in unreserved.drain(..) {
                let reserved = reservations.remove(&input.hash);
                match reserved.unwrap_or_else(|| in_flight.reserve(input.hash)) {
                    Reservation::Mine(ticket) => {
                        let history = shared.failing.history(purpose, input.hash);
                        queue.push((input, ticket), history);
                    }
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
            let now = shared.answers();
            let (has_plain, has_apart) = (queue.has(false, now), queue.has(true, now));
            // A turn that nothing waits for would keep its lane from the other calls.
            if !has_plain {
                turn.set(shared.turn(false));
            }
            if !has_apart {
                apart.set(shared.turn(true));
            }
            let mut entered = None;
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
                lane = &mut turn, if has_plain => {
                    turn.set(shared.turn(false));
                    entered = Some(lane);
                }
                lane = &mut apart, if has_apart => {
                    apart.set(shared.turn(true));
                    entered = Some(lane);
                }
                else => break,
            }
            match entered {
                Some(Ok(lane)) => {
                    let part = queue.take(lane.apart, now, |tokens| lane.fits(tokens));
                    requests.extend(part.map(|part| self.request(lane, part, purpose, before)));
                }
                Some(Err(error)) => {
                    for text in queue.drain() {
                        answer(text, Err(error.clone()), &mut each);
                    }
                }
                None => {}
            }
        }
    }

    /// Probes whether the provider embeds at all. If it does not, the circuit opens,
    /// and the error says whether waiting can help.
    pub async fn check(&self) -> Result<(), EmbedError> {
        self.probe_unless_embedded_since(self.0.answers().all).await
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
        if self.0.answers().all > before {
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
    /// Waits for a free lane, `apart` for failing texts, or returns why nothing is sent.
    async fn turn(&self, apart: bool) -> Result<Lane<'_>, EmbedError> {
        tokio::select! {
            biased;
            error = self.circuit.refused() => Err(error),
            lane = self.lanes.enter(apart) => Ok(lane),
        }
    }

    /// Asks the provider for the vector of a text that every working provider embeds.
    async fn probe(&self) -> Result<(), EmbedError> {
        self.rate.wait(PROBE.len()).await;
        let sent = self.clock.now();
        let result = probe(&*self.embedder).await;
        metrics::request(&result, self.clock.now() - sent, 0, None);
        result.map(|_| {
            self.answered[0].fetch_add(1, Ordering::Relaxed);
        })
    }

    fn answers(&self) -> Answers {
        let [all, texts] = &self.answered;
        Answers {
            all: all.load(Ordering::Relaxed),
            texts: texts.load(Ordering::Relaxed),
        }
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
