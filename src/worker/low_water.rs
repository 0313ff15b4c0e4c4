//! The position up to which the outbox rows are known to be leased, or were deleted.
//!
//! A claim of the oldest rows passes over those that are leased, and over the entries that deleted
//! rows have left in the index. With an old snapshot that a reader holds, or with many workers, they
//! are many. So a claim begins where the one before it ended, and all rows are walked over now and
//! then: a note may have been released, or a long transaction may have committed an old row. Where
//! there is no backlog and the walk is short, every claim is a walk.

use std::time::{Duration, Instant};

use crate::store::{Due, Position};

/// All rows are walked over at least so long after the last time.
const REST: Duration = Duration::from_secs(1);

/// And so many times as long as it took, if it took longer than [`SHORT_WALK`], but no longer than
/// [`LONGEST_REST`]: a Postgres that was slow once must not keep released notes waiting.
const REST_TIMES: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);

/// A walk that is worth no rest.
const SHORT_WALK: Duration = Duration::from_millis(50);

/// Where the next claim of the oldest rows begins.
#[derive(Debug, Default)]
pub struct LowWater {
    mark: Option<Position>,
    /// Whether there are more rows behind the mark.
    has_more: bool,
    /// When the last walk over all rows ended, and how long the next one is to wait.
    rests: Option<(Instant, Duration)>,
}

impl LowWater {
    /// The rows of the next claim.
    pub fn due(&self, now: Instant) -> Due {
        let is_soon = |(walked, rest): (Instant, Duration)| {
            let rest = if self.has_more { rest.max(REST) } else { rest };
            now < walked + rest
        };
        match self.mark {
            Some(mark) if self.rests.is_some_and(is_soon) => Due::After(mark),
            _ => Due::All,
        }
    }

    /// A claim of `due` began at `began` and has ended at `now`; `upto` is the last row that it
    /// took. With `has_more` there may be more.
    pub fn claimed(
        &mut self,
        due: Due,
        upto: Option<Position>,
        has_more: bool,
        began: Instant,
        now: Instant,
    ) {
        match due {
            Due::All => {
                let took = now - began;
                let rest = match took > SHORT_WALK {
                    true => LONGEST_REST.min(took * REST_TIMES),
                    false => Duration::ZERO,
                };
                self.rests = Some((now, rest));
                self.mark = upto.or(self.mark);
            }
            Due::After(_) => self.mark = self.mark.max(upto),
            // They are the newest rows, and do not tell about those before.
            Due::Within(_) => return,
        }
        self.has_more = has_more;
    }

    /// Whether the worker knows of rows that it has not claimed.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// How long to wait before all rows may be walked over when there is none behind the mark.
    pub fn rest(&self, now: Instant) -> Duration {
        let until = self.rests.map_or(now, |(walked, rest)| walked + rest);
        until.saturating_duration_since(now)
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
    fn with_a_backlog_a_claim_begins_where_the_one_before_it_ended() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut rows = LowWater::default();
        assert_eq!(rows.due(start), Due::All);
        rows.claimed(Due::All, Some(position(10)), true, at(0), at(5));
        assert_eq!(rows.due(at(5)), Due::After(position(10)));
        rows.claimed(rows.due(at(5)), Some(position(11)), true, at(5), at(6));
        rows.claimed(Due::Within(REST), Some(position(99)), false, at(6), at(7));
        assert_eq!(rows.due(at(1004)), Due::After(position(11)));
        assert_eq!(rows.due(at(1005)), Due::All, "a second after the walk");
        rows.claimed(Due::All, Some(position(3)), true, at(1005), at(1006));
        assert_eq!(
            rows.due(at(1007)),
            Due::After(position(3)),
            "a released one"
        );
    }

    #[test]
    fn without_a_backlog_every_claim_is_a_walk() {
        let start = Instant::now();
        let mut rows = LowWater::default();
        rows.claimed(Due::All, Some(position(10)), false, start, start);
        assert_eq!(rows.due(start), Due::All);
        assert!(!rows.has_more());
    }

    #[test]
    fn a_long_walk_rests_nine_times_as_long() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut rows = LowWater::default();
        assert_eq!(rows.rest(start), Duration::ZERO);
        rows.claimed(Due::All, Some(position(10)), false, at(0), at(1));
        assert_eq!(rows.due(at(2)), Due::After(position(10)));
        assert_eq!(rows.rest(at(2)), Duration::from_secs(1));
        assert!(rows.rest(at(3)).is_zero(), "but no longer than two seconds");
        assert_eq!(rows.due(at(3)), Due::All);
        rows.claimed(Due::All, None, false, at(10), at(10));
        assert_eq!(rows.due(at(10)), Due::All, "a short walk needs no rest");
        rows.claimed(Due::All, None, false, at(10), at(110));
        assert!(
            rows.rest(at(120)).is_zero(),
            "nor does a long one rest for minutes"
        );
    }
}
