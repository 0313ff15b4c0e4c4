//! `elf import FOLDER --sync`: makes the notes of a folder equal to its files.
//!
//! A note of a folder has its name in `source` and the path of its file below it in `source_id`. Only a sync writes
//! them, so a sync changes and deletes what a sync of the same folder, in the same tenant, wrote. It takes a note over
//! that follows nothing yet and has the key of a file: an import without `--sync` wrote it.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Context;
use uuid::Uuid;

use super::DEFAULT_TENANT;
use super::folder::{Files, TextFile, shown};
use super::note::{self, Synced};
use super::read::Reading;
use super::write::{BATCH_NOTES, Change, Done, FileChange, Unread, Writer, failed};
use crate::cli::output::counted;
use crate::note::{TextHash, check_label};
use crate::store::{ImportedNote, Origin, Outcome, Store};
use crate::unicode::composed;

/// The name of a folder begins with it. A table of `[[sources]]` cannot have such a name.
const FOLDER: &str = "folder:";

/// Notes of a folder in one statement.
const PAGE: i64 = 10_000;

/// More than half of the notes would go.
#[derive(Debug, thiserror::Error)]
#[error(
    "the files of {gone} of the {} of {folder} are gone or no texts any more, and no note was deleted: is a disk not \
     mounted, or the folder another one? --dry-run lists them, --force deletes them",
    counted(*notes, "note", "notes")
)]
pub(super) struct Refused {
    gone: u64,
    notes: u64,
    folder: String,
}

/// A folder that is kept equal to its notes.
pub(super) struct Sync<'a> {
    store: &'a Store,
    reading: Reading<'a>,
    is_left_out: &'a dyn Fn(&ImportedNote) -> bool,
    /// Its name in `source`.
    source: String,
}

/// A note of the folder whose file is not there, or no text any more.
type Gone = (Uuid, String);

/// What is to be done with the notes.
#[derive(Default)]
struct Plan {
    /// By file.
    notes: HashMap<String, Uuid>,
    /// Of a file that has no note: the note of the file that it was.
    moved: HashMap<String, Gone>,
    gone: Vec<Gone>,
}

impl<'a> Sync<'a> {
    /// Names the folder of the arguments.
    pub fn new(
        store: &'a Store,
        reading: Reading<'a>,
        is_left_out: &'a dyn Fn(&ImportedNote) -> bool,
    ) -> anyhow::Result<Self> {
        let args = reading.args;
        let name = shown(&args.path);
        let metadata = args.path.metadata();
        let metadata = metadata.with_context(|| format!("failed to read {name}"))?;
        anyhow::ensure!(metadata.is_dir(), "{name} is no folder: --sync takes one");
        args.refuse_fields(&name)?;
        let source = match &args.source {
            Some(name) => format!("{FOLDER}{name}"),
            None => folder_name(&args.path)?,
        };
        let checked = check_label("source", &source);
        checked.map_err(|problem| anyhow::anyhow!("{problem}; name the folder with --source"))?;
        Ok(Self {
            store,
            reading,
            is_left_out,
            source,
        })
    }

    /// The files as they are now.
    pub fn files(&self) -> Files {
        Files::of(&self.reading.args.path)
    }

    /// Makes the notes equal to the files. `is_synced` says of a file that its note has its text already.
    pub async fn run(
        &self,
        mut files: Files,
        is_synced: &dyn Fn(&TextFile) -> bool,
    ) -> anyhow::Result<Done> {
        let args = self.reading.args;
        let mut plan = self.plan(&files).await?;
        self.check(&plan)?;
        let mut writer = Writer::new(self.store, args, self.is_left_out);
        if args.dry_run {
            writer.outcome = Outcome::RollBack;
        }
        writer.done.passed_over = std::mem::take(&mut files.passed_over);
        for problem in std::mem::take(&mut files.problems) {
            writer.add(Err(Unread::Problem(problem))).await?;
        }
        for file in files.texts.iter().filter(|file| !is_synced(file)) {
            let moved = plan.moved.get(&file.key);
            let synced = Synced {
                origin: Origin {
                    source: self.source.clone(),
                    source_id: file.key.clone(),
                },
                note_id: plan
                    .notes
                    .get(&file.key)
                    .or(moved.map(|(id, _)| id))
                    .copied(),
                is_moved: moved.is_some(),
            };
            let read = self.reading.file(&files.path_of(file), |contents| {
                note::of_synced(contents, args, synced)
            });
            let read = read.map(|mut placed| {
                placed.moved_from = moved.map(|(_, from)| from.clone());
                placed
            });
            if let Err(Unread::Problem(_) | Unread::Binary) = &read
                && let Some(id) = plan.notes.get(&file.key)
            {
                plan.gone.push((*id, file.key.clone()));
            }
            writer.add(read).await?;
        }
        let mut done = writer.finish().await?;
        self.check(&plan)?;
        self.delete(&plan.gone, &mut done).await?;
        done.changes.sort_by(|a, b| a.file.cmp(&b.file));
        Ok(done)
    }

