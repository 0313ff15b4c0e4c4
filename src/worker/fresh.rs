//! Claims of notes that an application has just written, between those of a backlog.
//!
//! Claims take the oldest rows first. Behind a backlog of hours, a note that a user has just
//! written would wait for hours. So each second claim begins with the rows that became due since
//! the last such claim. If there are none, it takes the oldest ones too. The backlog has at least
//! half of the claims.

use std::time::{Duration, Instant};

use crate::store::Due;

/// A row is due since its transaction began, and is seen when that commits. Later commits wait
/// behind the backlog.
const LONGEST_COMMIT: Duration = Duration::from_secs(1);

/// Whose turn the next claim is.
#[derive(Debug)]
pub struct Fresh {
    last: Instant,
    is_next: bool,
}

impl Fresh {
    /// The next claim is of the oldest rows.
    pub fn new(now: Instant) -> Self {
        Self {
            last: now,
            is_next: false,
        }
    }

    /// The rows of the next claim.
    pub fn due(&self, now: Instant) -> Due {
        match self.is_next {
            true => Due::Within(now - self.last + LONGEST_COMMIT),
            false => Due::All,
        }
    }

    /// A claim that began at `now` took all rows: there is no backlog.
    pub fn caught_up(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// A claim of these rows began at `now`.
    pub fn claimed(&mut self, due: Due, now: Instant) {
        self.is_next = due == Due::All;
        if !self.is_next {
            self.last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_second_claim_is_of_what_was_written_since_the_last_such_claim() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut fresh = Fresh::new(start);
        assert_eq!(fresh.due(at(0)), Due::All);
        fresh.claimed(Due::All, at(0));
        let within = Due::Within(LONGEST_COMMIT + Duration::from_millis(300));
        assert_eq!(fresh.due(at(300)), within);
        fresh.claimed(within, at(300));
        assert_eq!(fresh.due(at(9000)), Due::All);
        fresh.claimed(Due::All, at(9000));
        let within = Due::Within(LONGEST_COMMIT + Duration::from_millis(8800));
        assert_eq!(fresh.due(at(9100)), within, "no moment is left out");
        fresh.caught_up(at(9500));
        assert_eq!(fresh.due(at(9600)), Due::All);
    }
}
