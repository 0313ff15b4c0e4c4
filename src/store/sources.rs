//! The sources: tables of the application whose rows are notes.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::AssertSqlSafe;

use super::error::may_pass;
use super::limit::Limit;
use super::migrations::{LOCK_TIMEOUT, is_locked_out, pause};
use super::setup_lock::{LOCK_SETUP, pid};
use super::transaction::Transaction;
use super::{LOCKED_PAUSE, Store, StoreError};

/// What Postgres says of the table of a source, and of `memory_notes`. The names are quoted where SQL needs it, but for
/// those of columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFacts {
    /// The schema of ELF's tables.
    pub elf: String,
    /// `memory_notes`, with its schema.
    pub notes: String,
    /// The types of its columns that are no text.
    pub note_types: Vec<(String, String)>,
    /// The table, with its schema.
    pub table: String,
    /// Its schema.
    pub schema: String,
    /// The table without its schema: expressions may name it so.
    pub alias: String,
    /// Its columns.
    pub columns: Vec<SourceColumn>,
    /// The primary key: columns and their types.
    pub key: Vec<(String, String)>,
    /// Its columns that the source uses.
    pub used: Vec<String>,
    /// Whether Postgres, from 17 on, tells where it stores a long value.
    pub knows_stored_values: bool,
    /// Whether it is itself a partition.
    pub is_partition: bool,
    /// Its partitions, with their schemas. Empty for a table that is not partitioned.
    pub partitions: Vec<String>,
    /// Which of the table and `memory_notes` have row-level security.
    pub with_policies: Vec<String>,
}

/// A column of the application's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceColumn {
    /// As it is, without quotes.
    pub name: String,
    /// The name of its type, without the schema.
    pub kind: String,
    /// Whether the type is one of Postgres's own, or an array of such.
    pub is_own: bool,
}

/// A source whose triggers are installed.
#[derive(Debug, Serialize)]
pub struct InstalledSource {
    /// Its name.
    pub source: String,
    /// Its table.
    pub table: String,
    /// The hash of the statements that installed it.
    #[serde(skip)]
    pub sha256: Vec<u8>,
    /// Whether the functions and triggers are as these statements made them.
    pub is_intact: bool,
    /// When they did.
    pub applied_at: DateTime<Utc>,
}

/// How many rows a source has.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SourceCounts {
    /// Rows that are notes.
    pub notes: i64,
    /// Rows that are not, for a reason.
    pub left_out: i64,
}

/// A row that is no note.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    /// The key of the row.
    pub source_id: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
}

/// What a page has.
#[derive(Debug, Clone, Copy)]
pub enum SourceSide {
    /// Rows, in the order of their key.
    Rows,
    /// Notes and rows that are left out whose rows are gone, in the order of the notes' ids.
    Notes,
}

/// A page that was compared.
#[derive(Debug, sqlx::FromRow)]
pub struct ComparedPage {
    /// The last of it: the next page begins behind it. `None` at the end.
    pub last: Option<String>,
    /// How many rows or notes it had.
    #[sqlx(try_from = "i64")]
    pub rows: u64,
    /// How the notes differed.
    #[sqlx(flatten)]
    pub drift: SourceDrift,
}

/// How many notes differ from their rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct SourceDrift {
    /// Rows without their note.
    #[sqlx(try_from = "i64")]
    pub missing: u64,
    /// Notes that are not like their rows.
    #[sqlx(try_from = "i64")]
    pub stale: u64,
    /// Notes without their row.
    #[sqlx(try_from = "i64")]
    pub orphaned: u64,
}

impl SourceDrift {
    /// Differences of any kind.
    pub fn all(self) -> u64 {
        self.missing + self.stale + self.orphaned
    }
}

/// Functions that expressions use and that another role could change.
const FOREIGN_FUNCTIONS: &str = "
select distinct p.oid::regprocedure::text, p.proowner::regrole::text
  from pg_rewrite w
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
  left join pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid
  join pg_proc p on p.oid = case when d.refclassid = 'pg_proc'::regclass then d.refobjid else o.oprcode::oid end
  join pg_roles r on r.oid = p.proowner
 where w.ev_class = 'pg_temp.elf_expressions'::regclass and not r.rolsuper and r.rolname <> current_user";

