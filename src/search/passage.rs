//! The passage of a context that answers a query best: sentences, rows and lines, with the words of the query marked.

mod highlight;
mod units;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

pub use highlight::Highlight;
use serde::Serialize;
use unicode_segmentation::UnicodeSegmentation;
use units::{Kind, Unit};

use super::Context;

/// Characters of a passage at most: a paragraph of five lines of a wide terminal. With 320, a passage showed 60 of the
/// 81 answers that its context holds (`examples/long`), with 480 it shows 68, with 640 70.
const MAX_CHARS: usize = 480;

/// What a term outside of the chunk counts: the chunk is what the rankings found.
const AROUND: f32 = 0.7;

/// What two terms that follow each other in query and text count more, as a share of the lesser one.
const IN_ORDER: f32 = 0.5;

/// What the terms of a row of links count, as a share: they stand in addresses.
const UNREADABLE: f32 = 0.5;

/// Terms are near each other within so many bytes: a few words.
const NEAR_BYTES: usize = 40;

/// The sentences of a note that answer a query best.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Passage {
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
    /// The slice, at most 480 characters.
    pub text: String,
    /// The header row of the table that it begins behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table_header: Option<String>,
    /// Where the words of the query are in it.
    pub highlights: Vec<Highlight>,
}

/// What a passage is chosen by: the terms of the query.
pub type Places = HashMap<String, QueryTerm>;

/// A term of the query.
#[derive(Debug, Clone, Copy)]
pub struct QueryTerm {
    /// Its first place in the query.
    place: usize,
    weight: f32,
    /// It is two letters of a longer run: see `unicode::located_words`.
    is_part: bool,
}

/// The places and weights of the terms of `query`.
pub fn places(query: &[(Range<usize>, String)], weights: &HashMap<String, f32>) -> Places {
    let overlap = |pair: &[(Range<usize>, String)]| pair[1].0.start < pair[0].0.end;
    let is_part = |at: usize| {
        (at > 0 && overlap(&query[at - 1..=at])) || query.get(at..at + 2).is_some_and(overlap)
    };
    let of_term = |(place, (_, term)): (usize, &(Range<usize>, String))| {
        let of_query = QueryTerm {
            place,
            weight: weights.get(term).copied().unwrap_or_default(),
            is_part: is_part(place),
        };
        (term.clone(), of_query)
    };
    query.iter().enumerate().rev().map(of_term).collect()
}

/// A term of the query, in a text.
struct Match {
    at: Range<usize>,
    /// Its place in the query.
    place: usize,
    weight: f32,
    is_part: bool,
}

/// The best passage of `context`, whose terms are `terms`. `chunk` is where the chunk lies in the note's text. Without
/// any term of the query, the passage is the beginning of the chunk.
pub fn of(
    context: &Context,
    terms: &[(Range<usize>, String)],
    query: &Places,
    chunk: Range<usize>,
) -> Passage {
    let text = context.text.as_str();
    let inside = |at: &Range<usize>| chunk.contains(&(context.start_offset + at.start));
    let of_term = |(at, term): &(Range<usize>, String)| {
        let QueryTerm {
            place,
            weight,
            is_part,
        } = *query.get(term)?;
        Some(Match {
            at: at.clone(),
            place,
            weight: if inside(at) { weight } else { weight * AROUND },
            is_part,
        })
    };
    let matches: Vec<Match> = terms.iter().filter_map(of_term).collect();
    let chunk_start = chunk.start.saturating_sub(context.start_offset);
    let units = units::of(text);
    let range = best(text, &units, &matches, chunk_start);
    let within = within(&matches, range.clone()).iter();
    let within = within.filter(|found| found.at.end <= range.end);
    Passage {
        start_offset: context.start_offset + range.start,
        end_offset: context.start_offset + range.end,
        text: text[range.clone()].to_owned(),
        table_header: table_header(text, &units, range.start),
        highlights: highlight::of(text, within)
            .into_iter()
            .map(|at| Highlight {
                start_offset: context.start_offset + at.start,
                end_offset: context.start_offset + at.end,
            })
            .collect(),
    }
}

