//! The keys of the HTTP API.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::transaction::Transaction;
use super::write::{COMMAND, affected};
use super::{Store, StoreError};

/// Which notes a key reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// Of this tenant.
    pub tenant_id: String,
    /// Of this project; `None` for all.
    pub project_id: Option<String>,
    /// Of this agent; `None` for all.
    pub agent_id: Option<String>,
}

/// A key that a request was sent with.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// What `elf key list` shows of it, and traces record.
    pub key_id: Uuid,
    /// Which notes it reaches.
    pub reach: Reach,
    /// Whether it may change notes.
    pub can_write: bool,
    /// Whether another version is active than the one that this process serves.
    pub is_replaced: bool,
}

/// A key as `elf key list` shows it.
#[derive(Debug, Serialize)]
#[expect(
    missing_docs,
    reason = "the columns of the same names say what they are"
)]
pub struct ListedKey {
    pub key_id: Uuid,
    pub name: String,
    pub tenant_id: String,
    pub project_id: Option<String>,
    pub agent_id: Option<String>,
    pub can_write: bool,
    pub created_at: DateTime<Utc>,
    pub rotated_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
}

/// The SHA-256 of a key's secret.
#[derive(Debug, Clone, Copy)]
pub struct SecretHash(pub [u8; 32]);

impl Store {
    /// The key with this secret; `None` if there is none, or it was revoked. `version` is the
    /// one that this process serves.
    pub async fn api_key(
        &self,
        secret: SecretHash,
        version: &str,
    ) -> Result<Option<ApiKey>, StoreError> {
        let row = sqlx::query_file!("sql/queries/api_key_by_secret.sql", &secret.0[..], version);
        let row = self.asked("search", row.fetch_optional(&self.pool)).await?;
        Ok(row.map(|row| ApiKey {
            is_replaced: row.is_replaced,
            key_id: row.key_id,
            reach: Reach {
                tenant_id: row.tenant_id,
                project_id: row.project_id,
                agent_id: row.agent_id,
            },
            can_write: row.can_write,
        }))
    }

    /// The keys that are not revoked, at most so many, the newest first: hash, tenant and id.
    pub async fn known_api_keys(
        &self,
        limit: u64,
    ) -> Result<Vec<(SecretHash, String, Uuid)>, StoreError> {
        let keys = sqlx::query!(
            "select secret_sha256, tenant_id, key_id from elf_api_keys
                  where revoked_at is null order by created_at desc limit $1",
            limit.cast_signed()
        );
        let keys = self.asked("search", keys.fetch_all(&self.pool)).await?;
        let known = keys.into_iter().filter_map(|key| {
            let hash = key.secret_sha256.try_into().ok()?;
            Some((SecretHash(hash), key.tenant_id, key.key_id))
        });
        Ok(known.collect())
    }

    /// Makes a key, and returns its id.
    pub async fn create_api_key(
        &self,
        name: &str,
        secret: SecretHash,
        reach: &Reach,
        can_write: bool,
    ) -> Result<Uuid, StoreError> {
        let Reach {
            tenant_id,
            project_id,
            agent_id,
        } = reach;
        let work = async {
            let mut tx = Transaction::begin(&self.pool, COMMAND).await?;
            let key_id = sqlx::query_file_scalar!(
                "sql/queries/create_api_key.sql",
                name,
                &secret.0[..],
                tenant_id,
                project_id.as_deref(),
                agent_id.as_deref(),
                can_write
            )
            .fetch_one(&mut *tx)
            .await?;
            Ok((tx, key_id))
        };
        self.command("key", work).await
    }

    /// Every key, also those that were revoked, the oldest first.
    pub async fn api_keys(&self) -> Result<Vec<ListedKey>, StoreError> {
        let keys = sqlx::query_file_as!(ListedKey, "sql/queries/list_api_keys.sql");
        Ok(keys.fetch_all(&self.pool).await?)
    }

    /// Gives a key another secret. `false` if there is no such key, or it was revoked.
    pub async fn rotate_api_key(
        &self,
        key_id: Uuid,
        secret: SecretHash,
    ) -> Result<bool, StoreError> {
        let rotate = sqlx::query_file!("sql/queries/rotate_api_key.sql", key_id, &secret.0[..]);
        let rotated = affected(&self.pool, COMMAND, rotate);
        Ok(self.command("key", rotated).await? > 0)
    }

    /// Revokes a key. `false` if there is no such key, or it was revoked before.
    pub async fn revoke_api_key(&self, key_id: Uuid) -> Result<bool, StoreError> {
        let revoke = sqlx::query_file!("sql/queries/revoke_api_key.sql", key_id);
        let revoked = affected(&self.pool, COMMAND, revoke);
        Ok(self.command("key", revoked).await? > 0)
    }
}
