//! Who has the folder open: this process, or another one that this one asks. When that one ends,
//! this one opens the folder, or asks the next.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::engine::Engine;
use super::folder::{self, Folder, OpenError};
use super::frames::Greeting;
use super::peer::{Peer, Silence};
use super::{server, socket};
use crate::index::IndexError;

/// How often to look whether a process that ends has freed the folder, or one that begins listens.
const POLL: Duration = Duration::from_millis(20);

const POISON: &str = "no thread panics while holding it";

/// A folder, and who has it open.
pub(super) struct Access {
    pub(super) dir: PathBuf,
    /// What errors call the engine.
    pub(super) engine: String,
    on_disk: bool,
    at: Mutex<At>,
    /// Held by the one that finds out who has the folder open.
    opening: tokio::sync::Mutex<()>,
}

/// Who has the folder open.
#[derive(Clone)]
pub(super) enum At {
    /// Not known.
    Unknown {
        /// Who had it before.
        before: Option<String>,
    },
    Here(Arc<Open>),
    Elsewhere(Arc<Peer>),
}

/// The folder is open in this process, which answers the others.
pub(super) struct Open {
    /// Dropped first: while the engine closes, the others need no longer ask.
    _server: Option<AbortOnDropHandle<()>>,
    pub(super) engine: Arc<Engine>,
}

impl Access {
    pub(super) fn new(dir: PathBuf, engine: String, on_disk: bool) -> Self {
        Self {
            dir,
            engine,
            on_disk,
            at: Mutex::new(At::Unknown { before: None }),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// As far as it is known.
    pub(super) fn known(&self) -> At {
        self.at.lock().expect(POISON).clone()
    }

    /// Opens the folder, or finds the process that has it open. An error if neither worked at the
    /// `deadline`. Never returns [`At::Unknown`].
    pub(super) async fn find(self: &Arc<Self>, deadline: Instant) -> Result<At, IndexError> {
        match self.known() {
            At::Unknown { .. } => {}
            known => return Ok(known),
        }
        // A task of its own: to open a large folder may take longer than the caller waits.
        let access = self.clone();
        let finding = tokio::spawn(async move { access.find_now(deadline).await });
        finding
            .await
            .unwrap_or_else(|error| Err(self.unavailable(error.to_string())))
    }

    async fn find_now(&self, deadline: Instant) -> Result<At, IndexError> {
        let _alone = self.opening.lock().await;
        let before = match self.known() {
            At::Unknown { before } => before,
            known => return Ok(known),
        };
        let found = loop {
            let holder = match self.open().await? {
                Ok(open) => break At::Here(Arc::new(open)),
                Err(holder) => holder,
            };
            match Peer::meet(&self.dir, &holder, deadline).await {
                Ok(peer) => break At::Elsewhere(Arc::new(peer)),
                Err(Silence::Gone) if Instant::now() < deadline => tokio::time::sleep(POLL).await,
                Err(silence) => return Err(self.silent(silence, &holder)),
            }
        };
        log(before.as_deref(), &found);
        *self.at.lock().expect(POISON) = found.clone();
        Ok(found)
    }

    /// Opens the folder, unless another process has it open.
    async fn open(&self) -> Result<Result<Open, String>, IndexError> {
        let (dir, name, on_disk) = (self.dir.clone(), self.engine.clone(), self.on_disk);
        let load = move || match Folder::open(dir) {
            Ok(folder) => Engine::load(&name, folder, on_disk).map(Ok),
            Err(OpenError::Held { holder }) => Ok(Err(holder)),
            Err(error @ OpenError::Io { .. }) => Err(IndexError::Denied {
                engine: name,
                reason: error.to_string(),
            }),
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        let loaded = loaded.unwrap_or_else(|error| Err(self.unavailable(error.to_string())))?;
        Ok(loaded.map(|engine| self.served(engine)))
    }

    /// Starts to answer other processes.
    fn served(&self, engine: Engine) -> Open {
        let engine = Arc::new(engine);
        let listening = socket::listen(&self.dir).inspect_err(|error| {
            tracing::warn!(%error, "other processes cannot ask for the embedded index");
        });
        let greeting = Greeting::of(folder::this_process());
        let serve = |listener| server::serve(listener, Arc::downgrade(&engine), greeting);
        let server = listening.ok().map(|listener| tokio::spawn(serve(listener)));
        Open {
            _server: server.map(AbortOnDropHandle::new),
            engine,
        }
    }

    /// Records that this peer does not have the folder any more.
    pub(super) fn forget(&self, gone: &Arc<Peer>) {
        let mut at = self.at.lock().expect(POISON);
        if matches!(&*at, At::Elsewhere(peer) if Arc::ptr_eq(peer, gone)) {
            *at = At::Unknown {
                before: Some(gone.process.clone()),
            };
        }
    }

    pub(super) fn unavailable(&self, reason: String) -> IndexError {
        IndexError::Unavailable {
            engine: self.engine.clone(),
            reason,
        }
    }

    /// Why the process that has the folder open gave no answer.
    pub(super) fn silent(&self, silence: Silence, holder: &str) -> IndexError {
        match silence {
            Silence::Gone => self.unavailable(format!(
                "{holder} has the folder open and does not listen: if it is not starting, stop it"
            )),
            Silence::Cut => self.unavailable(format!(
                "{holder} has the folder open and ends the connection without an answer"
            )),
            Silence::Unavailable(reason) => self.unavailable(reason),
            Silence::TooLarge(reason) => IndexError::Refused {
                engine: self.engine.clone(),
                reason,
            },
        }
    }
}

/// The first find is logged by the command, with [`crate::index::VectorIndex::describe`].
fn log(before: Option<&str>, found: &At) {
    let Some(before) = before else {
        return;
    };
    match found {
        At::Here(_) => tracing::info!(before, "embedded index taken over from another process"),
        At::Elsewhere(peer) => {
            let process = &peer.process;
            tracing::info!(
                before,
                process,
                "embedded index is open in another process now"
            );
        }
        At::Unknown { .. } => {}
    }
}
