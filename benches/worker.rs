//! The worker against the least that indexes the same notes: `elf worker` as it is shipped and on
//! its default settings, and the baseline of `bare.rs` in its best setting. Both ask the same
//! stand-in over HTTP, and write to equal tables and collections. Postgres has no statistics but
//! those that it takes by itself.
//!
//! ELF's time is from the commit of the notes to the empty outbox.

use std::time::{Duration, Instant};

use crate::bare::{self, Bare, Note, Parts, Setting};
use crate::corpus::{Corpus, Kind};
use crate::daemon::{Site, Worker};
use crate::engine::Engine;
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::stand_in::StandIn;
use crate::{Options, Result, process};

const DIM: usize = 384;
const SHORT_BYTES: usize = 560;
/// About 40 chunks.
const LONG_BYTES: usize = 52_000;

pub async fn run(options: Options) -> Result<()> {
    let engine = Engine::find().await?;
    let corpus = Corpus::load()?;
    let mut report = Report::new("worker", options, &engine.name);
    report.fact("dimensions", DIM);
    report.fact("texts", &corpus.source);
    report.fact("Postgres", postgres().await?);
    let short = corpus.notes(0, options.size(10_000, 300), SHORT_BYTES);
    let long: Vec<String> = (0..options.size(1000, 10))
        .map(|n| corpus.long_text(Kind::Mixed, n as u64, LONG_BYTES))
        .collect();
    if !engine.is_server {
        let rate = Drain::new(&engine, "").await?.rate(&short).await?;
        report.value(
            "without a server, nothing to compare with",
            "chunks/s",
            vec![rate],
            Target::None,
        );
        return report.write();
    }
    let name = format!("{} one-chunk notes", short.len());
    let setting = compare(
        &mut report,
        &engine,
        options,
        &name,
        short.clone(),
        Target::AtLeast(0.8),
    )
    .await?;
    parts(
        &mut report,
        &engine,
        setting,
        &bare::cut(short.clone()).await?,
    )
    .await?;
    let name = format!("{} notes of about 40 chunks", long.len());
    compare(
        &mut report,
        &engine,
        options,
        &name,
        long,
        Target::AtLeast(0.85),
    )
    .await?;
    slow_provider(&mut report, &engine, options, setting, short).await?;
    equal_notes(&mut report, &engine, options, &corpus).await?;
    report.write()
}

/// The server and what it promises of a commit.
async fn postgres() -> Result<String> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let (version, fsync, commit): (String, String, String) = sqlx::query_as(
        "select current_setting('server_version'), current_setting('fsync'),
                current_setting('synchronous_commit')",
    )
    .fetch_one(&pool)
    .await?;
    Ok(format!(
        "{version}, fsync {fsync}, synchronous_commit {commit}"
    ))
}

async fn compare(
    report: &mut Report,
    engine: &Engine,
    options: Options,
    name: &str,
    texts: Vec<String>,
    target: Target,
) -> Result<Setting> {
    let notes = bare::cut(texts.clone()).await?;
    let elf = Drain::new(engine, "").await?;
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let setting = best_setting(engine, &provider, options, &notes).await?;
    report.fact(
        &format!("baseline of {name}"),
        format!(
            "{} batches of {} chunks in flight",
            setting.lanes, setting.batch
        ),
    );
    let [elf, bare] = Rounds::of(options)
        .measure(
            async || elf.rate(&texts).await,
            async || bare_rate(engine, &provider, setting, Parts::ALL, &notes).await,
        )
        .await?;
    report.ratio(
        name,
        "chunks/s",
        [side("worker", elf), side("baseline", bare)],
        target,
    );
    Ok(setting)
}

fn side(name: &str, rounds: Vec<f64>) -> Side {
    Side {
        name: name.to_owned(),
        rounds,
    }
}

/// Tries settings of the baseline once each.
async fn best_setting(
    engine: &Engine,
    provider: &StandIn,
    options: Options,
    notes: &[Note],
) -> Result<Setting> {
    let (mut best, mut best_rate) = (
        Setting {
            lanes: 4,
            batch: 256,
        },
        0.0,
    );
    if options.quick {
        return Ok(best);
    }
    // The first of them fills caches.
    let settings = [(4, 256), (2, 256), (4, 128), (4, 256), (4, 512), (8, 128)];
    for (lanes, batch) in settings {
        let setting = Setting { lanes, batch };
        let rate = bare_rate(engine, provider, setting, Parts::ALL, notes).await?;
        if rate > best_rate {
            (best, best_rate) = (setting, rate);
        }
    }
    Ok(best)
}

/// Chunks per second of the baseline.
async fn bare_rate(
    engine: &Engine,
    provider: &StandIn,
    setting: Setting,
    parts: Parts,
    notes: &[Note],
) -> Result<f64> {
    let mut bare = Bare::start(engine, &provider.url, DIM, notes, setting.batch).await?;
    let took = bare.index(parts, setting.lanes).await?;
    bare.end().await?;
    let chunks: usize = notes.iter().map(|note| note.chunks.len()).sum();
    Ok(chunks as f64 / took)
}

