//! Whether this process can do its work: what is checked, what fails, and since when.

use std::sync::{Mutex, MutexGuard};

use chrono::{DateTime, Utc};
use metrics::gauge;
use serde::Serialize;

/// What is checked, in the order in which one thing needs another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The configuration, as far as database and provider accept it.
    Config,
    /// Whether Postgres answers.
    Postgres,
    /// Whether its schema is this program's.
    Schema,
    /// Whether the vector engine answers.
    Index,
    /// Whether the alias points at the collection that is served.
    Alias,
    /// Whether texts are sent to the embedding provider.
    Provider,
    /// Whether claims go on.
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
    /// As `/readyz` and the metrics have it.
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

/// Why a check fails that has not been made yet.
const STARTING: &str = "the process is starting";

/// What is known of a part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Which part.
    pub name: Part,
    /// Whether it is as it must be.
    pub ok: bool,
    /// Since when it is so.
    pub since: DateTime<Utc>,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The checks of a process. All of them fail until they have been made.
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
    /// Forgets what was found: the start begins anew.
    pub fn forget(&self) {
        *self.lock() = unknown();
        for part in PARTS {
            // Neither 1 nor 0, so that no alert is about what is not known.
            gauge!("elf_check_ok", "check" => part.as_str()).set(f64::NAN);
        }
    }

    /// Takes down what a check found: `None` when all is well. A change is logged, once.
    pub fn set(&self, part: Part, problem: Option<String>) {
        let mut checks = self.lock();
        let check = &mut checks[part as usize];
        let ok = problem.is_none();
        if ok != check.ok {
            let name = part.as_str();
            match &problem {
                Some(reason) => tracing::warn!(check = name, reason, "not ready"),
                // That it began is no news; that it is back, somebody may wait for.
                None if check.reason.as_deref() == Some(STARTING) => {
                    tracing::debug!(check = name, "ready");
                }
                None => tracing::info!(check = name, "ready again"),
            }
            check.ok = ok;
            check.since = Utc::now();
        }
        check.reason = problem;
        gauge!("elf_check_ok", "check" => part.as_str()).set(number(ok));
        gauge!("elf_ready").set(number(checks.iter().all(|check| check.ok)));
    }

    /// Every check.
    pub fn checks(&self) -> Vec<Check> {
        self.lock().clone()
    }

    /// The first that fails; `None` when the process is ready.
    pub fn problem(&self) -> Option<Check> {
        self.lock().iter().find(|check| !check.ok).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Check>> {
        self.0
            .lock()
            .expect("nobody panics while holding the checks")
    }
}

fn number(yes: bool) -> f64 {
    f64::from(u8::from(yes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_ready_before_it_was_looked_at() {
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
