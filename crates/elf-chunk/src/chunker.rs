//! Splits the text of a note into chunks.

use std::borrow::Cow;
use std::sync::Arc;

use super::cuts::{self, CutPoint};
use super::landmarks::{self, Reach};
use super::nfc::composed;
use super::tokenizer::Tokenizer;
use super::window::Window;
use super::words::Words;
use super::{Chunk, ChunkError};

/// Less room than this is a mistake in the settings: chunks would be fragments
/// of words.
const MIN_ROOM: usize = super::words::MAX_TOKENS_OF_A_WORD;

/// Text with less than one token in this many bytes is not language: base64 that
/// the vocabulary does not know, control characters that the tokenizer drops, a
/// column of blanks. A chunk of it ends here even if it could hold more tokens.
const MAX_BYTES_PER_TOKEN: usize = 16;

/// Tokens that a chunk leaves free where a count in the running text only approximates
/// the count of the chunk by itself (its first word loses the space before it). To
/// count a chunk twice costs more than to make it 0.4% shorter.
const SLACK_TOKENS: usize = 2;

/// How large chunks are, and where they end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Off: one chunk a text, where it fits `max_tokens`.
    pub enabled: bool,
    /// Tokens in a chunk as it is sent: prefix and special tokens included.
    pub max_tokens: usize,
    /// Maximum tokens at the end of a chunk that the next chunk repeats.
    pub overlap_tokens: usize,
    /// Where chunks end.
    pub boundaries: Boundaries,
}

/// Where chunks end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Boundaries {
    /// As late as `max_tokens` allows: the fewest chunks.
    Greedy,
    /// Where the text nearby says: more chunks, and an edit changes few of them.
    Stable,
}

/// Turns texts into chunks. The same text always gives the same chunks.
///
/// What holds for the chunks of a text:
/// - They are slices at character boundaries, trimmed of whitespace, in the
///   order of the text: each starts after the start and ends after the end of
///   the one before.
/// - Text that is in no chunk is whitespace. A text of whitespace has no chunks.
/// - Each holds `max_tokens` at most, counted exactly as it will be sent.
/// - The text that a chunk shares with the one before, if any, counts
///   `overlap_tokens` at most by itself, without prefix and special tokens.
///   It begins with a sentence, or with a word where the last sentence is longer
///   than the overlap. It is less than three quarters of a chunk, whatever
///   `overlap_tokens` says, and shorter still where the next sentence would
///   otherwise not fit.
/// - A sentence is cut only if it is longer than a chunk. The same holds for a
///   grapheme.
///
/// With stable boundaries, where a chunk ends depends only on where the one before ended and on the
/// text since: two texts with one common end of a chunk and equal text behind it have equal chunks
/// from there on. (An overlap of more than a quarter of a chunk weakens that.)
///
/// Time is linear in the text, memory in the size of a chunk (and the chunks).
#[derive(Debug)]
pub struct Chunker {
    tokenizer: Arc<Tokenizer>,
    prefix: String,
    /// Tokens of a chunk besides its text: prefix and special tokens.
    fixed_tokens: usize,
    /// Whether `fixed_tokens` is exact whatever text follows.
    prefix_is_apart: bool,
    enabled: bool,
    max_tokens: usize,
    /// Tokens of text in a chunk at most.
    room: usize,
    /// Bytes of text in a chunk at most.
    max_bytes: usize,
    overlap: usize,
    boundaries: Boundaries,
}

