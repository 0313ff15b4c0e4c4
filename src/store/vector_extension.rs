//! pgvector: whether the database has it, and whether ELF's statements find it.

use sqlx::PgConnection;

use super::{Limit, Store, StoreError, placement};

/// The oldest that has the functions and casts of ELF's statements.
const OLDEST: (u32, u32) = (0, 4);

/// Where the extension is, relative to a session.
#[derive(Debug, sqlx::FromRow)]
pub(super) struct Location {
    schema: String,
    role: String,
    search_path: String,
    is_found: bool,
    /// Whether there is a schema for new tables. If not, the extension's would become it.
    has_first: bool,
    is_usable: bool,
    /// There are tables that statements must not find by it.
    has_tables: bool,
}

const LOCATION: &str = "
select quote_ident(n.nspname) as schema, quote_ident(current_user) as role,
       current_setting('search_path') as search_path,
       n.nspname = any (current_schemas(true)) as is_found,
       current_schema() is not null as has_first,
       has_schema_privilege(n.oid, 'usage') as is_usable,
       exists (select from pg_class c where c.relnamespace = n.oid and c.relname = any ($1)) as has_tables
  from pg_extension e join pg_namespace n on n.oid = e.extnamespace
 where e.extname = 'vector'";

impl Store {
    /// Where pgvector is, unless statements find it, the database does not have it, or `search_path` leads to
    /// no schema at all.
    pub(super) async fn unseen_vectors(&self) -> Result<Option<Location>, StoreError> {
        let asked = sqlx::query_as(LOCATION)
            .bind(placement::names())
            .fetch_optional(&self.pool);
        let location: Option<Location> = self.answered(Limit::Statement, asked).await?;
        Ok(location.filter(|location| !location.is_found && location.has_first))
    }
}

impl Location {
    /// A `search_path` with which statements find the extension, and otherwise what they found before.
    pub(super) fn search_path(&self) -> Option<String> {
        (self.is_usable && !self.has_tables).then(|| self.extended())
    }

    fn extended(&self) -> String {
        match self.search_path.trim() {
            "" => self.schema.clone(),
            path => format!("{path}, {}", self.schema),
        }
    }

    /// Why no session finds it.
    pub(super) fn unreachable(&self) -> StoreError {
        let Self { schema, role, .. } = self;
        let remedy = if self.has_tables {
            format!(
                "{schema} has tables with the names of ELF's, so `alter role {role} set search_path = {}` to use \
                 those, or move the extension: `create schema extensions; alter extension vector set schema \
                 extensions; grant usage on schema extensions to public`",
                self.extended()
            )
        } else if !self.is_usable {
            format!("`grant usage on schema {schema} to {role}`")
        } else {
            format!("`alter role {role} set search_path = {}`", self.extended())
        };
        StoreError::Schema(format!(
            "pgvector is in the schema {schema}, where ELF's statements do not look for it (search_path is \
             {}): as the owner of the database, {remedy}",
            self.search_path
        ))
    }
}

/// Makes the extension, unless it is there.
pub(super) async fn ensure_vectors(conn: &mut PgConnection) -> Result<(), StoreError> {
    let installed: Option<String> =
        sqlx::query_scalar("select extversion from pg_extension where extname = 'vector'")
            .fetch_optional(&mut *conn)
            .await?;
    if let Some(version) = installed {
        return match is_new_enough(&version) {
            true => Ok(()),
            false => Err(StoreError::Schema(format!(
                "the database has pgvector {version}, and ELF needs {}.{} or newer: install it on the \
                 server, then `alter extension vector update`",
                OLDEST.0, OLDEST.1
            ))),
        };
    }
    let is_available: bool = sqlx::query_scalar(
        "select exists (select from pg_available_extensions where name = 'vector')",
    )
    .fetch_one(&mut *conn)
    .await?;
    if !is_available {
        return Err(StoreError::Schema(
            "this Postgres server does not have pgvector: install its package (postgresql-…-pgvector), or \
             choose a service that has it, then `create extension vector` as a superuser"
                .into(),
        ));
    }
    match sqlx::raw_sql("create extension if not exists vector")
        .execute(&mut *conn)
        .await
    {
        Ok(_) => Ok(()),
        // Another process that migrates made it meanwhile.
        Err(error) if has_code(&error, "23505") => Ok(()),
        Err(error) if has_code(&error, "42501") => Err(StoreError::Schema(format!(
            "the role of storage.postgres.dsn may not create the extension pgvector ({error}): `create \
             extension vector` in this database, as a superuser or the owner of the database"
        ))),
        Err(error) => Err(error.into()),
    }
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|part| part.parse().ok());
    let number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    number >= OLDEST
}

fn has_code(error: &sqlx::Error, code: &str) -> bool {
    let found = error.as_database_error().and_then(|error| error.code());
    found.as_deref() == Some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, is_enough) in [
            ("0.3.2", false),
            ("0.4.0", true),
            ("0.10.0", true),
            ("1.0", true),
        ] {
            assert_eq!(is_new_enough(version), is_enough, "{version}");
        }
    }
}
