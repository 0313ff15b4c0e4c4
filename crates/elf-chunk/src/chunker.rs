//! Splits the text of a note into chunks.

use std::borrow::Cow;
use std::sync::Arc;

use super::choice::Choice;
use super::cuts::{self, CutPoint};
use super::exclude::Exclude;
use super::leads::{Lead, Leads};
use super::nfc::composed;
use super::outline::{self, Kind, Outline, Span};
use super::settings::{Boundaries, Settings, Strategy};
use super::split::{Split, check_cuts};
use super::tokenizer::Tokenizer;
use super::window::Window;
use super::{Chunk, ChunkError, markdown, paragraphs, separators};

/// Less room than this is a mistake in the settings: chunks would be fragments
/// of words.
const MIN_ROOM: usize = super::words::MAX_TOKENS_OF_A_WORD;

/// Text with less than one token in this many bytes is not language: base64 that
/// the vocabulary does not know, control characters that the tokenizer drops, a
/// column of blanks. A chunk of it ends here even if it could hold more tokens.
pub(super) const MAX_BYTES_PER_TOKEN: usize = 16;

/// A line that begins further to the right is not indented, but placed.
const MAX_INDENT: usize = 64;

/// Tokens that a chunk leaves free where a count in the running text only approximates
/// the count of the chunk by itself (its first word loses the space before it). To
/// count a chunk twice costs more than to make it 0.4% shorter.
pub(super) const SLACK_TOKENS: usize = 2;

/// Turns texts into chunks. The same text always gives the same chunks.
///
/// What holds for the chunks of a text:
/// - They are slices at character boundaries, trimmed of whitespace except for the indentation
///   of their first line (not that of a text's first line), in the order of the text: each starts
///   after the start and ends after the end of the one before.
/// - Text that is in no chunk is whitespace, or excluded. A text of whitespace has no chunks.
/// - Each holds `max_tokens` at most, counted exactly as it will be sent.
/// - With a [`Strategy`] other than `Sentence`, what the README of this crate says of it.
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
/// text since. So two texts whose chunks once end at the same place, with equal text behind it, have
/// equal chunks from there on. (An overlap of more than a quarter of a chunk weakens that.)
///
/// Time is linear in the text, memory in the size of a chunk (and the chunks, and the parts of a text with
/// an outline).
#[derive(Debug)]
pub struct Chunker {
    pub(super) tokenizer: Arc<Tokenizer>,
    /// The document prefix alone before a chunk.
    pub(super) bare: Lead,
    enabled: bool,
    max_tokens: usize,
    /// Bytes of text in a chunk at most.
    pub(super) max_bytes: usize,
    pub(super) overlap: usize,
    pub(super) boundaries: Boundaries,
    strategy: Strategy,
    exclude: Exclude,
    /// What makes the parents.
    parents: Option<Box<Chunker>>,
}

/// A segment of a text whose chunks are made.
pub(super) struct Work<'a> {
    /// Nothing of the text around it is in its chunks.
    pub(super) segment: Span,
    /// Text before is left out, or belongs to another piece.
    pub(super) floor: usize,
    /// Bytes of indentation that a chunk has room for.
    max_indent: usize,
    /// `None` for chunks of sentences.
    pub(super) outline: Option<&'a Outline>,
    pub(super) window: Window<'a>,
    pub(super) leads: &'a Leads<'a>,
}

