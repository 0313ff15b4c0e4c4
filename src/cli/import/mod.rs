//! `elf import`

mod folder;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::output::{Output, print_error};
use super::wiring;
use crate::config::Config;
use crate::eval::Document;
use crate::note::{Labels, holds_nul};
use crate::store::{ImportedNote, Store};
use folder::{Files, PassedOver, is_text};

/// Notes in one statement.
const BATCH_NOTES: usize = 500;
/// Text in one statement, roughly.
const BATCH_BYTES: usize = 4 << 20;
/// The UUIDv5 namespace of note ids that are derived from keys.
const KEYS: Uuid = Uuid::from_u128(0x656c_6600_6b65_7973_8000_6e6f_7465_7321);

/// The tenant of notes that name none.
pub const DEFAULT_TENANT: &str = "default";

/// Arguments of `elf import`.
#[derive(clap::Args)]
pub struct Args {
    /// A folder of .md and .txt files, one such file, or JSONL; - reads JSONL from stdin
    path: PathBuf,
    /// The tenant of the notes; a JSONL line that names another tenant is skipped. Without
    /// this, a line's tenant_id counts, or "default" if it has none
    #[arg(long)]
    tenant: Option<String>,
    /// With --tenant: accept lines that name another tenant
    #[arg(long, requires = "tenant")]
    tenant_from_file: bool,
    /// The project of notes whose JSONL line has no project_id
    #[arg(long, default_value = "default")]
    project: String,
    /// The agent of notes whose JSONL line has no agent_id
    #[arg(long, default_value = "import")]
    agent: String,
    /// The scope of notes whose JSONL line has no scope
    #[arg(long, default_value = "shared")]
    scope: String,
    /// The type of notes whose JSONL line has no type
    #[arg(long = "type", default_value = "note")]
    kind: String,
}

/// A line of JSONL. `text` is required, and one of `key` and `note_id`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    note_id: Option<Uuid>,
    key: Option<String>,
    text: String,
    tenant_id: Option<String>,
    project_id: Option<String>,
    agent_id: Option<String>,
    scope: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    importance: Option<f32>,
    confidence: Option<f32>,
    expires_at: Option<DateTime<Utc>>,
    source_ref: Option<serde_json::Value>,
}

/// Writes notes to `memory_notes`. A note with the same id or key is replaced if it differs,
/// and left unchanged if not.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    let done = import(&store, &args).await?;
    out.report(
        &json!({
            "read": done.read,
            "changed": done.changed,
            "skipped": done.skipped,
            "passed_over": done.passed_over,
        }),
        |_| lines(&done),
    )?;
    anyhow::ensure!(
        done.skipped == 0,
        "skipped {} notes: the lines above say why",
        done.skipped
    );
    Ok(())
}

fn lines(done: &Done) -> String {
    let notes = format!("{} notes read, {} new or changed", done.read, done.changed);
    match done.passed_over.reasons() {
        Some(reasons) => format!("{notes}\nfiles passed over: {reasons}"),
        None => notes,
    }
}

/// Imports a folder with the defaults of the command line, and returns how many
/// notes are new or changed.
pub async fn import_folder(store: &Store, folder: &Path) -> anyhow::Result<u64> {
    let text = |s: &str| s.to_owned();
    let args = Args {
        path: folder.to_owned(),
        tenant: None,
        tenant_from_file: false,
        project: text("default"),
        agent: text("import"),
        scope: text("shared"),
        kind: text("note"),
    };
    Ok(import(store, &args).await?.changed)
}

/// The agent of the notes that `elf eval` writes.
pub const EVALUATION_AGENT: &str = "elf-eval";

