//! The columns of a note, as expressions over those of a row.

use super::text::{literal, quoted};
use crate::config::{Part, Source, Template, Text};

/// The columns that a source gives a note, and their types.
pub const COLUMNS: [(&str, &str); 12] = [
    ("tenant_id", "text"),
    ("project_id", "text"),
    ("agent_id", "text"),
    ("scope", "text"),
    ("type", "text"),
    ("key", "text"),
    ("title", "text"),
    ("text", "text"),
    ("importance", "float8"),
    ("expires_at", "timestamptz"),
    ("updated_at", "timestamptz"),
    ("metadata", "jsonb"),
];

/// What a source makes of a row of the table that expressions call `alias`.
pub struct Columns<'a> {
    /// The source.
    pub source: &'a Source,
    /// The name of its table in the statement.
    pub alias: &'a str,
    /// Its columns of Postgres's own types. The JSON of another type may come from a cast, which its owner can make.
    pub plain: &'a [String],
}

impl Columns<'_> {
    /// An expression for each of [`COLUMNS`].
    pub fn all(&self) -> Vec<String> {
        let source = self.source;
        let text = match &source.text {
            Text::Template(template) => self.text(template),
            Text::Sql(sql) => format!("concat({sql})"),
        };
        let or = |template: &Template, default| {
            format!("coalesce({}, '{default}')", self.text_or_null(template))
        };
        let optional = |template: &Option<Template>| match template {
            Some(template) => self.text_or_null(template),
            None => "null".into(),
        };
        vec![
            self.text_or_null(&source.tenant_id),
            or(&source.project_id, "default"),
            or(&source.agent_id, "default"),
            or(&source.scope, "shared"),
            or(&source.kind, "note"),
            optional(&source.key),
            optional(&source.title),
            text,
            format!(
                "least(greatest(coalesce({}, 0.5), 0), 1)",
                self.value(source.importance.as_ref(), "float8")
            ),
            self.value(source.expires_at.as_ref(), "timestamptz"),
            self.value(source.updated_at.as_ref(), "timestamptz"),
            self.metadata(),
        ]
    }

    fn metadata(&self) -> String {
        let fields = self.source.metadata.iter().map(|(name, template)| {
            let value = match template.parts() {
                [Part::Column(column)] if self.plain.contains(column) => self.column(column),
                _ => self.text_or_null(template),
            };
            format!("{}, to_jsonb({value})", literal(name))
        });
        let fields = match fields.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "'{}'::jsonb".into(),
            fields => format!("jsonb_build_object({fields})"),
        };
        match &self.source.metadata_sql {
            // A null of SQL or of JSON is no field. With anything else than an object, the sum is an array.
            Some(sql) => format!(
                "jsonb_strip_nulls({fields} || coalesce(nullif(({sql}), 'null'::jsonb), '{{}}'))"
            ),
            None if self.source.metadata.is_empty() => fields,
            None => format!("jsonb_strip_nulls({fields})"),
        }
    }

    fn column(&self, name: &str) -> String {
        format!("{}.{}", self.alias, quoted(name))
    }

    /// It takes the text of any type by its output function, which only a superuser can make, and not by a cast, which
    /// the owner of the type can. A null has none.
    fn text(&self, template: &Template) -> String {
        let parts = template.parts().iter().map(|part| match part {
            Part::Text(text) => literal(text),
            Part::Column(name) => self.column(name),
        });
        format!("concat({})", parts.collect::<Vec<_>>().join(", "))
    }

    fn text_or_null(&self, template: &Template) -> String {
        format!("nullif({}, '')", self.text(template))
    }

    /// The value of a template of one part. Postgres reads a constant when the source is checked.
    fn value(&self, template: Option<&Template>, kind: &str) -> String {
        let Some(template) = template else {
            return format!("null::{kind}");
        };
        match template.parts() {
            [Part::Text(constant)] => format!("{}::{kind}", literal(constant)),
            _ => format!("{}::{kind}", self.text_or_null(template)),
        }
    }
}
