//! The outline of a Markdown text.
//!
//! The parser keeps a tree of all that it reads. So it reads a portion of the text at a time, which
//! ends with a whole block. A block that is longer than a portion is read again in one four times as long.

use std::cmp::Ordering;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::badges::{is_badge, without_badges};
use super::builder::Builder;
use super::exclude::{self, Exclude};
use super::mask::masked;
use super::math;
use super::outline::{Outline, Span, Why, rank};
use super::settings::BlockKind;

/// Text given to the parser at once.
const PORTION_BYTES: usize = 256 * 1024;

/// Links, words and line breaks that are looked at, in one paragraph: memory does not grow with it.
const MAX_INLINES: usize = 256;

/// A mark of the byte order.
pub(super) const MARK: char = '\u{feff}';

/// What the parser says of a top-level block, one after the other.
pub(super) type Events<'a> = [(Event<'a>, std::ops::Range<usize>)];

pub(super) fn outline(text: &str, exclude: &Exclude) -> Outline {
    outline_by(text, exclude, PORTION_BYTES)
}

/// [`outline`], with portions of so many bytes.
pub(super) fn outline_by(text: &str, exclude: &Exclude, portion: usize) -> Outline {
    let front_matter = front_matter(text).unwrap_or(0);
    let mut scan = Scan {
        builder: Builder::new(text),
        exclude,
        math: math::blocks(text),
        // A mark of the byte order is no text.
        behind: front_matter.max(without_mark(text)),
        toc: None,
        in_badge: 0,
    };
    scan.front_matter(front_matter);
    let masked = masked(text, &scan.math);
    let mut from = scan.behind;
    let mut bytes = portion;
    while from < text.len() {
        let to = line_end(text, from.saturating_add(bytes));
        let done = scan.portion(&masked[from..to], from, to == text.len());
        bytes = if done > from { portion } else { 4 * bytes };
        from = done;
    }
    scan.definitions(text.len());
    exclude::finish(text, scan.builder.finish(), exclude)
}

/// Behind the line that holds the byte at `position`.
fn line_end(text: &str, position: usize) -> usize {
    let rest = text.as_bytes().get(position..).unwrap_or_default();
    let end = rest.iter().position(|&byte| byte == b'\n');
    end.map_or(text.len(), |end| position + end + 1)
}

/// Behind the mark of the byte order that a text may begin with.
fn without_mark(text: &str) -> usize {
    text.strip_prefix(MARK).map_or(0, |_| MARK.len_utf8())
}

/// Where the front matter at the beginning of `text` ends, if there is some. Blank lines may stand before it.
pub(super) fn front_matter(text: &str) -> Option<usize> {
    let body = text[without_mark(text)..].trim_start();
    let is_line = |before: &str| before.is_empty() || before.ends_with(['\n', MARK]);
    if !is_line(&text[..text.len() - body.len()]) {
        return None;
    }
    let (fence, sign) = [("---", ':'), ("+++", '=')]
        .into_iter()
        .find(|(fence, _)| body.starts_with(fence))?;
    let mut lines = body.split_inclusive('\n');
    let mut end = text.len() - body.len();
    let first = lines.next().filter(|line| line.trim_end() == fence)?;
    end += first.len();
    let mut has_field = false;
    for line in lines {
        end += line.len();
        let line = line.trim_end();
        if line == fence || (sign == ':' && line == "...") {
            return has_field.then_some(end);
        }
        if !has_field {
            // A rule and a paragraph, not fields.
            if line.is_empty() || !(line.contains(sign) || line.starts_with(['#', '['])) {
                return None;
            }
            has_field = line.contains(sign);
        }
    }
    None
}

struct Scan<'t> {
    builder: Builder<'t>,
    exclude: &'t Exclude,
    /// Display math.
    math: Vec<Span>,
    /// All text before is in a block.
    behind: usize,
    /// Where a generated table of contents begins that has not ended.
    toc: Option<usize>,
    /// Badges around what is read: their text is in no title.
    in_badge: usize,
}

