//! In which schemas `memory_notes` and ELF's tables are, and which of them `search_path` finds.
//!
//! A migration makes tables in the schema that comes first in `search_path`. There they could hide
//! those that an application writes, so a migration begins with [`check`].

use sqlx::PgConnection;

use super::StoreError;
use super::schema::MIGRATIONS_TABLE;

const NOTES: &str = "memory_notes";

/// The tables of an installation, apart from [`NOTES`].
const TABLES: [&str; 9] = [
    MIGRATIONS_TABLE,
    "elf_schema",
    "index_collections",
    "index_versions",
    "indexing_outbox",
    "memory_note_chunks",
    "note_chunk_embeddings",
    "note_embeddings",
    "note_index_state",
];

/// The names of tables that statements look up.
pub(super) fn names() -> Vec<&'static str> {
    [&[NOTES][..], &TABLES].concat()
}

/// What a session sees of the database.
#[derive(Debug)]
struct Placement {
    role: String,
    search_path: String,
    /// Where `create table` makes a table.
    first: Option<String>,
    relations: Vec<Relation>,
}

#[derive(Debug, Clone, sqlx::FromRow)]
struct Relation {
    schema: String,
    name: String,
    /// `pg_class.relkind`.
    kind: String,
    /// A name without a schema means this one.
    is_visible: bool,
    /// Another table inherits its columns, or it those of another; a partition does.
    inherits: bool,
    is_logged: bool,
    /// ELF's triggers are on it.
    has_triggers: bool,
    /// The role is the owner, or a member of it.
    is_owned: bool,
    owner: String,
}

const RELATIONS: &str = "
select quote_ident(n.nspname) as schema, c.relname::text as name, c.relkind::text as kind,
       pg_table_is_visible(c.oid) as is_visible,
       exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent)) as inherits,
       c.relpersistence = 'p' as is_logged,
       exists (select from pg_trigger t where t.tgrelid = c.oid and t.tgname = 'elf_note_inserted')
           as has_triggers,
       pg_has_role(c.relowner, 'usage') as is_owned,
       quote_ident(pg_get_userbyid(c.relowner)) as owner
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where c.relname = any ($1) and c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname !~ '^pg_'
 order by 1, 2";

/// What the session is about to do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Purpose {
    /// Make tables.
    Migrate,
    /// Use them.
    Work,
}

/// Fails if statements would find other tables than the application and earlier migrations use.
pub(super) async fn check(conn: &mut PgConnection, purpose: Purpose) -> Result<(), StoreError> {
    let (role, search_path, first) = sqlx::query_as(
        "select quote_ident(current_user), current_setting('search_path'), quote_ident(current_schema())",
    )
    .fetch_one(&mut *conn)
    .await?;
    let relations = sqlx::query_as(RELATIONS)
        .bind(names())
        .fetch_all(&mut *conn)
        .await?;
    let placement = Placement {
        role,
        search_path,
        first,
        relations,
    };
    match placement.problem(purpose) {
        None => Ok(()),
        Some(problem) => Err(StoreError::Schema(problem)),
    }
}

impl Placement {
    fn problem(&self, purpose: Purpose) -> Option<String> {
        let Self {
            role, search_path, ..
        } = self;
        let Some(first) = &self.first else {
            return Some(format!(
                "search_path is {search_path}, and {role} may use none of these schemas, or they do not \
                 exist: create one, `grant usage, create on schema … to {role}`, or `alter role {role} set \
                 search_path = …`"
            ));
        };
        let installed = self.named(MIGRATIONS_TABLE).find(|table| table.is_visible);
        match installed {
            Some(installed) => self.problem_of_installation(&installed.schema, first, purpose),
            None => self.problem_of_first_migration(first),
        }
        .or_else(|| self.problem_of_notes(purpose))
    }

    /// ELF's tables are in `schema`.
    fn problem_of_installation(
        &self,
        schema: &str,
        first: &str,
        purpose: Purpose,
    ) -> Option<String> {
        let elsewhere = self
            .relations
            .iter()
            .find(|table| table.name != NOTES && table.is_visible && table.schema != schema);
        if let Some(Relation {
            name,
            schema: hiding,
            ..
        }) = elsewhere
        {
            return Some(format!(
                "ELF's tables are in the schema {schema}, and {hiding}.{name} hides one of them: {}",
                self.put_first(schema)
            ));
        }
        if purpose == Purpose::Migrate && first != schema {
            return Some(format!(
                "ELF's tables are in the schema {schema}, and a migration would make new ones in {first}: {}",
                self.put_first(schema)
            ));
        }
        let Some(notes) = self.named(NOTES).find(|table| table.is_visible) else {
            return match self.schemas_of(NOTES).as_str() {
                // Another process may be about to make it.
                "" => None,
                others => Some(format!(
                    "{NOTES} is in the schema {others}, and search_path ({}) does not lead there: {}",
                    self.search_path,
                    self.put_first(&format!("{schema}, {others}"))
                )),
            };
        };
        let followed = self.named(NOTES).find(|table| table.has_triggers);
        match followed {
            Some(followed) if !notes.has_triggers => Some(format!(
                "ELF's triggers are on {}.{NOTES}, and {}.{NOTES} hides it: drop the latter, or {}",
                followed.schema,
                notes.schema,
                self.put_first(&followed.schema)
            )),
            _ => None,
        }
    }

