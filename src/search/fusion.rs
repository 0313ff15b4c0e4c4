//! One score out of two: how near a chunk is in meaning, and how well its words match.
//!
//! Every candidate has both scores, whichever ranking found it. The default weighs the rankings
//! by how far the best of each stands out. `docs/inside/quality.md` has the figures behind it.

use crate::config::FusionMethod;
use crate::index::Candidate;

/// Candidate number `i` of a ranking, counted from 1, adds `1 / (RRF_K + i)`. 60 is the constant
/// of the paper (Cormack et al., "Reciprocal Rank Fusion", 2009). Ranks are counted among all
/// candidates.
const RRF_K: f32 = 60.0;

/// The shares of the two rankings when the best of both stand out equally. A dense ranking
/// always has a best, however distant, and its scores lie closer to each other: 3 to 2 made up
/// for that on the training sets.
const DENSE_SHARE: f32 = 0.6;
const BM25_SHARE: f32 = 1.0 - DENSE_SHARE;

/// A deviation of cosines below this counts as this. Among few candidates, tiny differences of
/// cosines would otherwise weigh as much as the one exact word.
const MIN_DEVIATION: f32 = 0.02;

/// How the scores of one search become one.
pub enum Fusion {
    /// A weighted sum of standardised scores.
    Standardised {
        /// Applied to the cosine.
        dense: Line,
        /// Applied to the BM25 score.
        bm25: Line,
    },
    /// A sum of reciprocal ranks.
    Ranks {
        /// The cosines, best first.
        dense: Vec<f32>,
        /// The BM25 scores above 0, best first.
        bm25: Vec<f32>,
    },
}

/// A score minus its mean, times a factor.
pub struct Line {
    mean: f32,
    factor: f32,
}

impl Fusion {
    /// The fusion for these candidates.
    pub fn of(method: FusionMethod, candidates: &[Candidate]) -> Self {
        let dense: Vec<f32> = candidates.iter().filter_map(|c| c.dense).collect();
        let bm25: Vec<f32> = candidates.iter().map(|c| c.bm25).collect();
        match method {
            FusionMethod::Rrf => Self::Ranks {
                dense: best_first(dense),
                bm25: best_first(bm25.into_iter().filter(|score| *score > 0.0).collect()),
            },
            FusionMethod::Dbsf => Self::Standardised {
                dense: Line::standardising(&dense, MIN_DEVIATION).times(0.5),
                bm25: Line::standardising(&bm25, 0.0).times(0.5),
            },
            FusionMethod::Adaptive => {
                let lines = [
                    (
                        Line::standardising(&dense, MIN_DEVIATION),
                        &dense,
                        DENSE_SHARE,
                    ),
                    (Line::standardising(&bm25, 0.0), &bm25, BM25_SHARE),
                ];
                let weights = lines
                    .each_ref()
                    .map(|(line, scores, share)| share * line.of(best(scores)));
                let sum = weights[0] + weights[1];
                let [(dense, ..), (bm25, ..)] = lines;
                // With all scores equal, the sum is 0 and so is every factor.
                let sum = if sum > 0.0 { sum } else { 1.0 };
                Self::Standardised {
                    dense: dense.times(weights[0] / sum),
                    bm25: bm25.times(weights[1] / sum),
                }
            }
        }
    }

    /// The score of a candidate. A missing cosine counts as the mean.
    pub fn score(&self, dense: Option<f32>, bm25: f32) -> f32 {
        match self {
            Self::Standardised {
                dense: dense_line,
                bm25: bm25_line,
            } => dense.map_or(0.0, |dense| dense_line.of(dense)) + bm25_line.of(bm25),
            Self::Ranks {
                dense: cosines,
                bm25: scores,
            } => {
                let dense = dense.map_or(0.0, |dense| reciprocal_rank(cosines, dense));
                let words = (bm25 > 0.0).then(|| reciprocal_rank(scores, bm25));
                dense + words.unwrap_or(0.0)
            }
        }
    }
}

impl Line {
    /// To mean 0 and standard deviation 1, or less if the deviation is below `min_deviation`; to
    /// 0 if all scores are equal.
    fn standardising(scores: &[f32], min_deviation: f32) -> Self {
        let n = scores.len().max(1) as f32;
        let mean = scores.iter().sum::<f32>() / n;
        let variance = scores.iter().map(|s| (s - mean).powi(2)).sum::<f32>() / n;
        let deviation = variance.sqrt();
        // Rounding leaves a tiny deviation among equal scores.
        let is_flat = deviation <= f32::EPSILON * mean.abs().max(1.0) * 8.0;
        let factor = if is_flat {
            0.0
        } else {
            1.0 / deviation.max(min_deviation)
        };
        Self { mean, factor }
    }

    fn times(self, weight: f32) -> Self {
        Self {
            factor: self.factor * weight,
            ..self
        }
    }

    fn of(&self, score: f32) -> f32 {
        (score - self.mean) * self.factor
    }
}

fn best(scores: &[f32]) -> f32 {
    scores.iter().copied().reduce(f32::max).unwrap_or(0.0)
}

