#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Semaphore, oneshot};

use super::failing::MOST_FAILURES_ALONE;
use super::simulated::{Ended, Kind, Server};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::embed::{Embedded, Limits};

/// Answers as many requests as `let_through` has permits, and records when each came.
struct Fake {
    sent: Mutex<Vec<(Instant, usize)>>,
    /// The outcomes of the next requests, the last one first; later ones succeed.
    errors: Mutex<Vec<Option<EmbedError>>>,
    let_through: Semaphore,
    clock: Clock,
    most_at_once: Mutex<(usize, usize)>,
}

impl Fake {
    fn new(let_through: usize) -> Arc<Self> {
        Arc::new(Self {
            sent: Mutex::default(),
            errors: Mutex::default(),
            let_through: Semaphore::new(let_through),
            clock: Clock::jumping(),
            most_at_once: Mutex::default(),
        })
    }
}

impl Embedder for Fake {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        _: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>> {
        async move {
            self.sent
                .lock()
                .unwrap()
                .push((self.clock.now(), texts.len()));
            {
                let mut at_once = self.most_at_once.lock().unwrap();
                at_once.0 += 1;
                at_once.1 = at_once.1.max(at_once.0);
            }
            self.let_through.acquire().await.unwrap().forget();
            self.most_at_once.lock().unwrap().0 -= 1;
            match self.errors.lock().unwrap().pop().flatten() {
                Some(error) => Err(error),
                None => Ok(embedded(texts.len())),
            }
        }
        .boxed()
    }

    fn limits(&self) -> Limits {
        Limits {
            max_inputs: 1,
            max_tokens: 1000,
        }
    }
}

fn embedded(texts: usize) -> Embedded {
    Embedded {
        vectors: vec![vec![1.0]; texts],
        tokens: None,
    }
}

pub(super) fn settings() -> config::Embedding {
    config::Embedding {
        provider: config::ProviderKind::Openai,
        api_base: String::new(),
        path: String::new(),
        model: String::new(),
        dimensions: None,
        api_key: None,
        ca_file: None,
        client_cert_file: None,
        client_key_file: None,
        headers: Default::default(),
        max_batch_inputs: 1,
        max_batch_tokens: 1000,
        concurrency: 3,
        timeout_ms: 1000,
        requests_per_minute: None,
        tokens_per_minute: None,
        usd_per_million_tokens: None,
        document_prefix: String::new(),
        query_prefix: String::new(),
        document_fields: Default::default(),
        query_fields: Default::default(),
    }
}

fn provider(fake: &Arc<Fake>, settings: &config::Embedding) -> Provider {
    Provider::with_clock(
        fake.clone(),
        settings,
        Timing::default(),
        fake.clock.clone(),
    )
}

fn inputs(count: usize, tokens: usize) -> Vec<Input<'static>> {
    (0..count)
        .map(|n| Input::new(n.to_string(), tokens))
        .collect()
}

fn most_in_a_minute(sent: &[(Instant, usize)]) -> usize {
    let within = |from: Instant| {
        let minute = from..from + Duration::from_secs(60);
        sent.iter().filter(|(at, _)| minute.contains(at)).count()
    };
    sent.iter().map(|(at, _)| within(*at)).max().unwrap_or(0)
}

#[tokio::test]
async fn tokens_per_minute_are_honoured() {
    let fake = Fake::new(1000);
    let settings = config::Embedding {
        tokens_per_minute: Some(500),
        ..settings()
    };
    let provider = provider(&fake, &settings);
    let started = fake.clock.now();
    let outcomes = provider.embed(&inputs(20, 100), Purpose::Note).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(most_in_a_minute(&fake.sent.lock().unwrap()), 5);
    assert_eq!(
        (fake.clock.now() - started).as_secs(),
        180,
        "and ELF waits no longer than necessary"
    );
}