    async fn delete(&self, gone: &[Gone], done: &mut Done) -> anyhow::Result<()> {
        if self.reading.args.dry_run {
            done.deleted = gone.len() as u64;
            done.changes.extend(gone.iter().map(|(_, file)| FileChange {
                change: Change::Deleted,
                file: file.clone(),
                from: None,
            }));
            return Ok(());
        }
        for gone in gone.chunks(BATCH_NOTES) {
            let deleted = self.store.delete_synced(&self.source, self.tenant(), gone);
            done.deleted += deleted.await.context("failed to delete notes")?;
        }
        Ok(())
    }

    fn tenant(&self) -> &str {
        self.reading
            .args
            .tenant
            .as_deref()
            .unwrap_or(DEFAULT_TENANT)
    }

    /// Refuses what a wrong folder, or one that is empty by accident, would cost.
    fn check(&self, plan: &Plan) -> Result<(), Refused> {
        let (gone, notes) = (plan.gone.len() as u64, plan.notes.len() as u64);
        let args = self.reading.args;
        match 2 * gone > notes && !args.force && !args.dry_run {
            true => Err(Refused {
                gone,
                notes,
                folder: self.source.clone(),
            }),
            false => Ok(()),
        }
    }

    async fn plan(&self, files: &Files) -> anyhow::Result<Plan> {
        let notes = self.notes().await?;
        let is_gone = |file: &str| !files.has(file) && !files.may_have(file);
        let gone = notes.iter().filter(|(file, _)| is_gone(file));
        let mut gone: Vec<Gone> = gone.map(|(file, id)| (*id, file.clone())).collect();
        gone.sort();
        let new: Vec<&TextFile> = match gone.as_slice() {
            [] => Vec::new(),
            _ => files
                .texts
                .iter()
                .filter(|file| !notes.contains_key(&file.key))
                .collect(),
        };
        let moved = match new.as_slice() {
            [] => HashMap::new(),
            _ => self.moved(files, &new, &gone).await?,
        };
        let mut plan = Plan { notes, moved, gone };
        let kept: Vec<&Gone> = plan.moved.values().collect();
        plan.gone.retain(|gone| !kept.contains(&gone));
        Ok(plan)
    }

    /// The notes of the folder, by file.
    async fn notes(&self) -> anyhow::Result<HashMap<String, Uuid>> {
        let mut notes = HashMap::new();
        let mut after = Uuid::nil();
        loop {
            let page = self
                .store
                .synced_notes(&self.source, self.tenant(), after, PAGE);
            let page = page
                .await
                .context("failed to read the notes of the folder")?;
            let Some((last, _)) = page.last() else {
                return Ok(notes);
            };
            after = *last;
            notes.extend(page.into_iter().map(|(id, file)| (file, id)));
        }
    }

    /// Which new files have the text of a note whose file is gone. Its note is theirs: it keeps its id and its vectors.
    async fn moved(
        &self,
        files: &Files,
        new: &[&TextFile],
        gone: &[Gone],
    ) -> anyhow::Result<HashMap<String, Gone>> {
        let mut by_text: HashMap<Vec<u8>, Vec<Gone>> = HashMap::new();
        for gone in gone.chunks(BATCH_NOTES) {
            let ids: Vec<Uuid> = gone.iter().map(|(id, _)| *id).collect();
            let hashes: HashMap<Uuid, Vec<u8>> = self
                .store
                .text_hashes(&ids)
                .await
                .map_err(failed)?
                .into_iter()
                .collect();
            for gone in gone {
                if let Some(hash) = hashes.get(&gone.0) {
                    by_text.entry(hash.clone()).or_default().push(gone.clone());
                }
            }
        }
        let mut moved = HashMap::new();
        for file in new {
            // What cannot be read is named when it is to be written.
            let Ok(Some(contents)) = self.reading.contents(&files.path_of(file)) else {
                continue;
            };
            let hash = TextHash::of(&contents.text).0;
            if let Some(gone) = by_text
                .get_mut(hash.as_slice())
                .and_then(|gone| take_like(gone, &file.key))
            {
                moved.insert(file.key.clone(), gone);
            }
        }
        Ok(moved)
    }
}

/// Takes the one of several notes of one text whose file had the same name, else any.
fn take_like(gone: &mut Vec<Gone>, key: &str) -> Option<Gone> {
    let name = |key: &str| key.rsplit('/').next().map(str::to_owned);
    let same = gone.iter().position(|(_, file)| name(file) == name(key));
    match same {
        Some(at) => Some(gone.swap_remove(at)),
        None => gone.pop(),
    }
}

/// The name of a folder that has none: its path, however it is given.
fn folder_name(path: &Path) -> anyhow::Result<String> {
    let whole = path.canonicalize();
    let whole = whole.with_context(|| format!("failed to resolve {}", shown(path)))?;
    let text = whole.to_str();
    let text = text.with_context(|| {
        format!(
            "{} is not UTF-8; name the folder with --source",
            shown(&whole)
        )
    })?;
    Ok(format!("{FOLDER}{}", composed(text)))
}
