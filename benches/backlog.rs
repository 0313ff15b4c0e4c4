//! A backlog of many notes: equal ones against different ones, and the memory that it takes.

use std::time::Duration;

use crate::corpus::{Corpus, Kind};
use crate::drain::{DIM, Drain};
use crate::engine::Engine;
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::{Options, Result};

const BYTES: usize = 560;

pub async fn run(options: Options) -> Result<()> {
    let engine = Engine::find().await?;
    let corpus = Corpus::load()?;
    let mut report = Report::new("backlog", options, &engine.name);
    report.fact("dimensions", DIM);
    report.fact("texts", &corpus.source);
    let count = options.size(100_000, 1000);
    let different = corpus.notes(1 << 20, count, BYTES);
    let equal = vec![corpus.text(Kind::English, 1, BYTES); count];
    let drain = Drain::new(&engine, Duration::ZERO, "")?;
    let mut peaks = Vec::new();
    let mut asked = 0;
    // A minute each, so without a warm-up.
    let rounds = Rounds {
        count: options.size(2, 1),
        warm_up: false,
    };
    let [equal, different] = rounds
        .measure(
            async || {
                let before = drain.provider.texts().await?;
                let rate = drain.rate(&equal).await?;
                asked = drain.provider.texts().await? - before;
                Ok(1e3 / rate)
            },
            async || {
                let drained = drain.drained(&different).await?;
                peaks.push(drained.peak_mb);
                Ok(1e3 / drained.rate)
            },
        )
        .await?;
    report.fact("texts that the provider got for the equal notes", asked);
    report.ratio(
        &format!("{count} equal notes / different ones, time of a note"),
        "ms",
        [Side::new("equal", equal), Side::new("different", different)],
        Target::AtMost(1.0),
    );
    report.value(
        &format!("peak memory of the worker, backlog of {count} notes"),
        "MB",
        peaks,
        Target::AtMost(100.0),
    );
    report.write()
}
