//! `elf source`

use std::cell::Cell;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::json;

use super::output::{Output, columns, counted, excerpt, print};
use super::{value, wiring};
use crate::config::{Config, Source};
use crate::sources::{self, Compared, Listed, Plan, State, patiently};
use crate::store::{LeftOut, SourceCounts, SourceFacts, Store, StoreError};

/// Subcommands of `elf source`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Propose a block of elf.toml for a table
    Add {
        /// The table, with its schema: support.tickets
        table: String,
        /// Write the block to elf.toml, install the triggers, and make notes of the rows
        #[arg(long)]
        apply: bool,
    },
    /// Install or change the triggers of the sources of elf.toml
    Apply(Which),
    /// Make the notes of sources equal to their rows
    ///
    /// After the first apply, after a change of a source, and after whatever the triggers did not see. It may be stopped
    /// and run again.
    ///
    /// It changes nothing if more than half of the notes of a source would go.
    Sync {
        #[command(flatten)]
        which: Which,
        /// Delete notes although more than half of them would go
        #[arg(long)]
        force: bool,
    },
    /// List sources, their notes, and rows that are no notes; and the folders of elf import --sync
    List,
    /// List the rows of a source that are no notes, with the reason
    LeftOut {
        /// The source
        name: String,
        /// Rows to list at most
        #[arg(long, default_value_t = 50, value_parser = value::whole::<1, 65_535>)]
        limit: u16,
    },
    /// Remove the triggers of a source, and its notes; or the notes of a folder
    Remove {
        /// The source, or folder:…
        name: String,
        /// The notes stay, and follow the table no longer
        #[arg(long)]
        keep_notes: bool,
    },
    /// Print what apply executes, for a role that may make triggers on the tables
    Sql(Which),
}

impl Command {
    /// Whether it changes what is stored.
    pub fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Add { apply: true, .. }
                | Self::Apply(_)
                | Self::Sync { .. }
                | Self::Remove { .. }
        )
    }
}

/// Which sources.
#[derive(clap::Args)]
pub struct Which {
    /// Sources of elf.toml [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

impl Which {
    fn of<'c>(&self, config: &'c Config) -> anyhow::Result<Vec<&'c Source>> {
        anyhow::ensure!(
            !config.sources.is_empty(),
            "elf.toml has no [[sources]]; `elf source add TABLE` proposes one"
        );
        for name in &self.names {
            anyhow::ensure!(
                config.sources.iter().any(|source| source.name == *name),
                "elf.toml has no source {name:?}; it has {}",
                names(config)
            );
        }
        let is_asked =
            |source: &&Source| self.names.is_empty() || self.names.contains(&source.name);
        Ok(config.sources.iter().filter(is_asked).collect())
    }
}

