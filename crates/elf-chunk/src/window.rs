//! The part of a text that chunks are being cut from, measured in tokens.
//!
//! Text is measured one segment at a time and forgotten once chunks have passed
//! it. So memory depends on the size of a chunk, never on the length of the note.

use std::collections::VecDeque;
use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation;

use super::characters::Letters;
use super::cuts::{CutPoint, SentenceScan};
use super::intros;
use super::lines::{first_break, last_break};
use super::segment::Segment;
use super::sentences;
use super::tokenizer::{Tokenizer, TokenizerError};
use super::words::{MAX_UNIT_BYTES, Words};
use super::wraps;

/// A longer line is no row of a table.
const MAX_ROW_BYTES: usize = 2048;

/// A token, several tokens that share their characters, a short word, or a
/// piece of a very long token. Begins and ends with something other than
/// whitespace.
#[derive(Debug, Clone, Copy)]
struct Unit {
    start: usize,
    end: usize,
    /// Tokens in all units before this one, since the text's beginning.
    before: usize,
    /// Whether a piece begins with the single space before it (see `pieces`).
    behind_joint: bool,
}

/// The units and sentence ends from some chunk's start to some way ahead.
/// Offsets are bytes of the whole text.
pub(super) struct Window<'a> {
    tokenizer: &'a Tokenizer,
    letters: Letters,
    /// Up to the text's last character that is not whitespace.
    text: &'a str,
    from: usize,
    units: VecDeque<Unit>,
    /// Tokens before the first of `units`.
    forgotten: usize,
    /// Tokens in all units so far, forgotten ones included.
    total: usize,
    cuts: VecDeque<CutPoint>,
    sentences: SentenceScan,
    /// Its sentences are looked for.
    has_sentences: bool,
    /// Where the line begins in which the last sentence ended.
    line_start: usize,
    /// The first sentence of that line has a sign between two cells.
    has_cells: bool,
    /// Lines before the last sentence that introduce what follows, one after the other.
    intros: usize,
    /// Units reach up to here.
    measured: usize,
    /// Cuts reach up to here. The end of a text that fits one chunk is never
    /// scanned.
    scanned: usize,
    /// Ends of segments where the tokens on both sides may differ from those of the
    /// unbroken text.
    inexact_boundaries: VecDeque<usize>,
}

impl<'a> Window<'a> {
    /// `text[from..]` begins and ends with something other than whitespace.
    pub(super) fn new(tokenizer: &'a Tokenizer, text: &'a str, from: usize) -> Self {
        Self {
            tokenizer,
            letters: Letters::default(),
            text,
            from,
            units: VecDeque::new(),
            forgotten: 0,
            total: 0,
            cuts: VecDeque::new(),
            sentences: SentenceScan::default(),
            has_sentences: true,
            line_start: from,
            has_cells: false,
            intros: 0,
            measured: from,
            scanned: from,
            inexact_boundaries: VecDeque::new(),
        }
    }

