//! Tracing, and the names of the metrics, in one place.

pub mod catalog;

use std::io::IsTerminal;

use chrono::TimeDelta;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::Service;

/// Seconds from the commit of a note to its being searchable.
const FRESHNESS: &str = "elf_commit_to_searchable_seconds";

/// Sends log lines to stderr. `RUST_LOG` wins over the configuration.
pub fn init_logging(service: &Service) {
    let filter = EnvFilter::try_from_default_env()
        // The engine in this process warns of its own missing start-up at every start.
        .or_else(|_| EnvFilter::try_new(format!("qdrant_edge=error,{}", service.log_level)))
        .unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // Fails only when somebody, a test for one, has set up logging already.
    let _ = if service.log_json {
        logs.json().try_init()
    } else {
        logs.try_init()
    };
}

/// Collects metrics from now on; the handle renders them for Prometheus. `None`
/// when somebody collects them already.
pub fn init_metrics() -> Option<PrometheusHandle> {
    let seconds = [
        0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
    ];
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &seconds)
        .expect("there are buckets")
        .install_recorder()
        .ok()?;
    describe_counter!(
        "elf_notes_indexed_total",
        "Notes converged, deleted ones included"
    );
    describe_counter!("elf_notes_dead_total", "Notes given up: dead letters");
    describe_counter!(
        "elf_chunks_total",
        "Chunks of the notes that were converged"
    );
    describe_counter!(
        "elf_chunks_embedded_total",
        "Chunks whose text was sent to the model"
    );
    describe_counter!("elf_chunks_reused_total", "Chunks whose vector was known");
    describe_counter!("elf_points_written_total", "Points written to the index");
    describe_counter!(
        "elf_leases_lost_total",
        "Notes whose lease ran out under a worker"
    );
    describe_gauge!(
        "elf_drift",
        "Points and notes that the last verify of a worker found to differ from Postgres, by kind"
    );
    describe_counter!(
        "elf_drift_repaired_total",
        "Points mended and notes enqueued by the workers' verify"
    );
    describe_histogram!(
        FRESHNESS,
        Unit::Seconds,
        "From the commit of a note to its being searchable"
    );
    crate::embed::provider::metrics::describe();
    Some(handle)
}

/// What a worker's own verify found.
pub fn drift(report: &crate::verify::Report) {
    for (kind, found) in [
        ("missing", report.missing),
        ("stale", report.stale),
        ("orphaned", report.orphaned),
        ("inconsistent", report.inconsistent),
    ] {
        gauge!("elf_drift", "kind" => kind).set(found as f64);
    }
    counter!("elf_drift_repaired_total").increment(report.repaired);
}

/// Leases ran out under this worker.
pub fn leases_lost(notes: usize) {
    counter!("elf_leases_lost_total").increment(notes as u64);
}

/// A note became searchable this long after its commit.
pub fn freshness(age: TimeDelta) {
    histogram!(FRESHNESS).record(age.num_milliseconds().max(0) as f64 / 1000.0);
}