/// What each step of the baseline costs by itself.
async fn parts(
    report: &mut Report,
    engine: &Engine,
    setting: Setting,
    notes: &[Note],
) -> Result<()> {
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let none = Parts::NONE;
    for (name, parts) in [
        (
            "encode",
            Parts {
                encode: true,
                ..none
            },
        ),
        (
            "the provider",
            Parts {
                embed: true,
                ..none
            },
        ),
        ("COPY", Parts { copy: true, ..none }),
        (
            "upsert",
            Parts {
                upsert: true,
                ..none
            },
        ),
    ] {
        let rate = bare_rate(engine, &provider, setting, parts, notes).await?;
        report.value(
            &format!("baseline, {name} alone"),
            "chunks/s",
            vec![rate],
            Target::None,
        );
    }
    Ok(())
}

/// The worker with a slow provider, against the slower of the provider and the stores.
async fn slow_provider(
    report: &mut Report,
    engine: &Engine,
    options: Options,
    setting: Setting,
    texts: Vec<String>,
) -> Result<()> {
    const LATENCY: Duration = Duration::from_millis(20);
    const INPUTS: usize = 64;
    const IN_FLIGHT: usize = 8;
    let provider_limit = (INPUTS * IN_FLIGHT) as f64 / LATENCY.as_secs_f64();
    let notes = bare::cut(texts.clone()).await?;
    let settings = format!("max_batch_inputs = {INPUTS}\nconcurrency = {IN_FLIGHT}\n");
    let elf = Drain {
        provider: StandIn::start(DIM, LATENCY)?,
        ..Drain::new(engine, &settings).await?
    };
    let free = StandIn::start(DIM, Duration::ZERO)?;
    let [elf, limit] = Rounds::of(options)
        .measure(
            async || elf.rate(&texts).await,
            async || {
                let stores = bare_rate(engine, &free, setting, Parts::ALL, &notes).await?;
                Ok(stores.min(provider_limit))
            },
        )
        .await?;
    report.ratio(
        "provider of 20 ms, 64 texts, 8 requests in flight",
        "chunks/s",
        [
            side("worker", elf),
            side("limit of provider and stores", limit),
        ],
        Target::AtLeast(0.9),
    );
    Ok(())
}

/// Many equal notes against many different ones, and the memory that the backlog takes.
async fn equal_notes(
    report: &mut Report,
    engine: &Engine,
    options: Options,
    corpus: &Corpus,
) -> Result<()> {
    let count = options.size(100_000, 1000);
    let different = corpus.notes(1 << 20, count, SHORT_BYTES);
    let equal = vec![corpus.text(Kind::English, 1, SHORT_BYTES); count];
    let drain = Drain::new(engine, "").await?;
    let mut peaks = Vec::new();
    let mut asked = 0;
    // A minute each, so without a warm-up.
    let rounds = Rounds {
        count: options.size(2, 1),
        warm_up: false,
    };
    let [equal, different] = rounds
        .measure(
            async || {
                let before = drain.provider.texts().await?;
                let rate = drain.rate(&equal).await?;
                asked = drain.provider.texts().await? - before;
                Ok(1e3 / rate)
            },
            async || {
                let drained = drain.drained(&different).await?;
                peaks.push(drained.peak_mb);
                Ok(1e3 / drained.rate)
            },
        )
        .await?;
    report.fact("texts that the provider got for the equal notes", asked);
    report.ratio(
        &format!("{count} equal notes / different ones, time of a note"),
        "ms",
        [side("equal", equal), side("different", different)],
        Target::AtMost(1.0),
    );
    report.value(
        &format!("peak memory of the worker, backlog of {count} notes"),
        "MB",
        peaks,
        Target::AtMost(100.0),
    );
    Ok(())
}

/// Drains backlogs with one worker.
struct Drain {
    index: String,
    provider: StandIn,
    settings: String,
}

struct Drained {
    /// Chunks per second.
    rate: f64,
    peak_mb: f64,
}

impl Drain {
    async fn new(engine: &Engine, settings: &str) -> Result<Self> {
        Ok(Self {
            index: engine.url.clone(),
            provider: StandIn::start(DIM, Duration::ZERO)?,
            settings: settings.to_owned(),
        })
    }

    async fn rate(&self, texts: &[String]) -> Result<f64> {
        Ok(self.drained(texts).await?.rate)
    }

    /// A worker that is idle when the notes are committed.
    async fn drained(&self, texts: &[String]) -> Result<Drained> {
        let mut site = Site::start(&self.index, &self.provider.url, &self.settings).await?;
        let worker = Worker::start(site.folder.path())?;
        site.insert(texts).await?;
        let took = site.wait_until_drained(Instant::now()).await?;
        let indexed = site.count("note_index_state where chunk_count > 0").await?;
        assert_eq!(indexed, texts.len() as i64, "every note is indexed");
        let chunks = site.count("memory_note_chunks").await?;
        let drained = Drained {
            rate: chunks as f64 / took,
            peak_mb: process::peak_mb(worker.pid())?,
        };
        drop(worker);
        site.end().await?;
        Ok(drained)
    }
}
