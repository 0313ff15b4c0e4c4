//! `docs/reference/settings.md`

use std::collections::BTreeMap;

use elf::config::{self, Setting};

use super::{assert_written, made_of};
use crate::support::docs;

const INTRODUCTION: &str = "# Settings

ELF reads one file: `-c FILE`, else `$ELF_CONFIG`, else `./elf.toml`. `elf config check` lists its problems, `elf config show` prints the settings in effect.

- Write a *secret* as it is, as `\"env:NAME\"` (an environment variable) or as `\"file:PATH\"` (the contents of a file). ELF never prints it.
- A relative path starts at the folder of the file.
- `_secs` are seconds, `_ms` milliseconds.
- `RUST_LOG` overrides `service.log_level`. With `OTEL_EXPORTER_OTLP_ENDPOINT` set, ELF sends traces there.
";

/// What `elf.toml.example` says of one key.
struct Line {
    comment: String,
    /// Behind `# default: `, for a key without a default.
    unset: Option<String>,
}

/// The comments of `elf.toml.example`: of each section, and of each key.
fn comments() -> (BTreeMap<String, String>, BTreeMap<String, Line>) {
    let (mut sections, mut keys) = (BTreeMap::new(), BTreeMap::new());
    let (mut section, mut comment) = (String::new(), Vec::new());
    for line in docs::page("elf.toml.example").lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            sections.insert(section.clone(), std::mem::take(&mut comment).join(" "));
            continue;
        }
        let text = line.trim_start_matches("# ");
        // A list of tables, of which the example has none.
        if let Some(header) = text.strip_prefix("[[") {
            section = header.trim_end_matches(']').to_owned();
            sections.insert(section.clone(), std::mem::take(&mut comment).join(" "));
            continue;
        }
        match text.split_once(" = ") {
            Some((key, value)) if !key.contains(' ') => {
                let line = Line {
                    comment: std::mem::take(&mut comment).join(" "),
                    unset: value
                        .split_once("# default: ")
                        .map(|(_, says)| says.to_owned()),
                };
                keys.insert(format!("{section}.{key}"), line);
            }
            // The first lines of the file are those of the page.
            _ if text.is_empty() => comment.clear(),
            _ => comment.push(text.trim_start_matches('#').to_owned()),
        }
    }
    (sections, keys)
}

fn page() -> String {
    let (sections, keys) = comments();
    let mut page = made_of("src/config/read.rs and elf.toml.example") + INTRODUCTION;
    let mut last = String::new();
    for setting in config::settings() {
        // A section whose names are the operator's.
        let Some((section, name)) = setting.key.rsplit_once('.') else {
            let words = setting.allowed.trim_start_matches("table of ");
            page += &format!(
                "\n## `[{}]`\n\n{} `NAME = TYPE`, one of `{words}`.\n",
                setting.key, sections[&setting.key]
            );
            continue;
        };
        if section != last {
            let header = match section {
                "sources" => "[[sources]]".to_owned(),
                one => format!("[{one}]"),
            };
            page += &format!("\n## `{header}`\n\n");
            if !sections[section].is_empty() {
                page += &format!("{}\n\n", sections[section]);
            }
            section.clone_into(&mut last);
        }
        page += &described(name, &setting, &keys[&setting.key]);
    }
    page
}

/// An item of a list.
fn described(name: &str, setting: &Setting, line: &Line) -> String {
    let allowed = match &*setting.allowed {
        // The default or the sentence says that much.
        "string" | "true, false" => String::new(),
        words if words.contains('"') => format!("`{words}`"),
        other => other.to_owned(),
    };
    let default = match (&setting.default, line.unset.as_deref()) {
        (Some(default), _) => format!("default `{default}`"),
        (None, Some("none")) => String::new(),
        (None, Some(unset)) => format!("default: {unset}"),
        (None, None) => "required".to_owned(),
    };
    let about = [allowed, default].into_iter();
    let about: Vec<String> = about.filter(|part| !part.is_empty()).collect();
    let about = match about.is_empty() {
        true => String::new(),
        false => format!(" ({})", about.join("; ")),
    };
    let says = &line.comment;
    assert!(
        !says.is_empty(),
        "elf.toml.example says nothing of {}",
        setting.key
    );
    let says = says.replace(" (secret)", "").replace(" (secret, ", " (");
    format!("- `{name}`{about}: {says}\n")
}

#[test]
fn the_page_of_settings_has_every_key_with_its_default_and_its_range() {
    assert_written("docs/reference/settings.md", &page());
}