fn names(config: &Config) -> String {
    let names = config.sources.iter().map(|source| source.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// A source with the number of its rows.
#[derive(Serialize)]
pub struct Counted {
    #[serde(flatten)]
    pub source: Listed,
    #[serde(flatten)]
    pub counts: SourceCounts,
}

/// The sources, each with the number of its rows.
pub async fn counted_sources(store: &Store, config: &Config) -> anyhow::Result<Vec<Counted>> {
    let counts = store.source_counts().await?;
    let listed = sources::list(store, &config.sources).await?;
    let counted = listed.into_iter().map(|source| Counted {
        counts: counts.get(&source.name).copied().unwrap_or_default(),
        source,
    });
    Ok(counted.collect())
}

/// What a sync did for a source.
#[derive(Serialize)]
struct SyncedSource<'a> {
    name: &'a str,
    #[serde(flatten)]
    compared: Compared,
    left_out: i64,
}

/// `file` is that of the configuration.
pub async fn run(
    config: &Config,
    file: &Path,
    command: Command,
    out: Output,
) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    match command {
        Command::Add {
            table,
            apply: false,
        } => add(&store, config, &table, out).await,
        Command::Add { table, apply: true } => {
            add_and_apply(&store, config, file, &table, out).await
        }
        Command::Apply(which) => apply(&store, &which.of(config)?, out).await,
        Command::Sync { which, force } => sync(&store, &which.of(config)?, force, out).await,
        Command::List => {
            let listed = counted_sources(&store, config).await?;
            let folders = store.folders().await?;
            let counts = folders
                .iter()
                .map(|(name, notes)| json!({ "name": name, "notes": notes }));
            let all = json!({ "items": &listed, "folders": counts.collect::<Vec<_>>() });
            out.report(&all, |_| table(&listed, &folders))
        }
        Command::LeftOut { name, limit } => {
            let rows = store.left_out(&name, limit.into()).await?;
            let is_known = config.sources.iter().any(|source| source.name == name);
            anyhow::ensure!(
                is_known || !rows.is_empty(),
                "there is no source {name}: `elf source list` has them"
            );
            out.report(&json!({ "items": &rows }), |_| rows_left_out(&rows))
        }
        Command::Remove { name, keep_notes } => remove(&store, &name, keep_notes, out).await,
        Command::Sql(which) => {
            let mut unfit = Vec::new();
            for source in which.of(config)? {
                match Plan::of(&store, source).await {
                    Ok(plan) => print(&plan.sql())?,
                    Err(error) => unfit.push(problem_of(error)?),
                }
            }
            refuse(&unfit)
        }
    }
}

async fn add(store: &Store, config: &Config, table: &str, out: Output) -> anyhow::Result<()> {
    let (facts, block) = proposed(store, table).await?;
    refuse_a_second(store, config, &facts).await?;
    out.report(&json!({ "block": &block }), |_| {
        format!(
            "\n{block}\n# Check it, write it to elf.toml (`elf source add {table} >> elf.toml`), then run\n\
             # `elf source apply` and `elf source sync`. `elf source add {table} --apply` does all three."
        )
    })
}

/// A second block of a table can only be written by hand: it needs another name.
async fn refuse_a_second(
    store: &Store,
    config: &Config,
    facts: &SourceFacts,
) -> anyhow::Result<()> {
    let listed = sources::list(store, &config.sources).await?;
    let is_same = |one: &&Listed| one.table == facts.table && one.state != State::Unknown;
    match listed.iter().find(is_same) {
        None => Ok(()),
        Some(source) => anyhow::bail!(
            "{} is the source {} already: change its block in elf.toml, then run `elf source apply` and `elf source sync`",
            facts.table,
            source.name
        ),
    }
}

/// Adds the block of a table to the configuration, and does what it takes until its rows are notes. After an error the
/// file is as before.
async fn add_and_apply(
    store: &Store,
    config: &Config,
    file: &Path,
    table: &str,
    out: Output,
) -> anyhow::Result<()> {
    let (facts, block) = proposed(store, table).await?;
    refuse_a_second(store, config, &facts).await?;
    let path = file.display();
    anyhow::ensure!(
        !block.contains(sources::propose::NO_TEXT),
        "no column of {} holds a text: `elf source add {table} >> {path}` writes a block, name the text in it",
        facts.table
    );
    let open = OpenOptions::new().append(true).open(file);
    let mut opened = open.with_context(|| format!("failed to write {path}"))?;
    let before = opened.metadata()?.len();
    let added = async {
        write!(opened, "\n{block}").with_context(|| format!("failed to write {path}"))?;
        let config = Config::load(file)?;
        let source = config.sources.last().context("the block is no source")?;
        let (rows, counts) = follow(store, source).await?;
        Ok::<_, anyhow::Error>((source.clone(), rows, counts))
    };
    let (source, rows, counts) = match added.await {
        Ok(added) => added,
        Err(error) => {
            opened.set_len(before)?;
            return Err(error);
        }
    };
    let added = json!({ "added": source.name, "rows": rows, "notes": counts.notes, "left_out": counts.left_out });
    out.report(&added, |_| {
        let followed = followed(&source, rows, counts);
        format!("{block}\nThis is in {path} now. {followed}")
    })
}