    /// The migration would make ELF's tables, and `memory_notes` if there is none, in `first`.
    fn problem_of_first_migration(&self, first: &str) -> Option<String> {
        let notes = self.named(NOTES).find(|table| table.is_visible);
        // An operator who wants a second installation makes its notes first.
        let wants_another = notes.is_some_and(|notes| notes.schema == first);
        let tables: Vec<&Relation> = self
            .relations
            .iter()
            .filter(|table| table.name != NOTES && (table.is_visible || !wants_another))
            .collect();
        if let Some(Relation { schema, .. }) = tables.first() {
            let names: Vec<&str> = tables
                .iter()
                .filter(|table| table.schema == *schema)
                .map(|table| table.name.as_str())
                .collect();
            let names = names.join(", ");
            return Some(
                match self
                    .named(MIGRATIONS_TABLE)
                    .any(|table| table.schema == *schema)
                {
                    true => format!(
                        "the schema {schema} has ELF's tables, and search_path ({}) does not lead there: {}; to \
                     have a second ELF in {first}, create its {NOTES} there first (docs/reference/sql.md)",
                        self.search_path,
                        self.put_first(schema)
                    ),
                    false => format!(
                        "the schema {schema} has some of ELF's tables ({names}) without {MIGRATIONS_TABLE}: \
                     restore the rest of them, or move these away"
                    ),
                },
            );
        }
        if notes.is_some() {
            return None;
        }
        match self.schemas_of(NOTES).as_str() {
            "" => None,
            others => Some(format!(
                "{NOTES} is in the schema {others}, and search_path ({}) does not lead there, so `elf \
                 migrate` would make an empty one in {first}: {}; if ELF shall have notes of its own in \
                 {first}, create {NOTES} there first (docs/reference/sql.md)",
                self.search_path,
                self.put_first(&format!("{first}, {others}"))
            )),
        }
    }

