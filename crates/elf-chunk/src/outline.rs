//! Where a text with structure may be cut: the outline of its blocks, found before it is measured.
//!
//! A *cut* is a place between two blocks, items, rows or lines, with a rank. A cut inside a block
//! counts only if that block alone exceeds a chunk. What lies between two cuts is a *leaf*: it is
//! cut at its sentences, and only if it alone exceeds a chunk. No chunk ends at a *joint*: behind a
//! heading, or between a table's header and its first row.

use super::cuts::CutPoint;
use super::settings::BlockKind;

/// Ranks of cuts, strongest first. Sections have the level of their heading: 1 to 6.
pub(super) mod rank {
    /// Behind a thematic break.
    pub(crate) const RULE: u8 = 7;
    /// Between blocks, and between items of a list: two more for each container around them.
    pub(crate) const BLOCK: u8 = 8;
    /// Behind what introduces the next part. It counts only if the two do not fit a chunk.
    pub(crate) const INTRO: u8 = 190;
    /// At a blank line in code.
    pub(crate) const GAP: u8 = 200;
    /// Between rows of a table, or lines of code.
    pub(crate) const LINE: u8 = 201;
    pub(crate) const SENTENCE: u8 = 210;
    /// A line break inside a sentence.
    pub(crate) const LINE_BREAK: u8 = 211;
}

/// Bytes of a text: `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Span {
    /// The first byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

/// A heading of a Markdown text.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Heading {
    /// 1 to 6.
    pub level: u8,
    /// Where it stands, with its markup.
    pub start: usize,
    /// Behind its last byte.
    pub end: usize,
    /// Its text, without markup.
    pub title: String,
    /// The heading of the section around it, as an index.
    pub parent: Option<usize>,
    /// It without the badges around its text; empty if it has nothing else.
    #[serde(skip)]
    pub(super) shown: Span,
}

/// Headings whose text is excluded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranded {
    /// Where the text behind it begins.
    pub(super) next: usize,
    /// Where the first of these headings begins.
    pub(super) heading: usize,
    /// What the chunk there repeats.
    pub(super) shown: Span,
}

/// Text that is in no chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Excluded {
    /// Where it begins.
    pub start: usize,
    /// Behind its last byte.
    pub end: usize,
    /// Why it is left out.
    pub why: Why,
}

/// Why a text is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It is the section of a heading that the settings exclude.
    Heading,
    /// It is a block that the settings exclude.
    Block(BlockKind),
    /// It is a heading, and what follows it is left out. The next chunk of its section repeats it.
    Stranded,
}

/// A place between two parts of a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) end: usize,
    pub(super) next: usize,
    pub(super) rank: u8,
    /// The block that it cuts.
    pub(super) inside: Option<u32>,
}

impl Cut {
    pub(super) fn point(self) -> CutPoint {
        CutPoint {
            end: self.end,
            next: self.next,
            paragraph: self.rank <= rank::BLOCK,
        }
    }
}

/// A block that is cut only if it alone exceeds a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    /// Where it begins, with the headings that stay with it.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A place where no chunk ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Joint {
    pub(super) next: usize,
    /// A heading follows, or continues there.
    pub(super) before_heading: bool,
}

/// A table, and what a chunk that begins in its rows repeats.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    /// Header row and delimiter row.
    pub(super) header: Span,
    pub(super) end: usize,
}

/// What a chunk repeats of the text before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Header row and delimiter row of its table.
    Header(Span),
    /// Headings whose text is excluded.
    Heading(Span),
}

/// How the parts of an outline are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    #[default]
    Markdown,
    /// The overlap is the last paragraph, or no paragraph.
    Paragraph,
    /// Leaves are cut between graphemes.
    Recursive,
}

/// The parts of a text. All lists are in its order.
#[derive(Debug, Default)]
pub(super) struct Outline {
    pub(super) kind: Kind,
    pub(super) cuts: Vec<Cut>,
    pub(super) joints: Vec<Joint>,
    pub(super) blocks: Vec<Block>,
    pub(super) headings: Vec<Heading>,
    /// All headings, also those in quotes and items: they are cut only if they exceed a chunk.
    pub(super) titles: Vec<Span>,
    pub(super) tables: Vec<Table>,
    /// Code, tables, HTML: an overlap begins with a whole line of these.
    pub(super) lines: Vec<Span>,
    pub(super) excluded: Vec<Excluded>,
    pub(super) stranded: Vec<Stranded>,
}

