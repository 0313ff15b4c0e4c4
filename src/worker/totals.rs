//! What a worker has done since it began.

use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;

/// Counts, for `elf worker --once` and the progress bar; the metrics count along.
#[derive(Debug)]
pub struct Totals {
    counts: Mutex<Report>,
    began: Instant,
}

/// What a worker has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Notes converged, deleted ones included.
    pub notes: u64,
    /// Chunks those notes have.
    pub chunks: u64,
    /// Chunks whose text was sent to the embedding model.
    pub embedded: u64,
    /// Tokens of those texts, as they were sent.
    pub tokens: u64,
    /// Chunks whose vector was known.
    pub reused: u64,
    /// Points written to the index.
    pub points: u64,
    /// Notes given up.
    pub dead: u64,
    /// Seconds since the worker began.
    pub seconds: f64,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            counts: Mutex::default(),
            began: Instant::now(),
        }
    }
}

impl Totals {
    /// The counts so far.
    pub fn report(&self) -> Report {
        let seconds = self.began.elapsed().as_secs_f64();
        Report {
            seconds,
            ..self.lock().clone()
        }
    }

    /// Counts a note given up.
    pub fn died(&self) {
        self.lock().dead += 1;
        metrics::counter!("elf_notes_dead_total").increment(1);
    }

    /// Adds what a batch did.
    pub fn add(&self, done: &Report) {
        let mut counts = self.lock();
        counts.notes += done.notes;
        counts.chunks += done.chunks;
        counts.embedded += done.embedded;
        counts.tokens += done.tokens;
        counts.reused += done.reused;
        counts.points += done.points;
        metrics::counter!("elf_notes_indexed_total").increment(done.notes);
        metrics::counter!("elf_chunks_total").increment(done.chunks);
        metrics::counter!("elf_chunks_embedded_total").increment(done.embedded);
        metrics::counter!("elf_chunks_reused_total").increment(done.reused);
        metrics::counter!("elf_points_written_total").increment(done.points);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Report> {
        self.counts.lock().expect("nobody panics while counting")
    }
}
