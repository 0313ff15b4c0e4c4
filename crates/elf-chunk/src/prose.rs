//! The sentences of a text for a reader: also those that are wrapped over lines.

use std::ops::Range;

use super::cuts::SentenceScan;
use super::languages;
use super::sentences::starts;
use super::wraps;

/// The sentences of `text`, trimmed, in its order. A line is a sentence too, unless prose is wrapped there.
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut scan = SentenceScan::default();
    let mut sentences: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    for end in starts(text).chain([text.len()]) {
        let cut = scan.push(text, start..end, true);
        let sentence = &text[start..end];
        let next = end - sentence.trim_start().len();
        let trimmed = next..start + sentence.trim_end().len();
        start = end;
        if trimmed.is_empty() {
            continue;
        }
        let continues = cut
            .is_none_or(|cut| languages::end(text, cut).is_none() || wraps::is_wrapped(text, cut));
        match sentences.last_mut() {
            Some(last) if continues => last.end = trimmed.end,
            _ => sentences.push(trimmed),
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<&str> {
        sentences(text).into_iter().map(|at| &text[at]).collect()
    }

    #[test]
    fn wrapped_prose_is_one_sentence_and_lines_of_a_list_are_several() {
        assert_eq!(
            of(
                "It is a rather long line of prose that surely goes on\nbehind the break. Then Dr. Brown came.\n\n- one\n- two"
            ),
            [
                "It is a rather long line of prose that surely goes on\nbehind the break.",
                "Then Dr. Brown came.",
                "- one",
                "- two"
            ]
        );
        assert_eq!(of("# Head\nText.  \n\n"), ["# Head", "Text."]);
        assert_eq!(of(""), [""; 0]);
        assert_eq!(of(" \n "), [""; 0]);
    }

    proptest::proptest! {
        #[test]
        fn they_are_in_order_and_hold_all_that_is_seen(text in "([a-z]{1,9} |[.!?] |\\n|\\n\\n|- |Dr\\. |\\PC){0,80}") {
            let mut last = 0;
            for at in sentences(&text) {
                proptest::prop_assert!(text[last..at.start].trim().is_empty());
                proptest::prop_assert!(at.start < at.end);
                last = at.end;
            }
            proptest::prop_assert!(text[last..].trim().is_empty());
        }
    }
}
