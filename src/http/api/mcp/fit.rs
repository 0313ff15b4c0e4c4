//! How much of an answer fits: a model reads all of it, and clients refuse long ones.

use serde_json::Value;

/// Most bytes of an answer as it is sent.
pub const MAX_ANSWER: usize = 100_000;

/// What is around the text of an answer.
const ENVELOPE: usize = 400;

/// Most bytes of the JSON that is the text of an answer, as [`cost`] counts them.
pub const MAX_COST: usize = MAX_ANSWER - ENVELOPE;

/// What a value costs as JSON in a string of the answer, which is JSON too.
pub fn cost(value: &Value) -> usize {
    value.to_string().chars().map(escaped_once).sum()
}

/// What a character of a text costs in JSON in a string of JSON.
fn escaped_twice(c: char) -> usize {
    match c {
        '"' | '\\' => 4,
        '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 3,
        '\0'..='\u{1f}' => 7,
        _ => c.len_utf8(),
    }
}

fn escaped_once(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

/// The beginning of `text` that has at most `max_bytes` and costs at most `max_cost`, and one character in any case.
pub fn beginning(text: &str, max_bytes: usize, max_cost: usize) -> &str {
    let mut spent = 0;
    let end = text.char_indices().find_map(|(at, c)| {
        spent += escaped_twice(c);
        let is_over = at + c.len_utf8() > max_bytes || spent > max_cost;
        (is_over && at > 0).then_some(at)
    });
    &text[..end.unwrap_or(text.len())]
}

/// As many of `items` as `max_cost` allows, best first. With fields `more`, half of it is for the items without them.
/// The rest is for these fields, in their order, of as many items as it is enough for.
pub fn items(items: Vec<Value>, more: &[&str], max_cost: usize) -> Vec<Value> {
    let most = match more {
        [] => max_cost,
        _ => max_cost / 2,
    };
    let mut spent = 0;
    let mut fitting: Vec<(Value, Value)> = Vec::new();
    for mut item in items {
        let mut rest = Value::Object(serde_json::Map::new());
        for name in more {
            if let Some(value) = item.as_object_mut().and_then(|item| item.remove(*name)) {
                rest[*name] = value;
            }
        }
        let needed = cost(&item) + 1;
        if spent + needed > most {
            break;
        }
        spent += needed;
        fitting.push((item, rest));
    }
    for name in more {
        for (item, rest) in &mut fitting {
            let Some(value) = rest.get(*name) else {
                continue;
            };
            let added = cost(value) + cost(&Value::from(*name)) + 2;
            if spent + added > max_cost {
                break;
            }
            spent += added;
            item[*name] = value.clone();
        }
    }
    fitting.into_iter().map(|(item, _)| item).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cost_is_what_is_sent() {
        let every: String = (0..0x1_1000).filter_map(char::from_u32).collect();
        for text in [&*every, "plain", "a \"b\" \\ \n\t\u{7f}\u{1}é日🦓", ""] {
            let sent = |value: &Value| Value::from(value.to_string()).to_string().len() - 2;
            let value = json!({ "text": text });
            assert_eq!(cost(&value), sent(&value));
            let of_text: usize = text.chars().map(escaped_twice).sum();
            assert_eq!(of_text, sent(&value) - sent(&json!({ "text": "" })));
        }
    }

    #[test]
    fn a_beginning_ends_between_characters_and_is_never_empty() {
        assert_eq!(beginning("日本語", 6, 100), "日本");
        assert_eq!(beginning("日本語", 7, 100), "日本");
        assert_eq!(beginning("日本語", 1, 100), "日");
        assert_eq!(beginning("\n\n\n", 100, 6), "\n\n");
        assert_eq!(beginning("", 100, 100), "");
        assert_eq!(beginning("abc", 3, 3), "abc");
    }

    #[test]
    fn what_does_not_fit_is_left_out_of_the_last_items_first() {
        let item = |id: u32| json!({ "id": id, "text": "t".repeat(20), "context": "c".repeat(50) });
        let given: Vec<Value> = (0..3).map(item).collect();
        let all = items(given.clone(), &["text", "context"], 10_000);
        assert_eq!(all, given);
        for most in 0..600 {
            let fitting = items(given.clone(), &["text", "context"], most);
            assert!(cost(&json!(fitting)) <= most + 2, "{most}");
            let has = |name: &str| {
                fitting
                    .iter()
                    .map(|item| item.get(name).is_some())
                    .collect::<Vec<_>>()
            };
            assert!(
                has("text").is_sorted_by(|a, b| a >= b)
                    && has("context").is_sorted_by(|a, b| a >= b)
            );
            if has("context").contains(&true) {
                assert!(!has("text").contains(&false), "{most}");
            }
        }
    }
}
