//! Words, also of the scripts that write no spaces between them.
//!
//! UAX #29 ends a word behind each letter of Chinese, Japanese, Thai, Lao, Khmer and Burmese. There ICU's dictionaries
//! decide which of these ends are one. Its networks find about as many words, in eighty times the time.

use std::sync::LazyLock;

use icu_segmenter::options::WordBreakInvariantOptions;
use icu_segmenter::{WordSegmenter, WordSegmenterBorrowed};
use unicode_segmentation::UnicodeSegmentation;

static DICTIONARIES: LazyLock<WordSegmenterBorrowed<'static>> =
    LazyLock::new(|| WordSegmenter::new_dictionary(WordBreakInvariantOptions::default()));

/// How much of a run without spaces is read before where words are asked for. The dictionary takes the longest word
/// from each place on, so this decides which words the next letters belong to; a run is seldom longer.
const BEFORE_BYTES: usize = 256;

/// Where words end or begin within `after..=last`, except at `after`. Takes time for these bytes, however long the text.
pub fn words(text: &str, after: usize, last: usize) -> impl Iterator<Item = usize> + '_ {
    let before = &text[text.ceil_char_boundary(after.saturating_sub(BEFORE_BYTES))..after];
    let from = after - before.len() + before.trim_end_matches(is_unspaced).len();
    // A little text after `last` tells whether a word ends there.
    let seen = text.ceil_char_boundary((last + 64).min(text.len()));
    let positions = bounds(&text[from..seen]).map(move |offset| from + offset);
    positions
        .skip_while(move |&position| position <= after)
        .take_while(move |&position| position <= last)
}

/// Where words begin in `text`.
fn bounds(text: &str) -> impl Iterator<Item = usize> + '_ {
    // Each run is read once. One of a single letter needs no dictionary.
    let (mut run, mut run_end) = (0, 0);
    let mut words = None;
    let bounds = text.split_word_bound_indices().map(|(at, _)| at);
    bounds.filter(move |&at| {
        if at >= run_end {
            (run, run_end) = (at, run_end_of(text, at));
            words = None;
            return true;
        }
        let words =
            words.get_or_insert_with(|| DICTIONARIES.segment_str(&text[run..run_end]).peekable());
        while words.next_if(|&word| run + word < at).is_some() {}
        words.peek().is_some_and(|&word| run + word == at)
    })
}

/// Where the run of letters without spaces ends that begins at `start`.
fn run_end_of(text: &str, start: usize) -> usize {
    // All of them have three bytes or four.
    if text.as_bytes()[start] < 0xe0 {
        return start;
    }
    text.len() - text[start..].trim_start_matches(is_unspaced).len()
}

/// Whether `c` is of Thai, Lao, Burmese or Khmer, Hiragana or an ideograph, and no number.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{e01}'..='\u{e4f}' | '\u{e81}'..='\u{ecf}' | '\u{edc}'..='\u{edf}' | '\u{1000}'..='\u{103f}'
        | '\u{1050}'..='\u{108f}' | '\u{109a}'..='\u{109f}' | '\u{1780}'..='\u{17d3}' | '\u{17d7}'
        | '\u{3005}'..='\u{3007}' | '\u{3041}'..='\u{309f}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn words_are_those_of_the_standard_less_some_between_letters_without_spaces(
            text in "([a-z]{1,4}|[0-9.,]|[๐-๙]|ภาษาไทย|[ก-์]|ລາວ|ខ្មែរ|មြန်မာ|日本|[ぁ-ん]|北京|ー|\\u{301}| |\\PC){0,40}",
            after in 0_usize..200,
        ) {
            let after = text.floor_char_boundary(after);
            let found: Vec<usize> = words(&text, after, text.len()).collect();
            let standard = text[after..].split_word_bound_indices().skip(1);
            let standard: Vec<usize> = standard.map(|(at, _)| after + at).collect();
            let is_certain = |at: &usize| {
                !text[..*at].ends_with(is_unspaced) || !text[*at..].starts_with(is_unspaced)
            };
            let certain = |words: &[usize]| -> Vec<usize> {
                words.iter().copied().filter(is_certain).collect()
            };
            proptest::prop_assert_eq!(certain(&found), certain(&standard));
            proptest::prop_assert!(found.iter().all(|at| standard.contains(at)));
        }
    }

    #[test]
    fn a_word_is_found_from_the_middle_of_a_run() {
        let run = "ภาษาไทย".repeat(200);
        let middle = run.len() / 2 / 3 * 3;
        let words: Vec<usize> = words(&run, middle, middle + 300).collect();
        assert!(words.len() > 20, "{words:?}");
        for at in words {
            assert!(run[at..].starts_with("ภาษา") || run[at..].starts_with("ไทย"));
        }
    }
}
