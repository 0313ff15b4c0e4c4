//! The title of a file.

use std::path::Path;

/// The title that a file gives its note: that of its front matter, else its name. Stdin has no name.
pub fn of_file(file: &Path, text: &str) -> Option<String> {
    let name = file.to_str().filter(|name| *name != "-");
    written(text).or_else(|| of_name(name?, text))
}

/// The `title` of the front matter, in YAML: between lines of `---`.
pub(super) fn written(text: &str) -> Option<String> {
    let (front_matter, _) = split(text);
    let line = front_matter
        .lines()
        .find_map(|line| line.strip_prefix("title:"))?;
    let value = line.trim();
    let quoted = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    let title = match (quoted('"'), quoted('\'')) {
        (Some(value), _) => value.replace("\\\"", "\"").replace("\\\\", "\\"),
        (_, Some(value)) => value.replace("''", "'"),
        _ if matches!(value, "null" | "~") => return None,
        // The value is on the lines behind, or is none of text.
        _ if value.starts_with(['|', '>', '[', '{', '&', '*', '!']) => return None,
        _ => value.split(" #").next().unwrap_or_default().trim().into(),
    };
    (!title.trim().is_empty()).then_some(title)
}

/// The name of a file, without its folders and extension. A text that begins with a heading needs no title.
pub(super) fn of_name(path: &str, text: &str) -> Option<String> {
    let (_, body) = split(text);
    let mut lines = body.lines().skip_while(|line| line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let is_mark =
        |line: &str, mark| !line.trim().is_empty() && line.trim().chars().all(|c| c == mark);
    let is_underlined = lines
        .next()
        .is_some_and(|line| is_mark(line, '=') || is_mark(line, '-'));
    let marks = first.trim_start_matches('#');
    if is_underlined || (marks.len() < first.len() && marks.starts_with([' ', '\t'])) {
        return None;
    }
    let name = Path::new(path).file_stem()?.to_str()?;
    Some(name.to_owned())
}

/// The front matter, and the text behind it.
fn split(text: &str) -> (&str, &str) {
    let fence = |line: &str| line.trim_end() == "---";
    let first = text.split_inclusive('\n').next().unwrap_or_default();
    if !fence(first) {
        return ("", text);
    }
    let mut end = first.len();
    for line in text[first.len()..].split_inclusive('\n') {
        if fence(line) {
            return (&text[first.len()..end], &text[end + line.len()..]);
        }
        end += line.len();
    }
    ("", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn title(text: &str) -> Option<String> {
        of_file(Path::new("a/rye bread.md"), text)
    }

    #[test]
    fn front_matter_names_the_title() {
        for (line, expected) in [
            ("title: Rye bread", "Rye bread"),
            ("date: 2026\r\ntitle:  Rye  \r", "Rye"),
            ("title: \"The \\\"rye\\\"\"", "The \"rye\""),
            ("title: 'It''s rye' ", "It's rye"),
            ("title: Rye # of the north", "Rye"),
            ("title: C#", "C#"),
        ] {
            let text = format!("---\n{line}\ntags: [a]\n---\n\n# Another\n");
            assert_eq!(title(&text).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn else_the_name_does_unless_the_text_begins_with_a_heading() {
        for text in [
            "Plain.",
            "",
            "#tag and text",
            "---\ntitle: Not closed",
            "---\ntitle:\n---\nText",
            "---\ntitle: null\n---\nText",
            "---\ntitle: >\n  folded\n---\nText",
            "---\nsubtitle: x\nof:\n  title: nested\n---\nText",
            "Text.\n\n# Later",
        ] {
            assert_eq!(title(text).as_deref(), Some("rye bread"), "{text}");
        }
        for text in [
            "# Bread",
            "\n\n## Bread\n",
            "Bread\n=====\n",
            "---\na: b\n---\n\n# Bread",
        ] {
            assert_eq!(title(text), None, "{text}");
        }
    }
}
