//! Writing the notes of `elf import`.

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::limit::Limit;
use super::migrations::is_locked_out;
use super::{Store, StoreError, Transaction};

/// Begins a transaction that fails if another one has locked a row.
const AT_ONCE: &str = "begin isolation level read committed; set local lock_timeout = '10ms'";

/// Begins a transaction that sees what is committed when it has waited.
const ALONE: &str = "begin isolation level read committed";

/// A column of an imported note.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Field<T> {
    /// What a new note gets.
    pub value: T,
    /// Whether it also replaces what a note that is there has. If not, that stays as the application
    /// left it.
    pub is_named: bool,
}

impl<T> Field<T> {
    /// What the import names, or else what a new note gets.
    pub fn or(named: Option<T>, default: T) -> Self {
        Self {
            is_named: named.is_some(),
            value: named.unwrap_or(default),
        }
    }

    fn named(&self) -> Option<&T> {
        self.is_named.then_some(&self.value)
    }
}

/// A note for [`Store::import`].
#[derive(Debug, Clone)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct ImportedNote {
    pub note_id: Uuid,
    /// Whether the key says which note it is, and `note_id` is that of a new one.
    pub is_keyed: bool,
    /// Every import names it.
    pub text: String,
    pub tenant_id: Field<String>,
    pub project_id: Field<String>,
    pub agent_id: Field<String>,
    pub scope: Field<String>,
    pub kind: Field<String>,
    pub key: Field<Option<String>>,
    pub importance: Field<f32>,
    pub confidence: Field<f32>,
    pub expires_at: Field<Option<DateTime<Utc>>>,
    pub source_ref: Field<Value>,
    pub title: Field<Option<String>>,
    pub metadata: Field<Value>,
    /// The file that a sync keeps it equal to.
    pub origin: Option<Origin>,
}

/// Which file of which folder a note is: its columns `source` and `source_id`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The folder.
    pub source: String,
    /// The path of the file below it.
    pub source_id: String,
}

/// Which note has a key.
#[derive(Debug, Clone, Default)]
pub struct KeyOwner {
    /// The note, with the row or file that it follows.
    pub note: Option<(Uuid, Option<Origin>)>,
    /// Whether the id that follows from the key is that of a note that follows a row or file.
    pub is_id_taken: bool,
}

/// A note that an import wrote: it is new, or differed from its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The note.
    pub note_id: Uuid,
    /// Whether it was not there.
    pub is_new: bool,
    /// Whether searches find it. What is archived or expired stays so.
    pub is_live: bool,
}

/// Whether what an import writes is to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is committed.
    Commit,
    /// It is taken back: a dry run says what Postgres would accept.
    RollBack,
}

impl Store {
    /// The notes that have the keys of these notes, under the same labels.
    pub async fn owners_of_keys(
        &self,
        notes: &[&ImportedNote],
    ) -> Result<Vec<KeyOwner>, StoreError> {
        let keys: Vec<Option<&str>> = notes.iter().map(|n| n.key.value.as_deref()).collect();
        let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
        let rows = sqlx::query_file!(
            "sql/queries/import_keyed.sql",
            &values(notes, |n| &n.tenant_id) as _,
            &values(notes, |n| &n.project_id) as _,
            &values(notes, |n| &n.agent_id) as _,
            &values(notes, |n| &n.scope) as _,
            &keys as _,
            &ids
        )
        .fetch_all(&self.keyed)
        .await?;
        let mut owners = vec![KeyOwner::default(); notes.len()];
        for row in rows {
            let origin = row.source.map(|source| Origin {
                source,
                source_id: row.source_id.unwrap_or_default(),
            });
            owners[row.place as usize - 1] = KeyOwner {
                note: row.note_id.map(|id| (id, origin)),
                is_id_taken: row.is_id_taken,
            };
        }
        Ok(owners)
    }

    /// Those of these notes that exist and belong to another tenant.
    pub async fn notes_of_others(
        &self,
        ids: &[Uuid],
        tenant: &str,
    ) -> Result<Vec<Uuid>, StoreError> {
        let foreign = sqlx::query_file_scalar!("sql/queries/import_foreign.sql", ids, tenant);
        Ok(foreign.fetch_all(&self.keyed).await?)
    }

    /// Writes notes of different ids, and returns those that it wrote. The trigger enqueues them.
    ///
    /// It waits for no row while it has locked another one: an application that changes two of them, in
    /// whatever order, would be the victim of a deadlock.
    pub async fn import(
        &self,
        notes: &[&ImportedNote],
        outcome: Outcome,
    ) -> Result<Vec<Written>, StoreError> {
        let at_once = async {
            match self.write_imported(AT_ONCE, notes, outcome).await {
                Err(error) if is_locked_out(&error) => Ok(None),
                written => Ok(Some(written?)),
            }
        };
        if let Some(written) = self.measured("import", at_once).await? {
            return Ok(written);
        }
        let mut written = Vec::new();
        for note in notes {
            let alone = async { Ok(self.write_imported(ALONE, &[*note], outcome).await?) };
            written.extend(self.measured("import", alone).await?);
        }
        Ok(written)
    }