#[tokio::test]
async fn requests_per_minute_are_honoured() {
    let fake = Fake::new(1000);
    let settings = config::Embedding {
        requests_per_minute: Some(7),
        ..settings()
    };
    let provider = provider(&fake, &settings);
    assert!(
        provider
            .embed(&inputs(30, 1), Purpose::Note)
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(most_in_a_minute(&fake.sent.lock().unwrap()), 7);
}

#[tokio::test]
async fn an_outage_ends_waiting_calls_at_once() {
    let fake = Fake::new(1);
    fake.errors
        .lock()
        .unwrap()
        .push(Some(EmbedError::unavailable("refused")));
    let settings = config::Embedding {
        concurrency: 1,
        ..settings()
    };
    let provider = provider(&fake, &settings);
    let outcomes = provider.embed(&inputs(50, 1), Purpose::Note).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome == Err(EmbedError::unavailable("refused")))
    );
    assert_eq!(fake.sent.lock().unwrap().len(), 1);
}

/// The provider dies of a text, and its probe fails: an outage, as far as one can see then.
#[tokio::test]
async fn a_text_that_takes_the_provider_down_each_time_is_found() {
    let fake = Fake::new(1000);
    let provider = provider(&fake, &settings());
    for round in 1..=MOST_FAILURES_ALONE {
        let dies = EmbedError::failed("the answer was cut off");
        let is_down = EmbedError::unavailable("cannot connect");
        *fake.errors.lock().unwrap() = vec![None, Some(is_down), Some(dies)];
        let outcome = provider.embed(&inputs(1, 1), Purpose::Note).await.remove(0);
        match outcome.unwrap_err() {
            EmbedError::Input { .. } => assert_eq!(round, MOST_FAILURES_ALONE),
            EmbedError::Unavailable { .. } => assert!(round < MOST_FAILURES_ALONE),
            error => panic!("{round}: {error}"),
        }
        provider.ready().await;
    }
    let outcome = provider.embed(&inputs(1, 1), Purpose::Note).await.remove(0);
    assert!(outcome.is_ok(), "it is tried again");
}

/// A limit of tokens lets a probe pass.
#[tokio::test]
async fn a_429_is_a_texts_fault_only_if_other_texts_pass() {
    for others_pass in [false, true] {
        let fake = Fake::new(1000);
        let provider = provider(&fake, &settings());
        let mut blamed = false;
        for round in 0..2 * MOST_FAILURES_ALONE {
            let busy = EmbedError::unavailable("429");
            *fake.errors.lock().unwrap() = vec![None, Some(busy)];
            let outcome = provider.embed(&inputs(1, 1), Purpose::Note).await.remove(0);
            blamed |= matches!(outcome, Err(EmbedError::Input { .. }));
            fake.errors.lock().unwrap().clear();
            provider.ready().await;
            if others_pass {
                let other = [Input::new(format!("other {round}"), 1)];
                assert!(provider.embed(&other, Purpose::Note).await[0].is_ok());
            }
        }
        assert_eq!(blamed, others_pass);
    }
}

#[tokio::test]
async fn what_a_query_meets_pauses_nothing() {
    let busy = EmbedError::Unavailable {
        reason: "busy".into(),
        retry_after: Some(Duration::from_secs(20)),
        perhaps_input: false,
    };
    for error in [busy, EmbedError::config("403"), EmbedError::failed("500")] {
        let fake = Fake::new(1000);
        let provider = provider(&fake, &settings());
        // The query, a probe, and the query once more if it may have been chance.
        *fake.errors.lock().unwrap() = vec![Some(error.clone()), None, Some(error.clone())];
        let outcome = provider
            .embed(&inputs(1, 1), Purpose::Query)
            .await
            .remove(0);
        assert!(outcome.is_err(), "{error}");
        assert_eq!(provider.state(), CircuitState::Closed, "{error}");
    }
    let fake = Fake::new(1000);
    let provider = provider(&fake, &settings());
    let refused = Some(EmbedError::unavailable("refused"));
    *fake.errors.lock().unwrap() = vec![refused.clone(), refused];
    provider.embed(&inputs(1, 1), Purpose::Query).await;
    assert_ne!(provider.state(), CircuitState::Closed, "a probe fails too");
}

