//! Which of the due rows the next claim reads, while notes wait for vectors: the provider is unavailable, or it is
//! slow and all batches wait for it.
//!
//! Such notes stay due. If every claim began with the oldest of them, a deletion behind them would wait too, and each
//! claim would chunk them again. So the claims walk over the rows once, and then read only what is written behind
//! their last row. What needs no vector is done meanwhile, whatever lies in front of it.
//!
//! A second walk takes turns with that one, over the recent rows alone. So a long backlog does not delay what was
//! written just now. The first walk passes over a row while a batch holds its note; the second one finds it before the
//! first begins again.

use std::time::{Duration, Instant};

use crate::store::{Due, Position};

/// A transaction that was open for long commits rows in front of the position. So the walk over all rows
/// begins again after a rest: at least this long, and this many times as long as the walk took.
const REST: Duration = Duration::from_secs(5);
const REST_TIMES: u32 = 9;

/// The recent rows reach back so much further than to the last walk over them: a transaction may have been open, and
/// a batch may have held a note, for so long.
const REACH: Duration = Duration::from_secs(5);

/// And the walk over them begins again so long after it has ended.
const RECENT_REST: Duration = Duration::from_secs(1);

/// Two walks over the due rows, in turns.
#[derive(Debug)]
pub struct Walks {
    all: Walk,
    recent: Walk,
    /// When the walk before the present one over the recent rows began.
    recent_since: Instant,
    /// Whether the last claim was of the recent rows.
    is_recent: bool,
    is_at_end: bool,
}

impl Walks {
    /// Walks that have not begun.
    pub fn new(now: Instant) -> Self {
        Self {
            all: Walk::new(now),
            recent: Walk::new(now),
            recent_since: now,
            is_recent: true,
            is_at_end: true,
        }
    }

    /// The rows of the next claim.
    pub fn next(&mut self, now: Instant) -> Due {
        self.is_recent = !self.is_recent;
        self.due(now)
    }

    /// The rows to look at after a claim found none.
    pub fn wider(&mut self, now: Instant) -> Option<Due> {
        self.ended(now);
        let other = self.is_recent.then_some(false)?;
        self.is_recent = other;
        Some(self.due(now))
    }

    /// A claim took rows up to `position`.
    pub fn took(&mut self, position: Position) {
        self.is_at_end = false;
        match self.is_recent {
            true => self.recent.took(position),
            false => self.all.took(position),
        }
    }

    /// Whether the last claim found no row, or there was no claim yet.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    fn due(&mut self, now: Instant) -> Due {
        if !self.is_recent {
            self.all.begin_again_if_due(now);
            return self.all.after.map_or(Due::All, Due::After);
        }
        let before = self.recent.began;
        if self.recent.begin_again_if_due(now) {
            self.recent_since = before;
        }
        let reach = now - self.recent_since + REACH;
        self.recent.after.map_or(Due::Within(reach), Due::After)
    }

    fn ended(&mut self, now: Instant) {
        self.is_at_end = true;
        match self.is_recent {
            true => self.recent.ended(now, RECENT_REST),
            false => {
                let rest = REST.max((now - self.all.began) * REST_TIMES);
                self.all.ended(now, rest);
            }
        }
    }
}

/// One walk over rows.
#[derive(Debug)]
struct Walk {
    after: Option<Position>,
    began: Instant,
    begins_again: Option<Instant>,
}

impl Walk {
    fn new(now: Instant) -> Self {
        Self {
            after: None,
            began: now,
            begins_again: None,
        }
    }

    fn begin_again_if_due(&mut self, now: Instant) -> bool {
        let is_due = self.begins_again.is_some_and(|at| at <= now);
        if is_due {
            *self = Self::new(now);
        }
        is_due
    }

    fn took(&mut self, position: Position) {
        self.after = self.after.max(Some(position));
    }

    fn ended(&mut self, now: Instant, rest: Duration) {
        self.begins_again.get_or_insert(now + rest);
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

    fn within(secs: u64) -> Due {
        Due::Within(REACH + Duration::from_secs(secs))
    }

    #[test]
    fn each_row_is_taken_once_until_the_walk_begins_again() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut walks = Walks::new(start);
        assert_eq!(walks.next(at(0)), Due::All);
        walks.took(position(10));
        // Concurrent claims may end in any order.
        walks.took(position(7));
        assert_eq!(walks.next(at(0)), within(0));
        assert_eq!(walks.wider(at(1)), Some(Due::After(position(10))));
        assert!(walks.is_at_end());
        assert_eq!(walks.wider(at(2)), None);
        walks.is_recent = true;
        assert_eq!(walks.next(at(3)), Due::After(position(10)));
        walks.took(position(11));
        assert!(!walks.is_at_end());
        walks.is_recent = true;
        assert_eq!(
            walks.next(at(19)),
            Due::After(position(11)),
            "it took 2 seconds"
        );
        walks.is_recent = true;
        assert_eq!(walks.next(at(20)), Due::All);
        walks.is_recent = true;
        assert_eq!(walks.next(at(21)), Due::All, "and continues from there");
    }

    #[test]
    fn the_recent_rows_have_each_second_claim() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut walks = Walks::new(start);
        assert_eq!(walks.next(at(0)), Due::All);
        walks.took(position(10));
        assert_eq!(walks.next(at(1)), within(1));
        walks.took(position(90));
        assert_eq!(walks.next(at(2)), Due::After(position(10)));
        walks.took(position(11));
        assert_eq!(walks.next(at(3)), Due::After(position(90)));
        assert_eq!(walks.wider(at(3)), Some(Due::After(position(11))));
        walks.took(position(12));
        assert_eq!(walks.next(at(7)), within(7), "since the walk before began");
        walks.wider(at(7));
        assert_eq!(walks.next(at(9)), within(2));
    }
}
