//! What a text is made of for a reader: sentences, and lines that have a meaning of their own in Markdown.

use std::ops::Range;

/// A sentence, or a line of code, of a table or of markup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Where it is, without the whitespace around it.
    pub at: Range<usize>,
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sentence,
    Heading,
    /// A rule, or HTML without text.
    Markup,
    /// The opening fence of code.
    Fence,
    /// Of code that begins with the fence at this byte, if it does not begin before the text.
    Code(Option<usize>),
    TableHead,
    /// Of the table whose head is there; the line below the head is one.
    Row(usize),
}

impl Kind {
    /// Whether it says nothing without what follows.
    pub fn is_opening(self) -> bool {
        matches!(
            self,
            Self::Heading | Self::Markup | Self::Fence | Self::TableHead
        )
    }

    /// Where the code or table begins that it is inside of.
    pub fn begins_at(self) -> Option<usize> {
        match self {
            Self::Code(fence) => fence,
            Self::Row(head) => Some(head),
            _ => None,
        }
    }

    pub fn is_inside(self) -> bool {
        matches!(self, Self::Code(_) | Self::Row(_))
    }
}

/// The units of a text, in its order.
pub fn of(text: &str) -> Vec<Unit> {
    let mut units = Vec::new();
    let mut prose: Option<Range<usize>> = None;
    let lines = lines(text);
    for line in lines {
        if line.kind == Kind::Sentence {
            let start = prose.map_or(line.at.start, |prose| prose.start);
            prose = Some(start..line.at.end);
            continue;
        }
        units.extend(prose.take().into_iter().flat_map(|at| sentences(text, at)));
        units.push(line);
    }
    units.extend(prose.into_iter().flat_map(|at| sentences(text, at)));
    units
}

fn sentences(text: &str, at: Range<usize>) -> impl Iterator<Item = Unit> {
    let start = at.start;
    let sentences = elf_chunk::sentences(&text[at]).into_iter();
    sentences.map(move |at| Unit {
        at: start + at.start..start + at.end,
        kind: Kind::Sentence,
    })
}

/// The lines of a text that are not blank.
fn lines(text: &str) -> Vec<Unit> {
    let mut lines: Vec<Unit> = Vec::new();
    let mut code = begins_in_code(text).then_some((Mark::Any, None));
    let mut table = None;
    let mut start = 0;
    let mut is_behind_blank = true;
    for line in text.split_inclusive('\n') {
        let content = content(line);
        let end = start + line.trim_end().len();
        let begin = end - line.trim().len();
        start += line.len();
        if content.is_empty() && code.is_none() {
            is_behind_blank = true;
            table = None;
        }
        if begin == end {
            continue;
        }
        let behind_blank = std::mem::replace(&mut is_behind_blank, false);
        let kind = if let Some((mark, fence)) = code {
            if mark.closes(content) {
                code = None;
            }
            Kind::Code(fence)
        } else if let Some(mark) = Mark::of(content) {
            code = Some((mark, Some(begin)));
            Kind::Fence
        } else if let Some(head) = table {
            Kind::Row(head)
        } else {
            let before = lines.last_mut().filter(|_| !behind_blank);
            let before = before.filter(|before| before.kind == Kind::Sentence);
            match (kind_of(content), before) {
                (Kind::Row(_), Some(before)) if text[before.at.clone()].contains('|') => {
                    before.kind = Kind::TableHead;
                    table = Some(before.at.start);
                    Kind::Row(before.at.start)
                }
                (Kind::Row(_), _) => Kind::Markup,
                // The line below a heading.
                (Kind::Markup, Some(before)) if content.starts_with(['=', '-']) => {
                    before.kind = Kind::Heading;
                    Kind::Heading
                }
                (kind, _) => kind,
            }
        };
        lines.push(Unit {
            at: begin..end,
            kind,
        });
    }
    lines
}

/// A line without the signs of a quote.
fn content(line: &str) -> &str {
    line.trim_start_matches([' ', '\t', '>']).trim_end()
}

/// What a line outside of code is by itself. A row of dashes is one of a table, if a head is above.
fn kind_of(line: &str) -> Kind {
    let is_made_of = |signs: &[char]| line.chars().all(|c| signs.contains(&c));
    let title = line.trim_start_matches('#');
    let level = line.len() - title.len();
    if (1..=6).contains(&level) && (title.is_empty() || title.starts_with([' ', '\t'])) {
        Kind::Heading
    } else if line.contains('-') && line.contains('|') && is_made_of(&['|', '-', ':', ' ', '\t']) {
        Kind::Row(0)
    } else if is_made_of(&['-', ' ']) && line.starts_with("--")
        || is_made_of(&['='])
        || is_made_of(&['*', ' ']) && line.starts_with("**")
        || is_made_of(&['_'])
        || is_bare_html(line)
    {
        Kind::Markup
    } else {
        Kind::Sentence
    }
}

