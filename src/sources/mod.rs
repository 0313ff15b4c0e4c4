//! Tables of the application whose rows are notes: `[[sources]]`.
//!
//! Triggers on the table make the note of a row equal to it, in the transaction that writes the row. What they call is
//! generated for each source (`script.rs`), so that no value of a row becomes SQL.

mod columns;
pub mod propose;
mod script;
mod text;

use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::config::Source;
use crate::store::{
    InstalledSource, LeftOut, SourceDrift, SourceFacts, SourceSide, Store, StoreError,
};

/// Rows of a page of a comparison. The application waits for the notes of one page at most.
const PAGE: i32 = 2000;

/// A source, and the statements that install it on the table as it is now.
#[derive(Debug)]
pub struct Plan {
    source: Source,
    facts: SourceFacts,
    install: String,
}

/// How a source is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As the configuration says.
    Applied,
    /// Its triggers follow another configuration, or another form of the table.
    Differs,
    /// There are no triggers.
    Missing,
    /// It does not fit its table.
    Unfit,
    /// Another session has locked the table.
    Locked,
    /// The configuration has no such source.
    Unknown,
}

/// A source and how it is installed.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its table.
    pub table: String,
    /// How it is installed.
    pub state: State,
    /// What to do about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Listed {
    fn locked(source: &Source, problem: &str) -> Self {
        Self {
            name: source.name.clone(),
            table: source.table.clone(),
            state: State::Locked,
            problem: Some(format!(
                "elf cannot look at the triggers of {} now: {problem}",
                source.name
            )),
        }
    }
}

/// Looks at tables again and again, as long as another session has locked one.
pub async fn patiently<T>(look: impl AsyncFn() -> Result<T, StoreError>) -> Result<T, StoreError> {
    loop {
        match look().await {
            Err(StoreError::Locked(_)) => {}
            seen => return seen,
        }
    }
}

/// The sources of the configuration, and those that are installed all the same.
pub async fn list(store: &Store, sources: &[Source]) -> Result<Vec<Listed>, StoreError> {
    let installed = match store.sources().await {
        Err(StoreError::Locked(problem)) => {
            let listed = sources
                .iter()
                .map(|source| Listed::locked(source, &problem));
            return Ok(listed.collect());
        }
        installed => installed?,
    };
    let mut listed = Vec::new();
    for source in sources {
        let (table, state, problem) = match Plan::of(store, source).await {
            Ok(plan) => {
                let state = plan.state(&installed);
                let problem = match state {
                    State::Differs => Some(format!(
                        "the triggers of {} are not what elf.toml, {} and this version of elf ask for: run `elf source apply`, \
                         then `elf source sync`",
                        source.name, plan.facts.table
                    )),
                    State::Missing => Some(format!(
                        "{} has no triggers yet: run `elf source apply`, then `elf source sync`",
                        source.name
                    )),
                    _ => None,
                };
                (plan.facts.table, state, problem)
            }
            Err(StoreError::Schema(problem)) => (source.table.clone(), State::Unfit, Some(problem)),
            Err(StoreError::Locked(problem)) => {
                listed.push(Listed::locked(source, &problem));
                continue;
            }
            Err(error) => return Err(error),
        };
        listed.push(Listed {
            name: source.name.clone(),
            table,
            state,
            problem,
        });
    }
    let is_known = |one: &InstalledSource| sources.iter().any(|source| source.name == one.source);
    let unknown = installed.into_iter().filter(|one| !is_known(one));
    listed.extend(unknown.map(|one| Listed {
        problem: Some(format!(
            "elf.toml has no source {0}, and its triggers are there: `elf source remove {0}` takes them away",
            one.source
        )),
        name: one.source,
        table: one.table,
        state: State::Unknown,
    }));
    Ok(listed)
}

/// [`list`], once no other session has locked a table.
pub async fn list_unlocked(store: &Store, sources: &[Source]) -> Result<Vec<Listed>, StoreError> {
    loop {
        let listed = list(store, sources).await?;
        if listed.iter().all(|one| one.state != State::Locked) {
            return Ok(listed);
        }
    }
}

impl Plan {
    /// Reads the table of a source, and checks that the source fits it.
    pub async fn of(store: &Store, source: &Source) -> Result<Self, StoreError> {
        let of = format!("the source {}", source.name);
        let expressions = |alias: &str| script::expressions(source, alias);
        let facts = store.source_facts(&of, &source.table, expressions).await;
        let facts = facts.map_err(|error| match error {
            StoreError::Schema(problem) if problem.contains("= jsonb") => StoreError::Schema(
                format!("{problem}; metadata_sql has to be an object of the type jsonb"),
            ),
            error => error,
        })?;
        let install = script::install(source, &facts);
        Ok(Self {
            source: source.clone(),
            facts,
            install,
        })
    }

    /// How it is installed, given what is.
    pub fn state(&self, installed: &[InstalledSource]) -> State {
        let found = installed.iter().find(|one| one.source == self.source.name);
        match found {
            None => State::Missing,
            Some(found) if found.is_intact && found.sha256 == self.sha256() => State::Applied,
            Some(_) => State::Differs,
        }
    }

    /// Everything that an installation executes, for someone who has the rights.
    pub fn sql(&self) -> String {
        format!(
            "begin;\nset local lock_timeout = '800ms'; -- applications wait behind it: if it ends with an error, try again\n\
             {}{}commit;\n",
            self.script(),
            script::own(&self.source.name, &self.facts)
        )
    }

