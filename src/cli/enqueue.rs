//! `elf enqueue`

use serde_json::json;
use uuid::Uuid;

use super::output::Output;
use super::{value, wiring};
use crate::config::Config;
use crate::store::Selection;

/// Arguments of `elf enqueue`.
#[derive(clap::Args)]
#[group(id = "which", required = true, multiple = true)]
pub struct Args {
    /// Every note, instead of the options below
    #[arg(long, conflicts_with_all = ["note", "tenant", "project", "agent", "scope", "kind"])]
    all: bool,
    /// The note with this id; may be repeated
    #[arg(long, value_name = "ID", value_parser = value::note_id)]
    note: Vec<Uuid>,
    /// Notes of this tenant
    #[arg(long = "where-tenant", value_name = "TENANT_ID")]
    tenant: Option<String>,
    /// Notes of this project
    #[arg(long = "where-project", value_name = "PROJECT_ID")]
    project: Option<String>,
    /// Notes of this agent
    #[arg(long = "where-agent", value_name = "AGENT_ID")]
    agent: Option<String>,
    /// Notes of this scope
    #[arg(long = "where-scope", value_name = "SCOPE")]
    scope: Option<String>,
    /// Notes of this type
    #[arg(long = "where-type", value_name = "TYPE")]
    kind: Option<String>,
}

/// Puts notes into the outbox. Several conditions must all hold.
pub async fn run(config: &Config, args: Args, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    let which = Selection {
        note_ids: (!args.note.is_empty()).then_some(args.note),
        tenant_id: args.tenant,
        project_id: args.project,
        agent_id: args.agent,
        scope: args.scope,
        kind: args.kind,
    };
    let enqueued = store.enqueue(&which).await?;
    anyhow::ensure!(
        which.note_ids.is_none() || enqueued > 0,
        "no note has one of these ids, and the other labels that were asked for"
    );
    out.report(&json!({ "enqueued": enqueued }), |_| {
        format!("{enqueued} notes enqueued")
    })
}
