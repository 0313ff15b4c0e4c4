//! Why Postgres did not do what it was asked, and what has to change first.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use crate::error_class::ErrorClass;

/// The unique index on the keys of notes.
const KEY_INDEX: &str = "memory_notes_key_idx";

/// What sql/functions.sql refuses: a client changes the note of a row.
const MAY_CHANGE: &str = "elf_may_change";

/// What the driver says of a server that does not encrypt. Every other error of TLS may pass.
const NO_TLS: &str = "server does not support TLS";

/// Why Postgres did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres is unreachable, full or busy. The same request may succeed later.
    #[error("Postgres is unavailable: {0}")]
    Unavailable(String),
    /// Another session holds a lock that the statement needs.
    #[error("Postgres is unavailable: {0}")]
    Locked(String),
    /// Postgres failed inside, or lost the connection, while it executed the statement. That may be due to
    /// the data of the statement.
    #[error("Postgres is unavailable: {0}")]
    Interrupted(String),
    /// The connection has prepared statements that Postgres or a connection pooler does not take any more.
    /// A new connection works.
    #[error("Postgres is unavailable: {0}")]
    Stale(String),
    /// The schema does not fit this program, or Postgres denies it access.
    #[error("{0}")]
    Schema(String),
    /// The number of migrations that are not applied yet. Another process may be applying them.
    #[error(
        "the database schema is older than this elf (migrations to apply: {0}): run `elf migrate`"
    )]
    Outdated(usize),
    /// No migration has been applied. Another process may be about to.
    #[error(
        "the database {0} has no tables of ELF: run `elf migrate`, or change storage.postgres.dsn if it is the \
         wrong one"
    )]
    NotMigrated(String),
    /// The columns of vectors are of another type than the configuration says. Another process may be
    /// changing them.
    #[error(
        "the vectors in Postgres are of the type {found}, and storage.postgres.vector_type is \
         {configured:?}: run `elf migrate`, which rewrites their tables, or change the setting"
    )]
    OtherVectorType {
        /// What they are of.
        found: String,
        /// What they should be of.
        configured: &'static str,
    },
    /// Postgres rejected a value in a statement.
    #[error("Postgres rejected a value: {0}")]
    Rejected(String),
    /// A part of a row is lost on the disk of Postgres.
    #[error("Postgres cannot read a row: {0}")]
    Unreadable(String),
    /// Another note of the same tenant, project, agent and scope has this key.
    #[error("another note has this key: {0}")]
    KeyTaken(String),
    /// The note follows a row of a source.
    #[error("{0}")]
    OfRow(String),
    /// The commit was sent, and its answer did not come.
    #[error(
        "Postgres did not confirm the commit: {0}. The write may have been done, or be done later"
    )]
    Unconfirmed(String),
    /// The job's lease expired, for example during an outage of Postgres, and another process
    /// took it.
    #[error("job lease lost to another process")]
    JobLost,
}

