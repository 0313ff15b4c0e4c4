//! One collection: a shard of the engine and the one thread that writes to it.
//!
//! The engine appends to its write-ahead log and never reads it back: after a
//! crash it loads its segments as they were last flushed. So ELF keeps a journal
//! of its own. The writer takes all updates that wait, writes them to the journal
//! with one sync, applies them and answers them (group commit).
//!
//! `EdgeShard::flush` panics when an update runs at the same time or the disk is
//! full. So one thread does both, and turns the panic into an error.
//!
//! The engine's log only grows while it is open. ELF trims it when it opens the
//! collection, and keeps the last segment: the index of its end is the version of
//! the next update. If versions began at 0 again, the engine would ignore updates.
//!
//! ELF never calls `EdgeShard::optimize`, because it blocks every reader and writer.
//! This engine is for up to some hundred thousand points, where a scan of all vectors
//! is fast enough.

use std::fmt::{self, Display};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::{self, JoinHandle};
use std::{fs, iter};

use qdrant_edge::{EdgeShard, OperationError, OperationResult, UpdateOperation};
use tokio::sync::oneshot;

use super::convert;
use super::folder::{self, Folder};
use super::journal::{self, Journal};
use crate::index::CollectionSpec;

/// Updates in one sync, at most. It bounds how long the first of them waits.
const GROUP: usize = 64;

/// The engine flushes when the journal has grown by this: some thousand points,
/// a second or two to apply again after a crash.
const FLUSH_EVERY_BYTES: u64 = 16 << 20;

const POISON: &str = "no thread panics while holding it";

/// An open collection.
pub(super) struct Collection {
    pub(super) spec: CollectionSpec,
    pub(super) bm25: convert::Bm25,
    shard: Arc<Shard>,
    writer: Mutex<Option<Writer>>,
    /// Held so that no process opens the folder before the shard is closed.
    _folder: Arc<Folder>,
}

/// `None` once the collection is closed.
type Shard = RwLock<Option<EdgeShard>>;

/// Why a collection did not carry out a request.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It has been dropped meanwhile.
    Dropped,
    /// The engine failed.
    Engine(String),
    /// The engine refuses the content of the request.
    Content(String),
}

impl Failure {
    fn of(error: &OperationError) -> Self {
        let reason = error.to_string();
        match error {
            OperationError::ServiceError { .. }
            | OperationError::InconsistentStorage { .. }
            | OperationError::OutOfMemory { .. }
            | OperationError::Cancelled { .. }
            | OperationError::Timeout { .. } => Self::Engine(reason),
            _ => Self::Content(reason),
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => f.write_str("the collection was dropped"),
            Self::Engine(reason) | Self::Content(reason) => f.write_str(reason),
        }
    }
}

/// Operations for the engine, and the one journal record that holds them.
pub(super) struct Update {
    operations: Vec<UpdateOperation>,
    record: Vec<u8>,
}

impl Update {
    /// Encodes the record. Call it on a blocking thread for many points.
    pub(super) fn new(operations: Vec<UpdateOperation>) -> Result<Self, Failure> {
        let record = journal::record(&operations).map_err(|e| Failure::Engine(e.to_string()))?;
        Ok(Self { operations, record })
    }
}

struct Writer {
    queue: mpsc::Sender<Job>,
    /// Returns the journal when it ends.
    thread: JoinHandle<Journal>,
}

struct Job {
    update: Update,
    done: oneshot::Sender<Result<(), Failure>>,
}

impl Collection {
    /// Makes an empty collection with its payload indexes. A crash before the end
    /// leaves no collection of that name.
    pub(super) fn create(
        folder: &Arc<Folder>,
        name: &str,
        spec: &CollectionSpec,
        on_disk: bool,
    ) -> Result<Self, String> {
        // It is there if it was made before, but could not be opened.
        if !folder.collection(name).exists() {
            Self::make(folder, name, spec, on_disk)?;
        }
        Self::load(folder, name)
    }

