//! What a command prints: lines for people, or one JSON value.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use serde::Serialize;

/// Begins and ends bold text in lines for people. Noncharacters of Unicode, so that no text needs them.
pub const BOLD: char = '\u{fdd0}';
pub const PLAIN: char = '\u{fdd1}';

/// The form of a command's report.
#[derive(Clone, Copy)]
pub struct Output {
    /// One JSON value on stdout instead of lines.
    pub json: bool,
}

impl Output {
    /// Prints `value` as JSON, or as the text that `lines` returns.
    pub fn report<T: Serialize>(
        self,
        value: &T,
        lines: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self.json {
            true => print(&serde_json::to_string(value)?),
            false => print_lines(&lines(value)),
        }
    }
}

/// Writes lines for people to stdout, what is bold in bold if that is a terminal.
pub fn print_lines(lines: &str) -> anyhow::Result<()> {
    let has_styles = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let [bold, plain] = match has_styles {
        true => ["\u{1b}[1m", "\u{1b}[0m"],
        false => ["", ""],
    };
    let escaped = escape_controls(lines);
    write(&escaped.replace(BOLD, bold).replace(PLAIN, plain))
}

/// Writes to stdout. A reader that closes the pipe early (`| head`) is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    write(&escape_controls(text))
}

fn write(text: &str) -> anyhow::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes an error or a warning to stderr.
pub fn print_error(text: &str) {
    eprintln!("{}", escape_controls(text));
}

/// Writes control characters other than line breaks and tabs as `\u001b`, which is the same
/// value in JSON. Texts, keys, file names and answers of servers come from others, and a
/// terminal would obey escape sequences in them.
fn escape_controls(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match is_obeyed(c) {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Whether stderr is a terminal, so that a progress bar makes sense.
pub fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// The first `max` characters of a text on one line.
pub fn excerpt(text: &str, max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // The terminal would obey control characters of a note.
    let mut clean: String = line
        .chars()
        .filter(|c| !c.is_control())
        .take(max + 1)
        .collect();
    if clean.chars().count() > max {
        clean.pop();
        clean.push('…');
    }
    clean
}

/// Rows below their headings. The last column is not aligned.
pub fn columns<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let characters = |text: &str| text.chars().count();
    let widths: [usize; N] = std::array::from_fn(|n| {
        let cells = rows.iter().map(|row| characters(&row[n]));
        cells.max().unwrap_or(0).max(characters(headings[n]))
    });
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths);
        let padded = cells.map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let rows = rows.iter().map(|row| row.each_ref().map(String::as_str));
    let lines = std::iter::once(headings).chain(rows).map(line);
    lines.collect::<Vec<_>>().join("\n")
}

/// A number with its noun: `1 note`, `2 notes`.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    let noun = if number == 1 { one } else { several };
    format!("{number} {noun}")
}

/// An error and its causes in one line. A cause that the message before it quotes is left out.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if said.contains(&cause) {
            continue;
        }
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&cause);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_instead_of_obeyed() {
        assert_eq!(
            escape_controls("a\u{1b}]0;b\u{7}\u{9b}31m\r\n\tc\u{7f}é"),
            "a\\u001b]0;b\\u0007\\u009b31m\\u000d\n\tc\\u007fé"
        );
        assert!(matches!(escape_controls("line\nline"), Cow::Borrowed(_)));
        let json = serde_json::to_string("\u{9b}31m\u{7f}").expect("a string is JSON");
        let read: String = serde_json::from_str(&escape_controls(&json)).expect("it still is");
        assert_eq!(read, "\u{9b}31m\u{7f}");
    }
}
