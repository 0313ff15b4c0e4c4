//! The tests run every command of the runbook, in the situation for which it is written.

mod index;
mod install;
mod machine;
mod pgbouncer;
mod storage;
mod work;

use std::path::Path;

use crate::support::docs::page;

const PAGE: &str = "docs/operate/runbook.md";

/// Alerts link to these.
const SECTIONS: [&str; 16] = [
    "Install",
    "Size",
    "Upgrade",
    "Back up and restore",
    "Qdrant lost",
    "Postgres unavailable",
    "Provider unavailable",
    "Dead letters",
    "Model change",
    "Drift",
    "Slow freshness",
    "Backlog growing",
    "Worker absent",
    "Rebuild stalled",
    "Outbox bloat",
    "PgBouncer",
];

#[test]
fn every_section_is_there_and_every_command_of_it_is_run() {
    let text = page(PAGE);
    let headings: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    assert_eq!(headings, SECTIONS);
    let tests = [
        include_str!("index.rs"),
        include_str!("install.rs"),
        include_str!("pgbouncer.rs"),
        include_str!("storage.rs"),
        include_str!("work.rs"),
    ]
    .concat();
    for section in SECTIONS {
        assert!(
            tests.contains(&format!("Section::of(\"{section}\")")),
            "nothing runs the commands of {section}"
        );
    }
}

#[test]
fn every_alert_and_every_link_leads_to_a_section() {
    let anchor = |heading: &str| heading.to_lowercase().replace(' ', "-");
    let known: Vec<String> = SECTIONS.iter().map(|s| anchor(s)).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = vec![page(PAGE).replace("](#", "](runbook.md#")];
    for entry in std::fs::read_dir(root.join("deploy/prometheus/rules")).unwrap() {
        pages.push(std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let mut links = 0;
    for text in &pages {
        for rest in text.split("runbook.md#").skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            let link = &rest[..end.unwrap_or(rest.len())];
            assert!(known.iter().any(|k| k == link), "nothing is at #{link}");
            links += 1;
        }
    }
    assert!(links > 40, "only {links} links");
}
