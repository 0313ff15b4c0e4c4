//! `docs/reference/metrics.md`

use elf::telemetry::catalog::{self, Kind, Metric, Scope};

use super::{assert_written, made_of};

const INTRODUCTION: &str = "# Metrics

`elf worker` serves these at `/metrics` on `service.admin_bind`, and `elf serve --metrics HOST:PORT` at `/metrics` there.

A value is that of one process: add it up over all processes (`sum`). A *shared* value is that of the database or the index: every worker reports the same, so take one (`max`). Workers read shared values every 3 seconds, and those that are slow to count every 15 seconds or less often. A counter is there from the start, at 0. A histogram has `_bucket`, `_sum` and `_count`. No label holds an id.

Beside these there are `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`, `process_open_fds`, `process_max_fds`, `process_threads` and `process_start_time_seconds`.
";

fn page() -> String {
    let mut page = made_of("src/telemetry/catalog.rs") + INTRODUCTION;
    for (heading, metrics) in catalog::CATALOG {
        page += &format!("\n## {heading}\n\n");
        for metric in *metrics {
            page += &described(metric);
        }
    }
    page
}

/// An item of a list.
fn described(metric: &Metric) -> String {
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram(_) => "histogram",
    };
    let shared = match metric.scope {
        Scope::Process => "",
        Scope::Shared => "shared ",
    };
    let label = |label: &catalog::Label| {
        let values = match label.name {
            "version" => "of the program".to_owned(),
            _ => label.values.join(", "),
        };
        format!("; `{}`: {values}", label.name)
    };
    let labels: String = metric.labels.iter().map(label).collect();
    format!(
        "- `{}` ({shared}{kind}{labels}): {}\n",
        metric.name, metric.help
    )
}

#[test]
fn the_page_of_metrics_is_that_of_the_catalog() {
    assert_written("docs/reference/metrics.md", &page());
}