impl Scan<'_> {
    /// Adds the blocks of a portion. Gives where the next portion begins: at its last block, if
    /// that may continue.
    fn portion(&mut self, masked: &str, from: usize, is_last: bool) -> usize {
        let mut block: Vec<(Event, std::ops::Range<usize>)> = Vec::new();
        let mut depth = 0_usize;
        let mut inlines = 0;
        let events = Parser::new_ext(masked, Options::ENABLE_TABLES).into_offset_iter();
        for (event, range) in events {
            if depth == 0 && !block.is_empty() {
                self.block(&block);
                block.clear();
            }
            match &event {
                Event::Start(_) => depth += 1,
                Event::End(_) => depth -= 1,
                _ => {}
            }
            inlines = if is_block(&event) { 0 } else { inlines + 1 };
            match inlines.cmp(&MAX_INLINES) {
                Ordering::Less => block.push((event, from + range.start..from + range.end)),
                // What is left out makes the block no list of links.
                Ordering::Equal => block.push((Event::Text("a".into()), from..from)),
                Ordering::Greater => {}
            }
        }
        let end = from + masked.len();
        match block.first() {
            Some((_, range)) if !is_last => self.builder.line_start(range.start).max(from),
            Some(_) => {
                self.block(&block);
                end
            }
            None => end,
        }
    }

    fn front_matter(&mut self, end: usize) {
        let span = Span { start: 0, end };
        if self.exclude.has(BlockKind::FrontMatter) {
            self.builder
                .exclude(span, Why::Block(BlockKind::FrontMatter));
        }
        if end > 0 {
            self.builder.lines(span, None, rank::BLOCK);
        }
    }

    /// Definitions of links, which the parser does not report.
    fn definitions(&mut self, until: usize) {
        let span = Span {
            // The range of a block may end behind the line break that ends it.
            start: self.behind.min(until),
            end: until,
        };
        let Some(span) = self.builder.trimmed(span) else {
            return;
        };
        if self.exclude.has(BlockKind::LinkLists) && self.builder.slice(span).starts_with('[') {
            self.builder.exclude(span, Why::Block(BlockKind::LinkLists));
        }
        self.builder.lines(span, None, rank::BLOCK);
    }

    fn block(&mut self, events: &Events) {
        let (start, end) = (events[0].1.start, events[0].1.end);
        self.definitions(self.builder.line_start(start));
        self.behind = self.content_end(events, end);
        if let Some(kind) = self.exclude.kind_of(events) {
            self.builder.exclude(Span { start, end }, Why::Block(kind));
        }
        if self.exclude.has(BlockKind::Comments) {
            self.comments(events);
        }
        let heading = self.heading_of(events);
        match exclude::toc_mark(events) {
            Some(true) => self.toc = self.toc.or(Some(start)),
            Some(false) => {
                if let Some(start) = self.toc.take()
                    && self.exclude.has(BlockKind::Toc)
                {
                    self.builder
                        .exclude(Span { start, end }, Why::Block(BlockKind::Toc));
                }
            }
            None => {}
        }
        for (event, range) in events {
            let span = Span {
                start: range.start,
                end: range.end,
            };
            match (event, heading) {
                (Event::Start(Tag::Heading { level, .. }), Some((span, shown))) => {
                    self.builder.heading(span, number(*level), shown);
                }
                _ => self.event(event, span),
            }
        }
        self.builder.end_block();
        self.in_badge = 0;
    }

    /// Where the content of a block ends. The range of a list may reach over definitions of links behind it.
    fn content_end(&self, events: &Events, end: usize) -> usize {
        if !matches!(events[0].0, Event::Start(Tag::List(_) | Tag::BlockQuote(_))) {
            return end;
        }
        let is_container = |event: &Event| {
            matches!(
                event,
                Event::Start(Tag::List(_) | Tag::Item | Tag::BlockQuote(_))
                    | Event::End(TagEnd::List(_) | TagEnd::Item | TagEnd::BlockQuote(_))
            )
        };
        let content = events.iter().filter(|(event, _)| !is_container(event));
        let content = content.map(|(_, range)| range.end).max().unwrap_or(end);
        let content = content.min(end);
        let rest = self.builder.slice(Span {
            start: content,
            end,
        });
        match rest.trim_start().starts_with('[') {
            true => content,
            false => end,
        }
    }

    /// Leaves out the comments of a block, except in a heading or a table, which would be cut there.
    fn comments(&mut self, events: &Events) {
        if matches!(
            events[0].0,
            Event::Start(Tag::Heading { .. } | Tag::Table(_))
        ) {
            return;
        }
        for (event, range) in events {
            if !matches!(event, Event::Start(Tag::HtmlBlock) | Event::InlineHtml(_)) {
                continue;
            }
            let (start, end) = (range.start, range.end);
            for at in exclude::comments(self.builder.slice(Span { start, end })) {
                let span = Span {
                    start: start + at.start,
                    end: start + at.end,
                };
                let why = Why::Block(BlockKind::Comments);
                self.builder.exclude(span, why);
            }
        }
    }

    /// Where a heading is, and its text without badges. Those above the text of a heading that is underlined are left
    /// out, as a paragraph of them is.
    fn heading_of(&mut self, events: &Events) -> Option<(Span, Span)> {
        let (Event::Start(Tag::Heading { .. }), range) = &events[0] else {
            return None;
        };
        let mut span = Span {
            start: range.start,
            end: range.end,
        };
        let shown = without_badges(events).unwrap_or(range.end..range.end);
        let shown = Span {
            start: shown.start,
            end: shown.end,
        };
        let before = Span {
            end: shown.start,
            ..span
        };
        let is_line = self.builder.slice(before).ends_with('\n');
        if is_line && shown.start < shown.end && self.exclude.has(BlockKind::Badges) {
            self.builder.exclude(before, Why::Block(BlockKind::Badges));
            span.start = shown.start;
        }
        Some((span, shown))
    }

    fn event(&mut self, event: &Event, span: Span) {
        let in_badge = self.in_badge;
        match event {
            Event::Start(Tag::Image { dest_url, .. }) if in_badge > 0 || is_badge(dest_url) => {
                self.in_badge += 1;
            }
            Event::End(TagEnd::Image) => self.in_badge = in_badge.saturating_sub(1),
            _ => {}
        }
        let builder = &mut self.builder;
        match event {
            Event::Start(Tag::Paragraph) if is_math(&self.math, span) => builder.code(span, false),
            Event::Start(Tag::Paragraph) => builder.leaf(span),
            Event::Start(Tag::Heading { level, .. }) => builder.heading(span, number(*level), span),
            Event::End(TagEnd::Heading(_)) => builder.heading_ended(),
            Event::Start(Tag::BlockQuote(_)) => builder.open_quote(span),
            Event::Start(Tag::List(_)) => builder.open_list(span),
            Event::Start(Tag::Item) => builder.open_item(span),
            Event::End(TagEnd::BlockQuote(_) | TagEnd::List(_) | TagEnd::Item) => builder.close(),
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => builder.code(span, true),
            Event::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => builder.code(span, false),
            Event::Start(Tag::HtmlBlock) => builder.html(span),
            Event::Start(Tag::Table(_)) => builder.table(span),
            Event::Start(Tag::TableRow) => builder.row(span),
            Event::Rule => builder.rule(span),
            Event::Text(text) | Event::Code(text) if self.in_badge == 0 => builder.text(text),
            Event::SoftBreak | Event::HardBreak => builder.text(" "),
            _ => builder.text(""),
        }
    }
}

/// Whether a paragraph is display math alone.
fn is_math(math: &[Span], paragraph: Span) -> bool {
    let index = math.partition_point(|block| block.end <= paragraph.start);
    let block = math.get(index);
    block.is_some_and(|block| block.start <= paragraph.start && paragraph.end <= block.end + 2)
}

/// Whether an event begins or ends a block, other than a cell.
fn is_block(event: &Event) -> bool {
    match event {
        Event::Start(tag) => !matches!(
            tag,
            Tag::TableCell
                | Tag::Emphasis
                | Tag::Strong
                | Tag::Strikethrough
                | Tag::Link { .. }
                | Tag::Image { .. }
        ),
        Event::End(tag) => !matches!(
            tag,
            TagEnd::TableCell
                | TagEnd::Emphasis
                | TagEnd::Strong
                | TagEnd::Strikethrough
                | TagEnd::Link
                | TagEnd::Image
        ),
        Event::Rule => true,
        _ => false,
    }
}

fn number(level: HeadingLevel) -> u8 {
    level as u8
}
