//! One collection: a shard of the engine and the one thread that writes to it.
//!
//! The engine appends to its write-ahead log and never reads it back: after a
//! crash it loads its segments as they were last flushed. So an update counts
//! only once it is flushed, and a flush costs milliseconds whatever it holds.
//! The writer therefore takes everything that waits, applies it, flushes once
//! and answers all of it (group commit).
//!
//! `EdgeShard::flush` panics when an update runs beside it or the disk is full;
//! one thread does both, and takes the panic for an answer. The log is left as it
//! is, although it only grows: its index is the version of the next update, and a
//! version that begins again at 0 would make the engine ignore updates. A rebuild
//! begins with a new log.
//!
//! `EdgeShard::optimize` is never called: it blocks every reader and writer. Up
//! to some hundred thousand points a scan of all vectors answers in time, which
//! is what this engine is for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock, mpsc};
use std::thread::{self, JoinHandle};
use std::{fs, iter};

use qdrant_edge::bm25_embed::EdgeBm25;
use qdrant_edge::{EdgeShard, OperationError, OperationResult, UpdateOperation};
use tokio::sync::oneshot;

use super::convert;
use super::folder::{self, Folder};
use crate::index::CollectionSpec;

/// Updates under one flush, at most: bounds how long the first of them waits.
const GROUP: usize = 64;

const POISON: &str = "nobody panics while holding it";

/// An open collection.
pub(super) struct Collection {
    pub(super) spec: CollectionSpec,
    pub(super) bm25: EdgeBm25,
    shard: Arc<Shard>,
    writer: Mutex<Option<Writer>>,
    /// Held so that nobody opens the folder before the shard is closed.
    _folder: Arc<Folder>,
}

/// `None` once the collection is dropped.
type Shard = RwLock<Option<EdgeShard>>;

/// Why a collection did not do what it was asked.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It has been dropped meanwhile.
    Dropped,
    /// The engine failed.
    Engine(String),
}

struct Writer {
    queue: mpsc::Sender<Job>,
    thread: JoinHandle<()>,
}

struct Job {
    operations: Vec<UpdateOperation>,
    done: oneshot::Sender<Result<(), Failure>>,
}

impl Collection {
    /// Makes an empty collection with its payload indexes. A crash on the way
    /// leaves nothing that has its name.
    pub(super) fn create(
        folder: &Arc<Folder>,
        name: &str,
        spec: &CollectionSpec,
        on_disk: bool,
    ) -> Result<Self, String> {
        let dir = folder.unborn(name);
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            format!("{what} {}: {error}", dir.display())
        };
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(|error| failed("cannot clear", &error))?;
        }
        let shard_dir = dir.join("shard");
        fs::create_dir_all(&shard_dir).map_err(|error| failed("cannot make", &error))?;
        let shard = EdgeShard::new(&shard_dir, convert::shard_config(spec, on_disk))
            .map_err(|error| failed("cannot make a shard in", &error))?;
        for operation in convert::field_indexes() {
            shard
                .update(operation)
                .map_err(|error| failed("cannot index payloads in", &error))?;
        }
        flush(&shard).map_err(|error| failed("cannot flush", &error))?;
        drop(shard);
        folder::save_spec(&dir, spec)
            .map_err(|error| failed("cannot write elf.json in", &error))?;
        folder
            .adopt(name)
            .map_err(|error| failed("cannot name", &error))?;
        Self::load(folder, name)
    }

    /// Opens a collection that is there.
    pub(super) fn load(folder: &Arc<Folder>, name: &str) -> Result<Self, String> {
        let dir = folder.collection(name);
        let broken = |error: &dyn std::fmt::Display| {
            format!(
                "the collection in {} cannot be read: {error}; move that folder away and run `elf rebuild`, \
                 which fills a new one from Postgres",
                dir.display()
            )
        };
        let spec = folder::load_spec(&dir).map_err(|error| broken(&error))?;
        let bm25 = convert::bm25(&spec.bm25).map_err(|error| broken(&error))?;
        let shard = load_shard(&dir.join("shard")).map_err(|error| broken(&error))?;
        let shard = Arc::new(RwLock::new(Some(shard)));
        let writer = Writer::start(name, shard.clone()).map_err(|error| broken(&error))?;
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
        unpanicked(|| read(shard)).map_err(Failure::Engine)
    }

    /// Applies updates in order; they are on disk when this returns `Ok`.
    pub(super) async fn write(&self, operations: Vec<UpdateOperation>) -> Result<(), Failure> {
        let (done, answer) = oneshot::channel();
        {
            let writer = self.writer.lock().expect(POISON);
            let writer = writer.as_ref().ok_or(Failure::Dropped)?;
            let _ = writer.queue.send(Job { operations, done });
        }
        answer.await.unwrap_or_else(|_| {
            Err(Failure::Engine(
                "its writer has stopped; restart elf".into(),
            ))
        })
    }

    /// Ends the writer, after what waits for it, and closes the shard. Reads and
    /// writes fail from then on. Blocks.
    pub(super) fn close(&self) {
        if let Some(writer) = self.writer.lock().expect(POISON).take() {
            writer.stop();
        }
        // Dropping the shard flushes it once more, which it cannot do when the
        // disk is full: the panic must not go further than this.
        let shard = self.shard.write().expect(POISON).take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(shard)));
    }
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.close();
    }
}

