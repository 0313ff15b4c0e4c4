//! Reads what servers say, and keeps texts and keys out of messages. Servers often quote what they reject, and ELF
//! writes their messages to logs and to `last_error`, where no text of a note belongs.

/// Characters in a row that a message may not share with a text.
const QUOTE_CHARS: usize = 16;
/// Shorter texts are words that a message may contain by chance.
const SHORTEST_TEXT_CHARS: usize = 4;
/// Longest message that is kept.
const MAX_CHARS: usize = 300;

/// What a body says in these bytes: UTF-16 where it is, else UTF-8, with a mark for each byte
/// that is neither.
pub fn readable(body: &[u8]) -> String {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let (pairs, _) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        String::from_utf16_lossy(&units)
    };
    match body {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        // Without a mark, as HTML and JSON begin.
        [_, 0, _, 0, ..] => utf16(body, u16::from_le_bytes),
        [0, _, 0, _, ..] => utf16(body, u16::from_be_bytes),
        _ => String::from_utf8_lossy(body).into_owned(),
    }
}

/// `message` on one line of at most `MAX_CHARS`, with every quote of one of
/// `texts` and each of `secrets` replaced, and without characters that Postgres or a terminal
/// does not take for text.
pub fn redact(message: &str, texts: &[&str], secrets: &[&str]) -> String {
    // Postgres refuses U+0000 in a text, so no text holds one.
    let mut message = message.replace('\0', "");
    // Before the message is cut: half a key would not match, and would be shown.
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        message = message.replace(secret, "***");
    }
    let mut message: Vec<char> = message.chars().take(4 * MAX_CHARS).collect();
    hide(&mut message, texts);
    let visible = |letter| if is_invisible(letter) { ' ' } else { letter };
    let message: String = message.into_iter().map(visible).collect();
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Control characters, and those that turn the direction of writing.
fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn hide(message: &mut Vec<char>, texts: &[&str]) {
    let mut hidden = vec![false; message.len()];
    for text in texts {
        let width = text.chars().take(QUOTE_CHARS).count();
        if width < SHORTEST_TEXT_CHARS {
            continue;
        }
        for (start, window) in message.windows(width).enumerate() {
            let window: String = window.iter().collect();
            if text.contains(&window) {
                hidden[start..start + width].fill(true);
            }
        }
    }
    let mut index = 0;
    let mut shown = Vec::with_capacity(message.len());
    while index < message.len() {
        if !hidden[index] {
            shown.push(message[index]);
            index += 1;
            continue;
        }
        shown.extend("[…]".chars());
        while hidden.get(index) == Some(&true) {
            index += 1;
        }
    }
    *message = shown;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_never_quotes_a_text() {
        let text = "The patient was seen on Monday and complained of a headache.";
        let message = format!("input {text:?} is not valid");
        assert_eq!(redact(&message, &[text], &[]), "input \"[…]\" is not valid");
        assert_eq!(
            redact("can't embed: seen on Monday and complain...", &[text], &[]),
            "can't embed:[…]..."
        );
        assert_eq!(redact("bad input: Hugo", &["Hugo"], &[]), "bad input: […]");
    }

    #[test]
    fn a_message_never_tells_a_key() {
        assert_eq!(
            redact(
                "Incorrect API key provided: sk-12345",
                &[],
                &["sk-12345", ""]
            ),
            "Incorrect API key provided: ***"
        );
    }

    #[test]
    fn a_message_has_no_character_that_is_not_text() {
        let message = "bad \0 input\u{1b}[31m\u{202e}\u{7f}\r\nend";
        assert_eq!(redact(message, &[], &[]), "bad input [31m end");
        // A quote is found though the server put U+0000 into it.
        let text = "The patient was seen on Monday.";
        assert_eq!(redact("T\0he patient was seen on", &[text], &[]), "[…]");
    }

    #[test]
    fn a_message_is_read_in_the_encoding_that_it_has() {
        let utf16: Vec<u8> = "<b>bad</b>"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let marked = [&[0xff, 0xfe][..], &utf16].concat();
        for body in [&utf16, &marked] {
            assert_eq!(readable(body), "<b>bad</b>");
        }
        assert_eq!(readable(b"bad \xe9 input"), "bad \u{fffd} input");
        assert_eq!(readable(b""), "");
    }

    #[test]
    fn a_message_stays_one_readable_line() {
        let page = "<html>\n  <body>\n".repeat(500);
        let line = redact(&page, &[], &[]);
        assert!(line.chars().count() <= MAX_CHARS + 1);
        assert!(!line.contains('\n'));
        assert_eq!(redact("model not found", &["a"], &[]), "model not found");
    }
}
