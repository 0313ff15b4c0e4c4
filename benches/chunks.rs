//! What a whole rebuild costs with more chunks, graphs included, and a verify of what it made. There is no target here.

use std::sync::Arc;

use elf::rebuild;
use tokio_util::sync::CancellationToken;

use crate::corpus::Corpus;
use crate::engine;
use crate::plot::{self, Line};
use crate::rebuild::{to_the_end, verify_rate};
use crate::report::{self, Target};
use crate::stock::Database;
use crate::{Options, Result, process};

pub async fn run(options: Options) -> Result<()> {
    let Some((engine, mut report)) = engine::server("chunks", options).await? else {
        return Ok(());
    };
    let corpus = Corpus::load()?;
    report.fact("texts", &corpus.source);
    let mut line = Line {
        name: "rebuild".into(),
        points: Vec::new(),
    };
    let sizes: &[usize] = match options.quick {
        true => &[400, 800],
        false => &[10_000, 100_000, 1_000_000, 3_000_000],
    };
    for size in sizes {
        // At 128 dimensions, or three million would not fit.
        let database = Database::create(&corpus, *size, 128).await?;
        let serving = database.serving(&engine.url).await?;
        let done = rebuild::run(
            &serving,
            &to_the_end(),
            Arc::default(),
            CancellationToken::new(),
        )
        .await?;
        assert_eq!(done.points, *size as u64);
        let peak = process::peak_mb(std::process::id())?;
        let verified = verify_rate(&database, &serving, done.collection).await?;
        let verify_seconds = *size as f64 / verified;
        for (what, unit, value) in [
            ("copied", "points/s", done.points_per_sec),
            ("with graphs and swap", "s", done.seconds),
            ("peak memory so far", "MB", peak),
            ("verified", "chunks/s", verified),
            ("whole rebuild / verify", "", done.seconds / verify_seconds),
        ] {
            let name = format!("rebuild of {size} chunks, 128 dimensions: {what}");
            report.value(&name, unit, vec![value], Target::None);
        }
        line.points.push((*size as f64, done.points_per_sec));
        database.end(&serving).await?;
    }
    let path = report::folder(options)?.join("chunks.svg");
    plot::lines(
        &path,
        "Rebuild, 128 dimensions",
        "chunks",
        "points a second",
        &[line],
    )?;
    report.write()
}
