//! The arguments of a call, as models send them.

use axum::Json;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::super::error::ApiError;
use super::super::misfit::misfit;

/// Reads the arguments of a tool with this schema. As from a body, so that an error names its field.
pub fn read<T: DeserializeOwned>(given: Value, schema: &Value) -> Result<T, ApiError> {
    let given = meant(given, schema);
    let read = Json::<T>::from_bytes(given.to_string().as_bytes());
    let Json(arguments) = read.map_err(|error| misfit(&error.body_text(), "arguments"))?;
    Ok(arguments)
}

/// What a client means. Some send numbers, `true` and objects as strings, 10 as 10.0, and null or an empty string for
/// what they leave out.
fn meant(given: Value, schema: &Value) -> Value {
    let kind = schema["type"].as_str().unwrap_or_default();
    let given = match given.as_str().map(serde_json::from_str::<Value>) {
        Some(Ok(inner)) if is_of(&inner, kind) => inner,
        _ => given,
    };
    match given {
        Value::Object(fields) if kind == "object" => Value::Object(left(fields, schema)),
        Value::Number(number) if kind == "integer" => whole(&number).unwrap_or(number).into(),
        other => other,
    }
}

/// The fields without those that mean nothing.
fn left(fields: Map<String, Value>, schema: &Value) -> Map<String, Value> {
    let required: Vec<&str> = (schema["required"].as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    let is_left_out = |name: &str, value: &Value| {
        let is_known = schema["properties"].get(name).is_some();
        value.is_null() || *value == "" && is_known && !required.contains(&name)
    };
    fields
        .into_iter()
        .filter(|(name, value)| !is_left_out(name, value))
        .map(|(name, value)| {
            let value = meant(value, &schema["properties"][&name]);
            (name, value)
        })
        .collect()
}

/// Whether a value that came as a string is of a type that no string is.
fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "integer" | "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        _ => false,
    }
}

/// 10 for 10.0.
fn whole(number: &serde_json::Number) -> Option<serde_json::Number> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    let is_whole = float.fract() == 0.0 && float.abs() < 9e15;
    is_whole.then(|| (float as i64).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_clients_send_is_read_as_they_mean_it() {
        let schema = json!({
            "type": "object",
            "required": ["query"],
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": "integer"},
                "least": {"type": "number"},
                "rerank": {"type": "boolean"},
                "filter": {"type": "object", "properties": {
                    "scope": {"type": "string"}, "least": {"type": "number"},
                }},
            },
        });
        for (given, read) in [
            (
                json!({"query": "a", "limit": "5"}),
                json!({"query": "a", "limit": 5}),
            ),
            (
                json!({"query": "a", "limit": 5.0}),
                json!({"query": "a", "limit": 5}),
            ),
            (
                json!({"query": "a", "limit": "5.0"}),
                json!({"query": "a", "limit": 5}),
            ),
            (
                json!({"query": "a", "limit": 5.5}),
                json!({"query": "a", "limit": 5.5}),
            ),
            (
                json!({"query": "a", "limit": "five"}),
                json!({"query": "a", "limit": "five"}),
            ),
            (json!({"query": "a", "limit": null}), json!({"query": "a"})),
            (json!({"query": "a", "limit": ""}), json!({"query": "a"})),
            (
                json!({"query": "a", "rerank": "false"}),
                json!({"query": "a", "rerank": false}),
            ),
            (
                json!({"query": "a", "filter": "{\"scope\": \"s\"}"}),
                json!({"query": "a", "filter": {"scope": "s"}}),
            ),
            (
                json!({"query": "a", "filter": {"scope": "", "least": "0.5"}}),
                json!({"query": "a", "filter": {"least": 0.5}}),
            ),
            (json!({"query": "a", "filter": ""}), json!({"query": "a"})),
            // A string stays one, and what is required or unknown is told.
            (json!({"query": "5"}), json!({"query": "5"})),
            (json!({"query": ""}), json!({"query": ""})),
            (
                json!({"query": "a", "colour": ""}),
                json!({"query": "a", "colour": ""}),
            ),
            (json!("{\"query\": \"a\"}"), json!({"query": "a"})),
            (json!([1]), json!([1])),
        ] {
            assert_eq!(meant(given.clone(), &schema), read, "{given}");
        }
    }
}
