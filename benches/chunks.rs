//! What a rebuild costs among more chunks. There is no other side and no target here.

use crate::corpus::Corpus;
use crate::engine;
use crate::plot::{self, Line};
use crate::rebuild::copied;
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
        let stores = database.stores(&engine.url).await?;
        let (rate, _) = copied(&stores).await?;
        report.value(
            &format!("rebuild of {size} chunks, 128 dimensions"),
            "points/s",
            vec![rate],
            Target::None,
        );
        report.value(
            &format!("rebuild of {size} chunks, peak memory so far"),
            "MB",
            vec![process::peak_mb(std::process::id())?],
            Target::None,
        );
        line.points.push((*size as f64, rate));
        database.end(&stores).await?;
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
