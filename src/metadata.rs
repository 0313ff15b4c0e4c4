//! The fields of `memory_notes.metadata` that searches filter by: their types, and the conditions of a filter.
//!
//! Postgres decides which value a field has (`elf_metadata_value`): payloads and filters have values of that form.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, NaiveDate, NaiveTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::note::holds_nul;

/// Most fields that may be declared: each is an index of the vector engine.
pub const MAX_FIELDS: usize = 50;

/// Most values of an `any`.
const MAX_VALUES: usize = 100;

/// Most bytes of a text, as of a label.
const MAX_TEXT: usize = 1000;

/// An engine compares integers as f64, which holds each up to here.
const MAX_INTEGER: i64 = 1 << 53;

/// The type of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FieldType {
    /// A text, compared as a whole.
    Keyword,
    /// A list of such texts; a filter asks for one of them.
    Keywords,
    /// An integer between -2^53 and 2^53.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A time as in RFC 3339, or a date, which is its midnight in UTC.
    Datetime,
}

impl FieldType {
    /// All types, in their order in the book.
    pub const ALL: [Self; 6] = [
        Self::Keyword,
        Self::Keywords,
        Self::Integer,
        Self::Number,
        Self::Boolean,
        Self::Datetime,
    ];

    /// Its word in `elf.toml` and in Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keyword => "keyword",
            Self::Keywords => "keywords",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Datetime => "datetime",
        }
    }

    /// The type of this word.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|each| each.name() == name)
    }

    fn has_order(self) -> bool {
        matches!(self, Self::Integer | Self::Number | Self::Datetime)
    }

    /// The type that a value suggests, for a message.
    fn of_value(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Boolean,
            Value::Number(number) if number.is_f64() => Self::Number,
            Value::Number(_) => Self::Integer,
            Value::Array(_) => Self::Keywords,
            Value::String(text) if time(text).is_some() => Self::Datetime,
            Value::Object(wanted) => wanted.values().next().map_or(Self::Keyword, |value| {
                match (value, wanted.contains_key("any")) {
                    (Value::Array(values), true) => {
                        values.first().map_or(Self::Keyword, Self::of_value)
                    }
                    (Value::Bool(_), _) => Self::Keyword,
                    _ => Self::of_value(value),
                }
            }),
            _ => Self::Keyword,
        }
    }
}

/// Most bytes of a note's metadata as JSON.
const MAX_BYTES: usize = 16 << 10;

/// Checks that a note can have this metadata.
pub fn check(metadata: &Map<String, Value>) -> Result<(), String> {
    let bytes = stored_bytes(&json!(metadata));
    if bytes > MAX_BYTES {
        return Err(format!(
            "metadata has {bytes} bytes; at most {MAX_BYTES} are possible"
        ));
    }
    let has_nul = |(name, value): (&String, &Value)| name.contains('\0') || holds_nul(value);
    match metadata.iter().any(has_nul) {
        true => Err("metadata has a NUL character".into()),
        false => Ok(()),
    }
}

/// How many bytes Postgres shows of a value, about: it writes 1e300 with 301 digits.
fn stored_bytes(value: &Value) -> usize {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(number) => format!("{number}").len(),
            None => number.to_string().len(),
        },
        Value::Array(values) => {
            2 + values
                .iter()
                .map(|value| stored_bytes(value) + 2)
                .sum::<usize>()
        }
        Value::Object(fields) => {
            let bytes = |(name, value): (&String, &Value)| {
                json!(name).to_string().len() + stored_bytes(value) + 4
            };
            2 + fields.iter().map(bytes).sum::<usize>()
        }
        other => other.to_string().len(),
    }
}

/// The declared fields, by name.
pub type Declared = BTreeMap<String, FieldType>;

/// The fields that one has and the other lacks, or has with another type.
pub fn changed(known: &Declared, wanted: &Declared) -> Vec<String> {
    let names: BTreeSet<&String> = known.keys().chain(wanted.keys()).collect();
    let changed = names.into_iter();
    let changed = changed.filter(|name| known.get(*name) != wanted.get(*name));
    changed.cloned().collect()
}

/// What the database and a configuration say of each field of which they do not say the same.
pub fn differences(declared: &Declared, configured: &Declared) -> Vec<String> {
    let said = |fields: &Declared, name: &str| match fields.get(name) {
        Some(kind) => format!("{:?}", kind.name()),
        None => "undeclared".to_owned(),
    };
    let difference = |name: String| {
        let (here, there) = (said(declared, &name), said(configured, &name));
        format!("{name} is {here} in the database, {there} in [metadata]")
    };
    changed(declared, configured)
        .into_iter()
        .map(difference)
        .collect()
}

