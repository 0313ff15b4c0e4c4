//! Which of the due rows the next claim reads, while the provider works.
//!
//! A claim reads the oldest rows. With a backlog, each second claim reads those that became due since the last such
//! claim instead. So a note that a user has just written does not wait behind hours of work, and the backlog has at
//! least half of the claims.
//!
//! A claim of the oldest rows passes over those that are leased, and over the entries that deleted rows have left in
//! the index. With an old snapshot that a reader holds, or with many workers, they are many. So with a backlog a claim
//! begins at the mark, behind the last row that an earlier one took. Now and then a claim reads all rows: a note may
//! have been released, or a long transaction may have committed an old row.

use std::time::{Duration, Instant};

use crate::store::{Due, Position};

/// A row is due since its transaction began, but claims see it when that commits. So the recent rows reach back this
/// much further. Rows of longer transactions wait behind the backlog.
const LONGEST_COMMIT: Duration = Duration::from_secs(1);

/// With a backlog, at least so much time passes between two claims of all rows.
const REST: Duration = Duration::from_secs(1);

/// If a claim of all rows took longer than [`SHORT`], the next such claim waits nine times as long, at
/// most [`LONGEST_REST`]. A Postgres that was slow once must not keep released notes waiting.
const SHORT: Duration = Duration::from_millis(50);
const REST_TIMES: u32 = 9;
const LONGEST_REST: Duration = Duration::from_secs(2);

/// The turns of the claims of one worker.
#[derive(Debug)]
pub struct Turns {
    recent_is_next: bool,
    /// When the last claim began that took all recent rows, or all rows.
    recent_since: Instant,
    mark: Option<Position>,
    /// Whether there are more rows behind the mark.
    has_more: bool,
    /// When the last claim of all rows ended, and the rest that it needs.
    read_all: Option<(Instant, Duration)>,
    /// Whether the last claim left out the rows in front of the mark.
    left_out: bool,
}

impl Turns {
    /// Before the first claim.
    pub fn new(now: Instant) -> Self {
        Self {
            recent_is_next: false,
            recent_since: now,
            mark: None,
            has_more: false,
            read_all: None,
            left_out: false,
        }
    }

    /// The rows of a claim that begins at `now`.
    pub fn next(&mut self, now: Instant) -> Due {
        if !self.recent_is_next {
            self.recent_is_next = true;
            return self.oldest(now);
        }
        self.recent_is_next = false;
        Due::Within(now - self.recent_since + LONGEST_COMMIT)
    }

    /// The rows to look at after a claim of `due` found none. With `must_know` all of them, even if that takes long
    /// and has been done just now.
    pub fn wider(&self, due: Due, must_know: bool, now: Instant) -> Option<Due> {
        match due {
            Due::Within(_) => Some(self.oldest(now)),
            Due::After(_) if must_know || self.rest(now).is_zero() => Some(Due::All),
            Due::After(_) | Due::All => None,
        }
    }

    /// A claim of `due` began at `began` and has ended at `now`. `upto` is the last row that it took; with
    /// `has_more` there may be more.
    pub fn claimed(
        &mut self,
        due: Due,
        upto: Option<Position>,
        has_more: bool,
        began: Instant,
        now: Instant,
    ) {
        self.left_out = matches!(due, Due::After(_));
        match due {
            Due::All => {
                let took = now - began;
                let rest = match took > SHORT {
                    true => LONGEST_REST.min(took * REST_TIMES),
                    false => Duration::ZERO,
                };
                self.read_all = Some((now, rest));
                self.mark = upto.or(self.mark);
            }
            Due::After(_) => self.mark = self.mark.max(upto),
            // They do not tell about the rows before them.
            Due::Within(_) => {
                if !has_more {
                    self.recent_since = began;
                }
                return;
            }
        }
        self.has_more = has_more;
        if !has_more {
            self.recent_is_next = false;
            self.recent_since = began;
        }
    }