const USED_COLUMNS: &str = "
select distinct a.attname::text
  from pg_rewrite w
  join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
  join pg_attribute a on a.attrelid = d.refobjid and a.attnum = d.refobjsubid
 where w.ev_class = 'pg_temp.elf_expressions'::regclass and d.refclassid = 'pg_class'::regclass
   and d.refobjid = $1 and d.refobjsubid > 0
 order by 1";

impl Store {
    /// How many rows of all sources are no notes, for a reason.
    pub async fn count_left_out(&self) -> Result<u64, StoreError> {
        let count = sqlx::query_scalar::<_, i64>("select count(*) from elf_left_out");
        let rows = self.asked("observe", count.fetch_one(&self.pool)).await?;
        Ok(rows as u64)
    }

    /// What Postgres says of a table. `expressions` are what a source makes of its columns, given what they may call
    /// the table; Postgres checks them. `of` says in errors which source it is.
    pub async fn source_facts(
        &self,
        of: &str,
        table: &str,
        expressions: impl FnOnce(&str) -> Vec<String> + Send,
    ) -> Result<SourceFacts, StoreError> {
        let work = async {
            let mut transaction = self.begin_within(Limit::Statement, &[]).await?;
            let facts = facts(&mut transaction, of, table, expressions).await;
            transaction.rollback().await?;
            facts
        };
        self.answered(Limit::Statement, work).await
    }

    /// What each of these aggregates is over the first 1,000 rows of a table, which they call `r`. Their operators and
    /// functions are Postgres's own: those of the table's owner would run with the rights of ELF's role.
    pub async fn of_first_rows(
        &self,
        table: &str,
        counts: &[String],
    ) -> Result<Vec<i64>, StoreError> {
        let sql = format!(
            "select array[{}]::bigint[] from (select * from {table} limit 1000) r having true",
            counts.join(", ")
        );
        let work = async {
            let mut transaction = self.begin_within(Limit::Statement, &[]).await?;
            let own = "set local search_path = pg_catalog, pg_temp";
            raw(&mut transaction, own.to_owned()).await?;
            let counts = sqlx::query_scalar(AssertSqlSafe(sql));
            let counts = counts.fetch_one(&mut *transaction).await?;
            transaction.rollback().await?;
            Ok::<_, StoreError>(counts)
        };
        self.answered(Limit::Statement, work).await
    }

    /// Executes the statements that install a source, when no application's transaction has its table locked. `own`
    /// then gives its functions to a role without other rights; returns why it could not.
    pub async fn install_source(
        &self,
        install: &str,
        own: &str,
    ) -> Result<Option<String>, StoreError> {
        self.when_unlocked(Limit::Upkeep, LOCK_TIMEOUT, |mut transaction| async move {
            raw(&mut transaction, LOCK_SETUP.to_owned()).await?;
            raw(&mut transaction, install.to_owned()).await?;
            raw(&mut transaction, "savepoint own".into()).await?;
            let reason = refusal(raw(&mut transaction, own.to_owned()).await)?;
            if reason.is_some() {
                raw(&mut transaction, "rollback to own".into()).await?;
            }
            transaction.commit().await?;
            Ok(reason)
        })
        .await
    }

    /// Executes the statements that take back what installed a source.
    pub async fn uninstall_source(&self, uninstall: &str) -> Result<(), StoreError> {
        self.when_unlocked(Limit::Upkeep, LOCK_TIMEOUT, |mut transaction| async move {
            raw(&mut transaction, LOCK_SETUP.to_owned()).await?;
            raw(&mut transaction, uninstall.to_owned()).await?;
            transaction.commit().await
        })
        .await
    }

