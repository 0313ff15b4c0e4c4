//! The chunks of a text as a page: each in a colour, with what they share and what is left out.

use elf_chunk::Span;

use crate::chunk::Split;
use crate::cli::output::counted;

const HEAD: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Chunks</title>
<style>
  body { max-width: 46em; margin: 2em auto; padding: 0 1em; font: 16px/1.6 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
  pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; }
  .even { background: #dbeafe; } .odd { background: #dcfce7; } .both { background: #fde68a; }
  .out { color: #767676; text-decoration: line-through; }
  .heading { font-weight: 700; }
  .parent { display: block; margin-top: 1em; border-top: 2px solid #888; font-size: 12px; }
  .cut { display: block; margin-top: .6em; font-size: 12px; color: #555; }
</style>
"#;

/// What a part of the text is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part<'t> {
    text: &'t str,
    /// The chunks that hold it: none, one, or two that share it.
    chunks: Vec<usize>,
    is_heading: bool,
    is_left_out: bool,
}

/// The page. `strategy` says how the text is split.
pub fn page(text: &str, split: &Split<'_>, strategy: &str) -> String {
    let mut page = HEAD.to_owned();
    page.push_str(&format!(
        "<p>{}, {strategy}. <span class=even>A chunk</span>, <span class=odd>the next one</span>, \
         <span class=both>what both hold</span>, <span class=out>what is left out</span>.</p>\n<pre>",
        counted(split.chunks.len() as u64, "chunk", "chunks")
    ));
    let mut last = None;
    let mut last_parent = None;
    for part in parts(text, split) {
        if let Some(&chunk) = part.chunks.last()
            && last < Some(chunk)
        {
            last = Some(chunk);
            let of = split.chunks[chunk];
            if of.parent != last_parent {
                last_parent = of.parent;
                page.push_str(&of.parent.map_or_else(String::new, parent));
            }
            let lead = split.lead(&of);
            let lead = match lead.trim() {
                "" => String::new(),
                lead => format!(", lead: {}", escaped(lead)),
            };
            page.push_str(&format!(
                "<span class=cut>{chunk}: {} tokens{lead}</span>",
                of.tokens
            ));
        }
        let shade = match part.chunks[..] {
            [] if part.is_left_out => "out",
            [] => "",
            [chunk] if chunk % 2 == 0 => "even",
            [_] => "odd",
            _ => "both",
        };
        let heading = if part.is_heading { " heading" } else { "" };
        let text = escaped(part.text);
        page.push_str(&format!("<span class=\"{shade}{heading}\">{text}</span>"));
    }
    page.push_str("</pre>\n</html>\n");
    page
}

/// The line above the first chunk of a parent.
fn parent(Span { start, end }: Span) -> String {
    format!("<span class=parent>parent, bytes {start} to {end}</span>")
}

/// The text in parts that are of one kind each.
fn parts<'t>(text: &'t str, split: &Split<'_>) -> Vec<Part<'t>> {
    let chunks = split.chunks.iter().map(|chunk| [chunk.start, chunk.end]);
    let left_out = split.excluded.iter().map(|part| [part.start, part.end]);
    let left_out: Vec<[usize; 2]> = left_out.collect();
    let headings = split
        .headings
        .iter()
        .map(|heading| [heading.start, heading.end]);
    let headings: Vec<[usize; 2]> = headings.collect();
    let bounds = chunks.chain(left_out.clone()).chain(headings.clone());
    let bounds = bounds.flatten();
    let mut bounds: Vec<usize> = bounds.chain([0, text.len()]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    // Chunks overlap, so more than the last one may hold a part.
    let mut first = 0;
    let part = |bounds: &[usize]| {
        let (start, end) = (bounds[0], bounds[1]);
        let holds = |from: usize, to: usize| from <= start && end <= to;
        while split
            .chunks
            .get(first)
            .is_some_and(|chunk| chunk.end <= start)
        {
            first += 1;
        }
        let open = split.chunks.iter().enumerate().skip(first);
        let open = open.take_while(|(_, chunk)| chunk.start <= start);
        Part {
            text: &text[start..end],
            chunks: open
                .filter(|(_, chunk)| holds(chunk.start, chunk.end))
                .map(|(index, _)| index)
                .collect(),
            is_heading: is_in(&headings, start),
            is_left_out: is_in(&left_out, start),
        }
    };
    bounds.windows(2).map(part).collect()
}

/// Whether one of these ranges, which are in order, holds a position.
fn is_in(ranges: &[[usize; 2]], position: usize) -> bool {
    let behind = ranges.partition_point(|[start, _]| *start <= position);
    behind > 0 && position < ranges[behind - 1][1]
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
