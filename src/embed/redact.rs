//! Keeps texts and keys out of messages. Servers often quote what they reject, and ELF
//! writes their messages to logs and to `last_error`, where no text of a note belongs.

/// Characters in a row that a message may not share with a text.
const QUOTE_CHARS: usize = 16;
/// Shorter texts are words that a message may contain by chance.
const SHORTEST_TEXT_CHARS: usize = 4;
/// Longest message that is kept.
const MAX_CHARS: usize = 300;

/// `message` on one line of at most `MAX_CHARS`, with every quote of one of
/// `texts` and each of `secrets` replaced.
pub fn redact(message: &str, texts: &[&str], secrets: &[&str]) -> String {
    let mut message = message.to_owned();
    // Before the message is cut: half a key would not match, and would be shown.
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        message = message.replace(secret, "***");
    }
    let mut message: Vec<char> = message.chars().take(4 * MAX_CHARS).collect();
    hide(&mut message, texts);
    let message: String = message.into_iter().collect();
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
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
    fn a_message_stays_one_readable_line() {
        let page = "<html>\n  <body>\n".repeat(500);
        let line = redact(&page, &[], &[]);
        assert!(line.chars().count() <= MAX_CHARS + 1);
        assert!(!line.contains('\n'));
        assert_eq!(redact("model not found", &["a"], &[]), "model not found");
    }
}
