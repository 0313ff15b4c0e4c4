//! Checks of rights: whether other roles of the database could abuse ELF, and whether row-level
//! security hides notes from it.

use sqlx::{AssertSqlSafe, PgConnection};

use super::{Limit, Store, StoreError};

/// Whether the role of `sql/trigger_role.sql`, which can write the outbox, owns the trigger
/// functions, and PUBLIC cannot execute them.
const TRIGGERS_ARE_SAFE: &str = "
select count(*) = 5 and bool_and(
           r.rolname = 'elf_outbox_writer' and not has_function_privilege('public', p.oid, 'execute')
           and has_schema_privilege(r.oid, p.pronamespace, 'usage')
           and has_column_privilege(r.oid, o.oid, 'note_id', 'insert')
           and has_column_privilege(r.oid, o.oid, 'op', 'insert')
           and has_column_privilege(r.oid, 'note_index_state'::regclass, 'note_id', 'select'))
  from pg_class o
  join pg_proc p on p.pronamespace = o.relnamespace
  join pg_roles r on r.oid = p.proowner
 where o.oid = 'indexing_outbox'::regclass
   and p.proname in ('elf_note_inserted', 'elf_note_updated', 'elf_note_deleted',
                     'elf_notes_truncated', 'elf_note_replicated')";

/// What a restore may have changed: the statements that set it right, and what follows if they fail.
const RESTORES: [(&str, &str); 2] = [
    (
        include_str!("../../sql/trigger_modes.sql"),
        "changes that arrive by logical replication may not be indexed, because ELF could not enable its triggers \
         for them",
    ),
    (
        include_str!("../../sql/private_tables.sql"),
        "other roles may use ELF's tables, because ELF could not take back what default privileges gave them",
    ),
];

/// Schemas in which Postgres looks for the operators and functions of ELF's statements, and other
/// roles that may create some there. ELF trusts the owner of a schema, and a superuser may do
/// anything anyway.
const OTHER_CREATORS: &str = "
select n.nspname::text, coalesce(g.rolname::text, 'PUBLIC')
  from pg_namespace n
 cross join lateral aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
  left join pg_roles g on g.oid = a.grantee
 where n.nspname = any (current_schemas(false)) and a.privilege_type = 'CREATE'
   and a.grantee <> n.nspowner and g.rolname is distinct from current_user
   and not coalesce(g.rolsuper, false)
 order by 1, 2";

impl Store {
    /// Takes back what default privileges gave other roles, and makes a role that may only write the outbox the owner
    /// of the trigger functions of `memory_notes`. Returns notes for the operator about the rights; mostly there are
    /// none. Many managed servers do not let ELF create the role. Then a note says so, and the
    /// functions run as the role that migrated.
    pub async fn restrict_rights(&self) -> Result<Vec<String>, StoreError> {
        let mut notes = Vec::new();
        let mut transaction = self.begin().await?;
        self.lock_setup(&mut transaction).await?;
        let is_safe: bool = sqlx::query_scalar(TRIGGERS_ARE_SAFE)
            .fetch_one(&mut *transaction)
            .await?;
        if is_safe {
            transaction.rollback().await?;
        } else {
            let done = sqlx::raw_sql(include_str!("../../sql/trigger_role.sql"))
                .execute(&mut *transaction)
                .await;
            match done {
                Ok(_) => transaction.commit().await?,
                Err(sqlx::Error::Database(error)) => {
                    let reason = error.message().to_owned();
                    transaction.rollback().await?;
                    notes.push(format!(
                        "the trigger functions of memory_notes run as the role of \
                         storage.postgres.dsn, because ELF could not make the role \
                         elf_outbox_writer their owner: {reason}; \
                         docs/reference/sql.md (Rights) says what a DBA can do"
                    ));
                }
                Err(error) => return Err(error.into()),
            }
        }
        for restore in RESTORES {
            notes.extend(self.restore(restore).await?);
        }
        notes.extend(self.other_creators().await?);
        let is_superuser: bool =
            sqlx::query_scalar("select rolsuper from pg_roles where rolname = current_user")
                .fetch_one(&self.pool)
                .await?;
        if is_superuser {
            notes.push(
                "the role of storage.postgres.dsn is a superuser, which ELF does not need: \
                 docs/operate/deploy.md (A role for ELF)"
                    .into(),
            );
        }
        Ok(notes)
    }
}

impl Store {
    /// A note for each other role that may create what ELF's statements would use.
    pub async fn other_creators(&self) -> Result<Vec<String>, StoreError> {
        let creators = sqlx::query_as(OTHER_CREATORS).fetch_all(&self.pool);
        let creators: Vec<(String, String)> = self.answered(Limit::Statement, creators).await?;
        let note = |(schema, role)| {
            format!(
                "{role} may create objects in the schema {schema}, where ELF's statements could \
                 use them: `revoke create on schema {schema} from {role}`"
            )
        };
        Ok(creators.into_iter().map(note).collect())
    }

    /// Returns a note if it could not: applications do not wait long behind it.
    async fn restore(
        &self,
        (sql, consequence): (&str, &str),
    ) -> Result<Option<String>, StoreError> {
        let mut transaction = self.begin().await?;
        self.lock_setup(&mut transaction).await?;
        let sql = AssertSqlSafe(format!("set local lock_timeout = '1s'; {sql}"));
        match sqlx::raw_sql(sql).execute(&mut *transaction).await {
            Ok(_) => {
                transaction.commit().await?;
                Ok(None)
            }
            Err(sqlx::Error::Database(error)) => {
                let reason = error.message().to_owned();
                transaction.rollback().await?;
                Ok(Some(format!(
                    "{consequence}: {reason}; run `elf migrate` again"
                )))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Fails if row-level security hides notes from this role: a worker would take them for deleted
/// and delete them from the index.
pub(super) async fn check_row_security(conn: &mut PgConnection) -> Result<(), StoreError> {
    let is_hidden: bool = sqlx::query_scalar("select row_security_active('memory_notes')")
        .fetch_one(conn)
        .await?;
    if is_hidden {
        return Err(StoreError::Schema(
            "row-level security of memory_notes applies to the role of storage.postgres.dsn: ELF \
             would take the notes that it hides for deleted; give the role BYPASSRLS, or let it \
             own the table without FORCE ROW LEVEL SECURITY"
                .into(),
        ));
    }
    Ok(())
}
