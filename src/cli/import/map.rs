//! Which fields of a line, or columns of a row, are which fields of its note: `--map` and `--text`.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::note::Line;
use crate::metadata::FieldType;

/// The fields of a note that a line may have.
const FIELDS: [&str; 14] = [
    "note_id",
    "key",
    "text",
    "title",
    "tenant_id",
    "project_id",
    "agent_id",
    "scope",
    "type",
    "importance",
    "confidence",
    "expires_at",
    "source_ref",
    "metadata",
];

/// `FIELD=NAME` of the command line.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    /// Of the note.
    field: Field,
    /// Of the line; `a.b` is `b` in the object `a`, unless there is a field of that name.
    pub name: String,
}

/// A field of a note.
#[derive(Debug, Clone, PartialEq)]
enum Field {
    Known(&'static str),
    /// One of `metadata`.
    Metadata(String),
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((field, name)) = text.split_once('=').filter(|(_, name)| !name.is_empty()) else {
            return Err("write FIELD=NAME, such as text=body".into());
        };
        let known = FIELDS.into_iter().find(|known| *known == field);
        let in_metadata = field
            .strip_prefix("metadata.")
            .filter(|name| !name.is_empty());
        let field = match (known, in_metadata) {
            (Some(known), _) => Field::Known(known),
            (_, Some(name)) => Field::Metadata(name.to_owned()),
            _ => {
                let fields = FIELDS.join(", ");
                return Err(format!(
                    "a note has no {field}, but {fields}, and metadata.NAME"
                ));
            }
        };
        Ok(Self {
            field,
            name: name.to_owned(),
        })
    }
}

/// What makes a note of an object with fields of any names.
#[derive(Debug, Default)]
pub(super) struct Mapping {
    pairs: Vec<Pair>,
    /// Whether fields that nothing names become metadata. If the mapping says what does, the others are left out.
    takes_rest: bool,
    /// What the values of metadata are, where they are texts: the columns of CSV have no types.
    types: BTreeMap<String, FieldType>,
}

impl Mapping {
    /// Of `--map`, and the names of `--text`.
    pub fn of(pairs: &[Pair], text: &[String]) -> Self {
        let text = text.iter().map(|name| Pair {
            field: Field::Known("text"),
            name: name.clone(),
        });
        let pairs: Vec<Pair> = pairs.iter().cloned().chain(text).collect();
        let is_metadata =
            |pair: &Pair| matches!(pair.field, Field::Metadata(_) | Field::Known("metadata"));
        Self {
            takes_rest: !pairs.iter().any(is_metadata),
            pairs,
            types: BTreeMap::new(),
        }
    }

    /// With texts as metadata that are values of these types.
    pub fn of_texts(self, types: &BTreeMap<String, FieldType>) -> Self {
        Self {
            types: types.clone(),
            ..self
        }
    }

    /// The names that the mapping asks for, and what else has to be among `names`.
    pub fn check_columns(&self, names: &[String]) -> Result<(), String> {
        let listed = || {
            let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
            quoted.join(", ")
        };
        for pair in &self.pairs {
            if !names.contains(&pair.name) {
                return Err(format!(
                    "it has no column {:?}, but {}",
                    pair.name,
                    listed()
                ));
            }
        }
        let has = |field: &'static str| self.names(field) || names.iter().any(|name| name == field);
        if !has("text") {
            return Err(format!(
                "name the columns of the text with --text, of {}",
                listed()
            ));
        }
        if !has("key") && !has("note_id") {
            return Err(format!(
                "name the column of the key with --map key=COLUMN, of {}",
                listed()
            ));
        }
        Ok(())
    }

    fn names(&self, field: &'static str) -> bool {
        self.pairs
            .iter()
            .any(|pair| pair.field == Field::Known(field))
    }

    /// The line that an object is.
    pub fn line(&self, mut object: Map<String, Value>) -> Result<Line, String> {
        let mut of_note = Map::new();
        let mut metadata = Map::new();
        let mut texts = Vec::new();
        let found: Vec<Option<Value>> = self
            .pairs
            .iter()
            .map(|pair| find(&object, &pair.name).cloned())
            .collect();
        for (pair, value) in self.pairs.iter().zip(found) {
            remove(&mut object, &pair.name);
            let Some(value) = value.filter(|value| !value.is_null()) else {
                continue;
            };
            match &pair.field {
                Field::Known("text") => texts.push(text(&pair.name, value)?),
                Field::Known("metadata") => match value {
                    Value::Object(fields) => metadata.extend(fields),
                    value => drop(metadata.insert(pair.name.clone(), value)),
                },
                Field::Known(field) => drop(of_note.insert((*field).to_owned(), value)),
                Field::Metadata(name) => drop(metadata.insert(name.clone(), value)),
            }
        }
        for (name, value) in object {
            let known = FIELDS.into_iter().find(|known| *known == name);
            match known.filter(|known| !self.names(known)) {
                Some("text") => texts.push(text(&name, value)?),
                Some("metadata") => match value {
                    Value::Object(fields) => metadata.extend(fields),
                    _ => return Err("metadata is no object".into()),
                },
                Some(known) => drop(of_note.insert(known.to_owned(), value)),
                None if self.takes_rest => drop(metadata.insert(name, value)),
                None => {}
            }
        }
        let texts: Vec<String> = texts
            .into_iter()
            .filter(|text| !text.trim().is_empty())
            .collect();
        if texts.is_empty() {
            return Err("it has no text".into());
        }
        of_note.insert("text".into(), texts.join("\n\n").into());
        if !metadata.is_empty() {
            let typed = metadata.into_iter().map(|(name, value)| {
                let value = self.typed(&name, value);
                (name, value)
            });
            of_note.insert("metadata".into(), typed.collect());
        }
        for (field, value) in &mut of_note {
            as_field(field, value);
        }
        Line::deserialize(Value::Object(of_note)).map_err(|error| error.to_string())
    }

