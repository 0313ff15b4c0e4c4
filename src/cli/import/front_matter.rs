//! The front matter of a text: YAML between lines of `---`, or TOML between lines of `+++`.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// Bytes of a text in which its front matter has to end. Its metadata could not be longer, and a `---` further on is
/// more likely a rule between two parts.
const MOST: usize = 64 << 10;

/// Values and keys in front matter: an alias of YAML can stand for many.
const MOST_NODES: usize = 10_000;

/// A text, with what its front matter says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Split<'t> {
    /// `None` if the text begins without front matter.
    pub fields: Option<Map<String, Value>>,
    /// What is behind it.
    pub text: Cow<'t, str>,
    /// Why what looks like front matter is a part of the text all the same.
    pub problem: Option<String>,
}

/// Takes the front matter off a text. What is no mapping of names is text: a line of `---` may be a rule as well.
pub(super) fn split(text: &str) -> Split<'_> {
    let whole = |problem| Split {
        fields: None,
        text: text.into(),
        problem,
    };
    let Some((fence, inner, behind)) = fenced(text) else {
        return whole(None);
    };
    let read = match fence {
        "---" => yaml(inner),
        _ => toml(inner),
    };
    match read {
        Ok(Some(fields)) => Split {
            fields: Some(fields),
            text: behind.trim_start_matches(['\r', '\n']).into(),
            problem: None,
        },
        Ok(None) => whole(None),
        Err(problem) => whole(Some(problem)),
    }
}

/// The fence of a text, what is between it and the next one, and what is behind that.
fn fenced(text: &str) -> Option<(&str, &str, &str)> {
    let mut lines = text.split_inclusive('\n');
    let first = lines.next()?;
    let fence = first.trim_end();
    if !matches!(fence, "---" | "+++") {
        return None;
    }
    let mut end = first.len();
    for line in lines {
        if line.trim_end() == fence {
            return Some((fence, &text[first.len()..end], &text[end + line.len()..]));
        }
        end += line.len();
        if end > MOST {
            break;
        }
    }
    None
}

fn yaml(text: &str) -> Result<Option<Map<String, Value>>, String> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MOST_NODES },
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(Value::Object(fields)) => Ok(Some(fields)),
        Ok(Value::Null) => Ok(Some(Map::new())),
        Ok(_) => Ok(None),
        Err(error) => Err(format!("its front matter is no YAML: {error}")),
    }
}

fn toml(text: &str) -> Result<Option<Map<String, Value>>, String> {
    match toml::from_str::<toml::Table>(text) {
        Ok(table) => Ok(Some(json_table(table))),
        Err(error) => Err(format!(
            "its front matter is no TOML: {}",
            error.message().trim_end()
        )),
    }
}

fn json_table(table: toml::Table) -> Map<String, Value> {
    let fields = table.into_iter();
    fields.map(|(name, value)| (name, json(value))).collect()
}

/// TOML has times, which JSON writes as text, and `nan`, which it writes as null.
fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(values) => values.into_iter().map(json).collect(),
        toml::Value::Table(table) => Value::Object(json_table(table)),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use serde_json::json;

    use super::*;

    fn fields(text: &str) -> Value {
        let split = split(text);
        assert_eq!(split.problem, None, "{text}");
        assert_eq!(split.text, "Behind.", "{text}");
        Value::Object(split.fields.unwrap())
    }

    #[test]
    fn yaml_and_toml_are_read() {
        let yaml = "---\ntitle: \"A: B\"  # c\ntags: [a, b]\ndate: 2026-05-01\nat: 2026-05-01T10:00:00Z\n\
                    of:\n  page: 7\n  share: 0.5\n  draft: true\nv: '1.10'\n---\n\nBehind.";
        let expected = json!({
            "title": "A: B", "tags": ["a", "b"], "date": "2026-05-01", "at": "2026-05-01T10:00:00Z",
            "of": {"page": 7, "share": 0.5, "draft": true}, "v": "1.10",
        });
        assert_eq!(fields(yaml), expected);
        assert_eq!(fields(&yaml.replace('\n', "\r\n")), expected);
        let toml = "+++\ntitle = 'A: B'\ntags = ['a', 'b']\ndate = 2026-05-01\nat = 2026-05-01T10:00:00Z\nv = '1.10'\n\
                    [of]\npage = 7\nshare = 0.5\ndraft = true\n+++\nBehind.";
        assert_eq!(fields(toml), expected);
        assert_eq!(fields("---\n---\nBehind."), json!({}));
        assert_eq!(fields("---\n# nothing\n--- \nBehind."), json!({}));
    }

    #[test]
    fn a_rule_is_no_front_matter() {
        for text in [
            "---\nA first part.\n\n---\n\nA second one.",
            "---\n- a list\n---\nText",
            "---\ntitle: not closed",
            "----\na: b\n----\n",
            "\n---\na: b\n---\n",
            "+++\nc = 1\n---\n",
            "---",
            "",
            "Text.",
        ] {
            let expected = Split {
                text: text.into(),
                ..Split::default()
            };
            assert_eq!(split(text), expected, "{text}");
        }
        let far = format!("---\n{}\n---\nBehind.", "a: b\n".repeat(20_000));
        assert_eq!(split(&far).text, far);
    }

    #[test]
    fn what_cannot_be_read_stays_in_the_text_and_is_named() {
        let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for (last, next) in ('a'..'k').zip('b'..='k') {
            let aliases = vec![format!("*{last}"); 9].join(",");
            bomb += &format!("{next}: &{next} [{aliases}]\n");
        }
        let deep = format!("a: {}", "[".repeat(50_000));
        let deep_toml = format!("a = {}{}", "[".repeat(20_000), "]".repeat(20_000));
        for (fence, inner) in [
            ("---", "title: A: B"),
            ("---", "a: 1\na: 2"),
            ("---", "a: &a [*a]"),
            ("---", "a: {{ jinja }}"),
            ("---", bomb.trim_end()),
            ("---", &deep),
            ("+++", "a = "),
            ("+++", &deep_toml),
        ] {
            let text = format!("{fence}\n{inner}\n{fence}\nBehind.");
            let split = split(&text);
            assert_eq!((split.fields, &*split.text), (None, &*text));
            let problem = split.problem.unwrap();
            assert!(problem.starts_with("its front matter is no"), "{problem}");
            assert!(problem.lines().count() == 1, "{problem}");
        }
    }
}
