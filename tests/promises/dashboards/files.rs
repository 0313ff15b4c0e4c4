//! The dashboard and the rules, read from `deploy/`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// A rule that records or alerts. Its texts are without the line breaks of the file.
#[derive(Debug)]
pub struct Rule {
    pub name: String,
    pub is_alert: bool,
    pub expression: String,
    text: String,
}

/// An expression with its place.
#[derive(Debug)]
pub struct Expression {
    pub place: String,
    pub text: String,
    /// The template of the legend.
    pub legend: String,
}

/// A path from the root of the repository.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// A file of the repository.
#[track_caller]
pub fn read(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The YAML files of a folder, in the order of their names.
pub fn yaml_files(folder: &str) -> Vec<String> {
    let mut files: Vec<String> = std::fs::read_dir(path(folder))
        .unwrap()
        .map(|entry| {
            let name = entry.unwrap().file_name();
            format!("{folder}/{}", name.to_str().unwrap())
        })
        .collect();
    files.sort();
    assert!(!files.is_empty() && files.iter().all(|file| file.ends_with(".yml")));
    files
}

/// The rules. This reads YAML as these files are written, not all that YAML may be;
/// Prometheus is asked whether it has read the same.
pub fn rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for file in yaml_files("deploy/prometheus/rules") {
        for line in read(&file).lines() {
            let words = line.trim_start();
            if words.starts_with('#') {
                continue;
            }
            let start = words
                .strip_prefix("- alert: ")
                .or(words.strip_prefix("- record: "));
            if let Some(name) = start {
                rules.push(Rule {
                    name: name.to_owned(),
                    is_alert: words.starts_with("- alert"),
                    expression: String::new(),
                    text: String::new(),
                });
            } else if words.starts_with("- name: ") {
                // A group begins; the lines up to its first rule belong to no rule.
            } else if let Some(rule) = rules.last_mut() {
                rule.text.push_str(line);
                rule.text.push('\n');
            }
        }
    }
    for rule in &mut rules {
        rule.expression = rule.field("expr").expect("a rule has an expression");
    }
    rules
}

impl Rule {
    /// The value of `key:`, folded into one line.
    pub fn field(&self, key: &str) -> Option<String> {
        let mut lines = self.text.lines();
        let indent = |line: &str| line.len() - line.trim_start().len();
        let start = format!("{key}: ");
        let line = lines.find(|line| line.trim_start().starts_with(&start))?;
        let value = &line.trim_start()[start.len()..];
        if value != ">-" {
            return Some(value.to_owned());
        }
        let folded = lines
            .take_while(|next| indent(next) > indent(line))
            .map(str::trim);
        Some(folded.collect::<Vec<_>>().join(" "))
    }
}

pub fn dashboard() -> Value {
    serde_json::from_str(&read("deploy/grafana/dashboards/elf.json")).unwrap()
}

/// Its panels, rows included.
pub fn panels(dashboard: &Value) -> Vec<Value> {
    let panels = dashboard["panels"].as_array().unwrap();
    let inside = panels
        .iter()
        .flat_map(|p| p["panels"].as_array().into_iter().flatten());
    panels.iter().chain(inside).cloned().collect()
}

/// Every expression of the dashboard: of its panels and of its variables.
pub fn dashboard_expressions(dashboard: &Value) -> Vec<Expression> {
    let mut found = Vec::new();
    for panel in panels(dashboard) {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push(Expression {
                place: format!("panel {} {}", panel["id"], panel["title"]),
                text: target["expr"].as_str().unwrap().to_owned(),
                legend: target["legendFormat"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            });
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let inside = query.strip_prefix("label_values(").unwrap();
            let (selector, label) = inside.trim_end_matches(')').rsplit_once(", ").unwrap();
            found.push(Expression {
                place: format!("variable {}", variable["name"]),
                text: selector.to_owned(),
                legend: format!("{{{{{label}}}}}"),
            });
        }
    }
    found
}

/// The anchors of a page's headings.
pub fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter_map(|line| {
        let text = line.trim_start_matches('#');
        (text.len() < line.len()).then_some(text.trim())
    });
    headings
        .map(|heading| {
            let kept = heading.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}
