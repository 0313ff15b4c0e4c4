//! The passage of a context that answers a query best: whole sentences, with the words of the query marked.

use std::collections::HashMap;
use std::ops::Range;

use serde::Serialize;
use unicode_segmentation::UnicodeSegmentation;

use super::Context;

/// Characters of a passage at most: a paragraph of five lines.
const MAX_CHARS: usize = 320;

/// What a term outside of the chunk counts: the chunk is what the rankings found.
const AROUND: f32 = 0.7;

/// What two terms that follow each other in query and text count more, as a share of the lesser one.
const IN_ORDER: f32 = 0.5;

/// Terms are near each other within so many bytes: a few words.
const NEAR_BYTES: usize = 40;

/// The sentences of a note that answer a query best.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Passage {
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
    /// The slice, at most 320 characters.
    pub text: String,
    /// Where the words of the query are in it.
    pub highlights: Vec<Highlight>,
}

/// A word of the query in a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Highlight {
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
}

/// What a passage is chosen by: of each term of the query its first place and its weight.
pub type Places = HashMap<String, (usize, f32)>;

/// The places and weights of the terms of `query`.
pub fn places(query: &[(Range<usize>, String)], weights: &HashMap<String, f32>) -> Places {
    let terms = query.iter().enumerate().rev();
    let of_term = |(place, (_, term)): (usize, &(Range<usize>, String))| {
        let weight = weights.get(term).copied().unwrap_or_default();
        (term.clone(), (place, weight))
    };
    terms.map(of_term).collect()
}

/// A term of the query, in a text.
struct Match {
    at: Range<usize>,
    /// Its place in the query.
    place: usize,
    weight: f32,
}

/// The best passage of `context`, whose terms are `terms`. `chunk` is where the chunk lies in the note's text. Without any term of the query, the passage is the beginning
/// of the chunk.
pub fn of(
    context: &Context,
    terms: &[(Range<usize>, String)],
    query: &Places,
    chunk: Range<usize>,
) -> Passage {
    let text = context.text.as_str();
    let inside = |at: &Range<usize>| chunk.contains(&(context.start_offset + at.start));
    let matches: Vec<Match> = terms
        .iter()
        .filter_map(|(at, term)| {
            let (place, weight) = *query.get(term)?;
            let weight = if inside(at) { weight } else { weight * AROUND };
            Some(Match {
                at: at.clone(),
                place,
                weight,
            })
        })
        .collect();
    let chunk_start = chunk.start.saturating_sub(context.start_offset);
    let range = best(text, &matches, chunk_start);
    let within = matches.iter().map(|found| &found.at);
    let within = within.filter(|at| range.start <= at.start && at.end <= range.end);
    Passage {
        start_offset: context.start_offset + range.start,
        end_offset: context.start_offset + range.end,
        text: text[range.clone()].to_owned(),
        highlights: joined(text, within)
            .map(|at| Highlight {
                start_offset: context.start_offset + at.start,
                end_offset: context.start_offset + at.end,
            })
            .collect(),
    }
}

/// Where the best passage of `text` is. It is as long as it may be: an answer often stands behind the
/// sentence that has the words of the question.
fn best(text: &str, matches: &[Match], chunk_start: usize) -> Range<usize> {
    let sentences = elf_chunk::sentences(text);
    let mut best: Option<(f32, Range<usize>)> = None;
    for (first, sentence) in sentences.iter().enumerate() {
        let passage = from_sentence(text, &sentences, first);
        let found = within(matches, passage.clone());
        // It begins with a term: what was asked for comes first.
        let begins = found
            .first()
            .is_some_and(|found| found.at.start < sentence.end);
        let score = score(found);
        if begins && best.as_ref().is_none_or(|(most, _)| score > *most) {
            best = Some((score, passage));
        }
    }
    let passage = match best {
        Some((_, passage)) => passage,
        None => {
            let of_chunk = sentences.partition_point(|sentence| sentence.end <= chunk_start);
            from_sentence(
                text,
                &sentences,
                of_chunk.min(sentences.len().saturating_sub(1)),
            )
        }
    };
    match fits(&text[passage.clone()]) {
        true => with_sentences_before(text, &sentences, passage),
        false => inside_sentence(text, passage.clone(), within(matches, passage)),
    }
}

/// The sentence number `first` and as many behind it as fit. It alone may be too long.
fn from_sentence(text: &str, sentences: &[Range<usize>], first: usize) -> Range<usize> {
    let Some(Range { start, end }) = sentences.get(first).cloned() else {
        return 0..0;
    };
    let behind = sentences[first + 1..].iter();
    let readable = behind.take_while(|sentence| is_prose(&text[(*sentence).clone()]));
    let ends = readable.map(|sentence| sentence.end);
    let last = ends.take_while(|end| fits(&text[start..*end])).last();
    start..last.unwrap_or(end)
}

