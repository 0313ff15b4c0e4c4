//! What a file says of its note: text, title and metadata.

use std::path::Path;

use serde_json::{Map, Value};

use super::folder::is_html;
use super::{front_matter, html, text};

/// What a file says.
#[derive(Debug, Default)]
pub struct Contents {
    /// The text without front matter; of a page without its tags.
    pub text: String,
    /// The `title` of the front matter or of the page, else the name of the file, unless the text begins with a heading.
    pub title: Option<String>,
    /// Whether `title` is written in the file.
    pub(super) has_title: bool,
    /// The other fields of the front matter; `None` without front matter.
    pub(super) metadata: Option<Map<String, Value>>,
    /// What the file may have meant otherwise.
    pub warning: Option<String>,
}

impl Contents {
    /// Reads the bytes of a file. Stdin, `-`, has no name. The error says why the bytes are no text.
    pub fn read(file: &Path, bytes: Vec<u8>) -> Result<Self, String> {
        let text = text::decode(bytes)?;
        let mut contents = match is_html(file) {
            true => {
                let page = html::page(&text);
                Self {
                    text: page.text,
                    title: page.title,
                    ..Self::default()
                }
            }
            false => of_text(text),
        };
        contents.has_title = contents.title.is_some();
        if contents.title.is_none() && !begins_with_heading(&contents.text) {
            let name = file.file_stem().and_then(|name| name.to_str());
            contents.title = name.filter(|name| *name != "-").map(str::to_owned);
        }
        Ok(contents)
    }
}

fn of_text(text: String) -> Contents {
    let split = front_matter::split(&text);
    let mut metadata = split.fields;
    let title = metadata.as_mut().and_then(take_title);
    let (body, warning) = (split.text.into_owned(), split.problem);
    Contents {
        text: body,
        title,
        metadata,
        warning,
        has_title: false,
    }
}

/// Takes a title that is a text, or a number such as a year.
fn take_title(fields: &mut Map<String, Value>) -> Option<String> {
    let title = match fields.get("title")? {
        Value::String(title) => title.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Null => String::new(),
        _ => return None,
    };
    fields.remove("title");
    (!title.is_empty()).then_some(title)
}

/// Whether a text begins with a heading of Markdown: it needs no title.
fn begins_with_heading(text: &str) -> bool {
    let mut lines = text.lines().skip_while(|line| line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let is_mark =
        |line: &str, mark| !line.trim().is_empty() && line.trim().chars().all(|c| c == mark);
    let is_underlined = lines
        .next()
        .is_some_and(|line| is_mark(line, '=') || is_mark(line, '-'));
    let marks = first.trim_start_matches('#');
    is_underlined || (marks.len() < first.len() && marks.starts_with([' ', '\t']))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use serde_json::json;

    use super::*;

    fn contents(name: &str, text: &str) -> Contents {
        Contents::read(Path::new(name), text.into()).unwrap()
    }

    #[test]
    fn front_matter_is_title_and_metadata() {
        for (line, title) in [
            ("title: Rye bread", Some("Rye bread")),
            ("title: \"The \\\"rye\\\"\"", Some("The \"rye\"")),
            ("title: 2026", Some("2026")),
            ("title: ' Rye '", Some("Rye")),
            ("title: ''", None),
            ("title:", None),
        ] {
            let file = contents(
                "a/b.md",
                &format!("---\n{line}\ntags: [a]\n---\n\n# Another\n"),
            );
            assert_eq!(file.title.as_deref(), title, "{line}");
            assert_eq!(file.text, "# Another\n");
            assert_eq!(Value::from(file.metadata.unwrap()), json!({"tags": ["a"]}));
        }
        let list = contents("b.md", "---\ntitle: [a]\n---\nText");
        assert_eq!(list.title.as_deref(), Some("b"));
        assert_eq!(Value::from(list.metadata.unwrap()), json!({"title": ["a"]}));
    }

    #[test]
    fn else_the_name_is_the_title_unless_the_text_begins_with_a_heading() {
        for text in [
            "Plain.",
            "",
            "#tag and text",
            "Text.\n\n# Later",
            "---\na: b\n---\nText",
        ] {
            let file = contents("a/rye bread.md", text);
            assert_eq!(
                (file.title.as_deref(), file.has_title),
                (Some("rye bread"), false),
                "{text}"
            );
        }
        for text in [
            "# Bread",
            "\n\n## Bread\n",
            "Bread\n=====\n",
            "---\na: b\n---\n\n# Bread",
        ] {
            assert_eq!(contents("a/rye bread.md", text).title, None, "{text}");
        }
        assert_eq!(contents("-", "Text").title, None);
    }

    #[test]
    fn a_page_is_read_as_text() {
        let page = "<title>Rye</title><h1>Bread</h1><p>Feed it.";
        let file = contents("a.HTM", page);
        assert_eq!(
            (file.title.as_deref(), &*file.text),
            (Some("Rye"), "# Bread\n\nFeed it.")
        );
        assert_eq!(contents("a.md", page).text, page);
        assert_eq!(
            contents("b.html", "<p>Feed it.").title.as_deref(),
            Some("b")
        );
    }
}
