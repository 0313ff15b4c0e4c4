//! `elf status`

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::dead;
use super::output::{Output, counted, excerpt, with_causes};
use super::source::{Counted, counted_sources};
use super::wiring;
use crate::config::Config;
use crate::serving::{self, Change, ServingError};
use crate::store::{
    DeadLetter, Lifecycle, LockWait, OutboxCounts, RegisteredVersion, RunningJob, Store, StoreError,
};

/// Dead letters that it names.
const DEAD_SHOWN: i64 = 3;

#[derive(Serialize)]
struct Status {
    outbox: OutboxCounts,
    notes: Notes,
    chunks: i64,
    embedding_version: Option<String>,
    /// Settings in which the configuration asks for another version.
    asked_changes: Vec<Change>,
    /// Versions that a reindex builds, or that are kept for a rollback.
    other_versions: Vec<OtherVersion>,
    /// The latest dead letters. `elf dead list --json` has all.
    #[serde(skip)]
    dead: Vec<DeadLetter>,
    collection: Collection,
    /// How the declared fields differ from those of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    fields_problem: Option<String>,
    sources: Vec<Counted>,
    /// The rebuild or reindex that is running.
    job: Option<RunningJob>,
    /// Statements of ELF that wait for a lock of another session now.
    lock_waits: Vec<LockWait>,
}

#[derive(Serialize)]
struct OtherVersion {
    name: String,
    state: Lifecycle,
    since: DateTime<Utc>,
    /// Its outbox rows; null when it is retired, because workers do not index a retired version.
    outbox: Option<OutboxCounts>,
}

impl OtherVersion {
    async fn of(store: &Store, known: RegisteredVersion) -> Result<Self, StoreError> {
        let name = known.version.name;
        let outbox = match known.state {
            Lifecycle::Retired => None,
            _ => Some(store.outbox_counts(Some(&name)).await?),
        };
        Ok(Self {
            name,
            state: known.state,
            since: known.state_since,
            outbox,
        })
    }

    fn line(&self, job: Option<&RunningJob>) -> String {
        let (state, since) = (self.state.as_str(), self.since.format("%F %R UTC"));
        let waits = match &self.outbox {
            Some(outbox) => format!(
                "; {} pending, {} leased, {} failed, {} dead",
                outbox.pending, outbox.leased, outbox.failed, outbox.dead
            ),
            None => String::new(),
        };
        let mut line = format!("\n            {} ({state} since {since}{waits})", self.name);
        if self.state == Lifecycle::Building && job.is_none() {
            line += "\n            no reindex is running: `elf reindex` resumes it, `elf reindex \
                     --swap` serves it once complete, `elf reindex drop` deletes it";
        }
        line
    }
}

#[derive(Serialize)]
struct Notes {
    live: i64,
    indexed: i64,
}