    fn make(
        folder: &Folder,
        name: &str,
        spec: &CollectionSpec,
        on_disk: bool,
    ) -> Result<(), String> {
        let dir = folder.unfinished(name);
        let failed = |what: &str, error: &dyn Display| format!("{what} {}: {error}", dir.display());
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(|error| failed("cannot clear", &error))?;
        }
        let shard_dir = dir.join("shard");
        folder::make_private(&shard_dir).map_err(|error| failed("cannot make", &error))?;
        let shard = EdgeShard::new(&shard_dir, convert::shard_config(spec, on_disk))
            .map_err(|error| failed("cannot make a shard in", &error))?;
        apply(&shard, convert::field_indexes())
            .map_err(|error| failed("cannot index payloads in", &error))?;
        close_shard(shard).map_err(|error| failed("cannot flush", &error))?;
        folder::save_spec(&dir, spec)
            .map_err(|error| failed("cannot write elf.json in", &error))?;
        folder
            .rename_unfinished(name)
            .map_err(|error| failed("cannot name", &error))
    }

    /// Opens a collection that is there, and applies what its journal holds.
    pub(super) fn load(folder: &Arc<Folder>, name: &str) -> Result<Self, String> {
        let dir = folder.collection(name);
        let broken = |error: &dyn Display| {
            format!(
                "the collection in {} cannot be read: {error}; move that folder elsewhere and run \
                 `elf rebuild`, which fills a new one from Postgres",
                dir.display()
            )
        };
        let spec = folder::load_spec(&dir).map_err(|error| broken(&error))?;
        let bm25 = convert::bm25(&spec.bm25).map_err(|error| broken(&error))?;
        folder::await_log(&dir).map_err(|error| broken(&format!("the engine's log: {error}")))?;
        folder::trim_log(&dir).map_err(|error| broken(&format!("the engine's log: {error}")))?;
        let shard = unpanicked(|| EdgeShard::load(&dir.join("shard"), None))
            .map_err(|error| broken(&error))?;
        let journal = Journal::open(&dir.join("journal"), |operations| {
            if let Err(error) = apply(&shard, operations) {
                // It failed before the crash as well, and its caller got the error.
                tracing::warn!(
                    collection = name,
                    %error,
                    "journal update skipped"
                );
            }
        });
        let journal = journal.map_err(|error| broken(&format!("its journal: {error}")))?;
        let shard = Arc::new(RwLock::new(Some(shard)));
        let writer = Writer::start(name, shard.clone(), journal).map_err(|error| broken(&error))?;
        Ok(Self {
            spec,
            bm25,
            shard,
            writer: Mutex::new(Some(writer)),
            _folder: folder.clone(),
        })
    }

    /// Reads. Blocks: not for an async thread.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&EdgeShard) -> OperationResult<T>,
    ) -> Result<T, Failure> {
        let shard = self.shard.read().expect(POISON);
        let shard = shard.as_ref().ok_or(Failure::Dropped)?;
        unpanicked(|| read(shard))
    }

    /// Applies an update; it is on disk when this returns `Ok`.
    pub(super) async fn write(&self, update: Update) -> Result<(), Failure> {
        let (done, answer) = oneshot::channel();
        {
            let writer = self.writer.lock().expect(POISON);
            let writer = writer.as_ref().ok_or(Failure::Dropped)?;
            // If the writer has stopped, `answer` fails below.
            let _ = writer.queue.send(Job { update, done });
        }
        let stopped = || Failure::Engine("its writer has stopped; restart elf".into());
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Stops the writer after its queue is empty, and closes the shard. Reads and
    /// writes fail from then on. Blocks.
    pub(super) fn close(&self) {
        let writer = self.writer.lock().expect(POISON).take();
        let journal = writer.and_then(Writer::stop);
        let shard = self.shard.write().expect(POISON).take();
        let (Some(mut journal), Some(shard)) = (journal, shard) else {
            return;
        };
        if close_shard(shard).is_ok() {
            // If this fails, the next opening applies the journal again, to the same effect.
            let _ = journal.clear();
        }
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.close();
    }
}

impl Writer {
    fn start(name: &str, shard: Arc<Shard>, journal: Journal) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("index {name}"))
            .spawn(move || write_all(&jobs, &shard, journal))?;
        Ok(Self { queue, thread })
    }

    fn stop(self) -> Option<Journal> {
        drop(self.queue);
        self.thread.join().ok()
    }
}

/// The writer thread. It ends when the queue is closed.
fn write_all(jobs: &mpsc::Receiver<Job>, shard: &Shard, mut journal: Journal) -> Journal {
    let mut flush_at = FLUSH_EVERY_BYTES;
    while let Ok(first) = jobs.recv() {
        let group: Vec<Job> = iter::once(first)
            .chain(jobs.try_iter().take(GROUP - 1))
            .collect();
        let shard = shard.read().expect(POISON);
        let shard = shard
            .as_ref()
            .expect("the shard is closed after its writer");
        write_group(shard, &mut journal, group);
        if journal.bytes() < flush_at {
            continue;
        }
        flush_at = match flush(shard, &mut journal) {
            Ok(()) => FLUSH_EVERY_BYTES,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "embedded index flush failed, journal keeps growing"
                );
                journal.bytes() + FLUSH_EVERY_BYTES
            }
        };
    }
    journal
}

fn write_group(shard: &EdgeShard, journal: &mut Journal, group: Vec<Job>) {
    if let Err(error) = journal.append(group.iter().map(|job| job.update.record.as_slice())) {
        let failure = Failure::Engine(format!("cannot write its journal: {error}"));
        return group
            .into_iter()
            .for_each(|job| answer(job.done, Err(failure.clone())));
    }
    for job in group {
        answer(job.done, apply(shard, job.update.operations));
    }
}

/// The caller may have stopped waiting; its update is applied all the same.
fn answer(done: oneshot::Sender<Result<(), Failure>>, result: Result<(), Failure>) {
    let _ = done.send(result);
}

fn apply(shard: &EdgeShard, operations: Vec<UpdateOperation>) -> Result<(), Failure> {
    operations
        .into_iter()
        .try_for_each(|operation| unpanicked(|| shard.update(operation)))
}

fn flush(shard: &EdgeShard, journal: &mut Journal) -> Result<(), Failure> {
    unpanicked(|| {
        shard.flush();
        Ok(())
    })?;
    journal
        .clear()
        .map_err(|error| Failure::Engine(error.to_string()))
}

/// Dropping a shard flushes it, which panics when the disk is full.
fn close_shard(shard: EdgeShard) -> Result<(), Failure> {
    unpanicked(move || {
        drop(shard);
        Ok(())
    })
}

/// Turns a panic into an error. The engine panics on what it does not expect, such as
/// a full disk; its locks stay usable.
fn unpanicked<T>(call: impl FnOnce() -> Result<T, OperationError>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| Failure::of(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Err(Failure::Engine(format!(
                "the engine panicked: {}",
                text.unwrap_or("no message")
            )))
        }
    }
}
