//! Which of the due rows the next claim reads, while notes wait for vectors: the provider is unavailable, or it is
//! slow and all batches wait for it.
//!
//! Such notes stay due. If every claim began with the oldest of them, a deletion behind them would wait too, and each
//! claim would chunk them again. So the claims walk over the rows once, and then read only what is written behind
//! their last row. What needs no vector is done meanwhile, whatever lies in front of it.

use std::time::{Duration, Instant};

use crate::store::{Due, Position};

/// A transaction that was open for long commits rows in front of the position. So the walk
/// begins again after a rest: at least this long, and this many times as long as the walk took.
const REST: Duration = Duration::from_secs(5);
const REST_TIMES: u32 = 9;

/// One walk over the rows that are due.
#[derive(Debug)]
pub struct Walk {
    after: Option<Position>,
    began: Instant,
    begins_again: Option<Instant>,
    is_at_end: bool,
}

impl Walk {
    /// A walk that begins with the oldest row.
    pub fn new(now: Instant) -> Self {
        Self {
            after: None,
            began: now,
            begins_again: None,
            is_at_end: true,
        }
    }

    /// The rows of the next claim.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.begins_again.is_some_and(|at| at <= now) {
            *self = Self::new(now);
        }
        self.after.map_or(Due::All, Due::After)
    }

    /// A claim took rows up to `position`.
    pub fn took(&mut self, position: Position) {
        self.after = self.after.max(Some(position));
        self.is_at_end = false;
    }

    /// A claim found no more rows.
    pub fn ended(&mut self, now: Instant) {
        let rest = REST.max((now - self.began) * REST_TIMES);
        self.begins_again.get_or_insert(now + rest);
        self.is_at_end = true;
    }

    /// Whether the last claim found no more rows, or there was none.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(secs: i64) -> Position {
        Position {
            available_at: chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(secs),
            outbox_id: uuid::Uuid::nil(),
        }
    }

    #[test]
    fn each_row_is_taken_once_until_the_walk_begins_again() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut walk = Walk::new(start);
        assert_eq!(walk.due(at(0)), Due::All);
        walk.took(position(10));
        // Concurrent claims may end in any order.
        walk.took(position(7));
        assert_eq!(walk.due(at(1)), Due::After(position(10)));
        assert!(!walk.is_at_end());
        walk.ended(at(2));
        assert!(walk.is_at_end());
        assert_eq!(walk.due(at(3)), Due::After(position(10)));
        walk.took(position(11));
        walk.ended(at(4));
        assert_eq!(
            walk.due(at(19)),
            Due::After(position(11)),
            "it took 2 seconds"
        );
        assert_eq!(walk.due(at(20)), Due::All);
        assert_eq!(walk.due(at(21)), Due::All, "and continues from there");
    }
}
