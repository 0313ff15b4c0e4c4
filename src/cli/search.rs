//! `elf search`

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::output::{BOLD, Output, PLAIN, excerpt};
use super::{value, wiring};
use crate::config::Config;
use crate::index::Filter;
use crate::metadata::{self, Conditions, Declared};
use crate::search::{By, Highlight, Item, Missing, Passage, Request, WEAK};
use crate::store::Store;

/// Characters of a line of a passage: with the indentation, it fits a terminal of 100 columns.
const LINE: usize = 94;

/// Arguments of `elf search`.
#[derive(clap::Args)]
pub struct Args {
    /// The text to search for
    #[arg(value_parser = value::query)]
    query: String,
    /// Notes to return at most, 1 to 1000, each with its best chunk
    #[arg(short = 'n', long, default_value_t = 10, value_parser = value::whole::<1, 1000>)]
    limit: u16,
    /// Only notes of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only notes of this project
    #[arg(long)]
    project: Option<String>,
    /// Only notes of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only notes of this scope
    #[arg(long)]
    scope: Option<String>,
    /// Only notes of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// Only notes of this source
    #[arg(long)]
    source: Option<String>,
    /// Only notes written at this time or later, such as 2026-11-01T00:00:00Z
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    updated_after: Option<DateTime<Utc>>,
    /// Only notes written before this time
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    updated_before: Option<DateTime<Utc>>,
    /// Only notes of at least this importance, 0 to 1
    #[arg(long, value_name = "FROM_0_TO_1", value_parser = value::share)]
    min_importance: Option<f32>,
    /// Only notes with such a field of metadata, which [metadata] declares: lang=de, tags=bug,ui (one of them),
    /// priority>=3, seen (any value), !seen (none); all of them, if given more than once
    #[arg(long = "where", value_name = "CONDITION")]
    conditions: Vec<String>,
    /// Search by meaning alone, by keyword alone, or by both
    #[arg(long, value_enum, default_value_t = By::Hybrid)]
    by: By,
    /// Keep the order of the fused score, although search.rerank is set
    #[arg(long)]
    no_rerank: bool,
}

pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let context = wiring::search_pipeline(config).await?;
    let source = args.source.clone();
    let fields = [
        ("tenant_id", args.tenant),
        ("project_id", args.project),
        ("agent_id", args.agent),
        ("scope", args.scope),
        ("type", args.kind),
        ("source", args.source),
    ];
    let keywords: BTreeMap<String, String> = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
    let declared = match args.conditions.is_empty() {
        true => Declared::new(),
        false => context.serving.store.declared_fields().await?,
    };
    let conditions = args.conditions.iter();
    let conditions = conditions.map(|text| metadata::of_argument(text, &declared));
    let fields = conditions.collect::<Result<Conditions, String>>();
    let filter = Filter {
        fields: fields.map_err(|problem| anyhow::anyhow!("--where: {problem}"))?,
        keywords,
        updated_after: args.updated_after,
        updated_before: args.updated_before,
        min_importance: args.min_importance,
        ..Filter::default()
    };
    let searcher = wiring::searcher(&context, config).await?;
    let request = Request {
        text: args.query,
        by: args.by,
        filter,
        limit: args.limit.into(),
        rerank: !args.no_rerank,
    };
    let answer = searcher.search(&request).await?;
    for missing in &answer.degraded {
        let without = match missing.code {
            Missing::QueryVector => "found by keyword alone",
            Missing::Index => "Postgres searched the newest notes instead of the index",
            Missing::Rerank => "in the order of the fused score",
        };
        let reason = &missing.reason;
        tracing::warn!(reason, "degraded search: {without}");
    }
    let none = match config.search.min_relevance > 0.0 {
        true => "nothing found, or all hits are below search.min_relevance",
        false => "nothing found",
    };
    let none = match source {
        Some(source)
            if answer.items.is_empty() && !is_source(&context.serving.store, &source).await? =>
        {
            format!("{none}: there is no source {source}; `elf source list` has them")
        }
        _ => none.to_owned(),
    };
    out.report(&answer, |answer| {
        match (answer.nothing_near, answer.items.is_empty()) {
            (_, true) => none,
            (true, false) => format!("nothing near, only weak hits\n{}", lines(&answer.items)),
            (false, false) => lines(&answer.items),
        }
    })
}

/// Whether notes may have this source: a table, or a folder.
async fn is_source(store: &Store, name: &str) -> anyhow::Result<bool> {
    let folders = store.folders().await?;
    let is_folder = folders.iter().any(|(folder, _)| folder == name);
    Ok(is_folder || store.source_counts().await?.contains_key(name))
}

/// One paragraph per hit, for a terminal: its name and scores, and its passage with the words of the query in bold.
pub fn lines(items: &[Item]) -> String {
    let hit = |(i, item): (usize, &Item)| {
        let id = item.note_id.to_string();
        let row = item
            .note
            .source
            .as_deref()
            .zip(item.note.source_id.as_deref());
        let row = row.map(|(source, id)| format!("{source} {id}"));
        let name = item.note.key.as_deref().or(row.as_deref());
        let name = excerpt(name.unwrap_or(&id), 200);
        let title = item.note.title.as_deref().map(|title| excerpt(title, 80));
        let title = title.map(|title| format!(" ({title})")).unwrap_or_default();
        let Passage {
            start_offset,
            end_offset,
            ..
        } = item.passage;
        let sure = sure(item);
        let head = format!(
            "{:>2}. {name}{title}  bytes {start_offset}..{end_offset}  {sure}",
            i + 1
        );
        format!("{head}\n{}", indented(&marked(&item.passage)))
    };
    let hits: Vec<String> = items.iter().enumerate().map(hit).collect();
    hits.join("\n")
}

