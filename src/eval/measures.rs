//! The measures of ranked retrieval, as trec_eval defines them.

use serde::{Deserialize, Serialize};

use super::Relevant;

/// The measures of one ranking, or the means of several. Each is between 0 and 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Normalised discounted cumulative gain: the grade is the gain, `log2(rank + 1)` the
    /// discount (Järvelin, Kekäläinen 2002).
    pub ndcg: f64,
    /// The reciprocal of the rank of the first relevant document, 0 without one.
    pub mrr: f64,
    /// Average precision: the mean, over the relevant documents, of the precision at the rank of
    /// each, 0 for one that is not in the ranking.
    pub map: f64,
    /// The relevant documents in the ranking, of all relevant documents.
    pub recall: f64,
    /// The relevant documents in the ranking, of `k`.
    pub precision: f64,
}

/// The measures of the first `k` documents of a ranking, best first.
pub fn of_ranking(ranking: &[String], relevant: &Relevant, k: usize) -> Scores {
    let grades: Vec<u32> = ranking
        .iter()
        .take(k)
        .map(|document| relevant.get(document).copied().unwrap_or(0))
        .collect();
    let mut ideal: Vec<u32> = relevant.values().copied().collect();
    ideal.sort_unstable_by(|a, b| b.cmp(a));
    ideal.truncate(k);
    let hits = grades.iter().filter(|grade| **grade > 0).count() as f64;
    let all = relevant.len().max(1) as f64;
    let first = grades.iter().position(|grade| *grade > 0);
    Scores {
        ndcg: gain(&grades) / gain(&ideal).max(f64::MIN_POSITIVE),
        mrr: first.map_or(0.0, |rank| 1.0 / (rank as f64 + 1.0)),
        map: precisions(&grades).sum::<f64>() / all,
        recall: hits / all,
        precision: hits / k as f64,
    }
}

fn gain(grades: &[u32]) -> f64 {
    let discounted = |(i, grade): (usize, &u32)| f64::from(*grade) / (i as f64 + 2.0).log2();
    grades.iter().enumerate().map(discounted).sum()
}

/// The precision at the rank of each relevant document.
fn precisions(grades: &[u32]) -> impl Iterator<Item = f64> {
    let ranks = grades.iter().enumerate().filter(|(_, grade)| **grade > 0);
    ranks
        .enumerate()
        .map(|(before, (i, _))| (before as f64 + 1.0) / (i as f64 + 1.0))
}

impl Scores {
    pub fn mean(of: &[Self]) -> Self {
        let n = of.len().max(1) as f64;
        let mean = |measure: fn(&Self) -> f64| of.iter().map(measure).sum::<f64>() / n;
        Self {
            ndcg: mean(|s| s.ndcg),
            mrr: mean(|s| s.mrr),
            map: mean(|s| s.map),
            recall: mean(|s| s.recall),
            precision: mean(|s| s.precision),
        }
    }
}

/// Random assignments of signs that a p-value is counted over.
const PERMUTATIONS: u32 = 10_000;

/// Random sets of queries that an interval is counted over.
const RESAMPLES: usize = 2_000;

/// The two-sided p-value of a paired randomisation test (Smucker, Allan, Carterette 2007): how
/// often a random sign for each difference gives a mean at least as far from 0.
pub fn p_value(differences: &[f64]) -> f64 {
    let seen = differences.iter().sum::<f64>().abs();
    // A fixed seed: the same rankings give the same value.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut at_least = 0;
    for _ in 0..PERMUTATIONS {
        let sum: f64 = differences
            .iter()
            .map(|difference| {
                random = next(random);
                if random >> 63 == 0 {
                    *difference
                } else {
                    -difference
                }
            })
            .sum();
        if sum.abs() >= seen - 1e-12 {
            at_least += 1;
        }
    }
    f64::from(at_least + 1) / f64::from(PERMUTATIONS + 1)
}

/// Where the mean of `values` lies in 95 of 100 sets of as many queries like these (percentile bootstrap; Efron
/// 1979).
pub fn interval(values: &[f64]) -> [f64; 2] {
    // A fixed seed: the same rankings give the same interval.
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = || {
        random = next(random);
        values[(random % values.len() as u64) as usize]
    };
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| values.iter().map(|_| draw()).sum::<f64>() / values.len() as f64)
        .collect();
    means.sort_by(f64::total_cmp);
    [RESAMPLES / 40, RESAMPLES - 1 - RESAMPLES / 40].map(|at| means[at])
}

/// SplitMix64 (Steele, Lea, Flood 2014), with the state as the output of the round before.
fn next(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[derive(serde::Deserialize)]
    struct Case {
        ranking: Vec<String>,
        relevant: Relevant,
        ndcg: f64,
        mrr: f64,
        map: f64,
        recall: f64,
        precision: f64,
    }

    /// `tests/data/measures.json` has 200 random rankings and what `ranx` says of them.
    #[test]
    fn the_measures_are_those_of_ranx() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/measures.json");
        let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(cases.len() >= 200);
        for (n, case) in cases.iter().enumerate() {
            let own = of_ranking(&case.ranking, &case.relevant, 10);
            for (name, own, wanted) in [
                ("ndcg", own.ndcg, case.ndcg),
                ("mrr", own.mrr, case.mrr),
                ("map", own.map, case.map),
                ("recall", own.recall, case.recall),
                ("precision", own.precision, case.precision),
            ] {
                assert!(
                    (own - wanted).abs() < 1e-6,
                    "{name} of case {n}: {own}, not {wanted}"
                );
            }
        }
    }

    #[test]
    fn a_clear_difference_has_a_small_p_value_and_noise_a_large_one() {
        let clear: Vec<f64> = (0..50).map(|i| 0.1 + 0.001 * f64::from(i)).collect();
        assert!(p_value(&clear) < 0.001);
        let noise: Vec<f64> = (0..50)
            .map(|i| if i % 2 == 0 { 0.1 } else { -0.1 })
            .collect();
        assert!(p_value(&noise) > 0.5);
        assert!((p_value(&[]) - 1.0).abs() < f64::EPSILON);
    }
}
