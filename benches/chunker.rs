//! The chunker against one bare `encode` of the same text, which is the least that any token-exact
//! chunker does, and against text-splitter. Then one note of 10 KB to 100 MB.
//!
//! Cold: the chunker and the tokenizer have seen no text before. Warm: both have seen others, as in
//! a running worker, but not this one.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use elf_chunk::{Boundaries, Chunker, Settings, Tokenizer};
use text_splitter::{ChunkConfig, TextSplitter};

use crate::bare::plain;
use crate::corpus::{Corpus, Kind};
use crate::plot::{self, Line};
use crate::process::{self, THIS_PROGRAM};
use crate::report::{self, Report, Side, Target, median};
use crate::rounds::Rounds;
use crate::{Options, Result};

/// The argument of the process that chunks one note.
pub const ROLE: &str = "--chunk";

const MAX_TOKENS: usize = 512;
const OVERLAP_TOKENS: usize = 128;
const WARM_BYTES: usize = 2_000_000;

/// A tokenizer, and the targets of cold and warm.
const TOKENIZERS: [(&str, f64, f64); 4] = [
    ("minilm", 3.0, 6.0),
    ("cl100k", 0.9, 0.9),
    ("llama", 0.9, 0.9),
    ("e5", 0.9, 0.9),
];

pub async fn run(options: Options) -> Result<()> {
    let corpus = Corpus::load()?;
    let mut report = Report::new("chunker", options, "no engine");
    report.fact("texts", &corpus.source);
    report.fact(
        "tokens of a chunk, shared",
        format!("{MAX_TOKENS}, {OVERLAP_TOKENS}"),
    );
    let bytes = options.size(500_000, 20_000);
    report.fact("bytes of a text", bytes);
    for (name, cold, warm) in TOKENIZERS {
        let Ok(json) = std::fs::read(crate::tokenizer(name)?) else {
            report.fact(name, "not there: scripts/bench_data.py fetches it");
            continue;
        };
        for kind in [Kind::English, Kind::Mixed] {
            let texts: Vec<String> = (0..8)
                .map(|seed| corpus.long_text(kind, seed, bytes))
                .collect();
            let seen = corpus.long_text(kind, 1000, options.size(WARM_BYTES, bytes));
            for (state, seen, target) in [("cold", None, cold), ("warm", Some(&seen), warm)] {
                let sides = against_encode(options, &json, &texts, seen).await?;
                let name = format!("{name}, {kind:?}, {state}: chunker / encode");
                report.ratio(&name, "MB/s", sides, Target::AtLeast(target));
            }
        }
        let text = corpus.long_text(Kind::Mixed, 0, options.size(100_000, 10_000));
        let sides = against_splitter(options, &json, &text).await?;
        let name = format!("{name}, Mixed, cold: chunker / text-splitter");
        report.ratio(&name, "MB/s", sides, Target::AtLeast(10.0));
    }
    sizes(&mut report, options)?;
    report.write()
}

async fn against_encode(
    options: Options,
    json: &[u8],
    texts: &[String],
    seen: Option<&String>,
) -> Result<[Side; 2]> {
    let chunkers = || -> Result<Chunker> {
        let chunker = chunker(json)?;
        if let Some(seen) = seen {
            chunker.chunk(seen)?;
        }
        Ok(chunker)
    };
    let encoders = || -> Result<tokenizers::Tokenizer> {
        let encoder = plain(json)?;
        if let Some(seen) = seen {
            encoder.encode(seen.as_str(), false)?;
        }
        Ok(encoder)
    };
    let (mut of_chunker, mut of_encoder) = (texts.iter(), texts.iter());
    let [chunker, encoder] = Rounds::of(options)
        .measure(
            async || {
                let text = of_chunker.next().ok_or("more rounds than texts")?;
                let chunker = chunkers()?;
                speed(text, || Ok(chunker.chunk(text)?.len()))
            },
            async || {
                let text = of_encoder.next().ok_or("more rounds than texts")?;
                let encoder = encoders()?;
                speed(text, || Ok(encoder.encode(text.as_str(), false)?.len()))
            },
        )
        .await?;
    Ok([Side::new("chunker", chunker), Side::new("encode", encoder)])
}