/// Whether a sentence is for a reader: a row of badges and links has addresses in the place of words.
fn is_prose(sentence: &str) -> bool {
    let words = sentence.split_whitespace().count();
    !sentence.contains("://") || words * 20 >= sentence.len()
}

/// A passage that the end of the text keeps shorter than half begins earlier.
fn with_sentences_before(
    text: &str,
    sentences: &[Range<usize>],
    passage: Range<usize>,
) -> Range<usize> {
    let is_short = passage.len() < MAX_CHARS / 2;
    if !is_short || sentences.last().is_some_and(|last| last.end > passage.end) {
        return passage;
    }
    let before = sentences.iter().map(|sentence| sentence.start);
    let fitting = |start: &usize| *start < passage.start && fits(&text[*start..passage.end]);
    let start = before.into_iter().find(fitting);
    start.unwrap_or(passage.start)..passage.end
}

/// The matches in a part of the text.
fn within(matches: &[Match], part: Range<usize>) -> &[Match] {
    let from = matches.partition_point(|found| found.at.start < part.start);
    let to = matches.partition_point(|found| found.at.start < part.end);
    &matches[from..to.max(from)]
}

fn fits(text: &str) -> bool {
    text.len() <= MAX_CHARS || text.chars().nth(MAX_CHARS).is_none()
}

/// How well matches answer: each term of the query once, by its weight, and more where terms follow each other as in
/// the query.
fn score(matches: &[Match]) -> f32 {
    let mut terms: HashMap<usize, f32> = HashMap::new();
    for found in matches {
        let weight = terms.entry(found.place).or_default();
        *weight = weight.max(found.weight);
    }
    let follows = |pair: &&[Match]| {
        pair[1].place == pair[0].place + 1 && pair[1].at.start - pair[0].at.start <= NEAR_BYTES
    };
    let pairs = matches.windows(2).filter(follows);
    let in_order = pairs.map(|pair| pair[0].weight.min(pair[1].weight) * IN_ORDER);
    terms.values().sum::<f32>() + in_order.fold(0.0, f32::max)
}

/// A part of a sentence that is too long, from a little before its terms on, between words.
fn inside_sentence(text: &str, sentence: Range<usize>, matches: &[Match]) -> Range<usize> {
    let reach = |found: &Match| {
        let end = found.at.start + MAX_CHARS * 3 / 4;
        let near = within(matches, found.at.start..end).iter();
        near.map(|other| other.weight).sum::<f32>()
    };
    // The last maximum of the reversed matches is the first of the text.
    let first = matches
        .iter()
        .rev()
        .max_by(|a, b| reach(a).total_cmp(&reach(b)));
    let anchor = first.map_or(sentence.start, |found| found.at.start);
    let words_from = |from: usize| {
        let words = text[from..sentence.end].split_word_bound_indices();
        let words = words.map(move |(at, word)| from + at..from + at + word.len());
        words.filter(|word| !text[word.clone()].trim().is_empty())
    };
    let before = text[sentence.start..anchor].char_indices().rev();
    let start = match before.map(|(at, _)| sentence.start + at).nth(MAX_CHARS / 4) {
        None => sentence.start,
        // The first word may be cut.
        Some(earliest) => words_from(earliest)
            .nth(1)
            .map_or(anchor, |word| word.start.min(anchor)),
    };
    let words = words_from(start).map(|word| word.end);
    let end = words.take_while(|end| fits(&text[start..*end])).last();
    // A word may be longer than a passage.
    let cut = || {
        let graphemes = text[start..sentence.end].grapheme_indices(true);
        let ends = graphemes.map(|(at, grapheme)| start + at + grapheme.len());
        ends.take_while(|end| fits(&text[start..*end])).last()
    };
    start..end.or_else(cut).unwrap_or(start)
}

