//! How much of an embedding server ELF uses, and how often it sends a text: against
//! stand-ins that behave as real servers do, on the default settings. Times are a
//! tenth of those of a small server on a laptop, `timeout_ms` too.
//!
//! The stand-in is a process of its own and speaks the protocol over HTTP. It continues to
//! compute a request that its client has abandoned. Four tasks send 256 texts at a time, as
//! a worker does, and send texts again that failed in an outage.
//!
//! The ratio is to what the same server does at its best, measured in the same minute
//! with a client that knows it: all texts in one request where it has one processor, full
//! requests on all of its places where it has several. The server with a rate limit is
//! compared with its own windows, in each of which full requests arrive at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use elf::config;
use elf::embed::provider::{Input, Provider};
use elf::embed::{Purpose, connect};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};

use crate::process::Helper;
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::{Options, Result};

/// The argument of the process.
pub const ROLE: &str = "--paced-stand-in";

const DIM: usize = 8;
const BATCH: usize = 256;
const BATCHES_IN_FLIGHT: usize = 4;

/// How a stand-in computes.
#[derive(Clone, Copy)]
enum Pace {
    /// One processor; a text takes so long, and from a number of texts on so long.
    Processor {
        /// Whether requests take turns, text by text; else they queue up.
        shared: bool,
        text: Duration,
        change: Option<(usize, Duration)>,
    },
    /// A request takes so long, however many texts it has, and so many go at once.
    Parallel { request: Duration, at_once: usize },
    /// So many requests in each window; more are refused with a 429.
    RateLimited {
        request: Duration,
        requests: usize,
        window: Duration,
    },
}

struct Kind {
    name: &'static str,
    pace: Pace,
    texts: usize,
    max_inputs: usize,
    timeout: Duration,
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "one processor, shared",
        pace: Pace::Processor {
            shared: true,
            text: ms(15),
            change: None,
        },
        texts: 410,
        max_inputs: 256,
        timeout: ms(3000),
    },
    Kind {
        name: "one request after the other",
        pace: Pace::Processor {
            shared: false,
            text: ms(15),
            change: None,
        },
        texts: 410,
        max_inputs: 256,
        timeout: ms(3000),
    },
    Kind {
        name: "eight requests at once",
        pace: Pace::Parallel {
            request: ms(20),
            at_once: 8,
        },
        texts: 16_000,
        max_inputs: 8,
        timeout: ms(3000),
    },
    Kind {
        name: "40 requests in 2 s, then 429",
        pace: Pace::RateLimited {
            request: ms(20),
            requests: 40,
            window: ms(2000),
        },
        // Fewer than five windows allow: probes count too.
        texts: 6000,
        max_inputs: 32,
        timeout: ms(3000),
    },
    Kind {
        name: "shared, turns ten times slower",
        pace: Pace::Processor {
            shared: true,
            text: ms(4),
            change: Some((300, ms(40))),
        },
        texts: 600,
        max_inputs: 256,
        timeout: ms(800),
    },
    Kind {
        name: "shared, turns ten times faster",
        pace: Pace::Processor {
            shared: true,
            text: ms(40),
            change: Some((150, ms(4))),
        },
        texts: 1650,
        max_inputs: 256,
        timeout: ms(8000),
    },
];

impl Kind {
    /// A quick run sends a tenth.
    fn sized(&self, options: Options) -> Self {
        Self {
            texts: options.size(self.texts, self.texts / 10),
            ..*self
        }
    }

    /// Seconds for all texts by a client that knows the server.
    async fn best_secs(&self, url: &str) -> Result<f64> {
        let (inputs, at_once) = match self.pace {
            Pace::Processor { .. } => (self.texts, 1),
            Pace::Parallel { at_once, .. } => (self.max_inputs, at_once),
            Pace::RateLimited {
                request,
                requests,
                window,
            } => {
                let windows = self.texts.div_ceil(self.max_inputs).div_ceil(requests);
                // The last window is over when its requests are answered.
                return Ok((window * (windows as u32 - 1) + request).as_secs_f64());
            }
        };
        let requests =
            (0..self.texts.div_ceil(inputs)).map(|n| inputs.min(self.texts - n * inputs));
        let client = reqwest::Client::new();
        let started = Instant::now();
        let answers = stream::iter(requests)
            .map(|texts| {
                let body = json!({"model": "any", "input": vec!["text"; texts]});
                client
                    .post(format!("{url}/v1/embeddings"))
                    .json(&body)
                    .send()
            })
            .buffer_unordered(at_once);
        answers
            .try_for_each(async |answer| answer.bytes().await.map(drop))
            .await?;
        Ok(started.elapsed().as_secs_f64())
    }
}

