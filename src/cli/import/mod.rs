//! `elf import`

mod folder;
mod lines;
mod note;
mod text;
mod title;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;
use uuid::Uuid;

use super::output::{Output, counted, print_error};
use super::{value, wiring};
use crate::config::Config;
use crate::error_class::ErrorClass;
use crate::eval::Document;
use crate::store::{Imported, ImportedNote, Store, StoreError};
use folder::{Files, PassedOver, is_text, key_of, may_be_jsonl, shown};
use lines::Place;
use note::Line;
pub(super) use title::of_file as title_of_file;

/// Notes in one statement.
const BATCH_NOTES: usize = 500;
/// Text in one statement, roughly.
const BATCH_BYTES: usize = 4 << 20;

/// JSON writes a character in six bytes at most, and a line has other fields.
const JSON_OF_A_BYTE: u64 = 6;
const MAX_OTHER_FIELDS: u64 = 1 << 20;

/// The tenant of notes that name none.
pub const DEFAULT_TENANT: &str = "default";

/// Arguments of `elf import`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// A folder of .md, .txt and .log files, one such file, or JSONL; - for JSONL from stdin
    path: PathBuf,
    /// The tenant of the notes; a JSONL line that names another one is skipped [default: the line's tenant_id, else
    /// default]
    #[arg(long, value_parser = value::tenant)]
    tenant: Option<String>,
    /// Accept lines that name another tenant than --tenant
    #[arg(long, requires = "tenant")]
    tenant_from_file: bool,
    /// The project, where a line has no project_id [default: default]
    #[arg(long)]
    project: Option<String>,
    /// The agent, where a line has no agent_id [default: import]
    #[arg(long)]
    agent: Option<String>,
    /// The scope, where a line has no scope [default: shared]
    #[arg(long)]
    scope: Option<String>,
    /// The type, where a line has no type [default: note]
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

/// Writes notes to `memory_notes`. Of a note that is there, what the import names and what differs
/// is changed; the rest stays as the application left it.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    let is_left_out =
        |note: &ImportedNote| config.chunking.leaves_out(&note.kind.value, &note.text);
    let done = import(&store, &args, config.worker.max_note_bytes, &is_left_out).await?;
    out.report(
        &json!({
            "read": done.read,
            "changed": done.imported.changed,
            "skipped": done.skipped,
            "passed_over": done.passed_over,
            "left_out": done.left_out,
        }),
        |_| lines_of(&done),
    )?;
    anyhow::ensure!(
        done.skipped == 0,
        "skipped {}: the lines above say why",
        counted(
            done.skipped,
            "note, file or folder",
            "notes, files or folders"
        )
    );
    Ok(())
}

fn lines_of(done: &Done) -> String {
    let Imported { changed, not_live } = done.imported;
    let read = counted(done.read, "note", "notes");
    let mut lines = format!("{read} read, {changed} new or changed");
    if not_live > 0 {
        lines += &format!(
            "\nof the changed ones {not_live} are archived or expired, and stay so: no search finds them"
        );
    }
    if done.left_out > 0 {
        lines += &format!(
            "\nof {} [chunking] leaves out the whole text: no search finds them; elf chunk shows why",
            counted(done.left_out, "note", "notes")
        );
    }
    if let Some(reasons) = done.passed_over.reasons() {
        lines += &format!("\nfiles passed over: {reasons}");
    }
    lines
}

/// Imports a folder with the defaults of the command line, and returns how many
/// notes are new or changed.
pub async fn import_folder(
    store: &Store,
    folder: &Path,
    max_note_bytes: u64,
) -> anyhow::Result<u64> {
    let args = Args {
        path: folder.to_owned(),
        ..Args::default()
    };
    let done = import(store, &args, max_note_bytes, &|_| false).await?;
    Ok(done.imported.changed)
}

/// The agent of the notes that `elf eval` writes.
pub const EVALUATION_AGENT: &str = "elf-eval";

/// The type of such notes.
pub const EVALUATION_KIND: &str = "document";

/// Imports documents of an evaluation into `tenant`, with their ids as keys. Returns how many are
/// new or changed.
pub async fn import_documents(
    store: &Store,
    documents: &[Document],
    tenant: &str,
) -> anyhow::Result<u64> {
    let args = Args {
        tenant: Some(tenant.to_owned()),
        agent: Some(EVALUATION_AGENT.into()),
        kind: Some(EVALUATION_KIND.into()),
        ..Args::default()
    };
    let document = |document: &Document| {
        let line = Line {
            text: document.text(),
            key: Some(Some(document.id.clone())),
            ..Line::default()
        };
        let place = format!("document {:?}", document.id);
        match note::of_line(line, &args) {
            Ok(note) => Ok(Placed { place, note }),
            Err(problem) => Err(format!("{place}: {problem:#}")),
        }
    };
    // Every document first: one that cannot be written leaves nothing behind.
    for checked in documents.iter().map(document) {
        checked.map_err(anyhow::Error::msg)?;
    }
    let done = write_all(store, &args, documents.iter().map(document)).await?;
    anyhow::ensure!(done.skipped == 0, "Postgres does not accept every document");
    Ok(done.imported.changed)
}

