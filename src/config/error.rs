//! What is wrong with a configuration, for the person who writes it.

use std::fmt;
use std::path::PathBuf;

/// Why there is no configuration. The process ends with exit code 78.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is no file.
    #[error(
        "no configuration at {}: name one with -c FILE or ELF_CONFIG, or copy elf.toml.example to elf.toml",
        path.display()
    )]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file cannot be read.
    #[error("failed to read the configuration {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file says something that ELF cannot do. One line per problem.
    #[error("{}", lines(origin, problems))]
    Invalid {
        /// What the file is called.
        origin: String,
        /// All of them, in the order of lines.
        problems: Vec<Problem>,
    },
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line that it is about, from 1; `None` when something is missing.
    pub line: Option<usize>,
    /// Dotted, `chunking.max_tokens`; empty when the file is not TOML.
    pub key: String,
    /// What is wrong and what to write instead. Never the value of a secret.
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
