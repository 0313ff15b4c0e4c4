//! `elf chunk`

mod html;

use std::path::PathBuf;

use anyhow::Context;
use chrono::Utc;
use elf_chunk::{Span, Why};
use serde::Serialize;
use serde_json::json;

use super::output::{Output, excerpt, print_error};
use super::{import, wiring};
use crate::chunk::{Chunk, Subject};
use crate::config::Config;

/// Arguments of `elf chunk`.
#[derive(clap::Args)]
pub struct Args {
    /// A file as elf import reads it, - for stdin
    file: PathBuf,
    /// Split it as a note of this type
    #[arg(long = "type", value_name = "TYPE", default_value = "")]
    kind: String,
    /// Also write them to this file as a page, each chunk in a colour
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// What is printed.
#[derive(Serialize)]
struct Shown<'a> {
    /// How the text is split.
    strategy: &'static str,
    /// Whether `auto` chose it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_chosen: bool,
    chunks: Vec<Row<'a>>,
    left_out: Vec<LeftOut<'a>>,
}

#[derive(Serialize)]
struct Row<'a> {
    index: usize,
    start: usize,
    end: usize,
    tokens: usize,
    /// The larger part of the text that a search shows it in.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<Span>,
    /// What is embedded before the text.
    #[serde(skip_serializing_if = "String::is_empty")]
    lead: String,
    text: &'a str,
}

#[derive(Serialize)]
struct LeftOut<'a> {
    #[serde(flatten)]
    excluded: elf_chunk::Excluded,
    text: &'a str,
}

/// Shows the chunks of a text: byte offsets, tokens as sent, and the text; and what is left out.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let bytes = match args.file.to_str() {
        Some("-") => {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin(), &mut bytes).map(|_| bytes)
        }
        _ => std::fs::read(&args.file),
    };
    let bytes = bytes.with_context(|| format!("failed to read {}", args.file.display()))?;
    let file = import::Contents::read(&args.file, bytes);
    let file = file.map_err(|problem| anyhow::anyhow!("{} is {problem}", args.file.display()))?;
    if let Some(warning) = &file.warning {
        print_error(&format!("elf: {warning}; it is a part of the text"));
    }
    let text = file.text;
    let (chunker, _) = wiring::chunker(config).await?;
    let subject = Subject {
        kind: &args.kind,
        title: file.title.as_deref(),
        cuts: &[],
        updated_at: Utc::now(),
    };
    let split = chunker.split(&text, subject)?;
    let [asked, strategy] = chunker.strategies(&text, &args.kind);
    let is_chosen = asked != strategy;
    if let Some(file) = &args.html {
        std::fs::write(
            file,
            html::page(&text, &split, &said(strategy.name(), is_chosen)),
        )
        .with_context(|| format!("failed to write {}", file.display()))?;
    }
    let row = |(index, chunk): (usize, &Chunk)| Row {
        index,
        start: chunk.start,
        end: chunk.end,
        tokens: chunk.tokens,
        parent: chunk.parent,
        lead: split.lead(chunk),
        text: split.text(chunk),
    };
    let left_out = |excluded: &elf_chunk::Excluded| LeftOut {
        text: &text[excluded.start..excluded.end],
        excluded: *excluded,
    };
    let shown = Shown {
        strategy: strategy.name(),
        is_chosen,
        chunks: split.chunks.iter().enumerate().map(row).collect(),
        left_out: split.excluded.iter().map(left_out).collect(),
    };
    out.report(&shown, lines)
}

/// The strategy in words.
fn said(strategy: &str, is_chosen: bool) -> String {
    let chosen = if is_chosen { ", chosen by auto" } else { "" };
    format!("strategy {strategy}{chosen}")
}

/// A line for the strategy, one for each chunk, and one for each part that is in none.
fn lines(shown: &Shown<'_>) -> String {
    let chunk = |row: &Row| {
        let span = format!("{}..{}", row.start, row.end);
        let lead = match row.lead.is_empty() {
            true => String::new(),
            false => format!("[{}] ", excerpt(&row.lead, 40)),
        };
        let text = excerpt(row.text, 60);
        format!(
            "{:>4}  {span:<17}  {:>5} tokens  {lead}{text}",
            row.index, row.tokens
        )
    };
    let left_out = |part: &LeftOut| {
        let span = format!("{}..{}", part.excluded.start, part.excluded.end);
        let why = match part.excluded.why {
            Why::Heading => "excluded heading".into(),
            Why::Block(kind) => json!(kind).as_str().unwrap_or_default().replace('_', " "),
            Why::Stranded => "heading of what is left out".into(),
        };
        format!(
            "   -  {span:<17}  left out: {why}: {}",
            excerpt(part.text, 50)
        )
    };
    let chunks = shown.chunks.iter().map(|row| (row.start, chunk(row)));
    let parents = shown.chunks.iter().filter_map(|row| row.parent);
    let mut parents: Vec<Span> = parents.collect();
    parents.dedup();
    let parents = parents
        .iter()
        .map(|Span { start, end }| (*start, format!("parent {start}..{end}")));
    let parts = shown
        .left_out
        .iter()
        .map(|part| (part.excluded.start, left_out(part)));
    let mut lines: Vec<(usize, String)> = parents.chain(chunks).chain(parts).collect();
    lines.sort_by_key(|(start, _)| *start);
    let strategy = said(shown.strategy, shown.is_chosen);
    let mut lines: Vec<String> = std::iter::once(strategy)
        .chain(lines.into_iter().map(|(_, line)| line))
        .collect();
    if shown.chunks.is_empty() {
        lines.push("no chunk: no search finds this text".to_owned());
    }
    lines.join("\n")
}
