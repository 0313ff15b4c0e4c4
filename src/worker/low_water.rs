//! The position up to which the outbox rows are known to be leased, or were deleted.
//!
//! A claim of the oldest rows passes over those that are leased, and over the entries that deleted
//! rows have left in the index. With an old snapshot that a reader holds, or with many workers, they
//! are many. So a claim begins where the one before it ended, and all rows are walked over now and
//! then: a note may have been released, or a long transaction may have committed an old row.

use std::time::{Duration, Instant};

use crate::store::{Due, Position};

/// All rows are walked over at least so long after the last time.
const REST: Duration = Duration::from_secs(1);

/// And so many times as long as it took, if it took longer than [`SHORT_WALK`].
const REST_TIMES: u32 = 9;

/// A walk that is worth no rest.
const SHORT_WALK: Duration = Duration::from_millis(50);

/// Where the next claim of the oldest rows begins.
#[derive(Debug, Default)]
pub struct LowWater {
    mark: Option<Position>,
    /// The last walk over all rows.
    walk: Option<Walked>,
}

#[derive(Debug, Clone, Copy)]
struct Walked {
    began: Instant,
    took: Duration,
}

impl LowWater {
    /// The rows of the next claim.
    pub fn due(&self, now: Instant) -> Due {
        match (self.mark, self.walk) {
            (Some(mark), Some(walk)) if now < walk.began + walk.took + REST.max(walk.rest()) => {
                Due::After(mark)
            }
            _ => Due::All,
        }
    }

    /// A claim of `due` began at `began` and has ended at `now`; `upto` is the last row that it
    /// took.
    pub fn claimed(&mut self, due: Due, upto: Option<Position>, began: Instant, now: Instant) {
        match due {
            Due::All => {
                self.walk = Some(Walked {
                    began,
                    took: now - began,
                });
                self.mark = upto.or(self.mark);
            }
            Due::After(_) => self.mark = self.mark.max(upto),
            // They are the newest rows, and do not tell about those before.
            Due::Within(_) => {}
        }
    }

    /// Whether all rows may be walked over when there is none behind the mark.
    pub fn may_walk(&self, now: Instant) -> bool {
        self.walk
            .is_none_or(|walk| now >= walk.began + walk.took + walk.rest())
    }
}

impl Walked {
    fn rest(self) -> Duration {
        match self.took > SHORT_WALK {
            true => self.took * REST_TIMES,
            false => Duration::ZERO,
        }
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
    fn a_claim_begins_where_the_one_before_it_ended() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut rows = LowWater::default();
        assert_eq!(rows.due(start), Due::All);
        rows.claimed(Due::All, Some(position(10)), at(0), at(5));
        assert_eq!(rows.due(at(5)), Due::After(position(10)));
        rows.claimed(rows.due(at(5)), Some(position(11)), at(5), at(6));
        rows.claimed(Due::Within(REST), Some(position(99)), at(6), at(7));
        assert_eq!(rows.due(at(1004)), Due::After(position(11)));
        assert_eq!(rows.due(at(1005)), Due::All, "a second after the walk");
        rows.claimed(Due::All, Some(position(3)), at(1005), at(1006));
        assert_eq!(
            rows.due(at(1007)),
            Due::After(position(3)),
            "a released one"
        );
    }

    #[test]
    fn a_long_walk_rests_nine_times_as_long() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut rows = LowWater::default();
        assert!(rows.may_walk(start));
        rows.claimed(Due::All, Some(position(10)), at(0), at(6));
        assert_eq!(rows.due(at(59)), Due::After(position(10)));
        assert!(!rows.may_walk(at(59)));
        assert!(rows.may_walk(at(60)));
        assert_eq!(rows.due(at(60)), Due::All);
        rows.claimed(Due::All, None, at(60), at(60));
        assert_eq!(rows.due(at(60)), Due::After(position(10)));
        assert!(rows.may_walk(at(60)), "a short walk needs no rest");
    }
}