    /// Does `work` in a transaction, again and again until it has its locks, and says who holds them. Each time it
    /// waits for `lock_timeout` at most, because statements of the application wait behind it.
    async fn when_unlocked<T, F>(
        &self,
        limit: Limit,
        lock_timeout: &str,
        work: impl Fn(Transaction) -> F + Send + Sync,
    ) -> Result<T, StoreError>
    where
        T: Send,
        F: Future<Output = Result<T, sqlx::Error>> + Send,
    {
        let setting = format!("lock_timeout = '{lock_timeout}'");
        let mut told = None;
        for tries in 1.. {
            let attempt = async {
                let mut transaction = self.begin_within(limit, &[&setting]).await?;
                let pid = pid(&mut transaction).await?;
                let telling =
                    self.log_blockers(pid, "waiting for a lock of another session", &mut told);
                let done = tokio::select! {
                    done = work(transaction) => done,
                    // The first time it may be any short transaction.
                    never = telling, if tries > 1 => match never {},
                };
                match done {
                    Err(error) if is_locked_out(&error) => Ok(None),
                    done => Ok::<_, StoreError>(Some(done?)),
                }
            };
            match self.answered(limit, attempt).await? {
                Some(done) => return Ok(done),
                None => pause(tries).await,
            }
        }
        unreachable!("the tries have no end")
    }

    /// Compares a page of rows or of notes with the other side, and makes the notes equal with `write`. It gives way to
    /// the application: each may hold some notes while it waits for others, and the end of a deadlock may be either's.
    pub async fn compare_page(
        &self,
        source: &str,
        side: SourceSide,
        after: Option<&str>,
        rows: i32,
        write: bool,
    ) -> Result<ComparedPage, StoreError> {
        let side = match side {
            SourceSide::Rows => "page",
            SourceSide::Notes => "notes",
        };
        let page = format!(
            "select elf_last as last, elf_rows as rows, coalesce(elf_missing, 0) as missing, coalesce(elf_stale, 0) as stale,
                    coalesce(elf_orphaned, 0) as orphaned
               from elf_source_{source}${side}($1, $2, $3)"
        );
        let page = || sqlx::query_as(AssertSqlSafe(page.clone()));
        self.when_unlocked(Limit::Batch, "200ms", |mut transaction| {
            let page = page().bind(after).bind(rows).bind(write);
            async move {
                let compared = page.fetch_one(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(compared)
            }
        })
        .await
    }

    /// A row that a sync of the first page would leave out. Nothing of it stays.
    pub async fn would_leave_out(
        &self,
        source: &str,
        rows: i32,
    ) -> Result<Option<LeftOut>, StoreError> {
        let page = format!("select elf_last from elf_source_{source}$page(null, $1, true)");
        self.when_unlocked(Limit::Batch, "200ms", |mut transaction| {
            let page = sqlx::query(AssertSqlSafe(page.clone())).bind(rows);
            async move {
                page.execute(&mut *transaction).await?;
                let left_out = sqlx::query_file_as!(LeftOut, "sql/queries/left_out.sql", source, 1);
                let left_out = left_out.fetch_optional(&mut *transaction).await?;
                transaction.rollback().await?;
                Ok(left_out)
            }
        })
        .await
    }

    /// Waits until the transactions have ended that have written a table by now, at most `limit`. Returns whether they
    /// have.
    pub async fn wait_for_writers(&self, table: &str, limit: Duration) -> Result<bool, StoreError> {
        let began = Instant::now();
        let mut writers = self.writers(table).await?;
        while !writers.is_empty() {
            if began.elapsed() > limit {
                return Ok(false);
            }
            tokio::time::sleep(LOCKED_PAUSE).await;
            let still = self.writers(table).await?;
            writers.retain(|writer| still.contains(writer));
        }
        Ok(true)
    }

    /// The transactions that have written a table or one of its partitions.
    async fn writers(&self, table: &str) -> Result<Vec<String>, StoreError> {
        let rows = sqlx::query_file_scalar!("sql/queries/source_writers.sql", table);
        self.answered(Limit::Statement, rows.fetch_all(&self.pool))
            .await
    }

    /// The sources whose triggers are installed.
    pub async fn sources(&self) -> Result<Vec<InstalledSource>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/sources.sql").fetch_all(&self.pool);
        let rows = self.answered(Limit::Statement, rows).await?;
        let installed = rows.into_iter().map(|row| InstalledSource {
            source: row.source,
            table: row.of_table,
            sha256: row.sha256,
            is_intact: row.is_intact,
            applied_at: row.applied_at,
        });
        Ok(installed.collect())
    }

