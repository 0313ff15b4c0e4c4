//! The stages of a batch, each measured by its name, and the checkpoints between its effects,
//! at which a test may stop a worker.

use std::sync::Arc;

use futures::future::BoxFuture;
use metrics::histogram;

use crate::telemetry;

/// What a batch has done when it calls its breakpoint, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checkpoint {
    /// The leases are taken.
    Claimed,
    /// The rows are read and their texts chunked.
    Chunked,
    /// Every chunk has its vector.
    Embedded,
    /// Chunks and vectors are committed to Postgres.
    Committed,
    /// The index has the new points.
    Upserted,
    /// The index has deleted the old points.
    Pruned,
    /// The outbox rows are deleted.
    Acked,
}

impl Checkpoint {
    /// Every checkpoint, in order.
    pub const ALL: [Self; 7] = [
        Self::Claimed,
        Self::Chunked,
        Self::Embedded,
        Self::Committed,
        Self::Upserted,
        Self::Pruned,
        Self::Acked,
    ];
}

/// Called when a batch reaches a checkpoint; the batch continues when it returns. A test
/// uses it to stop a worker between any two effects.
pub type Breakpoint = Arc<dyn Fn(Checkpoint) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs `work` as the named stage of a batch, in a span and with its duration recorded.
pub fn stage<'w, T>(
    name: &'static str,
    work: impl Future<Output = T> + Send + 'w,
) -> BoxFuture<'w, T> {
    let span = tracing::info_span!("stage", otel.name = name, name);
    let seconds = histogram!("elf_stage_seconds", "stage" => name);
    telemetry::timed(span, seconds, work)
}
