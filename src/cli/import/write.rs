//! Writes notes in batches, and counts them.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use uuid::Uuid;

use super::Args;
use super::folder::PassedOver;
use crate::cli::output::print_error;
use crate::error_class::ErrorClass;
use crate::store::{ImportedNote, KeyOwner, Outcome, Store, StoreError, Written};

/// Notes in one statement.
pub(super) const BATCH_NOTES: usize = 500;
/// Text in one statement, roughly.
const BATCH_BYTES: usize = 4 << 20;

/// A note, and where it was read.
pub(super) struct Placed {
    pub place: String,
    pub note: ImportedNote,
    /// The file whose note it was, if that is another one.
    pub moved_from: Option<String>,
}

impl Placed {
    pub fn new(place: String, note: ImportedNote) -> Self {
        Self {
            place,
            note,
            moved_from: None,
        }
    }
}

/// A note, or why there is none.
pub(super) type Read = Result<Placed, Unread>;

pub(super) enum Unread {
    /// What is wrong with what was read, and where.
    Problem(String),
    /// Why a file could not be read: what it says is unknown.
    Unreadable(String),
    /// A file that has no text.
    Binary,
}

/// What an import did.
#[derive(Default)]
pub(super) struct Done {
    pub read: u64,
    pub added: u64,
    pub changed: u64,
    pub moved: u64,
    pub deleted: u64,
    /// Changed notes that are archived or expired, and stay so.
    pub not_live: u64,
    pub skipped: u64,
    pub passed_over: PassedOver,
    /// Notes of which no part is embedded.
    pub left_out: u64,
    /// What would change, in a dry run.
    pub changes: Vec<FileChange>,
}

/// What would become of the note of a file.
#[derive(Serialize)]
pub(super) struct FileChange {
    pub change: Change,
    pub file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Added,
    Changed,
    Moved,
    Deleted,
}

impl Done {
    /// Whether no note differed.
    pub fn is_equal(&self) -> bool {
        self.added + self.changed + self.moved + self.deleted == 0
    }

    pub fn skip(&mut self, problem: &str) {
        print_error(&format!("elf: skipped {problem}"));
        self.skipped += 1;
    }

    fn count(&mut self, written: Written, placed: &Placed, outcome: Outcome) {
        let (count, change) = match (&placed.moved_from, written.is_new) {
            (Some(_), _) => (&mut self.moved, Change::Moved),
            (None, true) => (&mut self.added, Change::Added),
            (None, false) => (&mut self.changed, Change::Changed),
        };
        *count += 1;
        self.not_live += u64::from(!written.is_live);
        if outcome == Outcome::RollBack
            && let Some(origin) = &placed.note.origin
        {
            self.changes.push(FileChange {
                change,
                file: origin.source_id.clone(),
                from: placed.moved_from.clone(),
            });
        }
    }
}

/// Writes notes to Postgres.
pub(super) struct Writer<'a> {
    pub store: &'a Store,
    pub args: &'a Args,
    pub outcome: Outcome,
    /// Whether no part of a note is embedded.
    pub is_left_out: &'a dyn Fn(&ImportedNote) -> bool,
    pub done: Done,
    batch: Vec<Placed>,
    bytes: usize,
}

impl<'a> Writer<'a> {
    pub fn new(
        store: &'a Store,
        args: &'a Args,
        is_left_out: &'a dyn Fn(&ImportedNote) -> bool,
    ) -> Self {
        Self {
            store,
            args,
            outcome: Outcome::Commit,
            is_left_out,
            done: Done::default(),
            batch: Vec::new(),
            bytes: 0,
        }
    }

    /// Writes all of them.
    pub async fn write_all(mut self, notes: impl Iterator<Item = Read>) -> anyhow::Result<Done> {
        for note in notes {
            self.add(note).await?;
        }
        self.finish().await
    }

