//! The bodies: POST /v1/embeddings as OpenAI documents it
//! (<https://platform.openai.com/docs/api-reference/embeddings/create>).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::embed::check::Indexed;

#[derive(Serialize)]
pub struct Request<'a> {
    pub model: &'a str,
    pub input: &'a [&'a str],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoding_format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Fields that the operator adds. They have none of the names above.
    #[serde(flatten)]
    pub fields: &'a BTreeMap<String, Value>,
}

/// What an answer says, unchecked.
#[derive(Debug)]
pub struct Answer {
    /// In the server's order and number.
    pub vectors: Vec<Indexed>,
    /// Tokens that the server counted in all texts.
    pub tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Body {
    data: Vec<Datum>,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct Datum {
    #[serde(default)]
    index: Value,
    embedding: Embedding,
}

pub fn parse(body: &[u8]) -> Result<Answer, serde_json::Error> {
    let body: Body = match serde_json::from_slice(body) {
        Ok(answer) => answer,
        // JSON has no NaN, but Python's encoder writes it. It means that one text has
        // no vector, not that the whole answer is malformed.
        Err(error) => match as_null(body) {
            Some(body) => serde_json::from_str(&body)?,
            None => return Err(error),
        },
    };
    let indexed = |datum: Datum| Indexed {
        index: datum.index.as_u64().map(|index| index as usize),
        vector: datum.embedding.0,
    };
    let counted = [&body.usage["prompt_tokens"], &body.usage["total_tokens"]];
    Ok(Answer {
        vectors: body.data.into_iter().map(indexed).collect(),
        tokens: counted.iter().find_map(|tokens| tokens.as_u64()),
    })
}

fn as_null(body: &[u8]) -> Option<String> {
    let body = std::str::from_utf8(body).ok()?;
    if !body.contains("NaN") && !body.contains("Infinity") {
        return None;
    }
    Some(
        body.replace("-Infinity", "null")
            .replace("Infinity", "null")
            .replace("NaN", "null"),
    )
}

/// A vector as decimal numbers or as base64 of little-endian `f32`s. Both are accepted
/// whichever was requested: some servers know only one.
struct Embedding(Vec<f32>);

impl<'de> Deserialize<'de> for Embedding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EitherForm).map(Self)
    }
}

struct EitherForm;

impl<'de> Visitor<'de> for EitherForm {
    type Value = Vec<f32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers or base64")
    }

    fn visit_str<E: Error>(self, encoded: &str) -> Result<Vec<f32>, E> {
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|error| E::custom(format_args!("a vector is not base64: {error}")))?;
        let (floats, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(E::custom("a vector is not a whole number of floats"));
        }
        Ok(floats
            .iter()
            .map(|float| f32::from_le_bytes(*float))
            .collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<f32>, A::Error> {
        let mut vector = Vec::with_capacity(numbers.size_hint().unwrap_or(1024));
        // Encoders that respect JSON write a NaN as null.
        while let Some(number) = numbers.next_element::<Option<f32>>()? {
            vector.push(number.unwrap_or(f32::NAN));
        }
        Ok(vector)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    fn vectors(body: &str) -> Result<Vec<Vec<f32>>, serde_json::Error> {
        Ok(parse(body.as_bytes())?
            .vectors
            .into_iter()
            .map(|item| item.vector)
            .collect())
    }

    #[test]
    fn decimal_and_base64_vectors_are_the_same() {
        let base64 = STANDARD.encode([1.5f32, -0.25].map(f32::to_le_bytes).concat());
        let decimal = vectors(r#"{"data":[{"index":0,"embedding":[1.5,-0.25]}]}"#).unwrap();
        let encoded = vectors(&format!(
            r#"{{"data":[{{"index":0,"embedding":"{base64}"}}]}}"#
        ));
        assert_eq!(decimal, [[1.5, -0.25]]);
        assert_eq!(encoded.unwrap(), decimal);
    }

    #[test]
    fn a_value_that_is_no_number_is_read_as_nan() {
        for bad in ["null", "NaN", "Infinity", "-Infinity"] {
            let body = format!(r#"{{"data":[{{"embedding":[1.0,{bad}]}}]}}"#);
            assert!(vectors(&body).unwrap()[0][1].is_nan(), "{bad}");
        }
    }

    #[test]
    fn tokens_are_read_where_the_server_counts_them() {
        for (usage, tokens) in [
            (r#","usage":{"prompt_tokens":7,"total_tokens":9}"#, Some(7)),
            (r#","usage":{"total_tokens":9}"#, Some(9)),
            (r#","usage":{"prompt_tokens":null}"#, None),
            (r#","usage":null"#, None),
            ("", None),
        ] {
            let body = format!(r#"{{"data":[{{"embedding":[1.0],"index":"0"}}]{usage}}}"#);
            assert_eq!(parse(body.as_bytes()).unwrap().tokens, tokens, "{usage}");
        }
    }

    #[test]
    fn a_malformed_answer_is_an_error() {
        for body in [
            "<html></html>",
            "",
            "{}",
            r#"{"data":[{"index":0,"embedding":[1.0,"#,
            r#"{"data":[{"embedding":"???"}]}"#,
            r#"{"data":[{"embedding":"AAAAAAA="}]}"#,
            r#"{"data":[{"embedding":[[1.0]]}]}"#,
            r#"{"error":{"message":"NaN"}}"#,
        ] {
            assert!(vectors(body).is_err(), "{body}");
        }
    }
}
