//! How much of a chunk the next one repeats.

use super::chunker::{Chunker, MAX_BYTES_PER_TOKEN, SLACK_TOKENS, Work};
use super::cuts::{self, CutPoint};
use super::languages::{self, End};
use super::outline::{Cut, Kind, Outline};
use super::window::{Window, is_row};
use super::{Chunk, ChunkError};

impl Chunker {
    /// Where the chunk after `chunk` begins: at the first part, sentence, or else word,
    /// from which the rest of `chunk` counts `overlap` at most.
    pub(super) fn overlap_start(
        &self,
        work: &Work,
        chunk: Chunk,
        cut: CutPoint,
    ) -> Result<usize, ChunkError> {
        let window = &work.window;
        let text = window.text();
        let indent = text[chunk.start..].len() - text[chunk.start..].trim_start().len();
        let chunk = Chunk {
            start: chunk.start + indent,
            ..chunk
        };
        let mut budget = self.overlap;
        // Keeping the next part whole is worth more than repeating one. That does
        // not hold for a part that is already cut.
        match work.outline {
            None => budget = self.beside_next_sentence(window, chunk, cut, budget),
            Some(outline) if is_in_paragraph(outline, chunk, cut) => {
                budget = self.beside_next_sentence(window, chunk, cut, budget);
            }
            // The text before belongs to another section.
            Some(outline) if outline.begins_section(cut.next) => return Ok(cut.next),
            Some(outline) => {
                let room = work.leads.room_at(cut.next);
                let choice = self.choice(work, outline, cut.next, cut.next, room);
                budget = budget.min(room.saturating_sub(choice.next_part(cut.next)));
            }
        }
        loop {
            let start = match work.outline {
                None => self.overlap_within(window, chunk, cut, budget),
                Some(outline) => match paragraph_cut_before(outline, chunk, cut) {
                    Some(start) => {
                        self.overlap_within(window, Chunk { start, ..chunk }, cut, budget)
                    }
                    None => self.overlap_of_parts(window, outline, chunk, cut, budget),
                },
            };
            let Some(start) = start else {
                return Ok(cut.next);
            };
            let from = work.line_start(start);
            if window.is_exact(from, chunk.end) {
                return Ok(start);
            }
            let tokens = self.count_plain(window, "", from, chunk.end)?;
            if tokens <= self.overlap {
                return Ok(start);
            }
            budget = budget.saturating_sub((tokens - self.overlap).max(self.overlap / 8 + 1));
        }
    }

    /// The budget that leaves the next sentence its room.
    fn beside_next_sentence(
        &self,
        window: &Window,
        chunk: Chunk,
        cut: CutPoint,
        budget: usize,
    ) -> usize {
        let room = self.bare.room - SLACK_TOKENS;
        let last = window.sentence_ends(chunk.start, cut.next).next_back();
        match self.sentence_fits(window, cut.next, room) {
            Some(next) if last == Some(cut) => budget.min(room - next),
            _ => budget,
        }
    }