/// Checks the name of a field: the vector engine reads it as part of a path.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !name.is_empty() && name.len() <= 50 && name.chars().all(is_plain) {
        true => Ok(()),
        false => Err(format!(
            "the field {name:?} has another name than 1 to 50 letters of ASCII, digits, _ and -"
        )),
    }
}

/// What a filter asks of the fields of a note, by name.
pub type Conditions = BTreeMap<String, Condition>;

/// What a filter asks of a field. Everything that is set must hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Condition {
    /// The declared type.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// Whether the field must have a value, or must have none.
    pub exists: bool,
    /// One of these values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<Value>>,
    /// At least this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gte: Option<Value>,
    /// More than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gt: Option<Value>,
    /// At most this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lte: Option<Value>,
    /// Less than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lt: Option<Value>,
}

impl Condition {
    /// Whether it has one of the four bounds.
    pub fn has_range(&self) -> bool {
        [&self.gte, &self.gt, &self.lte, &self.lt]
            .into_iter()
            .any(Option::is_some)
    }
}

/// Reads what a filter asks: `{"lang": "de", "priority": {"gte": 3}, "tags": {"any": ["bug", "ui"]}, "seen": {"exists": false}}`.
/// The error is a sentence that begins with the field.
pub fn conditions(asked: &Map<String, Value>, declared: &Declared) -> Result<Conditions, String> {
    asked
        .iter()
        .map(|(name, wanted)| {
            let Some(kind) = declared.get(name) else {
                return Err(not_declared(name, wanted, declared));
            };
            let condition = condition(*kind, wanted);
            Ok((
                name.clone(),
                condition.map_err(|problem| format!("metadata.{name} {problem}"))?,
            ))
        })
        .collect()
}

fn not_declared(name: &str, wanted: &Value, declared: &Declared) -> String {
    if let Err(problem) = check_name(name) {
        return problem;
    }
    let names: Vec<&str> = declared.keys().map(String::as_str).collect();
    let known = match names[..] {
        [] => "no field is".to_owned(),
        _ => format!("declared are {}", names.join(", ")),
    };
    format!(
        "metadata.{name} is not declared; {known}. To filter by it, write {name} = {:?} in [metadata] of elf.toml and \
         restart the workers",
        FieldType::of_value(wanted).name()
    )
}

fn condition(kind: FieldType, wanted: &Value) -> Result<Condition, String> {
    let mut condition = Condition {
        kind,
        exists: true,
        any: None,
        gte: None,
        gt: None,
        lte: None,
        lt: None,
    };
    let Value::Object(asked) = wanted else {
        match wanted {
            Value::Null => condition.exists = false,
            Value::Array(values) => condition.any = Some(any(kind, values)?),
            one => condition.any = Some(vec![canonical(kind, one)?]),
        }
        return Ok(condition);
    };
    for (word, value) in asked {
        let bound = match word.as_str() {
            "any" => {
                let values = value.as_array().ok_or("has an any that is no list")?;
                condition.any = Some(any(kind, values)?);
                continue;
            }
            "exists" => {
                condition.exists = value
                    .as_bool()
                    .ok_or("has an exists that is neither true nor false")?;
                continue;
            }
            "gte" => &mut condition.gte,
            "gt" => &mut condition.gt,
            "lte" => &mut condition.lte,
            "lt" => &mut condition.lt,
            _ => {
                return Err(format!(
                    "has the unknown word {word:?}: use any, gte, gt, lte, lt or exists"
                ));
            }
        };
        if !kind.has_order() {
            return Err(format!(
                "is declared as {:?}, which has no {word}: use any",
                kind.name()
            ));
        }
        *bound = Some(canonical_bound(kind, value)?);
    }
    if asked.is_empty() {
        return Err("asks for nothing: use any, gte, gt, lte, lt or exists".into());
    }
    if !condition.exists && (condition.any.is_some() || condition.has_range()) {
        return Err("has exists = false beside another word".into());
    }
    Ok(condition)
}

fn any(kind: FieldType, values: &[Value]) -> Result<Vec<Value>, String> {
    match values.len() {
        1..=MAX_VALUES => values.iter().map(|value| canonical(kind, value)).collect(),
        n => Err(format!(
            "asks for one of {n} values: 1 to {MAX_VALUES} are possible"
        )),
    }
}