impl StoreError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unavailable(_)
            | Self::Locked(_)
            | Self::Interrupted(_)
            | Self::Stale(_)
            | Self::Unconfirmed(_) => ErrorClass::Storage,
            Self::Schema(_)
            | Self::Outdated(_)
            | Self::NotMigrated(_)
            | Self::OtherVectorType { .. } => ErrorClass::Configuration,
            Self::Rejected(_) | Self::KeyTaken(_) | Self::OfRow(_) | Self::Unreadable(_) => {
                ErrorClass::Item
            }
            Self::JobLost => ErrorClass::Precondition,
        }
    }

    /// Whether the data of the statement may be the cause. Everything else says nothing about a row.
    pub fn may_be_data(&self) -> bool {
        matches!(
            self,
            Self::Rejected(_) | Self::KeyTaken(_) | Self::Unreadable(_) | Self::Interrupted(_)
        )
    }

    /// The label of `elf_postgres_errors_total`.
    pub(super) fn kind(&self) -> &'static str {
        match (self, self.class()) {
            (Self::Locked(_), _) => "locked",
            (_, ErrorClass::Storage) => "unavailable",
            (_, ErrorClass::Configuration) => "schema",
            _ => "rejected",
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error;
        let reason = error.to_string();
        match error {
            Error::Database(refusal) => {
                let message = refusal.message().to_owned();
                if is_outdated_plan(&*refusal) {
                    return Self::Stale(message);
                }
                if refusal.constraint() == Some(KEY_INDEX) {
                    let detail = refusal.try_downcast_ref::<PgDatabaseError>();
                    let detail = detail.and_then(PgDatabaseError::detail);
                    return Self::KeyTaken(detail.unwrap_or(&message).to_owned());
                }
                if refusal.constraint() == Some(MAY_CHANGE) {
                    return Self::OfRow(message);
                }
                match meaning_of(&refusal.code().unwrap_or_default()) {
                    Meaning::Value => Self::Rejected(message),
                    Meaning::Row => Self::Unreadable(message),
                    Meaning::State => Self::Unavailable(message),
                    Meaning::Lock => Self::Locked(message),
                    Meaning::Failure => Self::Interrupted(message),
                    Meaning::Connection => Self::Stale(message),
                    Meaning::Configuration => Self::Schema(format!(
                        "Postgres refuses: {message}; check storage.postgres.dsn, and that its \
                         role has the rights in docs/reference/sql.md"
                    )),
                }
            }
            // While a statement ran: every connection is tested before it is used.
            Error::Io(_) | Error::Protocol(_) => Self::Interrupted(reason),
            Error::Configuration(_) => Self::Schema(format!("storage.postgres.dsn: {reason}")),
            Error::Migrate(error) => Self::of_migration(*error),
            Error::Tls(error) if error.to_string() == NO_TLS => Self::Schema(
                "Postgres has no TLS, and sslmode in storage.postgres.dsn (or PGSSLMODE) demands it: \
                 set up TLS there, or change sslmode"
                    .into(),
            ),
            // See `pool::NotConnected`.
            Error::AnyDriverError(error) => Self::Unavailable(error.to_string()),
            // No connection, TLS that fails, a pool that is closed. Or an application has changed
            // its columns: a type is missing, the driver cannot decode a value, or row-level
            // security hides a row.
            _ => Self::Unavailable(reason),
        }
    }
}

/// "cached plan must not change result type": a column has another type since the connection prepared the
/// statement. Its code is that of every feature that is not supported, and its words may be translated.
fn is_outdated_plan(refusal: &(dyn DatabaseError + 'static)) -> bool {
    let refusal = refusal.try_downcast_ref::<PgDatabaseError>();
    refusal.and_then(PgDatabaseError::routine) == Some("RevalidateCachedQuery")
}

impl StoreError {
    fn of_migration(error: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError;
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
            other => Self::Schema(other.to_string()),
        }
    }
}

/// What an SQLSTATE says about the statement that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// A row that Postgres has and cannot read.
    Row,
    /// A value of the statement was rejected: by Postgres, a constraint, or a trigger or function of the
    /// application.
    Value,
    /// The state of the server, of the session or of other transactions.
    State,
    /// A lock of another session.
    Lock,
    /// Postgres failed inside: it says not of what.
    Failure,
    /// The state of this connection, which a new one does not have.
    Connection,
    /// An operator has to change something.
    Configuration,
}