pub async fn run(options: Options) -> Result<()> {
    let mut report = Report::new("provider", options, "no engine");
    report.fact("times", "a tenth of those of a small server on a laptop");
    for (place, kind) in KINDS.iter().enumerate() {
        let kind = kind.sized(options);
        let mut counts = HashMap::new();
        let [elf, best] = Rounds::few(options, 3)
            .measure(
                async || {
                    let server = StandIn::start(place)?;
                    let took = send_all(&kind, &server.url).await?;
                    counts = server.counts().await?;
                    Ok(kind.texts as f64 / took)
                },
                async || Ok(kind.texts as f64 / kind.best_secs(&StandIn::start(place)?.url).await?),
            )
            .await?;
        report.ratio(
            kind.name,
            "texts/s",
            [Side::new("ELF", elf), Side::new("best", best)],
            Target::AtLeast(0.9),
        );
        let times = |name: &str| format!("{:.2}", counts[name] as f64 / kind.texts as f64);
        report.fact(
            &format!(
                "{}: sent, computed of each text; requests, most at once",
                kind.name
            ),
            format!(
                "{}, {}; {}, {}",
                times("sent"),
                times("computed"),
                counts["requests"],
                counts["at_once"]
            ),
        );
    }
    report.write()
}

/// Seconds until every text has its vector.
async fn send_all(kind: &Kind, url: &str) -> Result<f64> {
    let settings = config::Embedding {
        max_batch_inputs: kind.max_inputs,
        timeout_ms: kind.timeout.as_millis() as u64,
        ..settings(url)?
    };
    let (embedder, _) = connect(&settings, Some(DIM)).await?;
    let provider = Provider::new(embedder, &settings);
    let batches: Vec<Vec<Input<'static>>> = (0..kind.texts)
        .map(|n| Input::new(format!("text {n}"), 100))
        .collect::<Vec<_>>()
        .chunks(BATCH)
        .map(<[_]>::to_vec)
        .collect();
    let started = Instant::now();
    let places = Arc::new(Semaphore::new(BATCHES_IN_FLIGHT));
    let mut running = tokio::task::JoinSet::new();
    for mut batch in batches {
        let place = places.clone().acquire_owned().await?;
        let provider = provider.clone();
        running.spawn(async move {
            while !batch.is_empty() {
                provider.ready().await;
                let outcomes = provider.embed(&batch, Purpose::Note).await;
                let mut outcomes = outcomes.iter();
                batch.retain(|_| outcomes.next().is_some_and(|outcome| outcome.is_err()));
            }
            drop(place);
        });
    }
    while let Some(ended) = running.join_next().await {
        ended?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// The defaults, for a server at `url`.
fn settings(url: &str) -> Result<config::Embedding> {
    let toml = format!(
        "[storage.postgres]\ndsn = \"postgres://localhost/unused\"\n\
         [storage.qdrant]\nurl = \"http://localhost:6334\"\n\
         [providers.embedding]\napi_base = \"{url}\"\n"
    );
    let config = config::Config::parse(&toml, "elf.toml", &|_| None)?;
    Ok(config.providers.embedding)
}

/// A stand-in in a process of its own.
struct StandIn {
    url: String,
    _process: Helper,
}

impl StandIn {
    fn start(kind: usize) -> Result<Self> {
        let (process, url) = Helper::start(&[ROLE, &kind.to_string()])?;
        Ok(Self {
            url,
            _process: process,
        })
    }

    async fn counts(&self) -> Result<HashMap<String, usize>> {
        Ok(reqwest::get(format!("{}/counts", self.url))
            .await?
            .json()
            .await?)
    }
}

struct Server {
    pace: Pace,
    /// Until when the processor is busy.
    processor: Mutex<Instant>,
    places: Semaphore,
    /// When the window began, and the requests in it.
    window: Mutex<(Option<Instant>, usize)>,
    sent: AtomicUsize,
    computed: AtomicUsize,
    requests: AtomicUsize,
    /// Requests that are here now, and the most there were.
    here: AtomicUsize,
    at_once: AtomicUsize,
}

/// The process: prints its URL and serves until it is killed.
pub async fn serve(arguments: &[String]) -> Result<()> {
    let kind: usize = arguments.first().ok_or("which kind?")?.parse()?;
    let pace = KINDS[kind].pace;
    let at_once = match pace {
        Pace::Parallel { at_once, .. } => at_once,
        Pace::Processor { .. } | Pace::RateLimited { .. } => 1 << 10,
    };
    let server = Arc::new(Server {
        pace,
        processor: Mutex::new(Instant::now()),
        places: Semaphore::new(at_once),
        window: Mutex::new((None, 0)),
        sent: AtomicUsize::new(0),
        computed: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
        here: AtomicUsize::new(0),
        at_once: AtomicUsize::new(0),
    });
    let app = Router::new()
        .route("/v1/embeddings", post(embed))
        .route("/counts", get(counts))
        .with_state(server);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn counts(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({
        "sent": server.sent.load(Ordering::Relaxed),
        "computed": server.computed.load(Ordering::Relaxed),
        "requests": server.requests.load(Ordering::Relaxed),
        "at_once": server.at_once.load(Ordering::Relaxed),
    }))
}

async fn embed(State(server): State<Arc<Server>>, Json(request): Json<Value>) -> Response {
    let texts = request["input"].as_array().map_or(0, Vec::len);
    let probe = request["input"][0] == "probe";
    if !probe {
        server.sent.fetch_add(texts, Ordering::Relaxed);
    }
    if let Some(wait) = server.refuses().await {
        let retry_after = [("retry-after", format!("{:.3}", wait.as_secs_f64()))];
        return (StatusCode::TOO_MANY_REQUESTS, retry_after, "{}").into_response();
    }
    // A task of its own: it continues when the client has disconnected.
    let computing = tokio::spawn(async move {
        let here = server.here.fetch_add(1, Ordering::Relaxed) + 1;
        server.requests.fetch_add(1, Ordering::Relaxed);
        server.at_once.fetch_max(here, Ordering::Relaxed);
        server.compute(if probe { 0 } else { texts }).await;
        server.here.fetch_sub(1, Ordering::Relaxed);
    });
    if computing.await.is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let vector = [1.0_f32; DIM];
    let data: Vec<Value> = (0..texts)
        .map(|index| json!({"index": index, "embedding": vector}))
        .collect();
    Json(json!({ "data": data })).into_response()
}

impl Server {
    async fn compute(&self, texts: usize) {
        match self.pace {
            Pace::Parallel { request, .. } | Pace::RateLimited { request, .. } => {
                let _place = self.places.acquire().await;
                tokio::time::sleep(request).await;
                self.computed.fetch_add(texts, Ordering::Relaxed);
            }
            Pace::Processor { shared: true, .. } => {
                for _ in 0..texts {
                    let mut busy_until = self.processor.lock().await;
                    self.compute_one(&mut busy_until).await;
                }
            }
            Pace::Processor { shared: false, .. } => {
                let mut busy_until = self.processor.lock().await;
                for _ in 0..texts {
                    self.compute_one(&mut busy_until).await;
                }
            }
        }
    }

    async fn compute_one(&self, busy_until: &mut Instant) {
        let Pace::Processor { text, change, .. } = self.pace else {
            return;
        };
        let computed = self.computed.fetch_add(1, Ordering::Relaxed);
        let text = match change {
            Some((at, text)) if computed >= at => text,
            _ => text,
        };
        // Timers end about a millisecond late, so the next text waits for less.
        let now = Instant::now();
        if now > *busy_until + ms(3) {
            *busy_until = now;
        }
        *busy_until += text;
        tokio::time::sleep_until((*busy_until).into()).await;
    }

    /// How long a client has to wait if its request is one too many.
    async fn refuses(&self) -> Option<Duration> {
        let Pace::RateLimited {
            requests, window, ..
        } = self.pace
        else {
            return None;
        };
        let mut state = self.window.lock().await;
        let now = Instant::now();
        let began = state.0.filter(|began| now < *began + window);
        if began.is_none() {
            *state = (Some(now), 0);
        }
        if state.1 < requests {
            state.1 += 1;
            return None;
        }
        state.0.map(|began| began + window - now)
    }
}
