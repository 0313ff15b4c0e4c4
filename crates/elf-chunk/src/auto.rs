//! What a text is made of.

use super::markdown::front_matter;
use super::settings::Strategy;

impl Strategy {
    /// The strategy for `text`: itself, except for [`Strategy::Auto`]. That is Markdown if the text has
    ///
    /// - front matter, or
    /// - a heading: `#` at the beginning or behind a blank line, `##` and more anywhere, or a line over `===`, or
    /// - code between two fences, or
    /// - a table's delimiter row below a line with a `|`, or
    /// - three items or quotes, and these are a tenth of the lines that are not blank,
    ///
    /// else paragraphs if it has a blank line between two lines, and else sentences. Items of a list begin
    /// with `-`, `*`, `+` or a number.
    pub fn of(&self, text: &str) -> &Self {
        match self {
            Self::Auto if is_markdown(text) => &Self::Markdown,
            Self::Auto if has_paragraphs(text) => &Self::Paragraph,
            Self::Auto => &Self::Sentence,
            other => other,
        }
    }
}

fn is_markdown(text: &str) -> bool {
    if front_matter(text).is_some() {
        return true;
    }
    let (mut lines, mut marked, mut fences) = (0, 0, 0);
    let mut before = "";
    for line in text.lines() {
        let content = line.trim_start_matches([' ', '\t', '\u{feff}']).trim_end();
        if content.is_empty() {
            before = content;
            continue;
        }
        lines += 1;
        if is_heading(content) && (before.is_empty() || content.starts_with("##"))
            || is_underline(content) && !before.is_empty()
            || (before.contains('|') && is_delimiter_row(content))
        {
            return true;
        }
        fences += usize::from(content.starts_with("```") || content.starts_with("~~~"));
        if fences == 2 {
            return true;
        }
        marked += usize::from(is_item_or_quote(content));
        before = content;
    }
    marked >= 3 && marked * 10 >= lines
}

fn has_paragraphs(text: &str) -> bool {
    let mut blank = text.trim().lines().map(|line| line.trim().is_empty());
    blank.any(|is_blank| is_blank)
}

fn is_heading(line: &str) -> bool {
    let title = line.trim_start_matches('#');
    (1..=6).contains(&(line.len() - title.len())) && title.starts_with([' ', '\t'])
}

fn is_underline(line: &str) -> bool {
    line.len() >= 3 && line.bytes().all(|byte| byte == b'=')
}

fn is_delimiter_row(line: &str) -> bool {
    line.contains("--")
        && line.contains('|')
        && line
            .bytes()
            .all(|byte| matches!(byte, b'|' | b'-' | b':' | b' ' | b'\t'))
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
    fn texts_with_blank_lines_are_paragraphs() {
        for text in [
            "A note.\n\nAnother paragraph.",
            "\u{feff}A note.\r\n \r\nAnother paragraph.",
            "---\n\nText between rules.\n\n---",
        ] {
            assert_eq!(Strategy::Auto.of(text), &Strategy::Paragraph, "{text}");
        }
    }

    #[test]
    fn texts_without_them_are_sentences() {
        for text in [
            "",
            "\n\nOne paragraph.\nStill.\n\n",
            "#hashtag of the day",
            "let a = 1;\n# a comment\nlet b = 2;",
            "2024-05-01 12:00:01 INFO started\n2024-05-01 12:00:02 WARN - slow\n",
            "name;price\nsalt;2\n",
            "He said - well, nothing.\n- J.\n",
        ] {
            assert_eq!(Strategy::Auto.of(text), &Strategy::Sentence, "{text}");
        }
        assert_eq!(Strategy::Paragraph.of("# A"), &Strategy::Paragraph);
    }
}
