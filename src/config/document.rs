//! A TOML document: the lines of its keys, the problems found so far, and the keys that ELF does
//! not know.

use std::collections::BTreeMap;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Problem;
use super::suggestion::suggestion;
use super::value::Surroundings;

/// A document, with the keys and problems found so far.
pub(super) struct Document<'d> {
    text: &'d str,
    pub(super) surroundings: Surroundings<'d>,
    pub(super) problems: Vec<Problem>,
    pub(super) unknown: Vec<Unknown>,
    pub(super) known: Vec<Known>,
    /// Keys of tables under names of the user's choice: only suggestions know them.
    pub(super) in_named: Vec<String>,
    /// Keys of the file without effect.
    pub(super) warnings: Vec<String>,
}

/// A key that ELF knows, whether the file sets it or not.
pub(super) struct Known {
    /// Dotted.
    pub(super) path: String,
    /// The default as TOML; `None` when the key has none.
    pub(super) default: Option<String>,
    /// What it may be.
    pub(super) allowed: String,
    /// The line on which the file sets it.
    pub(super) line: Option<usize>,
}

/// A key of the file that ELF never asked for.
pub(super) struct Unknown {
    pub(super) section: String,
    pub(super) name: String,
    pub(super) line: usize,
}

/// A value of the file, and the line of its key.
pub(super) struct Entry<'d> {
    pub(super) line: usize,
    pub(super) value: DeValue<'d>,
}

impl<'d> Document<'d> {
    pub(super) fn new(text: &'d str, surroundings: Surroundings<'d>) -> Self {
        Self {
            text,
            surroundings,
            problems: Vec::new(),
            unknown: Vec::new(),
            known: Vec::new(),
            in_named: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn entries(&self, table: DeTable<'d>) -> BTreeMap<String, Entry<'d>> {
        let entry = |(key, value): (Spanned<std::borrow::Cow<'d, str>>, Spanned<DeValue<'d>>)| {
            let line = self.line_at(key.span().start);
            (
                key.into_inner().into_owned(),
                Entry {
                    line,
                    value: value.into_inner(),
                },
            )
        };
        table.into_iter().map(entry).collect()
    }

    pub(super) fn line_at(&self, offset: usize) -> usize {
        self.text.as_bytes()[..offset]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1
    }

    /// Runs last, because a suggestion may name a key of any section.
    pub(super) fn explain_unknown(&mut self) {
        let known = self.known.iter().map(|known| known.path.as_str());
        let in_named = self.in_named.iter().map(String::as_str);
        let paths: Vec<_> = known.chain(in_named).collect();
        for Unknown {
            section,
            name,
            line,
        } in &self.unknown
        {
            let key = if section.is_empty() {
                name.clone()
            } else {
                format!("{section}.{name}")
            };
            self.problems.push(Problem {
                line: Some(*line),
                key,
                message: format!("unknown key; {}", suggestion(section, name, &paths)),
            });
        }
    }
}
