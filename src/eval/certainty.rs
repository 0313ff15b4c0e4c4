//! Whether the relevance of the best hits tells questions that something answers from those that nothing
//! answers.

use serde::{Deserialize, Serialize};

use crate::search::WEAK;

/// What the relevance told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Certainty {
    /// The share of the answered questions whose hits were all weak.
    pub lost: f64,
    /// Questions that nothing answers.
    pub unanswered: usize,
    /// The share of them whose hits were all weak. None without such questions.
    pub called: Option<f64>,
    /// The chance that an answered question has a better hit than one that nothing answers: the area under the
    /// ROC curve.
    pub auroc: Option<f64>,
}

impl Certainty {
    /// Of the relevance of the best hit of each question.
    pub fn of(answered: &[f32], unanswered: &[f32]) -> Self {
        let weak = |all: &[f32]| {
            let weak = all.iter().filter(|relevance| **relevance < WEAK).count();
            (!all.is_empty()).then(|| weak as f64 / all.len() as f64)
        };
        Self {
            lost: weak(answered).unwrap_or_default(),
            unanswered: unanswered.len(),
            called: weak(unanswered),
            auroc: auroc(answered, unanswered),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let percent = |share: f64| format!("{:.1}%", share * 100.0);
        let mut text = format!("nothing near: {} of the queries", percent(self.lost));
        if let (Some(called), Some(auroc)) = (self.called, self.auroc) {
            let unanswered = self.unanswered;
            let called = percent(called);
            text += &format!(", {called} of {unanswered} that nothing answers, AUROC {auroc:.3}");
        }
        text
    }
}

fn auroc(answered: &[f32], unanswered: &[f32]) -> Option<f64> {
    let pairs = answered.len() * unanswered.len();
    let wins = |a: &f32| -> f64 {
        let win = |b: &f32| f64::from(a > b) + 0.5 * f64::from(a == b);
        unanswered.iter().map(win).sum()
    };
    let wins: f64 = answered.iter().map(wins).sum();
    (pairs > 0).then(|| wins / pairs as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_area_are_those_of_the_definition() {
        let certainty = Certainty::of(&[0.9, 0.2, 0.8, 0.5], &[0.1, 0.5]);
        assert_eq!(
            certainty,
            Certainty {
                lost: 0.25,
                unanswered: 2,
                called: Some(0.5),
                auroc: Some(6.5 / 8.0),
            }
        );
        let alone = Certainty::of(&[0.9], &[]);
        assert_eq!((alone.lost, alone.called, alone.auroc), (0.0, None, None));
        assert_eq!(alone.line(), "nothing near: 0.0% of the queries");
    }
}