    /// Writes a note, or takes it for the next batch.
    pub async fn add(&mut self, note: Read) -> anyhow::Result<()> {
        match note {
            Ok(placed) => {
                self.done.left_out += u64::from((self.is_left_out)(&placed.note));
                self.bytes += placed.note.text.len();
                self.batch.push(placed);
            }
            Err(Unread::Problem(problem) | Unread::Unreadable(problem)) => self.done.skip(&problem),
            Err(Unread::Binary) => self.done.passed_over.binary += 1,
        }
        if self.batch.len() >= BATCH_NOTES || self.bytes >= BATCH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Writes the last batch.
    pub async fn finish(mut self) -> anyhow::Result<Done> {
        self.flush().await?;
        Ok(self.done)
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        self.done.read += batch.len() as u64;
        self.find_by_key(&mut batch).await?;
        self.drop_foreign(&mut batch).await?;
        let mut rejected = Vec::new();
        while !batch.is_empty() {
            let (part, rest) = distinct(batch);
            self.write_or_split(part, &mut rejected).await?;
            batch = rest;
        }
        // The key of one may have been that of another until now, or of a note that was written meanwhile.
        self.find_by_key(&mut rejected).await?;
        for placed in rejected {
            match self.store.import(&[&placed.note], self.outcome).await {
                Ok(written) => self.count(&written, &[placed]),
                Err(error) if error.class() == ErrorClass::Item => {
                    let place = &placed.place;
                    self.done.skip(&format!(
                        "{place}: Postgres does not accept the note: {error}"
                    ));
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    fn count(&mut self, written: &[Written], notes: &[Placed]) {
        let placed: HashMap<Uuid, &Placed> = notes
            .iter()
            .map(|placed| (placed.note.note_id, placed))
            .collect();
        for written in written {
            self.done
                .count(*written, placed[&written.note_id], self.outcome);
        }
    }

    /// Gives notes the ids of those that have their keys. Of a file that is synced, only a note that follows nothing
    /// else can be the note.
    async fn find_by_key(&mut self, batch: &mut Vec<Placed>) -> anyhow::Result<()> {
        let keyed = batch.iter().map(|placed| &placed.note);
        let keyed: Vec<&ImportedNote> = keyed.filter(|note| note.is_keyed).collect();
        if keyed.is_empty() {
            return Ok(());
        }
        let owners = self.store.owners_of_keys(&keyed).await.map_err(failed)?;
        let mut owners = owners.into_iter();
        let done = &mut self.done;
        batch.retain_mut(|Placed { place, note, .. }| {
            if !note.is_keyed {
                return true;
            }
            let owner = owners.next().expect("each key has an answer");
            match id_of(note, &owner) {
                Ok(id) => note.note_id = id,
                Err(problem) => {
                    done.skip(&format!("{place}: {problem}"));
                    return false;
                }
            }
            true
        });
        Ok(())
    }

    /// Takes out notes that belong to another tenant than the one that all must be of.
    async fn drop_foreign(&mut self, batch: &mut Vec<Placed>) -> anyhow::Result<()> {
        let Some(tenant) = self.args.only_tenant() else {
            return Ok(());
        };
        let ids: Vec<Uuid> = batch.iter().map(|placed| placed.note.note_id).collect();
        let foreign = self
            .store
            .notes_of_others(&ids, tenant)
            .await
            .map_err(failed)?;
        let foreign: HashSet<Uuid> = foreign.into_iter().collect();
        batch.retain(|Placed { place, note, .. }| {
            let is_foreign = foreign.contains(&note.note_id);
            if is_foreign {
                let id = note.note_id;
                self.done.skip(&format!(
                    "{place}: a note of another tenant has the id {id}"
                ));
            }
            !is_foreign
        });
        Ok(())
    }

    /// Writes notes; what Postgres rejects is halved until a note stands alone.
    async fn write_or_split(
        &mut self,
        notes: Vec<Placed>,
        rejected: &mut Vec<Placed>,
    ) -> anyhow::Result<()> {
        let mut parts = vec![notes];
        while let Some(mut part) = parts.pop() {
            let notes: Vec<&ImportedNote> = part.iter().map(|placed| &placed.note).collect();
            match self.store.import(&notes, self.outcome).await {
                Ok(written) => self.count(&written, &part),
                Err(error) if error.class() != ErrorClass::Item => return Err(failed(error)),
                Err(_) if part.len() == 1 => rejected.append(&mut part),
                Err(_) => {
                    let second = part.split_off(part.len() / 2);
                    parts.extend([second, part]);
                }
            }
        }
        Ok(())
    }
}

/// The id of the note that a key names.
fn id_of(note: &ImportedNote, owner: &KeyOwner) -> Result<Uuid, String> {
    match (&owner.note, &note.origin) {
        (Some((id, Some(other))), Some(origin)) if other != origin => Err(format!(
            "the note {id}, which follows {} of {}, has its key; give each folder a --project of its own",
            other.source_id, other.source
        )),
        (Some((id, _)), _) => Ok(*id),
        (None, _) if owner.is_id_taken => Ok(Uuid::new_v4()),
        (None, _) => Ok(note.note_id),
    }
}

/// The first of each note, and the rest: one statement cannot write a row twice.
fn distinct(notes: Vec<Placed>) -> (Vec<Placed>, Vec<Placed>) {
    let mut seen = HashSet::new();
    notes
        .into_iter()
        .partition(|placed| seen.insert(placed.note.note_id))
}

pub(super) fn failed(error: StoreError) -> anyhow::Error {
    anyhow::Error::new(error).context("failed to write notes")
}