    /// Whole paragraphs, items, rows or lines, or sentences of a paragraph; words only of a
    /// sentence that is cut.
    fn overlap_of_parts(
        &self,
        window: &Window,
        outline: &Outline,
        chunk: Chunk,
        cut: CutPoint,
        budget: usize,
    ) -> Option<usize> {
        if budget == 0 {
            return None;
        }
        let text = window.text();
        let fits = |start: &usize| self.is_overlap(window, *start, cut, budget);
        // Lines of code say little without the rest, so they are repeated only inside it.
        let is_whole = |part: &&Cut| {
            let around = part.inside.map(|block| outline.blocks[block as usize]);
            around.is_none_or(|block| cut.next < block.end)
        };
        let parts = outline.cuts(chunk.start, cut.next - 1).iter().rev();
        let mut parts = parts.filter(is_whole).map(|cut| cut.next);
        let is_between_parts = outline.is_cut(cut.next);
        if outline.kind == Kind::Paragraph && is_between_parts {
            return parts.next().filter(fits);
        }
        let parts = parts.take_while(fits).last();
        if outline.kind == Kind::Recursive {
            return parts.or_else(|| {
                let units = window.unit_starts(chunk.start, cut.next - 1).rev();
                let first = units
                    .take_while(fits)
                    .last()
                    .filter(|_| !is_between_parts)?;
                let boundary =
                    |start: &usize| cuts::is_grapheme_boundary(text, chunk.start, *start);
                window.unit_starts(first - 1, cut.next - 1).find(boundary)
            });
        }
        let is_start = |cut: &CutPoint| {
            !outline.is_in_lines(cut.next)
                && !outline.is_joint(cut.next)
                && languages::end(text, *cut) == Some(End::Sentence)
        };
        let sentences = || {
            let ends = window.sentence_ends(chunk.start, cut.next - 1).rev();
            ends.filter(is_start).map(|cut| cut.next)
        };
        let whole = sentences().take_while(fits).last();
        if let Some(start) = parts.into_iter().chain(whole).min() {
            return Some(start);
        }
        let last = sentences().next().unwrap_or(chunk.start);
        let last = outline
            .leaf_start(cut.end - 1)
            .unwrap_or(chunk.start)
            .max(last);
        let is_cut = window.sentence_ends(cut.next - 1, cut.next).next() != Some(cut);
        if is_between_parts || !is_cut || outline.is_in_lines(cut.end - 1) {
            return None;
        }
        let words = window
            .unit_starts(last, cut.next - 1)
            .rev()
            .take_while(fits);
        let is_word = |start: &usize| {
            text[..*start].ends_with(char::is_whitespace) && !outline.is_joint(*start)
        };
        words.filter(is_word).last()
    }

    fn overlap_within(
        &self,
        window: &Window,
        chunk: Chunk,
        cut: CutPoint,
        budget: usize,
    ) -> Option<usize> {
        if budget == 0 {
            return None;
        }
        let text = window.text();
        let fits = |start: &usize| self.is_overlap(window, *start, cut, budget);
        let sentences = || {
            window
                .sentence_ends(chunk.start, cut.next - 1)
                .rev()
                .map(|cut| cut.next)
        };
        let whole = sentences().take_while(fits).last();
        if whole.is_some() {
            return whole;
        }
        let last_sentence = sentences().next().unwrap_or(chunk.start);
        if window.tokens(last_sentence, cut.next) <= self.overlap || is_row(&text[last_sentence..])
        {
            // The next sentence leaves no room for it, or it is a row of a table.
            return None;
        }
        let units = window.unit_starts(last_sentence, cut.next - 1).rev();
        let first = units.take_while(fits).last()?;
        let mut units = window.unit_starts(first - 1, cut.next - 1);
        let is_word = |start: &usize| text[..*start].ends_with(char::is_whitespace);
        let boundary = |start: &usize| cuts::is_grapheme_boundary(text, chunk.start, *start);
        window
            .unit_starts(first - 1, cut.next - 1)
            .find(is_word)
            .or_else(|| units.find(boundary))
    }

    /// Whether a chunk that ends at `cut` may have its end repeated from `start` on. What has hardly any tokens
    /// has an end too.
    fn is_overlap(&self, window: &Window, start: usize, cut: CutPoint, budget: usize) -> bool {
        window.tokens(start, cut.next) <= budget
            && cut.next - start <= self.overlap * MAX_BYTES_PER_TOKEN
    }
}

/// Whether a chunk ends inside a paragraph, with the strategy of that name.
fn is_in_paragraph(outline: &Outline, chunk: Chunk, cut: CutPoint) -> bool {
    paragraph_cut_before(outline, chunk, cut).is_some() && !outline.is_cut(cut.next)
}

/// Where in a chunk the paragraph begins at whose sentences it is cut, or ends behind such a cut.
fn paragraph_cut_before(outline: &Outline, chunk: Chunk, cut: CutPoint) -> Option<usize> {
    if outline.kind != Kind::Paragraph {
        return None;
    }
    let paragraph = outline.leaf_start(cut.end - 1).unwrap_or(0);
    let is_cut = !outline.is_cut(cut.next) || paragraph < chunk.start;
    is_cut.then_some(paragraph.max(chunk.start))
}
