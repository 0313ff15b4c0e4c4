//! `elf import`

mod file;
mod folder;
mod front_matter;
mod html;
mod lines;
mod map;
mod note;
mod read;
mod sync;
mod table;
mod text;
mod watch;
mod write;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::output::{Output, counted};
use super::{value, wiring};
use crate::config::Config;
use crate::eval::Document;
use crate::metadata::Declared;
use crate::store::{ImportedNote, Store};
pub use file::Contents;
use map::{Mapping, Pair};
use note::Line;
use read::Reading;

use sync::Sync;
use write::{Change, Done, FileChange, Placed, Unread, Writer};

/// The tenant of notes that name none.
pub const DEFAULT_TENANT: &str = "default";

/// Arguments of `elf import`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// A folder of .md, .txt, .log and .html files, one such file, JSONL or CSV; - for JSONL from stdin
    path: PathBuf,
    /// Make the notes of the folder equal to its files: add, change, move, delete
    ///
    /// A note has the name of its folder in source and the path of its file in source_id. A sync changes and deletes
    /// what a sync of the same folder in the same tenant wrote, and takes over what an import without --sync wrote, if
    /// its file is there. What is no text (binary, not UTF-8, too long), or a symbolic link, is no note; what cannot be
    /// read keeps its note. It refuses to delete more than half of the notes.
    #[arg(long)]
    sync: bool,
    /// The name of the folder in source, behind "folder:" [default: its absolute path]
    #[arg(long, value_name = "NAME", requires = "sync")]
    source: Option<String>,
    /// Say what a sync would do, and write nothing
    #[arg(long, requires = "sync", conflicts_with_all = ["force", "watch"])]
    dry_run: bool,
    /// Delete notes although more than half of the folder's would go
    #[arg(long, requires = "sync", conflicts_with = "watch")]
    force: bool,
    /// Go on, and sync again whenever files change
    #[arg(long, requires = "sync")]
    watch: bool,
    /// The file is CSV with a header, whatever its name
    #[arg(long, conflicts_with = "sync")]
    csv: bool,
    /// A column of CSV, or a field of JSONL, that is the text; several are joined by blank lines
    #[arg(long, value_name = "NAME")]
    text: Vec<String>,
    /// Which column or field is which of the note: key=sku, title=mail.subject, metadata.price=price
    ///
    /// With --map, --text or CSV, other columns and fields become metadata, unless one is mapped to metadata.
    #[arg(long, value_name = "FIELD=NAME")]
    map: Vec<Pair>,
    /// What separates the columns of CSV: a character, or tab [default: a comma; of .tsv, tab]
    #[arg(long, value_name = "CHARACTER", value_parser = delimiter)]
    delimiter: Option<u8>,
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

/// Reads `--delimiter`.
fn delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        _ => Err("write one ASCII character, or tab".into()),
    }
}

/// Writes notes to `memory_notes`. Of a note that is there, what the import names and what differs
/// is changed; the rest stays as the application left it.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    let is_left_out =
        |note: &ImportedNote| config.chunking.leaves_out(&note.kind.value, &note.text);
    let reading = Reading {
        args: &args,
        max_note_bytes: config.worker.max_note_bytes,
        declared: &config.metadata,
    };
    let done = if args.sync {
        let sync = Sync::new(&store, reading, &is_left_out)?;
        if args.watch {
            return watch::run(&sync, out).await;
        }
        sync.run(sync.files(), &|_| false).await?
    } else {
        import(&store, reading, &is_left_out).await?
    };
    match args.sync {
        true if args.dry_run => report_dry_run(&done, out)?,
        true => report(&done, out)?,
        false => out.report(&of_import(&done), |_| lines_of(&done, false))?,
    }
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