async fn against_splitter(options: Options, json: &[u8], text: &str) -> Result<[Side; 2]> {
    let sizer = ChunkConfig::new(MAX_TOKENS).with_sizer(plain(json)?);
    let splitter = TextSplitter::new(sizer.with_overlap(OVERLAP_TOKENS)?);
    let [chunker, splitter] = Rounds::of(options)
        .measure(
            async || {
                let chunker = chunker(json)?;
                speed(text, || Ok(chunker.chunk(text)?.len()))
            },
            async || speed(text, || Ok(splitter.chunks(text).count())),
        )
        .await?;
    Ok([
        Side::new("chunker", chunker),
        Side::new("text-splitter", splitter),
    ])
}

/// MB per second.
fn speed(text: &str, work: impl FnOnce() -> Result<usize>) -> Result<f64> {
    let began = Instant::now();
    black_box(work()?);
    Ok(text.len() as f64 / 1e6 / began.elapsed().as_secs_f64())
}

/// Time per byte and memory of one note, each in a process of its own.
fn sizes(report: &mut Report, options: Options) -> Result<()> {
    let mut sizes = vec![10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
    sizes.truncate(options.size(5, 2));
    let mut nanos = vec![Vec::new(); sizes.len()];
    let mut excess: Vec<f64> = Vec::new();
    let mut ratios = Vec::new();
    for _ in 0..options.size(3, 1) {
        for (place, bytes) in sizes.iter().enumerate() {
            let (of_byte, peak_mb) = in_process(*bytes)?;
            nanos[place].push(of_byte);
            excess.push(peak_mb - 3.0 * *bytes as f64 / 1e6);
        }
        let last = nanos.iter().filter_map(|rounds| rounds.last().copied());
        let (low, high) = last.fold((f64::MAX, 0.0), |(low, high): (f64, f64), of_byte| {
            (low.min(of_byte), high.max(of_byte))
        });
        ratios.push(high / low);
    }
    let last = sizes.last().copied().unwrap_or_default();
    for (bytes, rounds) in sizes.iter().zip(&nanos) {
        report.value(
            &format!("one note of {bytes} bytes"),
            "ns/byte",
            rounds.clone(),
            Target::None,
        );
    }
    let name = format!("one note up to {last} bytes: slowest size / fastest, time a byte");
    report.value(&name, "", ratios, Target::AtMost(1.3));
    let most = excess.into_iter().fold(f64::MIN, f64::max);
    report.value(
        "memory beyond 3 times the text, at most",
        "MB",
        vec![most],
        Target::AtMost(200.0),
    );
    let points = sizes
        .iter()
        .zip(&nanos)
        .map(|(bytes, rounds)| (*bytes as f64, median(rounds)));
    plot::lines(
        &report::folder(options)?.join("chunker-sizes.svg"),
        "One note of 10 KB to 100 MB",
        "bytes",
        "ns a byte",
        &[Line {
            name: "chunker, WordPiece".into(),
            points: points.collect(),
        }],
    )
}

fn in_process(bytes: usize) -> Result<(f64, f64)> {
    let output = Command::new(THIS_PROGRAM)
        .args([ROLE, &bytes.to_string()])
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let (nanos, peak_mb) = said.trim().split_once(' ').ok_or_else(|| {
        format!(
            "chunking {bytes} bytes failed: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    })?;
    Ok((nanos.parse()?, peak_mb.parse()?))
}

/// The process: prints nanoseconds a byte, and the most memory in MB.
pub fn chunk(arguments: &[String]) -> Result<()> {
    let bytes: usize = arguments.first().ok_or("how many bytes?")?.parse()?;
    let corpus = Corpus::load()?;
    let chunker = chunker(&std::fs::read(crate::tokenizer("minilm")?)?)?;
    chunker.chunk(&corpus.long_text(Kind::Mixed, 1000, WARM_BYTES))?;
    // Several short notes, so that the clock is no part of it.
    let count = (2_000_000 / bytes).max(1);
    let notes: Vec<String> = (0..count)
        .map(|seed| corpus.long_text(Kind::Mixed, seed as u64, bytes))
        .collect();
    let began = Instant::now();
    for note in &notes {
        black_box(chunker.chunk(note)?.len());
    }
    let nanos = began.elapsed().as_nanos() as f64 / (bytes * count) as f64;
    println!("{nanos} {}", process::peak_mb(std::process::id())?);
    Ok(())
}

fn chunker(json: &[u8]) -> Result<Chunker> {
    let settings = Settings {
        enabled: true,
        max_tokens: MAX_TOKENS,
        overlap_tokens: OVERLAP_TOKENS,
        boundaries: Boundaries::Greedy,
        ..Settings::default()
    };
    Ok(Chunker::new(
        Arc::new(Tokenizer::from_json(json)?),
        &settings,
        "",
    )?)
}
