//! Lines that introduce what follows them, and say little without it: a title in bold, "The steps are:",
//! `<summary>`, `::: note`, a term above its definition.

use super::cuts::CutPoint;
use super::lines::{first_break, last_break};

/// A longer line says something by itself.
const MAX_BYTES: usize = 200;

/// So many in a row introduce each other; then one may end a chunk.
pub(super) const MAX_RUN: usize = 3;

/// Elements of HTML that head what follows.
const HEADS: [&str; 10] = [
    "h1", "h2", "h3", "h4", "h5", "h6", "summary", "dt", "caption", "legend",
];

/// Elements of HTML without an end.
const VOID: [&str; 8] = ["br", "hr", "img", "input", "meta", "link", "wbr", "source"];

/// Whether the line before a cut introduces the one behind it.
pub(super) fn is_intro(text: &str, cut: CutPoint) -> bool {
    let Some(line) = last_line(&text[..cut.end]) else {
        return false;
    };
    let after = &text[cut.next..];
    let next = after.as_bytes().first();
    if next == Some(&b'#') {
        return is_heading(content(line));
    }
    // The next item of the same list.
    if item_sign(after) > 0 && is_item(line) && !is_deeper(line, &text[cut.end..cut.next]) {
        return false;
    }
    let line = content(line);
    match line.as_bytes().first() {
        Some(b'<') => return is_html_intro(line) || closes_head(after),
        Some(b'#') if is_heading(line) => return true,
        Some(b'*' | b'_') if is_bold(line) => return !is_rule(after),
        Some(b':' | b'!' | b'?') if is_directive(line) => return true,
        Some(b'|') => return is_delimiter_row(line) || is_delimiter_row(first_line(after)),
        _ => {}
    }
    match next {
        Some(b':') if !line.starts_with(':') && is_definition(after) => return true,
        Some(b'<') if closes_head(after) => return true,
        _ => {}
    }
    ends_with_colon(line) && !is_rule(after)
}

/// Whether `before` ends with one short line that stands alone: above a table it is a caption.
pub(super) fn is_caption(before: &str) -> bool {
    let Some(line) = last_line(before) else {
        return false;
    };
    let above = before[..before.len() - line.len()].trim_end_matches([' ', '\t', '>', '\r']);
    let above = above.strip_suffix('\n').unwrap_or(above);
    let above = above.trim_end_matches([' ', '\t', '>', '\r']);
    above.is_empty() || above.ends_with('\n')
}

/// The last line, if it is short.
fn last_line(text: &str) -> Option<&str> {
    let from = text.ceil_char_boundary(text.len().saturating_sub(MAX_BYTES + 1));
    let start = match last_break(&text[from..]) {
        Some(at) => from + at + 1,
        None if text.len() <= MAX_BYTES => 0,
        None => return None,
    };
    let line = &text[start..];
    (!line.trim_start().is_empty()).then_some(line)
}

fn first_line(text: &str) -> &str {
    let most = &text[..text.floor_char_boundary(4 * MAX_BYTES)];
    &most[..first_break(most).unwrap_or(most.len())]
}

/// A line without the signs of quotes and of an item before it.
fn content(line: &str) -> &str {
    let line = line.trim_start_matches([' ', '\t', '>']);
    line[item_sign(line)..].trim_start()
}

/// Bytes of the sign of an item at the beginning of a line; 0 if there is none.
fn item_sign(line: &str) -> usize {
    // As CommonMark: a longer number is no sign of an item.
    let digits = line.bytes().take(10).take_while(u8::is_ascii_digit).count();
    let sign = match line.as_bytes().get(digits) {
        Some(b'-' | b'*' | b'+') if digits == 0 => 1,
        Some(b'.' | b')') if (1..=9).contains(&digits) => digits + 1,
        _ => return 0,
    };
    match line.as_bytes().get(sign) {
        Some(b' ' | b'\t') => sign,
        _ => 0,
    }
}

/// Whether more blanks stand at the end of `gap`, before the next line, than before `line`.
fn is_deeper(line: &str, gap: &str) -> bool {
    let blanks = [' ', '\t'];
    let of_line = line.len() - line.trim_start_matches(blanks).len();
    gap.len() - gap.trim_end_matches(blanks).len() > of_line
}

fn is_item(line: &str) -> bool {
    item_sign(line.trim_start_matches([' ', '\t', '>'])) > 0
}

/// Whether a line is a heading of Markdown.
fn is_heading(line: &str) -> bool {
    let title = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - title.len())) && title.starts_with([' ', '\t'])
}

/// Whether a line is bold from its beginning to its end.
fn is_bold(line: &str) -> bool {
    ["**", "__"].into_iter().any(|sign| {
        let inner = line.strip_prefix(sign).and_then(|it| it.strip_suffix(sign));
        inner.is_some_and(|inner| !inner.trim().is_empty() && !inner.contains(sign))
    })
}

/// Whether a line opens a block of a Markdown dialect: `::: note`, `!!! warning`, `??? question`.
fn is_directive(line: &str) -> bool {
    [":::", "!!!", "???"].into_iter().any(|sign| {
        let name = line
            .strip_prefix(sign)
            .map(|name| name.trim_start_matches([':', '+', ' ', '{']));
        name.is_some_and(|name| name.starts_with(char::is_alphanumeric))
    })
}

fn ends_with_colon(line: &str) -> bool {
    let closers = ['*', '_', '`', '"', '”', '»', ')', ' '];
    line.trim_end_matches(closers).ends_with([':', '：'])
}

/// Whether a text begins with a definition of the term above it.
fn is_definition(text: &str) -> bool {
    text.strip_prefix(':')
        .is_some_and(|rest| rest.starts_with([' ', '\t']))
}

/// Whether a text begins with a thematic break.
fn is_rule(text: &str) -> bool {
    let line = first_line(text).trim_end();
    let sign = line.chars().next().filter(|c| matches!(c, '-' | '*' | '_'));
    let signs = line.chars().filter(|&c| Some(c) == sign).count();
    sign.is_some() && signs >= 3 && line.chars().all(|c| Some(c) == sign || c == ' ')
}

/// Whether a line is the one below the header of a table.
pub(super) fn is_delimiter_row(line: &str) -> bool {
    line.bytes()
        .all(|byte| matches!(byte, b'|' | b'-' | b':' | b' ' | b'\t' | b'\r'))
        && line.contains('-')
        && line.contains('|')
}

/// Whether a line of HTML ends with a heading or the like, or with an element that it opens.
fn is_html_intro(line: &str) -> bool {
    let Some((_, tag)) = line
        .strip_suffix('>')
        .and_then(|line| line.rsplit_once('<'))
    else {
        return false;
    };
    let is_end = tag.starts_with('/');
    let name = name_of(tag.trim_start_matches('/'));
    match is_end {
        true => HEADS.contains(&name.as_str()),
        false => {
            let is_element = name.starts_with(|c: char| c.is_ascii_alphabetic());
            let is_address = tag.contains("://") || tag.contains('@');
            is_element && !is_address && !tag.ends_with('/') && !VOID.contains(&name.as_str())
        }
    }
}

/// Whether a text begins with the end of a heading or the like.
fn closes_head(text: &str) -> bool {
    let tag = text.strip_prefix("</");
    tag.is_some_and(|tag| HEADS.contains(&name_of(tag).as_str()))
}

fn name_of(tag: &str) -> String {
    let name = tag.split(|c: char| !c.is_ascii_alphanumeric()).next();
    name.unwrap_or_default().to_ascii_lowercase()
}
