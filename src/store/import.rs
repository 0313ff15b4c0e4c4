//! Writing the notes of `elf import`.

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

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
}

/// What an import changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Imported {
    /// Notes that are new or differ from their row.
    pub changed: u64,
    /// Changed notes that are archived or expired, and stay so.
    pub not_live: u64,
}

impl std::ops::AddAssign for Imported {
    fn add_assign(&mut self, other: Self) {
        self.changed += other.changed;
        self.not_live += other.not_live;
    }
}

impl Store {
    /// The ids of the notes that have the keys of these notes, under the same labels; `None` for a
    /// key that no note has.
    pub async fn notes_of_keys(
        &self,
        notes: &[&ImportedNote],
    ) -> Result<Vec<Option<Uuid>>, StoreError> {
        let keys: Vec<Option<&str>> = notes.iter().map(|n| n.key.value.as_deref()).collect();
        let rows = sqlx::query_file!(
            "sql/queries/import_keyed.sql",
            &values(notes, |n| &n.tenant_id) as _,
            &values(notes, |n| &n.project_id) as _,
            &values(notes, |n| &n.agent_id) as _,
            &values(notes, |n| &n.scope) as _,
            &keys as _
        )
        .fetch_all(&self.keyed)
        .await?;
        let mut found = vec![None; notes.len()];
        for row in rows {
            found[row.place as usize - 1] = Some(row.note_id);
        }
        Ok(found)
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

    /// Writes notes of different ids. The trigger enqueues those that changed.
    ///
    /// It waits for no row while it has locked another one: an application that changes two of them, in
    /// whatever order, would be the victim of a deadlock.
    pub async fn import(&self, notes: &[&ImportedNote]) -> Result<Imported, StoreError> {
        let at_once = async {
            match self.write_imported(AT_ONCE, notes).await {
                Err(error) if is_locked_out(&error) => Ok(None),
                imported => Ok(Some(imported?)),
            }
        };
        if let Some(imported) = self.measured("import", at_once).await? {
            return Ok(imported);
        }
        let mut imported = Imported::default();
        for note in notes {
            let alone = async { Ok(self.write_imported(ALONE, &[*note]).await?) };
            imported += self.measured("import", alone).await?;
        }
        Ok(imported)
    }

    async fn write_imported(
        &self,
        begin: &'static str,
        notes: &[&ImportedNote],
    ) -> Result<Imported, sqlx::Error> {
        let ids: Vec<Uuid> = notes.iter().map(|n| n.note_id).collect();
        let texts: Vec<&str> = notes.iter().map(|n| n.text.as_str()).collect();
        let keys: Vec<Option<&str>> = notes.iter().map(|n| n.key.value.as_deref()).collect();
        let mut tx = Transaction::begin(&self.keyed, begin).await?;
        let new = sqlx::query_file!(
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
            &values(notes, |n| &n.title) as _
        )
        .execute(&mut *tx)
        .await?;
        let changed = sqlx::query_file_scalar!(
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
            &values(notes, |n| &n.title) as _
        )
        .fetch_all(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(Imported {
            changed: new.rows_affected() + changed.len() as u64,
            not_live: changed.iter().filter(|is_live| !**is_live).count() as u64,
        })
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
