//! Texts whose requests failed although the provider works, as far as ELF knows. One of them may
//! make the provider fail each time, so they are sent after all others, and in small requests.

use std::time::Duration;

use moka::sync::Cache;

use crate::embed::Purpose;
use crate::note::TextHash;

/// FailingTexts that are remembered at most, and for how long after their last failure. A text that
/// is forgotten is found again.
const MAX_REMEMBERED: u64 = 10_000;
const REMEMBERED: Duration = Duration::from_secs(3600);

/// Requests with one text alone that fail before the text is at fault, where the provider says of
/// itself that it is unavailable. It must have embedded something else before each of them.
pub const MOST_FAILURES_ALONE: u32 = 5;

/// How often the provider has returned vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    /// Requests, probes included.
    pub all: u64,
    /// Requests with texts of notes and queries.
    pub texts: u64,
}

/// What happened to a text so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The most texts that one request with it may hold.
    pub most: usize,
    /// Whether the provider failed on a request with it, perhaps by chance.
    pub failed: bool,
    /// The answers at its last failure.
    pub failed_at: Option<Answers>,
    /// The answers before the first request with it that timed out.
    pub timed_out: Option<u64>,
    /// Requests with it that failed in a row, each after other answers; and those with it alone.
    pub failures: u32,
    pub failures_alone: u32,
    /// Whether it may hang: a request with it took longer than the pace explains.
    pub hangs: bool,
    /// Whether it was blamed for that.
    pub at_fault: bool,
}

impl Default for History {
    /// A text that was never sent.
    fn default() -> Self {
        Self {
            most: usize::MAX,
            failed: false,
            failed_at: None,
            timed_out: None,
            failures: 0,
            failures_alone: 0,
            hangs: false,
            at_fault: false,
        }
    }
}

impl History {
    /// After a request with `texts` texts failed for a reason that may be one of them. `now` are
    /// the answers so far, and `others` tells whether the provider embedded anything else between
    /// two failures.
    pub fn after_failure(
        mut self,
        texts: usize,
        now: Answers,
        others: impl Fn(Answers, Answers) -> bool,
    ) -> Self {
        if self.failed_at.is_none_or(|before| others(before, now)) {
            self.failures += 1;
            self.failures_alone += u32::from(texts == 1);
        }
        self.failed_at = Some(now);
        self
    }

    /// Whether it goes apart, so that no other text waits for it and the pace learns nothing from it:
    /// it hangs or failed again, and the provider has embedded other texts since. After an outage, all
    /// texts have failed once.
    pub fn goes_apart(&self, now: Answers) -> bool {
        let hangs = self.hangs && self.timed_out.is_some_and(|since| now.texts > since);
        let failed_again =
            self.failures > 1 && self.failed_at.is_some_and(|at| now.texts > at.texts);
        hangs || failed_again
    }

    /// Whether a text with this history is sent before one with `other`: it never failed, or its last
    /// failure is longer ago. So each of several failing texts has its turn, although one of them ends it.
    pub fn is_sent_before(&self, other: &Self) -> bool {
        let last_failure = |history: &Self| history.failed_at.map(|at| at.all);
        last_failure(self) < last_failure(other)
    }
}

/// These texts, by what is sent.
pub struct FailingTexts(Cache<(Purpose, TextHash), History>);

impl FailingTexts {
    pub fn new() -> Self {
        let cache = Cache::builder().max_capacity(MAX_REMEMBERED);
        Self(cache.time_to_live(REMEMBERED).build())
    }

    /// What happened to a text before this call.
    pub fn history(&self, purpose: Purpose, hash: TextHash) -> History {
        self.0.get(&(purpose, hash)).unwrap_or_default()
    }

    pub fn remember(&self, purpose: Purpose, hash: TextHash, history: History) {
        self.0.insert((purpose, hash), history);
    }

    /// The provider has embedded it.
    pub fn forget(&self, purpose: Purpose, hash: TextHash) {
        self.0.invalidate(&(purpose, hash));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_only_where_something_else_was_embedded_between() {
        let answers = |all| Answers { all, texts: 0 };
        let others = |before: Answers, now: Answers| now.all > before.all;
        let fails =
            |history: History, texts, all| history.after_failure(texts, answers(all), others);
        let first = fails(History::default(), 1, 5);
        assert_eq!(first.failures_alone, 1);
        assert_eq!(fails(first, 1, 5).failures_alone, 1, "nothing else");
        assert_eq!(fails(first, 1, 6).failures_alone, 2);
        assert_eq!(fails(first, 2, 6).failures_alone, 1, "not alone");
    }

    #[test]
    fn what_fails_again_while_others_do_not_goes_apart() {
        let answers = |texts| Answers { all: texts, texts };
        let others = |before: Answers, now: Answers| now.all > before.all;
        let once = History::default().after_failure(8, answers(3), others);
        assert!(!once.goes_apart(answers(9)), "it may have been an outage");
        let twice = once.after_failure(4, answers(5), others);
        assert!(!twice.goes_apart(answers(5)), "nothing else was embedded");
        assert!(twice.goes_apart(answers(6)));
        let hangs = History {
            hangs: true,
            timed_out: Some(3),
            ..once
        };
        assert!(!hangs.goes_apart(answers(3)), "nothing else was embedded");
        assert!(hangs.goes_apart(answers(4)));
        let again = hangs.after_failure(1, answers(4), others);
        assert!(again.goes_apart(answers(4)), "it is known by then");
    }

    #[test]
    fn the_text_that_failed_last_is_sent_last() {
        let failed = |all| History {
            failed_at: Some(Answers { all, texts: 0 }),
            ..History::default()
        };
        let never = History::default();
        for (first, second) in [(never, failed(0)), (failed(0), failed(1))] {
            assert!(first.is_sent_before(&second) && !second.is_sent_before(&first));
        }
    }
}
