//! What a text is made of.

use super::markdown::{MARK, front_matter};
use super::math;
use super::settings::Strategy;

impl Strategy {
    /// The strategy for `text`: itself, except for [`Strategy::Auto`]. That is Markdown if the text has
    ///
    /// - front matter, or
    /// - a heading: `#` at the beginning or behind a blank line, `##` and more anywhere, a line over `===`, or a
    ///   line behind a blank one over `---`, or
    /// - code between two fences, or
    /// - a table's delimiter row below a line with a `|`, or
    /// - display math over several lines, or
    /// - three items or quotes, and these are a tenth of the lines that are not blank,
    ///
    /// and else paragraphs. Items of a list begin with `-`, `*`, `+` or a number.
    pub fn of(&self, text: &str) -> &Self {
        match self {
            Self::Auto if is_markdown(text) => &Self::Markdown,
            Self::Auto => &Self::Paragraph,
            other => other,
        }
    }
}

fn is_markdown(text: &str) -> bool {
    if front_matter(text).is_some() {
        return true;
    }
    let (mut lines, mut marked, mut fences) = (0, 0, 0);
    let (mut above, mut before) = ("", "");
    for line in text.lines() {
        let content = line.trim_start_matches([' ', '\t', MARK]).trim_end();
        if content.is_empty() {
            (above, before) = (before, content);
            continue;
        }
        lines += 1;
        if is_heading(content) && (before.is_empty() || content.starts_with("##"))
            || is_underline(content, '=') && !before.is_empty()
            || is_underline(content, '-') && above.is_empty() && is_title(before)
            || is_delimiter_row(content) && before.contains('|')
        {
            return true;
        }
        fences += usize::from(content.starts_with("```") || content.starts_with("~~~"));
        if fences == 2 {
            return true;
        }
        marked += usize::from(is_item_or_quote(content));
        (above, before) = (before, content);
    }
    (marked >= 3 && marked * 10 >= lines) || !math::blocks(text).is_empty()
}

fn is_heading(line: &str) -> bool {
    let title = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - title.len())) && title.starts_with([' ', '\t'])
}

fn is_underline(line: &str, sign: char) -> bool {
    line.len() >= 3 && line.chars().all(|c| c == sign)
}

/// Whether a line over dashes is a title, not the last one of a paragraph or a rule.
fn is_title(line: &str) -> bool {
    line.len() <= 100 && line.contains(char::is_alphanumeric)
}

fn is_delimiter_row(line: &str) -> bool {
    line.bytes()
        .all(|byte| matches!(byte, b'|' | b'-' | b':' | b' ' | b'\t'))
        && line.contains("--")
        && line.contains('|')
}

fn is_item_or_quote(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = line.len() - number.len();
    let rest = match number.chars().next() {
        Some('>') if digits == 0 => return true,
        Some('-' | '*' | '+') if digits == 0 => &number[1..],
        Some('.' | ')') if (1..=3).contains(&digits) => &number[1..],
        _ => return false,
    };
    rest.starts_with([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_structure_are_markdown() {
        for text in [
            "# Title\n\nText.",
            "Text.\n\n## Section\nText.",
            "Text.\n## Section\nText.",
            "Tickets\n=======\nText.",
            "Tickets\n-------\nText.",
            "Text.\n\nTickets\n---\n\nText.",
            "Text.\n\n$$\na\n\n=\n$$\n",
            "\n---\ntitle: A\n---\nText.",
            "\u{feff}---\r\ntitle: A\r\n---\r\nText.",
            "---\ntitle: A\n---\nText.",
            "+++\ntitle = \"A\"\n+++\nText.",
            "Run:\n```sh\nls\n```\n",
            "a | b\n--|--\n1 | 2",
            "- milk\n- eggs\n- salt\n",
            "1. boil\n2. pour\n3. wait\n",
        ] {
            assert_eq!(Strategy::Auto.of(text), &Strategy::Markdown, "{text}");
        }
    }

    #[test]
    fn texts_without_it_are_paragraphs() {
        for text in [
            "",
            "\n\nOne paragraph.\nStill.\n\n",
            "#hashtag of the day",
            "let a = 1;\n# a comment\nlet b = 2;",
            "2024-05-01 12:00:01 INFO started\n2024-05-01 12:00:02 WARN - slow\n",
            "name;price\nsalt;2\n",
            "He said - well, nothing.\n- J.\n",
            "A note.\n\nAnother paragraph.",
            "\u{feff}A note.\r\n \r\nAnother paragraph.",
            "---\n\nText between rules.\n\n---",
            "Two lines\nof text.\n---\n\nMore.",
            "---\n---\n\nMore.",
        ] {
            assert_eq!(Strategy::Auto.of(text), &Strategy::Paragraph, "{text}");
        }
        assert_eq!(Strategy::Sentence.of("# A"), &Strategy::Sentence);
    }
}
