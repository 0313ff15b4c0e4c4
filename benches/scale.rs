//! How ELF's figures change with size: workers, dimensions, the length of a note, and the ways to keep
//! vectors. There is no other side and no target here: each is a line of a plot.

use std::time::{Duration, Instant};

use elf::config::VectorType;
use elf::serving::Serving;
use qdrant_client::qdrant::QueryPointsBuilder;

use crate::corpus::{Corpus, Kind};
use crate::daemon::{Site, Worker};
use crate::engine::wait_for_graphs;
use crate::engine::{self, Engine};
use crate::plot::{self, Line};
use crate::rebuild::copied;
use crate::report::{self, Report, Target, median};
use crate::stand_in::{StandIn, vector};
use crate::stock::Database;
use crate::{Options, Result, process};

const DIM: usize = 384;
const SHORT_BYTES: usize = 560;

pub async fn run(options: Options) -> Result<()> {
    let Some((engine, mut report)) = engine::server("scale", options).await? else {
        return Ok(());
    };
    let corpus = Corpus::load()?;
    report.fact("texts", &corpus.source);
    workers(&mut report, options, &engine, &corpus).await?;
    dimensions(&mut report, options, &engine, &corpus).await?;
    lengths(&mut report, options, &engine, &corpus).await?;
    quantization(&mut report, options, &engine, &corpus).await?;
    #[cfg(feature = "local")]
    crate::recall::run(&mut report, options, &engine, &KEPT).await?;
    report.write()
}

fn draw(options: Options, name: &str, title: &str, axes: [&str; 2], lines: &[Line]) -> Result<()> {
    let path = report::folder(options)?.join(format!("scale-{name}.svg"));
    plot::lines(&path, title, axes[0], axes[1], lines)
}

/// Seconds to index these notes with so many workers, and the peak memory of one in MB.
async fn drained(
    engine: &Engine,
    provider: &StandIn,
    settings: &str,
    workers: usize,
    texts: &[String],
) -> Result<(f64, f64, i64)> {
    let mut site = Site::start(&engine.url, &provider.url, settings).await?;
    let running = (0..workers)
        .map(|_| Worker::start(site.folder.path()))
        .collect::<Result<Vec<_>>>()?;
    site.insert(texts).await?;
    let secs = site.wait_until_drained(Instant::now()).await?;
    let peak = process::peak_mb(running[0].pid())?;
    let chunks = site.count("memory_note_chunks").await?;
    drop(running);
    site.end().await?;
    Ok((secs, peak, chunks))
}

/// 1, 2 and 4 workers, with a provider that answers at once and one that is the limit.
async fn workers(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    corpus: &Corpus,
) -> Result<()> {
    let mut lines = Vec::new();
    for (name, millis, settings) in [
        ("a provider that answers at once", 0, ""),
        (
            "a provider of 200 ms, 32 texts in one request at a time",
            200,
            "max_batch_inputs = 32\nconcurrency = 1\n",
        ),
    ] {
        let provider = StandIn::start(DIM, Duration::from_millis(millis))?;
        let texts = corpus.notes(0, options.size(6000, 100), SHORT_BYTES);
        let mut line = Line {
            name: name.to_owned(),
            points: Vec::new(),
        };
        for workers in [1, 2, 4] {
            let mut rates = Vec::new();
            for _ in 0..options.size(3, 1) {
                let (secs, ..) = drained(engine, &provider, settings, workers, &texts).await?;
                rates.push(texts.len() as f64 / secs);
            }
            line.points.push((workers as f64, median(&rates)));
            report.value(
                &format!("{workers} workers, {name}"),
                "notes/s",
                rates,
                Target::None,
            );
        }
        lines.push(line);
    }
    draw(
        options,
        "workers",
        "Workers on two cores, with Postgres and Qdrant",
        ["workers", "notes a second"],
        &lines,
    )
}

async fn dimensions(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    corpus: &Corpus,
) -> Result<()> {
    let mut line = Line {
        name: "worker".into(),
        points: Vec::new(),
    };
    let texts = corpus.notes(0, options.size(5000, 100), SHORT_BYTES);
    for dim in [128, 384, 768, 1536, 3072] {
        let provider = StandIn::start(dim, Duration::ZERO)?;
        let (secs, peak, _) = drained(engine, &provider, "", 1, &texts).await?;
        let rate = texts.len() as f64 / secs;
        report.value(
            &format!("worker, {dim} dimensions"),
            "notes/s",
            vec![rate],
            Target::None,
        );
        report.value(
            &format!("worker, {dim} dimensions, peak memory"),
            "MB",
            vec![peak],
            Target::None,
        );
        line.points.push((dim as f64, rate));
    }
    draw(
        options,
        "dimensions",
        "A worker",
        ["dimensions", "notes a second"],
        &[line],
    )
}

