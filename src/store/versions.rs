//! Embedding versions and the collections that hold them.

use sqlx::PgExecutor;

use super::{Store, StoreError, schema};

/// A row of `index_versions`.
#[derive(Debug, Clone, PartialEq)]
pub struct Version {
    /// The embedding version's name.
    pub name: String,
    /// Floats in a vector.
    pub dim: usize,
    /// What shapes a vector, setting by setting.
    pub settings: serde_json::Value,
}

/// A row of `index_collections`.
#[derive(Debug, Clone, PartialEq)]
pub struct Collection {
    /// The collection's name in the engine.
    pub name: String,
    /// The alias that applications read through.
    pub alias: String,
}

impl Store {
    /// The version that is served, if any has been yet.
    pub async fn active_version(&self) -> Result<Option<Version>, StoreError> {
        active_version(&self.pool).await
    }

    /// Registers the first version of a database, and returns the active one:
    /// another worker's, when that was there before.
    pub async fn register_first_version(&self, version: &Version) -> Result<Version, StoreError> {
        let mut tx = self.begin().await?;
        schema::lock_setup(&mut tx).await?;
        if let Some(active) = active_version(&mut *tx).await? {
            return Ok(active);
        }
        sqlx::query_file!(
            "sql/queries/register_version.sql",
            &version.name,
            version.dim as i32,
            &version.settings
        )
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(version.clone())
    }

    /// The collections that hold `version`, the oldest first.
    pub async fn collections(&self, version: &str) -> Result<Vec<Collection>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/collections.sql", version)
            .fetch_all(&self.pool)
            .await?;
        let collection = |name, alias| Collection { name, alias };
        Ok(rows
            .into_iter()
            .map(|row| collection(row.collection, row.alias))
            .collect())
    }

    /// Registers the first collection of `version` as `<alias>__<n>` with the
    /// lowest free `n`, and returns what is registered: another worker's, when
    /// that was there before.
    pub async fn register_first_collection(
        &self,
        version: &str,
        alias: &str,
    ) -> Result<Collection, StoreError> {
        let mut tx = self.begin().await?;
        schema::lock_setup(&mut tx).await?;
        let rows = sqlx::query_file!("sql/queries/collections.sql", version)
            .fetch_all(&mut *tx)
            .await?;
        if let Some(row) = rows.into_iter().next() {
            return Ok(Collection {
                name: row.collection,
                alias: row.alias,
            });
        }
        let taken: Vec<String> = sqlx::query_scalar("select collection from index_collections")
            .fetch_all(&mut *tx)
            .await?;
        let name = (1..)
            .map(|n| format!("{alias}__{n}"))
            .find(|name| !taken.contains(name))
            .expect("the numbers do not run out");
        sqlx::query_file!("sql/queries/register_collection.sql", &name, alias, version)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Collection {
            name,
            alias: alias.into(),
        })
    }
}

async fn active_version(on: impl PgExecutor<'_>) -> Result<Option<Version>, StoreError> {
    let row = sqlx::query_file!("sql/queries/active_version.sql")
        .fetch_optional(on)
        .await?;
    Ok(row.map(|row| Version {
        name: row.embedding_version,
        dim: row.embedding_dim as usize,
        settings: row.settings,
    }))
}
