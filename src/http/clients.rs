//! The clients of a port, and which of them lets it wait longest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::lock::lock;

/// How soon a full port looks again for a client that lets it wait.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The connections of a port.
pub struct Clients {
    most: usize,
    open: Mutex<Open>,
    left: Notify,
}

#[derive(Default)]
struct Open {
    last: u64,
    clients: HashMap<u64, Arc<State>>,
}

struct State {
    pace: Mutex<Pace>,
    closing: CancellationToken,
}

/// What a connection waits for.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// How many requests it has sent.
    requests: u64,
    /// Whether ELF has one to answer.
    is_working: bool,
    /// When it began to wait for a request.
    idle_since: Instant,
    /// When the client stopped to take what ELF sends.
    blocked_since: Option<Instant>,
}

impl Pace {
    /// Since when the client lets ELF wait; `None` while ELF lets the client wait.
    fn waits_since(&self) -> Option<Instant> {
        match self.is_working {
            true => self.blocked_since,
            false => Some(self.blocked_since.unwrap_or(self.idle_since)),
        }
    }
}

/// A connection, until it is dropped.
pub struct Client {
    id: u64,
    state: Arc<State>,
    clients: Arc<Clients>,
}

/// A request that ELF answers, until it is dropped.
pub struct Working(Arc<Client>);

impl Clients {
    /// A port of at most so many.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            open: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Takes the place of a connection. If the port is full, closes the connection whose client
    /// lets it wait longest; if none does, waits for one.
    pub async fn enter(self: &Arc<Self>) -> Client {
        loop {
            let left = self.left.notified();
            if let Some(client) = self.try_enter() {
                return client;
            }
            self.close_one();
            let _ = tokio::time::timeout(LOOK_AGAIN, left).await;
        }
    }

    fn try_enter(self: &Arc<Self>) -> Option<Client> {
        let mut open = lock(&self.open);
        if open.clients.len() >= self.most {
            return None;
        }
        open.last += 1;
        let id = open.last;
        let state = Arc::new(State {
            pace: Mutex::new(Pace {
                requests: 0,
                is_working: false,
                idle_since: Instant::now(),
                blocked_since: None,
            }),
            closing: CancellationToken::new(),
        });
        open.clients.insert(id, state.clone());
        Some(Client {
            id,
            state,
            clients: self.clone(),
        })
    }

    fn close_one(&self) {
        let open = lock(&self.open);
        let clients = || open.clients.values();
        if clients().any(|client| client.closing.is_cancelled()) {
            return;
        }
        let waits = |client: &Arc<State>| lock(&client.pace).waits_since();
        let longest = clients().filter_map(|client| Some((waits(client)?, client)));
        if let Some((_, client)) = longest.min_by_key(|(since, _)| *since) {
            client.closing.cancel();
        }
    }
}

impl Client {
    /// Cancelled when another client gets this place.
    pub fn closing(&self) -> &CancellationToken {
        &self.state.closing
    }

    pub fn work(self: Arc<Self>) -> Working {
        self.pace(|pace| {
            pace.requests += 1;
            pace.is_working = true;
        });
        Working(self)
    }

    /// How many requests it has sent.
    pub fn requests(&self) -> u64 {
        lock(&self.state.pace).requests
    }

    /// The client does not take what ELF sends.
    pub fn blocks(&self) {
        self.pace(|pace| {
            pace.blocked_since.get_or_insert_with(Instant::now);
        });
    }

    /// The client has taken some of it.
    pub fn takes(&self) {
        self.pace(|pace| pace.blocked_since = None);
    }

    fn pace(&self, change: impl FnOnce(&mut Pace)) {
        change(&mut lock(&self.state.pace));
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.pace(|pace| {
            pace.is_working = false;
            pace.idle_since = Instant::now();
        });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        lock(&self.clients.open).clients.remove(&self.id);
        self.clients.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_port_closes_the_connection_that_waits_longest() {
        let clients = Clients::new(3);
        let (busy, idle, later) = (
            clients.enter().await,
            clients.enter().await,
            clients.enter().await,
        );
        let _working = Arc::new(busy).work();
        assert!(clients.try_enter().is_none());
        clients.close_one();
        assert!(idle.closing().is_cancelled());
        clients.close_one();
        assert!(!later.closing().is_cancelled(), "one at a time");
        drop(idle);
        assert!(clients.try_enter().is_some());
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_lets_the_port_wait() {
        let clients = Clients::new(1);
        let client = Arc::new(clients.enter().await);
        let _working = client.clone().work();
        clients.close_one();
        assert!(!client.closing().is_cancelled());
        client.blocks();
        client.takes();
        clients.close_one();
        assert!(!client.closing().is_cancelled());
        client.blocks();
        clients.close_one();
        assert!(client.closing().is_cancelled());
    }
}