/// Every class of appendix A of the Postgres manual, and the codes that mean something else than
/// their class.
const MEANINGS: &[(&str, Meaning)] = &[
    ("03", Meaning::State),         // SQL statement not yet complete
    ("08", Meaning::State),         // connection exception; the errors of a PgBouncer
    ("09", Meaning::Value),         // triggered action exception
    ("0A", Meaning::Configuration), // feature not supported; see `is_outdated_plan`
    ("0B", Meaning::State),         // invalid transaction initiation
    ("0F", Meaning::Value),         // locator exception
    ("0L", Meaning::Configuration), // invalid grantor
    ("0P", Meaning::Configuration), // invalid role specification
    ("0Z", Meaning::Value),         // diagnostics exception, in a function of the application
    ("10", Meaning::Value),         // XQuery error
    ("20", Meaning::Value),         // case not found
    ("21", Meaning::Value),         // cardinality violation
    ("22", Meaning::Value),         // data exception
    ("23", Meaning::Value),         // integrity constraint violation
    ("24", Meaning::Value),         // invalid cursor state, in a function of the application
    ("25", Meaning::State),         // transaction state: read-only, idle or open for too long
    ("26", Meaning::Connection),    // invalid statement name: a pooler has another session
    ("27", Meaning::Value),         // triggered data change violation
    ("28", Meaning::Configuration), // invalid authorization
    ("2B", Meaning::Configuration), // dependent privileges still exist
    ("2D", Meaning::Value),         // invalid transaction termination, in a trigger
    ("2F", Meaning::Value),         // SQL routine exception
    ("34", Meaning::Value),         // invalid cursor name, in a function of the application
    ("38", Meaning::Value),         // external routine exception
    ("39", Meaning::Value),         // external routine invocation exception
    ("3B", Meaning::State),         // savepoint exception
    ("3D", Meaning::Configuration), // no such database
    ("3F", Meaning::Configuration), // no such schema
    ("40", Meaning::State),         // transaction rollback: a deadlock, a serialization failure
    ("42", Meaning::Configuration), // no right, no such table, another type
    ("44", Meaning::Value),         // WITH CHECK OPTION violation
    ("53", Meaning::State),         // insufficient resources: a full disk, too many connections
    ("54", Meaning::Value),         // program limit exceeded: too large for an index
    ("55", Meaning::State),         // object not in prerequisite state
    ("55P03", Meaning::Lock),       // lock not available
    ("57", Meaning::State),         // operator intervention: a timeout, a shutdown
    ("57P02", Meaning::Failure),    // … because another backend crashed, which this one may repeat
    ("58", Meaning::State),         // system error
    ("72", Meaning::State),         // snapshot too old
    ("F0", Meaning::State),         // configuration file error
    ("HV", Meaning::State),         // foreign data wrapper error: another server
    ("P0", Meaning::Value),         // exception of a trigger
    ("XX001", Meaning::Row),        // corrupted data
    ("XX", Meaning::Failure),       // internal error, corrupted data; a pooler that is full
];

/// Classes 00 to 02 are no errors. A code that the manual does not have is of an extension or of a
/// trigger of the application, and its author means the value.
fn meaning_of(sqlstate: &str) -> Meaning {
    let of = |code: &str| MEANINGS.iter().find(|(known, _)| *known == code);
    let class = sqlstate.get(..2).unwrap_or_default();
    match of(sqlstate).or_else(|| of(class)) {
        Some((_, meaning)) => *meaning,
        None if sqlstate.is_empty() => Meaning::State,
        None => Meaning::Value,
    }
}

