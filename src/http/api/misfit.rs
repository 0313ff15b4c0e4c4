//! What a client is told whose JSON does not fit the request: which field, and how to write it.
//! Serde says what is wrong in the words of Rust, and the error of `serde_json` is that sentence, with no kind to match
//! on. The crate `deserr` has kinds, but reads a `serde_json::Value`, which keeps the last of two equal fields: a field that
//! is there twice would be no error.

use super::error::{ApiError, excerpt};

/// Ids and times that a message shows as examples.
const UUID: &str = "a UUID such as 6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10";
const TIME: &str = "a time such as 2026-03-01T12:00:00Z";

/// Most bytes of a name or a value that a message shows.
const MAX_SHOWN: usize = 100;

/// What the parser of times says.
const OF_TIMES: [&str; 6] = [
    "input is out of range",
    "no possible date and time matching input",
    "input is not enough for unique date and time",
    "input contains invalid characters",
    "premature end of input",
    "trailing input",
];

/// The error for what axum says of a request: `Failed to …: path.of.field: what is wrong at line 1
/// column 2`. `whole` is what the fields are in, such as the body.
pub fn misfit(said: &str, whole: &str) -> ApiError {
    let said = said.split_once(": ").map_or(said, |(_, said)| said);
    let said = said.rsplit_once(" at line ").map_or(said, |(said, _)| said);
    // The messages that have no path before them have a space before their colon.
    let (path, what) = match said.split_once(": ") {
        Some((path, what)) if !path.contains(' ') => (path, what),
        _ => ("", said),
    };
    let (path, message) = explained(path, what, whole);
    // `notes[3].text` is the field `text`.
    let field = path.rsplit('.').next().unwrap_or_default();
    let field = field.split('[').next().unwrap_or_default();
    let error = ApiError::invalid(if field.is_empty() { whole } else { field }, message);
    match place_of_note(&path) {
        Some(place) => error.of_note(place),
        None => error,
    }
}

/// The place in `notes[3].text`.
fn place_of_note(path: &str) -> Option<usize> {
    let (place, _) = path.strip_prefix("notes[")?.split_once(']')?;
    place.parse().ok()
}

/// The path of the field, and what to do.
fn explained(path: &str, what: &str, whole: &str) -> (String, String) {
    let is = |path: &str| match path {
        "" => format!("the {whole}"),
        path => path.to_owned(),
    };
    if let Some(field) = quoted_after(what, "missing field ") {
        let path = below(path, field);
        let message = format!("{path} is missing: send it");
        return (path, message);
    }
    if let Some(field) = quoted_after(what, "unknown field ") {
        let path = below(path, field);
        let known = what.rsplit_once(", expected ").map(|(_, known)| known);
        let known = match known {
            Some(known) if !what.contains("there are no fields") => {
                format!("; the fields are {}", list(known))
            }
            _ => String::new(),
        };
        let message = format!("{path} is no field of the request{known}");
        return (path, message);
    }
    if let Some(field) = quoted_after(what, "duplicate field ") {
        let path = below(path, field);
        let message = format!("{path} is there twice: send it once");
        return (path, message);
    }
    let path = path.to_owned();
    if let Some(value) = quoted_after(what, "unknown variant ") {
        let known = what
            .rsplit_once(", expected ")
            .map_or("", |(_, known)| known);
        let message = format!(
            "{} must be {}, not {:?}",
            is(&path),
            list(known),
            short(value)
        );
        return (path, message);
    }
    let value = (what.strip_prefix("invalid type: ")).or(what.strip_prefix("invalid value: "));
    if let Some((value, expected)) = value.and_then(|value| value.rsplit_once(", expected ")) {
        let (expected, value) = (in_words(expected), value_in_words(value));
        let message = format!("{} must be {expected}, not {value}", is(&path));
        return (path, message);
    }
    let expected = match what {
        // A list in the place of an object.
        _ if what.starts_with("invalid length ") && what.contains(", expected struct ") => {
            "an object"
        }
        _ if what.starts_with("UUID parsing failed") => UUID,
        _ if OF_TIMES.contains(&what) => TIME,
        _ => {
            let message = format!("{} cannot be read: {what}", is(&path));
            return (path, message);
        }
    };
    let message = format!("{} must be {expected}", is(&path));
    (path, message)
}

/// The path of a field of the object at `path`. Some messages have it in the path already.
fn below(path: &str, field: &str) -> String {
    let object = match path.strip_suffix(field) {
        Some("") => "",
        Some(object) => object.strip_suffix('.').unwrap_or(path),
        None => path,
    };
    match object {
        "" => short(field),
        _ => format!("{object}.{}", short(field)),
    }
}

/// What a client sent, so short that the rest of the message can be read.
fn short(text: &str) -> String {
    excerpt(text, MAX_SHOWN)
}

/// The name between backticks after `prefix`.
fn quoted_after<'a>(what: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = what.strip_prefix(prefix)?.strip_prefix('`')?;
    // A client may have sent a name with backticks.
    let end = rest.find("`, expected ").or_else(|| rest.rfind('`'))?;
    Some(&rest[..end])
}

/// Serde's list of names.
fn list(names: &str) -> String {
    names.trim_start_matches("one of ").replace('`', "")
}