#[tokio::test]
async fn the_probe_comes_after_the_pause_that_was_asked_for() {
    let fake = Fake::new(100);
    let busy = EmbedError::Unavailable {
        reason: "busy".into(),
        retry_after: Some(Duration::from_secs(20)),
        perhaps_input: false,
    };
    *fake.errors.lock().unwrap() = vec![Some(busy.clone()), Some(busy)];
    let provider = provider(&fake, &settings());
    let started = fake.clock.now();
    assert!(provider.embed(&inputs(1, 1), Purpose::Note).await[0].is_err());
    provider.ready().await;
    let sent: Vec<u64> = fake
        .sent
        .lock()
        .unwrap()
        .iter()
        .map(|(at, _)| (*at - started).as_secs())
        .collect();
    assert_eq!(sent, [0, 20, 40], "the text, a failed probe, a probe");
}

#[tokio::test]
async fn a_call_can_be_a_task_of_its_own() {
    let fake = Fake::new(1000);
    let provider = provider(&fake, &settings());
    let inputs = inputs(9, 1);
    let (outcomes, mut known) = tokio::sync::mpsc::unbounded_channel();
    let call = async move {
        let reservations = provider.reserve(inputs.iter().map(|input| input.hash));
        let never = CancellationToken::new();
        provider
            .embed_each(&inputs, reservations, &never, |hash, outcome, _| {
                outcomes.send((hash, outcome.is_ok())).unwrap();
            })
            .await;
    };
    tokio::spawn(call).await.unwrap();
    let mut count = 0;
    while let Some((_, embedded)) = known.recv().await {
        assert!(embedded);
        count += 1;
    }
    assert_eq!(count, 9);
}

/// Another call may be answered after this one has read the stored vectors.
#[tokio::test]
async fn a_text_is_sent_once_though_a_call_looks_while_another_is_answered() {
    let fake = Fake::new(1000);
    let provider = provider(&fake, &settings());
    let inputs = inputs(1, 1);
    let hash = inputs[0].hash;
    let mut first = provider.reserve([hash].into_iter());
    assert_eq!(first.mine().collect::<Vec<_>>(), [hash]);
    let second = provider.reserve([hash].into_iter());
    assert_eq!(second.mine().count(), 0, "it is in flight");
    first.resolve_known(hash, Arc::from([0.5, 0.5]));
    let (mut told, never) = (None, CancellationToken::new());
    provider
        .embed_each(&inputs, second, &never, |_, outcome, was_sent| {
            told = Some((outcome.clone(), was_sent));
        })
        .await;
    assert_eq!(told, Some((Ok(Arc::from([0.5, 0.5])), false)));
    assert!(fake.sent.lock().unwrap().is_empty());
}

/// The provider computes it in any case.
#[tokio::test]
async fn a_call_that_is_stopped_takes_in_what_is_in_flight_and_sends_nothing_more() {
    let fake = Fake::new(0);
    let provider = provider(&fake, &settings());
    let inputs = inputs(9, 1);
    let reservations = provider.reserve(inputs.iter().map(|input| input.hash));
    let (stop, mut told) = (CancellationToken::new(), 0);
    let mut call =
        Box::pin(
            provider.embed_each(&inputs, reservations, &stop, |_, outcome, was_sent| {
                assert!(outcome.is_ok() && was_sent);
                told += 1;
            }),
        );
    assert!((&mut call).now_or_never().is_none());
    let sent = fake.sent.lock().unwrap().len();
    stop.cancel();
    fake.let_through.add_permits(9);
    call.await;
    assert_eq!((told, fake.sent.lock().unwrap().len()), (sent, sent));
    assert!(sent > 0);
}