    fn typed(&self, name: &str, value: Value) -> Value {
        let Value::String(written) = &value else {
            return value;
        };
        let parsed = match self.types.get(name) {
            Some(FieldType::Integer | FieldType::Number | FieldType::Boolean) => {
                let parsed = serde_json::from_str(&written.trim().to_ascii_lowercase());
                parsed
                    .ok()
                    .filter(|value: &Value| value.is_number() || value.is_boolean())
            }
            Some(FieldType::Keywords) => Some(written.split(',').map(str::trim).collect()),
            _ => None,
        };
        parsed.unwrap_or(value)
    }
}

/// Gives a value the type of its field, where files often have another: a number as a key, a text as a number.
fn as_field(field: &str, value: &mut Value) {
    let other = match (field, &*value) {
        ("importance" | "confidence" | "source_ref", Value::String(text)) => {
            serde_json::from_str(text).ok()
        }
        (
            "key" | "title" | "tenant_id" | "project_id" | "agent_id" | "scope" | "type",
            Value::Number(number),
        ) => Some(number.to_string().into()),
        _ => None,
    };
    if let Some(other) = other {
        *value = other;
    }
}

fn find<'o>(object: &'o Map<String, Value>, name: &str) -> Option<&'o Value> {
    object.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        find(object.get(outer)?.as_object()?, inner)
    })
}

fn remove(object: &mut Map<String, Value>, name: &str) {
    if object.remove(name).is_some() {
        return;
    }
    if let Some((outer, inner)) = name.split_once('.')
        && let Some(Value::Object(fields)) = object.get_mut(outer)
    {
        remove(fields, inner);
        if fields.is_empty() {
            object.remove(outer);
        }
    }
}

fn text(name: &str, value: Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => Ok(String::new()),
        Value::Array(parts) => {
            let parts = parts.into_iter().map(|part| text(name, part));
            Ok(parts.collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        Value::Bool(_) | Value::Object(_) => Err(format!("{name:?} is no text")),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use serde_json::json;

    use super::*;

    fn line(pairs: &[&str], object: Value) -> Result<Line, String> {
        let pairs: Vec<Pair> = pairs.iter().map(|pair| pair.parse().unwrap()).collect();
        let Value::Object(object) = object else {
            unreachable!("tests have objects");
        };
        Mapping::of(&pairs, &[]).line(object)
    }

    #[test]
    fn fields_of_any_name_are_a_note() {
        let mail = json!({
            "id": 7, "mail": {"subject": "Hi", "from": "a@b", "to": "c"}, "body": "One.", "more": ["Two.", "Three."],
            "importance": "0.25", "lang": "de", "a.b": 1, "gone": null,
        });
        let pairs = [
            "key=id",
            "title=mail.subject",
            "text=body",
            "text=more",
            "metadata.dotted=a.b",
            "metadata.lang=lang",
        ];
        let note = line(&pairs, mail.clone()).unwrap();
        assert_eq!(note.key, Some(Some("7".into())));
        assert_eq!(note.title, Some(Some("Hi".into())));
        assert_eq!(note.text, "One.\n\nTwo.\nThree.");
        assert_eq!(note.importance, Some(0.25));
        assert_eq!(
            Value::from(note.metadata.unwrap()),
            json!({"dotted": 1, "lang": "de"})
        );
        // Without a word on metadata, the rest is.
        let note = line(&["key=id", "text=body", "title=mail.subject"], mail).unwrap();
        let rest = json!({"mail": {"from": "a@b", "to": "c"}, "more": ["Two.", "Three."], "lang": "de", "a.b": 1, "gone": null});
        assert_eq!(Value::from(note.metadata.unwrap()), rest);
        // A field that is mapped may be two things, and one with a name of ELF's another.
        let note = line(
            &["text=name", "key=name"],
            json!({"name": "x", "text": "t"}),
        )
        .unwrap();
        assert_eq!(
            (note.text.as_str(), note.key),
            ("x", Some(Some("x".into())))
        );
        assert_eq!(Value::from(note.metadata.unwrap()), json!({"text": "t"}));
    }

    #[test]
    fn what_is_no_note_is_named() {
        for (pairs, object, word) in [
            (&["text=a"][..], json!({"b": 1}), "no text"),
            (&["text=a"], json!({"a": {}}), "\"a\" is no text"),
            (
                &["text=a", "key=b"],
                json!({"a": "x", "b": [1]}),
                "invalid type",
            ),
            (
                &["text=a", "note_id=b"],
                json!({"a": "x", "b": "y"}),
                "UUID",
            ),
        ] {
            let problem = line(pairs, object).err().unwrap();
            assert!(problem.contains(word), "{problem}");
        }
        for pair in ["text", "text=", "body=text", "metadata.=x"] {
            assert!(pair.parse::<Pair>().is_err(), "{pair}");
        }
    }

    #[test]
    fn texts_get_the_types_that_metadata_declares() {
        let types = [
            ("n", FieldType::Number),
            ("b", FieldType::Boolean),
            ("t", FieldType::Keywords),
        ];
        let types = types.map(|(name, kind)| (name.to_owned(), kind)).into();
        let row = json!({"text": "x", "n": "12.50", "b": "TRUE", "t": "a, b", "zip": "01234", "big": "7"});
        let Value::Object(row) = row else {
            unreachable!()
        };
        let line = Mapping::of(&[], &[]).of_texts(&types).line(row).unwrap();
        assert_eq!(
            Value::from(line.metadata.unwrap()),
            json!({"n": 12.5, "b": true, "t": ["a", "b"], "zip": "01234", "big": "7"})
        );
    }
}
