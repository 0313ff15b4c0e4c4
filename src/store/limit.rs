//! How long Postgres may take to answer.

use std::time::Duration;

/// The longest time that an operation waits for Postgres. A server whose machine died closes
/// no connection, and the driver has no keepalive that would notice
/// (<https://github.com/launchbadge/sqlx/issues/3540>).
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
}
