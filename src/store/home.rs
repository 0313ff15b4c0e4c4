//! Which index belongs to this database.

use uuid::Uuid;

use super::{Limit, Store, StoreError};

/// The index that a database has, as it is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct IndexHome {
    /// The URL of a server, or the folder and the host of the embedded engine.
    pub place: String,
    /// The folder's own id; `None` for a server.
    pub id: Option<Uuid>,
    /// The database that the index belongs to.
    pub owner: Database,
}

/// A database of a server. Another server may have one with the same oid; a server that hides its
/// identifier is not compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Database(String);

impl Database {
    /// The database with this oid on the server with this identifier.
    pub fn new(oid: &str, server: Option<&str>) -> Self {
        Self(match server {
            Some(server) => format!("{oid}@{server}"),
            None => oid.to_owned(),
        })
    }

    /// Whether both are the same database, as far as is known.
    pub fn is(&self, other: &Self) -> bool {
        match (self.0.split_once('@'), other.0.split_once('@')) {
            (Some(of_server), Some(other)) => of_server == other,
            (one, other_one) => {
                let oid = one.map_or(&*self.0, |(oid, _)| oid);
                oid == other_one.map_or(&*other.0, |(oid, _)| oid)
            }
        }
    }
}

impl Store {
    /// The index that is recorded for this database; `None` before the first.
    pub async fn index_home(&self) -> Result<Option<IndexHome>, StoreError> {
        let home = sqlx::query_file!("sql/queries/index_home.sql").fetch_one(&self.pool);
        let home = self.answered(Limit::Statement, home).await?;
        let (Some(place), Some(owner)) = (home.index_place, home.index_owner) else {
            return Ok(None);
        };
        Ok(Some(IndexHome {
            place,
            id: home.index_id,
            owner: Database(owner),
        }))
    }

    /// Records the index of this database, and that it belongs to this one.
    pub async fn record_index_home(&self, place: &str, id: Option<Uuid>) -> Result<(), StoreError> {
        let Database(owner) = self.this_database().await?;
        let record = sqlx::query_file!("sql/queries/record_index_home.sql", place, id, &owner);
        self.answered(Limit::Statement, record.execute(&self.pool))
            .await?;
        Ok(())
    }

    /// What tells this database from a copy of it.
    pub async fn this_database(&self) -> Result<Database, StoreError> {
        let oid = sqlx::query_scalar!(
            r#"select oid::text as "oid!" from pg_database where datname = current_database()"#
        )
        .fetch_one(&self.pool);
        let oid: String = self.answered(Limit::Statement, oid).await?;
        let server = sqlx::query_scalar!(
            r#"select system_identifier::text as "id!" from pg_control_system()"#
        )
        .fetch_one(&self.pool);
        // Some managed services hide it.
        match self.answered(Limit::Statement, server).await {
            Ok(server) => Ok(Database::new(&oid, Some(&server))),
            Err(error) if error.class().may_pass() => Err(error),
            Err(_) => Ok(Database::new(&oid, None)),
        }
    }
}