/// The value in the form in which payloads have it.
fn canonical(kind: FieldType, value: &Value) -> Result<Value, String> {
    let found = match (kind, value) {
        (FieldType::Keyword | FieldType::Keywords, Value::String(text)) => {
            let is_possible = (1..=MAX_TEXT).contains(&text.len()) && !text.contains('\0');
            is_possible.then(|| value.clone())
        }
        (FieldType::Integer, Value::Number(_)) => integer(value).map(Value::from),
        (FieldType::Number, Value::Number(number)) => number.as_f64().map(Value::from),
        (FieldType::Boolean, Value::Bool(_)) => Some(value.clone()),
        (FieldType::Datetime, Value::String(text)) => time(text).map(|time| text_of(time).into()),
        _ => None,
    };
    found.ok_or_else(|| {
        let form = match kind {
            FieldType::Keyword | FieldType::Keywords => "a string of 1 to 1,000 bytes",
            FieldType::Integer => "an integer between -2^53 and 2^53",
            FieldType::Number => "a number",
            FieldType::Boolean => "true or false",
            FieldType::Datetime => "a time such as \"2026-03-01T12:00:00Z\", or a date",
        };
        format!(
            "is declared as {:?}, so {value} must be {form}",
            kind.name()
        )
    })
}

/// A bound of integers may be a fraction.
fn canonical_bound(kind: FieldType, value: &Value) -> Result<Value, String> {
    match (kind, value.as_f64()) {
        (FieldType::Integer, Some(number)) => Ok(number.into()),
        _ => canonical(kind, value),
    }
}

fn integer(value: &Value) -> Option<i64> {
    let whole = |number: f64| {
        (number.fract() == 0.0 && number.abs() <= MAX_INTEGER as f64).then_some(number as i64)
    };
    let number = value.as_i64().or_else(|| whole(value.as_f64()?))?;
    (-MAX_INTEGER..=MAX_INTEGER)
        .contains(&number)
        .then_some(number)
}

/// The time that a text says, in whole microseconds.
pub fn time(text: &str) -> Option<DateTime<Utc>> {
    let date = || {
        Some(
            text.parse::<NaiveDate>()
                .ok()?
                .and_time(NaiveTime::MIN)
                .and_utc(),
        )
    };
    let time = match DateTime::parse_from_rfc3339(text) {
        Ok(time) => time.to_utc(),
        Err(_) => date()?,
    };
    (1..=9999)
        .contains(&time.year())
        .then(|| time.trunc_subsecs(6))
}