impl Work<'_> {
    /// Where the line of `position` begins, if only its indentation is before: code and lists say by it what they
    /// belong to.
    pub(super) fn line_start(&self, position: usize) -> usize {
        let before = &self.window.text().as_bytes()[self.floor.min(position)..position];
        let blanks = before.iter().rev();
        let blanks = blanks.take_while(|byte| matches!(byte, b' ' | b'\t'));
        let start = position - blanks.take(self.max_indent).count();
        let before = self.window.text()[..start].chars().next_back();
        match before {
            Some('\n' | '\r') => start,
            _ => position,
        }
    }
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
        let bare = Lead::new(&tokenizer, settings.max_tokens, document_prefix.to_owned())?;
        if bare.room < MIN_ROOM {
            return Err(ChunkError::NoRoom {
                max_tokens: settings.max_tokens,
                special_tokens,
                prefix_tokens: bare.fixed_tokens - special_tokens,
                least: MIN_ROOM,
            });
        }
        Ok(Self {
            enabled: settings.enabled,
            max_tokens: settings.max_tokens,
            max_bytes: bare.room * MAX_BYTES_PER_TOKEN,
            // With a larger overlap, most of the work would repeat the text before.
            overlap: settings.overlap_tokens.min(bare.room * 3 / 4),
            boundaries: settings.boundaries,
            strategy: settings.strategy.clone(),
            exclude: Exclude::new(settings),
            parents: parents(&tokenizer, settings)?,
            bare,
            tokenizer,
        })
    }

    /// The tokenizer that counts.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The strategy of its settings.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Tokens of a chunk besides its text: prefix and special tokens.
    pub fn fixed_tokens(&self) -> usize {
        self.bare.fixed_tokens
    }

    /// The chunks of `text`, in its order, without leads. Uses the processor for long texts:
    /// call it from a thread that may block.
    pub fn chunk(&self, text: &str) -> Result<Vec<Chunk>, ChunkError> {
        Ok(self.split(text, &|_| String::new())?.chunks)
    }

    /// The chunks of `text`, in its order. `line` makes the first line of a chunk's lead:
    /// it is given the titles of the headings above the chunk that the chunk does not hold, outermost
    /// first. A line longer than a quarter of a chunk is shortened. The same titles must give the
    /// same line.
    pub fn split<'t>(
        &self,
        text: &'t str,
        line: &dyn Fn(&[&str]) -> String,
    ) -> Result<Split<'t>, ChunkError> {
        let all = Span {
            start: 0,
            end: text.len(),
        };
        let empty = Outline::default();
        let Some(all) = outline::trimmed(text, all) else {
            return Ok(Split::new(text, Vec::new(), empty, Vec::new()));
        };
        let mut chunks = Vec::new();
        // A text that fits one chunk needs no outline.
        if self.exclude.is_empty()
            && (all.end - all.start <= self.max_bytes || !self.enabled)
            && self.strategy != Strategy::Sentence
        {
            let leads = self.leads(text, &empty, line);
            let mut work = self.work(text, all, all.start, None, &leads);
            let lead = leads.at(all.start)?;
            if let Some(chunk) = self.whole(&mut work, &lead)? {
                let lines = leads.into_lines();
                return Ok(Split::new(text, vec![chunk], empty, lines));
            }
        }
        let rules = self.outline(text, &self.exclude);
        let outline = rules.as_ref();
        let leads = self.leads(text, outline.unwrap_or(&empty), line);
        let excluded = outline.map_or(&[][..], |outline| &outline.excluded);
        for segment in outline.map_or(vec![all], |outline| outline.segments(text)) {
            let before = excluded.partition_point(|it| it.end <= segment.start);
            let floor = before
                .checked_sub(1)
                .map_or(all.start, |at| excluded[at].end);
            self.piece(
                self.work(text, segment, floor, outline, &leads),
                &mut chunks,
            )?;
        }
        let lines = leads.into_lines();
        Ok(Split::new(text, chunks, rules.unwrap_or(empty), lines))
    }

    /// The chunks of `text`, cut at `cuts`: byte offsets of an application, for code or transcripts. A piece
    /// that exceeds `max_tokens` is split further, as a text of its own. Nothing is left out, and no
    /// piece repeats the one before it. `line`: see [`Chunker::split`].
    pub fn split_at<'t>(
        &self,
        text: &'t str,
        cuts: &[usize],
        line: &dyn Fn(&[&str]) -> String,
    ) -> Result<Split<'t>, ChunkError> {
        check_cuts(text, cuts)?;
        let rules = self.outline(text, &Exclude::default());
        let outline = rules.as_ref();
        let empty = Outline::default();
        let leads = self.leads(text, outline.unwrap_or(&empty), line);
        let mut chunks = Vec::new();
        let ends = cuts.iter().copied().chain([text.len()]);
        let mut start = text.len() - text.trim_start().len();
        for end in ends {
            if end <= start {
                continue;
            }
            if let Some(piece) = outline::trimmed(text, Span { start, end }) {
                let work = self.work(text, piece, start, outline, &leads);
                self.piece(work, &mut chunks)?;
            }
            start = end;
        }
        let lines = leads.into_lines();
        Ok(Split::new(text, chunks, rules.unwrap_or(empty), lines))
    }

    /// The outline of a text, with the strategies that need one.
    fn outline(&self, text: &str, exclude: &Exclude) -> Option<Outline> {
        match self.strategy.of(text) {
            Strategy::Sentence | Strategy::Auto => None,
            Strategy::Markdown => Some(markdown::outline(text, exclude)),
            Strategy::Paragraph => Some(paragraphs::outline(text)),
            Strategy::Recursive(list) => Some(separators::outline(text, list)),
        }
    }

    fn work<'a>(
        &'a self,
        text: &'a str,
        segment: Span,
        floor: usize,
        outline: Option<&'a Outline>,
        leads: &'a Leads<'a>,
    ) -> Work<'a> {
        let window = Window::new(&self.tokenizer, &text[..segment.end], segment.start);
        let is_recursive = outline.is_some_and(|outline| outline.kind == Kind::Recursive);
        Work {
            floor,
            max_indent: MAX_INDENT.min(self.bare.room / 4),
            leads,
            window: if is_recursive {
                window.without_sentences()
            } else {
                window
            },
            segment,
            outline,
        }
    }

    fn leads<'a>(
        &'a self,
        text: &'a str,
        outline: &'a Outline,
        line: &'a dyn Fn(&[&str]) -> String,
    ) -> Leads<'a> {
        let counter = (self.tokenizer.as_ref(), self.max_tokens);
        Leads::new(counter, &self.bare, (text, outline), line)
    }

    /// Adds the chunks of a segment, parent by parent.
    fn piece(&self, work: Work, chunks: &mut Vec<Chunk>) -> Result<(), ChunkError> {
        let Some(parents) = &self.parents else {
            return self.segment(work, chunks);
        };
        let (text, outline) = (work.leads.text, work.outline);
        let empty = Outline::default();
        let leads = parents.leads(text, outline.unwrap_or(&empty), &|_| String::new());
        let mut found = Vec::new();
        let all = parents.work(text, work.segment, work.floor, outline, &leads);
        parents.segment(all, &mut found)?;
        for Chunk { start, end, .. } in found {
            let parent = Span { start, end };
            let first = chunks.len();
            if let Some(segment) = outline::trimmed(text, parent) {
                let inside = self.work(text, segment, start, outline, work.leads);
                self.segment(inside, chunks)?;
            }
            let inside = chunks[first..].iter_mut();
            inside.for_each(|chunk| chunk.parent = Some(parent));
        }
        Ok(())
    }

    /// Adds the chunks of a segment.
    fn segment(&self, mut work: Work, chunks: &mut Vec<Chunk>) -> Result<(), ChunkError> {
        let Span { mut start, end } = work.segment;
        let lead = work.leads.at(start)?;
        if let Some(chunk) = self.whole(&mut work, &lead)? {
            chunks.push(chunk);
            return Ok(());
        }
        // The overlap and the next sentence must be measured as well.
        let chunks_ahead = match self.boundaries {
            Boundaries::Greedy => 2,
            Boundaries::Stable => 3,
        };
        let (room, max_bytes) = (self.bare.room, self.max_bytes);
        // All text before `done` is in a chunk.
        let mut done = start;
        loop {
            let ahead = (chunks_ahead * room, chunks_ahead * max_bytes);
            work.window.look_ahead(start, ahead.0, ahead.1)?;
            let lead = work.leads.at(start)?;
            let (chunk, cut) = match self.cut(&work, &lead, start, done)? {
                Some(found) => found,
                None => {
                    let lead = work.leads.at(done)?;
                    match self.cut(&work, &lead, done, done)? {
                        Some(found) => found,
                        None => self.cut_inside_unit(&work, &lead, done)?,
                    }
                }
            };
            chunks.push(chunk);
            if cut.next >= end {
                return Ok(());
            }
            work.window.look_ahead(cut.next, room, max_bytes)?;
            done = cut.next;
            start = self.overlap_start(&work, chunk, cut)?;
            work.window.forget_before(start);
        }
    }

    /// The whole segment as one chunk, if it fits.
    fn whole(&self, work: &mut Work, lead: &Lead) -> Result<Option<Chunk>, ChunkError> {
        let start = work.segment.start;
        let from = work.line_start(start);
        let window = &mut work.window;
        // With chunking disabled, the operator wants one chunk even of text with hardly
        // any tokens.
        let max_bytes = if self.enabled {
            self.max_bytes
        } else {
            usize::MAX
        };
        let end = window.text().len();
        window.measure_ahead(start, lead.room, max_bytes)?;
        if !window.is_complete() || end - start > max_bytes {
            return Ok(None);
        }
        if window.tokens(start, end) > lead.room + SLACK_TOKENS {
            return Ok(None);
        }
        let tokens = self.count(window, lead, from, end)?;
        Ok((tokens <= self.max_tokens).then(|| chunk(lead, from, end, tokens)))
    }

    /// The chunk that begins at `start` and reaches beyond `done`, and where it
    /// was cut. `None` if nothing beyond `done` fits.
    fn cut(
        &self,
        work: &Work,
        lead: &Lead,
        start: usize,
        done: usize,
    ) -> Result<Option<(Chunk, CutPoint)>, ChunkError> {
        let window = &work.window;
        let from = work.line_start(start);
        let is_exact = lead.is_apart && self.tokenizer.is_word_local();
        // A block that fits exactly must not be cut.
        let slack = match is_exact || work.outline.is_some() {
            true => 0,
            false => SLACK_TOKENS,
        };
        let mut room = lead.room - slack;
        let mut less = 0;
        loop {
            let cut = match work.outline {
                None => self.choose(window, start, done, room),
                Some(outline) => {
                    let choice = Choice {
                        room,
                        ..self.choice(work, outline, start, done, lead.room)
                    };
                    choice.cut(self.boundaries)
                }
            };
            let Some(cut) = cut else {
                return Ok(None);
            };
            let tokens = self.count(window, lead, from, cut.end)?;
            if tokens <= self.max_tokens {
                return Ok(Some((chunk(lead, from, cut.end, tokens), cut)));
            }
            // Doubling bounds the number of counts for a text that defeats the estimate.
            less = (tokens - self.max_tokens).max(2 * less);
            if less >= room {
                return Ok(None);
            }
            room -= less;
        }
    }

    pub(super) fn choice<'a>(
        &self,
        work: &'a Work,
        outline: &'a Outline,
        start: usize,
        done: usize,
        room: usize,
    ) -> Choice<'a> {
        Choice {
            window: &work.window,
            outline,
            segment: work.segment,
            start,
            done,
            room,
            largest_room: self.bare.room,
            leads: work.leads,
            max_bytes: self.max_bytes,
            overlap: self.overlap,
        }
    }

    /// A piece of the unit at `start`, which alone exceeds a chunk. Without its lead, if it
    /// exceeds one with it.
    fn cut_inside_unit(
        &self,
        work: &Work,
        lead: &Lead,
        start: usize,
    ) -> Result<(Chunk, CutPoint), ChunkError> {
        let window = &work.window;
        let text = window.text();
        let mut lead = lead;
        let mut end = window.unit_end(start);
        loop {
            let cut = CutPoint::at(text, end);
            let tokens = self.count(window, lead, start, cut.end)?;
            if tokens <= self.max_tokens {
                return Ok((chunk(lead, start, cut.end, tokens), cut));
            }
            match cuts::middle(&text[start..cut.end]) {
                Some(middle) => end = start + middle,
                None if lead.room < self.bare.room => lead = &self.bare,
                None => {
                    return Err(ChunkError::Indivisible {
                        offset: start,
                        tokens,
                        max_tokens: self.max_tokens,
                    });
                }
            }
        }
    }

    /// Tokens of a chunk as it is sent, in NFC, exactly.
    fn count(
        &self,
        window: &Window,
        lead: &Lead,
        start: usize,
        end: usize,
    ) -> Result<usize, ChunkError> {
        let text = &window.text()[start..end];
        if let Cow::Owned(composed) = composed(text) {
            let sent = [lead.prefix.as_str(), &composed].concat();
            let plain = self.tokenizer.count_plain(&sent)?;
            return Ok(plain + self.tokenizer.special_tokens());
        }
        if lead.is_apart && window.is_exact(start, end) {
            return Ok(lead.fixed_tokens + window.tokens(start, end));
        }
        let plain = self.count_plain(window, &lead.prefix, start, end)?;
        Ok(plain + self.tokenizer.special_tokens())
    }

    /// Tokens of `prefix` and a slice of the text together, without special ones, exactly.
    pub(super) fn count_plain(
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
}

fn chunk(lead: &Lead, start: usize, end: usize, tokens: usize) -> Chunk {
    Chunk {
        start,
        end,
        tokens,
        line: lead.line,
        repeat: lead.repeat,
        parent: None,
    }
}

/// The chunker that makes the parents of `settings`, if it asks for them.
fn parents(
    tokenizer: &Arc<Tokenizer>,
    settings: &Settings,
) -> Result<Option<Box<Chunker>>, ChunkError> {
    let Some(max_tokens) = settings.parent_tokens else {
        return Ok(None);
    };
    let settings = Settings {
        max_tokens,
        overlap_tokens: 0,
        parent_tokens: None,
        ..settings.clone()
    };
    let chunker = Chunker::new(tokenizer.clone(), &settings, "")?;
    Ok(Some(Box::new(chunker)))
}
