//! JSON values to the server's protobuf ones and back.

use qdrant_client::qdrant::value::Kind;
use qdrant_client::qdrant::{ListValue, NullValue, Struct, Value};
use serde_json::Value as Json;

pub(super) fn to_value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(NullValue::NullValue.into()),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::String(text) => Kind::StringValue(text),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => Kind::IntegerValue(integer),
            None => Kind::DoubleValue(number.as_f64().expect("a JSON number fits a double")),
        },
        Json::Array(items) => {
            let values = items.into_iter().map(to_value).collect();
            Kind::ListValue(ListValue { values })
        }
        Json::Object(fields) => {
            let fields = fields
                .into_iter()
                .map(|(key, json)| (key, to_value(json)))
                .collect();
            Kind::StructValue(Struct { fields })
        }
    };
    Value { kind: Some(kind) }
}

pub(super) fn to_json(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(flag)) => Json::Bool(flag),
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::IntegerValue(integer)) => Json::from(integer),
        Some(Kind::DoubleValue(double)) => Json::from(double),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(to_json).collect(),
        Some(Kind::StructValue(fields)) => fields
            .fields
            .into_iter()
            .map(|(key, value)| (key, to_json(value)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::index::payload::test_payload;

    #[test]
    fn json_survives_the_way_to_the_server_and_back() {
        for json in [
            Json::Object(test_payload().to_json()),
            json!({ "null": null, "list": [1, -2, 0.5, true, "x", { "y": [] }] }),
        ] {
            assert_eq!(to_json(to_value(json.clone())), json);
        }
    }
}