/// Where the best passage of `text` is. It is as long as it may be: an answer often stands behind the
/// sentence that has the words of the question.
fn best(text: &str, units: &[Unit], matches: &[Match], chunk_start: usize) -> Range<usize> {
    let mut best: Option<([f32; 2], Range<usize>)> = None;
    for (first, unit) in units.iter().enumerate() {
        let of_unit = within(matches, unit.at.clone());
        if of_unit.is_empty() {
            continue;
        }
        let passage = from_unit(text, units, first);
        let readable = if is_readable(text, unit) {
            1.0
        } else {
            UNREADABLE
        };
        // Of passages with the same terms, the one that begins with most of them reaches furthest behind them.
        let scores =
            [within(matches, passage.clone()), of_unit].map(|found| readable * score(found));
        if best.as_ref().is_none_or(|(most, _)| scores > *most) {
            best = Some((scores, passage));
        }
    }
    let of_chunk = units.partition_point(|unit| unit.at.end <= chunk_start);
    let of_chunk = of_chunk.min(units.len().saturating_sub(1));
    let passage = best.map_or_else(|| from_unit(text, units, of_chunk), |(_, passage)| passage);
    match fits(&text[passage.clone()]) {
        true => with_units_before(text, units, with_beginning_of_next(text, units, passage)),
        false => inside_unit(text, passage.clone(), within(matches, passage)),
    }
}

/// The unit number `first` and as many behind it as fit. It alone may be too long.
fn from_unit(text: &str, units: &[Unit], first: usize) -> Range<usize> {
    let Some(unit) = units.get(first) else {
        return 0..0;
    };
    // Code and tables begin with their first line, if half a passage has room for it.
    let begins = unit.kind.begins_at().unwrap_or(unit.at.start);
    let start = match is_short(&text[begins..unit.at.end]) {
        true => begins,
        false => unit.at.start,
    };
    let behind = units[first + 1..].iter();
    let readable = behind.take_while(|unit| is_readable(text, unit));
    let fitting = readable.take_while(|unit| fits(&text[start..unit.at.end]));
    let mut end = unit.at.end;
    let mut is_head = unit.kind == Kind::TableHead;
    for unit in fitting {
        // The line below the head of a table is no row yet.
        let is_rule = std::mem::replace(&mut is_head, unit.kind == Kind::TableHead);
        if !unit.kind.is_opening() && !is_rule {
            end = unit.at.end;
        }
    }
    start..end
}

/// Whether a unit is for a reader: a row of badges and links has addresses in the place of words.
fn is_readable(text: &str, unit: &Unit) -> bool {
    let text = &text[unit.at.clone()];
    let words = text.split_whitespace().count();
    !text.contains("://") || words * 20 >= text.len()
}

/// A passage shorter than half, with as many words of the sentence behind it as fit.
fn with_beginning_of_next(text: &str, units: &[Unit], passage: Range<usize>) -> Range<usize> {
    let next = units.partition_point(|unit| unit.at.end <= passage.end);
    let next = units.get(next).filter(|next| {
        next.kind == Kind::Sentence && is_readable(text, next) && next.at.start >= passage.end
    });
    let Some(next) = next.filter(|_| is_short(&text[passage.clone()])) else {
        return passage;
    };
    let ends = word_ends(text, next.at.clone());
    let end = ends
        .take_while(|end| fits(&text[passage.start..*end]))
        .last();
    passage.start..end.unwrap_or(passage.end)
}

/// A passage that the end of the text keeps shorter than half begins earlier.
fn with_units_before(text: &str, units: &[Unit], passage: Range<usize>) -> Range<usize> {
    let behind = units.partition_point(|unit| unit.at.end <= passage.end);
    let is_last = units[behind..].iter().all(|unit| unit.kind.is_opening());
    if !is_last || !is_short(&text[passage.clone()]) {
        return passage;
    }
    let before = units.iter().filter(|unit| !unit.kind.is_inside());
    let before = before.map(|unit| unit.at.start);
    let fitting = |start: &usize| *start < passage.start && fits(&text[*start..passage.end]);
    let start = before.into_iter().find(fitting);
    start.unwrap_or(passage.start)..passage.end
}

