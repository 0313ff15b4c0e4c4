//! Which modules of the crate a module can reach, read from the sources.
//!
//! It covers top-level modules. A file of `a` reaches `b` where it says `crate::b`, or
//! `super::b` with as many `super` as lead to the root of the crate, with or without
//! braces around it. There is no other way: the crate cannot name itself otherwise,
//! and a rename (`use crate as x`) or a glob (`use crate::*`) makes the test fail.
//! Comments do not count, and neither do unit tests at the end of a file, which are
//! not in the program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Sources by the path under `src/`: `verify/points.rs`.
pub type Sources = BTreeMap<String, String>;

/// The sources of this crate.
pub fn sources() -> Sources {
    fn add(root: &Path, folder: &Path, sources: &mut Sources) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add(root, &path, sources);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                let name = path
                    .strip_prefix(root)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                sources.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Sources::new();
    add(&root, &root, &mut sources);
    sources
}

/// Every top-level module that `from` reaches, directly or through others.
pub fn reachable(sources: &Sources, from: &[&str]) -> BTreeSet<String> {
    let modules: BTreeSet<&str> = sources.keys().map(|file| top(file)).collect();
    let mut edges: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (file, source) in sources {
        let named = named_by(file, source);
        edges.entry(top(file)).or_default().extend(named);
    }
    let mut reached = BTreeSet::new();
    let mut ahead: Vec<String> = from.iter().map(|module| (*module).to_owned()).collect();
    while let Some(module) = ahead.pop() {
        assert!(modules.contains(&*module), "there is no module {module}");
        if reached.insert(module.clone()) {
            ahead.extend(edges[&*module].iter().cloned());
        }
    }
    reached
}

/// The top-level module that a file belongs to.
fn top(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

/// How deep below the root the module of a file is: 1 for `rebuild.rs`.
fn depth(file: &str) -> usize {
    let parts = file.split('/').count();
    if file.ends_with("/mod.rs") {
        parts - 1
    } else {
        parts
    }
}

/// The top-level modules that a file names.
fn named_by(file: &str, source: &str) -> BTreeSet<String> {
    let code = code_of(file, source);
    let root = ["crate".to_owned(), vec!["super"; depth(file)].join("::")];
    let mut named = BTreeSet::new();
    for root in root {
        for (at, _) in code.match_indices(&root) {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            if code[..at].ends_with(is_name) {
                continue;
            }
            let behind = code[at + root.len()..].trim_start();
            match behind.strip_prefix("::") {
                Some(path) => named.extend(heads(file, path.trim_start())),
                // `pub(crate)`, `pub(super)`.
                None if behind.starts_with(')') => {}
                None if behind.starts_with(|c: char| c.is_alphanumeric() || c == '_')
                    && !behind.starts_with("as ") => {}
                None => panic!("{file} renames or takes the root: {root} {:.40}", behind),
            }
        }
    }
    named
}

/// The first names of a path: of `a::b` that is `a`, of `{a, b::{c, d}}` it is both.
fn heads(file: &str, path: &str) -> Vec<String> {
    let name = |text: &str| {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        let name = &text[..end.unwrap_or(text.len())];
        assert!(
            !name.is_empty(),
            "{file} takes everything or nothing: {text:.40}"
        );
        name.to_owned()
    };
    let Some(group) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let (mut heads, mut depth, mut item) = (Vec::new(), 0, String::new());
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => heads.push(std::mem::take(&mut item)),
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => item.push(c),
            _ => {}
        }
    }
    heads.push(item);
    let items = heads.iter().filter(|item| !item.trim().is_empty());
    items.map(|item| name(item)).collect()
}

/// A source without comments and without the unit tests at its end.
fn code_of(file: &str, source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let is_tests = |at: usize| {
        let attributes = lines[..at].iter().rev().take_while(|l| l.starts_with('#'));
        lines[at] == "mod tests {" && attributes.clone().any(|l| *l == "#[cfg(test)]")
    };
    let tests = (0..lines.len()).find(|at| is_tests(*at));
    if let Some(tests) = tests {
        // The unit tests must be the last item: the first line that is not indented ends them.
        let mut behind = lines[tests + 1..].iter();
        let end = behind.find(|line| !line.is_empty() && !line.starts_with(' '));
        assert_eq!(end, Some(&"}"), "{file}: the tests do not end");
        assert_eq!(behind.next(), None, "{file}: something follows the tests");
    }
    let code = &lines[..tests.unwrap_or(lines.len())];
    let bare = code.iter().map(|line| line.split("//").next().unwrap());
    bare.collect::<Vec<_>>().join("\n")
}
