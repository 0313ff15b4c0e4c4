//! A bound on how deep blocks are nested.
//!
//! The parser compares each line with all open quotes and items. With thousands of them, each of
//! millions of blank lines costs thousands of steps. So what opens them beyond a line's first bytes is
//! replaced by letters: the parser then reads text, in the same place.

use std::borrow::Cow;

/// Bytes at the beginning of a line that may open quotes, lists and code.
const MAX_BYTES: usize = 64;

/// `text`, or a text of the same length whose blocks are nested as deep as [`MAX_BYTES`] allow.
pub(super) fn bounded(text: &str) -> Cow<'_, str> {
    let mut bytes = Cow::Borrowed(text.as_bytes());
    let mut start = 0;
    for line in text
        .as_bytes()
        .split_inclusive(|&byte| byte == b'\n' || byte == b'\r')
    {
        let opened = opening(line);
        let content = line.trim_ascii();
        // A rule of many signs opens nothing.
        let is_rule = content
            .iter()
            .all(|byte| content.first() == Some(byte) || *byte == b' ');
        if opened > MAX_BYTES && (!is_rule || content.starts_with(b">")) {
            let end = opened.min(line.trim_ascii_end().len()).max(MAX_BYTES);
            bytes.to_mut()[start + MAX_BYTES..start + end].fill(b'x');
        }
        start += line.len();
    }
    match bytes {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => {
            Cow::Owned(String::from_utf8(bytes).expect("letters in the place of other ASCII"))
        }
    }
}

/// Bytes of blanks, and of signs that open quotes and items, at the beginning of a line.
fn opening(line: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        let digits = line[at..]
            .iter()
            .take(9)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let sign = match byte {
            b' ' | b'\t' | b'>' => {
                at += 1;
                continue;
            }
            b'-' | b'+' | b'*' => 1,
            b'0'..=b'9' if matches!(line.get(at + digits), Some(b'.' | b')')) => digits + 1,
            _ => break,
        };
        if !line.get(at + sign).is_none_or(u8::is_ascii_whitespace) {
            break;
        }
        at += sign;
        if line
            .get(at)
            .is_none_or(|byte| matches!(byte, b'\r' | b'\n'))
        {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_left_as_it_is() {
        let text = "- a\n  > - b\n\n---\n1. c\n";
        assert!(matches!(bounded(text), Cow::Borrowed(_)));
        let rule = format!("{}\n", "-".repeat(200));
        assert_eq!(bounded(&rule), rule);
    }

    #[test]
    fn what_nests_too_deep_is_text() {
        let deep = format!("{}a\n\r\n{}b", "> ".repeat(1000), "- ".repeat(1000));
        let bounded = bounded(&deep);
        assert_eq!(bounded.len(), deep.len());
        assert_eq!(bounded.matches('>').count(), 32);
        assert_eq!(bounded.matches('-').count(), 32);
    }
}
