//! The real components that tests need: a Qdrant server, a browser, Prometheus, a small disk.

use std::io::Write;
use std::path::Path;

/// Records that a test ran on `component`.
pub fn met(component: &str) {
    record(&format!("met {component}\n"));
}

/// Says, past the test harness's capture, that `test` is skipped, and records it. With
/// `ELF_REQUIRE=all`, or with the component named there, the test fails instead.
pub fn missing(component: &str, test: &str, reason: &str) {
    let required = std::env::var("ELF_REQUIRE").unwrap_or_default();
    let is_required = required
        .split(',')
        .any(|name| name == "all" || name == component);
    assert!(!is_required, "{test}: ELF_REQUIRE={required}, and {reason}");
    record(&format!("skipped {component} {test}\n"));
    let line = format!("{test}: skipped, {reason}\n");
    std::io::stderr()
        .write_all(line.as_bytes())
        .expect("stderr");
}

/// `.ci/run` sums the lines up.
fn record(line: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf");
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("components.txt"))
        .expect("a file");
    file.write_all(line.as_bytes()).expect("a line");
}