    /// How many rows each of them has, by its name.
    pub async fn source_counts(&self) -> Result<BTreeMap<String, SourceCounts>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/source_counts.sql").fetch_all(&self.pool);
        let rows = self.answered(Limit::Upkeep, rows).await?;
        let counts = rows.into_iter().map(|row| {
            let (notes, left_out) = (row.notes, row.left_out);
            (row.source, SourceCounts { notes, left_out })
        });
        Ok(counts.collect())
    }

    /// The folders that have notes, and how many each has.
    pub async fn folders(&self) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query_file!("sql/queries/folders.sql").fetch_all(&self.pool);
        let rows = self.answered(Limit::Upkeep, rows).await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.folder, row.notes))
            .collect())
    }

    /// The rows of a source that are no notes, the latest first.
    pub async fn left_out(&self, source: &str, limit: i64) -> Result<Vec<LeftOut>, StoreError> {
        let rows = sqlx::query_file_as!(LeftOut, "sql/queries/left_out.sql", source, limit);
        self.answered(Limit::Statement, rows.fetch_all(&self.pool))
            .await
    }

    /// How many tenants have notes of a source.
    pub async fn source_tenants(&self, source: &str) -> Result<u64, StoreError> {
        let count = "select count(distinct n.tenant_id::text) from memory_notes n where n.source::text = $1";
        let count = sqlx::query_scalar::<_, i64>(count).bind(source);
        let tenants = self
            .answered(Limit::EveryNote, count.fetch_one(&self.pool))
            .await?;
        Ok(tenants as u64)
    }

    /// Deletes the next notes of a source; returns how many.
    pub async fn drop_source_notes(&self, source: &str, notes: i64) -> Result<u64, StoreError> {
        let work = async {
            let deleted = sqlx::query_file!("sql/queries/drop_source_notes.sql", source, notes);
            let deleted = deleted.execute(&self.pool).await?.rows_affected();
            if deleted == 0 {
                sqlx::query!("delete from elf_left_out where source = $1", source)
                    .execute(&self.pool)
                    .await?;
            }
            Ok::<_, sqlx::Error>(deleted)
        };
        self.answered(Limit::Batch, work).await
    }
}

/// Why Postgres refuses a statement. A lock or a full disk is no such reason.
fn refusal(done: Result<(), sqlx::Error>) -> Result<Option<String>, sqlx::Error> {
    match done {
        Ok(()) => Ok(None),
        Err(sqlx::Error::Database(error)) if !may_pass(&error.code().unwrap_or_default()) => {
            Ok(Some(error.message().to_owned()))
        }
        Err(error) => Err(error),
    }
}

async fn raw(transaction: &mut Transaction, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut **transaction)
        .await
        .map(drop)
}

