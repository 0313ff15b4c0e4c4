//! Errors of a configuration, worded for the operator who edits the file.

use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used. The process ends with exit code 78.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no file.
    #[error(
        "no configuration at {}: name one with -c FILE or ELF_CONFIG, or copy elf.toml.example to elf.toml",
        path.display()
    )]
    Missing {
        /// The path that was read.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The path that was read.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file has invalid settings. One line per problem.
    #[error("{}", lines(origin, problems))]
    Invalid {
        /// The name of the file in messages.
        origin: String,
        /// Every problem, in the order of lines.
        problems: Vec<Problem>,
    },
}

/// One invalid, missing or unknown setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line number, from 1; `None` when a whole section is missing.
    pub line: Option<usize>,
    /// Dotted, `chunking.max_tokens`; empty when the file is not TOML.
    pub key: String,
    /// Why it is invalid and what to write instead. Never contains the value of a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.message)
    }
}

fn lines(origin: &str, problems: &[Problem]) -> String {
    let lines: Vec<_> = problems
        .iter()
        .map(|problem| format!("{origin}:{problem}"))
        .collect();
    lines.join("\n")
}
