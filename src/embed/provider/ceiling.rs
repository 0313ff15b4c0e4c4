//! How much one request may hold by what the provider refused. Its limits are in no setting, and
//! servers word them differently or not at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a limit holds. Then ELF tries once whether the provider takes more: it may have been
/// overloaded, or have other settings now.
const LEARNED_FOR: Duration = Duration::from_secs(600);

/// A limit that ELF learned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Learned {
    /// Texts in a request.
    Texts(usize),
    /// Tokens in a request.
    Tokens(usize),
    /// Tokens and texts together, as [`super::pace`] weighs them: the provider gave no number.
    Weight(usize),
}

/// The limits learned so far.
#[derive(Debug, Clone, Copy)]
pub struct Ceiling {
    pub texts: usize,
    pub tokens: usize,
    pub weight: usize,
    until: Option<Instant>,
}

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            texts: usize::MAX,
            tokens: usize::MAX,
            weight: usize::MAX,
            until: None,
        }
    }
}

impl Ceiling {
    /// Lowers a limit. Returns whether that is news.
    pub fn learn(&mut self, learned: Learned, now: Instant) -> bool {
        *self = self.at(now);
        let (limit, most) = match learned {
            Learned::Texts(most) => (&mut self.texts, most),
            Learned::Tokens(most) => (&mut self.tokens, most),
            Learned::Weight(most) => (&mut self.weight, most),
        };
        let is_news = most < *limit;
        *limit = most.max(1).min(*limit);
        if is_news {
            self.until = Some(now + LEARNED_FOR);
        }
        is_news
    }

    /// The limits that hold now.
    pub fn at(self, now: Instant) -> Self {
        match self.until {
            Some(until) if until <= now => Self::default(),
            _ => self,
        }
    }
}

/// A refused request whose texts are sent again in smaller ones. If the provider takes all of
/// them, no text was at fault: the request was too large.
#[derive(Debug)]
pub struct Split {
    /// Texts that have no vector yet.
    left: AtomicUsize,
    /// The largest request that the provider took, by its weight.
    taken: AtomicUsize,
}

impl Split {
    /// A request with `texts` texts was refused.
    pub fn of(texts: usize) -> Self {
        Self {
            left: AtomicUsize::new(texts),
            taken: AtomicUsize::new(0),
        }
    }

    /// The provider took `texts` of them in a request of `weight`. Returns what a request may
    /// weigh, after the last of them.
    pub fn took(&self, texts: usize, weight: usize) -> Option<usize> {
        let taken = self.taken.fetch_max(weight, Ordering::Relaxed).max(weight);
        let left = self.left.fetch_sub(texts, Ordering::Relaxed) - texts;
        (left == 0).then_some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learned_limit_holds_for_a_while() {
        let now = Instant::now();
        let mut ceiling = Ceiling::default();
        assert!(ceiling.learn(Learned::Texts(32), now));
        assert!(!ceiling.learn(Learned::Texts(64), now));
        assert!(ceiling.learn(Learned::Weight(0), now));
        assert_eq!((ceiling.texts, ceiling.weight), (32, 1));
        assert_eq!(ceiling.at(now + LEARNED_FOR).texts, usize::MAX);
    }

    #[test]
    fn a_request_was_too_large_if_all_of_its_parts_are_taken() {
        let split = Split::of(10);
        assert_eq!(split.took(5, 70), None);
        assert_eq!(split.took(3, 30), None);
        assert_eq!(split.took(2, 20), Some(70));
    }
}
