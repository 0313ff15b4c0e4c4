//! What stands before a chunk's text in what is sent: the document prefix, and its lead: a line
//! of its section, and what it repeats of its table.

use std::cell::RefCell;
use std::rc::Rc;

use super::nfc::composed;
use super::outline::{Outline, Repeat, Span};
use super::tokenizer::{Tokenizer, TokenizerError};
use super::words::Words;

/// With less room, a chunk is its text alone.
const MIN_ROOM: usize = 64;

/// Leads that are remembered: of this chunk, its overlap, and what may follow.
const RECENT: usize = 16;

/// What stands before a chunk's text, and the room that it leaves.
#[derive(Debug, Clone)]
pub(super) struct Lead {
    /// All of it: the document prefix first.
    pub(super) prefix: String,
    /// Its tokens, and the special ones.
    pub(super) fixed_tokens: usize,
    /// Whether `fixed_tokens` is exact whatever text follows.
    pub(super) is_apart: bool,
    /// Tokens of text in a chunk at most.
    pub(super) room: usize,
    pub(super) line: Option<usize>,
    pub(super) repeat: Option<Span>,
}

impl Lead {
    pub(super) fn new(
        tokenizer: &Tokenizer,
        max_tokens: usize,
        prefix: String,
    ) -> Result<Self, TokenizerError> {
        let fixed_tokens = tokenizer.special_tokens() + tokenizer.count_plain(&prefix)?;
        Ok(Self {
            is_apart: prefix.is_empty()
                || (tokenizer.is_word_local() && prefix.ends_with(Words::separates)),
            prefix,
            fixed_tokens,
            room: max_tokens.saturating_sub(fixed_tokens),
            line: None,
            repeat: None,
        })
    }
}

/// The heading above a chunk, and what the chunk repeats.
type Place = (Option<usize>, Option<Repeat>);

/// The leads of a text's chunks. Chunks of one section have the same.
pub(super) struct Leads<'a> {
    tokenizer: &'a Tokenizer,
    max_tokens: usize,
    bare: &'a Lead,
    pub(super) text: &'a str,
    outline: &'a Outline,
    line: &'a dyn Fn(&[&str]) -> String,
    /// The lines so far.
    lines: RefCell<Vec<String>>,
    /// The last leads, and the section and repetition that each is for.
    recent: RefCell<Vec<(Place, Rc<Lead>)>>,
}

