//! Where a chunk of sentences ends.

use super::chunker::Chunker;
use super::cuts::{self, CutPoint};
use super::landmarks::{self, Reach};
use super::languages;
use super::settings::Boundaries;
use super::window::Window;

impl Chunker {
    /// The best cut for a chunk of at most `room` tokens, as they are counted in
    /// the running text. With stable boundaries, `landmarks` chooses it. Else:
    ///
    /// The longest possible chunk is full. A paragraph's end is worth two fifths
    /// of it: the next chunk then begins with a thought, not inside one, and an edit
    /// moves fewer of the chunks after it. (In the example notes, an edited sentence
    /// changes 1.5 chunks. With a quarter instead of two fifths it changes 2.4, and
    /// there are 4% fewer chunks.) A sentence's end is worth half of it. It is worth all
    /// of it if the next sentence fits a chunk of its own: a search for the words of a
    /// cut sentence finds neither half. Inside an over-long sentence a clause's end is
    /// worth a quarter.
    pub(super) fn choose(
        &self,
        window: &Window,
        start: usize,
        done: usize,
        room: usize,
    ) -> Option<CutPoint> {
        let text = window.text();
        let Some(limit) = window.limit(start, room, self.max_bytes) else {
            return Some(CutPoint::at(text, text.len()));
        };
        if limit <= done {
            return None;
        }
        if self.boundaries == Boundaries::Stable {
            let fits = |cut: CutPoint| self.sentence_fits(window, cut.next, room).is_some();
            let reach = Reach {
                limit,
                tokens: room.saturating_sub(self.overlap),
                bytes: self.max_bytes,
            };
            return Some(landmarks::choose(window, done, reach, fits));
        }
        let three_quarters = text
            .floor_char_boundary(start + (limit - start) / 4 * 3)
            .max(done);
        let half = start + (limit - start) / 2;

        let three_fifths = text
            .floor_char_boundary(start + (limit - start) / 5 * 3)
            .max(done);
        let paragraph = window
            .sentence_ends(three_fifths, limit)
            .rev()
            .find(|cut| cut.paragraph);
        if paragraph.is_some() {
            return paragraph;
        }
        let sentence = window.sentence_ends(done, limit).next_back();
        if let Some(cut) = sentence
            && (cut.next >= half || self.sentence_fits(window, cut.next, room).is_some())
        {
            return sentence;
        }
        let is_open = |position| window.is_between_units(position);
        cuts::inside_sentence(text, three_quarters, limit, is_open, languages::ends_clause).or_else(
            || {
                let boundary =
                    |&position: &usize| cuts::is_grapheme_boundary(text, start, position);
                let grapheme = window.unit_starts(done, limit).rev().find(boundary);
                Some(CutPoint::at(text, grapheme.unwrap_or(limit)))
            },
        )
    }

    /// Tokens of the sentence that begins at `start`, if it fits a chunk of
    /// `room` tokens.
    pub(super) fn sentence_fits(
        &self,
        window: &Window,
        start: usize,
        room: usize,
    ) -> Option<usize> {
        let end = match window.sentence_ends(start, usize::MAX).next() {
            Some(cut) => cut.end,
            None if window.is_complete() => window.text().len(),
            None => return None,
        };
        let tokens = window.tokens(start, end);
        (tokens <= room && end - start <= self.max_bytes).then_some(tokens)
    }
}