/// Whether what Postgres refused with this code may succeed later.
pub(super) fn may_pass(sqlstate: &str) -> bool {
    !matches!(
        meaning_of(sqlstate),
        Meaning::Value | Meaning::Row | Meaning::Configuration
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes of appendix A of the manual of Postgres 18 that are errors.
    const CLASSES: &str = "03 08 09 0A 0B 0F 0L 0P 0Z 10 20 21 22 23 24 25 26 27 28 2B 2D 2F 34 38 39 \
                           3B 3D 3F 40 42 44 53 54 55 57 58 72 F0 HV P0 XX";

    #[test]
    fn every_class_of_the_manual_is_decided_once() {
        let decided: Vec<&str> = MEANINGS.iter().map(|(code, _)| *code).collect();
        let classes: Vec<&str> = decided.iter().copied().filter(|c| c.len() == 2).collect();
        assert_eq!(classes.join(" "), CLASSES.replace("  ", " "));
        for code in &decided {
            let times = decided.iter().filter(|other| other == &code).count();
            assert_eq!(times, 1, "{code}");
        }
    }

    #[test]
    fn only_values_are_a_notes_fault() {
        use Meaning::*;
        for (code, about, meaning) in [
            ("23514", "a check of the application", Value),
            ("P0001", "an exception of a trigger", Value),
            (
                "22021",
                "a character that the encoding does not have",
                Value,
            ),
            ("54000", "too large for an index", Value),
            ("44000", "a view of the application", Value),
            ("AB123", "an error code of the application's own", Value),
            ("53100", "a full disk", State),
            ("53200", "no memory", State),
            ("53300", "too many connections", State),
            ("55000", "not in the prerequisite state", State),
            ("55006", "in use", State),
            ("55P03", "a lock", Lock),
            ("57014", "a statement timeout", State),
            ("57P01", "a restart", State),
            ("57P02", "a crash", Failure),
            ("57P03", "a start", State),
            ("57P05", "idle for too long", State),
            ("58030", "the disk does not answer", State),
            ("25006", "read-only during a failover", State),
            ("25P02", "a transaction that failed before", State),
            ("25P03", "idle in a transaction for too long", State),
            ("25P04", "a transaction timeout", State),
            ("40001", "a serialization failure", State),
            ("40P01", "a deadlock", State),
            ("08P01", "a PgBouncer without a server", State),
            (
                "0A000",
                "a feature that a fork of Postgres lacks",
                Configuration,
            ),
            ("26000", "another session of a pooler", Connection),
            ("XX000", "an internal error, a pooler that is full", Failure),
            ("XX001", "a corrupted row", Row),
            ("XX002", "a corrupted index", Failure),
            ("42501", "no right to the table", Configuration),
            ("42P01", "no such table", Configuration),
            ("42P05", "a pooler that tracks no statements", Configuration),
            ("28P01", "a wrong password", Configuration),
            ("3D000", "no such database", Configuration),
            ("", "no code at all", State),
        ] {
            assert_eq!(meaning_of(code), meaning, "{code}: {about}");
        }
    }

    #[test]
    fn every_error_of_the_driver_is_decided() {
        use sqlx::Error;
        let other = || "why".into();
        let class = |error: Error| {
            let error = StoreError::from(error);
            (error.class(), error.may_be_data())
        };
        let interrupted = (ErrorClass::Storage, true);
        let unavailable = (ErrorClass::Storage, false);
        let reset = std::io::ErrorKind::ConnectionReset;
        assert_eq!(class(Error::Io(reset.into())), interrupted);
        assert_eq!(class(Error::Protocol("cut".into())), interrupted);
        let configuration = (ErrorClass::Configuration, false);
        assert_eq!(class(Error::Configuration(other())), configuration);
        assert_eq!(class(Error::Tls(NO_TLS.into())), configuration);
        for error in [
            Error::PoolTimedOut,
            Error::PoolClosed,
            Error::WorkerCrashed,
            Error::RowNotFound,
            Error::Tls(other()),
            Error::Decode(other()),
            Error::Encode(other()),
            Error::AnyDriverError(other()),
            Error::InvalidArgument(String::new()),
            Error::ColumnNotFound(String::new()),
            Error::TypeNotFound {
                type_name: "vector".into(),
            },
            Error::ColumnDecode {
                index: String::new(),
                source: other(),
            },
            Error::ColumnIndexOutOfBounds { index: 0, len: 0 },
            Error::InvalidSavePointStatement,
            Error::BeginFailed,
        ] {
            let name = error.to_string();
            assert_eq!(class(error), unavailable, "{name}");
        }
    }
}
