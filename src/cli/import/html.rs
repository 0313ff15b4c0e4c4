//! The text of an HTML page, in the form of Markdown, so that the chunker sees headings, lists and paragraphs.
//!
//! It follows the tags one by one and builds no tree: the memory and the stack that it needs do not grow with the depth
//! of the page, and pages that browsers repair are read too.

use std::borrow::Cow;

use html5gum::emitters::default::DefaultEmitter;
use html5gum::{HtmlString, StartTag, Token, Tokenizer};

/// Deeper lists are shown at this depth.
const MOST_INDENT: usize = 8;

/// A page as text.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub title: Option<String>,
    pub text: String,
}

/// Reads a page. Whatever it holds, this is linear in its length.
pub(super) fn page(html: &str) -> Page {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut writer = Writer::default();
    for Ok(token) in Tokenizer::new_with_emitter(html, emitter) {
        match token {
            Token::StartTag(tag) => writer.start(&tag),
            Token::EndTag(tag) => writer.end(&tag.name),
            Token::String(text) => writer.text(&lossy(&text)),
            _ => {}
        }
    }
    let title = words(&writer.title);
    Page {
        title: (!title.is_empty()).then_some(title),
        text: writer.text.trim_end().to_owned(),
    }
}

#[derive(Default)]
struct Writer {
    text: String,
    title: String,
    /// What is due before the next word.
    gap: Gap,
    /// What begins the next block: `# `, `- `.
    mark: String,
    /// For each list around this place, the number of its next item; `None` has no numbers.
    lists: Vec<Option<u64>>,
    /// The element around this place whose content is no text, and how many such are in each other.
    hidden: Option<(HtmlString, usize)>,
    in_title: bool,
    /// How many `pre` are around this place.
    pre: usize,
    /// Whether the row of a table has a cell already.
    in_row: bool,
}

/// What separates two words.
#[derive(Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    #[default]
    None,
    Space,
    Cell,
    Line,
    Block,
}

impl Writer {
    fn start(&mut self, tag: &StartTag<()>) {
        let name = tag.name.as_slice();
        match &mut self.hidden {
            Some((outer, depth)) => {
                *depth += usize::from(*outer == tag.name);
                return;
            }
            // Only drawings and formulas can end where they begin.
            None if is_hidden(name) && !(tag.self_closing && matches!(name, b"svg" | b"math")) => {
                self.hidden = Some((tag.name.clone(), 1));
                return;
            }
            None => {}
        }
        match name {
            // A title inside of a drawing is not the page's.
            b"title" => self.in_title = self.title.is_empty(),
            b"br" => self.raise(Gap::Line),
            b"img" => {
                if let Some(alt) = tag.attributes.get(b"alt".as_slice()) {
                    self.text(&lossy(alt));
                }
            }
            b"h1" | b"h2" | b"h3" | b"h4" | b"h5" | b"h6" => {
                self.block();
                if self.mark.ends_with("# ") {
                    self.mark.clear();
                }
                self.mark += &format!("{} ", "#".repeat(usize::from(name[1] - b'0')));
            }
            b"ul" | b"ol" => {
                self.raise(if self.lists.is_empty() {
                    Gap::Block
                } else {
                    Gap::Line
                });
                self.lists.push((name == b"ol").then_some(1));
            }
            b"li" => self.item(),
            b"dt" | b"dd" => self.raise(Gap::Line),
            b"pre" => {
                self.block();
                if self.pre == 0 {
                    self.write("```\n");
                }
                self.pre += 1;
            }
            b"tr" => {
                self.raise(Gap::Line);
                self.in_row = false;
            }
            // The first cell of a row has nothing before it.
            b"td" | b"th" if std::mem::replace(&mut self.in_row, true) => self.raise(Gap::Cell),
            _ if is_block(name) => self.block(),
            _ => {}
        }
    }

