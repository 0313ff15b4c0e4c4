//! Where sentences begin (UAX #29), found without a look-up for every character. Behind a Greek question mark one begins
//! too, and none begins with a closing mark.
//!
//! A sentence ends behind a line break, or behind a terminator (`.`, `!`, `?`, `。` and their like)
//! and what closes it. So the text is searched for these, and the library decides from the character
//! before one on. What is further back has no influence on it.

use std::sync::OnceLock;

use unicode_segmentation::UnicodeSegmentation;

/// Where the sentences of `text` begin, except the first one.
pub(super) fn starts(text: &str) -> impl Iterator<Item = usize> + '_ {
    let mut start = 0;
    let mut end = 0;
    std::iter::from_fn(move || {
        if start >= end {
            end = library_end(text, start);
        }
        start += question(&text[start..end]).unwrap_or(end - start);
        (start < text.len()).then_some(start)
    })
}

/// Where the sentence ends that begins at `start`, by the library.
fn library_end(text: &str, start: usize) -> usize {
    let from = before_terminator(text, start);
    let sentence =
        from.and_then(|from| Some(from + text[from..].split_sentence_bounds().next()?.len()));
    sentence.map_or(text.len(), |end| end + spaced_quote(text, end))
}

/// Where the text continues behind its first Greek question mark, which is a semicolon.
fn question(text: &str) -> Option<usize> {
    // The first byte of capital letters. Most texts have none.
    if !text.as_bytes().contains(&0xce) {
        return None;
    }
    let is_greek =
        |c: char| matches!(c, '\u{386}' | '\u{388}'..='\u{3ff}' | '\u{1f00}'..='\u{1fbc}');
    let begins = |c: char| c == '«' || (is_greek(c) && c.is_uppercase());
    let mut marks = text.match_indices([';', '\u{37e}']);
    marks.find_map(|(at, mark)| {
        let behind = &text[at + mark.len()..];
        let next = behind.trim_start();
        let mut before = text[..at].chars().rev();
        let is_end = next.len() < behind.len()
            && next.starts_with(begins)
            && before.next().is_some_and(is_greek)
            && before.next().is_some_and(is_greek);
        is_end.then(|| text.len() - next.len())
    })
}

/// The bytes of a closing mark behind a space, with the space behind it, as in « Viens ! » Puis. To UAX #29 it
/// begins a sentence.
fn spaced_quote(text: &str, end: usize) -> usize {
    let (before, after) = text.split_at(end);
    let Some(behind) = after.strip_prefix('»') else {
        return 0;
    };
    let is_spaced = before.ends_with([' ', '\u{a0}', '\u{202f}'])
        && (behind.is_empty() || behind.starts_with(char::is_whitespace));
    match is_spaced {
        true => after.len() - behind.trim_start().len(),
        false => 0,
    }
}

/// The last ASCII character before the next place where a sentence may end, or `start`. Characters
/// that combine with the one before them are not ASCII.
fn before_terminator(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut before, mut at) = (start, start);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'.' if continues(&bytes[start..], at - start) => at += 1,
            b'.' | b'!' | b'?' | b'\n' | b'\r' => return Some(before),
            0..=0x7f => {
                before = at;
                at += 1;
            }
            _ => {
                let c = text[at..].chars().next()?;
                if is_terminator(c) {
                    return Some(before);
                }
                at += c.len_utf8();
            }
        }
    }
    None
}

/// Whether the sentence continues behind the full stop at `at`, as in `3.14`, `index.html`, `U.S.`
/// and `i.e. this` (SB6, SB7 and SB8). Otherwise it may end there.
fn continues(sentence: &[u8], at: usize) -> bool {
    let behind_letter = at > 0 && sentence[at - 1].is_ascii_alphabetic();
    let after = &sentence[at + 1..];
    let spaces = after.iter().take_while(|&&byte| byte == b' ').count();
    match after.get(spaces) {
        Some(b'a'..=b'z') => true,
        Some(b'0'..=b'9') => spaces == 0,
        Some(b'A'..=b'Z') => spaces == 0 && behind_letter,
        _ => false,
    }
}

/// Whether a sentence may end behind `c`. The library is asked once about each 64 characters.
fn is_terminator(c: char) -> bool {
    const PAGE: usize = 64;
    static PAGES: [OnceLock<u64>; (char::MAX as usize + 1) / PAGE] =
        [const { OnceLock::new() }; (char::MAX as usize + 1) / PAGE];
    let (page, place) = (c as usize / PAGE, c as usize % PAGE);
    let terminators = PAGES[page].get_or_init(|| {
        let is_end = |place: &usize| {
            char::from_u32((page * PAGE + place) as u32).is_some_and(|c| {
                let text = format!("{c} A");
                text.split_sentence_bounds().count() > 1
            })
        };
        (0..PAGE).filter(is_end).map(|place| 1 << place).sum()
    });
    terminators >> place & 1 == 1
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn assert_same(text: &str) {
        let of_library = text.split_sentence_bound_indices().skip(1);
        let of_library: Vec<usize> = of_library.map(|(start, _)| start).collect();
        assert_eq!(starts(text).collect::<Vec<_>>(), of_library, "{text:?}");
    }

    #[test]
    fn sentences_of_a_text() {
        let text = "It costs 3.14, i.e. a bit. See index.html of the U.S. Office!\nNew?Yes。好。";
        let starts: Vec<&str> = starts(text).map(|start| &text[start..]).collect();
        assert_eq!(starts.len(), 5, "{starts:?}");
        assert_same(text);
    }

    #[test]
    fn every_character_has_the_sentences_of_the_library() {
        for c in (0..0x2_0000).filter_map(char::from_u32) {
            for text in [
                format!("a{c} B"),
                format!("a.{c}B{c}. C"),
                format!("a. {c}b! {c}{c}C"),
                format!("{c}.{c}"),
            ] {
                assert_same(&text);
            }
        }
    }

    #[test]
    fn random_texts_have_the_sentences_of_the_library() {
        let pieces = [
            ".", ".", ".", "!", "?", "\n", "\r", "\r\n", ",", ";", ":", "-", "'", "\"", ")", "(",
            "a", "b", "A", "B", "1", " ", " ", " ", "\t", "\u{a0}", "\u{301}", "\u{ad}",
            "\u{2028}", "\u{2029}", "\u{85}", "。", "！", "中", "ж", "Ж", "é", "\u{200d}", "…",
            "։", "\u{3000}", "😀", "“", "”", "٣", "ª", "word",
        ];
        let mut random = StdRng::seed_from_u64(29);
        for _ in 0..200_000 {
            let length = random.random_range(1..24);
            let text: String = (0..length)
                .map(|_| *pieces.choose(&mut random).expect("there are pieces"))
                .collect();
            assert_same(&text);
        }
    }
}
