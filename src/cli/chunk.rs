//! `elf chunk`

use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use super::output::{Output, excerpt};
use super::wiring;
use crate::config::Config;

/// Arguments of `elf chunk`.
#[derive(clap::Args)]
pub struct Args {
    /// A UTF-8 text file, - for stdin
    file: PathBuf,
}

#[derive(Serialize)]
struct Row<'a> {
    index: usize,
    start: usize,
    end: usize,
    tokens: usize,
    text: &'a str,
}

/// Shows the chunks of a text: byte offsets, tokens as sent, and the text.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let bytes = match args.file.to_str() {
        Some("-") => {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
        }
        _ => std::fs::read(&args.file),
    };
    let bytes = bytes.with_context(|| format!("failed to read {}", args.file.display()))?;
    let text = String::from_utf8(bytes)
        .with_context(|| format!("{} is not UTF-8", args.file.display()))?;
    let (chunker, _) = wiring::chunker(config).await?;
    let chunks = chunker.chunk(&text)?;
    let row = |(index, chunk): (usize, &crate::chunk::Chunk)| Row {
        index,
        start: chunk.start,
        end: chunk.end,
        tokens: chunk.tokens,
        text: &text[chunk.start..chunk.end],
    };
    let rows: Vec<Row> = chunks.iter().enumerate().map(row).collect();
    out.report(&rows, |rows| {
        let line = |r: &Row| {
            let span = format!("{}..{}", r.start, r.end);
            format!(
                "{:>4}  {span:<17}  {:>5} tokens  {}",
                r.index,
                r.tokens,
                excerpt(r.text, 60)
            )
        };
        rows.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}
