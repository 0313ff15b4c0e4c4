//! Tables of sentences and words in fourteen languages.

use std::collections::BTreeSet;

use super::{sentences, words};

/// A case of a table.
struct Case {
    line: &'static str,
    is_known_to_fail: bool,
}

fn cases(table: &'static str) -> impl Iterator<Item = Case> {
    let lines = table
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| match line.strip_prefix("x ") {
        Some(line) => Case {
            line,
            is_known_to_fail: true,
        },
        None => Case {
            line,
            is_known_to_fail: false,
        },
    })
}

#[test]
fn sentences_end_where_the_table_says() {
    for case in cases(include_str!("../cases/sentences.txt")) {
        let text = case.line.replace(" ¦ ", " ").replace('¦', "");
        let expected: Vec<&str> = case.line.split('¦').map(str::trim).collect();
        let found = sentences(&text).into_iter().map(|at| &text[at]);
        let found: Vec<&str> = found.collect();
        assert_eq!(
            found != expected,
            case.is_known_to_fail,
            "{}: {found:?}",
            case.line
        );
    }
}

#[test]
fn words_end_where_the_table_says() {
    for case in cases(include_str!("../cases/words.txt")) {
        let (mut text, mut certain, mut possible) =
            (String::new(), BTreeSet::new(), BTreeSet::new());
        for c in case.line.chars() {
            match c {
                '|' => _ = certain.insert(text.len()),
                '~' => _ = possible.insert(text.len()),
                c => text.push(c),
            }
        }
        let found: BTreeSet<usize> = words(&text, 0, text.len() - 1).collect();
        let is_right = certain.is_subset(&found)
            && found
                .iter()
                .all(|at| certain.contains(at) || possible.contains(at));
        assert_eq!(!is_right, case.is_known_to_fail, "{}: {found:?}", case.line);
    }
}