impl Args {
    /// The one tenant that all notes must be of, if there is one.
    fn only_tenant(&self) -> Option<&str> {
        self.tenant.as_deref().filter(|_| !self.tenant_from_file)
    }
}

#[derive(Default)]
struct Done {
    read: u64,
    imported: Imported,
    skipped: u64,
    passed_over: PassedOver,
    /// Notes of which no part is embedded.
    left_out: u64,
}

/// A note, and where it was read.
struct Placed {
    place: String,
    note: ImportedNote,
}

/// A note, or why there is none.
type Read = Result<Placed, String>;
type Notes<'a> = Box<dyn Iterator<Item = Read> + 'a>;

async fn import(
    store: &Store,
    args: &Args,
    max_note_bytes: u64,
    is_left_out: &dyn Fn(&ImportedNote) -> bool,
) -> anyhow::Result<Done> {
    let (notes, passed_over) = read(args, max_note_bytes)?;
    let mut left_out = 0;
    let notes = notes.inspect(|read| {
        left_out += u64::from(read.as_ref().is_ok_and(|placed| is_left_out(&placed.note)));
    });
    let done = write_all(store, args, notes).await?;
    Ok(Done {
        passed_over,
        left_out,
        ..done
    })
}

async fn write_all(
    store: &Store,
    args: &Args,
    notes: impl Iterator<Item = Read>,
) -> anyhow::Result<Done> {
    let mut done = Done::default();
    let (mut batch, mut bytes) = (Vec::new(), 0);
    for note in notes {
        match note {
            Ok(note) => {
                bytes += note.note.text.len();
                batch.push(note);
            }
            Err(problem) => done.skip(&problem),
        }
        if batch.len() >= BATCH_NOTES || bytes >= BATCH_BYTES {
            write(store, args, std::mem::take(&mut batch), &mut done).await?;
            bytes = 0;
        }
    }
    write(store, args, batch, &mut done).await?;
    Ok(done)
}

impl Done {
    fn skip(&mut self, problem: &str) {
        print_error(&format!("elf: skipped {problem}"));
        self.skipped += 1;
    }
}

