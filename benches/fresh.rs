//! How soon a note is searchable: from its commit until its point is there. Seen by a bare client
//! that asks for the point again and again, which costs both sides.
//!
//! The load is half of what a drain of 60,000 notes takes: beyond some ten thousand points Qdrant builds its graph on
//! the same cores. Half of what an empty collection takes was more than the engine could take.
//!
//! Passed over:
//!
//! - The note's row with the claim, which saves the load. The snapshot of a claim may be older than its lease: if
//!   another worker claims a newer text in between and dead-letters it, the claim would index the older one. And a
//!   worker that stops reading with megabytes under way would hold its leases uncommitted, and all claims wait.
//! - No deletion of older points for a note that had no chunks. It may have points of a worker that wrote them after
//!   the note was deleted, or of transactions that Postgres has lost.
//! - A function in Postgres: its statements are not checked when ELF is compiled.
//! - Behind a backlog, the newest rows first: a steady flood would leave old notes behind for ever.
//! - To trust idle connections for five seconds instead of half a second: an idle worker whose Postgres is lost
//!   without a word would wait two minutes for an answer.

use std::time::{Duration, Instant};

use elf::note::chunk_id;
use qdrant_client::Qdrant;
use qdrant_client::qdrant::GetPointsBuilder;
use uuid::Uuid;

use crate::bare::{self, Bare};
use crate::corpus::Corpus;
use crate::daemon::{Site, Worker};
use crate::engine::{self, Engine};
use crate::proxy::{self, Proxy};
use crate::report::{Report, Side, Target, quantile};
use crate::rounds::Rounds;
use crate::stand_in::StandIn;
use crate::{Options, Result};

const DIM: usize = 384;
const BYTES: usize = 560;

pub async fn run(options: Options) -> Result<()> {
    let Some((engine, mut report)) = engine::server("fresh", options).await? else {
        return Ok(());
    };
    let corpus = Corpus::load()?;
    report.fact("dimensions", DIM);
    report.fact("texts", &corpus.source);
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    idle(&mut report, options, &engine, &provider, &corpus).await?;
    network(&mut report, options, &engine, &provider, &corpus).await?;
    let rate = half_rate(&mut report, options, &engine, &provider, &corpus).await?;
    report.fact("notes a second at most", format!("{rate:.0}"));
    backlog(&mut report, options, &engine, &provider, &corpus).await?;
    report.write()
}

/// A worker on a database, and somebody who writes notes and looks for them.
struct Fresh {
    site: Site,
    client: Qdrant,
    _worker: Worker,
}

impl Fresh {
    async fn start(site: Site, engine: &Engine) -> Result<Self> {
        Ok(Self {
            _worker: Worker::start(site.folder.path())?,
            client: engine::client(&engine.url)?,
            site,
        })
    }

    /// Seconds of each of these notes, one after the other, with a pause before each.
    async fn waits(&mut self, texts: &[String], pause: Duration) -> Result<Vec<f64>> {
        let mut waits = Vec::new();
        for text in texts {
            tokio::time::sleep(pause).await;
            let note = self.site.insert(std::slice::from_ref(text)).await?[0];
            let committed = Instant::now();
            wait_for(&self.client, &self.site.name, note, Duration::ZERO).await?;
            waits.push(committed.elapsed().as_secs_f64());
        }
        Ok(waits)
    }

    async fn end(self) -> Result<()> {
        drop(self._worker);
        self.site.end().await
    }
}