    /// Whether the worker knows of rows that it has not claimed.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// How long a worker that found nothing waits at most, because its last claim left out rows.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        self.left_out.then(|| self.rest(now))
    }

    fn oldest(&self, now: Instant) -> Due {
        let is_soon = |(read_at, rest): (Instant, Duration)| {
            let rest = if self.has_more { rest.max(REST) } else { rest };
            now < read_at + rest
        };
        match self.mark {
            Some(mark) if self.read_all.is_some_and(is_soon) => Due::After(mark),
            _ => Due::All,
        }
    }

    fn rest(&self, now: Instant) -> Duration {
        let until = self.read_all.map_or(now, |(read_at, rest)| read_at + rest);
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

    fn within(millis: u64) -> Due {
        Due::Within(LONGEST_COMMIT + Duration::from_millis(millis))
    }

    #[test]
    fn with_a_backlog_the_oldest_rows_and_the_recent_ones_take_turns() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut turns = Turns::new(start);
        assert_eq!(turns.next(at(0)), Due::All);
        turns.claimed(Due::All, Some(position(10)), true, at(0), at(5));
        assert_eq!(turns.next(at(300)), within(300));
        turns.claimed(within(300), Some(position(99)), false, at(300), at(301));
        assert_eq!(turns.next(at(310)), Due::After(position(10)));
        turns.claimed(
            Due::After(position(10)),
            Some(position(11)),
            true,
            at(310),
            at(311),
        );
        assert_eq!(turns.next(at(900)), within(600), "no moment is left out");
        turns.claimed(within(600), Some(position(99)), true, at(900), at(901));
        turns.next(at(910));
        assert_eq!(
            turns.next(at(920)),
            within(620),
            "nor what one claim cannot hold"
        );
        assert_eq!(
            turns.next(at(1004)),
            Due::After(position(11)),
            "the recent rows have not moved the mark"
        );
    }

    #[test]
    fn a_second_after_the_last_time_a_claim_reads_all_rows() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut turns = Turns::new(start);
        turns.claimed(Due::All, Some(position(10)), true, at(0), at(5));
        assert_eq!(turns.oldest(at(1004)), Due::After(position(10)));
        assert_eq!(turns.oldest(at(1005)), Due::All);
        turns.claimed(Due::All, Some(position(3)), true, at(1005), at(1006));
        assert_eq!(
            turns.oldest(at(1007)),
            Due::After(position(3)),
            "one that was released"
        );
    }

    #[test]
    fn without_a_backlog_every_claim_reads_all_rows() {
        let start = Instant::now();
        let mut turns = Turns::new(start);
        for _ in 0..3 {
            assert_eq!(turns.next(start), Due::All);
            turns.claimed(Due::All, Some(position(10)), false, start, start);
        }
        assert!(!turns.has_more());
    }

    #[test]
    fn a_claim_that_took_long_is_followed_by_a_rest() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut turns = Turns::new(start);
        assert_eq!(turns.wait(start), None);
        turns.claimed(Due::All, Some(position(10)), false, at(0), at(1));
        let after = Due::After(position(10));
        assert_eq!(turns.next(at(2)), after);
        turns.claimed(after, None, false, at(2), at(2));
        assert_eq!(turns.wait(at(2)), Some(Duration::from_secs(1)));
        assert_eq!(turns.wider(after, false, at(2)), None);
        assert_eq!(turns.wider(after, true, at(2)), Some(Due::All));
        assert_eq!(turns.wider(after, false, at(3)), Some(Due::All));
        turns.claimed(Due::All, None, false, at(10), at(10));
        assert_eq!(
            turns.next(at(10)),
            Due::All,
            "no rest after one that was short"
        );
        turns.claimed(Due::All, None, false, at(10), at(110));
        assert!(
            turns.rest(at(112)).is_zero(),
            "nor one of minutes after one of minutes"
        );
    }
}