    /// A window for chunks that never end between sentences.
    pub(super) fn without_sentences(self) -> Self {
        Self {
            has_sentences: false,
            ..self
        }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// Measures further until more than `tokens` or more than `bytes` follow `start`,
    /// or the text ends, and finds the sentences in it.
    pub(super) fn look_ahead(
        &mut self,
        start: usize,
        tokens: usize,
        bytes: usize,
    ) -> Result<(), TokenizerError> {
        self.measure_ahead(start, tokens, bytes)?;
        self.scan();
        Ok(())
    }

    /// [`Window::look_ahead`] that leaves out the sentences at the text's end.
    pub(super) fn measure_ahead(
        &mut self,
        start: usize,
        tokens: usize,
        bytes: usize,
    ) -> Result<(), TokenizerError> {
        while self.measured < self.text.len()
            && self.tokens(start, self.measured) <= tokens
            && self.measured.saturating_sub(start) <= bytes
        {
            self.measure_segment()?;
        }
        Ok(())
    }

    /// Whether units reach to the end of the text.
    pub(super) fn is_complete(&self) -> bool {
        self.measured == self.text.len()
    }

    /// Forgets what is before `start`.
    pub(super) fn forget_before(&mut self, start: usize) {
        self.units
            .drain(..self.units.partition_point(|unit| unit.end <= start));
        self.forgotten = self.units.front().map_or(self.total, |unit| unit.before);
        self.cuts
            .drain(..self.cuts.partition_point(|cut| cut.next < start));
        self.inexact_boundaries.drain(
            ..self
                .inexact_boundaries
                .partition_point(|&seam| seam <= start),
        );
    }

    /// Tokens from one position to another, as they are in the running text.
    pub(super) fn tokens(&self, from: usize, to: usize) -> usize {
        self.tokens_before(to) - self.tokens_before(from)
    }

    fn tokens_before(&self, position: usize) -> usize {
        let index = self.units.partition_point(|unit| unit.start < position);
        match self.units.get(index) {
            // A token without characters may stand before the first unit.
            Some(_) if index == 0 => self.forgotten,
            Some(unit) => unit.before,
            None => self.total,
        }
    }

    /// Whether the count of `text[start..end]` by itself is [`Window::tokens`].
    pub(super) fn is_exact(&self, start: usize, end: usize) -> bool {
        let Some(words) = self.tokenizer.words() else {
            // True only for exactly the text that was encoded in one piece.
            return start == self.from
                && end == self.measured
                && self.inexact_boundaries.is_empty();
        };
        let edge = |position: usize| {
            let (before, after) = self.text.split_at(position);
            position == self.from
                || after.is_empty()
                || ((before.ends_with(|c| words.isolating(c))
                    || after.starts_with(|c| words.isolating(c)))
                    && self.is_between_units(position))
        };
        edge(start)
            && edge(end)
            && !self
                .inexact_boundaries
                .iter()
                .any(|&seam| start < seam && seam < end)
    }

    /// Tokens of `prefix` and `text[start..end]` together, without special ones: from the counts
    /// of the running text and those of the first and last words. `None` if the chunk has no
    /// three joints.
    pub(super) fn count_by_pieces(
        &self,
        prefix: &str,
        start: usize,
        end: usize,
    ) -> Result<Option<usize>, TokenizerError> {
        if !self.tokenizer.has_independent_pieces() {
            return Ok(None);
        }
        let from = self.units.partition_point(|unit| unit.start <= start + 1);
        let to = self.units.partition_point(|unit| unit.start < end);
        let units = self.units.range(from..to.max(from));
        let mut joints = units.filter(|unit| unit.behind_joint);
        let (Some(first), Some(second), Some(last)) =
            (joints.next(), joints.next(), joints.next_back())
        else {
            return Ok(None);
        };
        let is_broken = |&seam: &usize| first.start <= seam && seam <= last.start;
        if self.inexact_boundaries.iter().any(is_broken) {
            return Ok(None);
        }
        let space_before = |unit: &Unit| unit.start - 1;
        let head = [prefix, &self.text[start..space_before(second)]].concat();
        let joint = prefix.len() + space_before(first) - start;
        let Some(in_head) = self.tokenizer.count_before_piece(&head, joint)? else {
            return Ok(None);
        };
        let tail = &self.text[space_before(last)..end];
        let in_tail = self.tokenizer.count_plain(tail)?;
        Ok(Some(in_head + (last.before - first.before) + in_tail))
    }

    pub(super) fn is_between_units(&self, position: usize) -> bool {
        let index = self.units.partition_point(|unit| unit.start < position);
        index == 0 || self.units[index - 1].end <= position
    }

    /// Where the first unit begins that makes `text[start..]` exceed `tokens` or
    /// `bytes`. `None` if the text ends before.
    pub(super) fn limit(&self, start: usize, tokens: usize, bytes: usize) -> Option<usize> {
        let most = self.tokens_before(start) + tokens;
        // A unit fits if the ones up to and with it hold no more than `most`.
        let by_tokens = self.units.partition_point(|unit| unit.before <= most);
        let by_tokens = match by_tokens {
            all if all == self.units.len() && self.total <= most => all,
            over => over.saturating_sub(1),
        };
        let by_bytes = self
            .units
            .partition_point(|unit| unit.end <= start.saturating_add(bytes));
        match self.units.get(by_tokens.min(by_bytes)) {
            Some(unit) => Some(unit.start),
            // Only whitespace follows, as far as the text is measured.
            None if !self.is_complete() => Some(self.measured),
            None => None,
        }
    }

    /// Ends of sentences that are followed by text within `after..=last`.
    pub(super) fn sentence_ends(
        &self,
        after: usize,
        last: usize,
    ) -> impl DoubleEndedIterator<Item = CutPoint> + '_ {
        let from = self.cuts.partition_point(|cut| cut.next <= after);
        let to = self.cuts.partition_point(|cut| cut.next <= last).max(from);
        self.cuts.range(from..to).copied()
    }