/// The head of the table in whose rows a passage begins.
fn table_header(text: &str, units: &[Unit], start: usize) -> Option<String> {
    let index = units.partition_point(|unit| unit.at.end <= start);
    let Kind::Row(head) = units.get(index)?.kind else {
        return None;
    };
    let head = units.iter().find(|unit| unit.at.start == head)?;
    let head = &text[head.at.clone()];
    fits(head).then(|| head.to_owned())
}

/// The matches in a part of the text.
fn within(matches: &[Match], part: Range<usize>) -> &[Match] {
    let from = matches.partition_point(|found| found.at.start < part.start);
    let to = matches.partition_point(|found| found.at.start < part.end);
    &matches[from..to.max(from)]
}

fn fits(text: &str) -> bool {
    fits_in(text, MAX_CHARS)
}

fn is_short(passage: &str) -> bool {
    fits_in(passage, MAX_CHARS / 2)
}

fn fits_in(text: &str, chars: usize) -> bool {
    text.len() <= chars || text.chars().nth(chars).is_none()
}

/// How well matches answer: each term of the query once, by its weight, and more where terms follow each other as in
/// the query.
fn score(matches: &[Match]) -> f32 {
    // In one order, so that equal matches have equal sums.
    let mut terms: BTreeMap<usize, f32> = BTreeMap::new();
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

/// A part of a unit that is too long, from a little before its terms on, between words.
fn inside_unit(text: &str, unit: Range<usize>, matches: &[Match]) -> Range<usize> {
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
    let anchor = first.map_or(unit.start, |found| found.at.start);
    let before = text[unit.start..anchor].char_indices().rev();
    let start = match before.map(|(at, _)| unit.start + at).nth(MAX_CHARS / 4) {
        None => unit.start,
        Some(earliest) => elf_chunk::words(text, earliest, anchor)
            .find(|word| !text[*word..].starts_with(char::is_whitespace))
            .unwrap_or(anchor),
    };
    let ends = word_ends(text, start..unit.end);
    let end = ends.take_while(|end| fits(&text[start..*end])).last();
    // A word may be longer than a passage.
    let cut = || {
        let graphemes = text[start..unit.end].grapheme_indices(true);
        let ends = graphemes.map(|(at, grapheme)| start + at + grapheme.len());
        ends.take_while(|end| fits(&text[start..*end])).last()
    };
    start..end.or_else(cut).unwrap_or(start)
}

/// Where the words of a part of the text end.
fn word_ends(text: &str, part: Range<usize>) -> impl Iterator<Item = usize> + '_ {
    // No passage reaches further.
    let last = (part.start + 4 * MAX_CHARS).min(part.end);
    let ends = elf_chunk::words(text, part.start, last).chain([part.end]);
    ends.filter(move |end| !text[..*end].ends_with(char::is_whitespace))
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
    fn a_passage_of_thai_begins_and_ends_with_a_word() {
        let words = "ภาษาไทยเป็นภาษาที่คนไทยใช้".repeat(30);
        let made = made("GX-5521", &format!("{words}GX-5521{words}"), 0..0);
        let begins = ["ภาษา", "ไทย", "เป็น", "ที่", "คน", "ใช้"];
        let shown = made.text.as_str();
        assert!(begins.iter().any(|word| shown.starts_with(word)), "{shown}");
        assert!(begins.iter().any(|word| shown.ends_with(word)), "{shown}");
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
    fn a_passage_does_not_begin_with_an_address_that_has_the_words() {
        let filler = "The weather was mild and the garden slept under a grey sky. ".repeat(6);
        let text = format!(
            "[cfg]: https://docs.example/reference/parser-attributes/parser-versions\n\n{filler}The parser reads its attributes twice."
        );
        let shown = passage("parser attributes", &text);
        assert!(
            shown.contains("The [parser] reads its [attributes]"),
            "{shown}"
        );
    }

    #[test]
    fn a_passage_does_not_end_with_a_heading_alone() {
        let text = "The valve opens at eight bar.\n\n## Filters\n\n<!-- x -->\n\n```sh\n";
        let shown = passage("valve", text);
        assert_eq!(shown, "The [valve] opens at eight bar.");
        let long = format!(
            "The valve opens. Slowly.\n\n## Filters\n\n{}",
            "x ".repeat(400)
        );
        assert_eq!(passage("valve", &long), "The [valve] opens. Slowly.");
        let setext = format!(
            "The valve opens.\n\nFilters\n-------\n\n{}",
            "x ".repeat(400)
        );
        assert_eq!(passage("valve", &setext), "The [valve] opens.");
        let table = format!(
            "The valve opens.\n\n| a | b |\n|---|---|\n| {} |",
            "x ".repeat(400)
        );
        assert_eq!(passage("valve", &table), "The [valve] opens.");
    }

    #[test]
    fn code_begins_with_its_fence() {
        let filler = "The weather was mild and the garden slept. ".repeat(9);
        let text = format!("{filler}\n\n```sh\nset -e\nelf rebuild --now\n```\n\n{filler}");
        let shown = passage("rebuild", &text);
        assert!(
            shown.starts_with("```sh\nset -e\nelf [rebuild] --now\n```\n\nThe weather"),
            "{shown}"
        );
    }

    #[test]
    fn a_table_has_its_header() {
        let rows = |from: u32| -> String {
            (from..from + 20)
                .map(|n| format!("| P{n} | {n} bar |\n"))
                .collect()
        };
        let text = format!(
            "| Pump | Pressure |\n|---|---|\n{}| GX | 40 bar |\n{}",
            rows(10),
            rows(50)
        );
        let made = made("gx", &text, 0..text.len());
        assert!(made.text.starts_with("| GX |"), "{}", made.text);
        assert!(made.text.ends_with(" bar |"), "{}", made.text);
        assert_eq!(made.table_header.as_deref(), Some("| Pump | Pressure |"));
        let made = self::made("p11", &text, 0..text.len());
        assert!(made.text.starts_with("| Pump |"), "{}", made.text);
        assert_eq!(made.table_header, None);
    }

    #[test]
    fn it_reaches_as_far_behind_the_matching_sentence_as_fits() {
        let asked = "Renting needs care. Bikes need air. Many people ask us in the shop about that. \
                     Can I cancel a bike rental on the same day? ";
        let answer = "Yes, until one hour before it begins, by phone or in the app, without a fee of any kind.";
        let text = format!("{asked}{answer} {}", "Lamps are extra. ".repeat(30));
        let shown = passage("cancel bike rental", &text);
        assert!(
            shown.starts_with("Can I [cancel] a [bike] [rental]"),
            "{shown}"
        );
        assert!(shown.contains(answer), "{shown}");
        // A sentence that does not fit is cut.
        let long = "The fee depends on the day and on the hour ".repeat(12);
        let shown = passage("cancel", &format!("How to cancel. {long}."));
        assert!(
            shown.starts_with("How to [cancel]. The fee depends"),
            "{shown}"
        );
        assert!(
            shown.len() > 450 && fits(&shown.replace(['[', ']'], "")),
            "{shown}"
        );
    }

    #[test]
    fn highlights_are_words_and_not_their_parts() {
        assert_eq!(passage("น้ำ", "คำว่าน้ำ"), "คำว่า[น้ำ]");
        assert_eq!(passage("น้ำมันรั่ว", "คำมา น้ำมันหมด"), "คำมา [น้ำมัน]หมด");
        assert_eq!(
            passage("鍵の場所は？", "場所の話です。鍵の箱は机の上。"),
            "[場所]の話です。[鍵]の箱は机の上。"
        );
        assert_eq!(
            passage("りんごの値段", "りんごは100円です。"),
            "[りんご]は100円です。"
        );
        assert_eq!(
            passage("房子的钥匙", "我的钥匙在房子里。"),
            "我的[钥匙]在[房子]里。"
        );
        assert_eq!(
            passage(
                "Wie sichere ich die Datenbank?",
                "Wie man die Datenbank sichert: ich nutze ein Skript."
            ),
            "Wie man die [Datenbank] sichert: ich nutze ein Skript."
        );
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
