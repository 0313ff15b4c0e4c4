//! Maximal marginal relevance: of notes that say the same, one is enough. Carbonell and Goldstein,
//! "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing Summaries",
//! SIGIR 1998.

use super::answer::Item;
use super::ranking::{dot, unit};

/// What the items are ordered by: the reranker's score if all have it, else the fused one. If only
/// the first ones are reranked, the two cannot be compared, and the place counts.
pub fn scores(items: &[Item]) -> Vec<f32> {
    let reranked = items.iter().filter(|item| item.rerank.is_some()).count();
    let of = |(place, item): (usize, &Item)| match item.rerank {
        Some(score) if reranked == items.len() => score,
        None if reranked == 0 => item.score,
        _ => -(place as f32),
    };
    items.iter().enumerate().map(of).collect()
}

/// The order in which `wanted` items are taken, and the score of each when it was taken: `lambda` times its
/// score, minus the rest times its greatest likeness to an item before it.
///
/// `scores` is standardised to 0..1 over the items. An item without a vector is like no other.
/// Of equal scores, the item that was first stays first.
pub fn order(
    scores: &[f32],
    vectors: &[Option<Vec<f32>>],
    lambda: f32,
    wanted: usize,
) -> Vec<(usize, f32)> {
    let scores = standardised(scores);
    let vectors: Vec<Option<Vec<f32>>> = vectors
        .iter()
        .map(|vector| vector.as_deref().map(unit))
        .collect();
    let mut likeness = vec![0.0f32; scores.len()];
    let mut rest: Vec<usize> = (0..scores.len()).collect();
    let mut taken = Vec::with_capacity(rest.len());
    while !rest.is_empty() && taken.len() < wanted {
        let score = |item: usize| lambda * scores[item] - (1.0 - lambda) * likeness[item];
        let (mut at, mut best) = (0, score(rest[0]));
        for (place, item) in rest.iter().enumerate() {
            if score(*item) > best {
                (at, best) = (place, score(*item));
            }
        }
        let item = rest.remove(at);
        taken.push((item, best));
        for other in &rest {
            if let (Some(a), Some(b)) = (&vectors[item], &vectors[*other]) {
                likeness[*other] = likeness[*other].max(dot(a, b));
            }
        }
    }
    taken
}

/// From 0 for the least to 1 for the greatest.
fn standardised(scores: &[f32]) -> Vec<f32> {
    let least = scores.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let span = greatest - least;
    let share = |score: &f32| match span > 0.0 {
        true => (score - least) / span,
        false => 1.0,
    };
    scores.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(order: &[(usize, f32)]) -> Vec<usize> {
        order.iter().map(|(item, _)| *item).collect()
    }

    #[test]
    fn a_copy_comes_after_what_says_something_else() {
        let scores = [0.9, 0.89, 0.5, 0.1];
        let vectors = [
            Some(vec![1.0, 0.0]),
            Some(vec![1.0, 0.01]),
            Some(vec![0.0, 1.0]),
            Some(vec![0.5, 0.5]),
        ];
        assert_eq!(items(&order(&scores, &vectors, 1.0, 4)), [0, 1, 2, 3]);
        assert_eq!(items(&order(&scores, &vectors, 0.5, 4)), [0, 2, 1, 3]);
        assert_eq!(items(&order(&scores, &vectors, 0.5, 2)), [0, 2]);
    }

    #[test]
    fn equal_scores_and_missing_vectors_keep_the_order() {
        let vectors = [None, Some(vec![1.0]), None];
        let taken = order(&[0.3, 0.3, 0.3], &vectors, 0.7, 3);
        assert_eq!(items(&taken), [0, 1, 2]);
        assert!(order(&[], &[], 0.5, 3).is_empty());
        assert_eq!(
            items(&order(&[f32::NAN, 0.1], &[None, None], 0.5, 2)).len(),
            2
        );
    }
}
