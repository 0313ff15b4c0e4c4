//! What an evaluation found, and how it compares with an earlier one.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::certainty::Certainty;
use super::measures::{Scores, p_value};

/// A difference of nDCG below this p-value is taken for real.
const SIGNIFICANT: f64 = 0.05;

/// A drop of nDCG above this fails the gate also where a set is too small for a significant one.
const MAX_DROP: f64 = 0.02;

/// What an evaluation found.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Documents of the set.
    pub documents: usize,
    /// Queries that were asked.
    pub queries: usize,
    /// Documents of each ranking that count.
    pub k: usize,
    /// Search by meaning alone.
    pub dense: Measured,
    /// Search by keyword alone.
    pub bm25: Measured,
    pub hybrid: Measured,
    /// Search by both, reranked. None without a reranker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reranked: Option<Measured>,
    /// The nDCG that a perfect reranker would reach over the 100 best notes of hybrid search.
    #[serde(default)]
    pub ceiling: f64,
    /// How well the relevance of hybrid search tells that nothing answers. None among too few documents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certainty: Option<Certainty>,
    /// Two-sided p-value of a paired randomisation test over nDCG: hybrid against dense.
    pub p_hybrid_dense: f64,
    /// Likewise, hybrid against BM25.
    pub p_hybrid_bm25: f64,
    /// Likewise, reranked against hybrid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_reranked_hybrid: Option<f64>,
}

/// One way to search, measured.
#[derive(Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The means over the queries.
    #[serde(flatten)]
    pub mean: Scores,
    /// The share of queries without any result.
    pub zero_results: f64,
    /// Of the quoted answers, the share that a result's chunk has whole. None without quotes.
    pub span_recall: Option<f64>,
    /// Likewise, that a result's context has whole.
    pub context_recall: Option<f64>,
    /// Median time of a search, without the embedding of the query.
    pub p50_ms: f64,
    /// The time that 99 of 100 searches stay below.
    pub p99_ms: f64,
    pub ndcg_by_query: BTreeMap<String, f64>,
}

/// Hybrid search now and in an earlier evaluation of the same set; reranked search, if both
/// evaluations had a reranker.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// `hybrid` or `reranked`.
    pub of: String,
    /// Mean nDCG before.
    pub ndcg_before: f64,
    /// Mean nDCG now.
    pub ndcg: f64,
    pub better: usize,
    /// Queries that got worse.
    pub worse: usize,
    /// Two-sided p-value of a paired randomisation test over nDCG.
    pub p: f64,
}

impl Measured {
    /// The two-sided p-value of the differences to another way, query by query.
    pub fn p_against(&self, other: &Self) -> f64 {
        p_value(&self.differences(other))
    }

    fn differences(&self, other: &Self) -> Vec<f64> {
        let other = other.ndcg_by_query.values();
        let pairs = self.ndcg_by_query.values().zip(other);
        pairs.map(|(a, b)| a - b).collect()
    }
}

impl Comparison {
    /// Compares two evaluations, or says why they cannot be compared.
    pub fn of(before: &Report, now: &Report) -> Result<Self, String> {
        if before.k != now.k {
            return Err(format!(
                "it measured the first {} documents, this one the first {}: use -k {}",
                before.k, now.k, before.k
            ));
        }
        let queries = |report: &Report| -> Vec<String> {
            report.hybrid.ndcg_by_query.keys().cloned().collect()
        };
        if queries(before) != queries(now) {
            return Err("it asked other queries: compare evaluations of the same set".into());
        }
        let (of, before, now) = match (&before.reranked, &now.reranked) {
            (Some(before), Some(now)) => ("reranked", before, now),
            _ => ("hybrid", &before.hybrid, &now.hybrid),
        };
        let differences = now.differences(before);
        Ok(Self {
            of: of.to_owned(),
            ndcg_before: before.mean.ndcg,
            ndcg: now.mean.ndcg,
            better: differences.iter().filter(|d| **d > 0.0).count(),
            worse: differences.iter().filter(|d| **d < 0.0).count(),
            p: p_value(&differences),
        })
    }

    /// Whether searches find less than before.
    pub fn is_worse(&self) -> bool {
        let drop = self.ndcg_before - self.ndcg;
        drop > MAX_DROP || drop > 0.0 && self.p < SIGNIFICANT
    }

