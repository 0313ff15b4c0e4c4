//! Makes an outline of blocks, one after the other.

use super::cuts::CutPoint;
use super::intros;
use super::outline::{
    Block, Cut, Excluded, Heading, Joint, Outline, Span, Table, Why, rank, trimmed,
};

/// Titles of headings are no longer than this many bytes.
const MAX_TITLE_BYTES: usize = 512;

/// Ranks tell no deeper ones apart.
const MAX_DEPTH: u8 = 64;

/// A quote, list or item around what is added.
struct Container {
    /// Its block, if it is one.
    block: Option<u32>,
    /// Something of it was added, so the next part is not its first one.
    has_content: bool,
    is_list: bool,
}

/// A block that is made of lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    Plain,
    /// Code between two fences.
    Fenced,
    Html,
}

pub(super) struct Builder<'t> {
    text: &'t str,
    outline: Outline,
    containers: Vec<Container>,
    /// Quotes and items around what is added.
    depth: usize,
    /// Where the text continues behind the last cut.
    from: usize,
    /// The next part stays with the heading before it.
    behind_heading: bool,
    /// The next cut is behind a thematic break.
    behind_rule: bool,
    /// Inside a heading at the top level.
    in_heading: bool,
    /// A quote, list or item has ended since the last part began.
    is_behind_container: bool,
    /// The next part is a table.
    before_table: bool,
    /// Parts that introduce the next one, in a row.
    intros: usize,
    /// The table that rows are added to, and its block.
    rows: u32,
}