impl Chunker {
    /// A chunker that counts with `tokenizer` what will be sent: `document_prefix`
    /// and the chunk. Fails if the settings leave no room for text.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        settings: &Settings,
        document_prefix: &str,
    ) -> Result<Self, ChunkError> {
        let special_tokens = tokenizer.special_tokens();
        let prefix_tokens = tokenizer.count_plain(document_prefix)?;
        let fixed_tokens = special_tokens + prefix_tokens;
        let room = settings.max_tokens.saturating_sub(fixed_tokens);
        if room < MIN_ROOM {
            return Err(ChunkError::NoRoom {
                max_tokens: settings.max_tokens,
                special_tokens,
                prefix_tokens,
                least: MIN_ROOM,
            });
        }
        Ok(Self {
            prefix_is_apart: document_prefix.is_empty()
                || (tokenizer.is_word_local() && document_prefix.ends_with(Words::separates)),
            prefix: document_prefix.to_owned(),
            fixed_tokens,
            enabled: settings.enabled,
            max_tokens: settings.max_tokens,
            room,
            max_bytes: room * MAX_BYTES_PER_TOKEN,
            // With a larger overlap, most of the work would repeat the text before.
            overlap: settings.overlap_tokens.min(room * 3 / 4),
            boundaries: settings.boundaries,
            tokenizer,
        })
    }

    /// The tokenizer that counts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The chunks of `text`, in its order. Uses the processor for long texts:
    /// call it from a thread that may block.
    pub fn chunk(&self, text: &str) -> Result<Vec<Chunk>, ChunkError> {
        let text = text.trim_end();
        let mut start = text.len() - text.trim_start().len();
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let mut window = Window::new(&self.tokenizer, text, start);
        if let Some(chunk) = self.whole(&mut window, start)? {
            return Ok(vec![chunk]);
        }
        let mut chunks = Vec::new();
        // The overlap and the next sentence must be measured as well.
        let chunks_ahead = match self.boundaries {
            Boundaries::Greedy => 2,
            Boundaries::Stable => 3,
        };
        // All text before `done` is in a chunk.
        let mut done = start;
        loop {
            window.look_ahead(
                start,
                chunks_ahead * self.room,
                chunks_ahead * self.max_bytes,
            )?;
            let (chunk, cut) = match self.cut(&window, start, done)? {
                Some(found) => found,
                None => match self.cut(&window, done, done)? {
                    Some(found) => found,
                    None => self.cut_inside_unit(&window, done)?,
                },
            };
            chunks.push(chunk);
            if cut.next >= text.len() {
                return Ok(chunks);
            }
            window.look_ahead(cut.next, self.room, self.max_bytes)?;
            done = cut.next;
            start = self.overlap_start(&window, chunk, cut)?;
            window.forget_before(start);
        }
    }

    /// The whole text as one chunk, if it fits.
    fn whole(&self, window: &mut Window, start: usize) -> Result<Option<Chunk>, ChunkError> {
        // With chunking disabled, the operator wants one chunk even of text with hardly
        // any tokens.
        let max_bytes = if self.enabled {
            self.max_bytes
        } else {
            usize::MAX
        };
        let end = window.text().len();
        window.measure_ahead(start, self.room, max_bytes)?;
        if !window.is_complete() || end - start > max_bytes {
            return Ok(None);
        }
        if window.tokens(start, end) > self.room + SLACK_TOKENS {
            return Ok(None);
        }
        let tokens = self.count(window, start, end)?;
        Ok((tokens <= self.max_tokens).then_some(Chunk { start, end, tokens }))
    }

    /// The chunk that begins at `start` and reaches beyond `done`, and where it
    /// was cut. `None` if nothing beyond `done` fits.
    fn cut(
        &self,
        window: &Window,
        start: usize,
        done: usize,
    ) -> Result<Option<(Chunk, CutPoint)>, ChunkError> {
        let exact = self.prefix_is_apart && self.tokenizer.is_word_local();
        let mut room = self.room - if exact { 0 } else { SLACK_TOKENS };
        let mut less = 0;
        loop {
            let Some(cut) = self.choose(window, start, done, room) else {
                return Ok(None);
            };
            let tokens = self.count(window, start, cut.end)?;
            if tokens <= self.max_tokens {
                return Ok(Some((
                    Chunk {
                        start,
                        end: cut.end,
                        tokens,
                    },
                    cut,
                )));
            }
            // Doubling bounds the number of counts for a text that defeats the estimate.
            less = (tokens - self.max_tokens).max(2 * less);
            if less >= room {
                return Ok(None);
            }
            room -= less;
        }
    }

    /// The best cut for a chunk of at most `room` tokens, as they are counted in
    /// the running text. With stable boundaries, `landmarks` chooses it. Else:
    ///
    /// The longest possible chunk is full. A paragraph's end is worth two fifths
    /// of it: the next chunk then begins with a thought, not inside one, and an edit
    /// moves fewer of the chunks after it. (In the example notes, an edited sentence
    /// changes 1.5 chunks. With a quarter instead of two fifths it changes 2.4, and
    /// there are 4% fewer chunks.) A sentence's end is worth half of it, and all of it
    /// if the next sentence fits a chunk of its own, because a search for its words
    /// finds neither half of a cut sentence. Inside an over-long sentence a clause's
    /// end is worth a quarter.
    fn choose(&self, window: &Window, start: usize, done: usize, room: usize) -> Option<CutPoint> {
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
        cuts::inside_sentence(text, three_quarters, limit, |position| {
            window.is_between_units(position)
        })
        .or_else(|| {
            let boundary = |&position: &usize| cuts::is_grapheme_boundary(text, start, position);
            let grapheme = window.unit_starts(done, limit).rev().find(boundary);
            Some(CutPoint::at(text, grapheme.unwrap_or(limit)))
        })
    }

    /// Tokens of the sentence that begins at `start`, if it fits a chunk of
    /// `room` tokens.
    fn sentence_fits(&self, window: &Window, start: usize, room: usize) -> Option<usize> {
        let end = match window.sentence_ends(start, usize::MAX).next() {
            Some(cut) => cut.end,
            None if window.is_complete() => window.text().len(),
            None => return None,
        };
        let tokens = window.tokens(start, end);
        (tokens <= room && end - start <= self.max_bytes).then_some(tokens)
    }

    /// A piece of the unit at `start`, which alone exceeds a chunk.
    fn cut_inside_unit(
        &self,
        window: &Window,
        start: usize,
    ) -> Result<(Chunk, CutPoint), ChunkError> {
        let text = window.text();
        let mut end = window.unit_end(start);
        loop {
            let cut = CutPoint::at(text, end);
            let tokens = self.count(window, start, cut.end)?;
            if tokens <= self.max_tokens {
                return Ok((
                    Chunk {
                        start,
                        end: cut.end,
                        tokens,
                    },
                    cut,
                ));
            }
            let Some(middle) = cuts::middle(&text[start..cut.end]) else {
                return Err(ChunkError::Indivisible {
                    offset: start,
                    tokens,
                    max_tokens: self.max_tokens,
                });
            };
            end = start + middle;
        }
    }

    /// Tokens of a chunk besides its text: prefix and special tokens.
    pub fn fixed_tokens(&self) -> usize {
        self.fixed_tokens
    }

    /// Tokens of a chunk as it is sent, in NFC, exactly.
    fn count(&self, window: &Window, start: usize, end: usize) -> Result<usize, ChunkError> {
        let text = &window.text()[start..end];
        if let Cow::Owned(composed) = composed(text) {
            let sent = [self.prefix.as_str(), &composed].concat();
            let plain = self.tokenizer.count_plain(&sent)?;
            return Ok(plain + self.tokenizer.special_tokens());
        }
        if self.prefix_is_apart && window.is_exact(start, end) {
            return Ok(self.fixed_tokens + window.tokens(start, end));
        }
        let plain = self.count_plain(window, &self.prefix, start, end)?;
        Ok(plain + self.tokenizer.special_tokens())
    }

    /// Tokens of `prefix` and a slice of the text together, without special ones, exactly.
    fn count_plain(
        &self,
        window: &Window,
        prefix: &str,
        start: usize,
        end: usize,
    ) -> Result<usize, ChunkError> {
        if let Some(tokens) = window.count_by_pieces(prefix, start, end)? {
            return Ok(tokens);
        }
        let text = &window.text()[start..end];
        if prefix.is_empty() {
            return Ok(self.tokenizer.count_plain(text)?);
        }
        Ok(self.tokenizer.count_plain(&[prefix, text].concat())?)
    }

    /// Where the chunk after `chunk` begins: at the first sentence, or else word,
    /// from which the rest of `chunk` counts `overlap` at most.
    fn overlap_start(
        &self,
        window: &Window,
        chunk: Chunk,
        cut: CutPoint,
    ) -> Result<usize, ChunkError> {
        let mut budget = self.overlap;
        // Keeping the next sentence whole is worth more than repeating one. That does
        // not hold for a sentence that is already cut.
        let behind_sentence = window.sentence_ends(chunk.start, cut.next).next_back() == Some(cut);
        if behind_sentence
            && let Some(next) = self.sentence_fits(window, cut.next, self.room - SLACK_TOKENS)
        {
            budget = budget.min(self.room - SLACK_TOKENS - next);
        }
        loop {
            let Some(start) = self.overlap_within(window, chunk, cut, budget) else {
                return Ok(cut.next);
            };
            if window.is_exact(start, chunk.end) {
                return Ok(start);
            }
            let tokens = self.count_plain(window, "", start, chunk.end)?;
            if tokens <= self.overlap {
                return Ok(start);
            }
            budget = budget.saturating_sub((tokens - self.overlap).max(self.overlap / 8 + 1));
        }
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
        let tokens = |start| window.tokens(start, cut.next);
        let sentences = || {
            window
                .sentence_ends(chunk.start, cut.next - 1)
                .rev()
                .map(|cut| cut.next)
        };
        let whole = sentences()
            .take_while(|&start| tokens(start) <= budget)
            .last();
        if whole.is_some() {
            return whole;
        }
        let last_sentence = sentences().next().unwrap_or(chunk.start);
        if tokens(last_sentence) <= self.overlap {
            // The next sentence leaves no room for it.
            return None;
        }
        let units = window
            .unit_starts(last_sentence, cut.next - 1)
            .rev()
            .take_while(|&start| tokens(start) <= budget);
        let mut word = None;
        let mut grapheme = None;
        for start in units {
            if text[..start].ends_with(char::is_whitespace) {
                word = Some(start);
            } else if cuts::is_grapheme_boundary(text, chunk.start, start) {
                grapheme = Some(start);
            }
        }
        word.or(grapheme)
    }
}
