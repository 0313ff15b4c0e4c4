//! Every block of the README and of the guide does what it says.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sqlx::AssertSqlSafe;

use crate::support::docs::{guide_blocks, shell};
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

#[cfg(all(feature = "embedded", feature = "local"))]
#[tokio::test]
async fn the_commands_of_readme_and_guide_work_in_their_order() {
    let site = fresh().await;
    let mut said = Vec::new();
    for block in guide_blocks("sh") {
        let done: crate::support::site::Done = run(shell(&site, &block), b"").await;
        assert_eq!(done.code, Some(0), "{block}\n{done:?}");
        said.push(done.stdout);
    }
    let said = said.join("\n");
    // By meaning, by exact word, and with a filter.
    let by_meaning = said.find(" 1. key.md").expect("the key is found first");
    let by_word = said.find(" 1. gauge.md").expect("the gauge is found first");
    assert!(by_meaning < by_word, "{said}");
    assert!(
        said.contains("\"text\":\"Feed the rye starter at six.\""),
        "{said}"
    );
    assert!(said.contains("no dead letters"), "{said}");
}

#[tokio::test]
async fn the_configurations_of_the_guide_are_right() {
    let site = fresh().await;
    for (i, block) in guide_blocks("toml").into_iter().enumerate() {
        site.write(&format!("{i}.toml"), &block);
        let done = run(shell(&site, &format!("elf -c {i}.toml config check")), b"").await;
        assert_eq!(done.code, Some(0), "{block}\n{done:?}");
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("elf.toml.example");
    site.write("elf.toml", std::fs::read(example).unwrap());
    run(shell(&site, "elf config check"), b"").await.exits(0);
}

#[tokio::test]
async fn the_statements_of_the_documentation_work() {
    let site = Site::start().await;
    let mut db = site.connect().await;
    for block in guide_blocks("sql") {
        let done = sqlx::raw_sql(AssertSqlSafe(block.clone()))
            .execute(&mut db)
            .await;
        assert!(done.is_ok(), "{block}\n{done:?}");
    }
}

#[tokio::test]
async fn the_python_of_the_guide_compiles() {
    let site = fresh().await;
    for (i, block) in guide_blocks("python").into_iter().enumerate() {
        site.write(&format!("{i}.py"), &block);
        let done = run(shell(&site, &format!("python3 -m py_compile {i}.py")), b"").await;
        assert_eq!(done.code, Some(0), "{block}\n{done:?}");
    }
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
