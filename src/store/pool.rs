//! The connections to Postgres: a bounded number of sessions, each of which ends what ELF gives up.
//!
//! The pool of sqlx closes a connection whose statement was given up, and opens another one, while the
//! backend goes on. Behind a lock such backends add up until Postgres has no connection left for
//! applications. Here a session keeps its place until its statement has ended. ELF cancels the statement, and ends
//! the backend if that does not help.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, TryFutureExt, TryStreamExt};
use sqlx::postgres::{PgConnectOptions, PgQueryResult, PgRow, PgTypeInfo};
use sqlx::{
    ConnectOptions, Connection, Database, Either, Execute, Executor, PgConnection, Postgres, SqlStr,
};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout, timeout_at};

use super::connect::refuses_settings;
use super::error;
use super::trust::Trust;
use super::{CONNECT_LIMIT, RETURN_LIMIT};
use crate::backoff;
use crate::lock::lock;

/// How long a statement that was given up may take to end by itself.
const PATIENCE: Duration = Duration::from_millis(300);

/// A connection that is being opened keeps its place for so long, also when nothing waits for it any more.
/// Longer than a backend waits for a lock at its start: without the place, there could be more backends
/// than places.
const OPEN_LIMIT: Duration = Duration::from_secs(12);

/// How long an idle session may take to answer before it counts as lost.
const PING_LIMIT: Duration = Duration::from_secs(1);

/// A session that is older is closed: the caches of a backend grow, and after a change of addresses the old
/// ones are left some time.
const LONGEST_LIFE: Duration = Duration::from_secs(30 * 60);

/// A session that nothing used for this long is closed.
const LONGEST_IDLE: Duration = Duration::from_secs(10 * 60);

/// Pauses between two tries to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// At most so many sessions of one kind. A clone is the same pool.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    options: PgConnectOptions,
    /// What `elf.session` says in a session that no pooler shares out; `None` behind a pooler.
    mark: Option<String>,
    /// One for each session, idle ones excepted.
    places: Arc<Semaphore>,
    idle: Mutex<Vec<Idle>>,
    trust: Trust,
    /// Sessions opened so far, over all pools of the store.
    opened: Arc<AtomicU64>,
    /// Older sessions are closed instead of used.
    renewed: Mutex<Option<Instant>>,
    /// Cancels what the sessions of this pool give up.
    control: Option<Pool>,
}

/// A connection, and its backend in Postgres if that is known.
struct Session {
    connection: PgConnection,
    backend: Option<Backend>,
    opened: Instant,
}

struct Idle {
    session: Session,
    since: Instant,
}

/// A process of the server. Postgres may give its id to another one later, but not with the same start.
#[derive(Debug, Clone)]
struct Backend {
    pid: i32,
    start: String,
}

/// Why there is no session. As an error of the driver's it has a type that no statement has.
#[derive(Debug, thiserror::Error)]
enum NotConnected {
    #[error(
        "no connection within {} seconds: this process uses all that it may open \
         (storage.postgres.pool_max_conns)",
        CONNECT_LIMIT.as_secs()
    )]
    Busy,
    #[error("no connection within {} seconds: {reason}", CONNECT_LIMIT.as_secs())]
    Refused { reason: String },
    #[error("no connection within {} seconds: the server does not answer", CONNECT_LIMIT.as_secs())]
    NoAnswer,
}

impl From<NotConnected> for sqlx::Error {
    fn from(reason: NotConnected) -> Self {
        Self::AnyDriverError(Box::new(reason))
    }
}

impl Pool {
    /// A pool without a session.
    pub(super) fn new(
        options: PgConnectOptions,
        mark: Option<String>,
        size: u32,
        opened: Arc<AtomicU64>,
        control: Option<Pool>,
    ) -> Self {
        Self(Arc::new(Shared {
            options,
            mark,
            places: Arc::new(Semaphore::new(size as usize)),
            idle: Mutex::default(),
            trust: Trust::default(),
            opened,
            renewed: Mutex::default(),
            control,
        }))
    }