    fn end(&mut self, name: &HtmlString) {
        if let Some((outer, depth)) = &mut self.hidden {
            *depth -= usize::from(outer == name);
            if *depth == 0 {
                self.hidden = None;
            }
            return;
        }
        match name.as_slice() {
            b"title" => self.in_title = false,
            b"ul" | b"ol" => {
                self.mark.clear();
                self.lists.pop();
                self.raise(if self.lists.is_empty() {
                    Gap::Block
                } else {
                    Gap::Line
                });
            }
            b"li" | b"dt" | b"dd" | b"tr" => {
                self.mark.clear();
                self.raise(Gap::Line);
            }
            b"table" => {
                self.in_row = false;
                self.block();
            }
            b"pre" if self.pre > 0 => {
                self.pre -= 1;
                if self.pre == 0 {
                    self.close_pre();
                }
            }
            name if is_heading(name) => {
                // Of a heading without words.
                self.mark.clear();
                self.block();
            }
            name if is_block(name) => self.block(),
            _ => {}
        }
    }

    /// Separates two blocks.
    fn block(&mut self) {
        self.raise(match () {
            // What is inside an item or a heading begins on its line.
            () if !self.mark.is_empty() => Gap::None,
            () if self.in_row => Gap::Space,
            () if !self.lists.is_empty() => Gap::Line,
            () => Gap::Block,
        });
    }

    fn item(&mut self) {
        self.raise(Gap::Line);
        let depth = self.lists.len().saturating_sub(1).min(MOST_INDENT);
        let number = match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!("{}. ", *number - 1)
            }
            _ => "- ".to_owned(),
        };
        self.mark = "  ".repeat(depth) + &number;
    }

    fn raise(&mut self, gap: Gap) {
        self.gap = self.gap.max(gap);
    }

    fn text(&mut self, text: &str) {
        if self.hidden.is_some() {
            return;
        }
        if self.in_title {
            self.title.push_str(text);
            return;
        }
        if self.pre > 0 {
            self.write_pre(text);
            return;
        }
        for (at, word) in text.split(is_space).enumerate() {
            if at > 0 {
                self.gap = self.gap.max(Gap::Space);
            }
            if !word.is_empty() {
                self.write(word);
            }
        }
    }

    /// Writes a word, behind what is due before it.
    fn write(&mut self, word: &str) {
        let is_first = self.text.is_empty();
        let gap = match std::mem::take(&mut self.gap) {
            _ if is_first => "",
            Gap::None => "",
            Gap::Space => " ",
            Gap::Cell => " | ",
            Gap::Line => "\n",
            Gap::Block => "\n\n",
        };
        self.text.push_str(gap);
        self.text.push_str(&std::mem::take(&mut self.mark));
        self.text.push_str(word);
    }

    /// The lines of code as they are.
    fn write_pre(&mut self, text: &str) {
        if self.gap >= Gap::Line {
            self.text.push('\n');
        }
        self.gap = Gap::None;
        // The line break behind the tag is none of the code.
        let is_first = self.text.ends_with("```\n");
        let code = text.strip_prefix('\n').filter(|_| is_first);
        self.text.push_str(code.unwrap_or(text));
    }

    fn close_pre(&mut self) {
        let end = self.text.trim_end().len();
        self.text.truncate(end);
        self.text.push_str("\n```");
        self.gap = Gap::Block;
    }
}

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    // The tokenizer read a string, and cuts it nowhere inside a character.
    String::from_utf8_lossy(bytes)
}

fn is_heading(name: &[u8]) -> bool {
    matches!(name, [b'h', b'1'..=b'6'])
}

/// Whether the content of such an element is no text.
fn is_hidden(name: &[u8]) -> bool {
    matches!(
        name,
        b"script"
            | b"style"
            | b"template"
            | b"noscript"
            | b"svg"
            | b"math"
            | b"iframe"
            | b"object"
            | b"select"
    )
}

