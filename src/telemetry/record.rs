//! Records metrics. [`super::catalog`] has their names and descriptions.

use std::time::Instant;

use futures::future::BoxFuture;
use metrics::{
    Histogram, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::{Instrument, Span};

use super::catalog::{self, Kind, Metric, Scope};

/// The metrics of this process.
#[derive(Clone)]
pub struct Metrics {
    recorder: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// Renders every metric in Prometheus's text format.
    pub fn render(&self) -> String {
        self.process.collect();
        self.recorder.render()
    }

    /// Frees the samples that histograms buffer until a scrape. Call it regularly: without
    /// scrapes the buffers grow.
    pub fn free_samples(&self) {
        self.recorder.run_upkeep();
    }
}

/// Installs the recorder of this process. `None` when one is installed already.
pub fn init_metrics() -> Option<Metrics> {
    let mut builder = PrometheusBuilder::new();
    for metric in catalog::all() {
        if let Kind::Histogram(bounds) = metric.kind {
            builder = builder
                .set_buckets_for_metric(Matcher::Full(metric.name.into()), bounds)
                .expect("there are buckets");
        }
    }
    let recorder = builder.install_recorder().ok()?;
    for metric in catalog::all() {
        begin(metric);
    }
    gauge!("elf_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let process = metrics_process::Collector::default();
    process.describe();
    Some(Metrics { recorder, process })
}

/// Describes a metric, and starts counters at 0: Prometheus sees no increase in a series that
/// begins at 1.
fn begin(metric: &Metric) {
    match metric.kind {
        Kind::Counter => {
            describe_counter!(metric.name, metric.help);
            for labels in series(metric) {
                counter!(metric.name, labels).increment(0);
            }
        }
        Kind::Gauge => {
            describe_gauge!(metric.name, metric.help);
            // Shared gauges, and those of checks and verify (with labels), have no value before
            // the first look.
            if metric.scope == Scope::Process && metric.labels.is_empty() {
                gauge!(metric.name).set(0.0);
            }
        }
        Kind::Histogram(_) => {
            describe_histogram!(metric.name, metric.help);
            for labels in series(metric) {
                // Naming the series registers it.
                let _ = histogram!(metric.name, labels);
            }
        }
    }
}

/// The labels of every series that a metric can have.
fn series(metric: &Metric) -> Vec<Vec<Label>> {
    metric.labels.iter().fold(vec![Vec::new()], |all, label| {
        let with = |labels: &Vec<Label>, value: &'static str| {
            let mut labels = labels.clone();
            labels.push(Label::from_static_parts(label.name, value));
            labels
        };
        all.iter()
            .flat_map(|labels| label.values.iter().map(|value| with(labels, value)))
            .collect()
    })
}

/// Runs `work` inside of `span`, and records its duration in `seconds`.
///
/// Boxed, because an `async fn` keeps a future that it is given twice: as its argument and
/// where it awaits it. A few such functions around each other made a future of a few
/// kilobytes one of hundreds, which overflowed the stacks of its tasks.
pub fn timed<'w, T>(
    span: Span,
    seconds: Histogram,
    work: impl Future<Output = T> + Send + 'w,
) -> BoxFuture<'w, T> {
    let work = Box::pin(work.instrument(span));
    Box::pin(async move {
        let began = Instant::now();
        let done = work.await;
        seconds.record(began.elapsed());
        done
    })
}