    async fn write_imported(
        &self,
        begin: &'static str,
        notes: &[&ImportedNote],
        outcome: Outcome,
    ) -> Result<Vec<Written>, sqlx::Error> {
        let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
        let texts: Vec<&str> = notes.iter().map(|n| n.text.as_str()).collect();
        let keys: Vec<Option<&str>> = notes.iter().map(|n| n.key.value.as_deref()).collect();
        let origin = |of: fn(&Origin) -> &str| -> Vec<Option<&str>> {
            notes.iter().map(|n| n.origin.as_ref().map(of)).collect()
        };
        let sources = origin(|o| &o.source);
        let source_ids = origin(|o| &o.source_id);
        let mut tx = Transaction::begin(&self.keyed, begin).await?;
        let new = sqlx::query_file_scalar!(
            "sql/queries/import_new.sql",
            &ids,
            &values(notes, |n| &n.tenant_id) as _,
            &values(notes, |n| &n.project_id) as _,
            &values(notes, |n| &n.agent_id) as _,
            &values(notes, |n| &n.scope) as _,
            &values(notes, |n| &n.kind) as _,
            &keys as _,
            &texts as _,
            &values(notes, |n| &n.importance) as _,
            &values(notes, |n| &n.confidence) as _,
            &values(notes, |n| &n.expires_at) as _,
            &values(notes, |n| &n.source_ref) as _,
            &values(notes, |n| &n.title) as _,
            &values(notes, |n| &n.metadata) as _,
            &sources as _,
            &source_ids as _
        )
        .fetch_all(&mut *tx)
        .await?;
        let changed = sqlx::query_file!(
            "sql/queries/import_changed.sql",
            &ids,
            &named(notes, |n| &n.tenant_id) as _,
            &named(notes, |n| &n.project_id) as _,
            &named(notes, |n| &n.agent_id) as _,
            &named(notes, |n| &n.scope) as _,
            &named(notes, |n| &n.kind) as _,
            &keys as _,
            &are_named(notes, |n| n.key.is_named),
            &texts as _,
            &named(notes, |n| &n.importance) as _,
            &named(notes, |n| &n.confidence) as _,
            &are_named(notes, |n| n.expires_at.is_named),
            &values(notes, |n| &n.expires_at) as _,
            &named(notes, |n| &n.source_ref) as _,
            &are_named(notes, |n| n.title.is_named),
            &values(notes, |n| &n.title) as _,
            &named(notes, |n| &n.metadata) as _,
            &sources as _,
            &source_ids as _
        )
        .fetch_all(&mut *tx)
        .await?;
        match outcome {
            Outcome::Commit => tx.commit().await?,
            Outcome::RollBack => tx.rollback().await?,
        }
        let new = new.into_iter().map(|note_id| Written {
            note_id,
            is_new: true,
            is_live: true,
        });
        let changed = changed.into_iter().map(|row| Written {
            note_id: row.note_id,
            is_new: false,
            is_live: row.is_live,
        });
        Ok(new.chain(changed).collect())
    }

    /// The next notes of a folder in a tenant, with the file of each, in the order of their ids.
    pub async fn synced_notes(
        &self,
        source: &str,
        tenant: &str,
        after: Uuid,
        count: i64,
    ) -> Result<Vec<(Uuid, String)>, StoreError> {
        let page = sqlx::query_file!("sql/queries/synced_notes.sql", source, tenant, after, count);
        let page = self.page(page.map(|row| (row.note_id, row.source_id)));
        self.answered(Limit::Batch, page).await
    }

    /// The hashes of the texts of notes.
    pub async fn text_hashes(&self, ids: &[Uuid]) -> Result<Vec<(Uuid, Vec<u8>)>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/text_hashes.sql", ids).fetch_all(&self.keyed);
        let rows = self.answered(Limit::Batch, rows).await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.note_id, row.sha256))
            .collect())
    }

    /// Deletes notes whose files are gone, if they still are the notes of these files. Returns how many. It waits for
    /// no row while it has locked another one, as [`Store::import`].
    pub async fn delete_synced(
        &self,
        source: &str,
        tenant: &str,
        gone: &[(Uuid, String)],
    ) -> Result<u64, StoreError> {
        let at_once = async {
            match self.delete_imported(AT_ONCE, source, tenant, gone).await {
                Err(error) if is_locked_out(&error) => Ok(None),
                deleted => Ok(Some(deleted?)),
            }
        };
        if let Some(deleted) = self.measured("import", at_once).await? {
            return Ok(deleted);
        }
        let mut deleted = 0;
        for note in gone.chunks(1) {
            let alone = async { Ok(self.delete_imported(ALONE, source, tenant, note).await?) };
            deleted += self.measured("import", alone).await?;
        }
        Ok(deleted)
    }

    async fn delete_imported(
        &self,
        begin: &'static str,
        source: &str,
        tenant: &str,
        gone: &[(Uuid, String)],
    ) -> Result<u64, sqlx::Error> {
        let (ids, files): (Vec<Uuid>, Vec<String>) = gone.iter().cloned().unzip();
        let mut tx = Transaction::begin(&self.keyed, begin).await?;
        let deleted = sqlx::query_file!(
            "sql/queries/delete_synced.sql",
            source,
            tenant,
            &ids,
            &files
        );
        let deleted = deleted.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(deleted)
    }
}

fn values<'n, T>(notes: &[&'n ImportedNote], field: fn(&ImportedNote) -> &Field<T>) -> Vec<&'n T> {
    notes.iter().map(|note| &field(note).value).collect()
}

fn named<'n, T>(
    notes: &[&'n ImportedNote],
    field: fn(&ImportedNote) -> &Field<T>,
) -> Vec<Option<&'n T>> {
    notes.iter().map(|note| field(note).named()).collect()
}

fn are_named(notes: &[&ImportedNote], is_named: fn(&ImportedNote) -> bool) -> Vec<bool> {
    notes.iter().map(|note| is_named(note)).collect()
}
