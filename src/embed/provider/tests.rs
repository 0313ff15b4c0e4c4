#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;

use super::*;

/// Embeds anything in no time, or whenever it is let, and remembers when.
struct Fake {
    sent: Mutex<Vec<(Instant, usize)>>,
    errors: Mutex<Vec<EmbedError>>,
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
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>> {
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
            match self.errors.lock().unwrap().pop() {
                Some(error) => Err(error),
                None => Ok(vec![vec![1.0]; texts.len()]),
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

fn settings() -> config::Embedding {
    config::Embedding {
        provider: config::Provider::Openai,
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
    let outcomes = provider.embed(&inputs(20, 100)).await;
    assert!(outcomes.iter().all(Result::is_ok));
    assert_eq!(most_in_a_minute(&fake.sent.lock().unwrap()), 5);
    assert_eq!(
        (fake.clock.now() - started).as_secs(),
        180,
        "and no longer waited than need be"
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
            .embed(&inputs(30, 1))
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(most_in_a_minute(&fake.sent.lock().unwrap()), 7);
}

#[tokio::test]
async fn no_more_requests_are_in_flight_than_configured() {
    let fake = Fake::new(0);
    let provider = provider(&fake, &settings());
    let (first, second) = (inputs(9, 1), inputs(18, 1));
    let (first, second) = (provider.embed(&first), provider.embed(&second));
    let mut both = Box::pin(futures::future::join(first, second));
    assert!((&mut both).now_or_never().is_none());
    assert_eq!(fake.sent.lock().unwrap().len(), 3);
    fake.let_through.add_permits(100);
    both.await;
    assert_eq!(fake.most_at_once.lock().unwrap().1, 3);
}

#[tokio::test]
async fn who_waits_for_a_turn_is_told_of_an_outage_at_once() {
    let fake = Fake::new(1);
    fake.errors
        .lock()
        .unwrap()
        .push(EmbedError::away("refused"));
    let settings = config::Embedding {
        concurrency: 1,
        ..settings()
    };
    let provider = provider(&fake, &settings);
    let outcomes = provider.embed(&inputs(50, 1)).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| *outcome == Err(EmbedError::away("refused")))
    );
    assert_eq!(fake.sent.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn the_probe_comes_after_the_pause_that_was_asked_for() {
    let fake = Fake::new(100);
    let busy = EmbedError::Unavailable {
        reason: "busy".into(),
        retry_after: Some(Duration::from_secs(20)),
        perhaps_input: false,
    };
    *fake.errors.lock().unwrap() = vec![busy.clone(), busy];
    let provider = provider(&fake, &settings());
    let started = fake.clock.now();
    assert!(provider.embed(&inputs(1, 1)).await[0].is_err());
    provider.ready().await;
    let sent: Vec<u64> = fake
        .sent
        .lock()
        .unwrap()
        .iter()
        .map(|(at, _)| (*at - started).as_secs())
        .collect();
    assert_eq!(sent, [0, 20, 40], "the text, a probe in vain, a probe");
}

#[test]
fn requests_are_filled_to_either_limit() {
    let limits = Limits {
        max_inputs: 3,
        max_tokens: 10,
    };
    assert_eq!(batches(&[1, 1, 1, 1], limits), [0..3, 3..4]);
    assert_eq!(
        batches(&[5, 5, 1, 20, 1, 9], limits),
        [0..2, 2..3, 3..4, 4..6]
    );
    assert!(batches(&[], limits).is_empty());
}
