//! The data folder: its lock, its layout, and writes that are whole or undone
//! after a crash.
//!
//! ```text
//! DIR/lock                        held by the one process that has DIR open
//! DIR/socket                      where that process answers the others
//! DIR/id                          a UUID that moves with the folder
//! DIR/aliases.json                {"notes": "notes__1"}
//! DIR/collections/<name>/elf.json what the engine does not keep
//! DIR/collections/<name>/journal  updates that the engine has not flushed yet
//! DIR/collections/<name>/shard/   the engine's own files
//! DIR/collections/.<anything>     half made or half dropped; removed at opening
//! ```
//!
//! The index tells what is in notes, so only its user may read it: folders are 0700 and files 0600.
//! The engine's own files are below `collections`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::socket;
use crate::index::{CollectionSpec, IndexPlace};

const ID: &str = "id";

/// A data folder that this process alone has open.
#[derive(Debug)]
pub(super) struct Folder {
    dir: PathBuf,
    /// Locked as long as it is open; the system unlocks it however the process
    /// ends.
    lock: File,
}

/// Why a folder cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// Another process, or another part of this one, has it open.
    #[error("the folder is in use by {holder}")]
    Held { holder: String },
    /// The file system refused.
    #[error("the folder {dir} cannot be used: {error}")]
    Io { dir: String, error: io::Error },
}

impl Folder {
    /// Makes the folder if necessary, locks it and removes the leftovers of a crash.
    pub(super) fn open(dir: PathBuf) -> Result<Self, OpenError> {
        let io_error = |error| OpenError::Io {
            dir: dir.display().to_string(),
            error,
        };
        make_private(&dir).map_err(io_error)?;
        let collections = dir.join("collections");
        make_private(&collections).map_err(io_error)?;
        // Also in a folder that an operator made.
        fs::set_permissions(&collections, Permissions::from_mode(0o700)).map_err(io_error)?;
        let lock = private_file()
            .read(true)
            .truncate(false)
            .open(dir.join("lock"))
            .map_err(io_error)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Held {
                    holder: holder(lock),
                });
            }
            Err(TryLockError::Error(error)) => return Err(io_error(error)),
        }
        write_holder(&lock).map_err(io_error)?;
        ensure_id(&dir).map_err(io_error)?;
        remove_leftovers(&collections).map_err(io_error)?;
        Ok(Self { dir, lock })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn collections(&self) -> PathBuf {
        self.dir.join("collections")
    }

    /// Where a collection lies.
    pub(super) fn collection(&self, name: &str) -> PathBuf {
        self.collections().join(name)
    }

    /// Where a collection lies while it is made.
    pub(super) fn unfinished(&self, name: &str) -> PathBuf {
        self.collections().join(format!(".new-{name}"))
    }

    /// The names of the collections.
    pub(super) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.collections())? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        Ok(names)
    }

    /// Moves a collection that is complete from [`Self::unfinished`] to its name.
    pub(super) fn rename_unfinished(&self, name: &str) -> io::Result<()> {
        fs::rename(self.unfinished(name), self.collection(name))?;
        sync(&self.collections())
    }

    /// Removes a collection: first its name, in one step, then its files.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let dropped = self.collections().join(format!(".dropped-{name}"));
        match fs::rename(self.collection(name), &dropped) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
        sync(&self.collections())?;
        fs::remove_dir_all(dropped)
    }

    /// Reads which collection each alias points at.
    pub(super) fn aliases(&self) -> io::Result<BTreeMap<String, String>> {
        match fs::read(self.dir.join("aliases.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error),
        }
    }

    /// Writes which collection each alias points at.
    pub(super) fn save_aliases(&self, aliases: &BTreeMap<String, String>) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(aliases).map_err(io::Error::other)?;
        write_durably(&self.dir.join("aliases.json"), &bytes)
    }
}

impl Drop for Folder {
    /// Closing the file would leave the lock with a child process that another thread is starting.
    fn drop(&mut self) {
        // Under the lock: later it may be the socket of the next process.
        drop(socket::remove(&self.dir));
        drop(self.lock.unlock());
    }
}

