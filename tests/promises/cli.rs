//! The program as a person or a script meets it: arguments, exit codes, streams.

#[cfg(feature = "embedded")]
mod beside;
mod configuration;
mod fields;
mod import;
mod outbox;
mod output;
mod processes;
mod sync;
mod terminal;
mod usage;

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::site::{Done, elf, run};

/// Runs `elf` in an empty folder, with an `elf.toml` if one is given.
async fn elf_with(toml: Option<&str>, args: &[&str], env: &[(&str, &str)]) -> Done {
    let folder = tempfile::tempdir().unwrap();
    if let Some(toml) = toml {
        std::fs::write(folder.path().join("elf.toml"), toml).unwrap();
    }
    let mut command = elf(folder.path());
    command.args(args).envs(env.iter().copied());
    run(command, b"").await
}

#[track_caller]
fn assert_keys(value: &Value, expected: &[&str]) {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    let found: BTreeSet<&str> = object.keys().map(String::as_str).collect();
    assert_eq!(found, expected.iter().copied().collect(), "{value}");
}

/// What `elf worker --once --json` reports.
const WORKED_KEYS: [&str; 11] = [
    "notes",
    "bytes",
    "chunks",
    "embedded",
    "tokens",
    "reused",
    "tokens_saved",
    "points",
    "failed",
    "dead",
    "seconds",
];
