//! The promises of `elf.toml`.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod chunking;
mod file;
mod secrets;
mod values;

use super::*;

const REQUIRED: &str = r#"
[storage.postgres]
dsn = "postgres://elf:hunter2@localhost/elf"
[storage.qdrant]
url = "http://localhost:6334"
"#;

fn no_env(_: &str) -> Option<String> {
    None
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "elf.toml", &no_env).map_err(|error| error.to_string())
}

/// A valid file with `lines` added to `section`.
fn with(section: &str, lines: &str) -> Result<Config, String> {
    let header = format!("[{section}]");
    if REQUIRED.contains(&header) {
        return parse(&REQUIRED.replace(&header, &format!("{header}\n{lines}")));
    }
    parse(&format!("{REQUIRED}{header}\n{lines}"))
}

#[track_caller]
fn assert_refused(section: &str, line: &str, expected: &str) {
    let error = with(section, line).expect_err(&format!("{line} in [{section}] is taken"));
    let key = line.split(' ').next().unwrap();
    assert!(error.contains(&format!(" {section}.{key}: ")), "{error}");
    assert!(error.contains(expected), "{error}");
}