#[tokio::test]
async fn an_outcome_is_told_when_its_own_request_ended() {
    let fake = Fake::new(0);
    let provider = provider(&fake, &settings());
    let inputs = inputs(9, 1);
    let (outcomes, mut known) = tokio::sync::mpsc::unbounded_channel();
    let reservations = provider.reserve(inputs.iter().map(|input| input.hash));
    let never = CancellationToken::new();
    let mut call = Box::pin(
        provider.embed_each(&inputs, reservations, &never, |hash, _, _| {
            outcomes.send(hash).unwrap();
        }),
    );
    for told in 1..9 {
        fake.let_through.add_permits(1);
        assert!((&mut call).now_or_never().is_none());
        assert_eq!(known.len(), told, "of one text in each request");
    }
    known.close();
}

/// A simulated server as an embedder. Time passes only in [`Slow::run`].
struct Slow {
    clock: Clock,
    start: Instant,
    inner: Mutex<Inner>,
}

struct Inner {
    server: Server,
    waiting: HashMap<u32, oneshot::Sender<bool>>,
    requests: Vec<Vec<String>>,
    max_in_flight: usize,
    /// A text that is never answered.
    hangs: Option<&'static str>,
}

const TIMEOUT: Duration = Duration::from_secs(30);

impl Slow {
    fn new(server: Server) -> Arc<Self> {
        let clock = Clock::jumping();
        Arc::new(Self {
            start: clock.now(),
            clock,
            inner: Mutex::new(Inner {
                server,
                waiting: HashMap::new(),
                requests: Vec::new(),
                max_in_flight: 0,
                hangs: None,
            }),
        })
    }

    fn provider(self: &Arc<Self>) -> Provider {
        let settings = config::Embedding {
            concurrency: 16,
            timeout_ms: TIMEOUT.as_millis() as u64,
            ..settings()
        };
        Provider::with_clock(
            self.clone(),
            &settings,
            Timing::default(),
            self.clock.clone(),
        )
    }

    /// Lets the simulated time pass until `call` has ended.
    async fn run<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        loop {
            if let Some(ended) = call.as_mut().now_or_never() {
                return ended;
            }
            // Probes run in tasks of their own.
            tokio::task::yield_now().await;
            let mut inner = self.inner.lock().unwrap();
            let Some(ended) = inner.server.advance() else {
                continue;
            };
            self.clock
                .advance_to(self.start + Duration::from_secs_f64(inner.server.now()));
            let (id, answered) = match ended {
                Ended::Answered(id) => (id, true),
                Ended::TimedOut(id) => (id, false),
            };
            let _ = inner.waiting.remove(&id).unwrap().send(answered);
        }
    }

    fn times_sent(&self) -> HashMap<String, usize> {
        let mut times = HashMap::new();
        for text in self.inner.lock().unwrap().requests.iter().flatten() {
            *times.entry(text.clone()).or_default() += 1;
        }
        times.remove(PROBE);
        times
    }
}

impl Embedder for Slow {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        _: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>> {
        async move {
            let answered = {
                let mut inner = self.inner.lock().unwrap();
                let hangs = texts.iter().any(|text| Some(*text) == inner.hangs);
                let id = inner
                    .server
                    .submit(if hangs { 1_000_000 } else { texts.len() }, TIMEOUT);
                let (tell, answered) = oneshot::channel();
                inner.waiting.insert(id, tell);
                inner
                    .requests
                    .push(texts.iter().map(|text| (*text).to_owned()).collect());
                inner.max_in_flight = inner.max_in_flight.max(inner.waiting.len());
                answered
            };
            if answered.await.unwrap() {
                return Ok(embedded(texts.len()));
            }
            Err(EmbedError::TimedOut {
                reason: "no answer".to_owned(),
            })
        }
        .boxed()
    }

    fn limits(&self) -> Limits {
        Limits {
            max_inputs: 256,
            max_tokens: 100_000,
        }
    }
}

