//! `elf migrate`

use serde_json::json;

use super::output::Output;
use super::wiring;
use crate::config::Config;

/// Applies pending migrations, gives the vectors their type, and restricts the rights of other roles and of ELF's triggers.
pub async fn run(config: &Config, out: Output) -> anyhow::Result<()> {
    let Migrated { applied, notes } = migrate(config).await?;
    out.report(&json!({ "applied": applied, "notes": notes }), |_| {
        let applied = match applied {
            0 => "the schema is up to date".into(),
            1 => "applied 1 migration".into(),
            n => format!("applied {n} migrations"),
        };
        let notes = notes.iter().map(|note| format!("\nnote: {note}"));
        std::iter::once(applied).chain(notes).collect()
    })
}

/// What a migration did.
pub struct Migrated {
    /// Migrations that it applied.
    pub applied: usize,
    /// What the operator should know.
    pub notes: Vec<String>,
}

/// Makes the schema what this program and its configuration need.
pub async fn migrate(config: &Config) -> anyhow::Result<Migrated> {
    let store = wiring::store(config).await?;
    let applied = store.migrate().await?;
    let mut notes = Vec::new();
    if let Some(vector_type) = config.storage.postgres.vector_type
        && store.change_vector_type(vector_type).await?
    {
        let name = vector_type.name();
        notes.push(format!("the vectors are of the type {name} now"));
    }
    notes.extend(store.restrict_rights().await?);
    Ok(Migrated { applied, notes })
}
