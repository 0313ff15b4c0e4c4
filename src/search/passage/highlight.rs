//! Which parts of a passage are marked.

use std::ops::Range;

use serde::Serialize;

use super::Match;
use crate::search::terms::languages::{is_hiragana, is_particle};

/// A word of the query in a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Highlight {
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
}

/// What is marked of matches, which are in their order: those that touch as one.
pub(super) fn of<'m>(text: &str, matches: impl Iterator<Item = &'m Match>) -> Vec<Range<usize>> {
    let mut joined: Vec<(Range<usize>, bool)> = Vec::new();
    for found in matches {
        let at = &found.at;
        // Two letters that are sounds stand in many words.
        let is_chance = found.is_part && text[at.clone()].chars().all(is_phonetic);
        match joined.last_mut() {
            // `ERR-4417` is one mark.
            Some((last, last_is_chance))
                if at.start <= last.end || text[last.end..at.start] == *"-" =>
            {
                last.end = last.end.max(at.end);
                *last_is_chance = false;
            }
            _ => joined.push((at.clone(), is_chance)),
        }
    }
    let joined = joined.into_iter().filter(|(_, is_chance)| !is_chance);
    joined.map(|(at, _)| without_particles(text, at)).collect()
}

/// Letters of scripts without spaces that stand for sounds: Hiragana, Thai, Lao, Burmese, Khmer.
fn is_phonetic(c: char) -> bool {
    is_hiragana(c)
        || matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}')
}

/// A mark without the function word of a letter that a pair of letters has beside a word: `の` of `鍵の`.
fn without_particles(text: &str, at: Range<usize>) -> Range<usize> {
    let mut marked = &text[at.clone()];
    let mut start = at.start;
    let mut letters = marked.chars();
    if let (Some(first), Some(next)) = (letters.next(), letters.next())
        && is_particle(first)
        && !is_hiragana(next)
    {
        marked = &marked[first.len_utf8()..];
        start += first.len_utf8();
    }
    let mut letters = marked.chars().rev();
    if let (Some(last), Some(before)) = (letters.next(), letters.next())
        && is_particle(last)
        && !is_hiragana(before)
    {
        marked = &marked[..marked.len() - last.len_utf8()];
    }
    start..start + marked.len()
}
