//! How fast the chunker is, as ratios measured side by side in one run.
//!
//! `cargo bench --profile dev --bench chunker [-- TOKENIZER NOTES]`, by default
//! with the model and the notes that the demo uses.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use elf::chunk::{Chunker, Tokenizer};
use elf::config::{Boundaries, Chunking};
use text_splitter::{ChunkConfig, TextSplitter};

const MAX_TOKENS: usize = 512;
const OVERLAP_TOKENS: usize = 128;

/// Large enough for some dozens of chunks, small enough for text-splitter.
const COMPARED_BYTES: usize = 200_000;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    // cargo adds `--bench`.
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = std::env::var_os("ELF_TEST_MODEL")
        .map_or_else(|| root.join(".elf/models/all-MiniLM-L6-v2"), PathBuf::from);
    let tokenizer = arguments
        .next()
        .map_or_else(|| model.join("tokenizer.json"), PathBuf::from);
    let notes = arguments
        .next()
        .map_or_else(|| root.join("examples/notes"), PathBuf::from);

    let json = std::fs::read(&tokenizer).with_context(|| {
        format!(
            "no tokenizer {}; `make demo` fetches it",
            tokenizer.display()
        )
    })?;
    let mut prose = String::new();
    read_notes(&notes, &mut prose).with_context(|| format!("no notes in {}", notes.display()))?;
    ensure!(
        !prose.is_empty(),
        "there is no .md file in {}",
        notes.display()
    );

    compare(&json, &repeated(&prose, COMPARED_BYTES))?;
    scale(&json, &prose)
}

/// Chunker, bare encode and text-splitter over the same text, taking turns.
fn compare(json: &[u8], text: &str) -> Result<()> {
    let encoder = plain(json)?;
    let sizer = ChunkConfig::new(MAX_TOKENS).with_sizer(plain(json)?);
    let splitter = TextSplitter::new(sizer.with_overlap(OVERLAP_TOKENS)?);
    let warm = chunker(json)?;
    warm.chunk(text)?;

    let mut seconds = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        let cold = chunker(json)?;
        seconds[0].push(timed(|| {
            black_box(encoder.encode(text, false).map(|e| e.len()).ok())
        }));
        seconds[1].push(timed(|| {
            black_box(cold.chunk(text).map(|chunks| chunks.len()).ok())
        }));
        seconds[2].push(timed(|| {
            black_box(warm.chunk(text).map(|chunks| chunks.len()).ok())
        }));
        seconds[3].push(timed(|| Some(black_box(splitter.chunks(text).count()))));
    }
    let [encode, cold, warm, splitter] = seconds.map(median);
    println!(
        "{} KB of notes, {MAX_TOKENS} tokens a chunk, {OVERLAP_TOKENS} shared, median of {ROUNDS}",
        text.len() / 1000
    );
    println!(
        "{:<36} {:>8} {:>14} {:>18}",
        "", "MB/s", "x bare encode", "x text-splitter"
    );
    for (name, seconds) in [
        ("bare encode with offsets", encode),
        ("text-splitter", splitter),
        ("chunker, no word seen before", cold),
        ("chunker, as in a running worker", warm),
    ] {
        println!(
            "{name:<36} {:>8.2} {:>14.2} {:>18.1}",
            speed(text, seconds),
            encode / seconds,
            splitter / seconds
        );
    }
    Ok(())
}

/// One note of 10 KB to 10 MB.
fn scale(json: &[u8], prose: &str) -> Result<()> {
    println!("\n{:<36} {:>8} {:>14}", "one note of", "MB/s", "chunks");
    for bytes in [10_000, 100_000, 1_000_000, 10_000_000] {
        let text = repeated(prose, bytes);
        let mut seconds = Vec::new();
        let mut chunks = 0;
        for _ in 0..3 {
            let chunker = chunker(json)?;
            chunker.chunk(prose)?;
            // Short notes many times, so that the clock is no part of it.
            let times = (1_000_000 / bytes).max(1);
            seconds.push(
                timed(|| {
                    (0..times).try_for_each(|_| {
                        chunks = black_box(chunker.chunk(&text).ok()?.len());
                        Some(())
                    })
                }) / times as f64,
            );
        }
        println!(
            "{:<36} {:>8.2} {chunks:>14}",
            format!("{bytes} bytes"),
            speed(&text, median(seconds))
        );
    }
    Ok(())
}

fn chunker(json: &[u8]) -> Result<Chunker> {
    let settings = Chunking {
        enabled: true,
        max_tokens: MAX_TOKENS,
        overlap_tokens: OVERLAP_TOKENS,
        boundaries: Boundaries::Greedy,
        tokenizer_repo: String::new(),
    };
    Ok(Chunker::new(
        Arc::new(Tokenizer::from_json(json)?),
        &settings,
        "",
    )?)
}

fn plain(json: &[u8]) -> Result<tokenizers::Tokenizer> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(json).map_err(anyhow::Error::msg)?;
    tokenizer
        .with_padding(None)
        .with_truncation(None)
        .map_err(anyhow::Error::msg)?;
    Ok(tokenizer)
}

/// Every `.md` below `folder`, in the order of their names.
fn read_notes(folder: &Path, text: &mut String) -> Result<()> {
    let mut paths = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read_notes(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            text.push_str(&std::fs::read_to_string(&path)?);
            text.push_str("\n\n");
        }
    }
    Ok(())
}

fn repeated(prose: &str, bytes: usize) -> String {
    let mut text = prose.repeat(bytes / prose.len() + 1);
    text.truncate(text.floor_char_boundary(bytes));
    text
}

fn timed<T>(work: impl FnOnce() -> Option<T>) -> f64 {
    let start = Instant::now();
    let result = work();
    let seconds = start.elapsed().as_secs_f64();
    assert!(result.is_some(), "what failed was not measured");
    seconds
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn speed(text: &str, seconds: f64) -> f64 {
    text.len() as f64 / 1e6 / seconds
}