impl Outline {
    /// The parts of `text` that chunks are made of.
    pub(super) fn segments(&self, text: &str) -> Vec<Span> {
        let mut segments = Vec::new();
        let mut start = 0;
        let ends = self.excluded.iter().map(|it| (it.start, it.end));
        for (end, next) in ends.chain([(text.len(), text.len())]) {
            segments.extend(trimmed(text, Span { start, end }));
            start = next;
        }
        segments
    }

    /// Cuts in `after..=last`, by where the text continues.
    pub(super) fn cuts(&self, after: usize, last: usize) -> &[Cut] {
        let from = self.cuts.partition_point(|cut| cut.next <= after);
        let to = self.cuts.partition_point(|cut| cut.next <= last).max(from);
        &self.cuts[from..to]
    }

    /// The first cut behind `position`.
    pub(super) fn cut_behind(&self, position: usize) -> Option<Cut> {
        let index = self.cuts.partition_point(|cut| cut.next <= position);
        self.cuts.get(index).copied()
    }

    /// Where the leaf begins that holds `position`, if it does not begin at the beginning.
    pub(super) fn leaf_start(&self, position: usize) -> Option<usize> {
        let index = self.cuts.partition_point(|cut| cut.next <= position);
        Some(self.cuts.get(index.checked_sub(1)?)?.next)
    }

    /// Whether a structural cut has its text continue at `position`.
    pub(super) fn is_cut(&self, position: usize) -> bool {
        self.cuts
            .binary_search_by_key(&position, |cut| cut.next)
            .is_ok()
    }

    pub(super) fn is_joint(&self, position: usize) -> bool {
        self.joints
            .binary_search_by_key(&position, |joint| joint.next)
            .is_ok()
    }

    /// The last joint in `after..=last`.
    pub(super) fn last_joint(&self, after: usize, last: usize) -> Option<Joint> {
        let index = self.joints.partition_point(|joint| joint.next <= last);
        let joint = *self.joints.get(index.checked_sub(1)?)?;
        (joint.next > after).then_some(joint)
    }

    /// Whether `position` lies in a block that is made of lines, behind its beginning.
    pub(super) fn is_in_lines(&self, position: usize) -> bool {
        let index = self.lines.partition_point(|span| span.start < position);
        index > 0 && position < self.lines[index - 1].end
    }

    /// The heading that `position` cuts.
    pub(super) fn title_around(&self, position: usize) -> Option<Span> {
        let index = self.titles.partition_point(|title| title.start < position);
        let title = self.titles[index.checked_sub(1)?];
        (position < title.end).then_some(title)
    }

    /// Whether a section begins at `position`.
    pub(super) fn begins_section(&self, position: usize) -> bool {
        self.heading_at(position).is_some()
    }

    fn heading_at(&self, position: usize) -> Option<usize> {
        self.headings
            .binary_search_by_key(&position, |heading| heading.start)
            .ok()
    }

    /// The innermost heading above a chunk that begins at `position`, and is not in it.
    pub(super) fn heading_above(&self, position: usize) -> Option<usize> {
        if let Some(stranded) = self.stranded_before(position) {
            return self.heading_above(stranded.heading);
        }
        match self.heading_at(position) {
            Some(heading) => self.headings[heading].parent,
            None => self
                .headings
                .partition_point(|heading| heading.start < position)
                .checked_sub(1),
        }
    }

    fn stranded_before(&self, position: usize) -> Option<Stranded> {
        let found = self.stranded.binary_search_by_key(&position, |it| it.next);
        found.ok().map(|index| self.stranded[index])
    }

    /// What a chunk that begins at `position` repeats, if it is not too long.
    pub(super) fn repeat(&self, position: usize) -> Option<Repeat> {
        let index = self
            .tables
            .partition_point(|table| table.header.start < position);
        let table = index.checked_sub(1).map(|index| self.tables[index]);
        let of_table = table
            .filter(|table| table.header.end <= position && position < table.end)
            .map(|table| Repeat::Header(table.header));
        let stranded = || self.stranded_before(position);
        of_table.or_else(|| stranded().map(|it| Repeat::Heading(it.shown)))
    }
}

/// `span` without the whitespace around it, if anything is left.
pub(super) fn trimmed(text: &str, span: Span) -> Option<Span> {
    let slice = text[span.start..span.end].trim_end();
    let end = span.start + slice.len();
    let start = end - slice.trim_start().len();
    (start < end).then_some(Span { start, end })
}
