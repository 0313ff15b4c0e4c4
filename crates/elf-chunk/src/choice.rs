//! Where a chunk ends in a text with an outline.

use super::cuts::{self, CutPoint};
use super::intros;
use super::landmarks::{self, Reach};
use super::languages::{self, End};
use super::leads::Leads;
use super::outline::{Block, Cut, Kind, Outline, Span, rank};
use super::settings::Boundaries;
use super::window::Window;

/// A place where a chunk may end.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    cut: CutPoint,
    rank: u8,
}

/// What the end of one chunk depends on.
pub(super) struct Choice<'a> {
    pub(super) window: &'a Window<'a>,
    pub(super) outline: &'a Outline,
    pub(super) segment: Span,
    /// Where the chunk begins.
    pub(super) start: usize,
    /// Text before is in a chunk.
    pub(super) done: usize,
    /// Tokens of text in this chunk.
    pub(super) room: usize,
    /// Tokens of text in the largest chunk, without a lead.
    pub(super) largest_room: usize,
    /// What tells the same for a chunk that begins at a place.
    pub(super) leads: &'a Leads<'a>,
    pub(super) max_bytes: usize,
    pub(super) overlap: usize,
}

impl Choice<'_> {
    /// The best cut for a chunk of at most `room` tokens. `None` if nothing fits behind the overlap.
    ///
    /// Greedy chunks end at the strongest cut that leaves them three fifths full, or two fifths if a
    /// section begins there; else at the last. A cut before the last one must not leave a small
    /// chunk: what is between the two fits the next chunk with more text, or is a quarter of one.
    pub(super) fn cut(&self, boundaries: Boundaries) -> Option<CutPoint> {
        let Self {
            window,
            start,
            done,
            room,
            ..
        } = *self;
        let text = window.text();
        let Some(limit) = window.limit(start, room, self.max_bytes) else {
            return Some(CutPoint::at(text, text.len()));
        };
        if limit <= done {
            return None;
        }
        match boundaries {
            Boundaries::Greedy => self.greedy(limit),
            Boundaries::Stable => self.stable(limit),
        }
    }

    fn greedy(&self, limit: usize) -> Option<CutPoint> {
        let candidates = self.candidates(self.done, limit, limit);
        let Some(&last) = candidates.last() else {
            return self.inside(self.done, limit, None, Boundaries::Greedy);
        };
        if !self.is_half_full(last, limit) && !self.part_fits(last.cut.next) {
            return self
                .inside(last.cut.next, limit, Some(last), Boundaries::Greedy)
                .or(Some(last.cut));
        }
        let tokens = |from, to| self.window.tokens(from, to);
        let fill = |candidate: &Candidate| match candidate.rank {
            ..rank::RULE => 2,
            _ => 3,
        };
        let is_full = |it: &&Candidate| tokens(self.start, it.cut.next) * 5 >= self.room * fill(it);
        let mut strongest: Vec<Candidate> = candidates.iter().filter(is_full).copied().collect();
        strongest.sort_by_key(|it| (it.rank, std::cmp::Reverse(it.cut.next)));
        let beyond = self.next_candidate(last.cut.next, limit);
        let good = strongest.iter().find(|it| {
            it.cut == last.cut
                || self.fits(it.cut.next, beyond)
                || tokens(it.cut.next, last.cut.next) * 4 >= self.room
        });
        Some(good.unwrap_or(&last).cut)
    }

    fn stable(&self, limit: usize) -> Option<CutPoint> {
        let reach = Reach {
            limit,
            tokens: self.room.saturating_sub(self.overlap),
            bytes: self.max_bytes,
        };
        let far = landmarks::far(self.window, self.done, reach);
        let candidates = self.candidates(self.done, far, limit);
        let marks = candidates.iter().map(|it| (it.cut, bonus(it.rank)));
        if let Some(cut) = landmarks::strongest_of(self.window, self.done, reach, marks) {
            return Some(cut);
        }
        let last = candidates.iter().rfind(|it| it.cut.next <= limit).copied();
        match last {
            Some(last) if self.part_fits(last.cut.next) => Some(last.cut),
            _ => self
                .inside(self.done, limit, last, Boundaries::Stable)
                .or(last.map(|it| it.cut)),
        }
    }

    /// Places where a chunk may end in `after..=until`, in the order of the text. `limit` is where
    /// this chunk is full.
    fn candidates(&self, after: usize, until: usize, limit: usize) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let mut leaf = self.leaf_start(after);
        for cut in self.outline.cuts(after, self.segment.end) {
            if leaf > until {
                break;
            }
            self.sentences(leaf, cut.end, (after, until), limit, &mut candidates);
            let counts = self.counts(cut, leaf, limit, 0);
            leaf = cut.next;
            // A separator may stand inside a word, which the window counts as one.
            let is_open =
                self.outline.kind == Kind::Recursive || self.window.is_between_units(cut.next);
            if counts && cut.next <= until && is_open {
                candidates.push(Candidate {
                    cut: cut.point(),
                    rank: cut.rank,
                });
            }
        }
        if leaf <= until {
            self.sentences(
                leaf,
                self.segment.end,
                (after, until),
                limit,
                &mut candidates,
            );
        }
        candidates
    }

    /// Ends of sentences in a leaf, if it alone exceeds a chunk.
    fn sentences(
        &self,
        start: usize,
        end: usize,
        (after, until): (usize, usize),
        limit: usize,
        candidates: &mut Vec<Candidate>,
    ) {
        if self.outline.kind == Kind::Recursive || !self.is_oversize(Block { start, end }, limit) {
            return;
        }
        let text = self.window.text();
        let ends = self.window.sentence_ends(after.max(start), until.min(end));
        candidates.extend(ends.filter_map(|cut| {
            let rank = match languages::end(text, cut)? {
                End::Sentence => rank::SENTENCE,
                End::LineBreak => rank::LINE_BREAK,
            };
            let is_inside = cut.next < end && !self.outline.is_joint(cut.next);
            (is_inside && !self.is_in_title(cut.next)).then_some(Candidate { cut, rank })
        }));
    }

    fn leaf_start(&self, position: usize) -> usize {
        let start = self.outline.leaf_start(position);
        start.unwrap_or(0).max(self.segment.start)
    }

    /// Whether a part of the text alone exceeds a chunk.
    fn is_oversize(&self, block: Block, limit: usize) -> bool {
        let start = block.start.max(self.segment.start);
        let end = block.end.min(self.segment.end);
        // A chunk ended inside it already, or it does not fit the one that begins with it.
        start < self.start || (start == self.start && end > limit) || !self.fits(start, end)
    }

    /// Whether a part of the text fits a chunk of its own.
    fn fits(&self, start: usize, end: usize) -> bool {
        let tokens = self.window.tokens(start, end);
        // What stands before a chunk takes half of it at most. To make it for each part costs more
        // than all else.
        end - start <= self.max_bytes
            && tokens <= self.largest_room
            && (tokens <= self.largest_room * 2 / 5 || tokens <= self.leads.room_at(start))
    }

    /// Whether a chunk may end at a cut, which ends the leaf that begins at `leaf`.
    ///
    /// What introduces the part behind it stays with that part, or with its beginning if that alone exceeds a
    /// chunk; `intros`: so many introduce each other before the cut.
    fn counts(&self, cut: &Cut, leaf: usize, limit: usize, intros: usize) -> bool {
        let block = cut.inside.map(|block| self.outline.blocks[block as usize]);
        if block.is_some_and(|block| !self.is_oversize(block, limit)) {
            return false;
        }
        if cut.rank != rank::INTRO
            || self.outline.kind == Kind::Recursive
            || intros == intros::MAX_RUN
        {
            return true;
        }
        let start = leaf.max(self.start);
        let end = self.next_candidate_behind(cut.next, limit, intros + 1);
        self.is_oversize(Block { start, end }, limit)
    }

    /// Whether a chunk that ended before `position` would cut a heading that fits one.
    fn is_in_title(&self, position: usize) -> bool {
        let title = self.outline.title_around(position);
        title.is_some_and(|title| self.fits(title.start, title.end))
    }

    /// Where the text continues behind the first candidate after `position`, which may be behind
    /// what is measured.
    fn next_candidate(&self, position: usize, limit: usize) -> usize {
        self.next_candidate_behind(position, limit, 0)
    }

    fn next_candidate_behind(&self, position: usize, limit: usize, intros: usize) -> usize {
        let mut leaf = position;
        for cut in self.outline.cuts(position, self.segment.end) {
            if self.outline.kind != Kind::Recursive
                && self.is_oversize(
                    Block {
                        start: leaf,
                        end: cut.end,
                    },
                    limit,
                )
            {
                return leaf;
            }
            if self.counts(cut, leaf, limit, intros) {
                return cut.end;
            }
            leaf = cut.next;
        }
        self.segment.end
    }

    /// Tokens of the part that begins at `position` and fits a chunk; 0 if none does.
    pub(super) fn next_part(&self, position: usize) -> usize {
        let end = self.next_candidate(position, usize::MAX);
        match self.fits(position, end) {
            true => self.window.tokens(position, end),
            false => 0,
        }
    }

    fn is_half_full(&self, last: Candidate, limit: usize) -> bool {
        last.cut.next >= self.start + (limit - self.start) / 2
    }

    /// Whether the leaf or sentence that begins at `start` fits a chunk of its own.
    fn part_fits(&self, start: usize) -> bool {
        let leaf = self.outline.cut_behind(start).map(|cut| cut.end);
        let leaf = leaf.unwrap_or(self.segment.end).min(self.segment.end);
        let fits = |end: usize| self.fits(start, end);
        if fits(leaf) {
            return true;
        }
        let text = self.window.text();
        let is_end = |cut: &CutPoint| languages::end(text, *cut).is_some();
        let sentence = self.window.sentence_ends(start, leaf).find(is_end);
        self.outline.kind != Kind::Recursive && sentence.is_some_and(|cut| fits(cut.end))
    }

    /// The best cut where no part ends: behind `after`, which the last candidate precedes.
    fn inside(
        &self,
        after: usize,
        limit: usize,
        last: Option<Candidate>,
        boundaries: Boundaries,
    ) -> Option<CutPoint> {
        let Self {
            window,
            outline,
            start,
            done,
            ..
        } = *self;
        let text = window.text();
        let leaf = self.leaf_start(done);
        if last.is_none() && start < done {
            // The part behind the overlap may fit without it.
            let end = outline
                .cut_behind(done)
                .map_or(self.segment.end, |cut| cut.end);
            let part = Block { start: leaf, end };
            if !self.is_oversize(part, limit) {
                return None;
            }
        }
        let joint = outline.last_joint(after, limit);
        if let Some(joint) = joint.filter(|joint| joint.before_heading) {
            return Some(CutPoint::at(text, joint.next));
        }
        let is_open = |position: usize| {
            window.is_between_units(position)
                && (joint.is_none() || !outline.is_joint(CutPoint::at(text, position).next))
                && !self.is_in_title(position)
        };
        if outline.kind != Kind::Recursive {
            if boundaries == Boundaries::Stable {
                let reach = Reach {
                    limit,
                    tokens: self.room.saturating_sub(self.overlap),
                    bytes: self.max_bytes,
                };
                let is_end = |cut| languages::end(text, cut) == Some(End::Sentence);
                let cut = landmarks::inside(
                    window,
                    after,
                    reach,
                    is_open,
                    is_end,
                    languages::ends_clause,
                );
                return match last {
                    Some(last) if self.is_in_title(cut.next) => Some(last.cut),
                    None if self.is_in_title(cut.next) && start < done => None,
                    _ => Some(cut),
                };
            }
            let three_quarters = text.floor_char_boundary(start + (limit - start) / 4 * 3);
            let from = three_quarters.max(after);
            let cut = cuts::inside_sentence(text, from, limit, is_open, languages::ends_clause);
            if cut.is_some() {
                return cut;
            }
        }
        let is_boundary = |&position: &usize| {
            cuts::is_grapheme_boundary(text, start, position) && is_open(position)
        };
        let grapheme = window.unit_starts(after, limit).rev().find(is_boundary);
        match (grapheme, last) {
            (Some(position), _) => Some(CutPoint::at(text, position)),
            (None, Some(last)) => Some(last.cut),
            // Without the overlap, the heading fits.
            (None, None) if start < done && self.is_in_title(limit) => None,
            (None, None) => Some(CutPoint::at(text, limit)),
        }
    }
}

/// What a rank adds to a landmark's strength.
fn bonus(rank: u8) -> u32 {
    match rank {
        0..=2 => 8 * landmarks::BIT,
        3..=rank::RULE => 6 * landmarks::BIT,
        rank::BLOCK => 4 * landmarks::BIT,
        _ if rank < rank::INTRO => 3 * landmarks::BIT,
        rank::GAP => 2 * landmarks::BIT,
        rank::LINE_BREAK => 0,
        _ => landmarks::BIT,
    }
}