impl<'t> Builder<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            outline: Outline::default(),
            containers: Vec::new(),
            depth: 0,
            from: 0,
            behind_heading: false,
            behind_rule: false,
            in_heading: false,
            is_behind_container: false,
            before_table: false,
            intros: 0,
            rows: 0,
        }
    }

    pub(super) fn finish(self) -> Outline {
        self.outline
    }

    pub(super) fn trimmed(&self, span: Span) -> Option<Span> {
        trimmed(self.text, span)
    }

    pub(super) fn slice(&self, span: Span) -> &'t str {
        &self.text[span.start..span.end]
    }

    /// Where the line of `position` begins, if only blanks and signs of quotes are before it.
    pub(super) fn line_start(&self, position: usize) -> usize {
        let before = &self.text.as_bytes()[..position];
        let prefix = before
            .iter()
            .rev()
            .take_while(|byte| matches!(byte, b' ' | b'\t' | b'>'));
        let start = position - prefix.count();
        let is_start = start == 0 || matches!(before[start - 1], b'\n' | b'\r');
        if is_start { start } else { position }
    }

    pub(super) fn exclude(&mut self, span: Span, why: Why) {
        let start = self.line_start(span.start);
        self.outline.excluded.push(Excluded {
            start,
            end: span.end,
            why,
        });
    }

    pub(super) fn leaf(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK);
    }

    /// `shown`: where its text is, without badges.
    pub(super) fn heading(&mut self, span: Span, level: u8, shown: Span) {
        self.outline.titles.extend(trimmed(self.text, span));
        if !self.containers.is_empty() {
            self.part(span.start, rank::BLOCK);
            return;
        }
        let start = self.line_start(span.start);
        let start = start + self.text[start..].len() - self.text[start..].trim_start().len();
        self.place(start, level, true);
        let headings = &self.outline.headings;
        let mut parent = headings.len().checked_sub(1);
        while let Some(index) = parent.filter(|&index| headings[index].level >= level) {
            parent = headings[index].parent;
        }
        let span = trimmed(self.text, span).unwrap_or(span);
        self.outline.headings.push(Heading {
            level,
            start,
            end: span.end,
            title: String::new(),
            parent,
            shown: self.without_badges(Span { start, ..span }, shown),
        });
        self.in_heading = true;
    }

    /// A heading, up to the badges around its text.
    fn without_badges(&self, heading: Span, shown: Span) -> Span {
        let Some(shown) = trimmed(self.text, shown) else {
            return shown;
        };
        let is_mark = |c: char| c.is_whitespace() || matches!(c, '#' | '=' | '-');
        let before = &self.text[heading.start..shown.start.max(heading.start)];
        let behind = &self.text[shown.end.min(heading.end)..heading.end];
        Span {
            start: if before.chars().all(is_mark) {
                heading.start
            } else {
                shown.start
            },
            end: if behind.chars().all(is_mark) {
                heading.end
            } else {
                shown.end
            },
        }
    }

    pub(super) fn heading_ended(&mut self) {
        if self.in_heading
            && let Some(heading) = self.outline.headings.last_mut()
        {
            // A badge leaves the space before it.
            heading.title = heading.title.trim().to_owned();
        }
        self.behind_heading = true;
        self.in_heading = false;
    }

    pub(super) fn text(&mut self, text: &str) {
        if let Some(container) = self.containers.last_mut() {
            container.has_content = true;
        }
        if self.in_heading
            && let Some(heading) = self.outline.headings.last_mut()
        {
            let most = MAX_TITLE_BYTES.saturating_sub(heading.title.len());
            heading
                .title
                .push_str(&text[..text.floor_char_boundary(most)]);
        }
    }

    pub(super) fn open_quote(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK);
        self.open(span, false);
    }

    pub(super) fn open_item(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK + 1);
        self.open(span, false);
    }

    pub(super) fn open_list(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK);
        self.containers.push(Container {
            block: None,
            has_content: false,
            is_list: true,
        });
    }

    fn open(&mut self, span: Span, is_list: bool) {
        let block = self.block(span);
        self.containers.push(Container {
            block: Some(block),
            has_content: false,
            is_list,
        });
        self.depth += 1;
    }

    pub(super) fn close(&mut self) {
        if let Some(closed) = self.containers.pop()
            && !closed.is_list
        {
            self.depth -= 1;
        }
        self.is_behind_container = true;
    }

    pub(super) fn code(&mut self, span: Span, is_fenced: bool) {
        self.part(span.start, rank::BLOCK);
        let block = self.block(span);
        self.cut_lines(
            span,
            block,
            if is_fenced {
                Lines::Fenced
            } else {
                Lines::Plain
            },
        );
    }

    pub(super) fn html(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK);
        let block = self.block(span);
        self.cut_lines(span, block, Lines::Html);
    }

    /// Lines that the parser does not report.
    pub(super) fn lines(&mut self, span: Span, inside: Option<u32>, rank: u8) {
        self.place(span.start, rank, false);
        let block = inside.unwrap_or_else(|| self.block(span));
        self.cut_lines(span, block, Lines::Plain);
    }

    fn cut_lines(&mut self, span: Span, block: u32, kind: Lines) {
        let Some(span) = trimmed(self.text, span) else {
            return;
        };
        self.outline.lines.push(span);
        let is_sign = |c: char| matches!(c, ' ' | '\t' | '>' | '\r' | '\n');
        let mut start = span.start;
        let mut is_behind_blank = false;
        let mut intros = 0;
        for (index, line) in self.text[span.start..span.end]
            .split_inclusive('\n')
            .enumerate()
        {
            let content = line.trim_matches(is_sign);
            let is_last = start + line.len() == span.end;
            let is_fence = kind == Lines::Fenced
                && (index == 1 || (is_last && content.starts_with(['`', '~'])));
            if index > 0 && is_fence {
                self.joint(start, false);
            } else if index > 0 && !content.is_empty() {
                let is_intro = kind == Lines::Html
                    && intros < intros::MAX_RUN
                    && intros::is_intro(self.text, CutPoint::at(self.text, start));
                intros = if is_intro { intros + 1 } else { 0 };
                let rank = match is_behind_blank {
                    _ if is_intro => rank::INTRO,
                    true => rank::GAP,
                    false => rank::LINE,
                };
                self.push(start, rank, Some(block));
            }
            is_behind_blank = content.is_empty();
            start += line.len();
        }
    }

    pub(super) fn table(&mut self, span: Span) {
        self.before_table = true;
        self.part(span.start, rank::BLOCK);
        self.before_table = false;
        self.rows = self.block(span);
        let span = trimmed(self.text, span).unwrap_or(span);
        let text = &self.text[span.start..span.end];
        let mut lines = text.split_inclusive('\n').map(str::len);
        let delimiter = span.start + lines.next().unwrap_or(0);
        let end = delimiter + lines.next().unwrap_or(0);
        self.joint(delimiter, false);
        let start = self.line_start(span.start);
        let header = trimmed(self.text, Span { start, end }).unwrap_or(span);
        self.outline.tables.push(Table {
            header,
            end: span.end,
        });
        self.outline.lines.push(span);
    }

    pub(super) fn row(&mut self, span: Span) {
        let header = self
            .outline
            .tables
            .last()
            .map_or(0, |table| table.header.end);
        let start = self.line_start(span.start);
        if self.text[header.min(start)..start].trim().is_empty() {
            self.joint(start, false);
        } else {
            self.push(start, rank::LINE, Some(self.rows));
        }
    }

    pub(super) fn rule(&mut self, span: Span) {
        self.part(span.start, rank::BLOCK);
        self.behind_rule = true;
    }

    /// A top-level block has ended.
    pub(super) fn end_block(&mut self) {
        self.containers.clear();
        self.depth = 0;
    }

    /// A part of the innermost container begins: no cut before its first one.
    fn part(&mut self, start: usize, rank: u8) {
        let is_first = match self.containers.last_mut() {
            Some(container) => !std::mem::replace(&mut container.has_content, true),
            None => false,
        };
        if !is_first {
            let rank = if self.depth == 0 && self.behind_rule {
                rank::RULE
            } else {
                rank + 2 * u8::try_from(self.depth).unwrap_or(u8::MAX).min(MAX_DEPTH)
            };
            self.place(start, rank, false);
        }
    }

    /// A cut before a part, or a joint behind a heading.
    fn place(&mut self, start: usize, rank: u8, is_heading: bool) {
        self.behind_rule = false;
        let position = self.line_start(start).max(self.from);
        let is_behind_container = std::mem::take(&mut self.is_behind_container);
        if std::mem::take(&mut self.behind_heading) {
            self.joint(position, is_heading);
            // In a quote, signs may stand alone between the two.
            if let Some(title) = self.outline.titles.last_mut() {
                title.end = title.end.max(position);
            }
            return;
        }
        let inside = self.containers.iter().rev().find_map(|it| it.block);
        let is_intro = rank >= rank::BLOCK
            && !is_behind_container
            && self.intros < intros::MAX_RUN
            && self.introduces(position);
        self.intros = if is_intro { self.intros + 1 } else { 0 };
        self.push(position, if is_intro { rank::INTRO } else { rank }, inside);
    }

    /// Whether what stands before a part introduces it: "The steps are:", the caption of a table.
    fn introduces(&self, position: usize) -> bool {
        let cut = CutPoint::at(self.text, position);
        let before = &self.text[self.from.min(cut.end)..cut.end];
        let lines = self.outline.lines.last();
        let is_behind_lines = lines.is_some_and(|lines| lines.end >= cut.end);
        if is_behind_lines && !before.ends_with('>') {
            return false;
        }
        intros::is_intro(self.text, cut) || (self.before_table && intros::is_caption(before))
    }

    fn push(&mut self, position: usize, rank: u8, inside: Option<u32>) {
        let CutPoint { end, next, .. } = CutPoint::at(self.text, position);
        // Two parts may begin at one place, and the first of a text begins where it does.
        let last = self.outline.cuts.last().map_or(0, |cut| cut.next);
        let last = last.max(self.outline.joints.last().map_or(0, |joint| joint.next));
        let is_behind_text = !matches!(&self.text[..end], "" | "\u{feff}");
        if is_behind_text && next > last && next < self.text.len() {
            self.outline.cuts.push(Cut {
                end,
                next,
                rank,
                inside,
            });
            self.from = next;
        }
    }

    fn joint(&mut self, position: usize, before_heading: bool) {
        let next = CutPoint::at(self.text, position).next;
        let last = self.outline.cuts.last().map_or(0, |cut| cut.next);
        let last = last.max(self.outline.joints.last().map_or(0, |joint| joint.next));
        if next > last {
            self.outline.joints.push(Joint {
                next,
                before_heading,
            });
        }
    }

    fn block(&mut self, span: Span) -> u32 {
        let end = trimmed(self.text, span).map_or(span.start, |span| span.end);
        self.outline.blocks.push(Block {
            start: self.from,
            end,
        });
        u32::try_from(self.outline.blocks.len() - 1).expect("a text has fewer than 2³² blocks")
    }
}