    /// One line for people.
    pub fn line(&self) -> String {
        format!(
            "{} nDCG {:.3} before, {:.3} now: {} queries better, {} worse, p = {:.4}",
            self.of, self.ndcg_before, self.ndcg, self.better, self.worse, self.p
        )
    }
}

impl Report {
    /// A table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{} documents, {} queries, the first {} documents of each\n\
             {:<9}{:>8}{:>8}{:>8}{:>8}{:>11}{:>8}{:>9}{:>9}",
            self.documents,
            self.queries,
            self.k,
            "",
            "nDCG",
            "MRR",
            "MAP",
            "recall",
            "precision",
            "empty",
            "p50 ms",
            "p99 ms"
        );
        let has_spans = self.hybrid.span_recall.is_some();
        if has_spans {
            text += &format!("{:>8}{:>9}", "span", "context");
        }
        let ways = [
            ("dense", Some(&self.dense)),
            ("BM25", Some(&self.bm25)),
            ("hybrid", Some(&self.hybrid)),
            ("reranked", self.reranked.as_ref()),
        ];
        for (name, of) in ways.into_iter().filter_map(|(name, of)| Some((name, of?))) {
            let Scores {
                ndcg,
                mrr,
                map,
                recall,
                precision,
            } = of.mean;
            text += &format!(
                "\n{name:<9}{ndcg:>8.3}{mrr:>8.3}{map:>8.3}{recall:>8.3}{precision:>11.3}{:>8.3}{:>9.1}{:>9.1}",
                of.zero_results, of.p50_ms, of.p99_ms
            );
            if let (Some(span), Some(context)) = (of.span_recall, of.context_recall) {
                text += &format!("{span:>8.3}{context:>9.3}");
            }
        }
        text += &format!(
            "\nhybrid against dense p = {:.4}, against BM25 p = {:.4}",
            self.p_hybrid_dense, self.p_hybrid_bm25
        );
        if let Some(p) = self.p_reranked_hybrid {
            text += &format!(", reranked against hybrid p = {p:.4}");
        }
        text += " (paired randomisation over nDCG)";
        text += &format!(
            "\na perfect reranker of the 100 best would reach nDCG {:.3}",
            self.ceiling
        );
        if let Some(certainty) = &self.certainty {
            text += &format!("\n{}", certainty.line());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ndcg: &[f64]) -> Measured {
        let by_query = ndcg.iter().enumerate().map(|(i, n)| (format!("q{i}"), *n));
        Measured {
            mean: Scores {
                ndcg: ndcg.iter().sum::<f64>() / ndcg.len() as f64,
                ..Scores::default()
            },
            zero_results: 0.0,
            span_recall: None,
            context_recall: None,
            p50_ms: 1.0,
            p99_ms: 1.0,
            ndcg_by_query: by_query.collect(),
        }
    }

    fn report(hybrid: &[f64]) -> Report {
        Report {
            documents: 1,
            queries: hybrid.len(),
            k: 10,
            dense: measured(hybrid),
            bm25: measured(hybrid),
            hybrid: measured(hybrid),
            reranked: None,
            ceiling: 1.0,
            certainty: None,
            p_reranked_hybrid: None,
            p_hybrid_dense: 1.0,
            p_hybrid_bm25: 1.0,
        }
    }

    fn is_worse(before: &[f64], now: &[f64]) -> bool {
        Comparison::of(&report(before), &report(now)).is_ok_and(|c| c.is_worse())
    }

    #[test]
    fn the_gate_fails_on_a_large_or_a_significant_drop() {
        assert!(!is_worse(&[0.5; 40], &[0.5; 40]));
        assert!(!is_worse(&[0.5; 40], &[0.6; 40]));
        // Small, and in every query.
        assert!(is_worse(&[0.5; 40], &[0.49; 40]));
        // One query of few.
        assert!(is_worse(&[1.0, 1.0, 1.0], &[1.0, 1.0, 0.0]));
        // One query of many.
        let mut one = vec![0.5; 100];
        one[0] = 0.0;
        assert!(!is_worse(&[0.5; 100], &one));
    }

    #[test]
    fn other_queries_or_another_k_cannot_be_compared() {
        let (before, mut now) = (report(&[0.5; 3]), report(&[0.5; 4]));
        assert!(Comparison::of(&before, &now).is_err_and(|e| e.contains("other queries")));
        now.k = 5;
        assert!(Comparison::of(&before, &now).is_err_and(|e| e.contains("-k 10")));
    }
}