    /// Whether the `memory_notes` that statements find is one that triggers and keys can follow.
    fn problem_of_notes(&self, purpose: Purpose) -> Option<String> {
        let notes = self.named(NOTES).find(|table| table.is_visible)?;
        let name = format!("{}.{NOTES}", notes.schema);
        let what = match notes.kind.as_str() {
            "p" => "partitioned, and Postgres cannot index such a table while it is used",
            "v" | "m" => "a view, which triggers and foreign keys cannot follow",
            "f" => "a foreign table, whose changes Postgres does not see",
            _ if notes.inherits => {
                "a partition, or inherits, and a change through the other table fires no trigger of it"
            }
            _ if !notes.is_logged => "unlogged, and no table that Postgres keeps can refer to it",
            _ if purpose == Purpose::Migrate && !notes.has_triggers && !notes.is_owned => {
                return Some(format!(
                    "the table {name} belongs to {owner}, and only its owner can add triggers: `grant \
                     {owner} to {role}`, or `alter table {name} owner to {role}`",
                    owner = notes.owner,
                    role = self.role
                ));
            }
            _ => return None,
        };
        Some(format!(
            "the table {name} is {what}: ELF needs an ordinary table"
        ))
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Relation> {
        self.relations
            .iter()
            .filter(move |relation| relation.name == name)
    }

    fn schemas_of(&self, name: &str) -> String {
        let schemas: Vec<&str> = self.named(name).map(|relation| &*relation.schema).collect();
        schemas.join(", ")
    }

    fn put_first(&self, schemas: &str) -> String {
        format!("`alter role {} set search_path = {schemas}`", self.role)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(schema: &str, name: &str, is_visible: bool) -> Relation {
        Relation {
            schema: schema.into(),
            name: name.into(),
            kind: "r".into(),
            is_visible,
            inherits: false,
            is_logged: true,
            has_triggers: false,
            is_owned: true,
            owner: "app".into(),
        }
    }

    /// Where `elf` comes first in `search_path`, and then `public`.
    fn problem(relations: &[Relation], purpose: Purpose) -> Option<String> {
        let placement = Placement {
            role: "elf".into(),
            search_path: "elf, public".into(),
            first: Some("elf".into()),
            relations: relations.to_vec(),
        };
        placement.problem(purpose)
    }

    #[track_caller]
    fn refused(relations: &[Relation], purpose: Purpose, words: &[&str]) {
        let problem = problem(relations, purpose).expect("it is refused");
        for word in words {
            assert!(problem.contains(word), "{word:?} is not in: {problem}");
        }
    }

    fn installed(schema: &str) -> Vec<Relation> {
        TABLES.map(|name| table(schema, name, true)).to_vec()
    }

    fn with_triggers(mut notes: Relation) -> Relation {
        notes.has_triggers = true;
        notes
    }

    #[test]
    fn a_first_migration_uses_the_notes_that_search_path_finds() {
        use Purpose::Migrate;
        assert_eq!(problem(&[], Migrate), None);
        assert_eq!(problem(&[table("elf", NOTES, true)], Migrate), None);
        assert_eq!(problem(&[table("public", NOTES, true)], Migrate), None);
        // Not through a schema that is not on the path.
        refused(
            &[table("app", NOTES, false)],
            Migrate,
            &[
                "in the schema app",
                "empty one in elf",
                "set search_path = elf, app",
            ],
        );
    }

    #[test]
    fn tables_of_another_installation_are_named() {
        use Purpose::{Migrate, Work};
        let hidden = |schema| TABLES.map(|name| table(schema, name, false)).to_vec();
        let other = [hidden("app"), vec![table("app", NOTES, false)]].concat();
        for purpose in [Migrate, Work] {
            refused(
                &other,
                purpose,
                &["app has ELF's tables", "a second ELF in elf"],
            );
        }
        let second = [other, vec![table("elf", NOTES, true)]].concat();
        assert_eq!(problem(&second, Migrate), None);
        let some = [
            table("public", "indexing_outbox", true),
            table("public", NOTES, true),
        ];
        refused(
            &some,
            Migrate,
            &["public has some of ELF's tables (indexing_outbox)"],
        );
    }

    #[test]
    fn an_installation_stays_in_its_schema() {
        use Purpose::{Migrate, Work};
        let notes = with_triggers(table("public", NOTES, true));
        let later = [installed("public"), vec![notes.clone()]].concat();
        refused(
            &later,
            Migrate,
            &["in the schema public", "new ones in elf"],
        );
        assert_eq!(problem(&later, Work), None);
        let own = [installed("elf"), vec![notes.clone()]].concat();
        assert_eq!(problem(&own, Migrate), None);
        assert_eq!(problem(&own, Work), None);

        let mut hiding = own.clone();
        hiding.pop();
        hiding.push(Relation {
            is_visible: false,
            ..notes
        });
        hiding.push(table("elf", NOTES, true));
        refused(
            &hiding,
            Work,
            &["on public.memory_notes", "elf.memory_notes hides it"],
        );
        let gone = installed("elf");
        assert_eq!(problem(&gone, Work), None, "the first migration may run");
        let mut mixed = [later, vec![]].concat();
        mixed[3] = table("elf", TABLES[3], true);
        refused(&mixed, Work, &["elf.index_versions hides"]);
    }

    #[test]
    fn notes_that_triggers_cannot_follow_are_refused() {
        type Change = fn(&mut Relation);
        let cases: [(Change, &str); 7] = [
            (|r| r.kind = "p".into(), "partitioned"),
            (|r| r.kind = "v".into(), "a view"),
            (|r| r.kind = "m".into(), "a view"),
            (|r| r.kind = "f".into(), "a foreign table"),
            (|r| r.inherits = true, "a partition, or inherits"),
            (|r| r.is_logged = false, "unlogged"),
            (|r| r.is_owned = false, "grant app to elf"),
        ];
        for (change, word) in cases {
            let mut notes = table("public", NOTES, true);
            change(&mut notes);
            refused(&[notes], Purpose::Migrate, &["public.memory_notes", word]);
        }
    }

    #[test]
    fn a_path_without_a_schema_is_explained() {
        let placement = Placement {
            role: "elf".into(),
            search_path: "\"$user\"".into(),
            first: None,
            relations: Vec::new(),
        };
        let problem = placement.problem(Purpose::Migrate).expect("there is one");
        assert!(
            problem.contains("\"$user\"") && problem.contains("grant usage, create"),
            "{problem}"
        );
    }
}