fn load_shard(dir: &Path) -> Result<EdgeShard, String> {
    unpanicked(|| EdgeShard::load(dir, None))
}

impl Writer {
    fn start(name: &str, shard: Arc<Shard>) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("index {name}"))
            .spawn(move || write_all(&jobs, &shard))?;
        Ok(Self { queue, thread })
    }

    fn stop(self) {
        drop(self.queue);
        let _ = self.thread.join();
    }
}

/// The writer thread: as long as there is somebody to send jobs.
fn write_all(jobs: &mpsc::Receiver<Job>, shard: &Shard) {
    while let Ok(first) = jobs.recv() {
        let group: Vec<Job> = iter::once(first)
            .chain(jobs.try_iter().take(GROUP - 1))
            .collect();
        let shard = shard.read().expect(POISON);
        match shard.as_ref() {
            Some(shard) => write_group(shard, group),
            None => group
                .into_iter()
                .for_each(|job| answer(job.done, Err(Failure::Dropped))),
        }
    }
}

fn write_group(shard: &EdgeShard, group: Vec<Job>) {
    let mut applied = Vec::with_capacity(group.len());
    for job in group {
        match apply(shard, job.operations) {
            Ok(()) => applied.push(job.done),
            Err(reason) => answer(job.done, Err(Failure::Engine(reason))),
        }
    }
    if applied.is_empty() {
        return;
    }
    let flushed = flush(shard).map_err(Failure::Engine);
    for done in applied {
        answer(done, flushed.clone());
    }
}

/// Whoever asked may have stopped waiting; the update stands all the same.
fn answer(done: oneshot::Sender<Result<(), Failure>>, result: Result<(), Failure>) {
    let _ = done.send(result);
}

fn apply(shard: &EdgeShard, operations: Vec<UpdateOperation>) -> Result<(), String> {
    operations
        .into_iter()
        .try_for_each(|operation| unpanicked(|| shard.update(operation)))
}

fn flush(shard: &EdgeShard) -> Result<(), String> {
    unpanicked(|| {
        shard.flush();
        Ok(())
    })
}

/// The engine panics where it meets what it does not expect, a full disk among
/// it. Its locks survive that.
fn unpanicked<T>(call: impl FnOnce() -> Result<T, OperationError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied());
            Err(format!(
                "the engine panicked: {}",
                text.unwrap_or("without a word")
            ))
        }
    }
}
