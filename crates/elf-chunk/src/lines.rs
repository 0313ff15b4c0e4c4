//! Where lines end: at `\n` or `\r`.
//!
//! To search for one byte, the library compares many at once. To search for two characters, it decodes each one.

/// The first end of a line in `text`.
pub(super) fn first_break(text: &str) -> Option<usize> {
    let at = text.find('\n');
    text[..at.unwrap_or(text.len())].find('\r').or(at)
}

/// The last end of a line in `text`.
pub(super) fn last_break(text: &str) -> Option<usize> {
    let at = text.rfind('\n');
    let from = at.map_or(0, |at| at + 1);
    let behind = text[from..].rfind('\r');
    behind.map(|behind| from + behind).or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaks_are_found() {
        for text in [
            "",
            "a",
            "a\nb",
            "a\rb",
            "a\r\nb",
            "\n\r",
            "a\nb\rc\nd",
            "é\ré",
        ] {
            assert_eq!(first_break(text), text.find(['\n', '\r']), "{text:?}");
            assert_eq!(last_break(text), text.rfind(['\n', '\r']), "{text:?}");
        }
    }
}
