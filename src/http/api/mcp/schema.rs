//! The schemas of the tools' arguments, in the words that every model provider takes.
//!
//! Gemini refuses references, alternatives, lists of types, most formats, `additionalProperties` and objects without
//! properties, OpenAI and Claude refuse alternatives, and several clients drop `$defs`. So a schema here has a type, a
//! description, an enum, properties, what is required, and items; the rest is said in the descriptions.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::metadata::Declared;

/// The field of notes and filters whose own fields are the application's.
const METADATA: &str = "metadata";

pub fn of<T: ToSchema>() -> Map<String, Value> {
    let mut parts = Vec::new();
    T::schemas(&mut parts);
    let parts = parts
        .into_iter()
        .map(|(name, part)| (name, json!(part)))
        .collect();
    match plain(&json!(T::schema()), &parts) {
        Some(Value::Object(schema)) => schema,
        _ => unreachable!("the schema of a struct is an object with properties"),
    }
}

/// A schema that stands alone; `None` for an object of any fields.
fn plain(given: &Value, parts: &Map<String, Value>) -> Option<Value> {
    let meant = meant(given, parts);
    let mut plain = Map::new();
    let kind = [&meant["type"]]
        .into_iter()
        .chain(meant["type"].as_array().into_iter().flatten());
    let kind = kind.filter_map(Value::as_str).find(|kind| *kind != "null");
    let kind = kind.unwrap_or("string");
    plain.insert("type".into(), kind.into());
    if let Some(text) = description(&meant) {
        plain.insert("description".into(), text.into());
    }
    if let Some(values) = meant["enum"].as_array() {
        plain.insert("enum".into(), json!(values));
    }
    match kind {
        "object" => {
            let fields = meant["properties"].as_object()?;
            let fields = fields.iter();
            let fields: Map<_, _> = fields
                .filter_map(|(name, field)| {
                    let field = match name.as_str() {
                        METADATA => as_json(field),
                        _ => self::plain(field, parts)?,
                    };
                    Some((name.clone(), field))
                })
                .collect();
            plain.insert("properties".into(), fields.into());
            if let Some(required) = meant["required"].as_array() {
                plain.insert("required".into(), json!(required));
            }
        }
        "array" => {
            plain.insert("items".into(), self::plain(&meant["items"], parts)?);
        }
        _ => {}
    }
    Some(plain.into())
}

/// An object of any fields, as JSON in a string.
fn as_json(field: &Value) -> Value {
    let text = description(field).unwrap_or_default();
    json!({ "type": "string", "description": format!("{text} An object as JSON.") })
}

/// Adds to the descriptions of `metadata` which fields a search can filter by.
pub fn name_fields(schema: &mut Map<String, Value>, declared: &Declared) {
    if declared.is_empty() {
        return;
    }
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for (name, field) in properties {
        match field {
            Value::Object(inner) if name == METADATA => {
                let text = inner["description"].as_str().unwrap_or_default();
                let fields = declared.iter();
                let fields = fields.map(|(name, kind)| format!("{name} ({})", kind.name()));
                let fields = fields.collect::<Vec<_>>().join(", ");
                inner["description"] = format!("{text} A search can filter by {fields}.").into();
            }
            Value::Object(inner) => name_fields(inner, declared),
            _ => {}
        }
    }
}

/// What a schema refers to, and of alternatives the first that is not null, under its own description.
fn meant(given: &Value, parts: &Map<String, Value>) -> Value {
    let reference = given["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next());
    let mut alternatives = ["oneOf", "anyOf", "allOf"]
        .into_iter()
        .filter_map(|name| given[name].as_array())
        .flatten();
    let inner = match reference {
        Some(name) => parts.get(name),
        None => alternatives.find(|one| one["type"] != "null"),
    };
    let Some(inner) = inner else {
        return given.clone();
    };
    let mut meant = self::meant(inner, parts);
    for name in ["description", "default"] {
        if let Some(own) = given.get(name) {
            meant[name] = own.clone();
        }
    }
    meant
}

/// What a field means, and what holds if it is left out.
fn description(schema: &Value) -> Option<String> {
    let text = schema["description"].as_str()?;
    match &schema["default"] {
        Value::Null | Value::Object(_) => Some(text.to_owned()),
        default => Some(format!("{text} Default: {default}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tools;
    use super::*;
    use crate::metadata::FieldType;

    /// Each schema in a schema, with its path.
    fn all(schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
        found.push((path.to_owned(), schema.clone()));
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            all(field, &format!("{path}.{name}"), found);
        }
        if let Some(items) = schema.get("items") {
            all(items, &format!("{path}[]"), found);
        }
    }

    #[test]
    fn every_provider_takes_the_tools() {
        let declared = Declared::from([("lang".to_owned(), FieldType::Keyword)]);
        for tool in tools(&declared) {
            let name = tool.name.to_string();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
            assert!(name.len() <= 64 && name.chars().all(is_plain), "{name}");
            assert!(
                tool.description.is_some_and(|text| text.len() <= 1024),
                "{name}"
            );
            let mut found = Vec::new();
            all(&json!(tool.input_schema), &name, &mut found);
            for (path, schema) in found {
                let known = [
                    "type",
                    "description",
                    "enum",
                    "properties",
                    "required",
                    "items",
                ];
                let fields = schema.as_object().expect("an object");
                for field in fields.keys() {
                    assert!(known.contains(&field.as_str()), "{path} has {field}");
                }
                let kind = schema["type"].as_str().unwrap_or_default();
                let kinds = ["string", "number", "integer", "boolean", "object", "array"];
                assert!(kinds.contains(&kind), "{path} is of the type {kind:?}");
                assert!(
                    schema["description"].is_string(),
                    "{path} has no description"
                );
                assert!(schema.get("enum").is_none() || kind == "string", "{path}");
                if kind == "object" {
                    let fields = schema["properties"].as_object().expect("an object");
                    assert!(!fields.is_empty(), "{path} has no properties");
                    for required in schema["required"].as_array().into_iter().flatten() {
                        assert!(
                            fields.contains_key(required.as_str().expect("a name")),
                            "{path}"
                        );
                    }
                } else {
                    assert!(schema.get("properties").is_none() && schema.get("required").is_none());
                }
            }
        }
    }

    #[test]
    fn a_schema_says_in_words_what_it_leaves_out() {
        let schema = Value::Object(of::<super::super::searches::SearchRequest>());
        assert_eq!(schema["required"], json!(["query"]));
        assert_eq!(
            schema["properties"]["by"]["enum"],
            json!(["dense", "bm25", "hybrid"])
        );
        let limit = &schema["properties"]["limit"]["description"];
        assert_eq!(limit, "Notes to return at most, 1 to 100. Default: 10.");
        let filter = &schema["properties"]["filter"]["properties"];
        assert_eq!(filter["updated_after"]["type"], "string");
    }
}