/// Where a folder is, by a name that no other folder has. It need not be open.
pub(super) fn place(dir: &Path) -> IndexPlace {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    IndexPlace {
        place: format!(
            "embedded:{} on {}",
            without_dots(dir).display(),
            host.trim()
        ),
        // One that cannot be read is another one than recorded.
        id: id_of(dir).ok().flatten(),
    }
}

/// A folder without `..`, for messages.
pub(super) fn without_dots(dir: &Path) -> PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}

fn ensure_id(dir: &Path) -> io::Result<()> {
    match id_of(dir)? {
        Some(_) => Ok(()),
        None => write_durably(&dir.join(ID), Uuid::new_v4().to_string().as_bytes()),
    }
}

/// The folder's id, if it has one.
fn id_of(dir: &Path) -> io::Result<Option<Uuid>> {
    match fs::read_to_string(dir.join(ID)) {
        Ok(text) => text.trim().parse().map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes what a crash left half made or half dropped.
fn remove_leftovers(collections: &Path) -> io::Result<()> {
    for entry in fs::read_dir(collections)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// What the lock file says of the process that holds it.
fn holder(mut lock: File) -> String {
    let mut text = String::new();
    match lock.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another process".into(),
    }
}

fn write_holder(mut lock: &File) -> io::Result<()> {
    lock.set_len(0)?;
    writeln!(lock, "{}", this_process())
}

/// What other processes call this one: `process 4711 (elf)`.
pub(super) fn this_process() -> String {
    let program = std::env::current_exe().ok();
    let program = program
        .as_deref()
        .and_then(Path::file_name)
        .map_or("elf".into(), |name| name.to_string_lossy());
    format!("process {} ({program})", std::process::id())
}

/// Replaces a file: after a crash it is the old one or the new one.
fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let draft = path.with_extension("draft");
    let mut file = private_file().truncate(true).open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    sync(path.parent().expect("a file lies in a folder"))
}

/// Makes a folder for this user alone, if it is not there, and the folders above it as usual.
pub(super) fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made,
    }
}

/// Opens a file to write, and makes it for this user alone.
pub(super) fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    options
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// How long a child process may keep the lock of an engine's log. It needs milliseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Waits until the engine's log of the collection in `dir` is unlocked. Who closed it in this
/// process may have left the lock with a child process that another thread was starting, which
/// keeps it until it executes its program.
pub(super) fn await_log(dir: &Path) -> io::Result<()> {
    let log = File::open(dir.join("shard").join("wal"))?;
    let began = Instant::now();
    loop {
        match log.try_lock() {
            Ok(()) => return log.unlock(),
            Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_LIMIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Trims the engine's log of the collection in `dir`, which must not be open. Removes its full
/// segments (`closed-<first entry>`) except the last, which says where the next entry is. The
/// engine never reads the log back.
pub(super) fn trim_log(dir: &Path) -> io::Result<()> {
    let mut full = Vec::new();
    for entry in fs::read_dir(dir.join("shard").join("wal"))? {
        let entry = entry?;
        let name = entry.file_name();
        let first = name.to_str().and_then(|name| name.strip_prefix("closed-"));
        if let Some(first) = first.and_then(|first| first.parse::<u64>().ok()) {
            full.push((first, entry.path()));
        }
    }
    // Oldest first, so that a crash in between leaves no gap.
    full.sort_unstable();
    full.pop();
    for (_, segment) in full {
        fs::remove_file(segment)?;
    }
    Ok(())
}

/// Writes the spec of the collection that lies in `dir`, which the engine does not store, as `elf.json`.
pub(super) fn save_spec(dir: &Path, spec: &CollectionSpec) -> io::Result<()> {
    write_durably(
        &dir.join("elf.json"),
        &serde_json::to_vec_pretty(spec).map_err(io::Error::other)?,
    )
}

/// Reads the spec of the collection that lies in `dir`.
pub(super) fn load_spec(dir: &Path) -> io::Result<CollectionSpec> {
    serde_json::from_slice(&fs::read(dir.join("elf.json"))?).map_err(io::Error::other)
}
