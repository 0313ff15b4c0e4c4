//! What a worker has done since it began.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};
use serde::Serialize;

use crate::store::FailedBy;

/// Ages kept between two calls of `take_ages`; the histogram counts the rest.
const MAX_AGES: usize = 4096;

/// Counts for `elf worker --once`, the progress bar and the admin page. Each count is a
/// metric too.
#[derive(Debug)]
pub struct Totals {
    counts: Mutex<Counts>,
    began: Instant,
}

#[derive(Debug, Default)]
struct Counts {
    report: Report,
    in_flight: u64,
    ages: Vec<Duration>,
}

/// What a worker has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Notes converged, deleted ones included.
    pub notes: u64,
    /// UTF-8 bytes of their texts.
    pub bytes: u64,
    /// Chunks those notes have.
    pub chunks: u64,
    /// Chunks whose text was sent to the embedding model.
    pub embedded: u64,
    /// Tokens of those texts, prefix included.
    pub tokens: u64,
    /// Chunks whose vector was known.
    pub reused: u64,
    /// Tokens of those chunks.
    pub tokens_saved: u64,
    /// Points written to the index.
    pub points: u64,
    /// Attempts that failed through the note's own fault.
    pub failed: u64,
    /// Notes dead-lettered.
    pub dead: u64,
    /// Seconds since the worker began.
    pub seconds: f64,
}

impl Report {
    /// What was done since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            notes: self.notes - before.notes,
            bytes: self.bytes - before.bytes,
            chunks: self.chunks - before.chunks,
            embedded: self.embedded - before.embedded,
            tokens: self.tokens - before.tokens,
            reused: self.reused - before.reused,
            tokens_saved: self.tokens_saved - before.tokens_saved,
            points: self.points - before.points,
            failed: self.failed - before.failed,
            dead: self.dead - before.dead,
            seconds: self.seconds - before.seconds,
        }
    }
}

/// A batch in flight.
pub struct BatchGuard<'a>(&'a Totals);

impl Drop for BatchGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
        gauge!("elf_batches_in_flight").decrement(1.0);
    }
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
            ..self.lock().report.clone()
        }
    }

    /// Batches between claim and ack.
    pub fn in_flight(&self) -> u64 {
        self.lock().in_flight
    }

    /// How old changes were when they became searchable, since the last call.
    pub fn take_ages(&self) -> Vec<Duration> {
        std::mem::take(&mut self.lock().ages)
    }

    /// Counts a batch as in flight until the returned guard is dropped.
    pub fn began_batch(&self) -> BatchGuard<'_> {
        self.lock().in_flight += 1;
        gauge!("elf_batches_in_flight").increment(1.0);
        BatchGuard(self)
    }

    /// Records how long after its commit a change became searchable.
    pub fn became_searchable(&self, age: Duration) {
        let ages = &mut self.lock().ages;
        if ages.len() < MAX_AGES {
            ages.push(age);
        }
        histogram!("elf_commit_to_searchable_seconds").record(age);
    }

    /// Counts an attempt that failed through the note's own fault.
    pub fn failed(&self) {
        self.lock().report.failed += 1;
        counter!("elf_note_attempts_failed_total").increment(1);
    }

    /// Counts a dead-lettered note.
    pub fn died(&self, by: FailedBy) {
        self.lock().report.dead += 1;
        counter!("elf_notes_dead_total", "reason" => by.as_str()).increment(1);
    }

    /// Adds what a batch did.
    pub fn add(&self, done: &Report) {
        let report = &mut self.lock().report;
        report.notes += done.notes;
        report.bytes += done.bytes;
        report.chunks += done.chunks;
        report.embedded += done.embedded;
        report.tokens += done.tokens;
        report.reused += done.reused;
        report.tokens_saved += done.tokens_saved;
        report.points += done.points;
        counter!("elf_notes_indexed_total").increment(done.notes);
        counter!("elf_text_bytes_total").increment(done.bytes);
        counter!("elf_chunks_total").increment(done.chunks);
        counter!("elf_chunks_embedded_total").increment(done.embedded);
        counter!("elf_chunks_reused_total").increment(done.reused);
        counter!("elf_embedding_tokens_saved_total").increment(done.tokens_saved);
        counter!("elf_points_written_total").increment(done.points);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().expect("no holder panics")
    }
}
