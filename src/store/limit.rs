//! How long Postgres may take to answer.

use std::time::Duration;

/// How long a statement waits for a lock of another session. Shorter than a third of the default lease, so
/// that a worker behind a lock renews its leases in between.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// How much longer ELF waits than Postgres: the answer that the statement timed out has to arrive.
const ANSWER: Duration = Duration::from_secs(2);

/// The longest time that an operation waits for Postgres. Postgres ends the statement then, and says so. A
/// server whose machine died says nothing, and the driver has no keepalive that would notice
/// (<https://github.com/launchbadge/sqlx/issues/3540>), so ELF gives up a moment later.
#[derive(Debug, Clone, Copy)]
pub(super) enum Limit {
    /// One statement that finds rows by their keys: two minutes.
    Statement,
    /// The statements of one transaction, or of one page: six minutes.
    Batch,
    /// A statement that reads or writes a large part of a table: half an hour.
    Upkeep,
    /// A statement that reads or writes a row for every note: eight hours.
    EveryNote,
}

impl Limit {
    /// `statement` is the limit of one statement; tests have a shorter one.
    pub(super) fn of(self, statement: Duration) -> Duration {
        match self {
            Self::Statement => statement,
            Self::Batch => statement * 3,
            Self::Upkeep => statement * 15,
            Self::EveryNote => statement * 240,
        }
    }

    /// How long ELF waits for the answer.
    pub(super) fn with_answer(self, statement: Duration) -> Duration {
        self.of(statement) + ANSWER
    }
}

/// How long a statement waits for a lock, where one may take so long.
pub(super) fn lock(statement: Duration) -> Duration {
    LOCK_LIMIT.min(statement / 2)
}