impl<'a> Leads<'a> {
    pub(super) fn new(
        (tokenizer, max_tokens): (&'a Tokenizer, usize),
        bare: &'a Lead,
        (text, outline): (&'a str, &'a Outline),
        line: &'a dyn Fn(&[&str]) -> String,
    ) -> Self {
        Self {
            tokenizer,
            max_tokens,
            bare,
            text,
            outline,
            line,
            lines: RefCell::default(),
            recent: RefCell::default(),
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into_inner()
    }

    /// The lead of a chunk that begins at `start`.
    pub(super) fn at(&self, start: usize) -> Result<Rc<Lead>, TokenizerError> {
        if self.bare.room < MIN_ROOM {
            return Ok(Rc::new(self.bare.clone()));
        }
        let heading = self.outline.heading_above(start);
        let repeat = self.outline.repeat(start);
        let key = (heading, repeat);
        if let Some((_, lead)) = self.recent.borrow().iter().find(|it| it.0 == key) {
            return Ok(lead.clone());
        }
        let most = self.bare.room / 4;
        let line = (self.line)(&path(&self.outline.headings, heading));
        let line = self.beginning(&composed(line.trim()), most)?;
        let repeated = match repeat {
            Some(repeat) => self.repeated(repeat, &line)?,
            None => None,
        };
        let mut lead = Lead::new(
            self.tokenizer,
            self.max_tokens,
            [
                self.bare.prefix.as_str(),
                &before(self.text, &line, repeated),
            ]
            .concat(),
        )?;
        lead.repeat = repeated;
        if !line.is_empty() {
            let mut lines = self.lines.borrow_mut();
            if lines.last() != Some(&line) {
                lines.push(line);
            }
            lead.line = Some(lines.len() - 1);
        }
        let lead = Rc::new(lead);
        let mut recent = self.recent.borrow_mut();
        if recent.len() == RECENT {
            recent.remove(0);
        }
        recent.push((key, lead.clone()));
        Ok(lead)
    }

    /// Tokens of text in a chunk that begins at `start`, if that can be known.
    pub(super) fn room_at(&self, start: usize) -> usize {
        self.at(start).map_or(self.bare.room, |lead| lead.room)
    }

    /// What of it is repeated behind `line`, so that half of the chunk is left. Of a table that is the header row
    /// with the row below it, if they are a quarter of a chunk at most, else the header row alone, else as many of
    /// its leading cells as a quarter of a chunk holds: without its header, a row says little.
    fn repeated(&self, repeat: Repeat, line: &str) -> Result<Option<Span>, TokenizerError> {
        let room = self.bare.room;
        let most = room / 2 - self.tokenizer.count_plain(line)?.min(room / 4);
        let header = match repeat {
            Repeat::Heading(span) => return Ok(self.fits(span, most)?.then_some(span)),
            Repeat::Header(span) => span,
        };
        if self.fits(header, room / 4)? {
            return Ok(Some(header));
        }
        let row = self.text[header.start..header.end].lines().next();
        let row = Span {
            end: header.start + row.unwrap_or_default().trim_end().len(),
            ..header
        };
        if self.fits(row, most)? {
            return Ok(Some(row));
        }
        let cells = |end| Span { end, ..row };
        let longest = row.start + 64 * room;
        let ends: Vec<usize> = cell_ends(&self.text[row.start..row.end])
            .map(|end| row.start + end)
            .take_while(|&end| end <= longest)
            .collect();
        let mut error = None;
        let count = ends.partition_point(|&end| {
            self.fits(cells(end), room / 4).unwrap_or_else(|it| {
                error = Some(it);
                false
            })
        });
        match error {
            Some(error) => Err(error),
            None => Ok(count.checked_sub(1).map(|last| cells(ends[last]))),
        }
    }

    /// Whether a repetition has so many tokens at most.
    fn fits(&self, span: Span, most: usize) -> Result<bool, TokenizerError> {
        let text = unpadded(&self.text[span.start..span.end]);
        Ok(text.len() <= most * 16 && self.tokenizer.count_plain(&text)? <= most)
    }

    /// The beginning of a line, of so many tokens at most: whole words.
    fn beginning(&self, line: &str, most: usize) -> Result<String, TokenizerError> {
        let mut line = &line[..line.floor_char_boundary(most * 16)];
        // Most lines are short, and a count is cheaper than the tokens.
        if self.tokenizer.count_plain(line)? <= most {
            return Ok(line.to_owned());
        }
        loop {
            let tokens = self.tokenizer.tokens(line)?;
            let Some(over) = tokens.get(most) else {
                return Ok(line.to_owned());
            };
            let shorter = &line[..line.floor_char_boundary(over.start)];
            let words = shorter.trim_end_matches(|c: char| !c.is_whitespace());
            let shorter = if words.is_empty() { shorter } else { words }.trim_end();
            // A character that becomes nothing may be behind the last token.
            line = match shorter.len() < line.len() {
                true => shorter,
                false => &line[..line.floor_char_boundary(line.len() - 1)],
            };
        }
    }
}

/// Behind each cell of a row, with the sign that ends it.
fn cell_ends(row: &str) -> impl Iterator<Item = usize> {
    let mut is_escaped = false;
    let first = row.len() - row.trim_start_matches([' ', '\t', '>']).len();
    row.bytes().enumerate().filter_map(move |(at, byte)| {
        let is_end = byte == b'|' && !is_escaped && at > first;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end.then_some(at + 1)
    })
}

/// The titles of a heading and of those around it, outermost first.
pub(super) fn path(headings: &[super::Heading], heading: Option<usize>) -> Vec<&str> {
    let mut path = Vec::new();
    let mut next = heading;
    while let Some(index) = next {
        path.push(headings[index].title.as_str());
        next = headings[index].parent;
    }
    path.reverse();
    path
}

/// What stands before a chunk's text, without the document prefix.
pub(super) fn before(text: &str, line: &str, repeat: Option<Span>) -> String {
    let mut before = String::new();
    if !line.is_empty() {
        before.push_str(line);
        before.push('\n');
    }
    if let Some(span) = repeat {
        before.push_str(&unpadded(&text[span.start..span.end]));
        before.push('\n');
    }
    before
}

/// What a chunk repeats, in NFC and without what only aligns its columns: a delimiter row may have more tokens
/// than the header.
fn unpadded(text: &str) -> String {
    let mut shorter = String::with_capacity(text.len());
    let (mut last, mut in_a_row) = ('\0', 0);
    for c in composed(text).chars() {
        in_a_row = if c == last { in_a_row + 1 } else { 1 };
        last = c;
        if (c == ' ' && in_a_row > 1) || (c == '-' && in_a_row > 3) {
            continue;
        }
        shorter.push(c);
    }
    shorter
}
