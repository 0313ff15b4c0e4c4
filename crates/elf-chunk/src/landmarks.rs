//! Cuts that stay put when the text far from them changes.
//!
//! Every place to cut has a strength, made from a hash of the text around it and from what ends
//! there. The strength knows no position. So two chunks that begin at different places, but see
//! the same strongest cut, end at the same place, and all chunks behind it are the same.
//!
//! Of the cuts within the next two chunks the strongest is the target. The chunk ends there, or at
//! the strongest cut from which the next chunk can reach it. To look two chunks ahead instead of
//! one makes it more likely that two chunks have the same target; `make bench NAME=edits` measures it.

use unicode_segmentation::UnicodeSegmentation;

use super::cuts::{self, CutPoint};
use super::languages;
use super::window::Window;

/// Bytes on both sides of a cut that its strength depends on: enough to tell the lines of
/// a log apart, and so few that an edit seldom touches them.
const SURROUNDINGS_BYTES: usize = 32;

/// One bit of strength: a cut with it wins against twice as many cuts.
pub(super) const BIT: u32 = 1 << 16;
const PARAGRAPH: u32 = 4 * BIT;
const CLAUSE: u32 = 3 * BIT;
/// More than any hash gives: where the words inside a sentence are cut, its end comes first.
const SENTENCE: u32 = 128 * BIT;
/// Then the end of a line: what looks like wrapped prose may be lines that stand by themselves.
const LINE: u32 = 64 * BIT;

/// How many tokens a chunk adds to the text before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Where the largest possible chunk ends.
    pub(super) limit: usize,
    /// Tokens that every chunk has room for behind its overlap.
    pub(super) tokens: usize,
    /// Bytes, likewise.
    pub(super) bytes: usize,
}

impl Reach {
    /// The fewest tokens that a chunk adds. Less makes edits cheaper and chunks smaller.
    fn least(self) -> usize {
        (self.tokens * 2 / 5).max(1)
    }

    /// Whether one chunk can lead from a cut to another, so many tokens behind it.
    fn spans(self, tokens: usize) -> bool {
        (self.least()..=self.tokens).contains(&tokens)
    }

    /// Whether two chunks can.
    fn spans_twice(self, tokens: usize) -> bool {
        (2 * self.least()..=2 * self.tokens).contains(&tokens)
    }
}

/// A place where a chunk may end.
struct Landmark {
    cut: CutPoint,
    /// Tokens between the cut before and this one.
    tokens: usize,
    strength: u32,
}

/// Where the chunk ends that adds text from `done` on. `fits` tells whether the sentence behind a
/// cut fits a chunk of its own.
pub(super) fn choose(
    window: &Window,
    done: usize,
    reach: Reach,
    fits: impl Fn(CutPoint) -> bool,
) -> CutPoint {
    let sentences = window.sentence_ends(done, far(window, done, reach));
    let sentences = sentences.map(|cut| (cut, if cut.paragraph { PARAGRAPH } else { 0 }));
    if let Some(cut) = strongest_of(window, done, reach, sentences) {
        return cut;
    }
    let last = window.sentence_ends(done, reach.limit).next_back();
    if let Some(cut) = last.filter(|&cut| fits(cut)) {
        return cut;
    }
    let is_open = |position| window.is_between_units(position);
    inside(
        window,
        done,
        reach,
        is_open,
        |_| true,
        languages::ends_clause,
    )
}

/// How far behind `done` cuts matter.
pub(super) fn far(window: &Window, done: usize, reach: Reach) -> usize {
    window
        .limit(done, 2 * reach.tokens, 2 * reach.bytes)
        .unwrap_or(window.text().len())
        .max(reach.limit)
}

/// The cut that leads to the strongest one. `cuts` are in the order of the text, each with what it adds
/// to the strength of its surroundings.
pub(super) fn strongest_of(
    window: &Window,
    done: usize,
    reach: Reach,
    cuts: impl Iterator<Item = (CutPoint, u32)>,
) -> Option<CutPoint> {
    let marks = cuts.map(|(cut, bonus)| Landmark {
        cut,
        tokens: window.tokens(done, cut.next),
        strength: strength(window.text(), cut) + bonus,
    });
    strongest(&marks.collect::<Vec<_>>(), reach)
}

