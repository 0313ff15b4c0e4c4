//! Connects, with the settings of ELF's sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use super::pool::Pool;
use super::{STATEMENT_LIMIT, Store, StoreError, limit};
use crate::config::Dsn;

/// A plan that Postgres caches while a table is empty is a sequential scan, and Postgres would
/// use it after a bulk load too. So it plans every statement anew. [`Store::begin`] and
/// [`Store::page`] are the exceptions.
const PLANS: [(&str, &str); 1] = [("plan_cache_mode", "force_custom_plan")];

/// The statements of a search and of a batch look up rows by key, whatever the statistics say. To
/// plan one anew takes up to several times as long as to execute it. Postgres may plan them while the
/// tables are empty, where a sequential scan, or a sort of all rows, costs the same as to walk an index.
/// So it takes those only if there is no other way. See [`Store::begin`] for `jit`.
const KEYED_PLANS: [(&str, &str); 4] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    ("enable_seqscan", "off"),
    ("enable_sort", "off"),
];

/// Postgres notices within a minute that a client is gone without a word, and ends its session.
const KEEPALIVES: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "30"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "3"),
];

/// What a role or a database may have set with an application in mind.
const SESSION: [(&str, &str); 2] = [
    ("idle_session_timeout", "0"),
    ("default_transaction_isolation", "read committed"),
];

/// The fewest that a process can work with: one that listens, one that cancels, and three for statements.
pub const LEAST_CONNECTIONS: u32 = 5;

/// Connections that are not for statements of the two pools: one that listens, and one that cancels.
const OTHERS: u32 = 2;

impl Store {
    /// Connects. The process opens at most `max_connections`, [`LEAST_CONNECTIONS`] at least. Fails after a few seconds if
    /// Postgres is unavailable.
    pub async fn connect(dsn: &str, max_connections: u32) -> Result<Self, StoreError> {
        Self::connect_within(dsn, max_connections, STATEMENT_LIMIT).await
    }

    /// [`Self::connect`], with `statement_limit` for one statement instead of two minutes.
    pub async fn connect_within(
        dsn: &str,
        max_connections: u32,
        statement_limit: Duration,
    ) -> Result<Self, StoreError> {
        let dsn = Dsn::parse(dsn)
            .map_err(|problem| StoreError::Schema(format!("storage.postgres.dsn {problem}")))?;
        dsn.check_files().map_err(StoreError::Schema)?;
        let options = dsn
            .options
            .clone()
            // The looks at locks find ELF's sessions by it.
            .application_name("elf")
            // sqlx would log the full text of a slow statement.
            .disable_statement_logging();
        let at = |error| match error {
            StoreError::Unavailable(reason) | StoreError::Interrupted(reason) => {
                StoreError::Unavailable(format!("{}: {reason}", dsn.place()))
            }
            other => other,
        };
        let open = |options| Self::open(options, max_connections, statement_limit);
        let store = open(options.clone()).await.map_err(at)?;
        let Some(unseen) = store.unseen_vectors().await? else {
            return Ok(store);
        };
        let Some(search_path) = unseen.search_path() else {
            return Err(unseen.unreachable());
        };
        let options = options.options([("search_path", search_path)]);
        let store = open(options).await.map_err(at)?;
        match store.unseen_vectors().await? {
            None => Ok(store),
            Some(_) => Err(unseen.unreachable()),
        }
    }

    async fn open(
        options: PgConnectOptions,
        max_connections: u32,
        statement_limit: Duration,
    ) -> Result<Self, StoreError> {
        let mut store = Self::of(&options, max_connections, statement_limit, true);
        // Both at once: a connection pooler may accept the settings of one and refuse those of the other.
        let opened = tokio::try_join!(store.pool.acquire(), store.keyed.acquire());
        match opened {
            Err(error) if refuses_settings(&error) => {
                tracing::warn!(
                    "connection pooler does not pass on settings, set plan_cache_mode, \
                     statement_timeout and lock_timeout for the role: docs/operate/runbook.md, PgBouncer"
                );
                store = Self::of(&options, max_connections, statement_limit, false);
                store.pool.acquire().await?;
            }
            opened => drop(opened?),
        }
        Ok(store)
    }

    /// Without a connection.
    fn of(options: &PgConnectOptions, max: u32, statement: Duration, with_settings: bool) -> Self {
        let connections = Arc::new(AtomicU64::new(0));
        let mark = with_settings.then(|| format!("{:016x}", rand::random::<u64>()));
        let options = match &mark {
            Some(mark) => limited(options.clone(), statement).options([("elf.session", mark)]),
            None => options.clone(),
        };
        let (plain, keyed) = pool_sizes(max);
        let pool = |plans: &[(&str, &str)], size, control| {
            let options = match with_settings {
                true => options.clone().options(plans.iter().copied()),
                false => options.clone(),
            };
            Pool::new(options, mark.clone(), size, connections.clone(), control)
        };
        let control = pool(&[], 1, None);
        Self {
            pool: pool(&PLANS, plain, Some(control.clone())),
            keyed: pool(&KEYED_PLANS, keyed, Some(control.clone())),
            control,
            locks: Arc::default(),
            has_settings: Arc::new(AtomicBool::new(with_settings)),
            statement_limit: statement,
            connections,
        }
    }
}

/// How many connections may execute any statement, and how many those whose plan Postgres may keep, of so
/// many of a process.
pub fn pool_sizes(max: u32) -> (u32, u32) {
    let both = max.saturating_sub(OTHERS).max(2);
    (both - both / 2, both / 2)
}

/// Postgres ends what ELF gives up, also when ELF cannot ask for it.
fn limited(options: PgConnectOptions, statement: Duration) -> PgConnectOptions {
    options.options(KEEPALIVES).options(SESSION).options([
        ("statement_timeout", statement.as_millis().to_string()),
        (
            "lock_timeout",
            limit::lock(statement).as_millis().to_string(),
        ),
    ])
}

/// Whether the server refuses settings at the start of a session. PgBouncer, RDS Proxy and others do if
/// they cannot pass them on.
pub(super) fn refuses_settings(error: &sqlx::Error) -> bool {
    let Some(refusal) = error.as_database_error() else {
        return false;
    };
    let code = refusal.code().unwrap_or_default();
    let message = refusal.message();
    ["08P01", "0A000", "22023", "42501", "42704"].contains(&&*code)
        && (message.contains("parameter") || message.contains("options"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_opens_no_more_than_it_may() {
        for max in LEAST_CONNECTIONS..100 {
            let (plain, keyed) = pool_sizes(max);
            assert_eq!(plain + keyed + OTHERS, max);
            assert!(plain >= keyed && keyed >= 1);
        }
    }
}
