//! `elf import FOLDER --sync --watch`: syncs again whenever files change.
//!
//! It looks at the folder again and again: that sees each change on every file system, also one over a network, needs
//! no watch per folder from the system, and loses no event.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::folder::{Files, TextFile};
use super::report;
use super::sync::{Refused, Sync};
use crate::cli::output::{Output, print_error, with_causes};
use crate::cli::signals::stop_on_signals;
use crate::store::StoreError;

/// Between two looks, if these are quick.
const PAUSE: Duration = Duration::from_secs(1);

/// A look at a large folder takes time: it has this share of it at most.
const SHARE_OF_LOOKS: u32 = 10;

/// Files that change all the time, such as logs, are read all the same after so long.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Before the next try, while Postgres is away.
const RETRY: Duration = Duration::from_secs(5);

/// What shows that a file was written: device, inode, size, and the times of the last write and change in nanoseconds.
type Stamp = (u64, u64, u64, i128, i128);

/// What a look at a folder saw.
#[derive(Default, PartialEq)]
struct Look {
    /// By file.
    stamps: HashMap<String, Stamp>,
    /// An empty folder is not one that cannot be read.
    problems: Vec<String>,
}

/// Syncs until a signal comes. An error that needs an operator ends it.
pub(super) async fn run(sync: &Sync<'_>, out: Output) -> anyhow::Result<()> {
    let stop = stop_on_signals("what is written already stays; start it again to go on")?;
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        ended = watch(sync, out, &stop) => ended,
    }
}

async fn watch(sync: &Sync<'_>, out: Output, stop: &CancellationToken) -> anyhow::Result<()> {
    let mut synced: Option<Arc<Look>> = None;
    // What was refused is refused again, until files change.
    let mut refused: Option<Arc<Look>> = None;
    let mut last: Option<Arc<Look>> = None;
    let mut changing_since: Option<Instant> = None;
    while !stop.is_cancelled() {
        let began = Instant::now();
        let (files, look) = tokio::task::block_in_place(|| {
            let files = sync.files();
            let look = Arc::new(Look::at(&files));
            (files, look)
        });
        let mut pause = PAUSE.max(SHARE_OF_LOOKS * began.elapsed());
        let is_known = synced.as_ref() == Some(&look) || refused.as_ref() == Some(&look);
        let is_first = synced.is_none() && refused.is_none();
        // A file may be half written, or gone until another one gets its name.
        let since = *changing_since.get_or_insert(began);
        let is_calm = is_first || last.as_ref() == Some(&look);
        if is_known {
            changing_since = None;
        } else if is_calm || since.elapsed() > LONGEST_WAIT {
            let before = synced.clone().unwrap_or_default();
            let is_synced = |file: &TextFile| look.is_as_in(&before, file);
            match sync.run(files, &is_synced).await {
                Ok(done) => {
                    if synced.is_none() || !done.is_equal() {
                        report(&done, out)?;
                    }
                    synced = Some(look.clone());
                    refused = None;
                    changing_since = None;
                }
                Err(error) if error.is::<Refused>() => {
                    print_error(&format!("elf: {}", with_causes(&error)));
                    refused = Some(look.clone());
                }
                Err(error) if may_pass(&error) => {
                    tracing::warn!(
                        error = with_causes(&error),
                        "sync interrupted; trying again"
                    );
                    pause = pause.max(RETRY);
                }
                Err(error) => return Err(error),
            }
        }
        last = Some(look);
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

fn may_pass(error: &anyhow::Error) -> bool {
    let of_store = error.downcast_ref::<StoreError>();
    of_store.is_some_and(|error| error.class().may_pass())
}

impl Look {
    fn at(files: &Files) -> Self {
        let stamp = |file: &TextFile| {
            let metadata = files.path_of(file).symlink_metadata().ok()?;
            let time = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
            Some((
                metadata.dev(),
                metadata.ino(),
                metadata.size(),
                time(metadata.mtime(), metadata.mtime_nsec()),
                time(metadata.ctime(), metadata.ctime_nsec()),
            ))
        };
        let stamped = |file: &TextFile| Some((file.key.clone(), stamp(file)?));
        Self {
            stamps: files.texts.iter().filter_map(stamped).collect(),
            problems: files.problems.clone(),
        }
    }

    /// Whether a file is as it was at another look.
    fn is_as_in(&self, before: &Self, file: &TextFile) -> bool {
        let now = self.stamps.get(&file.key);
        now.is_some() && now == before.stamps.get(&file.key)
    }
}