/// Installs a source, and makes notes of the rows. Returns how many rows there are.
pub async fn follow(store: &Store, source: &Source) -> anyhow::Result<(u64, SourceCounts)> {
    let plan = patiently(async || Plan::of(store, source).await).await?;
    plan.apply(store).await?;
    let listed = sources::list_unlocked(store, std::slice::from_ref(source)).await?;
    let listed = listed.first().context("the source is gone again")?;
    let synced = sources::compare(store, listed, true, |_| {}).await?;
    let counts = store.source_counts().await?;
    let counts = counts.get(&source.name).copied().unwrap_or_default();
    Ok((synced.rows, counts))
}

/// What [`follow`] has done.
pub fn followed(source: &Source, rows: u64, counts: SourceCounts) -> String {
    let left_out = left_out(counts.left_out, &source.name);
    format!(
        "{}: {}{left_out}. From now on each row and its note commit together; `elf worker` indexes them",
        counted(rows, "row", "rows"),
        counted(counts.notes.unsigned_abs(), "note", "notes"),
    )
}

/// What is known of a table, and the block for it.
pub async fn proposed(store: &Store, table: &str) -> anyhow::Result<(SourceFacts, String)> {
    let facts = store
        .source_facts(table, table, |_| vec!["true".into()])
        .await?;
    let block = sources::propose::propose(store, &facts).await?;
    Ok((facts, block))
}

/// What is wrong with a source alone; the others are done all the same.
fn problem_of(error: StoreError) -> Result<String, StoreError> {
    match error {
        StoreError::Schema(problem) => Ok(problem),
        error => Err(error),
    }
}

fn refuse(problems: &[String]) -> anyhow::Result<()> {
    match problems {
        [] => Ok(()),
        problems => Err(StoreError::Schema(problems.join("\n")).into()),
    }
}

async fn apply(store: &Store, sources: &[&Source], out: Output) -> anyhow::Result<()> {
    let mut applied = Vec::new();
    let mut notes = Vec::new();
    let mut unfit = Vec::new();
    for source in sources {
        let installed = patiently(async || store.sources().await).await?;
        let done = match patiently(async || Plan::of(store, source).await).await {
            Ok(plan) if plan.state(&installed) == State::Applied => continue,
            Ok(plan) => plan.apply(store).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(None) => {}
            Ok(Some(reason)) => notes.push(format!(
                "the triggers of {} run with the rights of the role of storage.postgres.dsn, because ELF could not make \
                 the role elf_source_writer their owner: {reason}; `elf source sql` prints what a DBA can run",
                source.name
            )),
            Err(error) => {
                unfit.push(problem_of(error)?);
                continue;
            }
        }
        applied.push(source.name.as_str());
    }
    out.report(&json!({ "applied": &applied, "notes": &notes }), |_| {
        let first = match applied.as_slice() {
            [] if !unfit.is_empty() => String::new(),
            [] => "the triggers are as elf.toml says".to_owned(),
            names => format!(
                "the triggers of {} are installed; `elf source sync` makes notes of the rows that are there",
                names.join(", ")
            ),
        };
        let notes = notes.iter().map(|note| format!("\nnote: {note}"));
        std::iter::once(first).chain(notes).collect()
    })?;
    refuse(&unfit)
}