/// Ranges in their order, those that touch as one.
fn joined<'r>(
    text: &str,
    ranges: impl Iterator<Item = &'r Range<usize>>,
) -> impl Iterator<Item = Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            // `ERR-4417` is one mark.
            Some(last) if range.start <= last.end || text[last.end..range.start] == *"-" => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range.clone()),
        }
    }
    joined.into_iter()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::terms::{self, Terms};
    use super::*;
    use crate::config::Bm25Options;

    /// The passage of a text that is one chunk, with its highlights in brackets.
    fn passage(query: &str, text: &str) -> String {
        passage_in(query, text, 0..text.len())
    }

    fn passage_in(query: &str, text: &str, chunk: Range<usize>) -> String {
        let made = made(query, text, chunk);
        let mut shown = made.text.clone();
        for at in made.highlights.iter().rev() {
            shown.insert(at.end_offset - made.start_offset, ']');
            shown.insert(at.start_offset - made.start_offset, '[');
        }
        shown
    }

    fn made(query: &str, text: &str, chunk: Range<usize>) -> Passage {
        let terms = Terms::new(&Bm25Options::default());
        let (query, of_text) = (terms.of(query), terms.of(text));
        let weights = terms::weights(&query, [of_text.as_slice()]);
        let context = Context {
            start_offset: 0,
            end_offset: text.len(),
            text: text.into(),
        };
        of(&context, &of_text, &places(&query, &weights), chunk)
    }

    #[test]
    fn it_begins_with_the_sentence_that_was_asked_for() {
        let filler = "The weather was mild and the garden slept under a grey sky. ".repeat(6);
        let text = format!(
            "{filler}The spare key hangs behind the clock. Take it back after use. {filler}"
        );
        let shown = passage("where are the spare keys?", &text);
        assert!(
            shown.starts_with("The [spare] [key] hangs behind the clock. Take it back"),
            "{shown}"
        );
        assert!(fits(&shown.replace(['[', ']'], "")));
    }

    #[test]
    fn terms_that_stand_together_beat_terms_that_are_scattered() {
        let gap = "Nothing of note happened in the harbour on that long and quiet day. ".repeat(6);
        let text = format!(
            "A red door. {gap}The relief valve opens at eight bar. {gap}A valve. {gap}Relief came."
        );
        let shown = passage("relief valve", &text);
        assert!(shown.starts_with("The [relief] [valve] opens"), "{shown}");
    }

    #[test]
    fn without_a_term_it_is_the_beginning_of_the_chunk() {
        let before = "An earlier chunk says other things. ".repeat(20);
        let text = format!("{before}The kettle sings at noon. Tea is at four.");
        let shown = passage_in("zebra", &text, before.len()..text.len());
        assert!(
            shown.ends_with("The kettle sings at noon. Tea is at four."),
            "{shown}"
        );
        let start = text.find("The kettle");
        let after = "Later chunks follow here. ".repeat(20);
        let text = format!("{text} {after}");
        let shown = passage_in("zebra", &text, before.len()..text.len());
        assert_eq!(shown.find("The kettle"), start.map(|_| 0), "{shown}");
    }

    #[test]
    fn a_sentence_that_is_too_long_is_cut_around_the_terms() {
        let words = "alpha beta gamma delta ".repeat(60);
        let text = format!("{words}pressure valve {words}");
        let shown = passage("pressure valve", &text);
        assert!(shown.contains("delta [pressure] [valve] alpha"), "{shown}");
        assert!(fits(&shown.replace(['[', ']'], "")));
        let unbroken = format!("{}ERR-4417{}", "x".repeat(900), "y".repeat(900));
        assert!(!passage("ERR-4417", &unbroken).is_empty());
        assert!(!passage("zebra", &unbroken).is_empty());
    }

    #[test]
    fn an_id_is_one_highlight_in_every_script() {
        assert_eq!(
            passage("err-4417", "Code ERR-4417 means: no oil."),
            "Code [ERR-4417] means: no oil."
        );
        assert_eq!(
            passage("GX-5521", "警報GX-5521が出たら"),
            "警報[GX-5521]が出たら"
        );
        assert_eq!(passage("北京", "今天北京下雨"), "今天[北京]下雨");
        assert_eq!(passage("cafe", "Le Cafe\u{301}."), "Le Cafe\u{301}.");
    }

    #[test]
    fn a_passage_ends_before_links_alone() {
        let text = "A parser for arguments.\n\n[![Crates.io](https://img.example/crates/v/parser)](https://crates.example/parser)\n\nUse it.";
        assert_eq!(passage("parser", text), "A [parser] for arguments.");
    }

    #[test]
    fn an_empty_context_has_an_empty_passage() {
        assert_eq!(passage("a key", ""), "");
        assert_eq!(passage("", "Some text."), "Some text.");
    }

    proptest! {
        #[test]
        fn it_is_an_exact_slice_that_is_short_enough(
            text in "(word |key |北京|e\u{301}|[.!?\\n] ?|🇩🇪|\\PC){0,400}",
            query in "(word|key|北京| ){0,4}",
            chunk in any::<[prop::sample::Index; 2]>(),
        ) {
            let mut ends = chunk.map(|at| text.floor_char_boundary(at.index(text.len() + 1)));
            ends.sort_unstable();
            let made = made(&query, &text, ends[0]..ends[1]);
            prop_assert_eq!(&text[made.start_offset..made.end_offset], made.text.as_str());
            prop_assert!(fits(&made.text));
            prop_assert_eq!(made.text.is_empty(), text.trim().is_empty());
            let mut last = made.start_offset;
            for at in &made.highlights {
                prop_assert!(last <= at.start_offset && at.start_offset < at.end_offset);
                prop_assert!(text.is_char_boundary(at.start_offset) && text.is_char_boundary(at.end_offset));
                last = at.end_offset;
            }
            prop_assert!(last <= made.end_offset.max(made.start_offset));
        }
    }
}
