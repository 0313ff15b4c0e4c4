//! Which texts go through the model together.

use std::ops::Range;

/// Tokens that one pass through the model holds at least, if there are as many. With half as many
/// the passes are too small to be fast; with twice as many they are no faster.
const MIN_TOKENS: usize = 1024;

/// Tokens of a pass for each core: a few blocks of rows, so that no core waits long for another.
const TOKENS_A_CORE: usize = 192;

/// Splits texts of `lengths` tokens, in their order, into groups that hold at most as many tokens
/// as a pass on `cores` should, or one text. A pass has no padding, so texts of any length go
/// together.
pub fn batches(lengths: &[usize], cores: usize) -> Vec<Range<usize>> {
    batches_of(lengths, MIN_TOKENS.max(TOKENS_A_CORE * cores))
}

fn batches_of(lengths: &[usize], max_tokens: usize) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut first, mut tokens) = (0, 0);
    for (index, length) in lengths.iter().enumerate() {
        if tokens + length > max_tokens && first < index {
            batches.push(first..index);
            (first, tokens) = (index, 0);
        }
        tokens += length;
    }
    if first < lengths.len() {
        batches.push(first..lengths.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_no_more_tokens_than_allowed_or_one_text() {
        let lengths = [3, 100, 97, 1, 300, 300];
        assert_eq!(batches_of(&lengths, 200), [0..3, 3..4, 4..5, 5..6]);
        assert_eq!(batches_of(&[5, 5], 200), vec![0..2; 1]);
        assert!(batches_of(&[], 200).is_empty());
    }

    #[test]
    fn a_pass_over_a_large_request_is_as_small_as_over_a_small_one() {
        let passes = batches(&[512; 256], 2);
        assert_eq!(passes.len(), 128);
        assert!(passes.iter().all(|pass| pass.len() * 512 <= MIN_TOKENS));
    }
}
