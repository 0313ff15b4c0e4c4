//! `elf dead`

use serde_json::json;
use uuid::Uuid;

use super::output::{Output, columns, counted, excerpt};
use super::{value, wiring};
use crate::config::Config;
use crate::store::DeadLetter;

/// Subcommands of `elf dead`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List the latest dead letters
    List {
        /// Dead letters to list at most
        #[arg(long, default_value_t = 50, value_parser = value::whole::<1, 65_535>)]
        limit: u16,
    },
    /// Show a dead letter, with its whole error and the beginning of the text
    Show {
        /// The outbox id or the note id
        #[arg(value_parser = value::dead_letter_id)]
        id: Uuid,
    },
    /// Retry dead letters; their attempts count from 0 again
    Retry(Which),
    /// Delete dead letters; their notes stay, but are not indexed until they change
    Purge(Which),
}

/// Which dead letters.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct Which {
    /// Outbox ids or note ids
    #[arg(value_name = "ID", value_parser = value::dead_letter_id)]
    ids: Vec<Uuid>,
    /// All dead letters, instead of ids
    #[arg(long)]
    all: bool,
}

impl Which {
    fn ids(&self) -> Option<&[Uuid]> {
        (!self.all).then_some(&self.ids)
    }

    /// Fails if none of the ids is that of a dead letter.
    fn check_found(&self, found: u64) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.all || found > 0,
            "no dead letter has one of these outbox ids or note ids; `elf dead list` has them"
        );
        Ok(())
    }
}

pub async fn run(config: &Config, command: Command, out: Output) -> anyhow::Result<()> {
    let store = wiring::store(config).await?;
    store.check_schema().await?;
    match command {
        Command::List { limit } => {
            let letters = store.dead_letters(limit.into()).await?;
            out.report(&json!({ "items": &letters }), |_| list(&letters))
        }
        Command::Show { id } => {
            let letters = store.dead_letter(id).await?;
            anyhow::ensure!(
                !letters.is_empty(),
                "no dead letter has the outbox id or note id {id}"
            );
            out.report(&json!({ "items": &letters }), |_| {
                letters.iter().map(show).collect()
            })
        }
        Command::Retry(which) => {
            let retried = store.retry_dead(which.ids()).await?;
            which.check_found(retried)?;
            out.report(&json!({ "retried": retried }), |_| {
                format!("{} due again", counted(retried, "note is", "notes are"))
            })
        }
        Command::Purge(which) => {
            let purged = store.purge_dead(which.ids()).await?;
            which.check_found(purged)?;
            out.report(&json!({ "purged": purged }), |_| {
                format!("{} deleted", counted(purged, "dead letter", "dead letters"))
            })
        }
    }
}

fn list(letters: &[DeadLetter]) -> String {
    if letters.is_empty() {
        return "no dead letters".into();
    }
    let row = |l: &DeadLetter| {
        let error = l.last_error.as_deref().unwrap_or("none recorded");
        [
            l.died_at.format("%F %T").to_string(),
            l.note_id.to_string(),
            name(l).unwrap_or_default(),
            l.attempts.to_string(),
            l.reason.clone(),
            excerpt(error, 100),
        ]
    };
    let rows: Vec<_> = letters.iter().map(row).collect();
    let headings = ["DEAD SINCE", "NOTE", "NAME", "TRIES", "BY", "ERROR"];
    columns(headings, &rows)
}

/// What people call the note: its key, its title, or both.
pub fn name(letter: &DeadLetter) -> Option<String> {
    let short = |text: &Option<String>| text.as_deref().map(|text| excerpt(text, 40));
    match (short(&letter.key), short(&letter.title)) {
        (Some(key), Some(title)) => Some(format!("{key} ({title})")),
        (key, title) => key.or(title),
    }
}

fn show(letter: &DeadLetter) -> String {
    let text = match (&letter.text_preview, letter.text_bytes) {
        (Some(preview), Some(bytes)) => format!("{} ({bytes} bytes)", excerpt(preview, 300)),
        _ => "the note was deleted".into(),
    };
    let name = name(letter).map(|name| format!("\nname      {name}"));
    format!(
        "note      {}{}\noutbox    {} ({})\nwritten   {}\ndead      {} after {} attempts\n\
         reason    {}\nerror     {}\ntext      {text}",
        letter.note_id,
        name.unwrap_or_default(),
        letter.outbox_id,
        letter.op,
        letter.created_at,
        letter.died_at,
        letter.attempts,
        letter.reason,
        letter.last_error.as_deref().unwrap_or("none recorded"),
    )
}