/// How sure ELF is of a hit. Among few notes it cannot say; then what both rankings say of it.
fn sure(item: &Item) -> String {
    match item.relevance {
        Some(relevance) if relevance < WEAK => format!("relevance {relevance:.2} (weak)"),
        Some(relevance) => format!("relevance {relevance:.2}"),
        None => match item.dense {
            Some(cosine) => format!("cosine {cosine:.2}, BM25 {:.1}", item.bm25),
            None => format!("BM25 {:.1}", item.bm25),
        },
    }
}

/// The passage with its highlights in bold, below the header of its table.
fn marked(passage: &Passage) -> String {
    let clean = |text: &str| text.replace([BOLD, PLAIN], "");
    let header = passage.table_header.iter();
    let mut marked: String = header.map(|header| clean(header) + "\n").collect();
    let mut from = 0;
    for Highlight {
        start_offset,
        end_offset,
    } in &passage.highlights
    {
        let [start, end] = [start_offset, end_offset].map(|at| at - passage.start_offset);
        marked.push_str(&clean(&passage.text[from..start]));
        marked.push(BOLD);
        marked.push_str(&clean(&passage.text[start..end]));
        marked.push(PLAIN);
        from = end;
    }
    marked.push_str(&clean(&passage.text[from..]));
    marked
}

/// A text as indented lines of at most [`LINE`] characters, between words. The lines of prose are wrapped anew; those of
/// lists, tables and code stay.
fn indented(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    let mut before = "";
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = is_fence(line);
        let goes_on = !is_code && !is_fence && is_wrapped(before, line);
        is_code ^= is_fence;
        before = line;
        if !goes_on && width > 0 {
            width = 0;
            lines.push('\n');
        }
        for word in line.split_whitespace() {
            let word: String = word.chars().filter(|c| !c.is_control()).collect();
            let shown = characters(&word);
            if width > 0 && width + 1 + shown > LINE {
                lines.push('\n');
                width = 0;
            }
            match width {
                0 => lines.push_str("    "),
                _ => lines.push(' '),
            }
            lines.push_str(&word);
            width += usize::from(width > 0) + shown;
        }
    }
    lines.trim_end_matches('\n').to_owned()
}

/// Characters that are seen.
fn characters(text: &str) -> usize {
    text.chars().filter(|c| ![BOLD, PLAIN].contains(c)).count()
}

fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("```") || line.starts_with("~~~")
}

/// Whether a line goes on from the one before, which prose filled.
fn is_wrapped(before: &str, line: &str) -> bool {
    const FILLED: usize = 50;
    let line = line.trim_start().trim_start_matches(BOLD);
    let before = before.trim_start();
    let is_item = line.starts_with(['-', '*', '+', '|', '#', '>', '<'])
        || line.starts_with(|c: char| c.is_ascii_digit());
    !line.is_empty() && !is_item && !before.starts_with(['|', '#']) && characters(before) >= FILLED
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::search::Context;
    use crate::store::FoundNote;

    #[test]
    fn neither_key_nor_text_steers_the_terminal() {
        let item = Item {
            note_id: Uuid::nil(),
            chunk_id: Uuid::nil(),
            note: FoundNote {
                key: Some("red\u{1b}[31m".into()),
                title: Some("grey\u{1b}[37m".into()),
                ..FoundNote::default()
            },
            chunk_index: 0,
            start_offset: 0,
            end_offset: 5,
            score: 0.5,
            dense: Some(0.4),
            bm25: 0.0,
            relevance: Some(0.1),
            rerank: None,
            passage: Passage {
                start_offset: 0,
                end_offset: 17,
                text: "blue\u{1b}[34m\r\nnight".into(),
                table_header: Some("night\u{1b}".into()),
                highlights: vec![Highlight {
                    start_offset: 0,
                    end_offset: 4,
                }],
            },
            text: "blue\u{1b}[34m\r\nnight".into(),
            context: Context {
                start_offset: 0,
                end_offset: 5,
                text: "blue".into(),
            },
        };
        assert_eq!(
            lines(&[item]),
            " 1. red[31m (grey[37m)  bytes 0..17  relevance 0.10 (weak)\n    night\n    \u{fdd0}blue\u{fdd1}[34m\n    night"
        );
    }

    #[test]
    fn a_long_passage_has_several_lines() {
        let lines = indented(&"word ".repeat(50));
        assert_eq!(lines.lines().count(), 3);
        assert!(lines.lines().all(|line| line.len() <= LINE + 4));
    }

    #[test]
    fn rows_items_and_code_keep_their_lines() {
        let filled = "word ".repeat(12);
        let text = format!(
            "{filled}\n{BOLD}wrapped{PLAIN}.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- item\n```sh\nls\n{filled}\nend\n```\n"
        );
        let filled = filled.trim();
        assert_eq!(
            indented(&text),
            format!(
                "    {filled} {BOLD}wrapped{PLAIN}.\n    | a | b |\n    |---|---|\n    | 1 | 2 |\n    \
                 - item\n    ```sh\n    ls\n    {filled}\n    end\n    ```"
            )
        );
    }
}
