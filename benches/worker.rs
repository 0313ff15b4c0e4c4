//! The worker against the least that indexes the same notes: `elf worker` as it is shipped and on
//! its default settings, and the baseline of `bare.rs` in its best setting. Both ask the same
//! stand-in over HTTP, and write to equal tables and collections. Postgres has no statistics but
//! those that it takes by itself.
//!
//! ELF's time is from the commit of the notes to the empty outbox.
//!
//! Tried and not kept:
//!
//! - Triggers in place of the foreign keys: a twentieth of the time of Postgres, and a delete by an application would
//!   have to trust them.
//! - Eight batches in flight instead of four, on two cores: 9% less time in one series, the same in another. So the
//!   worker goes above four only where that raises the throughput.
//!
//! Not tried: the upsert and the delete in one request. A note is searchable before the delete.

use std::time::Duration;

use crate::bare::{self, Note, Parts, Setting};
use crate::corpus::{Corpus, Kind};
use crate::drain::{DIM, Drain, report_cpu};
use crate::engine::Engine;
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::stand_in::StandIn;
use crate::{Options, Result};

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
        let rate = Drain::new(&engine, Duration::ZERO, "")?
            .rate(&short)
            .await?;
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
        Target::AtLeast(0.85),
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
    let elf = Drain::new(engine, Duration::ZERO, "")?;
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let setting = best_setting(engine, &provider, options, &notes).await?;
    report.fact(
        &format!("baseline of {name}"),
        format!(
            "{} batches of {} chunks in flight",
            setting.lanes, setting.batch
        ),
    );
    let (mut of_elf, mut of_bare) = (Vec::new(), Vec::new());
    let [elf, bare] = Rounds::of(options)
        .measure(
            async || {
                let drained = elf.drained(&texts).await?;
                of_elf.push(drained.cpu_ms);
                Ok(drained.rate)
            },
            async || {
                let (rate, cpu_ms) =
                    bare::rate(engine, &provider, setting, Parts::ALL, &notes).await?;
                of_bare.push(cpu_ms);
                Ok(rate)
            },
        )
        .await?;
    let measured = elf.len();
    report.ratio(
        name,
        "chunks/s",
        [Side::new("worker", elf), Side::new("baseline", bare)],
        target,
    );
    let last = |rounds: &[[f64; 3]]| rounds[rounds.len() - measured..].to_vec();
    report_cpu(
        report,
        &format!("{name}, CPU of a chunk"),
        [("worker", last(&of_elf)), ("baseline", last(&of_bare))],
    );
    Ok(setting)
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
    let settings = [
        (4, 256),
        (2, 256),
        (4, 128),
        (4, 256),
        (4, 512),
        (8, 128),
        (8, 256),
    ];
    for (lanes, batch) in settings {
        let setting = Setting { lanes, batch };
        let (rate, _) = bare::rate(engine, provider, setting, Parts::ALL, notes).await?;
        if rate > best_rate {
            (best, best_rate) = (setting, rate);
        }
    }
    Ok(best)
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
        let (rate, _) = bare::rate(engine, &provider, setting, parts, notes).await?;
        report.value(
            &format!("baseline, {name} alone"),
            "chunks/s",
            vec![rate],
            Target::None,
        );
    }
    Ok(())
}

/// The worker with a slow provider, against the slower of the provider and the storage.
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
    let elf = Drain::new(engine, LATENCY, &settings)?;
    let free = StandIn::start(DIM, Duration::ZERO)?;
    let [elf, limit] = Rounds::of(options)
        .measure(
            async || elf.rate(&texts).await,
            async || {
                let (serving, _) = bare::rate(engine, &free, setting, Parts::ALL, &notes).await?;
                Ok(serving.min(provider_limit))
            },
        )
        .await?;
    report.ratio(
        "provider of 20 ms, 64 texts, 8 requests in flight",
        "chunks/s",
        [
            Side::new("worker", elf),
            Side::new("limit of provider and storage", limit),
        ],
        Target::AtLeast(0.9),
    );
    Ok(())
}