/// Returns when the first chunk of the note is in the index.
async fn wait_for(client: &Qdrant, alias: &str, note: Uuid, pause: Duration) -> Result<()> {
    let point = chunk_id(note, 0).to_string();
    loop {
        let request = GetPointsBuilder::new(alias, vec![point.clone().into()]).with_payload(false);
        if !client.get_points(request).await?.result.is_empty() {
            return Ok(());
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }
}

async fn idle(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    provider: &StandIn,
    corpus: &Corpus,
) -> Result<()> {
    let count = options.size(200, 10);
    let texts = corpus.notes(0, count, BYTES);
    let mut elf = Fresh::start(Site::start(&engine.url, &provider.url, "").await?, engine).await?;
    // A note for each wait of each round.
    let notes = bare::cut(corpus.notes(count, 10 * count, BYTES)).await?;
    let mut bare = Bare::start(engine, &provider.url, DIM, &notes, 1).await?;
    let mut round = 0;
    let [of_elf, of_bare] = Rounds::of(options)
        .measure(
            async || {
                // Other texts each time: a known one needs no provider.
                round += 1;
                let texts: Vec<String> =
                    texts.iter().map(|text| format!("{round} {text}")).collect();
                elf.waits(&texts, Duration::ZERO).await
            },
            async || bare.one_by_one(count).await,
        )
        .await?;
    elf.end().await?;
    bare.end().await?;
    for (name, share, limit) in [("p50", 0.5, 1.5), ("p99", 0.99, 5.0)] {
        let side = |name: &str, rounds: &[Vec<f64>]| {
            let at = |waits: &Vec<f64>| 1e3 * quantile(waits, share);
            Side::new(name, rounds.iter().map(at).collect())
        };
        report.ratio(
            &format!("idle, {name} of {count}: commit to searchable / a commit and an upsert"),
            "ms",
            [side("ELF", &of_elf), side("bare", &of_bare)],
            Target::AtMost(limit),
        );
    }
    Ok(())
}

/// With a millisecond to each store.
async fn network(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    provider: &StandIn,
    corpus: &Corpus,
) -> Result<()> {
    let ping = proxy::ping_millis()?;
    report.fact("round trip through the proxies", format!("{ping:.2} ms"));
    let dsn = std::env::var("DATABASE_URL")?;
    let (postgres, qdrant) = (Proxy::to(&dsn)?, Proxy::to(&engine.url)?);
    let (postgres_url, qdrant_url) = (postgres.url(&dsn)?, qdrant.url(&engine.url)?);
    let site = Site::through(&postgres_url, &qdrant_url, &provider.url, "").await?;
    let mut elf = Fresh::start(site, engine).await?;
    let mut p50 = Vec::new();
    let count = options.size(100, 5);
    for round in 0..Rounds::of(options).count + 1 {
        let texts = corpus.notes(round * count, count, BYTES);
        let waits = elf.waits(&texts, Duration::ZERO).await?;
        p50.push(1e3 * quantile(&waits, 0.5) / ping);
    }
    let alone = alone(&mut elf, options, corpus).await?;
    elf.end().await?;
    // The first round warms up.
    report.value(
        "1 ms to each store, p50 of commit to searchable",
        "round trips",
        p50.split_off(1),
        Target::AtMost(8.0),
    );
    report.value(
        &format!("the same, a note every {ALONE_EVERY:?} after a burst"),
        "round trips",
        vec![1e3 * quantile(&alone, 0.5) / ping],
        Target::None,
    );
    Ok(())
}

/// Longer than connections are trusted and options of a collection are kept for a search.
const ALONE_EVERY: Duration = Duration::from_millis(1500);

/// Seconds of notes that come alone, after a burst that has opened every connection.
async fn alone(elf: &mut Fresh, options: Options, corpus: &Corpus) -> Result<Vec<f64>> {
    let burst = options.size(3000, 20);
    elf.site
        .insert(&corpus.notes(1 << 18, burst, BYTES))
        .await?;
    elf.site.wait_until_drained(Instant::now()).await?;
    let texts = corpus.notes(1 << 19, options.size(40, 2), BYTES);
    elf.waits(&texts, ALONE_EVERY).await
}

/// A steady load of half of what the worker can; the most it can, in notes a second.
async fn half_rate(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    provider: &StandIn,
    corpus: &Corpus,
) -> Result<f64> {
    const COMMITS_PER_SEC: u64 = 50;
    let mut elf = Fresh::start(Site::start(&engine.url, &provider.url, "").await?, engine).await?;
    // So many that the engine builds its graph meanwhile, as it does for every larger collection.
    let count = options.size(60_000, 300);
    elf.site.insert(&corpus.notes(0, count, BYTES)).await?;
    let rate = count as f64 / elf.site.wait_until_drained(Instant::now()).await?;
    let commits = options.size(20, 1) * COMMITS_PER_SEC as usize;
    let of_commit = ((rate / 2.0 / COMMITS_PER_SEC as f64) as usize).max(1);
    let texts = corpus.notes(count, commits * of_commit, BYTES);
    let mut ticks = tokio::time::interval(Duration::from_millis(1000 / COMMITS_PER_SEC));
    let mut waiting = tokio::task::JoinSet::new();
    for (n, texts) in texts.chunks(of_commit).enumerate() {
        ticks.tick().await;
        let ids = elf.site.insert(texts).await?;
        let committed = Instant::now();
        // Some of them, because looking costs the engine time.
        if n % 5 == 0 {
            let (client, alias) = (elf.client.clone(), elf.site.name.clone());
            let note = ids[ids.len() - 1];
            waiting.spawn(async move {
                wait_for(&client, &alias, note, Duration::from_millis(10)).await?;
                Ok(1e3 * committed.elapsed().as_secs_f64())
            });
        }
    }
    let waits = waiting
        .join_all()
        .await
        .into_iter()
        .collect::<Result<Vec<f64>>>()?;
    elf.end().await?;
    for (name, share, target) in [
        ("p50", 0.5, Target::None),
        ("p99", 0.99, Target::AtMost(500.0)),
    ] {
        report.value(
            &format!("at half of the maximum rate, {name} of {}", waits.len()),
            "ms",
            vec![quantile(&waits, share)],
            target,
        );
    }
    Ok(rate)
}

/// A note that is written behind a backlog.
async fn backlog(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    provider: &StandIn,
    corpus: &Corpus,
) -> Result<()> {
    let count = options.size(100_000, 1000);
    let mut elf = Fresh::start(Site::start(&engine.url, &provider.url, "").await?, engine).await?;
    elf.site
        .insert(&corpus.notes(1 << 20, count, BYTES))
        .await?;
    tokio::time::sleep(Duration::from_secs(options.size(2, 0) as u64)).await;
    let waits = elf
        .waits(&corpus.notes(0, 5, BYTES), Duration::ZERO)
        .await?;
    let left = elf.site.count("indexing_outbox").await?;
    report.fact("outbox rows after the last of the fresh notes", left);
    elf.end().await?;
    report.value(
        &format!("behind a backlog of {count}, slowest of 5"),
        "s",
        vec![quantile(&waits, 1.0)],
        Target::AtMost(2.0),
    );
    Ok(())
}