    /// Where units begin within `after..=last`.
    pub(super) fn unit_starts(
        &self,
        after: usize,
        last: usize,
    ) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let from = self.units.partition_point(|unit| unit.start <= after);
        let to = self
            .units
            .partition_point(|unit| unit.start <= last)
            .max(from);
        self.units.range(from..to).map(|unit| unit.start)
    }

    /// Where the unit ends that holds or follows `position`.
    pub(super) fn unit_end(&self, position: usize) -> usize {
        let index = self.units.partition_point(|unit| unit.end <= position);
        self.units
            .get(index)
            .map_or(self.text.len(), |unit| unit.end)
    }

    fn measure_segment(&mut self) -> Result<(), TokenizerError> {
        let start = self.measured;
        let segment = Segment::after(self.text, start);
        self.measured = segment.end;
        let text = &self.text[start..segment.end];
        if self.tokenizer.words().is_none() {
            self.push_tokens(start, text)?;
        } else {
            let mut word_start = start;
            for word in text.split_inclusive(Words::separates) {
                self.push_word(word_start, word.trim_end_matches(Words::separates))?;
                word_start += word.len();
            }
        }
        if self.is_complete() {
            return Ok(());
        }
        let whole_words = self.tokenizer.words().is_some()
            && (text.ends_with(Words::separates)
                || self.text[segment.end..].starts_with(Words::separates));
        if !whole_words {
            self.inexact_boundaries.push_back(segment.end);
        }
        let mut sentence_start = start;
        for sentence_end in segment.sentence_ends {
            self.push_sentence(sentence_start..sentence_end, true);
            sentence_start = sentence_end;
        }
        self.push_sentence(sentence_start..segment.end, false);
        self.scanned = segment.end;
        Ok(())
    }

    /// Units for the text between two separators.
    fn push_word(&mut self, start: usize, word: &str) -> Result<(), TokenizerError> {
        let tokenizer = self.tokenizer;
        let words = tokenizer
            .words()
            .expect("only words of a word-local tokenizer are pushed");
        if Words::is_short(word) || !words.may_be_split(word) {
            return self.push_part(words, start, word);
        }
        let mut rest = word;
        while let Some(first) = rest.chars().next() {
            let offset = start + word.len() - rest.len();
            let len = if words.isolating(first) {
                self.push_unit(offset, offset + first.len_utf8());
                self.total += 1;
                first.len_utf8()
            } else {
                let len = rest.find(|c| words.isolating(c)).unwrap_or(rest.len());
                self.push_part(words, offset, &rest[..len])?;
                len
            };
            rest = &rest[len..];
        }
        Ok(())
    }

    fn push_part(&mut self, words: &Words, start: usize, word: &str) -> Result<(), TokenizerError> {
        let tokenizer = self.tokenizer;
        let trimmed = word.trim_start();
        let (start, word) = (start + word.len() - trimmed.len(), trimmed.trim_end());
        if word.is_empty() {
            return Ok(());
        }
        let tokens = words.count(word, &mut self.letters, || tokenizer.count_plain(word))?;
        let Some(tokens) = tokens else {
            return self.push_tokens(start, word);
        };
        self.push_unit(start, start + word.len());
        self.total += tokens;
        Ok(())
    }

    fn push_tokens(&mut self, base: usize, text: &str) -> Result<(), TokenizerError> {
        let mut covered = 0;
        // Where the token before ends.
        let mut behind = 0;
        let words = self.tokenizer.words();
        let tokens = match words.and_then(|words| words.tokens(text, &mut self.letters)) {
            Some(tokens) => tokens,
            None => self.tokenizer.tokens(text)?,
        };
        for token in tokens {
            let begins_piece = token.begins_piece && behind <= token.start;
            let start = text.floor_char_boundary(token.start).max(covered);
            let end = text.ceil_char_boundary(token.end);
            // Characters that the tokenizer drops are still text: a chunk of nothing
            // else must not grow without bound.
            if start - covered > MAX_UNIT_BYTES {
                self.push_pieces(base, text, covered, start);
            }
            // A token of the same characters as the one before, or of whitespace
            // alone, counts with that one.
            if start < end {
                let first = self.units.len();
                self.push_pieces(base, text, start, end);
                covered = end;
                if let Some(unit) = self.units.get_mut(first) {
                    let is_joint = |space| behind <= space && is_single_space(text, space);
                    let space = (unit.start - base).checked_sub(1);
                    let space = space.filter(|&space| token.start >= space);
                    unit.behind_joint = begins_piece && space.is_some_and(is_joint);
                }
            }
            behind = end;
            self.total += 1;
        }
        if text.len() - covered > MAX_UNIT_BYTES {
            self.push_pieces(base, text, covered, text.len());
        }
        Ok(())
    }

    /// Units for `text[start..end]`: one, if it is short enough. The tokens that
    /// are counted next belong to the last of them.
    fn push_pieces(&mut self, base: usize, text: &str, start: usize, end: usize) {
        let piece = text[start..end].trim_end();
        let end = start + piece.len();
        let start = end - piece.trim_start().len();
        if end - start <= MAX_UNIT_BYTES {
            if start < end {
                self.push_unit(base + start, base + end);
            }
            return;
        }
        let mut piece_start = start;
        for (offset, grapheme) in text[start..end].grapheme_indices(true) {
            let offset = start + offset;
            let grapheme_end = offset + grapheme.len();
            if grapheme_end - piece_start > MAX_UNIT_BYTES && offset > piece_start {
                self.push_pieces(base, text, piece_start, offset);
                piece_start = offset;
            }
            // A grapheme can be longer than a unit: a letter with hundreds of accents.
            while grapheme_end - piece_start > MAX_UNIT_BYTES {
                let cut = text.floor_char_boundary(piece_start + MAX_UNIT_BYTES);
                self.push_pieces(base, text, piece_start, cut);
                piece_start = cut;
            }
        }
        self.push_pieces(base, text, piece_start, end);
    }

    fn push_unit(&mut self, start: usize, end: usize) {
        self.units.push_back(Unit {
            start,
            end,
            before: self.total,
            behind_joint: false,
        });
    }

    fn push_sentence(&mut self, sentence: Range<usize>, complete: bool) {
        if !self.has_sentences {
            return;
        }
        let cut = self.sentences.push(self.text, sentence.clone(), complete);
        let cut = cut.filter(|cut| self.is_end(*cut) && self.is_between_units(cut.next));
        self.cuts.extend(cut);
        let range = &self.text[sentence.clone()];
        // A line break ends a sentence in any case.
        if range.ends_with(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
            self.line_start = sentence.end;
            self.has_cells = false;
        } else if sentence.start == self.line_start {
            self.has_cells = has_cells(range);
        }
    }

    /// Whether a sentence of UAX #29 is one: prose is wrapped inside of sentences, a row of a table has several, and
    /// what introduces the next one belongs to it.
    fn is_end(&mut self, cut: CutPoint) -> bool {
        if cut.end > self.line_start {
            return !self.is_in_row(cut);
        }
        let is_intro = self.intros < intros::MAX_RUN && intros::is_intro(self.text, cut);
        self.intros = if is_intro { self.intros + 1 } else { 0 };
        !is_intro && !wraps::is_wrapped(self.text, cut)
    }

    /// Whether a row of a table has text on both sides of the cut.
    fn is_in_row(&self, cut: CutPoint) -> bool {
        let before = &self.text[self.line_start..cut.end];
        if before.len() > MAX_ROW_BYTES {
            return false;
        }
        if begins_row(before) {
            return line_of(&self.text[cut.next..]).trim_end().ends_with('|');
        }
        self.has_cells && self.is_below_cells()
    }

    /// Whether the line above has a sign between two cells.
    fn is_below_cells(&self) -> bool {
        let above = self.text[..self.line_start].trim_end_matches(['\n', '\r']);
        let from = above.ceil_char_boundary(above.len().saturating_sub(MAX_ROW_BYTES));
        let above = &above[from..];
        above[last_break(above).unwrap_or(0)..].contains('|')
    }

    fn scan(&mut self) {
        let text = &self.text[self.scanned..self.measured];
        if text.is_empty() || !self.has_sentences {
            return;
        }
        let mut start = self.scanned;
        for end in sentences::starts(text).chain([text.len()]) {
            let end = self.scanned + end;
            self.push_sentence(start..end, true);
            start = end;
        }
        self.scanned = self.measured;
    }
}

fn begins_row(line: &str) -> bool {
    line.trim_start_matches([' ', '\t', '>']).starts_with('|')
}

/// Whether the line that begins with `text` is a row of a table.
pub(super) fn is_row(text: &str) -> bool {
    let line = line_of(text);
    match begins_row(line) {
        true => line.trim_end().ends_with('|'),
        false => has_cells(line),
    }
}

/// The line that `text` begins with, as far as a row may be long.
fn line_of(text: &str) -> &str {
    let most = &text[..text.floor_char_boundary(MAX_ROW_BYTES)];
    &most[..first_break(most).unwrap_or(most.len())]
}

/// Whether a part of a line has a sign between two cells of a table.
fn has_cells(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.contains(&b'|') && text.contains(" | ")
}

/// Whether there is a space at `position`, with something other than whitespace on both sides.
fn is_single_space(text: &str, position: usize) -> bool {
    let is_text = |c: char| !c.is_whitespace();
    text.as_bytes()[position] == b' '
        && text[..position].ends_with(is_text)
        && text[position + 1..].starts_with(is_text)
}
