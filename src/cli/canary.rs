//! `elf reindex canary`

use anyhow::Context;
use serde::Serialize;
use serde_json::json;

use super::output::Output;
use super::wiring::{self, EmbeddingSetup};
use crate::canary::{Tallies, Tally};
use crate::config::Config;
use crate::store::{CanaryRow, Lifecycle, Store};

/// What is printed.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    canary: CanaryRow,
    served: Found,
    built: Found,
}

/// What the searches of one version found.
#[derive(Serialize)]
struct Found {
    searches: u64,
    relevance: Option<f64>,
    empty: f64,
    errors: f64,
    median_ms: Option<f64>,
}

impl From<&Tally> for Found {
    fn from(tally: &Tally) -> Self {
        Self {
            searches: tally.searches,
            relevance: tally.mean_relevance(),
            empty: tally.empty_rate(),
            errors: tally.error_rate(),
            median_ms: tally.median_ms(),
        }
    }
}

/// Begins or ends the canary of the version that the configuration asks for, or reports of it.
pub async fn run(config: &Config, share: Option<f64>, out: Output) -> anyhow::Result<()> {
    let Some(share) = share else {
        let store = wiring::store(config).await?;
        store.check_schema().await?;
        return report(&store, out).await;
    };
    let EmbeddingSetup { store, version, .. } = wiring::setup(config).await?;
    let version = version.name;
    if share == 0.0 {
        let ended = store.end_canary(&version, None).await?;
        anyhow::ensure!(ended, "no canary of {version} runs");
        return out.report(&json!({ "version": version, "share": 0 }), |_| {
            format!("{version} answers no more searches")
        });
    }
    check_built(&store, &version).await?;
    let tallies = json!(Tallies::default());
    let started = store.start_canary(&version, share, &tallies).await?;
    anyhow::ensure!(started, "{version} is not being built any more");
    out.report(&json!({ "version": version, "share": share }), |_| {
        format!(
            "{version} answers {}% of the searches of processes with its configuration as quality.canary.config; \
             `elf reindex canary` compares what they find",
            share * 100.0
        )
    })
}

async fn check_built(store: &Store, version: &str) -> anyhow::Result<()> {
    let known = store.version(version).await?;
    let is_building = known.is_some_and(|known| known.state == Lifecycle::Building);
    anyhow::ensure!(
        is_building && store.is_caught_up(version).await?,
        "{version} is not built yet, or it is served: `elf reindex` builds it, and a worker with this \
         configuration keeps it in step"
    );
    Ok(())
}

async fn report(store: &Store, out: Output) -> anyhow::Result<()> {
    let canary = store.canary().await?.context(
        "there is no canary: `elf reindex canary 10%` begins one, of a version that `elf reindex` has built",
    )?;
    let tallies = Tallies::read(canary.tallies.clone());
    let report = Report {
        served: (&tallies.served).into(),
        built: (&tallies.canary).into(),
        canary,
    };
    out.report(&report, lines)
}

fn lines(report: &Report) -> String {
    let CanaryRow {
        version,
        share,
        ended,
        ..
    } = &report.canary;
    let state = match ended {
        Some(reason) => format!("ended by itself ({reason})"),
        None if *share == 0.0 => "ended".to_owned(),
        None => format!("answers {}% of the searches", share * 100.0),
    };
    let row = |name: &str, found: &Found| {
        let or_dash = |number: Option<String>| number.unwrap_or_else(|| "-".to_owned());
        format!(
            "{name:<8}{:>10}{:>11}{:>8.1}%{:>8.1}%{:>11}",
            found.searches,
            or_dash(found.relevance.map(|relevance| format!("{relevance:.3}"))),
            found.empty * 100.0,
            found.errors * 100.0,
            or_dash(found.median_ms.map(|ms| format!("{ms:.1}"))),
        )
    };
    format!(
        "{version} {state}\n{:<8}{:>10}{:>11}{:>9}{:>9}{:>11}\n{}\n{}",
        "",
        "searches",
        "relevance",
        "empty",
        "errors",
        "median ms",
        row("served", &report.served),
        row("built", &report.built)
    )
}
