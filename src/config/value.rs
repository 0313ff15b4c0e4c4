//! Reads one value of a TOML document, or says why it is invalid.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Serialize;
use serde_json::json;
use toml::de::DeValue;

use super::Secret;

/// Why a value is invalid, and what it must be. Never contains the value of a secret.
pub(super) type Refusal = String;

/// An integer type of a setting.
pub(super) trait Int: TryFrom<i64> + Copy + PartialOrd + Display {}

impl<T: TryFrom<i64> + Copy + PartialOrd + Display> Int for T {}

pub(super) fn integer<T: TryFrom<i64>>(value: &DeValue<'_>) -> Result<T, Refusal> {
    let DeValue::Integer(integer) = value else {
        return Err(format!("must be a whole number, not {}", kind(value)));
    };
    i64::from_str_radix(integer.as_str(), integer.radix())
        .ok()
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{integer} is out of range"))
}

pub(super) fn number(value: &DeValue<'_>) -> Result<f64, Refusal> {
    match value {
        DeValue::Float(float) => float
            .as_str()
            .parse::<f64>()
            .map_err(|error| error.to_string()),
        // `k = 1` is valid for a float.
        DeValue::Integer(_) => integer::<i64>(value).map(|whole| whole as f64),
        other => Err(format!("must be a number, not {}", kind(other))),
    }
}

/// What the word stands for.
pub(super) fn one_of<T: Copy + Serialize>(given: &str, values: &[T]) -> Result<T, Refusal> {
    let found = values.iter().find(|value| json!(value) == given);
    let found = found.copied();
    found.ok_or_else(|| format!("must be {}, not {given:?}", quoted(values, " or ")))
}

pub(super) fn in_range<T: PartialOrd + Display>(
    value: T,
    range: &RangeInclusive<T>,
) -> Result<T, Refusal> {
    if range.contains(&value) {
        return Ok(value);
    }
    Err(format!(
        "must be from {} to {}, not {value}",
        range.start(),
        range.end()
    ))
}

/// The value as JSON. Tables come in the order of their keys.
pub(super) fn json(value: &DeValue<'_>) -> Result<serde_json::Value, Refusal> {
    Ok(match value {
        DeValue::String(text) => text.as_ref().into(),
        DeValue::Integer(_) => integer::<i64>(value)?.into(),
        DeValue::Float(_) => number(value)?.into(),
        DeValue::Boolean(flag) => (*flag).into(),
        DeValue::Array(values) => {
            let values = values.iter().map(|value| json(value.get_ref()));
            values.collect::<Result<Vec<_>, _>>()?.into()
        }
        DeValue::Table(table) => {
            let fields = table.iter().map(|(name, value)| {
                let name = name.get_ref().as_ref().to_owned();
                Ok((name, json(value.get_ref())?))
            });
            let fields = fields.collect::<Result<std::collections::BTreeMap<_, _>, Refusal>>()?;
            fields.into_iter().collect()
        }
        DeValue::Datetime(_) => return Err("must not be a date: JSON has none".to_owned()),
    })
}

pub(super) fn string<'v>(value: &'v DeValue<'_>) -> Result<&'v str, Refusal> {
    value
        .as_str()
        .ok_or_else(|| format!("must be a string, not {}", kind(value)))
}

pub(super) fn checked(
    text: &str,
    check: impl Fn(&str) -> Result<(), Refusal>,
) -> Result<String, Refusal> {
    check(text).map(|()| text.to_owned())
}

/// Where a document finds what it names.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    /// Looks up environment variables.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    /// Where relative paths start.
    pub(super) folder: &'a Path,
    /// Otherwise every secret is empty, and none is required.
    pub(super) has_secrets: bool,
}

/// The value that a secret stands for.
pub(super) fn resolve(
    written: &str,
    surroundings: Surroundings<'_>,
    check: &dyn Fn(&str) -> Result<(), Refusal>,
) -> Result<Secret, Refusal> {
    let Surroundings {
        env,
        folder,
        has_secrets,
    } = surroundings;
    if !has_secrets {
        return Ok(Secret::new(""));
    }
    let value = if let Some(name) = written.strip_prefix("env:") {
        env(name).ok_or_else(|| format!("the environment variable {name} is not set"))?
    } else if let Some(path) = written.strip_prefix("file:") {
        let path = folder.join(path);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read the file {}: {error}", path.display()))?;
        text.trim_end_matches(['\r', '\n']).to_owned()
    } else {
        written.to_owned()
    };
    if value.is_empty() {
        return Err("is empty".to_owned());
    }
    check(&value)?;
    Ok(Secret::new(value))
}

/// A range, as a reader writes it.
pub(super) fn span<T: Display>(range: &RangeInclusive<T>) -> String {
    format!("{} to {}", range.start(), range.end())
}

/// The words of these values, as TOML has them.
pub(super) fn quoted<T: Serialize>(values: &[T], between: &str) -> String {
    let words: Vec<_> = values
        .iter()
        .map(|value| json!(value).to_string())
        .collect();
    words.join(between)
}

pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
