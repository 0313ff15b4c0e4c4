//! What a worker has done since it began.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use metrics::{counter, gauge, histogram};
use serde::Serialize;

use crate::lock::lock;
use crate::store::FailedBy;

/// Ages kept between two calls of `take_ages`; only the histogram has the rest.
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

/// What a worker has done. `elf worker --once --json` prints it: a new field is also a key in
/// `tests/promises/cli.rs`.
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
        lock(&self.0.counts).in_flight -= 1;
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
            ..lock(&self.counts).report.clone()
        }
    }

    /// Batches between claim and ack.
    pub fn in_flight(&self) -> u64 {
        lock(&self.counts).in_flight
    }

    /// How old changes were when they became searchable, since the last call.
    pub fn take_ages(&self) -> Vec<Duration> {
        std::mem::take(&mut lock(&self.counts).ages)
    }

    /// Counts a batch as in flight until the returned guard is dropped.
    pub fn began_batch(&self) -> BatchGuard<'_> {
        lock(&self.counts).in_flight += 1;
        gauge!("elf_batches_in_flight").increment(1.0);
        BatchGuard(self)
    }

    /// Records how long after its commit a change became searchable.
    pub fn became_searchable(&self, age: Duration) {
        let ages = &mut lock(&self.counts).ages;
        if ages.len() < MAX_AGES {
            ages.push(age);
        }
        histogram!("elf_commit_to_searchable_seconds").record(age);
    }

    /// Counts an attempt that failed through the note's own fault.
    pub fn failed(&self) {
        lock(&self.counts).report.failed += 1;
        counter!("elf_note_attempts_failed_total").increment(1);
    }

    /// Counts a dead-lettered note.
    pub fn died(&self, by: FailedBy) {
        lock(&self.counts).report.dead += 1;
        counter!("elf_notes_dead_total", "reason" => by.as_str()).increment(1);
    }

    /// Adds what a batch did.
    pub fn add(&self, done: &Report) {
        let Report {
            notes,
            bytes,
            chunks,
            embedded,
            tokens,
            reused,
            tokens_saved,
            points,
            // Counted one by one.
            failed: _,
            dead: _,
            seconds: _,
        } = *done;
        let report = &mut lock(&self.counts).report;
        report.notes += notes;
        report.bytes += bytes;
        report.chunks += chunks;
        report.embedded += embedded;
        report.tokens += tokens;
        report.reused += reused;
        report.tokens_saved += tokens_saved;
        report.points += points;
        counter!("elf_notes_indexed_total").increment(notes);
        counter!("elf_text_bytes_total").increment(bytes);
        counter!("elf_chunks_total").increment(chunks);
        counter!("elf_chunks_embedded_total").increment(embedded);
        counter!("elf_chunks_reused_total").increment(reused);
        counter!("elf_embedding_tokens_saved_total").increment(tokens_saved);
        counter!("elf_points_written_total").increment(points);
    }
}
