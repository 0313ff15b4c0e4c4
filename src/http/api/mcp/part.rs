//! A note as an agent reads it: a part of its text at a time.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use super::super::auth::Caller;
use super::super::error::ApiError;
use super::super::notes::no_note;
use super::super::{Api, Shared};
use super::fit;

/// Bytes of text in an answer that is not asked for more: about 10,000 tokens of English.
const DEFAULT_LIMIT: usize = 40_000;

/// Most bytes of a character, without its first.
const MAX_REST: usize = 3;

/// Which part of which note.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PartRequest {
    /// The id of the note, a UUID.
    note_id: Uuid,
    /// Where the part begins: a UTF-8 byte offset into the text.
    #[serde(default)]
    #[schema(default = 0)]
    offset: usize,
    /// Bytes of the text at most. An answer has 100 kB at most.
    #[serde(default = "default_limit")]
    #[schema(default = 40000)]
    limit: usize,
}

fn default_limit() -> usize {
    DEFAULT_LIMIT
}

/// The note, with the part of its text that was asked for and fits.
pub async fn show(
    shared: &Arc<Shared>,
    caller: &Caller,
    asked: PartRequest,
) -> Result<Value, ApiError> {
    if asked.limit == 0 {
        return Err(ApiError::invalid(
            "limit",
            "limit must be at least 1, not 0",
        ));
    }
    let Api { store, version, .. } = &shared.api;
    let notes = store
        .reachable_notes(&[asked.note_id], caller.reach(), version, 0)
        .await?;
    let offset = i32::try_from(asked.offset).unwrap_or(i32::MAX - 1);
    let most = asked.limit.min(fit::MAX_ANSWER) + MAX_REST;
    let part = store
        .note_part(asked.note_id, caller.reach(), offset, most as i32)
        .await?;
    let (Some(note), Some(part)) = (notes.into_iter().next(), part) else {
        return Err(no_note());
    };
    let total = part.text_bytes as usize;
    if asked.offset > total {
        let message = format!("offset is {}, and the text has {total} bytes", asked.offset);
        return Err(ApiError::invalid("offset", message));
    }
    let mut shown = json!(note);
    shown["updated_at"] = json!(part.updated_at);
    Ok(with_text(shown, &part.bytes, &asked, total))
}

/// The note with as much of the text in `bytes`, which begin at the offset, as was asked for and fits.
fn with_text(mut note: Value, bytes: &[u8], asked: &PartRequest, total: usize) -> Value {
    let (before, text) = characters(bytes);
    let start = asked.offset + before;
    note["text"] = json!("");
    note["start_offset"] = json!(start);
    note["end_offset"] = json!(total);
    note["text_bytes"] = json!(total);
    note["next_offset"] = json!(total);
    let rest = fit::MAX_COST.saturating_sub(fit::cost(&note));
    let text = fit::beginning(text, asked.limit, rest);
    let end = start + text.len();
    note["text"] = json!(text);
    note["end_offset"] = json!(end);
    note["next_offset"] = json!((end < total).then_some(end));
    note
}

/// The whole characters of a slice of UTF-8, and how many bytes of another one are before them.
fn characters(bytes: &[u8]) -> (usize, &str) {
    let is_rest = |byte: &&u8| **byte & 0b1100_0000 == 0b1000_0000;
    let before = bytes.iter().take_while(is_rest).count();
    let whole = &bytes[before..];
    let text = std::str::from_utf8(whole).unwrap_or_else(|cut| {
        let valid = &whole[..cut.valid_up_to()];
        std::str::from_utf8(valid).expect("it is valid up to there")
    });
    (before, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text part by part, as an agent does.
    fn read(text: &str, limit: usize) -> String {
        let (mut read, mut offset) = (String::new(), 0);
        loop {
            let asked = PartRequest {
                note_id: Uuid::nil(),
                offset,
                limit,
            };
            let bytes = &text.as_bytes()[offset..];
            let bytes = &bytes[..bytes.len().min(limit.min(fit::MAX_ANSWER) + MAX_REST)];
            let part = with_text(json!({}), bytes, &asked, text.len());
            assert!(fit::cost(&part) <= fit::MAX_COST);
            assert_eq!(part["start_offset"], offset);
            read.push_str(part["text"].as_str().expect("a text"));
            match part["next_offset"].as_u64() {
                Some(next) => offset = next as usize,
                None => return read,
            }
        }
    }

    #[test]
    fn the_parts_of_a_text_are_the_text() {
        let long = "Tide \"almanac\" \n 日本語 🦓 é\u{1}\\".repeat(4000);
        for text in ["", "a", "日", "🦓🦓🦓", "é\n\n日本", &*long] {
            for limit in [1, 2, 3, 5, 40_000, 1_000_000] {
                if limit < 100 && text.len() > 100 {
                    continue;
                }
                assert_eq!(read(text, limit), text, "{limit}");
            }
        }
    }

    #[test]
    fn an_offset_within_a_character_begins_at_the_next() {
        assert_eq!(characters(&"日本".as_bytes()[1..]), (2, "本"));
        assert_eq!(characters(&"日本".as_bytes()[..4]), (0, "日"));
        assert_eq!(characters(b""), (0, ""));
    }
}