/// Imports documents of an evaluation into `tenant`, with their ids as keys. Returns how many are
/// new or changed.
pub async fn import_documents(
    store: &Store,
    documents: &[Document],
    tenant: &str,
) -> anyhow::Result<u64> {
    let args = Args {
        path: PathBuf::new(),
        tenant: Some(tenant.to_owned()),
        tenant_from_file: false,
        project: "default".into(),
        agent: EVALUATION_AGENT.into(),
        scope: "shared".into(),
        kind: "document".into(),
    };
    let document = |document: &Document| {
        let line = Line {
            text: document.text(),
            key: Some(document.id.clone()),
            ..Line::default()
        };
        note(line, &args).with_context(|| format!("document {:?}", document.id))
    };
    // Every document first: one that cannot be written leaves nothing behind.
    for checked in documents.iter().map(document) {
        checked?;
    }
    Ok(write_all(store, &args, documents.iter().map(document))
        .await?
        .changed)
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
    changed: u64,
    skipped: u64,
    passed_over: PassedOver,
}

async fn import(store: &Store, args: &Args) -> anyhow::Result<Done> {
    let (notes, passed_over) = read(args)?;
    Ok(Done {
        passed_over,
        ..write_all(store, args, notes).await?
    })
}

async fn write_all(
    store: &Store,
    args: &Args,
    notes: impl Iterator<Item = anyhow::Result<ImportedNote>>,
) -> anyhow::Result<Done> {
    let mut done = Done::default();
    let mut batch = Vec::new();
    for note in notes {
        match note {
            Ok(note) => batch.push(note),
            Err(problem) => {
                print_error(&format!("elf: skipped {problem:#}"));
                done.skipped += 1;
            }
        }
        let bytes: usize = batch.iter().map(|n: &ImportedNote| n.text.len()).sum();
        if batch.len() >= BATCH_NOTES || bytes >= BATCH_BYTES {
            write(store, args, &mut batch, &mut done).await?;
        }
    }
    write(store, args, &mut batch, &mut done).await?;
    Ok(done)
}

async fn write(
    store: &Store,
    args: &Args,
    batch: &mut Vec<ImportedNote>,
    done: &mut Done,
) -> anyhow::Result<()> {
    // One statement cannot write a row twice: of two notes with one id it writes the last.
    let read = batch.len() as u64;
    let mut seen = std::collections::HashSet::new();
    let mut notes: Vec<ImportedNote> = batch
        .drain(..)
        .rev()
        .filter(|n| seen.insert(n.note_id))
        .collect();
    notes.reverse();
    if let Some(tenant) = args.only_tenant() {
        let ids: Vec<Uuid> = notes.iter().map(|note| note.note_id).collect();
        let foreign = store.notes_of_others(&ids, tenant).await?;
        for note_id in &foreign {
            print_error(&format!(
                "elf: skipped note {note_id}: a note of another tenant has this id"
            ));
        }
        done.skipped += foreign.len() as u64;
        notes.retain(|note| !foreign.contains(&note.note_id));
    }
    if !notes.is_empty() {
        done.changed += store
            .import(&notes)
            .await
            .context("failed to write notes")?;
    }
    done.read += read;
    Ok(())
}

type Notes<'a> = Box<dyn Iterator<Item = anyhow::Result<ImportedNote>> + 'a>;

/// The notes of a path, and which files in it are none.
fn read(args: &Args) -> anyhow::Result<(Notes<'_>, PassedOver)> {
    let path = &args.path;
    let none = PassedOver::default();
    if path.as_os_str() == "-" {
        let stdin = BufReader::new(std::io::stdin());
        return Ok((jsonl("stdin", stdin, args), none));
    }
    let metadata = path
        .metadata()
        .with_context(|| format!("failed to read {}", path.display()))?;
    if metadata.is_dir() {
        let Files { texts, passed_over } = Files::of(path)?;
        if texts.is_empty() {
            let reasons = passed_over.reasons();
            let reasons = reasons.map(|reasons| format!("; files passed over: {reasons}"));
            let (folder, reasons) = (path.display(), reasons.unwrap_or_default());
            anyhow::bail!("no .md or .txt file in {folder}{reasons}");
        }
        let notes = texts.into_iter().map(|file| text_file(path, &file, args));
        return Ok((Box::new(notes), passed_over));
    }
    if is_text(path) {
        let folder = path.parent().unwrap_or(Path::new(""));
        let note = std::iter::once(text_file(folder, path, args));
        return Ok((Box::new(note), none));
    }
    let file = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
    let name = path.to_string_lossy().into_owned();
    Ok((jsonl(name, BufReader::new(file), args), none))
}

