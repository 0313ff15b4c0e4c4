//! What the parser of Markdown reads: the text, or one of the same length in which it finds the same blocks as a reader.
//!
//! - Blocks are nested no deeper than `depth` allows.
//! - Display math is one line of letters: it is neither cut nor has headings in it.
//! - A table whose rows have no outer pipes begins below a line of text too: its header gets a pipe.

use std::borrow::Cow;

use super::depth;
use super::intros::is_delimiter_row;
use super::outline::Span;

pub(super) fn masked<'t>(text: &'t str, math: &[Span]) -> Cow<'t, str> {
    let mut masked = depth::bounded(text);
    let mut replace = |start: usize, letters: String| {
        let end = start + letters.len();
        masked.to_mut().replace_range(start..end, &letters);
    };
    for block in math {
        let lines = text[block.start..block.end].trim_start();
        replace(block.end - lines.len(), "x".repeat(lines.len()));
    }
    for header in headers_below_text(text) {
        replace(
            header.start,
            format!("|{}", "x".repeat(header.end - header.start - 1)),
        );
    }
    masked
}

/// The first character of each header of a table without an outer pipe that stands below a line of text.
fn headers_below_text(text: &str) -> Vec<Span> {
    let mut found = Vec::new();
    let (mut above, mut header) = ("", "");
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if is_delimiter_row(line.trim_end()) && is_bare_row(header) && is_text(above) {
            let begin = start - header.len();
            let indent = header.len() - header.trim_start_matches(' ').len();
            let first = header[indent..].chars().next().map_or(0, char::len_utf8);
            found.push(Span {
                start: begin + indent,
                end: begin + indent + first,
            });
        }
        start += line.len();
        (above, header) = (header, line);
    }
    found
}

/// Whether a line is cells without an outer pipe before them, and no item or quote.
fn is_bare_row(line: &str) -> bool {
    let content = line.trim_start_matches(' ');
    let begins_word = content.starts_with(|c: char| c.is_alphabetic() || "*_`(\"".contains(c));
    content.contains('|') && begins_word && line.len() - content.len() < 4
}

fn is_text(line: &str) -> bool {
    !line.trim().is_empty() && !line.contains('|')
}
