//! `elf migrate`

use serde_json::json;

use super::output::Output;
use super::parts;
use crate::config::Config;

/// Brings the schema up to date.
pub async fn run(config: &Config, out: Output) -> anyhow::Result<()> {
    let applied = parts::store(config).await?.migrate().await?;
    out.report(&json!({ "applied": applied }), |_| match applied {
        0 => "the schema is up to date".into(),
        1 => "applied 1 migration".into(),
        n => format!("applied {n} migrations"),
    })
}