async fn facts(
    transaction: &mut Transaction,
    of: &str,
    table: &str,
    expressions: impl FnOnce(&str) -> Vec<String>,
) -> Result<SourceFacts, StoreError> {
    let refuse = |reason: String| Err(StoreError::Schema(format!("{of}: {reason}")));
    let found = sqlx::query_file!("sql/queries/source_table.sql", table)
        .fetch_optional(&mut **transaction)
        .await;
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) => {
            return refuse(format!(
                "there is no table {table}; name it with its schema"
            ));
        }
        Err(error) => {
            let reason = refusal(Err(error))?.unwrap_or_default();
            return refuse(format!("table = {table:?}: {reason}"));
        }
    };
    let kind = match found.kind.as_str() {
        "r" | "p" => None,
        "v" | "m" => Some("a view, which has no triggers for its rows: name the table under it"),
        "f" => Some("a foreign table, whose changes Postgres does not see"),
        _ => Some("no table"),
    };
    if let Some(kind) = kind {
        return refuse(format!("{} is {kind}", found.name));
    }
    if found.inherits {
        return refuse(format!(
            "{} inherits from a table, or another one inherits from it: triggers would not see all rows",
            found.name
        ));
    }
    if found.has_policies && !found.is_own {
        return refuse(format!(
            "{} has row-level security and belongs to {}, whose policies would run with the rights of ELF's triggers: \
             make the role of storage.postgres.dsn its owner",
            found.name, found.owner
        ));
    }
    let columns = sqlx::query_file!("sql/queries/source_columns.sql", found.oid)
        .fetch_all(&mut **transaction)
        .await?;
    let mut key: Vec<_> = columns
        .iter()
        .filter_map(|column| Some((column.place?, (column.name.clone(), column.kind.clone()))))
        .collect();
    key.sort();
    let odd = columns
        .iter()
        .find(|column| column.place.is_some() && !column.can_be_key);
    if let Some(odd) = odd {
        return refuse(format!(
            "the key of {} has the type {}: ELF takes enums and types of Postgres other than arrays",
            found.name, odd.kind
        ));
    }
    if key.is_empty() {
        return refuse(format!(
            "{} has no primary key, so ELF could not tell its rows apart",
            found.name
        ));
    }
    let notes: sqlx::postgres::types::Oid =
        sqlx::query_scalar("select 'memory_notes'::regclass::oid")
            .fetch_one(&mut **transaction)
            .await?;
    let note_columns = sqlx::query_file!("sql/queries/source_columns.sql", notes)
        .fetch_all(&mut **transaction)
        .await?;
    let is_text = |kind: &str| ["text", "varchar"].contains(&kind);
    let note_types = note_columns
        .into_iter()
        .filter(|column| !is_text(&column.base))
        .map(|column| (column.name, column.kind));
    let knows_stored_values =
        sqlx::query_scalar("select current_setting('server_version_num')::int >= 170000");
    let partitions: Vec<String> = sqlx::query_scalar(
        "select quote_ident(n.nspname) || '.' || quote_ident(c.relname)
           from pg_partition_tree($1) p
           join pg_class c on c.oid = p.relid
           join pg_namespace n on n.oid = c.relnamespace
          where p.level > 0
          order by 1",
    )
    .bind(found.oid)
    .fetch_all(&mut **transaction)
    .await?;
    let used = check_expressions(
        transaction,
        &found.name,
        &found.alias,
        found.oid,
        expressions(&found.alias),
    )
    .await;
    let used = used.map_err(|error| match error {
        StoreError::Schema(reason) => StoreError::Schema(format!("{of}: {reason}")),
        error => error,
    })?;
    let with_policies = [
        found.has_policies.then(|| found.name.clone()),
        found.notes_have_policies.then(|| found.notes.clone()),
    ];
    Ok(SourceFacts {
        elf: found.elf,
        notes: found.notes,
        note_types: note_types.collect(),
        table: found.name,
        schema: found.schema,
        alias: found.alias,
        key: key.into_iter().map(|(_, column)| column).collect(),
        used,
        knows_stored_values: knows_stored_values.fetch_one(&mut **transaction).await?,
        is_partition: found.is_partition,
        partitions: match found.kind.as_str() {
            "p" if partitions.is_empty() => return refuse("it has no partition yet".into()),
            _ => partitions,
        },
        with_policies: with_policies.into_iter().flatten().collect(),
        columns: columns
            .into_iter()
            .map(|column| SourceColumn {
                name: column.name,
                kind: column.base,
                is_own: column.is_own,
            })
            .collect(),
    })
}

/// Lets Postgres read the expressions, with what the functions of a source see. Returns the columns that they use.
async fn check_expressions(
    transaction: &mut Transaction,
    table: &str,
    alias: &str,
    oid: sqlx::postgres::types::Oid,
    expressions: Vec<String>,
) -> Result<Vec<String>, StoreError> {
    let columns = (1..)
        .zip(expressions)
        .map(|(n, sql)| format!("{sql} as c{n}"));
    let columns = columns.collect::<Vec<_>>().join(",\n");
    let view = format!(
        "set local search_path = pg_catalog, pg_temp;
         create temporary view elf_expressions as select {columns} from {table} as {alias}"
    );
    if let Some(reason) = refusal(raw(transaction, view).await)? {
        return Err(StoreError::Schema(format!(
            "it does not fit {table}: {reason}"
        )));
    }
    let foreign: Vec<(String, String)> = sqlx::query_as(FOREIGN_FUNCTIONS)
        .fetch_all(&mut **transaction)
        .await?;
    if let Some((function, owner)) = foreign.first() {
        return Err(StoreError::Schema(format!(
            "it uses the function {function} of the role {owner}, who could let it do anything with the rights of ELF's \
             triggers: make the role of storage.postgres.dsn its owner"
        )));
    }
    let used = sqlx::query_scalar(USED_COLUMNS).bind(oid);
    Ok(used.fetch_all(&mut **transaction).await?)
}
