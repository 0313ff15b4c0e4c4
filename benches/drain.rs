//! One shipped worker that empties an outbox.

use std::time::{Duration, Instant};

use crate::Result;
use crate::daemon::{Site, Worker};
use crate::engine::Engine;
use crate::process::{self, Cpu};
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
