//! Texts of different length in one pass through a model.

use candle_core::{Device, Result, Tensor};

/// Tokens that one pass through the model holds, padding included. With half as
/// many the passes are too small to be fast; with twice as many they are no
/// faster and take 100 MB more (all-MiniLM-L6-v2, two passes at once).
const MAX_TOKENS: usize = 1024;

/// Groups texts of `lengths` tokens such that a group, each text padded to its
/// longest, holds at most [`MAX_TOKENS`], or one text. Texts of like length
/// go together, since every padding token costs as much as a real one.
pub fn batches(lengths: &[usize]) -> Vec<Vec<usize>> {
    batches_of(lengths, MAX_TOKENS)
}

fn batches_of(lengths: &[usize], max_padded: usize) -> Vec<Vec<usize>> {
    let mut by_length: Vec<usize> = (0..lengths.len()).collect();
    by_length.sort_by_key(|&index| lengths[index]);
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for index in by_length {
        match batches.last_mut() {
            // The texts are sorted by length, so the newest one is the longest.
            Some(batch) if (batch.len() + 1) * lengths[index] <= max_padded => batch.push(index),
            _ => batches.push(vec![index]),
        }
    }
    batches
}

/// The rows, filled up to the longest with `pad`.
pub fn tensor(rows: &[&[u32]], pad: u32) -> Result<Tensor> {
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let mut all = Vec::with_capacity(rows.len() * longest);
    for row in rows {
        all.extend_from_slice(row);
        all.extend(std::iter::repeat_n(pad, longest - row.len()));
    }
    Tensor::from_vec(all, (rows.len(), longest), &Device::Cpu)
}

/// 1 for each number of the rows, 0 for what fills them up.
pub fn mask(rows: &[&[u32]]) -> Result<Tensor> {
    let ones: Vec<Vec<u32>> = rows.iter().map(|row| vec![1; row.len()]).collect();
    let ones: Vec<&[u32]> = ones.iter().map(|row| &row[..]).collect();
    tensor(&ones, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_like_length_go_together_within_the_budget() {
        let lengths = [3, 100, 4, 90, 5, 1];
        assert_eq!(batches_of(&lengths, 200), [vec![5, 0, 2, 4], vec![3, 1]]);
        assert_eq!(batches_of(&[300, 300], 200), [[0], [1]]);
        assert!(batches_of(&[], 200).is_empty());
    }
}
