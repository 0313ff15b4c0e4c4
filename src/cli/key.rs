//! `elf key`

use serde::Serialize;
use serde_json::json;
use uuid::Uuid;

use super::output::{Output, columns, excerpt};
use super::{value, wiring};
use crate::config::Config;
use crate::http::api::new_secret;
use crate::store::{ListedKey, Reach};

/// Subcommands of `elf key`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Make a key and print its secret, which is not kept
    Create(New),
    /// List keys, without their secrets
    List,
    /// Give a key another secret and print it; the old one ends at once
    Rotate {
        /// The key's id
        #[arg(value_parser = value::key_id)]
        id: Uuid,
    },
    /// End a key at once
    Revoke {
        /// The key's id
        #[arg(value_parser = value::key_id)]
        id: Uuid,
    },
}

impl Command {
    /// Whether it changes a key.
    pub fn is_change(&self) -> bool {
        !matches!(self, Self::List)
    }
}

/// Which notes a new key reaches.
#[derive(clap::Args)]
pub struct New {
    /// The tenant whose notes the key reaches
    #[arg(long, value_parser = value::tenant)]
    tenant: String,
    /// Only notes of this project
    #[arg(long)]
    project: Option<String>,
    /// Only notes of this agent
    #[arg(long)]
    agent: Option<String>,
    /// The key may also add, change and delete notes
    #[arg(long)]
    write: bool,
    /// What the key is for, shown by `elf key list`
    #[arg(long, default_value = "")]
    name: String,
}

/// A key with its secret.
#[derive(Serialize)]
struct Secret {
    key_id: Uuid,
    secret: String,
}

pub async fn run(config: &Config, command: Command, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    match command {
        Command::Create(new) => {
            let (secret, hash) = new_secret();
            let reach = Reach {
                tenant_id: new.tenant,
                project_id: new.project,
                agent_id: new.agent,
            };
            let key_id = store
                .create_api_key(&new.name, hash, &reach, new.write)
                .await?;
            out.report(&Secret { key_id, secret }, told)
        }
        Command::List => {
            let keys = store.api_keys().await?;
            out.report(&json!({ "items": &keys }), |_| list(&keys))
        }
        Command::Rotate { id } => {
            let (secret, hash) = new_secret();
            check_found(store.rotate_api_key(id, hash).await?, id)?;
            out.report(&Secret { key_id: id, secret }, told)
        }
        Command::Revoke { id } => {
            check_found(store.revoke_api_key(id).await?, id)?;
            out.report(&json!({ "revoked": id }), |_| format!("{id} is revoked"))
        }
    }
}

fn check_found(is_found: bool, id: Uuid) -> anyhow::Result<()> {
    anyhow::ensure!(
        is_found,
        "no key that works has the id {id}: see `elf key list`"
    );
    Ok(())
}

fn told(secret: &Secret) -> String {
    format!(
        "key     {}\nsecret  {}\nELF shows the secret only now: save it. Send it as \
         `Authorization: Bearer SECRET`.",
        secret.key_id, secret.secret
    )
}

fn list(keys: &[ListedKey]) -> String {
    if keys.is_empty() {
        return "no keys; `elf key create` makes one".into();
    }
    let row = |key: &ListedKey| {
        let reach = [
            Some(("tenant", key.tenant_id.as_str())),
            key.project_id.as_deref().map(|label| ("project", label)),
            key.agent_id.as_deref().map(|label| ("agent", label)),
        ];
        let reach: Vec<String> = reach
            .into_iter()
            .flatten()
            .map(|(name, label)| format!("{name} {}", excerpt(label, 60)))
            .collect();
        let rights = if key.can_write { "read, write" } else { "read" };
        let state = match key.revoked_at {
            Some(at) => format!("revoked {}", at.format("%F %T")),
            None => "works".into(),
        };
        [
            key.key_id.to_string(),
            reach.join(", "),
            rights.into(),
            state,
            excerpt(&key.name, 60),
        ]
    };
    let rows: Vec<_> = keys.iter().map(row).collect();
    columns(["KEY", "REACHES", "MAY", "STATE", "NAME"], &rows)
}