/// The same bytes in notes of another length.
async fn lengths(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    corpus: &Corpus,
) -> Result<()> {
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let mut line = Line {
        name: "worker".into(),
        points: Vec::new(),
    };
    for bytes in [50, 500, 5000, 50_000, 500_000, 10_000_000] {
        let total = options.size(10_000_000, 50_000);
        if bytes > total {
            continue;
        }
        let texts: Vec<String> = (0..(total / bytes).min(10_000))
            .map(|seed| corpus.long_text(Kind::Mixed, seed as u64, bytes))
            .collect();
        let (secs, peak, chunks) = drained(engine, &provider, "", 1, &texts).await?;
        let rate = chunks as f64 / secs;
        report.value(
            &format!("notes of {bytes} bytes"),
            "chunks/s",
            vec![rate],
            Target::None,
        );
        report.value(
            &format!("notes of {bytes} bytes, peak memory"),
            "MB",
            vec![peak],
            Target::None,
        );
        line.points.push((bytes as f64, rate));
    }
    draw(
        options,
        "lengths",
        "Notes of another length",
        ["bytes of a note", "chunks a second"],
        &[line],
    )
}

/// How the engine keeps dense vectors: names, and settings of `[storage.qdrant]`.
const KEPT: [(&str, &str); 4] = [
    ("float32", ""),
    ("float16", "datatype = \"float16\"\n"),
    ("scalar", "quantization = \"scalar\"\n"),
    ("binary", "quantization = \"binary\"\n"),
];

/// Time of rebuild, graphs and search with each way to keep vectors.
async fn quantization(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    corpus: &Corpus,
) -> Result<()> {
    const WIDE: usize = 1536;
    let database = Database::create(corpus, options.size(50_000, 400), WIDE).await?;
    for (setting, toml) in KEPT {
        let serving = database.with_settings(&engine.url, toml).await?;
        let client = engine::client(&engine.url)?;
        let (rate, collection) = copied(&serving).await?;
        report.value(
            &format!("{setting}: rebuild"),
            "points/s",
            vec![rate],
            Target::None,
        );
        let began = Instant::now();
        serving.index.end_load(&collection).await?;
        wait_for_graphs(&client, &collection).await?;
        report.value(
            &format!("{setting}: graphs"),
            "s",
            vec![began.elapsed().as_secs_f64()],
            Target::None,
        );
        if let Some(bytes) = process::collection_bytes(&collection) {
            report.value(
                &format!("{setting}: disk, without the write-ahead log"),
                "bytes a point",
                vec![bytes as f64 / database.chunks as f64],
                Target::None,
            );
        }
        let mut millis = Vec::new();
        for seed in 0..options.size(300, 10) {
            let query = QueryPointsBuilder::new(&collection)
                .query(vector(seed as u64, WIDE))
                .using("dense")
                .limit(10);
            let began = Instant::now();
            client.query(query).await?;
            millis.push(1e3 * began.elapsed().as_secs_f64());
        }
        report.value(
            &format!("{setting}: a dense query, p50"),
            "ms",
            vec![median(&millis)],
            Target::None,
        );
        database.drop_collections(&serving).await?;
    }
    let serving = database.serving(&engine.url).await?;
    halfvec(report, &serving).await?;
    database.end(&serving).await
}

/// The other type of vectors in Postgres: the size of their table, and what a change and a rebuild cost.
async fn halfvec(report: &mut Report, serving: &Serving) -> Result<()> {
    let bytes_a_chunk = async || -> Result<f64> {
        let bytes: f64 = sqlx::query_scalar(
            "select pg_total_relation_size('note_chunk_embeddings')::float8
                    / (select count(*) from note_chunk_embeddings)",
        )
        .fetch_one(serving.store.pool())
        .await?;
        Ok(bytes)
    };
    let float32 = bytes_a_chunk().await?;
    let began = Instant::now();
    serving
        .store
        .change_vector_type(VectorType::Halfvec)
        .await?;
    let secs = began.elapsed().as_secs_f64();
    let float16 = bytes_a_chunk().await?;
    let (rate, _) = copied(serving).await?;
    for (name, unit, value) in [
        ("vector: bytes of its row with its key", "bytes", float32),
        ("halfvec: bytes of its row with its key", "bytes", float16),
        ("halfvec: change of the tables", "s", secs),
        ("halfvec: rebuild", "points/s", rate),
    ] {
        report.value(name, unit, vec![value], Target::None);
    }
    Ok(())
}
