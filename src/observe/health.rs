//! The checks of `/readyz`: whether this process can do its work, and since when a check
//! fails.

use std::sync::Mutex;

use chrono::{DateTime, Utc};
use metrics::gauge;
use serde::Serialize;

use crate::lock::lock;

/// The checked parts. A part comes after the parts that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Whether Postgres and the provider accept the configuration.
    Config,
    /// Whether Postgres answers.
    Postgres,
    /// Whether its schema is this program's.
    Schema,
    /// Whether the vector engine answers.
    Index,
    /// Whether the alias points at the collection that is served.
    Alias,
    /// Whether ELF sends texts to the embedding provider: its circuit is closed.
    Provider,
    /// Whether the worker claims notes.
    Worker,
}

const PARTS: [Part; 7] = [
    Part::Config,
    Part::Postgres,
    Part::Schema,
    Part::Index,
    Part::Alias,
    Part::Provider,
    Part::Worker,
];

impl Part {
    /// The name in `/readyz` and in the label of `elf_check_ok`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Postgres => "postgres",
            Self::Schema => "schema",
            Self::Index => "index",
            Self::Alias => "alias",
            Self::Provider => "provider",
            Self::Worker => "worker",
        }
    }
}

/// The reason of a check that has not run yet.
const STARTING: &str = "the process is starting";

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    pub name: Part,
    /// Whether the check holds.
    pub ok: bool,
    /// When `ok` last changed.
    pub since: DateTime<Utc>,
    /// Why it fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The checks of a process. Each fails until it has run.
#[derive(Debug)]
pub struct Health(Mutex<Vec<Check>>);

impl Default for Health {
    fn default() -> Self {
        Self(Mutex::new(unknown()))
    }
}

fn unknown() -> Vec<Check> {
    let since = Utc::now();
    let unknown = |name| Check {
        name,
        ok: false,
        since,
        reason: Some(STARTING.into()),
    };
    PARTS.map(unknown).into()
}

impl Health {
    /// Resets every check, when a start waits for another part than before.
    pub fn forget(&self) {
        *lock(&self.0) = unknown();
        for part in PARTS {
            // NaN is neither 1 nor 0: a check that has not run fires no alert.
            gauge!("elf_check_ok", "check" => part.as_str()).set(f64::NAN);
        }
    }

    /// Records the result of a check: `None` when it holds. Logs only when the result changes.
    pub fn set(&self, part: Part, problem: Option<String>) {
        let mut checks = lock(&self.0);
        let check = &mut checks[part as usize];
        let ok = problem.is_none();
        if ok != check.ok {
            let name = part.as_str();
            match &problem {
                Some(reason) => tracing::warn!(check = name, reason, "check failed"),
                // The first success after the start is no recovery.
                None if check.reason.as_deref() == Some(STARTING) => {
                    tracing::debug!(check = name, "check holds");
                }
                None => tracing::info!(check = name, "check recovered"),
            }
            check.ok = ok;
            check.since = Utc::now();
        }
        check.reason = problem;
        gauge!("elf_check_ok", "check" => part.as_str()).set(number(ok));
        gauge!("elf_ready").set(number(checks.iter().all(|check| check.ok)));
    }

    pub fn checks(&self) -> Vec<Check> {
        lock(&self.0).clone()
    }

    /// Whether the last check of this part held.
    pub fn holds(&self, part: Part) -> bool {
        lock(&self.0)[part as usize].ok
    }

    /// The first failing check; `None` when the process is ready.
    pub fn problem(&self) -> Option<Check> {
        lock(&self.0).iter().find(|check| !check.ok).cloned()
    }
}

fn number(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_ready_before_its_first_check() {
        let health = Health::default();
        for part in PARTS {
            assert_eq!(health.problem().map(|check| check.name), Some(part));
            health.set(part, None);
        }
        assert_eq!(health.problem(), None);
    }

    #[test]
    fn a_check_that_keeps_failing_keeps_its_time_and_tells_its_latest_reason() {
        let health = Health::default();
        health.set(Part::Index, None);
        health.set(Part::Index, Some("refused".into()));
        let first = health.checks()[Part::Index as usize].clone();
        health.set(Part::Index, Some("timed out".into()));
        let second = &health.checks()[Part::Index as usize];
        assert_eq!(second.since, first.since);
        assert_eq!(second.reason.as_deref(), Some("timed out"));
    }
}