/// The best cut between words, or else graphemes. `is_end` tells whether a sentence that ends at a cut of
/// the window is one.
pub(super) fn inside(
    window: &Window,
    done: usize,
    reach: Reach,
    is_open: impl Fn(usize) -> bool,
    is_end: impl Fn(CutPoint) -> bool,
    ends_clause: impl Fn(&str, &str) -> bool,
) -> CutPoint {
    let text = window.text();
    let far = far(window, done, reach);
    // The cuts on both sides of whitespace are the same. To make one inside it, for each of a
    // million blanks, would take quadratic time.
    let begins_text = |position: usize| !text[position..].starts_with(char::is_whitespace);
    let nearest = window
        .limit(done, reach.least(), reach.bytes)
        .unwrap_or(reach.limit)
        .min(reach.limit);
    let words = cuts::words(text, nearest, far)
        .filter(|&position| begins_text(position) && is_open(position))
        .map(|position| {
            let cut = CutPoint::at(text, position);
            let ends_sentence = window.sentence_ends(cut.next - 1, cut.next).any(&is_end);
            let bonus = if ends_sentence {
                SENTENCE
            } else if text[cut.end..cut.next].contains('\n') {
                LINE
            } else if ends_clause(&text[..position], &text[position..]) {
                CLAUSE
            } else {
                0
            };
            (cut, bonus)
        });
    let words: Vec<(CutPoint, u32)> = words.collect();
    let lines = words.iter().copied().filter(|&(_, bonus)| bonus >= LINE);
    let cut = strongest_of(window, done, reach, lines);
    if let Some(cut) = cut.or_else(|| strongest_of(window, done, reach, words.into_iter())) {
        return cut;
    }

    let graphemes = text[done..reach.limit].grapheme_indices(true).skip(1);
    let graphemes = graphemes
        .map(|(offset, _)| done + offset)
        .filter(|&position| begins_text(position) && is_open(position))
        .map(|position| (CutPoint::at(text, position), 0));
    strongest_of(window, done, reach, graphemes).unwrap_or_else(|| CutPoint::at(text, reach.limit))
}

/// The cut that leads to the strongest one within two chunks. `landmarks` are in the order of the
/// text; of equal ones the last wins, so that chunks of equal lines are full.
fn strongest(landmarks: &[Landmark], reach: Reach) -> Option<CutPoint> {
    let is_next = |mark: &Landmark| mark.cut.next <= reach.limit && mark.tokens >= reach.least();
    let best = |is_candidate: &dyn Fn(&Landmark) -> bool| {
        let candidates = landmarks.iter().filter(|mark| is_candidate(mark));
        candidates.max_by_key(|mark| mark.strength)
    };
    let target = best(&|mark| is_next(mark) || reach.spans_twice(mark.tokens))?;
    if is_next(target) {
        return Some(target.cut);
    }
    let leads_there = |mark: &Landmark| {
        is_next(mark) && target.tokens > mark.tokens && reach.spans(target.tokens - mark.tokens)
    };
    let next = best(&leads_there).or_else(|| best(&is_next));
    next.map(|mark| mark.cut)
}

/// How strong a cut is by the text around it: the bits by which its hash is below the largest
/// one, in units of 1/[`BIT`]. Versions of the chunks depend on it, so it must never change.
fn strength(text: &str, cut: CutPoint) -> u32 {
    let bytes = text.as_bytes();
    let before = &bytes[cut.end.saturating_sub(SURROUNDINGS_BYTES)..cut.end];
    let after = &bytes[cut.next..bytes.len().min(cut.next + SURROUNDINGS_BYTES)];
    let hash = mixed(fnv1a(before.iter().chain(after)));
    let zeros = hash.leading_zeros().min(63);
    let below_first_one = (hash << zeros << 1) >> 48;
    (zeros + 1) * BIT - 1 - u32::try_from(below_first_one).expect("it has 16 bits")
}

/// FNV-1a of 64 bits.
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// MurmurHash3's finalizer: FNV-1a leaves its upper bits to the first bytes.
fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
