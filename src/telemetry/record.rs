//! Recording metrics. Their names and what they mean are in [`super::catalog`].

use std::time::Instant;

use futures::future::BoxFuture;
use metrics::{
    Histogram, Label, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::{Instrument, Span};

use super::catalog::{self, Kind, Metric, Scope};

/// Everything that is recorded in this process.
#[derive(Clone)]
pub struct Metrics {
    recorder: PrometheusHandle,
    process: metrics_process::Collector,
}

impl Metrics {
    /// All of it in Prometheus's text format.
    pub fn render(&self) -> String {
        self.process.collect();
        self.recorder.render()
    }

    /// Frees what histograms keep between two scrapes. To be called now and then, in case
    /// nobody scrapes.
    pub fn upkeep(&self) {
        self.recorder.run_upkeep();
    }
}

/// Collects metrics from now on. `None` when somebody collects them already.
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

/// Describes a metric. What counts is there from the start, at 0: a first event would
/// otherwise be no increase.
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
            // What the database is like is not known yet, nor what a check or a verify
            // finds, each under a label.
            if metric.scope == Scope::Process && metric.labels.is_empty() {
                gauge!(metric.name).set(0.0);
            }
        }
        Kind::Histogram(_) => {
            describe_histogram!(metric.name, metric.help);
            for labels in series(metric) {
                // To be named is enough.
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

/// Does `work` inside of `span`, and records how long it took in `seconds`.
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