/// What serde expected.
fn in_words(expected: &str) -> String {
    let words = match expected {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "a whole number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "a formatted date and time string" | "an RFC 3339 formatted date and time string" => TIME,
        "a UUID string" | "a formatted UUID string" => UUID,
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("enum ") || expected.starts_with("variant ") => "a string",
        other => other,
    };
    words.to_owned()
}

/// What serde found.
fn value_in_words(value: &str) -> String {
    let bare = |prefix| {
        value
            .strip_prefix(prefix)
            .map(|value: &str| value.replace('`', ""))
    };
    match value {
        "sequence" => "a list".into(),
        "map" => "an object".into(),
        "null" | "unit value" => "null".into(),
        _ => bare("integer ")
            .or_else(|| bare("floating point "))
            .or_else(|| bare("boolean "))
            .unwrap_or_else(|| match value.strip_prefix("string ") {
                Some(text) => format!("the string {}", short(text)),
                None => value.to_owned(),
            }),
    }
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use chrono::{DateTime, Utc};
    use serde::Deserialize;
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::super::error::ErrorBody;
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only their types count")]
    struct Asked {
        name: String,
        #[serde(default)]
        limit: usize,
        #[serde(default)]
        least: Option<f32>,
        #[serde(default)]
        rerank: bool,
        after: Option<DateTime<Utc>>,
        id: Option<Uuid>,
        by: Option<By>,
        parts: Option<Vec<Part>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum By {
        Dense,
        Hybrid,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its type counts")]
    struct Part {
        text: String,
    }

    /// The field and the message for a body.
    fn told(body: &str) -> (String, String) {
        let rejection = Json::<Asked>::from_bytes(body.as_bytes()).expect_err(body);
        let error = json!(ErrorBody::from(misfit(&rejection.body_text(), "body")));
        let text = |value: &Value| value.as_str().expect("it is a string").to_owned();
        let error = &error["error"];
        assert_eq!(error["code"], "invalid");
        (text(&error["details"]["field"]), text(&error["message"]))
    }

    #[test]
    fn each_misfit_names_the_field_and_says_how_to_write_it() {
        let whole = r#""name": "n""#;
        for (body, field, message) in [
            ("{}", "name", "name is missing: send it"),
            (r#"{"name": 5}"#, "name", "name must be a string, not 5"),
            (
                r#"{"name": null}"#,
                "name",
                "name must be a string, not null",
            ),
            ("[]", "body", "the body must be an object"),
            ("[1]", "body", ""),
            ("7", "body", "the body must be an object, not 7"),
        ] {
            let (told_field, told_message) = told(body);
            assert_eq!(told_field, field, "{body}: {told_message}");
            if !message.is_empty() {
                assert_eq!(told_message, message, "{body}");
            }
        }
        for (rest, field, message) in [
            (
                r#""limit": "ten""#,
                "limit",
                "limit must be a whole number, not the string \"ten\"",
            ),
            (
                r#""limit": -1"#,
                "limit",
                "limit must be a whole number, not -1",
            ),
            (
                r#""limit": 1.5"#,
                "limit",
                "limit must be a whole number, not 1.5",
            ),
            (
                r#""least": [1]"#,
                "least",
                "least must be a number, not a list",
            ),
            (
                r#""rerank": "yes""#,
                "rerank",
                "rerank must be true or false, not the string \"yes\"",
            ),
            (
                r#""after": "yesterday""#,
                "after",
                "after must be a time such as 2026-03-01T12:00:00Z",
            ),
            (
                r#""after": "2026-03-01""#,
                "after",
                "after must be a time such as 2026-03-01T12:00:00Z",
            ),
            (
                r#""after": "2026-03-01T12:00:00Zz""#,
                "after",
                "after must be a time such as 2026-03-01T12:00:00Z",
            ),
            (
                r#""after": "2026-13-41T12:00:00Z""#,
                "after",
                "after must be a time such as 2026-03-01T12:00:00Z",
            ),
            (
                r#""after": 5"#,
                "after",
                "after must be a time such as 2026-03-01T12:00:00Z, not 5",
            ),
            (
                r#""id": "abc""#,
                "id",
                "id must be a UUID such as 6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10",
            ),
            (
                r#""id": 5"#,
                "id",
                "id must be a UUID such as 6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10, not 5",
            ),
            (
                r#""by": "luck""#,
                "by",
                "by must be dense or hybrid, not \"luck\"",
            ),
            (
                r#""parts": {}"#,
                "parts",
                "parts must be a list, not an object",
            ),
            (
                r#""parts": [{"text": "a"}, {"text": 1}]"#,
                "text",
                "parts[1].text must be a string, not 1",
            ),
            (
                r#""parts": [5]"#,
                "parts",
                "parts[0] must be an object, not 5",
            ),
            (
                r#""parts": [{"text": "a", "tail: `, expected `": 1}]"#,
                "tail: `, expected `",
                "",
            ),
            (
                r#""parts": [{}]"#,
                "text",
                "parts[0].text is missing: send it",
            ),
            (
                r#""colour": "red""#,
                "colour",
                "colour is no field of the request; the fields are name, limit, least, rerank, \
                 after, id, by, parts",
            ),
            (
                r#""name": "m""#,
                "name",
                "name is there twice: send it once",
            ),
        ] {
            let (told_field, told_message) = told(&format!("{{{whole}, {rest}}}"));
            if message.is_empty() {
                assert!(!told_message.is_empty(), "{rest}");
                continue;
            }
            assert_eq!((&*told_field, &*told_message), (field, message), "{rest}");
        }
    }
}
