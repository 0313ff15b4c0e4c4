//! A backlog of many notes: equal ones against different ones, and the memory that it takes.

use std::time::Duration;

use crate::bare::{self, Parts, Setting};
use crate::corpus::{Corpus, Kind};
use crate::drain::{DIM, Drain, report_cpu};
use crate::engine::Engine;
use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::stand_in::StandIn;
use crate::{Options, Result};

const BYTES: usize = 560;

pub async fn run(options: Options) -> Result<()> {
    let engine = Engine::find().await?;
    let corpus = Corpus::load()?;
    let mut report = Report::new("backlog", options, &engine.name);
    report.fact("dimensions", DIM);
    report.fact("texts", &corpus.source);
    let count = options.size(100_000, 1000);
    let unlike = corpus.notes(1 << 20, count, BYTES);
    let alike = vec![corpus.text(Kind::English, 1, BYTES); count];
    let drain = Drain::new(&engine, Duration::ZERO, "")?;
    let (mut peaks, mut of_equal, mut of_different) = (Vec::new(), Vec::new(), Vec::new());
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
                let drained = drain.drained(&alike).await?;
                of_equal.push(drained.cpu_ms);
                asked = drain.provider.texts().await? - before;
                Ok(1e3 / drained.rate)
            },
            async || {
                let drained = drain.drained(&unlike).await?;
                of_different.push(drained.cpu_ms);
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
    report_cpu(
        &mut report,
        "CPU of a note",
        [("equal", of_equal), ("different", of_different)],
    );
    if engine.is_server {
        bare_points(&mut report, &engine, rounds, [alike, unlike]).await?;
    }
    report.value(
        &format!("peak memory of the worker, backlog of {count} notes"),
        "MB",
        peaks,
        Target::AtMost(100.0),
    );
    report.write()
}

/// The same with a bare client that writes points and nothing else: how the engine itself takes
/// equal points.
async fn bare_points(
    report: &mut Report,
    engine: &Engine,
    rounds: Rounds,
    texts: [Vec<String>; 2],
) -> Result<()> {
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let setting = Setting {
        lanes: 4,
        batch: 256,
    };
    let points = Parts {
        upsert: true,
        ..Parts::NONE
    };
    let [equal, different] = texts;
    let [equal, different] = [bare::cut(equal).await?, bare::cut(different).await?];
    let millis = async |notes: &[bare::Note]| {
        let (rate, _) = bare::rate(engine, &provider, setting, points, notes).await?;
        Ok(1e3 / rate)
    };
    let [of_equal, of_different] = rounds
        .measure(
            async || millis(&equal).await,
            async || millis(&different).await,
        )
        .await?;
    report.ratio(
        "the same points from a bare client, time of a point",
        "ms",
        [
            Side::new("equal", of_equal),
            Side::new("different", of_different),
        ],
        Target::None,
    );
    Ok(())
}