async fn write(
    store: &Store,
    args: &Args,
    mut batch: Vec<Placed>,
    done: &mut Done,
) -> anyhow::Result<()> {
    done.read += batch.len() as u64;
    find_by_key(store, &mut batch).await?;
    if let Some(tenant) = args.only_tenant() {
        let ids: Vec<Uuid> = batch.iter().map(|placed| placed.note.note_id).collect();
        let foreign: HashSet<Uuid> = store
            .notes_of_others(&ids, tenant)
            .await?
            .into_iter()
            .collect();
        batch.retain(|Placed { place, note }| {
            let is_foreign = foreign.contains(&note.note_id);
            if is_foreign {
                let id = note.note_id;
                done.skip(&format!(
                    "{place}: a note of another tenant has the id {id}"
                ));
            }
            !is_foreign
        });
    }
    let mut rejected = Vec::new();
    while !batch.is_empty() {
        let (part, rest) = distinct(batch);
        write_or_split(store, part, done, &mut rejected).await?;
        batch = rest;
    }
    // The key of one may have been that of another until now, or of a note that was written meanwhile.
    find_by_key(store, &mut rejected).await?;
    for Placed { place, note } in rejected {
        match store.import(&[&note]).await {
            Ok(imported) => done.imported += imported,
            Err(error) if error.class() == ErrorClass::Item => {
                done.skip(&format!(
                    "{place}: Postgres does not accept the note: {error}"
                ));
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Gives notes the ids of those that have their keys.
async fn find_by_key(store: &Store, batch: &mut [Placed]) -> anyhow::Result<()> {
    let keyed = batch.iter_mut().map(|placed| &mut placed.note);
    let mut keyed: Vec<&mut ImportedNote> = keyed.filter(|note| note.is_keyed).collect();
    if keyed.is_empty() {
        return Ok(());
    }
    let asked: Vec<&ImportedNote> = keyed.iter().map(|note| &**note).collect();
    let found = store.notes_of_keys(&asked).await.map_err(failed)?;
    for (note, found) in keyed.iter_mut().zip(found) {
        note.note_id = found.unwrap_or(note.note_id);
    }
    Ok(())
}

/// The first of each note, and the rest: one statement cannot write a row twice.
fn distinct(notes: Vec<Placed>) -> (Vec<Placed>, Vec<Placed>) {
    let mut seen = HashSet::new();
    notes
        .into_iter()
        .partition(|placed| seen.insert(placed.note.note_id))
}

/// Writes notes; what Postgres rejects is halved until a note stands alone.
async fn write_or_split(
    store: &Store,
    notes: Vec<Placed>,
    done: &mut Done,
    rejected: &mut Vec<Placed>,
) -> anyhow::Result<()> {
    let mut parts = vec![notes];
    while let Some(mut part) = parts.pop() {
        let notes: Vec<&ImportedNote> = part.iter().map(|placed| &placed.note).collect();
        match store.import(&notes).await {
            Ok(imported) => done.imported += imported,
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

fn failed(error: StoreError) -> anyhow::Error {
    anyhow::Error::new(error).context("failed to write notes")
}

/// The notes of a path, and which files in it are none.
fn read(args: &Args, max_note_bytes: u64) -> anyhow::Result<(Notes<'_>, PassedOver)> {
    let path = &args.path;
    let none = PassedOver::default();
    if path.as_os_str() == "-" {
        let stdin = BufReader::new(std::io::stdin());
        let notes = jsonl("stdin".to_owned(), stdin, args, max_note_bytes)?;
        return Ok((notes, none));
    }
    let name = shown(path);
    let metadata = path
        .metadata()
        .with_context(|| format!("failed to read {name}"))?;
    if metadata.is_dir() {
        let files = Files::of(path);
        if files.texts.is_empty() && files.problems.is_empty() {
            let reasons = files.passed_over.reasons();
            let reasons = reasons.map(|reasons| format!("; files passed over: {reasons}"));
            anyhow::bail!(
                "no .md, .txt or .log file in {name}{}",
                reasons.unwrap_or_default()
            );
        }
        let problems = files.problems.into_iter().map(Err);
        let notes = (files.texts.into_iter())
            .map(move |(key, file)| text_file(key, &file, args, max_note_bytes));
        return Ok((Box::new(problems.chain(notes)), files.passed_over));
    }
    if is_text(path) {
        let note = match key_of(path) {
            Ok(key) => text_file(key, path, args, max_note_bytes),
            Err(problem) => Err(format!("{name}: {problem}")),
        };
        return Ok((Box::new(std::iter::once(note)), none));
    }
    anyhow::ensure!(
        may_be_jsonl(path),
        "cannot import {name}: `elf import` reads folders, .md, .txt and .log files, and JSONL (.jsonl, \
         .ndjson, .json, or - for stdin)"
    );
    let file = File::open(path).with_context(|| format!("failed to open {name}"))?;
    let notes = jsonl(name, BufReader::new(file), args, max_note_bytes)?;
    Ok((notes, none))
}

fn text_file(key: String, file: &Path, args: &Args, max_note_bytes: u64) -> Read {
    let place = shown(file);
    let note = || {
        let bytes = text::read_at_most(File::open(file)?, max_note_bytes)?;
        let bytes = bytes.with_context(|| {
            format!("longer than worker.max_note_bytes, {max_note_bytes} bytes")
        })?;
        let text = text::decode(bytes).map_err(anyhow::Error::msg)?;
        note::of_file(key, text, args)
    };
    match note() {
        Ok(note) => Ok(Placed { place, note }),
        Err(problem) => Err(format!("{place}: {problem:#}")),
    }
}

fn jsonl<'a>(
    name: String,
    reader: impl std::io::BufRead + 'a,
    args: &'a Args,
    max_note_bytes: u64,
) -> anyhow::Result<Notes<'a>> {
    let most = JSON_OF_A_BYTE * max_note_bytes + MAX_OTHER_FIELDS;
    let objects = lines::objects(reader, most).with_context(|| format!("failed to read {name}"))?;
    let mut seen: HashMap<Uuid, Place> = HashMap::new();
    Ok(Box::new(objects.map(move |(place, object)| {
        let note = object.and_then(|object| {
            let note = note::of_line(Line::parse(&object)?, args);
            note.map_err(|problem| format!("{problem:#}"))
        });
        let note = note.map_err(|problem| format!("{name}{place}: {problem}"))?;
        if let Some(before) = seen.insert(note.note_id, place) {
            print_error(&format!(
                "elf: {name}{place} replaces what {name}{before} says of the same note"
            ));
        }
        let place = format!("{name}{place}");
        Ok(Placed { place, note })
    })))
}
