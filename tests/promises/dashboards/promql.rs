//! Parses enough of PromQL to find the metrics and labels of an expression, and to query
//! the data that an alert compares.
//!
//! `promql-parser` would save 130 lines. It brings 14 crates, and its features of chrono and regex make
//! `make test` compile sqlx a second time: two minutes.

use std::iter::Peekable;

/// A metric and its label matchers.
#[derive(Debug)]
pub struct Selector {
    pub metric: String,
    pub matchers: Vec<Matcher>,
}

/// A label, and the text that it is compared with.
#[derive(Debug)]
pub struct Matcher {
    pub label: String,
    pub text: String,
}

/// The metrics and labels of an expression.
#[derive(Debug, Default)]
pub struct Spoken {
    pub selectors: Vec<Selector>,
    /// Labels after `by`, `on` and their like.
    pub grouping: Vec<String>,
}

const WITH_LABELS: &[&str] = &[
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
const SET_OPERATORS: &[&str] = &["and", "or", "unless"];
const COMPARISONS: &[&str] = &["==", "!=", ">", "<", ">=", "<="];

/// Words with their colons, numbers, texts in quotes, ranges in brackets, symbols.
fn tokens(expression: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
        let length = if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            end.expect("a text ends") + 2
        } else if first == '[' {
            rest.find(']').expect("a range ends") + 1
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if ["==", "!=", ">=", "<=", "=~", "!~"]
            .iter()
            .any(|o| rest.starts_with(o))
        {
            2
        } else {
            first.len_utf8()
        };
        found.push(&rest[..length]);
        rest = rest[length..].trim_start();
    }
    found
}

/// The metrics of an expression, and the labels that it groups by.
pub fn spoken(expression: &str) -> Spoken {
    let mut spoken = Spoken::default();
    let mut tokens = tokens(expression).into_iter().peekable();
    while let Some(token) = tokens.next() {
        let next = tokens.peek().copied().unwrap_or_default();
        let is_name = token.starts_with(|c: char| c.is_ascii_alphabetic());
        if WITH_LABELS.contains(&token) {
            if next == "(" {
                spoken.grouping.extend(labels(&mut tokens));
            }
        } else if is_name
            // Neither a function nor an aggregation.
            && next != "("
            && !["by", "without"].contains(&next)
            && !SET_OPERATORS.contains(&token)
            && !["bool", "offset"].contains(&token)
        {
            let matchers = if next == "{" {
                matchers(&mut tokens)
            } else {
                Vec::new()
            };
            spoken.selectors.push(Selector {
                metric: token.to_owned(),
                matchers,
            });
        }
    }
    spoken
}

fn labels<'a>(tokens: &mut Peekable<impl Iterator<Item = &'a str>>) -> Vec<String> {
    tokens
        .by_ref()
        .take_while(|token| *token != ")")
        .filter(|token| !["(", ","].contains(token))
        .map(str::to_owned)
        .collect()
}

fn matchers<'a>(tokens: &mut Peekable<impl Iterator<Item = &'a str>>) -> Vec<Matcher> {
    let inside: Vec<&str> = tokens.by_ref().take_while(|token| *token != "}").collect();
    let split = inside[1..].split(|token| *token == ",");
    split
        .map(|parts| match parts {
            [label, _, text] => Matcher {
                label: (*label).to_owned(),
                text: text.trim_matches('"').to_owned(),
            },
            _ => panic!("not a matcher: {parts:?}"),
        })
        .collect()
}

/// The sides of `and`, `or` and `unless`, as expressions that have data whether the alert
/// fires or not. A comparison answers 0 or 1 instead of filtering, `absent` becomes a
/// count, and offsets are removed.
pub fn sides(expression: &str) -> Vec<String> {
    sides_of(&tokens(expression))
}

fn sides_of(tokens: &[&str]) -> Vec<String> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (i, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "{" => depth += 1,
            ")" | "}" => depth -= 1,
            word if depth == 0 && SET_OPERATORS.contains(&word) => {
                found.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    found.push(&tokens[start..]);
    let alone = found.len() == 1;
    found
        .into_iter()
        .flat_map(|side| match without_matching(side) {
            ["(", inner @ .., ")"] if closes_at_end(inner) => sides_of(inner),
            side if alone => vec![answering(side)],
            side => sides_of(side),
        })
        .collect()
}

/// Without the `on (…)` that belongs to the operator before.
fn without_matching<'a, 'b>(side: &'a [&'b str]) -> &'a [&'b str] {
    match side {
        ["on" | "ignoring", rest @ ..] => {
            let end = rest.iter().position(|token| *token == ")").unwrap();
            &rest[end + 1..]
        }
        side => side,
    }
}

/// Whether the parenthesis before `inner` is closed by the one after it.
fn closes_at_end(inner: &[&str]) -> bool {
    let mut depth = 0;
    inner.iter().all(|token| {
        match *token {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => {}
        }
        depth >= 0
    })
}

fn answering(side: &[&str]) -> String {
    let mut said = Vec::new();
    let mut in_braces = false;
    let mut tokens = side.iter();
    while let Some(token) = tokens.next() {
        match *token {
            "offset" => {
                tokens.next();
                continue;
            }
            "absent" => said.push("count"),
            other => said.push(other),
        }
        in_braces = *token == "{" || in_braces && *token != "}";
        if !in_braces && COMPARISONS.contains(token) {
            said.push("bool");
        }
    }
    said.join(" ")
}

#[test]
fn an_expression_is_read_as_prometheus_reads_it() {
    let spoken = spoken(
        r#"1 - sum by (job) (rate(a_bucket{le=~"30(\\.0)?", x!="y"}[5m])) / b:c:d and on (job) e offset 2d"#,
    );
    let metrics: Vec<&str> = spoken.selectors.iter().map(|s| &*s.metric).collect();
    assert_eq!(metrics, ["a_bucket", "b:c:d", "e"]);
    let matchers = &spoken.selectors[0].matchers;
    assert_eq!(
        (&*matchers[0].label, &*matchers[0].text),
        ("le", r"30(\\.0)?")
    );
    assert_eq!((&*matchers[1].label, &*matchers[1].text), ("x", "y"));
    assert_eq!(spoken.grouping, ["job", "job"]);
}

#[test]
fn an_alert_is_split_into_its_sides() {
    let alert = r#"max by (a) (b{c!="d"}) > 2 * 3 and (e == 1 or absent(f)) unless on (a) (g) + (h offset 2d) == 0"#;
    assert_eq!(
        sides(alert),
        [
            r#"max by ( a ) ( b { c != "d" } ) > bool 2 * 3"#,
            "e == bool 1",
            "count ( f )",
            "( g ) + ( h ) == bool 0",
        ]
    );
}