#[tokio::test]
async fn a_call_reaches_what_its_server_can_and_sends_each_text_once() {
    for kind in [Kind::Shared, Kind::Serial, Kind::Parallel(3)] {
        let server = Server::new(kind, 0.01, 0.15);
        let best = server.best_secs(2000, 256);
        let slow = Slow::new(server);
        let provider = slow.provider();
        let (first, second) = (inputs(1000, 100), inputs(2000, 100));
        let both = futures::future::join(
            provider.embed(&first, Purpose::Note),
            provider.embed(&second[1000..], Purpose::Note),
        );
        let (first, second) = slow.run(both).await;
        assert!(first.iter().chain(&second).all(Result::is_ok), "{kind:?}");
        let ratio = best / slow.inner.lock().unwrap().server.answered_at();
        assert!(ratio >= 0.85, "{kind:?}: {ratio} of its best");
        assert_eq!(slow.times_sent().values().max(), Some(&1), "{kind:?}");
    }
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_configured() {
    let slow = Slow::new(Server::new(Kind::Parallel(64), 0.1, 0.0));
    let provider = slow.provider();
    slow.run(provider.embed(&inputs(60_000, 100), Purpose::Note))
        .await;
    assert_eq!(slow.inner.lock().unwrap().max_in_flight, 16);
}

#[tokio::test]
async fn what_timed_out_goes_again_in_requests_of_half_the_size_at_most() {
    // Forty times slower from second 20 on: requests then time out.
    let slow = Slow::new(Server::new(Kind::Shared, 0.01, 0.05).changing_at(20.0, 40.0));
    let provider = slow.provider();
    let mut texts: Vec<Input> = inputs(1000, 100);
    let mut rounds = 0;
    while !texts.is_empty() {
        slow.run(provider.ready()).await;
        let outcomes = slow.run(provider.embed(&texts, Purpose::Note)).await;
        let mut outcomes = outcomes.into_iter();
        texts.retain(|_| match outcomes.next().unwrap() {
            Ok(_) => false,
            // No text is at fault, and the circuit is open.
            Err(EmbedError::Unavailable { .. }) => true,
            Err(error) => panic!("{error}"),
        });
        rounds += 1;
        assert!(rounds < 10);
    }
    let requests = slow.inner.lock().unwrap().requests.clone();
    for (place, request) in requests.iter().enumerate() {
        for later in &requests[place + 1..] {
            let again = later
                .iter()
                .filter(|text| **text != PROBE && request.contains(text))
                .count();
            assert!(
                again <= request.len() / 2 || request.len() == 1,
                "{request:?} {later:?}"
            );
        }
    }
    let times: usize = slow.times_sent().values().sum();
    assert!(times <= 1100, "{times} for 1000 texts");
}

#[tokio::test]
async fn a_text_that_hangs_the_server_is_found_though_it_only_times_out() {
    let slow = Slow::new(Server::new(Kind::Parallel(8), 0.02, 0.001));
    slow.inner.lock().unwrap().hangs = Some("137");
    let provider = slow.provider();
    let outcomes = slow
        .run(provider.embed(&inputs(300, 100), Purpose::Note))
        .await;
    for (n, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Err(EmbedError::Input { .. }) => assert_eq!(n, 137),
            Ok(_) => assert_ne!(n, 137),
            Err(error) => panic!("{n}: {error}"),
        }
    }
    let worst = *slow.times_sent().values().max().unwrap();
    assert!(worst <= 9, "sent {worst} times");
    assert_eq!(provider.state(), CircuitState::Closed);
}

#[tokio::test]
async fn a_single_text_beyond_the_timeout_is_not_blamed_while_no_other_is_quick() {
    let slow = Slow::new(Server::new(Kind::Serial, 0.01, 0.15).changing_at(5.0, 400.0));
    let provider = slow.provider();
    let outcomes = slow
        .run(provider.embed(&inputs(60, 100), Purpose::Note))
        .await;
    let blamed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(EmbedError::Input { .. })));
    assert_eq!(blamed.count(), 0);
    assert!(matches!(outcomes[59], Err(EmbedError::Unavailable { .. })));
    assert!(provider.state().error().is_some());
}