fn text_file(folder: &Path, file: &Path, args: &Args) -> anyhow::Result<ImportedNote> {
    let name = || file.display().to_string();
    let text = std::fs::read(file).with_context(name)?;
    let text = String::from_utf8(text).with_context(name)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned();
    let key = file
        .strip_prefix(folder)
        .unwrap_or(file)
        .to_string_lossy()
        .into_owned();
    let source = json!({ "file": key });
    note(
        Line {
            text,
            key: Some(key),
            source_ref: Some(source),
            ..Line::default()
        },
        args,
    )
    .with_context(name)
}

fn jsonl<'a>(name: impl Into<String>, reader: impl BufRead + 'a, args: &'a Args) -> Notes<'a> {
    let name = name.into();
    let lines = reader
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.as_ref().is_ok_and(|l| l.trim().is_empty()));
    Box::new(lines.map(move |(i, line)| {
        let place = || format!("{name}:{}", i + 1);
        let line = line.with_context(place)?;
        let line: Line = serde_json::from_str(&line).map_err(|error| {
            let said = error.to_string();
            // The line that serde counts is always the first.
            let what = said.split(" at line ").next().unwrap_or(&said);
            let what = what.replace("struct Line", "an object with \"text\"");
            anyhow::anyhow!("{}: column {}: {what}", place(), error.column())
        })?;
        note(line, args).with_context(place)
    }))
}

fn note(line: Line, args: &Args) -> anyhow::Result<ImportedNote> {
    let or = |given: Option<String>, default: &str| given.unwrap_or_else(|| default.to_owned());
    if let (Some(only), Some(named)) = (args.only_tenant(), &line.tenant_id) {
        anyhow::ensure!(
            only == named,
            "the note is of the tenant {named:?}, not {only:?}; --tenant-from-file allows it"
        );
    }
    let labels = Labels {
        tenant_id: or(
            line.tenant_id,
            args.tenant.as_deref().unwrap_or(DEFAULT_TENANT),
        ),
        project_id: or(line.project_id, &args.project),
        agent_id: or(line.agent_id, &args.agent),
        scope: or(line.scope, &args.scope),
        kind: or(line.kind, &args.kind),
        key: line.key,
        importance: line.importance.unwrap_or(0.5),
        confidence: line.confidence.unwrap_or(1.0),
        updated_at: DateTime::UNIX_EPOCH,
    };
    let note_id = match (line.note_id, &labels.key) {
        (Some(id), _) => id,
        (None, Some(key)) => id_of(&labels, key),
        (None, None) => anyhow::bail!("the note has neither a key nor a note_id"),
    };
    let source_ref = line.source_ref.unwrap_or_else(|| json!({}));
    let strings = [
        &line.text,
        labels.key.as_ref().unwrap_or(&line.text),
        &labels.tenant_id,
        &labels.project_id,
        &labels.agent_id,
        &labels.scope,
        &labels.kind,
    ];
    anyhow::ensure!(
        !strings.iter().any(|string| string.contains('\0')) && !holds_nul(&source_ref),
        "the note holds a NUL character, which Postgres cannot store"
    );
    Ok(ImportedNote {
        note_id,
        text: line.text,
        labels,
        expires_at: line.expires_at,
        source_ref,
    })
}

/// The id of a note with `key`: the same key under the same access labels is the same note.
fn id_of(labels: &Labels, key: &str) -> Uuid {
    let Labels {
        tenant_id,
        project_id,
        agent_id,
        scope,
        ..
    } = labels;
    let name = serde_json::to_vec(&[tenant_id.as_str(), project_id, agent_id, scope, key]);
    Uuid::new_v5(&KEYS, &name.expect("strings are JSON"))
}