fn text_of(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// The argument of the command line that says the same as a condition of a body: `lang=de`, `tags=bug,ui`,
/// `priority>=3`, `seen` (it has a value) or `!seen`.
pub fn of_argument(text: &str, declared: &Declared) -> Result<(String, Condition), String> {
    let (name, wanted) = match text.find(['=', '<', '>']) {
        None => match text.strip_prefix('!') {
            Some(name) => (name, json!({"exists": false})),
            None => (text, json!({"exists": true})),
        },
        Some(at) => {
            let (name, rest) = text.split_at(at);
            let operators = [
                (">=", "gte"),
                ("<=", "lte"),
                (">", "gt"),
                ("<", "lt"),
                ("=", "any"),
            ];
            let (sign, word) = operators
                .into_iter()
                .find(|(sign, _)| rest.starts_with(sign))
                .expect("it begins with one of them");
            let kind = declared.get(name.trim()).copied();
            let value = |text: &str| of_word(kind, text.trim());
            let rest = &rest[sign.len()..];
            match word {
                "any" => (
                    name,
                    json!({"any": rest.split(',').map(value).collect::<Vec<_>>()}),
                ),
                _ => (name, json!({word: value(rest)})),
            }
        }
    };
    let name = name.trim();
    check_name(name).map_err(|_| {
        format!("{text:?} is no condition: write FIELD=VALUE, FIELD=VALUE,VALUE (one of them), FIELD>=VALUE, FIELD or !FIELD")
    })?;
    let asked = Map::from_iter([(name.to_owned(), wanted)]);
    let mut read = conditions(&asked, declared)?;
    let condition = read.remove(name).expect("it was asked for");
    Ok((name.to_owned(), condition))
}

fn of_word(kind: Option<FieldType>, word: &str) -> Value {
    let is_text = matches!(
        kind,
        Some(FieldType::Keyword | FieldType::Keywords | FieldType::Datetime)
    );
    let parsed = serde_json::from_str::<Value>(word).ok();
    let parsed = parsed.filter(|value| value.is_number() || value.is_boolean());
    match parsed {
        Some(value) if !is_text => value,
        _ => word.into(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_field_changes_if_it_comes_goes_or_has_another_type() {
        let fields = |fields: &[(&str, FieldType)]| -> Declared {
            fields
                .iter()
                .map(|(name, kind)| ((*name).to_owned(), *kind))
                .collect()
        };
        let known = fields(&[
            ("gone", FieldType::Keyword),
            ("other", FieldType::Integer),
            ("same", FieldType::Boolean),
        ]);
        let wanted = fields(&[
            ("new", FieldType::Datetime),
            ("other", FieldType::Number),
            ("same", FieldType::Boolean),
        ]);
        assert_eq!(changed(&known, &wanted), ["gone", "new", "other"]);
        assert_eq!(
            differences(&known, &wanted),
            [
                "gone is \"keyword\" in the database, undeclared in [metadata]",
                "new is undeclared in the database, \"datetime\" in [metadata]",
                "other is \"integer\" in the database, \"number\" in [metadata]",
            ]
        );
        assert!(changed(&known, &known).is_empty());
    }

    fn declared() -> Declared {
        FieldType::ALL
            .into_iter()
            .map(|kind| (format!("a-{}", kind.name()), kind))
            .collect()
    }

    fn read(asked: Value) -> Result<Value, String> {
        let Value::Object(asked) = asked else {
            panic!("{asked}");
        };
        conditions(&asked, &declared()).map(|conditions| json!(conditions))
    }

    #[test]
    fn every_form_of_a_condition_is_read() {
        for (asked, wanted) in [
            (json!({"a-keyword": "de"}), json!({"any": ["de"]})),
            (
                json!({"a-keyword": ["de", "en"]}),
                json!({"any": ["de", "en"]}),
            ),
            (
                json!({"a-keywords": {"any": ["bug"]}}),
                json!({"any": ["bug"]}),
            ),
            (json!({"a-keyword": null}), json!({"exists": false})),
            (
                json!({"a-boolean": {"exists": false}}),
                json!({"exists": false}),
            ),
            (json!({"a-integer": 3.0}), json!({"any": [3]})),
            (
                json!({"a-integer": {"gt": 2.5, "lte": 9}}),
                json!({"gt": 2.5, "lte": 9.0}),
            ),
            (json!({"a-number": 3}), json!({"any": [3.0]})),
            (json!({"a-boolean": true}), json!({"any": [true]})),
            (
                json!({"a-datetime": {"gte": "2026-03-01", "lt": "2026-03-01T14:00:00.1234567+02:00"}}),
                json!({"gte": "2026-03-01T00:00:00.000000Z", "lt": "2026-03-01T12:00:00.123456Z"}),
            ),
        ] {
            let name = asked.as_object().unwrap().keys().next().unwrap().clone();
            let mut expected = json!({"type": &name[2..], "exists": true});
            for (word, value) in wanted.as_object().unwrap() {
                expected[word] = value.clone();
            }
            assert_eq!(read(asked).unwrap()[&name], expected);
        }
    }

    #[test]
    fn what_cannot_be_asked_is_told_with_the_field() {
        for (asked, part) in [
            (
                json!({"a-keyword": 5}),
                "metadata.a-keyword is declared as \"keyword\", so 5 must be a string",
            ),
            (json!({"a-keyword": {"gte": "a"}}), "has no gte: use any"),
            (json!({"a-integer": 2.5}), "an integer"),
            (
                json!({"a-integer": 9_007_199_254_740_993_i64}),
                "an integer",
            ),
            (json!({"a-datetime": "yesterday"}), "a time such as"),
            (
                json!({"a-number": {"about": 3}}),
                "the unknown word \"about\"",
            ),
            (json!({"a-number": {}}), "asks for nothing"),
            (json!({"a-number": {"any": []}}), "one of 0 values"),
            (
                json!({"a-number": {"exists": false, "gte": 1}}),
                "beside another word",
            ),
            (
                json!({"lang": "de"}),
                "write lang = \"keyword\" in [metadata]",
            ),
            (
                json!({"size": {"gte": 3}}),
                "write size = \"integer\" in [metadata]",
            ),
            (
                json!({"at": {"lt": "2026-01-01"}}),
                "write at = \"datetime\" in [metadata]",
            ),
            (json!({"a.b": 1}), "has another name"),
        ] {
            let problem = read(asked.clone()).unwrap_err();
            assert!(problem.contains(part), "{asked}: {problem}");
        }
    }

    #[test]
    fn an_argument_says_what_a_body_says() {
        for (argument, asked) in [
            ("a-keyword=de", json!({"a-keyword": "de"})),
            ("a-keyword=5", json!({"a-keyword": "5"})),
            (
                "a-keywords=bug, ui",
                json!({"a-keywords": {"any": ["bug", "ui"]}}),
            ),
            ("a-integer >= 3", json!({"a-integer": {"gte": 3}})),
            ("a-number<0.5", json!({"a-number": {"lt": 0.5}})),
            ("a-boolean=true", json!({"a-boolean": true})),
            (
                "a-datetime>2026-03-01",
                json!({"a-datetime": {"gt": "2026-03-01"}}),
            ),
            ("a-datetime", json!({"a-datetime": {"exists": true}})),
            ("!a-datetime", json!({"a-datetime": {"exists": false}})),
        ] {
            let (name, condition) = of_argument(argument, &declared()).unwrap();
            assert_eq!(json!({name: condition}), read(asked).unwrap(), "{argument}");
        }
        assert!(
            of_argument("lang=de", &declared())
                .unwrap_err()
                .contains("[metadata]")
        );
    }
}
