//! What a command prints: lines for people, or one JSON value.

use std::io::{IsTerminal, Write};

use serde::Serialize;

/// How a command was asked to report.
#[derive(Clone, Copy)]
pub struct Output {
    /// One JSON value on stdout instead of lines.
    pub json: bool,
}

impl Output {
    /// Prints `value` as JSON, or what `lines` makes of it.
    pub fn report<T: Serialize>(
        self,
        value: &T,
        lines: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let text = if self.json {
            serde_json::to_string(value)?
        } else {
            lines(value)
        };
        print(&text)
    }
}

/// Writes to stdout, where a reader that has seen enough (`| head`) is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    match writeln!(std::io::stdout().lock(), "{text}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Whether a person watches stderr, so that a progress bar makes sense.
pub fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// The first `max` characters of a text on one line.
pub fn excerpt(text: &str, max: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Control characters of a note are not this terminal's to obey.
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