/// Whether a line is HTML without text: a comment, an anchor.
fn is_bare_html(line: &str) -> bool {
    let mut rest = line;
    while let Some(tag) = rest.strip_prefix('<') {
        let end = match tag.starts_with("!--") {
            true => "-->",
            false => ">",
        };
        let Some((_, after)) = tag.split_once(end) else {
            return false;
        };
        rest = after.trim_start();
    }
    rest.is_empty() && line.starts_with('<')
}

/// A fence around code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Of(char, usize),
    /// It opened before the text.
    Any,
}

impl Mark {
    /// The fence that a line opens.
    fn of(line: &str) -> Option<Self> {
        let sign = line.chars().next().filter(|c| ['`', '~'].contains(c))?;
        let info = line.trim_start_matches(sign);
        let length = line.len() - info.len();
        (length >= 3 && !(sign == '`' && info.contains('`'))).then_some(Self::Of(sign, length))
    }

    fn closes(self, line: &str) -> bool {
        let Some(Self::Of(sign, length)) = Self::of(line) else {
            return false;
        };
        let is_bare = line.len() == length;
        is_bare
            && match self {
                Self::Of(opened, least) => sign == opened && length >= least,
                Self::Any => true,
            }
    }
}

/// Whether a text, which may be cut from another one, begins in code. It does if its first fence names no language, and
/// cannot open code: a later fence, which would be inside of that code, names a language.
fn begins_in_code(text: &str) -> bool {
    let mut open: Option<Mark> = None;
    let mut is_first = true;
    for line in text.lines().map(content) {
        let Some(mark) = Mark::of(line) else { continue };
        let Mark::Of(_, length) = mark else { continue };
        let is_bare = line.len() == length;
        if std::mem::take(&mut is_first) && !is_bare {
            return false;
        }
        match open {
            Some(mark) if mark.closes(line) => open = None,
            Some(_) if !is_bare => return true,
            Some(_) => {}
            None => open = Some(mark),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<(&str, Kind)> {
        let units = of(text).into_iter();
        units
            .map(|unit| (&text[unit.at.clone()], unit.kind))
            .collect()
    }

    #[test]
    fn lines_of_markdown_are_told_from_sentences() {
        let text =
            "# A\n\nOne. Two.\n\nB\n---\n***\n<a id=\"x\"></a>\n<!-- c -->\n> ## Quoted\n#tag";
        assert_eq!(
            shown(text),
            [
                ("# A", Kind::Heading),
                ("One.", Kind::Sentence),
                ("Two.", Kind::Sentence),
                ("B", Kind::Heading),
                ("---", Kind::Heading),
                ("***", Kind::Markup),
                ("<a id=\"x\"></a>", Kind::Markup),
                ("<!-- c -->", Kind::Markup),
                ("> ## Quoted", Kind::Heading),
                ("#tag", Kind::Sentence),
            ]
        );
    }

    #[test]
    fn code_and_tables_know_where_they_begin() {
        let text =
            "```sh\nls. A\n\n# no heading\n```\n\n| a | b. C |\n|---|---|\n| 1. D | 2 |\n\nEnd.";
        let table = text.find("| a");
        assert_eq!(
            shown(text),
            [
                ("```sh", Kind::Fence),
                ("ls. A", Kind::Code(Some(0))),
                ("# no heading", Kind::Code(Some(0))),
                ("```", Kind::Code(Some(0))),
                ("| a | b. C |", Kind::TableHead),
                ("|---|---|", Kind::Row(table.unwrap_or_default())),
                ("| 1. D | 2 |", Kind::Row(table.unwrap_or_default())),
                ("End.", Kind::Sentence),
            ]
        );
    }

    #[test]
    fn a_text_may_begin_in_code() {
        assert_eq!(
            shown("a = 1\n```\nText.\n```sh\nls\n```"),
            [
                ("a = 1", Kind::Code(None)),
                ("```", Kind::Code(None)),
                ("Text.", Kind::Sentence),
                ("```sh", Kind::Fence),
                ("ls", Kind::Code(Some(16))),
                ("```", Kind::Code(Some(16))),
            ]
        );
    }
}