fn best_first(mut scores: Vec<f32>) -> Vec<f32> {
    scores.sort_unstable_by(|a, b| b.total_cmp(a));
    scores
}

fn reciprocal_rank(best_first: &[f32], score: f32) -> f32 {
    let better = best_first.partition_point(|other| *other > score);
    1.0 / (RRF_K + 1.0 + better as f32)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use uuid::Uuid;

    use super::*;

    fn candidates(scores: &[(f32, f32)]) -> Vec<Candidate> {
        let candidate = |(n, (dense, bm25)): (usize, &(f32, f32))| Candidate {
            chunk_id: Uuid::from_u128(n as u128),
            dense: Some(*dense),
            bm25: *bm25,
        };
        scores.iter().enumerate().map(candidate).collect()
    }

    /// The positions of the candidates, best first.
    fn order(method: FusionMethod, scores: &[(f32, f32)]) -> Vec<usize> {
        let fusion = Fusion::of(method, &candidates(scores));
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let score = |i: &usize| fusion.score(Some(scores[*i].0), scores[*i].1);
        order.sort_by(|a, b| score(b).total_cmp(&score(a)));
        order
    }

    #[test]
    fn the_one_exact_word_beats_a_flat_dense_ranking() {
        let mut scores: Vec<(f32, f32)> = (0..50).map(|i| (0.40 - 0.002 * i as f32, 0.0)).collect();
        scores[40].1 = 9.0;
        assert_eq!(order(FusionMethod::Adaptive, &scores)[0], 40);
    }

    #[test]
    fn the_one_exact_word_wins_among_few_candidates_that_are_equally_near() {
        for n in [2_usize, 3, 5, 10] {
            let mut scores: Vec<(f32, f32)> =
                (0..n).map(|i| (0.31 - 0.01 * i as f32, 0.0)).collect();
            scores[n - 1].1 = 8.0;
            assert_eq!(order(FusionMethod::Adaptive, &scores)[0], n - 1, "of {n}");
        }
        assert_eq!(
            order(FusionMethod::Adaptive, &[(0.3001, 0.0), (0.3, 8.0)]),
            [1, 0]
        );
    }

    #[test]
    fn the_one_near_meaning_beats_words_that_everything_has() {
        let mut scores: Vec<(f32, f32)> = (0..50)
            .map(|i| (0.20 - 0.001 * i as f32, 2.0 - 0.01 * i as f32))
            .collect();
        scores[30].0 = 0.8;
        assert_eq!(order(FusionMethod::Adaptive, &scores)[0], 30);
    }

    #[test]
    fn a_ranking_that_says_nothing_leaves_the_order_to_the_other() {
        for method in [FusionMethod::Adaptive, FusionMethod::Dbsf] {
            assert_eq!(
                order(method, &[(0.1, 0.0), (0.3, 0.0), (0.2, 0.0)]),
                [1, 2, 0]
            );
            assert_eq!(
                order(method, &[(0.5, 1.0), (0.5, 3.0), (0.5, 2.0)]),
                [1, 2, 0]
            );
        }
    }

    #[test]
    fn equal_or_single_or_no_candidates_have_finite_scores() {
        for method in [
            FusionMethod::Adaptive,
            FusionMethod::Dbsf,
            FusionMethod::Rrf,
        ] {
            for scores in [
                &[][..],
                &[(0.3, 1.0)],
                &[(0.1, 0.1); 7],
                &[(-1.0, 0.0), (1.0, 1e9)],
            ] {
                let fusion = Fusion::of(method, &candidates(scores));
                assert!(fusion.score(Some(0.3), 1.0).is_finite());
                assert!(fusion.score(None, 0.0).is_finite());
            }
        }
    }

    #[test]
    fn reciprocal_ranks_are_those_of_the_paper() {
        let scores = [(0.9, 0.0), (0.5, 7.0), (0.4, 8.0)];
        let fusion = Fusion::of(FusionMethod::Rrf, &candidates(&scores));
        let score = |i: usize| fusion.score(Some(scores[i].0), scores[i].1);
        assert!((score(0) - 1.0 / 61.0).abs() < 1e-7);
        assert!((score(1) - (1.0 / 62.0 + 1.0 / 62.0)).abs() < 1e-7);
        assert!((score(2) - (1.0 / 63.0 + 1.0 / 61.0)).abs() < 1e-7);
    }

    #[test]
    fn keywords_alone_keep_their_order() {
        let mut found = candidates(&[(0.0, 1.0), (0.0, 3.0), (0.0, 2.0)]);
        for candidate in &mut found {
            candidate.dense = None;
        }
        for method in [
            FusionMethod::Adaptive,
            FusionMethod::Dbsf,
            FusionMethod::Rrf,
        ] {
            let fusion = Fusion::of(method, &found);
            let best = found
                .iter()
                .max_by(|a, b| {
                    let score = |c: &Candidate| fusion.score(c.dense, c.bm25);
                    score(a).total_cmp(&score(b))
                })
                .unwrap();
            assert_eq!(best.chunk_id, Uuid::from_u128(1));
        }
    }
}