async fn import(
    store: &Store,
    reading: Reading<'_>,
    is_left_out: &dyn Fn(&ImportedNote) -> bool,
) -> anyhow::Result<Done> {
    let (notes, mut passed_over) = reading.notes()?;
    let writer = Writer::new(store, reading.args, is_left_out);
    let done = writer.write_all(notes).await?;
    passed_over.binary += done.passed_over.binary;
    Ok(Done {
        passed_over,
        ..done
    })
}

fn of_import(done: &Done) -> Value {
    json!({
        "read": done.read,
        "changed": done.added + done.changed,
        "skipped": done.skipped,
        "passed_over": done.passed_over,
        "left_out": done.left_out,
    })
}

fn of_sync(done: &Done) -> Value {
    json!({
        "read": done.read,
        "added": done.added,
        "changed": done.changed,
        "moved": done.moved,
        "deleted": done.deleted,
        "skipped": done.skipped,
        "passed_over": done.passed_over,
        "left_out": done.left_out,
    })
}

/// Reports a sync.
fn report(done: &Done, out: Output) -> anyhow::Result<()> {
    out.report(&of_sync(done), |_| lines_of(done, true))
}

fn report_dry_run(done: &Done, out: Output) -> anyhow::Result<()> {
    let mut all = of_sync(done);
    all["files"] = json!(done.changes);
    out.report(&all, |_| {
        let line = |FileChange { change, file, from }: &FileChange| match (change, from) {
            (_, Some(from)) => format!("move    {from} -> {file}\n"),
            (Change::Added, _) => format!("add     {file}\n"),
            (Change::Deleted, _) => format!("delete  {file}\n"),
            _ => format!("change  {file}\n"),
        };
        let changes: String = done.changes.iter().map(line).collect();
        format!(
            "{changes}{}\nnothing is written: a dry run",
            lines_of(done, true)
        )
    })
}

fn lines_of(done: &Done, is_sync: bool) -> String {
    let read = counted(done.read, "note", "notes");
    let Done {
        added,
        changed,
        moved,
        deleted,
        not_live,
        ..
    } = done;
    let mut lines = match is_sync {
        true => format!(
            "{read} read, {added} added, {changed} changed, {moved} moved, {deleted} deleted"
        ),
        false => format!("{read} read, {} new or changed", added + changed),
    };
    if *not_live > 0 {
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
    let reading = Reading {
        args: &args,
        max_note_bytes,
        declared: &Declared::new(),
    };
    let done = import(store, reading, &|_| false).await?;
    Ok(done.added + done.changed)
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
            Ok(note) => Ok(Placed::new(place, note)),
            Err(problem) => Err(format!("{place}: {problem:#}")),
        }
    };
    // Every document first: one that cannot be written leaves nothing behind.
    for checked in documents.iter().map(document) {
        checked.map_err(anyhow::Error::msg)?;
    }
    let notes = documents
        .iter()
        .map(|each| document(each).map_err(Unread::Problem));
    let done = Writer::new(store, &args, &|_| false)
        .write_all(notes)
        .await?;
    anyhow::ensure!(done.skipped == 0, "Postgres does not accept every document");
    Ok(done.added + done.changed)
}

impl Args {
    /// Whether it changes what is stored.
    pub fn is_change(&self) -> bool {
        !self.dry_run
    }

    /// The one tenant that all notes must be of, if there is one.
    fn only_tenant(&self) -> Option<&str> {
        self.tenant.as_deref().filter(|_| !self.tenant_from_file)
    }

    /// What makes notes of fields of any names.
    fn mapping(&self) -> Mapping {
        Mapping::of(&self.map, &self.text)
    }

    fn has_mapping(&self) -> bool {
        !self.map.is_empty() || !self.text.is_empty()
    }

    /// Refuses options for fields and columns where there are none.
    fn refuse_fields(&self, name: &str) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.csv && !self.has_mapping() && self.delimiter.is_none(),
            "{name} has neither columns nor fields: --csv, --text, --map and --delimiter are for CSV and JSONL"
        );
        Ok(())
    }
}