    /// Installs the functions and triggers. Returns why they run with the rights of ELF's role, if they do.
    pub async fn apply(&self, store: &Store) -> Result<Option<String>, StoreError> {
        let own = script::own(&self.source.name, &self.facts);
        let installed = store.install_source(&self.script(), &own).await;
        installed.map_err(|error| match error {
            StoreError::Schema(reason) => {
                StoreError::Schema(format!("the source {}: {reason}", self.source.name))
            }
            error => error,
        })
    }

    fn script(&self) -> String {
        format!(
            "{}{}{}",
            self.install,
            script::of_partitions(&self.source, &self.facts),
            script::record(&self.source.name, &self.facts, &self.sha256())
        )
    }

    fn sha256(&self) -> Vec<u8> {
        Sha256::digest(&self.install).to_vec()
    }
}

/// Takes the triggers and functions of a source from its table. The notes stay.
pub async fn uninstall(store: &Store, name: &str) -> Result<(), StoreError> {
    store.uninstall_source(&script::uninstall(name)).await
}

/// Deletes the notes of a source, page by page. Returns how many.
pub async fn drop_notes(store: &Store, name: &str) -> Result<u64, StoreError> {
    let mut dropped = 0;
    loop {
        match store.drop_source_notes(name, PAGE.into()).await? {
            0 => return Ok(dropped),
            more => dropped += more,
        }
    }
}

/// How long a sync waits for transactions that were open when it wrote notes.
const WRITERS_LIMIT: Duration = Duration::from_secs(10);

/// What was compared so far, and how it differed.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Compared {
    /// Rows that were compared with their notes.
    pub rows: u64,
    /// How the notes differed.
    #[serde(flatten)]
    pub drift: SourceDrift,
}

/// Compares the notes of a source with its rows, and makes them equal with `write`. It may be stopped at any moment and
/// begun again: a row whose note is equal costs little. `tell` is called after each page.
pub async fn compare(
    store: &Store,
    Listed { name, table, .. }: &Listed,
    write: bool,
    tell: impl Fn(Compared),
) -> Result<Compared, StoreError> {
    let mut compared = Compared::default();
    compare_side(store, name, SourceSide::Rows, write, &mut compared, &tell).await?;
    // A transaction that was open may have changed or deleted a row before its note was there. A note that is deleted may
    // have had the key of a row.
    if write && compared.drift.missing + compared.drift.orphaned > 0 {
        if !store.wait_for_writers(table, WRITERS_LIMIT).await? {
            tracing::warn!(
                "a transaction that has written {table} is still open: run `elf source sync {name}` again after its end"
            );
        }
        let mut again = Compared::default();
        compare_side(store, name, SourceSide::Rows, write, &mut again, &|_| {}).await?;
    }
    let before = compared.drift.orphaned;
    compare_side(store, name, SourceSide::Notes, write, &mut compared, &tell).await?;
    if write && compared.drift.orphaned > before {
        let mut again = Compared::default();
        compare_side(store, name, SourceSide::Rows, write, &mut again, &|_| {}).await?;
    }
    Ok(compared)
}

/// So few notes are soon made again.
const FEW: u64 = 10;

/// Most of the notes would go.
#[derive(Debug, thiserror::Error)]
#[error(
    "{gone} of the {notes} notes of {name} would go, and no note was changed: their rows are gone, or are no notes any \
     more{}; check its block in elf.toml, or run `elf source sync {name} --force`",
    reason.as_ref().map_or(String::new(), |of| format!(" (of the row {}: {})", of.source_id, of.reason))
)]
pub struct Refused {
    /// How the notes differ.
    pub looked: Compared,
    name: String,
    gone: u64,
    notes: u64,
    reason: Option<LeftOut>,
}

/// Makes the notes of a source equal to its rows, unless more than half of them would go.
pub async fn repair(
    store: &Store,
    listed: &Listed,
    tell: impl Fn(Compared),
) -> Result<Result<Compared, Refused>, StoreError> {
    let looked = compare(store, listed, false, &tell).await?;
    let counts = store.source_counts().await?;
    let counts = counts.get(&listed.name).copied().unwrap_or_default();
    let (notes, gone) = (counts.notes.unsigned_abs(), looked.drift.orphaned);
    // Of other rows it has to say why they are no notes.
    if looked.drift.all() == 0 && counts.left_out == 0 && looked.rows == notes {
        return Ok(Ok(looked));
    }
    if gone > FEW && gone * 2 > notes {
        return Ok(Err(Refused {
            looked,
            name: listed.name.clone(),
            gone,
            notes,
            reason: store.would_leave_out(&listed.name, PAGE).await?,
        }));
    }
    Ok(Ok(compare(store, listed, true, tell).await?))
}

async fn compare_side(
    store: &Store,
    name: &str,
    side: SourceSide,
    write: bool,
    compared: &mut Compared,
    tell: &impl Fn(Compared),
) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = store
            .compare_page(name, side, after.as_deref(), PAGE, write)
            .await?;
        if let SourceSide::Rows = side {
            compared.rows += page.rows;
        }
        compared.drift.missing += page.drift.missing;
        compared.drift.stale += page.drift.stale;
        compared.drift.orphaned += page.drift.orphaned;
        tell(*compared);
        match page.last {
            Some(last) => after = Some(last),
            None => return Ok(()),
        }
    }
}