    /// A session of its own until it is dropped.
    pub async fn acquire(&self) -> Result<PooledConnection, sqlx::Error> {
        let deadline = tokio::time::Instant::now() + CONNECT_LIMIT;
        let place = match timeout_at(deadline, self.0.places.clone().acquire_owned()).await {
            Ok(Ok(place)) => place,
            Ok(Err(_)) => return Err(sqlx::Error::PoolClosed),
            Err(_) => return Err(NotConnected::Busy.into()),
        };
        let (session, place) = match self.pop_working().await {
            Some(session) => (session, place),
            None => self.open_until(deadline, place).await?,
        };
        let taken = Taken {
            session,
            place,
            in_transaction: false,
            closes: false,
        };
        Ok(PooledConnection {
            taken: Some(taken),
            pool: self.clone(),
        })
    }

    /// Closes the idle sessions; from now on there is no other.
    pub async fn close(&self) {
        self.0.places.close();
        let idle = std::mem::take(&mut *lock(&self.0.idle));
        for Idle { session, .. } in idle {
            session.connection.close().await.ok();
        }
    }

    /// How the pool connects.
    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.0.options
    }

    /// Uses none of the present sessions again.
    pub(super) fn renew(&self) {
        *lock(&self.0.renewed) = Some(Instant::now());
    }

    /// An idle session that works.
    async fn pop_working(&self) -> Option<Session> {
        while let Some(mut idle) = self.pop_idle() {
            if self.0.trust.has(idle.since.elapsed()) {
                return Some(idle.session);
            }
            let answer = timeout(PING_LIMIT, idle.session.connection.ping()).await;
            let works = matches!(answer, Ok(Ok(())));
            self.0.trust.record(works);
            if works {
                return Some(idle.session);
            }
            // What took this one as a rule took those that were idle with it.
            lock(&self.0.idle).clear();
        }
        None
    }

    /// A new session. While Postgres refuses for a reason that may pass, it tries again. A try that is given
    /// up keeps its place until it has ended: its backend may still start.
    async fn open_until(
        &self,
        deadline: tokio::time::Instant,
        mut place: OwnedSemaphorePermit,
    ) -> Result<(Session, OwnedSemaphorePermit), sqlx::Error> {
        let mut refusal = NotConnected::NoAnswer;
        for tries in 1.. {
            let pool = self.clone();
            let (sender, opened) = oneshot::channel();
            tokio::spawn(async move {
                let opened = match timeout(OPEN_LIMIT, pool.open()).await {
                    Ok(opened) => opened,
                    Err(_) => Err(NotConnected::NoAnswer.into()),
                };
                if let Err((Ok(session), place)) = sender.send((opened, place)) {
                    pool.put_back(session);
                    drop(place);
                }
            });
            let Ok(Ok((opened, kept))) = timeout_at(deadline, opened).await else {
                return Err(refusal.into());
            };
            place = kept;
            match opened {
                Ok(session) => return Ok((session, place)),
                Err(error) if may_pass(&error) && !refuses_settings(&error) => {
                    refusal = NotConnected::Refused {
                        reason: said(&error),
                    };
                }
                Err(error) => return Err(error),
            }
            let pause = backoff::delay(tries, FIRST_PAUSE, LONGEST_PAUSE, 0.5);
            if timeout_at(deadline, sleep(pause)).await.is_err() {
                break;
            }
        }
        Err(refusal.into())
    }

    async fn open(&self) -> Result<Session, sqlx::Error> {
        let mut connection = self.0.options.connect().await?;
        let backend = self.backend(&mut connection).await?;
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        Ok(Session {
            connection,
            backend,
            opened: Instant::now(),
        })
    }

    /// The backend of a new connection. `None` behind a pooler, which may give each statement another one.
    async fn backend(&self, connection: &mut PgConnection) -> Result<Option<Backend>, sqlx::Error> {
        let Some(mark) = &self.0.mark else {
            return Ok(None);
        };
        let (pid, start, is_marked): (i32, Option<String>, bool) = sqlx::query_as(
            "select pid, backend_start::text, coalesce(current_setting('elf.session', true), '') = $1
               from pg_stat_activity where pid = pg_backend_pid()",
        )
        .bind(mark)
        .fetch_one(&mut *connection)
        .await?;
        let backend = start.filter(|_| is_marked);
        if backend.is_some() {
            for setting in [
                // Postgres then notices that this process was killed, also while its statement waits. Not
                // every platform can.
                "set client_connection_check_interval = '2s'",
                // A role may have one for its application. Postgres before 17 does not know it.
                "set transaction_timeout = 0",
            ] {
                let set = sqlx::raw_sql(setting).execute(&mut *connection).await;
                if let Err(error @ sqlx::Error::Io(_)) = set {
                    return Err(error);
                }
            }
        }
        Ok(backend.map(|start| Backend { pid, start }))
    }

    fn pop_idle(&self) -> Option<Idle> {
        let renewed = *lock(&self.0.renewed);
        let mut idle = lock(&self.0.idle);
        // The session that was used last, so that those beyond the need grow old.
        idle.retain(|idle| idle.is_usable(renewed));
        idle.pop()
    }

    fn put_back(&self, session: Session) {
        self.0.trust.record(true);
        let since = Instant::now();
        lock(&self.0.idle).push(Idle { session, since });
    }

    /// Keeps `place` until the statement of the session has ended, and then puts the session back.
    async fn reclaim(self, mut given_up: Taken) {
        let session = &mut given_up.session;
        let mut has_ended = session.ends_within(PATIENCE).await;
        // A cancel without an answer may come later, and would hit the next statement of the session.
        let mut is_signalled = true;
        if !has_ended && let Some(backend) = session.backend.clone() {
            is_signalled = self.signal("cancel", &backend).await;
            has_ended = session.ends_within(RETURN_LIMIT).await;
            if !has_ended {
                self.signal("terminate", &backend).await;
                // It may be answered first. The session ends all the same.
                session.ends_within(RETURN_LIMIT).await;
            }
        } else if !has_ended {
            has_ended = session.ends_within(RETURN_LIMIT).await;
        }
        let Taken {
            mut session,
            place,
            in_transaction,
            closes,
        } = given_up;
        let is_usable =
            has_ended && is_signalled && (!in_transaction || session.rolls_back().await);
        match is_usable {
            true if !closes && session.opened.elapsed() < LONGEST_LIFE => self.put_back(session),
            true => drop(timeout(RETURN_LIMIT, session.connection.close()).await),
            false => self.0.trust.record(false),
        }
        drop(place);
    }

    /// Cancels or terminates what a backend does. A backend that has ended is left alone, and so is one
    /// that has its id now. Returns whether Postgres has answered.
    async fn signal(&self, how: &'static str, backend: &Backend) -> bool {
        let Some(control) = &self.0.control else {
            return true;
        };
        let statement = match how {
            "cancel" => {
                "select pg_cancel_backend(pid) from pg_stat_activity
                  where pid = $1 and backend_start = $2::timestamptz and state is distinct from 'idle'"
            }
            _ => {
                "select pg_terminate_backend(pid) from pg_stat_activity
                  where pid = $1 and backend_start = $2::timestamptz"
            }
        };
        let sent = async {
            let mut connection = control.acquire().await?;
            sqlx::query_scalar::<_, bool>(statement)
                .bind(backend.pid)
                .bind(&backend.start)
                .fetch_optional(&mut *connection)
                .await
        };
        let sent = timeout(CONNECT_LIMIT, sent).await;
        match &sent {
            Ok(Ok(_)) => tracing::debug!(pid = backend.pid, how, "ended a statement"),
            Ok(Err(error)) => tracing::debug!(%error, how, "could not end a statement"),
            Err(_) => tracing::debug!(how, "could not end a statement: no answer"),
        }
        matches!(sent, Ok(Ok(_)))
    }
}

