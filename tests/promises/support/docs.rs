//! Pages of the documentation, and what stands in their fenced blocks.

use std::path::Path;

use tokio::process::Command;

use super::site::Site;

/// A fenced block.
#[derive(Debug, Clone)]
pub struct Block {
    /// What stands behind the opening fence.
    pub language: String,
    /// The `##` heading that it is under; empty before the first one.
    pub section: String,
    /// Its lines.
    pub text: String,
}

/// A file of the repository.
pub fn page(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    std::fs::read_to_string(path).unwrap()
}

/// Every fenced block of a page, in order.
pub fn all_blocks(file: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut section = String::new();
    let mut open: Option<Block> = None;
    for line in page(file).lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                open = Some(Block {
                    language: language.to_owned(),
                    section: section.clone(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    section = heading.to_owned();
                }
            }
        }
    }
    assert!(open.is_none(), "a block of {file} does not end");
    found
}

/// The README, and the pages of the guide in the order of `docs/SUMMARY.md`.
pub fn user_pages() -> Vec<String> {
    let summary = page("docs/SUMMARY.md");
    let links = summary.split("](").skip(1);
    let guide = links
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| target.starts_with("guide/"))
        .map(|target| format!("docs/{target}"));
    let pages: Vec<String> = ["README.md".to_owned()].into_iter().chain(guide).collect();
    assert!(pages.len() > 6, "{pages:?}");
    pages
}

/// The contents of every fenced block of `language`, in order.
pub fn blocks(file: &str, language: &str) -> Vec<String> {
    let found: Vec<String> = all_blocks(file)
        .into_iter()
        .filter(|block| block.language == language)
        .map(|block| block.text)
        .collect();
    assert!(!found.is_empty(), "{file} has no block of {language}");
    found
}

/// A shell command in the folder of `site`, as a reader of a page has it: `elf` on the
/// path, `DATABASE_URL` set.
pub fn shell(site: &Site, script: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_elf"));
    let old = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{old}", program.parent().unwrap().display());
    let mut command = Command::new("sh");
    command
        .args(["-euc", script])
        .current_dir(site.folder.path())
        .env("PATH", path)
        .env("DATABASE_URL", site.database.url())
        .env("OPENAI_API_KEY", "sk-test")
        .env_remove("ELF_CONFIG")
        .env_remove("RUST_LOG")
        .kill_on_drop(true);
    command
}