/// Whether a line ends before and behind such an element.
fn is_block(name: &[u8]) -> bool {
    matches!(
        name,
        b"address"
            | b"article"
            | b"aside"
            | b"blockquote"
            | b"body"
            | b"caption"
            | b"center"
            | b"details"
            | b"dialog"
            | b"div"
            | b"dl"
            | b"fieldset"
            | b"figcaption"
            | b"figure"
            | b"footer"
            | b"form"
            | b"head"
            | b"header"
            | b"hgroup"
            | b"hr"
            | b"html"
            | b"main"
            | b"menu"
            | b"nav"
            | b"p"
            | b"search"
            | b"section"
            | b"summary"
            | b"table"
            | b"tbody"
            | b"tfoot"
            | b"thead"
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn text(html: &str) -> String {
        page(html).text
    }

    #[test]
    fn headings_lists_tables_and_code_stay_readable() {
        let html = "<!doctype html><html><head><title>The  T&amp;T</title><style>p{}</style>\
            <script>if (a < b) { \"</p>\" }</script></head><body><!-- no -->\n<h1>Head <i>one</i></h1>\
            <p>A <b>bo</b>ld <a href='http://x'>link</a> and\n a line.<br>Next &eacute;&nbsp;one.</p>\
            <h2></h2><h2>Two</h2><ul><li>one</li><li><p>two</p><ul><li>in<li>side</ul></li></ul>\
            <ol><li>a<li>b</ol><table><tr><th>A</th><th>B</th></tr><tr><td><p>1</p></td><td>2</td></tr></table>\
            <pre><code>fn a() {\n    b\n}\n</code></pre><p>End.<img src=x alt='A boat'></body></html>";
        assert_eq!(
            page(html),
            Page {
                title: Some("The T&T".into()),
                text: "# Head one\n\nA bold link and a line.\nNext \u{e9}\u{a0}one.\n\n## Two\n\n- one\n- two\n  - in\n  - side\n\n\
                       1. a\n2. b\n\nA | B\n1 | 2\n\n```\nfn a() {\n    b\n}\n```\n\nEnd.A boat"
                    .into()
            }
        );
    }

    #[test]
    fn broken_pages_are_read() {
        for (html, expected) in [
            ("", ""),
            ("plain text", "plain text"),
            ("<p>one<p>two</div></ul></li>", "one\n\ntwo"),
            ("<<<b>>x <a href=\"open>y", "<<>x"),
            (
                "a < b &bogus; &#0; &#x110000;",
                "a < b &bogus; \u{fffd} \u{fffd}",
            ),
            ("<svg><title>no</title>x</svg>y<script>z", "y"),
            ("<p>one</p><template>no<p>t</template><p>two", "one\n\ntwo"),
            ("<ul><li></li><li>x</ul>", "- x"),
            ("<pre>\n  a\n</pre>b", "```\n  a\n```\n\nb"),
        ] {
            assert_eq!(text(html), expected, "{html}");
        }
    }

    /// A parser that builds a tree needs minutes, or a stack that no thread has.
    #[test]
    fn neither_depth_nor_length_matters() {
        let began = Instant::now();
        for html in [
            "<div>".repeat(100_000) + "text" + &"</div>".repeat(100_000),
            "<ul><li>".repeat(100_000) + "text",
            "<b>".repeat(100_000) + "text",
            "<svg>".repeat(100_000) + &"</x>".repeat(1000) + &"</svg>".repeat(100_000) + "text",
            "<table><tr><td>".repeat(50_000) + "text",
            "<pre>".repeat(100_000) + "text",
        ] {
            let text = text(&html);
            assert!(text.contains("text") && text.len() < 100, "{}", text.len());
        }
        let long = text(&"<p>word ".repeat(200_000));
        assert_eq!(long.len(), 200_000 * 6 - 2);
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "{:?}",
            began.elapsed()
        );
    }
}