/// Whether a later try to connect may succeed.
fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(refusal) => error::may_pass(&refusal.code().unwrap_or_default()),
        // A file of a certificate that is missing, or a socket before the server makes it.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::NotFound,
        sqlx::Error::Protocol(_) => true,
        _ => false,
    }
}

/// What the server or the system said.
fn said(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(refusal) => refusal.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}

impl Session {
    /// Whether Postgres has answered all that it was asked. Asks nothing.
    async fn ends_within(&mut self, time: Duration) -> bool {
        let answers = async {
            loop {
                match self.connection.flush().await {
                    Ok(()) => return true,
                    // That of the statement. The session goes on.
                    Err(sqlx::Error::Database(_)) => {}
                    Err(_) => return false,
                }
            }
        };
        timeout(time, answers).await.unwrap_or(false)
    }

    async fn rolls_back(&mut self) -> bool {
        let rollback = sqlx::raw_sql("rollback").execute(&mut self.connection);
        matches!(timeout(RETURN_LIMIT, rollback).await, Ok(Ok(_)))
    }
}

impl Idle {
    fn is_usable(&self, renewed: Option<Instant>) -> bool {
        self.since.elapsed() < LONGEST_IDLE
            && self.session.opened.elapsed() < LONGEST_LIFE
            && renewed.is_none_or(|renewed| self.session.opened > renewed)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A session that goes back to its pool when it is dropped.
pub struct PooledConnection {
    taken: Option<Taken>,
    pool: Pool,
}

struct Taken {
    session: Session,
    place: OwnedSemaphorePermit,
    in_transaction: bool,
    closes: bool,
}

impl PooledConnection {
    /// Closes the session instead of putting it back: it has settings or locks of its own.
    pub fn close_on_drop(&mut self) {
        self.taken.as_mut().expect(TAKEN).closes = true;
    }

    /// Says whether a transaction is open, which a drop rolls back.
    pub(super) fn set_in_transaction(&mut self, in_transaction: bool) {
        self.taken.as_mut().expect(TAKEN).in_transaction = in_transaction;
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        let Some(mut taken) = self.taken.take() else {
            return;
        };
        let session = &mut taken.session;
        let is_in_order = !taken.in_transaction && !taken.closes;
        // Ready at once if no statement is in flight.
        match is_in_order
            .then(|| session.connection.flush().now_or_never())
            .flatten()
        {
            Some(Ok(())) if session.opened.elapsed() < LONGEST_LIFE => {
                self.pool.put_back(taken.session);
                return;
            }
            Some(Err(error)) if !matches!(error, sqlx::Error::Database(_)) => {
                self.pool.0.trust.record(false);
                return;
            }
            _ => {}
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(self.pool.clone().reclaim(taken));
        }
    }
}

const TAKEN: &str = "only a drop takes the session";

impl std::ops::Deref for PooledConnection {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.taken.as_ref().expect(TAKEN).session.connection
    }
}

impl std::ops::DerefMut for PooledConnection {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.taken.as_mut().expect(TAKEN).session.connection
    }
}

impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    /// Not row by row: the session is free again before the caller has the first row.
    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let steps = async move {
            let mut connection = self.acquire().await?;
            let steps: Vec<_> = connection.fetch_many(query).try_collect().await?;
            Ok::<_, sqlx::Error>(stream::iter(steps.into_iter().map(Ok)))
        };
        Box::pin(steps.try_flatten_stream())
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move { self.acquire().await?.fetch_optional(query).await })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<<Postgres as Database>::Statement, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.prepare_with(sql, parameters).await })
    }

    #[doc(hidden)]
    fn describe<'e>(
        self,
        sql: SqlStr,
    ) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move { self.acquire().await?.describe(sql).await })
    }
}
