//! Where a text may be cut, best first: after a paragraph, a sentence, a
//! clause, a word, a grapheme.

use std::ops::Range;

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation};

pub(super) use super::scripts::words;

/// A place to cut: the chunk before ends at `end`, the text continues at `next`,
/// and between them is whitespace or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CutPoint {
    pub(super) end: usize,
    pub(super) next: usize,
    /// A blank line lies between.
    pub(super) paragraph: bool,
}

impl CutPoint {
    /// The cut at `position`. There must be something other than whitespace
    /// before it.
    pub(super) fn at(text: &str, position: usize) -> Self {
        let (before, after) = text.split_at(position);
        Self {
            end: before.trim_end().len(),
            next: text.len() - after.trim_start().len(),
            paragraph: false,
        }
    }
}

/// Turns sentences, one after the other, into the cuts between them.
#[derive(Debug, Default)]
pub(super) struct SentenceScan {
    /// Where the last sentence with text in it ends.
    end: usize,
    /// Line breaks since.
    line_breaks: usize,
    /// The last sentence is incomplete and continues in the next range.
    open: bool,
}

impl SentenceScan {
    /// The cut before the sentence `text[range]`, if it is one to cut at.
    /// `complete`: the sentence ends with `range`.
    pub(super) fn push(
        &mut self,
        text: &str,
        range: Range<usize>,
        complete: bool,
    ) -> Option<CutPoint> {
        let sentence = &text[range.clone()];
        let next = range.end - sentence.trim_start().len();
        self.line_breaks += line_breaks(&text[range.start..next]);
        if next == range.end {
            // Every blank line is a sentence to UAX #29.
            return None;
        }
        let cut = CutPoint {
            end: self.end,
            next,
            paragraph: self.line_breaks >= 2,
        };
        // UAX #29 also ends a sentence at the question mark of a URL or of
        // `a?b:c`. Only scripts without spaces end a sentence without a space.
        let inside_word = cut.end == cut.next && text[..cut.end].ends_with(|c: char| c.is_ascii());
        let is_cut = cut.end > 0 && !self.open && !inside_word;

        self.end = range.start + sentence.trim_end().len();
        self.line_breaks = line_breaks(&text[self.end..range.end]);
        self.open = !complete;
        is_cut.then_some(cut)
    }
}

fn line_breaks(whitespace: &str) -> usize {
    let mut breaks = 0;
    let mut previous = None;
    for c in whitespace.chars() {
        breaks += match c {
            '\n' if previous == Some('\r') => 0,
            '\n' | '\r' | '\u{85}' | '\u{2028}' => 1,
            '\u{2029}' => 2,
            _ => 0,
        };
        previous = Some(c);
    }
    breaks
}

/// The best place to cut inside a sentence: after the last line that ends in
/// `after..=last`, else the last clause, else the last word. (What looks like wrapped prose may be
/// lines that stand by themselves.) `is_open` tells whether a position
/// lies between two tokens, `ends_clause` whether a clause ends between two texts.
pub(super) fn inside_sentence(
    text: &str,
    after: usize,
    last: usize,
    is_open: impl Fn(usize) -> bool,
    ends_clause: impl Fn(&str, &str) -> bool,
) -> Option<CutPoint> {
    let mut line = None;
    let mut clause = None;
    let mut word = None;
    // All cuts inside a run of whitespace are the same. To look at its beginning from each of a
    // million blanks would take quadratic time.
    let mut before = after;
    let mut is_clause = None;
    for position in words(text, after, last) {
        let is_same_cut = text[before..position].trim_start().is_empty();
        before = position;
        if !is_same_cut {
            is_clause = None;
        }
        if !is_open(position) {
            continue;
        }
        word = Some(position);
        if text[..position].ends_with('\n') {
            line = word;
        }
        if *is_clause.get_or_insert_with(|| ends_clause(&text[..position], &text[position..])) {
            clause = word;
        }
    }
    let best = line.or(clause).or(word);
    best.map(|position| CutPoint::at(text, position))
}

/// Whether a clause ends between `before` and `after`.
pub(super) fn ends_clause(before: &str, after: &str) -> bool {
    let spaced = before.ends_with(char::is_whitespace) || after.starts_with(char::is_whitespace);
    match before.trim_end().chars().next_back() {
        Some(',' | ';' | ':' | '—' | '–' | '،' | '؛') => spaced,
        Some('、' | '，' | '；' | '：' | '…' | '၊') => true,
        _ => false,
    }
}

/// Whether no grapheme of `text[start..]` is cut by `position`. Looks no further
/// back than `start`, so that a line of only flag emoji takes linear time.
pub(super) fn is_grapheme_boundary(text: &str, start: usize, position: usize) -> bool {
    let text = &text[start..];
    GraphemeCursor::new(position - start, text.len(), true)
        .is_boundary(text, 0)
        .unwrap_or(true)
}

/// A boundary near the middle of `text`, between two graphemes if there are
/// two, else between two characters. `None` for a single character.
pub(super) fn middle(text: &str) -> Option<usize> {
    let half = text.floor_char_boundary(text.len() / 2);
    let boundaries = || {
        text.grapheme_indices(true)
            .map(|(offset, _)| offset)
            .skip(1)
    };
    boundaries()
        .take_while(|&offset| offset <= half)
        .last()
        .or_else(|| boundaries().next())
        .or(Some(half).filter(|&half| half > 0))
        .or_else(|| text.char_indices().nth(1).map(|(offset, _)| offset))
}
