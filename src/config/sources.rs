//! `[[sources]]` of `elf.toml`: tables of the application whose rows are notes.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::read::not_empty;
use super::section::Section;
use super::value::{Refusal, string};
use crate::metadata;

/// `[[sources]]`: a table whose rows are notes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Source {
    /// Its name in ELF. The ids of its notes follow from it.
    pub name: String,
    /// As in SQL, with its schema unless `search_path` has that.
    pub table: String,
    /// The text of a note.
    #[serde(flatten)]
    pub text: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(missing_docs, reason = "a column of memory_notes, as the next ones")]
    pub title: Option<Template>,
    #[expect(missing_docs, reason = "see title")]
    pub tenant_id: Template,
    #[expect(missing_docs, reason = "see title")]
    pub project_id: Template,
    #[expect(missing_docs, reason = "see title")]
    pub agent_id: Template,
    #[expect(missing_docs, reason = "see title")]
    pub scope: Template,
    /// `type`
    #[serde(rename = "type")]
    pub kind: Template,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(missing_docs, reason = "see title")]
    pub key: Option<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(missing_docs, reason = "see title")]
    pub importance: Option<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(missing_docs, reason = "see title")]
    pub updated_at: Option<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[expect(missing_docs, reason = "see title")]
    pub expires_at: Option<Template>,
    /// Templates by the names of fields. One column keeps its type in JSON; a null is no field.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Template>,
    /// SQL over the columns of a row: an object with more fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata_sql: Option<String>,
    /// `where`: SQL over the columns of a row. Other rows are no notes.
    #[serde(rename = "where", skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Whether the rows arrive by logical replication.
    pub replicated: bool,
}

/// How the text of a note is made of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub enum Text {
    /// `text`
    #[serde(rename = "text")]
    Template(Template),
    /// `text_sql`: SQL over the columns of a row.
    #[serde(rename = "text_sql")]
    Sql(String),
}

/// A text with columns in braces: `"{subject}: {body}"`. `{{` and `}}` are braces.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    written: String,
    parts: Vec<Part>,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// A text, as it is.
    Text(String),
    /// The value of a column; a null is no text.
    Column(String),
}

impl Template {
    /// Reads a template, or says what is wrong with it.
    pub fn parse(written: &str) -> Result<Self, Refusal> {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = written;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let (brace, behind) = rest[at..].split_at(1);
            if let Some(behind) = behind.strip_prefix(brace) {
                text.push_str(brace);
                rest = behind;
                continue;
            }
            let column = behind.split_once('}').filter(|_| brace == "{");
            let Some((column, behind)) = column.filter(|(column, _)| !column.contains('{')) else {
                return Err(format!(
                    "{written:?} has a {brace} alone: write a column as {{name}}, and a brace twice"
                ));
            };
            if column.is_empty() {
                return Err(format!("{written:?} has no column in its braces"));
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Column(column.to_owned()));
            rest = behind;
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(Self {
            written: written.to_owned(),
            parts,
        })
    }

    /// The texts and columns, in their order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Serialize for Template {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.written)
    }
}

pub(super) fn source(section: &mut Section<'_, '_>) -> Source {
    let name = section.required_text("name", "name = \"tickets\"", name);
    let table = section.required_text("table", "table = \"support.tickets\"", not_empty);
    let text = optional(section, "text");
    let text_sql = section.text_or_unset("text_sql", not_empty);
    section.check(
        &["text", "text_sql"],
        text.is_some() != text_sql.is_some(),
        || {
            "a source has either text, such as \"{subject}: {body}\", or text_sql, an expression of SQL"
                .to_owned()
        },
    );
    let text = match text_sql {
        Some(sql) => Text::Sql(sql),
        None => Text::Template(text.unwrap_or_else(|| constant(""))),
    };
    let source = Source {
        name,
        table,
        text,
        title: optional(section, "title"),
        tenant_id: with_default(section, "tenant_id", "default"),
        project_id: with_default(section, "project_id", "default"),
        agent_id: with_default(section, "agent_id", "default"),
        scope: with_default(section, "scope", "shared"),
        kind: with_default(section, "type", "note"),
        key: optional(section, "key"),
        importance: optional(section, "importance"),
        updated_at: optional(section, "updated_at"),
        expires_at: optional(section, "expires_at"),
        metadata: section.map("metadata", "table of templates", |name, value| {
            metadata::check_name(name)?;
            let written = string(value)?;
            is_template(written)?;
            Template::parse(written)
        }),
        metadata_sql: section.text_or_unset("metadata_sql", not_empty),
        condition: section.text_or_unset("where", not_empty),
        replicated: section.flag("replicated", false),
    };
    for (name, value) in [
        ("importance", &source.importance),
        ("updated_at", &source.updated_at),
        ("expires_at", &source.expires_at),
    ] {
        let parts = value.as_ref().map_or(0, |template| template.parts().len());
        section.check(&[name], parts <= 1, || {
            "must be one column, such as \"{changed_at}\", or a constant".to_owned()
        });
    }
    source
}

fn constant(text: &str) -> Template {
    Template::parse(text).expect("it has no braces")
}

fn optional(section: &mut Section<'_, '_>, name: &str) -> Option<Template> {
    let written = section.text_or_unset(name, is_template)?;
    Template::parse(&written).ok()
}

fn with_default(section: &mut Section<'_, '_>, name: &str, default: &str) -> Template {
    let written = section.text(name, default, is_template);
    Template::parse(&written).unwrap_or_else(|_| constant(default))
}

fn is_template(written: &str) -> Result<(), Refusal> {
    not_empty(written)?;
    Template::parse(written).map(drop)
}

/// Functions and triggers in Postgres have the name in theirs, of at most 63 bytes.
fn name(name: &str) -> Result<(), Refusal> {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    match starts && name.len() <= 40 && name.chars().all(is_inside) {
        true => Ok(()),
        false => Err(format!(
            "must be 1 to 40 small letters, digits and underscores, with a letter first, not {name:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(written: &str) -> Result<Vec<Part>, Refusal> {
        Template::parse(written).map(|template| template.parts().to_vec())
    }

    #[test]
    fn a_template_has_texts_and_columns() {
        let text = |text: &str| Part::Text(text.into());
        let column = |name: &str| Part::Column(name.into());
        assert_eq!(
            parts("{subject}\n\n{Body Text}"),
            Ok(vec![column("subject"), text("\n\n"), column("Body Text")])
        );
        assert_eq!(parts("ticket"), Ok(vec![text("ticket")]));
        assert_eq!(
            parts("{{{a}}}: 100%"),
            Ok(vec![text("{"), column("a"), text("}: 100%")])
        );
        assert_eq!(parts(""), Ok(vec![]));
    }

    #[test]
    fn a_brace_alone_is_refused() {
        for written in ["{", "}", "a {b", "a} b", "{a{b}}", "{}"] {
            assert!(parts(written).is_err(), "{written}");
        }
    }
}