async fn sync(store: &Store, sources: &[&Source], force: bool, out: Output) -> anyhow::Result<()> {
    let asked: Vec<Source> = sources.iter().map(|source| (*source).clone()).collect();
    let mut listed = sources::list_unlocked(store, &asked).await?;
    listed.retain(|one| one.state != State::Unknown);
    let problems = listed.iter().filter_map(|one| one.problem.clone());
    let mut problems: Vec<String> = problems.collect();
    let mut reports = Vec::new();
    for source in listed.iter().filter(|one| one.problem.is_none()) {
        let told = Cell::new(std::time::Instant::now());
        let tell = |compared: Compared| {
            if told.get().elapsed() >= std::time::Duration::from_secs(10) {
                told.set(std::time::Instant::now());
                tracing::info!(
                    source = source.name,
                    rows = compared.rows,
                    changed = compared.drift.all(),
                    "syncing"
                );
            }
        };
        let compared = match force {
            true => sources::compare(store, source, true, tell).await?,
            false => match sources::repair(store, source, tell).await? {
                Ok(compared) => compared,
                Err(refused) => {
                    problems.push(refused.to_string());
                    continue;
                }
            },
        };
        let now = store.source_counts().await?;
        reports.push(SyncedSource {
            name: &source.name,
            compared,
            left_out: now.get(&source.name).map_or(0, |counts| counts.left_out),
        });
    }
    out.report(&json!({ "items": &reports }), |_| {
        let line = |report: &SyncedSource<'_>| {
            let rows = counted(report.compared.rows, "row", "rows");
            let drift = report.compared.drift;
            let left_out = left_out(report.left_out, report.name);
            format!(
                "{}: {rows}; notes: {} added, {} changed, {} deleted{left_out}",
                report.name, drift.missing, drift.stale, drift.orphaned
            )
        };
        reports.iter().map(line).collect::<Vec<_>>().join("\n")
    })?;
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

fn table(listed: &[Counted], folders: &[(String, i64)]) -> String {
    if listed.is_empty() && folders.is_empty() {
        return "no sources; `elf source add TABLE` proposes one".into();
    }
    let line = |Counted {
                    source: one,
                    counts,
                }: &Counted| {
        let notes = counted(counts.notes.unsigned_abs(), "note", "notes");
        let problem = one.problem.iter().map(|problem| format!("\n  {problem}"));
        let left_out = left_out(counts.left_out, &one.name);
        format!(
            "{}  {}  {notes}{left_out}{}",
            one.name,
            one.table,
            problem.collect::<String>()
        )
    };
    let folder = |(name, notes): &(String, i64)| {
        format!("{name}  {}", counted(notes.unsigned_abs(), "note", "notes"))
    };
    let lines = listed.iter().map(line).chain(folders.iter().map(folder));
    lines.collect::<Vec<_>>().join("\n")
}

/// How many rows are no notes, and what lists them.
pub fn left_out(rows: i64, source: &str) -> String {
    match rows {
        0 => String::new(),
        _ => format!(
            ", {} left out (`elf source left-out {source}`)",
            counted(rows.unsigned_abs(), "row", "rows")
        ),
    }
}

fn rows_left_out(rows: &[LeftOut]) -> String {
    if rows.is_empty() {
        return "no row is left out".into();
    }
    let row = |row: &LeftOut| {
        [
            row.since.format("%F %T").to_string(),
            excerpt(&row.source_id, 100),
            excerpt(&row.reason, 200),
        ]
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    columns(["LEFT OUT SINCE", "ROW", "REASON"], &rows)
}

async fn remove(store: &Store, name: &str, keep_notes: bool, out: Output) -> anyhow::Result<()> {
    let installed = store.sources().await?;
    let is_there = installed.iter().any(|one| one.source == name);
    if is_there {
        sources::uninstall(store, name).await?;
    }
    // A folder is one of a tenant, and tenants may give theirs the same name.
    let tenants = match name.starts_with("folder:") && !keep_notes {
        true => store.source_tenants(name).await?,
        false => 0,
    };
    anyhow::ensure!(
        tenants <= 1,
        "{tenants} tenants have notes of {name}: delete those of one over HTTP, with a key of it: POST /v2/notes:delete \
         {{\"filter\": {{\"source\": {name:?}}}}}"
    );
    let deleted = match keep_notes {
        true => 0,
        false => sources::drop_notes(store, name).await?,
    };
    anyhow::ensure!(
        is_there || deleted > 0,
        "there is no source {name}: `elf source list` has them"
    );
    out.report(&json!({ "removed": name, "deleted_notes": deleted }), |_| {
        let deleted = counted(deleted, "note", "notes");
        if !is_there {
            return format!("{deleted} of {name} deleted");
        }
        format!("the triggers of {name} are removed, {deleted} deleted; also take its block out of elf.toml")
    })
}
