//! Takes a TOML document key by key. `config/read.rs` asks for every key once, with its
//! default and its range; keys of the file that it never asked for are unknown. Problems are
//! collected, so that the operator sees all of them at once.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::json;
use toml::de::{DeTable, DeValue};

use super::document::{Document, Entry, Known, Unknown};
use super::value::{
    self, Int, Refusal, Surroundings, checked, in_range, integer, kind, number, one_of, quoted,
    resolve, span, string,
};
use super::{Fields, Problem, Secret};

/// What the list of settings says of a string that has no list of words.
const TEXT: &str = "string";

/// The same of a secret.
const SECRET: &str = "secret";

/// The keys of one table, and the document that they are in.
pub(super) struct Section<'s, 'd> {
    document: &'s mut Document<'d>,
    /// Dotted; empty for the document itself.
    path: String,
    /// The line of its header; `None` when the file has none.
    line: Option<usize>,
    /// The entries of the file that have not been asked for yet.
    entries: BTreeMap<String, Entry<'d>>,
}

/// Reads a whole document. `Err` holds every problem, in the order of lines.
pub(super) fn read<'d, T>(
    text: &'d str,
    surroundings: Surroundings<'d>,
    sections: impl FnOnce(&mut Section<'_, 'd>) -> T,
) -> (Result<T, Vec<Problem>>, Vec<Known>) {
    let mut document = Document::new(text, surroundings);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        // Only the syntax errors: the document is incomplete, so keys would be reported as
        // missing that are there.
        let problem = |error: &toml::de::Error| Problem {
            line: error.span().map(|span| document.line_at(span.start)),
            key: String::new(),
            message: format!("not TOML: {}", error.message()),
        };
        return (
            Err(in_order(errors.iter().map(problem).collect())),
            Vec::new(),
        );
    }
    let entries = document.entries(table.into_inner());
    let mut root = Section {
        document: &mut document,
        path: String::new(),
        line: None,
        entries,
    };
    let value = sections(&mut root);
    root.finish();
    document.explain_unknown();
    let Document {
        problems, known, ..
    } = document;
    let answer = if problems.is_empty() {
        Ok(value)
    } else {
        Err(in_order(problems))
    };
    (answer, known)
}

/// Sorts by lines; problems without a line come last.
fn in_order(mut problems: Vec<Problem>) -> Vec<Problem> {
    problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
    problems
}

