//! The declared fields of `memory_notes.metadata`.

use super::{Limit, Store, StoreError};
use crate::metadata::{self, Declared, FieldType};

impl Store {
    /// The fields that payloads have.
    pub async fn declared_fields(&self) -> Result<Declared, StoreError> {
        let rows = sqlx::query_as("select name, type from elf_metadata_fields");
        let rows = self.asked("load", rows.fetch_all(&self.pool)).await?;
        Ok(of_rows(rows))
    }

    /// Makes these the fields that payloads have, and enqueues the notes whose payloads change, in one transaction.
    /// Returns how many; `None` if the fields were these before.
    pub async fn declare_fields(&self, wanted: &Declared) -> Result<Option<u64>, StoreError> {
        let work = async {
            let mut tx = self.begin_long(Limit::EveryNote).await?;
            // Two workers that start at once.
            sqlx::query("lock table elf_metadata_fields in share row exclusive mode")
                .execute(&mut *tx)
                .await?;
            let rows: Vec<(String, String)> =
                sqlx::query_as("select name, type from elf_metadata_fields")
                    .fetch_all(&mut *tx)
                    .await?;
            let known = of_rows(rows);
            let changed = metadata::changed(&known, wanted);
            if changed.is_empty() {
                return Ok(None);
            }
            sqlx::query("delete from elf_metadata_fields where name = any ($1)")
                .bind(&changed)
                .execute(&mut *tx)
                .await?;
            let (names, types): (Vec<&str>, Vec<&str>) = wanted
                .iter()
                .filter(|(name, _)| changed.contains(name))
                .map(|(name, kind)| (name.as_str(), kind.name()))
                .unzip();
            sqlx::query(
                "insert into elf_metadata_fields (name, type) select * from unnest($1::text[], $2::text[])",
            )
            .bind(names)
            .bind(types)
            .execute(&mut *tx)
            .await?;
            let enqueued = sqlx::query_file!("sql/queries/enqueue_fields.sql", &changed)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok::<_, StoreError>(Some(enqueued.rows_affected()))
        };
        self.answered(Limit::EveryNote, work).await
    }
}

fn of_rows(rows: Vec<(String, String)>) -> Declared {
    rows.into_iter()
        .filter_map(|(name, kind)| Some((name, FieldType::of_name(&kind)?)))
        .collect()
}
