//! Values of arguments. An error says how to write the value.

use chrono::{DateTime, Datelike, Utc};
use reqwest::Url;
use uuid::Uuid;

/// An id that an error shows as an example.
const EXAMPLE: &str = "6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10";

/// A time of the years 1 to 9999: Postgres and the index hold no other.
pub fn time(text: &str) -> Result<DateTime<Utc>, String> {
    let time = text.parse().ok();
    let time = time.filter(|time: &DateTime<Utc>| (1..=9999).contains(&time.year()));
    time.ok_or_else(|| "write a time as 2026-03-01T12:00:00Z".into())
}

pub fn note_id(text: &str) -> Result<Uuid, String> {
    id(text, "the note_id of a row of memory_notes")
}

/// The outbox id or the note id of a dead letter.
pub fn dead_letter_id(text: &str) -> Result<Uuid, String> {
    id(text, "an id that `elf dead list` shows")
}

pub fn key_id(text: &str) -> Result<Uuid, String> {
    id(text, "an id that `elf key list` shows")
}

fn id(text: &str, which: &str) -> Result<Uuid, String> {
    let wrong = |_| format!("write {which}, such as {EXAMPLE}");
    text.parse().map_err(wrong)
}

/// A share in percent, from 0 to 100, as a number from 0 to 1.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("write percent, such as 10%".into()),
    }
}

/// A number from 0 to 1.
pub fn share(text: &str) -> Result<f32, String> {
    let share = text.parse().ok();
    let share = share.filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a number from 0 to 1".into())
}

/// A whole number from `MIN` to `MAX`.
pub fn whole<const MIN: u16, const MAX: u16>(text: &str) -> Result<u16, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (MIN..=MAX).contains(number));
    number.ok_or_else(|| format!("write a whole number from {MIN} to {MAX}"))
}

pub fn query(text: &str) -> Result<String, String> {
    filled(text, "the query is empty: write what to search for")
}

pub fn tenant(text: &str) -> Result<String, String> {
    filled(text, "the tenant is empty: write its name")
}

pub fn http_url(text: &str) -> Result<String, String> {
    let is_http = |url: &Url| ["http", "https"].contains(&url.scheme());
    match Url::parse(text).is_ok_and(|url| is_http(&url)) {
        true => Ok(text.trim().into()),
        false => Err("write a URL such as http://127.0.0.1:9465".into()),
    }
}

fn filled(text: &str, or: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err(or.into()),
        _ => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_date_and_a_zone() {
        for text in ["2026-03-01T12:00:00Z", "2026-03-01T14:00:00+02:00"] {
            assert_eq!(
                time(text).expect("it is a time").to_string(),
                "2026-03-01 12:00:00 UTC"
            );
        }
        for text in ["yesterday", "2026-03-01", "", "+99999-01-01T00:00:00Z"] {
            let wrong = time(text).expect_err(text);
            assert!(wrong.contains("2026-03-01T12:00:00Z"), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_within_their_range() {
        assert_eq!(whole::<1, 100>("7"), Ok(7));
        for text in ["0", "101", "seven", "-1", "1.5", "99999999"] {
            let wrong = whole::<1, 100>(text).expect_err(text);
            assert_eq!(wrong, "write a whole number from 1 to 100");
        }
        assert_eq!(share("0.5"), Ok(0.5));
        for text in ["NaN", "2", "half"] {
            assert!(share(text).is_err(), "{text}");
        }
    }
}
