//! `elf migrate`

use serde_json::json;

use super::output::Output;
use super::wiring;
use crate::config::Config;

/// Applies pending migrations and restricts the rights of ELF's triggers.
pub async fn run(config: &Config, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    let applied = store.migrate().await?;
    let notes = store.restrict_triggers().await?;
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