impl<'d> Section<'_, 'd> {
    /// A table below this one.
    pub fn section<T>(&mut self, name: &str, keys: impl FnOnce(&mut Section<'_, 'd>) -> T) -> T {
        let path = self.path_of(name);
        let (line, entries) = match self.entries.remove(name) {
            None => (None, BTreeMap::new()),
            Some(Entry {
                line,
                value: DeValue::Table(table),
            }) => (Some(line), self.document.entries(table)),
            Some(Entry { line, value }) => {
                self.refuse(name, line, format!("must be a table, not {}", kind(&value)));
                (Some(line), BTreeMap::new())
            }
        };
        let mut section = Section {
            document: &mut *self.document,
            path,
            line,
            entries,
        };
        let value = keys(&mut section);
        section.finish();
        value
    }

    pub fn int<T: Int>(&mut self, name: &str, default: T, range: RangeInclusive<T>) -> T {
        self.take(name, Some(default.to_string()), span(&range), |value| {
            in_range(integer(value)?, &range)
        })
        .unwrap_or(default)
    }

    /// A whole number without a default.
    pub fn int_or_unset<T: Int>(&mut self, name: &str, range: RangeInclusive<T>) -> Option<T> {
        self.take(name, None, span(&range), |value| {
            in_range(integer(value)?, &range)
        })
    }

    /// One of these values, by its word, without a default.
    pub fn choice_or_unset<T: Copy + Serialize>(&mut self, name: &str, values: &[T]) -> Option<T> {
        self.take(name, None, quoted(values, ", "), |value| {
            one_of(string(value)?, values)
        })
    }

    pub fn float(&mut self, name: &str, default: f64, range: RangeInclusive<f64>) -> f64 {
        self.take(name, Some(format!("{default:?}")), span(&range), |value| {
            in_range(number(value)?, &range)
        })
        .unwrap_or(default)
    }

    /// A number without a default.
    pub fn float_or_unset(&mut self, name: &str, range: RangeInclusive<f64>) -> Option<f64> {
        self.take(name, None, span(&range), |value| {
            in_range(number(value)?, &range)
        })
    }

    /// `true` or `false`.
    pub fn flag(&mut self, name: &str, default: bool) -> bool {
        let flag = |value: &DeValue<'_>| {
            value
                .as_bool()
                .ok_or_else(|| format!("must be true or false, not {}", kind(value)))
        };
        self.take(name, Some(default.to_string()), "true, false".into(), flag)
            .unwrap_or(default)
    }

    /// One of `values`, by its word.
    pub fn choice<T: Copy + Serialize>(&mut self, name: &str, default: T, values: &[T]) -> T {
        let shown = Some(json!(default).to_string());
        self.take(name, shown, quoted(values, ", "), |value| {
            one_of(string(value)?, values)
        })
        .unwrap_or(default)
    }

    /// One of these words, as it is.
    pub fn word(&mut self, name: &str, default: &str, words: &[&str]) -> String {
        self.choice(name, default, words).to_owned()
    }

    /// A string that passes `check`.
    pub fn text(
        &mut self,
        name: &str,
        default: &str,
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> String {
        self.take(name, Some(format!("{default:?}")), TEXT.into(), |value| {
            checked(string(value)?, &check)
        })
        .unwrap_or_else(|| default.to_owned())
    }

    /// A string without a default.
    pub fn text_or_unset(
        &mut self,
        name: &str,
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> Option<String> {
        self.take(name, None, TEXT.into(), |value| {
            checked(string(value)?, &check)
        })
    }

    /// A required string. The error for a missing one quotes `write` as an example.
    pub fn required_text(
        &mut self,
        name: &str,
        write: &str,
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> String {
        self.report_if_missing(name, write);
        self.take(name, None, TEXT.into(), |value| {
            checked(string(value)?, &check)
        })
        .unwrap_or_default()
    }

    /// A secret: `env:NAME`, `file:PATH` or the value itself. No problem repeats the value.
    pub fn secret(
        &mut self,
        name: &str,
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> Option<Secret> {
        let surroundings = self.document.surroundings;
        self.take(name, None, SECRET.into(), |value| {
            resolve(string(value)?, surroundings, &check)
        })
    }

    /// A required secret. The error for a missing one quotes `write` as an example.
    pub fn required_secret(
        &mut self,
        name: &str,
        write: &str,
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> Secret {
        if self.document.surroundings.has_secrets {
            self.report_if_missing(name, write);
        }
        self.secret(name, check).unwrap_or_else(|| Secret::new(""))
    }

    /// A list of values, each of which `read` takes.
    pub fn list<T: Clone>(
        &mut self,
        name: &str,
        default: &[T],
        shown: String,
        allowed: String,
        read: impl Fn(&str) -> Result<T, Refusal>,
    ) -> Vec<T> {
        let values = self.take(name, Some(shown), allowed, |value| match value {
            DeValue::Array(values) => {
                let values = values.iter().map(|value| read(string(value.get_ref())?));
                values.collect()
            }
            other => Err(format!("must be a list, not {}", kind(other))),
        });
        values.unwrap_or_else(|| default.to_vec())
    }

    /// A list of some of these values, by their words.
    pub fn choices<T: Copy + Serialize>(
        &mut self,
        name: &str,
        default: &[T],
        values: &[T],
    ) -> Vec<T> {
        let allowed = format!("list of {}", quoted(values, ", "));
        self.list(name, default, "[]".into(), allowed, |word| {
            one_of(word, values)
        })
    }

    /// A list of strings that pass `check`.
    pub fn texts(
        &mut self,
        name: &str,
        default: &[String],
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> Vec<String> {
        let shown = format!("{default:?}");
        self.list(name, default, shown, "list of strings".into(), |text| {
            checked(text, &check)
        })
    }

    /// Tables of the same keys under names of the user's choice.
    pub fn sections<T>(
        &mut self,
        name: &str,
        keys: impl Fn(&mut Section<'_, 'd>) -> T,
    ) -> BTreeMap<String, T> {
        let path = self.path_of(name);
        let known = self.document.known.len();
        let tables = self.section(name, |section| {
            let names: Vec<String> = section.entries.keys().cloned().collect();
            let table = |name: String| (name.clone(), section.section(&name, &keys));
            names.into_iter().map(table).collect()
        });
        // The list of settings has the keys in the table that these override.
        let in_named = self.document.known.drain(known..);
        let in_named = in_named.map(|known| known.path);
        self.document.in_named.extend(in_named);
        self.document.known.push(Known {
            path,
            default: None,
            allowed: "table of tables".into(),
            line: None,
        });
        tables
    }

    /// A list of tables of the same keys: `[[name]]`. Without any, the keys are known all the same.
    pub fn tables<T>(&mut self, name: &str, keys: impl Fn(&mut Section<'_, 'd>) -> T) -> Vec<T> {
        let path = self.path_of(name);
        let Some(Entry { line, value }) = self.entries.remove(name) else {
            let problems = self.document.problems.len();
            keys(&mut Section {
                document: &mut *self.document,
                path,
                line: None,
                entries: BTreeMap::new(),
            });
            self.document.problems.truncate(problems);
            return Vec::new();
        };
        let DeValue::Array(values) = value else {
            let message = format!("must be tables, [[{path}]], not {}", kind(&value));
            self.refuse(name, line, message);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (at, value) in values.into_iter().enumerate() {
            let line = self.document.line_at(value.span().start);
            let DeValue::Table(table) = value.into_inner() else {
                self.refuse(name, line, format!("must be tables, [[{path}]]"));
                continue;
            };
            let entries = self.document.entries(table);
            let mut section = Section {
                document: &mut *self.document,
                path: format!("{path}[{at}]"),
                line: Some(line),
                entries,
            };
            tables.push(keys(&mut section));
            section.finish();
        }
        tables
    }

    /// A table of secrets under names of the user's choice.
    pub fn secrets(
        &mut self,
        name: &str,
        check: impl Fn(&str, &str) -> Result<(), Refusal>,
    ) -> BTreeMap<String, Secret> {
        let surroundings = self.document.surroundings;
        self.map(name, "table of secrets", |name, value| {
            resolve(string(value)?, surroundings, &|secret: &str| {
                check(name, secret)
            })
        })
    }

    /// A table of values of any kind under names of the user's choice, which pass `check`.
    pub fn fields(&mut self, name: &str, check: impl Fn(&str) -> Result<(), Refusal>) -> Fields {
        self.map(name, "table", |name, value| {
            check(name).and_then(|()| value::json(value))
        })
    }

    /// A table of words, each one of `values`, under names of the user's choice, which pass `check`.
    pub fn words<T: Copy + Serialize>(
        &mut self,
        name: &str,
        values: &[T],
        check: impl Fn(&str) -> Result<(), Refusal>,
    ) -> BTreeMap<String, T> {
        let allowed = format!("table of {}", quoted(values, ", "));
        self.map(name, &allowed, |name, value| {
            check(name).and_then(|()| one_of(string(value)?, values))
        })
    }

    /// A table under names of the user's choice.
    pub(super) fn map<T>(
        &mut self,
        name: &str,
        allowed: &str,
        read: impl Fn(&str, &DeValue<'d>) -> Result<T, Refusal>,
    ) -> BTreeMap<String, T> {
        self.document.known.push(Known {
            path: self.path_of(name),
            default: None,
            allowed: allowed.to_owned(),
            line: None,
        });
        self.section(name, |section| {
            let entries = std::mem::take(&mut section.entries);
            let mut map = BTreeMap::new();
            for (name, Entry { line, value }) in entries {
                match read(&name, &value) {
                    Ok(value) => drop(map.insert(name, value)),
                    Err(refusal) => section.refuse(&name, line, refusal),
                }
            }
            map
        })
    }

    /// Adds a problem if several keys do not fit together, unless one of them has a problem of
    /// its own. The problem is reported for `names[0]`.
    pub fn check(&mut self, names: &[&str], holds: bool, message: impl FnOnce() -> String) {
        let paths: Vec<_> = names.iter().map(|name| self.path_of(name)).collect();
        if holds
            || self
                .document
                .problems
                .iter()
                .any(|problem| paths.contains(&problem.key))
        {
            return;
        }
        let line_of = |path: &String| {
            self.document
                .known
                .iter()
                .find(|known| known.path == *path)?
                .line
        };
        let line = paths.iter().find_map(line_of).or(self.line);
        self.document.problems.push(Problem {
            line,
            key: paths[0].clone(),
            message: message(),
        });
    }

    /// Adds a warning if the file sets this key.
    pub fn warn(&mut self, name: &str, message: impl FnOnce() -> String) {
        let path = self.path_of(name);
        let mut known = self.document.known.iter();
        if known.any(|known| known.path == path && known.line.is_some()) {
            let warning = format!("{path} {}", message());
            self.document.warnings.push(warning);
        }
    }

    /// The warnings so far.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.document.warnings)
    }

    fn take<T>(
        &mut self,
        name: &str,
        default: Option<String>,
        allowed: String,
        read: impl FnOnce(&DeValue<'d>) -> Result<T, Refusal>,
    ) -> Option<T> {
        let entry = self.entries.remove(name);
        let line = entry.as_ref().map(|entry| entry.line);
        self.document.known.push(Known {
            path: self.path_of(name),
            default,
            allowed,
            line,
        });
        let Entry { line, value } = entry?;
        match read(&value) {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.refuse(name, line, refusal);
                None
            }
        }
    }

    fn report_if_missing(&mut self, name: &str, write: &str) {
        if !self.entries.contains_key(name) {
            let message = format!("missing; write {write} in [{}]", self.path);
            self.document.problems.push(Problem {
                line: self.line,
                key: self.path_of(name),
                message,
            });
        }
    }

    fn refuse(&mut self, name: &str, line: usize, message: Refusal) {
        self.document.problems.push(Problem {
            line: Some(line),
            key: self.path_of(name),
            message,
        });
    }

    fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    fn finish(self) {
        let unknown = |(name, Entry { line, .. })| Unknown {
            section: self.path.clone(),
            name,
            line,
        };
        self.document
            .unknown
            .extend(self.entries.into_iter().map(unknown));
    }
}
