//! Every block of the README and of the guide does what it says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sqlx::AssertSqlSafe;

use crate::support::docs::{all_blocks, shell, user_pages};
use crate::support::harness::model;
use crate::support::site::{Site, run};

/// The state at the start of the README: a model, and no `elf.toml` yet.
async fn fresh() -> Site {
    let site = Site::empty().await;
    std::fs::remove_file(site.path("elf.toml")).unwrap();
    std::fs::create_dir_all(site.path(".elf/models")).unwrap();
    let model = std::fs::canonicalize(model()).unwrap();
    std::os::unix::fs::symlink(model, site.path(".elf/models/all-MiniLM-L6-v2")).unwrap();
    site
}

#[test]
fn every_block_of_the_guide_is_of_a_known_language() {
    let runs_here = ["sh", "sql", "toml", "python"];
    // Requests to the HTTP API: `http_api` runs them.
    let runs_elsewhere = ["bash"];
    // Pictures, and what needs a server or a terminal of the reader's.
    let is_shown = ["text", "console", "json"];
    let known = [&runs_here[..], &runs_elsewhere, &is_shown].concat();
    for file in user_pages() {
        for block in all_blocks(&file) {
            assert!(known.contains(&&*block.language), "{file}: {block:?}");
        }
    }
}

/// Runs the `sh` and `sql` blocks of a page in their order. Returns what the commands printed.
#[cfg(all(feature = "embedded", feature = "local"))]
async fn follow(site: &Site, file: &str) -> String {
    let mut said = String::new();
    for crate::support::docs::Block { language, text, .. } in all_blocks(file) {
        match language.as_str() {
            "sh" => {
                let done: crate::support::site::Done = run(shell(site, &text), b"").await;
                assert_eq!(done.code, Some(0), "{file}: {text}\n{done:?}");
                said += &done.stdout;
            }
            "sql" => {
                let mut db = site.connect().await;
                let done = sqlx::raw_sql(AssertSqlSafe(text.clone()))
                    .execute(&mut db)
                    .await;
                assert!(done.is_ok(), "{file}: {text}\n{done:?}");
            }
            _ => {}
        }
    }
    said
}

#[cfg(all(feature = "embedded", feature = "local"))]
#[tokio::test]
async fn the_commands_of_the_readme_work_in_their_order() {
    let site = fresh().await;
    let said = follow(&site, "README.md").await;
    assert!(said.contains(" 1. tickets 1 (Spare key)"), "{said}");
    assert!(said.contains("secret  elf_"), "{said}");
}

#[cfg(all(feature = "embedded", feature = "local"))]
#[tokio::test]
async fn the_guide_works_from_its_first_page_to_its_last() {
    let site = fresh().await;
    let mut said = std::collections::HashMap::new();
    for file in user_pages() {
        if file != "README.md" {
            said.insert(file.clone(), follow(&site, &file).await);
        }
    }
    let shows_in_order = |page: &str, hits: &[&str]| {
        let mut rest = &said[&format!("docs/guide/{page}.md")][..];
        for hit in hits {
            let at = rest.find(hit);
            let at = at.unwrap_or_else(|| panic!("{page}: no {hit:?} in {rest}"));
            rest = &rest[at + hit.len()..];
        }
    };
    // By meaning, then by exact word.
    shows_in_order("install", &[" 1. key.md", " 1. gauge.md", " 0 dead"]);
    // What SQL wrote in tenant acme, and with a filter.
    shows_in_order(
        "write",
        &[
            " 1. kickoff",
            "\"text\":\"Feed the rye starter at six.\"",
            "no dead letters",
        ],
    );
    shows_in_order("search", &[" 1. key.md", " 1. gauge.md"]);
    shows_in_order("http", &["secret  elf_"]);
    shows_in_order("changes", &[" 1. key.md"]);
}

#[tokio::test]
async fn the_configurations_of_the_guide_are_right() {
    let site = fresh().await;
    let mut checked = 0;
    for file in user_pages() {
        for block in all_blocks(&file).iter().filter(|b| b.language == "toml") {
            checked += 1;
            site.write("page.toml", &block.text);
            let done = run(shell(&site, "elf -c page.toml config check"), b"").await;
            assert_eq!(done.code, Some(0), "{file}: {}\n{done:?}", block.text);
        }
    }
    assert!(checked > 4, "only {checked} configurations");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("elf.toml.example");
    site.write("elf.toml", std::fs::read(example).unwrap());
    run(shell(&site, "elf config check"), b"").await.exits(0);
}

#[tokio::test]
async fn the_statements_of_the_documentation_work() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    let mut executed = 0;
    for file in user_pages() {
        for block in all_blocks(&file).iter().filter(|b| b.language == "sql") {
            executed += 1;
            let done = sqlx::raw_sql(AssertSqlSafe(block.text.clone()))
                .execute(&mut db)
                .await;
            assert!(done.is_ok(), "{file}: {}\n{done:?}", block.text);
        }
    }
    assert!(executed > 2, "only {executed} blocks of SQL");
}

#[tokio::test]
async fn the_python_of_the_guide_compiles() {
    let site = fresh().await;
    let mut compiled = 0;
    for file in user_pages() {
        for block in all_blocks(&file).iter().filter(|b| b.language == "python") {
            compiled += 1;
            site.write("page.py", &block.text);
            let done = run(shell(&site, "python3 -m py_compile page.py"), b"").await;
            assert_eq!(done.code, Some(0), "{file}: {}\n{done:?}", block.text);
        }
    }
    assert!(compiled > 0, "no Python");
}

#[test]
fn every_test_that_the_guarantees_name_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/inside/guarantees.md")).unwrap();
    let mut sources = String::new();
    read_all(&root.join("tests"), &mut sources);
    // A name of four words and more between backticks is a test's.
    let named: Vec<&str> = page
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.matches('_').count() >= 3 && !name.contains(['.', '/', ' ']))
        .collect();
    assert!(named.len() > 60, "only {} tests are named", named.len());
    let missing: Vec<&str> = named
        .into_iter()
        .filter(|name| !sources.contains(&format!("fn {name}(")))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Files by their path, and by their name alone where a reader knows the folder: tests and
/// statements.
#[test]
fn every_file_that_the_guarantees_name_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/inside/guarantees.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let linked = page
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split([')', '#']).next());
    let names: BTreeSet<&str> = quoted
        .chain(linked)
        .filter(|name| {
            name.ends_with(['/'])
                || name.ends_with(".rs")
                || name.ends_with(".sql")
                || name.ends_with(".md")
        })
        .filter(|name| !name.contains(' '))
        .collect();
    assert!(names.len() > 40, "only {} files are named", names.len());
    let mut files = Vec::new();
    for folder in ["tests", "sql"] {
        list_all(&root.join(folder), &mut files);
    }
    let is_there = |name: &&str| {
        root.join(name).exists()
            || root.join("docs/inside").join(name).exists()
            || files
                .iter()
                .any(|file| file.ends_with(name.trim_end_matches('/')))
    };
    let missing: Vec<&str> = names.into_iter().filter(|name| !is_there(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

fn list_all(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list_all(&path, into);
        }
        into.push(path);
    }
}

fn read_all(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push_str(&std::fs::read_to_string(path).unwrap());
        }
    }
}
