//! The pages of `docs/reference` are what the code says. To write those that are made of it:
//! `ELF_WRITE_DOCS=1 cargo test --test promises reference::`.

mod command_line;
mod http;
mod metrics;
mod settings;
mod sql;

use std::path::Path;

/// Holds a page against the file, which it writes if that is asked for.
fn assert_written(file: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("ELF_WRITE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "{file} is not what the code says: run ELF_WRITE_DOCS=1 cargo test --test promises reference::"
    );
}

/// The first line of a page that is made of `source`.
fn made_of(source: &str) -> String {
    format!("<!-- Made of {source} by tests/promises/reference -->\n\n")
}