#[derive(Serialize)]
struct Collection {
    alias: String,
    name: Option<String>,
    points: Option<u64>,
    /// The engine's status of the collection; `missing` when the alias points at none,
    /// `unreachable` when the engine does not answer.
    status: String,
    /// What is wrong with the alias or with the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Shows the backlog, and how many notes are indexed. An unavailable engine is shown as such; an
/// unavailable Postgres is an error.
pub async fn run(config: &Config, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    let (active, others): (Vec<RegisteredVersion>, Vec<RegisteredVersion>) = store
        .versions()
        .await?
        .into_iter()
        .partition(|known| known.state == Lifecycle::Active);
    let active = active.into_iter().next().map(|known| known.version);
    let asked_changes = active.as_ref().map(|v| serving::asked_changes(v, config));
    let version = active.map(|version| version.name);
    let mut other_versions = Vec::new();
    for known in others {
        other_versions.push(OtherVersion::of(&store, known).await?);
    }
    let counts = store
        .note_counts(version.as_deref().unwrap_or_default())
        .await?;
    // The first worker declares them.
    let fields_problem = match &version {
        Some(_) => serving::fields_problem(&store, &config.metadata).await?,
        None => None,
    };
    let status = Status {
        outbox: store.outbox_counts(version.as_deref()).await?,
        notes: Notes {
            live: counts.live,
            indexed: counts.indexed,
        },
        chunks: counts.chunks,
        embedding_version: version,
        asked_changes: asked_changes.unwrap_or_default(),
        other_versions,
        dead: store.dead_letters(DEAD_SHOWN).await?,
        collection: collection(config, store.clone()).await,
        fields_problem,
        sources: counted_sources(&store, config).await?,
        job: store.running_job().await?,
        lock_waits: store.lock_waits().await?,
    };
    out.report(&status, lines)
}

async fn collection(config: &Config, store: Store) -> Collection {
    let mut collection = Collection {
        alias: config.storage.qdrant.alias.clone(),
        name: None,
        points: None,
        status: "missing".into(),
        error: None,
    };
    if let Err(error) = look_up(config, store, &mut collection).await {
        collection.status = "unreachable".into();
        collection.error = Some(with_causes(&error));
    }
    collection
}

async fn look_up(config: &Config, store: Store, collection: &mut Collection) -> anyhow::Result<()> {
    let serving = wiring::with_index(config, store).await?;
    if let Some(name) = serving.index.resolve(&serving.alias).await?
        && let Some(info) = serving.index.collection(&name).await?
    {
        collection.points = Some(info.points);
        collection.status = info.status.to_string();
        collection.name = Some(name);
    }
    if let Some(problem) = serving::home_problem(&serving).await? {
        collection.error = Some(problem);
        return Ok(());
    }
    collection.error = match serving::alias_problem(&serving).await {
        Ok(problem) => problem.map(|problem| format!("the alias {:?} {problem}", serving.alias)),
        Err(foreign @ ServingError::ForeignAlias { .. }) => Some(foreign.to_string()),
        Err(error) => return Err(error.into()),
    };
    Ok(())
}

fn lock_line(LockWait { on, since, held_by }: &LockWait) -> String {
    let since = since.format("%F %T UTC");
    format!("\nlock        ELF waits for {on} since {since}: {held_by} holds it")
}

fn source_line(Counted { source, counts }: &Counted) -> String {
    let problem = match &source.problem {
        Some(problem) => format!("\n            {problem}"),
        None => String::new(),
    };
    format!(
        "\nsource      {}: {}, {} left out{problem}",
        source.name,
        counted(counts.notes.unsigned_abs(), "note", "notes"),
        counted(counts.left_out.unsigned_abs(), "row", "rows")
    )
}

fn dead_line(letter: &DeadLetter) -> String {
    let id = || letter.note_id.to_string();
    let name = dead::name(letter).unwrap_or_else(id);
    let error = letter.last_error.as_deref().unwrap_or_default();
    format!("\n            dead: {name}: {}", excerpt(error, 60))
}

fn lines(status: &Status) -> String {
    let Status {
        outbox,
        notes,
        chunks,
        collection,
        asked_changes,
        other_versions,
        job,
        lock_waits,
        ..
    } = status;
    let line = |other: &OtherVersion| other.line(job.as_ref());
    let asked = match &asked_changes[..] {
        [] => String::new(),
        changes => {
            let changes: Vec<String> = changes.iter().map(Change::line).collect();
            let changes = changes.join("; ");
            format!("\n            the configuration asks for another one: {changes}")
        }
    };
    let others: String = other_versions.iter().map(line).collect();
    let job = match job {
        Some(job) => format!(
            "\njob         {} of {}: {} of {} done, by {}",
            job.kind, job.subject, job.done, job.total, job.holder
        ),
        None => String::new(),
    };
    let sources: String = status.sources.iter().map(source_line).collect();
    let mut dead: String = status.dead.iter().map(dead_line).collect();
    if !dead.is_empty() {
        dead += "\n            `elf dead list` has all";
    }
    let waits: String = lock_waits.iter().map(lock_line).collect();
    let paused = match outbox.paused {
        0 => String::new(),
        paused => format!(", {paused} paused"),
    };
    let oldest = match outbox.oldest_pending_secs {
        Some(secs) => format!(", the oldest {secs:.1} s old"),
        None => String::new(),
    };
    let points = match (&collection.name, collection.points) {
        (Some(name), Some(points)) => format!("{name}, {points} points, {}", collection.status),
        _ => collection.status.clone(),
    };
    let fields = match &status.fields_problem {
        Some(problem) => format!("\nmetadata    {problem}"),
        None => String::new(),
    };
    let problem = match &collection.error {
        Some(error) => format!("\n            {error}"),
        None => String::new(),
    };
    format!(
        "outbox      {} pending, {} leased, {} failed, {} dead{paused}{oldest}{dead}\n\
         notes       {} live, {} indexed\n\
         chunks      {chunks}\n\
         version     {}{asked}{others}\n\
         collection  {} → {points}{problem}{fields}{sources}{job}{waits}",
        outbox.pending,
        outbox.leased,
        outbox.failed,
        outbox.dead,
        notes.live,
        notes.indexed,
        status
            .embedding_version
            .as_deref()
            .unwrap_or("none yet: no worker has run"),
        collection.alias,
    )
}
