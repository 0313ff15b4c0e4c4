//! One shipped worker that empties an outbox.

use std::time::{Duration, Instant};

use crate::Result;
use crate::daemon::{Site, Worker};
use crate::engine::Engine;
use crate::process::{self, Cpu};
use crate::report::{Report, Side, Target};
use crate::stand_in::StandIn;

/// Dimensions of the vectors.
pub const DIM: usize = 384;

/// Drains backlogs with one worker.
pub struct Drain {
    index: String,
    pub provider: StandIn,
    settings: String,
}

pub struct Drained {
    /// Chunks per second.
    pub rate: f64,
    pub peak_mb: f64,
    /// CPU milliseconds a chunk.
    pub cpu_ms: [f64; 3],
}

impl Drain {
    /// A provider of this latency, and these settings of `[providers.embedding]`.
    pub fn new(engine: &Engine, latency: Duration, settings: &str) -> Result<Self> {
        Ok(Self {
            index: engine.url.clone(),
            provider: StandIn::start(DIM, latency)?,
            settings: settings.to_owned(),
        })
    }

    pub async fn rate(&self, texts: &[String]) -> Result<f64> {
        Ok(self.drained(texts).await?.rate)
    }

    /// A worker that is idle when the notes are committed.
    pub async fn drained(&self, texts: &[String]) -> Result<Drained> {
        let mut site = Site::start(&self.index, &self.provider.url, &self.settings).await?;
        let worker = Worker::start(site.folder.path())?;
        site.insert(texts).await?;
        let began = Instant::now();
        let cpu = Cpu::start(worker.pid())?;
        let took = site.wait_until_drained(began).await?;
        let indexed = site.count("note_index_state where chunk_count > 0").await?;
        assert_eq!(indexed, texts.len() as i64, "every note is indexed");
        let chunks = site.count("memory_note_chunks").await?;
        let drained = Drained {
            rate: chunks as f64 / took,
            peak_mb: process::peak_mb(worker.pid())?,
            cpu_ms: cpu.millis_each(chunks as usize)?,
        };
        drop(worker);
        site.end().await?;
        Ok(drained)
    }
}

/// Compares the CPU milliseconds of two sides, for each process.
pub fn report_cpu(report: &mut Report, name: &str, sides: [(&str, Vec<[f64; 3]>); 2]) {
    for (place, part) in Cpu::NAMES.iter().enumerate() {
        let of = |(side, rounds): &(&str, Vec<[f64; 3]>)| {
            Side::new(side, rounds.iter().map(|cpu_ms| cpu_ms[place]).collect())
        };
        report.ratio(
            &format!("{name}, {part}"),
            "ms",
            [of(&sides[0]), of(&sides[1])],
            Target::None,
        );
    }
}
