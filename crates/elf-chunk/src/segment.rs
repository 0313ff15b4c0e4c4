//! The part of a text that is measured at once, and where it ends.

use unicode_segmentation::GraphemeCursor;

use super::sentences;
use super::words::Words;

/// Text given to the tokenizer at once. Large enough that its cost per call
/// does not matter, small enough for the processor's caches.
const SEGMENT_BYTES: usize = 32 * 1024;

/// A piece of the text that is measured at once.
pub(super) struct Segment {
    pub(super) end: usize,
    /// Ends of the sentences that are complete in it. Left empty at the end of the
    /// text, which seldom needs them.
    pub(super) sentence_ends: Vec<usize>,
}

impl Segment {
    /// The segment of `text` that begins at `start`. It ends after its last
    /// complete sentence, else at whitespace, else between two graphemes.
    pub(super) fn after(text: &str, start: usize) -> Self {
        let rest = &text[start..];
        if rest.len() <= SEGMENT_BYTES {
            return Self {
                end: text.len(),
                sentence_ends: Vec::new(),
            };
        }
        let most = rest.floor_char_boundary(SEGMENT_BYTES);
        let half = rest.floor_char_boundary(SEGMENT_BYTES / 2);
        // The first sentence begins at 0 and the last one may continue after `most`:
        // where one begins, the one before is complete.
        let sentence_ends: Vec<usize> = sentences::starts(&rest[..most])
            .map(|offset| start + offset)
            .collect();
        let behind_sentence = sentence_ends
            .last()
            .copied()
            .filter(|&end| end > start + half);
        let second_half = &rest[half..most];
        let end = behind_sentence
            .or_else(|| {
                let (space, separator) = second_half
                    .char_indices()
                    .rfind(|&(_, c)| Words::separates(c))?;
                Some(start + half + space + separator.len_utf8())
            })
            .or_else(|| {
                let len = second_half.len();
                let grapheme = GraphemeCursor::new(len, len, true).prev_boundary(second_half, 0);
                grapheme
                    .ok()
                    .flatten()
                    .filter(|&end| end > 0)
                    .map(|end| start + half + end)
            })
            .unwrap_or(start + most);
        Self { end, sentence_ends }
    }
}
