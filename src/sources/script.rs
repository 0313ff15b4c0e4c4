//! The statements that install a source: its functions and triggers. Their texts are in `sql/source/`.
//!
//! There is one way from a row to its note, and it takes keys alone: `elf_source_NAME$put` reads the rows of these keys
//! as they are now, and makes their notes equal. So it does not matter who calls it, when, or how often: the triggers of
//! the table, in whatever order Postgres fires them beside those of the application, or a sync.

use super::columns::{COLUMNS, Columns};
use super::text::{fill, literal, quoted};
use crate::config::{Source, Text};
use crate::store::{SourceColumn, SourceFacts};

/// What the names of a source's functions end with: the trigger's own, and those that it and a sync call. No name of a
/// source has a `$`, so `blog` and `blog_notes` share none.
const SUFFIXES: [&str; 8] = [
    "", "$rows", "$gone", "$put", "$try", "$page", "$notes", "$touch",
];

/// What a comparison returns: notes that are missing, that differ from their rows, and whose rows are gone.
const DRIFT: &str = "out elf_missing bigint, out elf_stale bigint, out elf_orphaned bigint";

/// Deadlocks, timeouts, a full disk: the statement of the application fails as it would without ELF.
const IS_NO_FAULT_OF_ROWS: &str =
    "sqlstate ~ '^(40|53|57|58|XX)' or sqlstate in ('55P03', '55006')";

/// A table, a column, a function or a right that is gone.
const IS_MISFIT: &str = "(sqlstate in ('42P01', '42703', '42883', '42501'))";

/// The id of the note of a row, `i.source_id`, of the source `{name}`: a UUID of version 8 (RFC 9562).
const NOTE_ID: &str = "encode(set_byte(set_byte(substring(sha256(convert_to({name} || ':' || i.source_id, 'UTF8')) from 1 for 16), \
                       6, 128), 8, 128), 'hex')::uuid";

/// The text without what a null leaves at its ends. To trim takes Postgres far longer than to look at the ends, and it
/// cannot trim the longest texts.
const TRIMMED: &str = "case when get_byte(i.bytes, 0) in (9, 10, 13, 32) or get_byte(i.bytes, octet_length(i.bytes) - 1) in (9, 10, 13, 32)
                then btrim(i.text, E' \\t\\r\\n')
                when octet_length(i.text) <= 67108864 then i.text
           end";

/// What the functions of a source run with. The text of a time or a number must not follow the settings of the session
/// that writes the row. Each row is looked up by its key, whatever Postgres believes of the tables: a plan is made once,
/// and joins nothing but by an index. A policy of the table's owner may call any function: where ELF's role is not that
/// owner, a statement fails instead (`row_security`).
const SETTINGS: &str = "set search_path = pg_catalog, pg_temp set timezone = 'UTC' set datestyle = 'ISO, YMD'
set intervalstyle = 'postgres' set extra_float_digits = 1 set bytea_output = 'hex' set xmloption = 'content'
set enable_seqscan = off set jit = off set plan_cache_mode = force_generic_plan set row_security = {policies}";

/// The statements that install a source, for one transaction. They are those of [`of_partitions`] besides.
pub fn install(source: &Source, facts: &SourceFacts) -> String {
    Script { source, facts }.install()
}

/// The statements for the partitions that a table has now: a trigger on each, because nothing else sees that one is
/// truncated. Those of rows Postgres puts on each partition itself, also on later ones.
pub fn of_partitions(source: &Source, facts: &SourceFacts) -> String {
    let script = Script { source, facts };
    let triggers = facts.partitions.iter();
    triggers
        .map(|partition| script.truncated(partition))
        .collect()
}

/// The statements that take back what [`install`] did, but for the notes.
pub fn uninstall(name: &str) -> String {
    fill(
        include_str!("../../sql/source/uninstall.sql"),
        &[
            ("name", literal(name)),
            ("prefix", literal(&format!("elf_source_{name}"))),
            ("suffixes", SUFFIXES.map(literal).join(", ")),
        ],
    )
}

/// The statement that records an installation.
pub fn record(name: &str, facts: &SourceFacts, sha256: &[u8]) -> String {
    let hex: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "insert into {elf}.elf_sources (source, of_table, sha256, objects)
values ({name}, {table}, '\\x{hex}'::bytea, {elf}.elf_source_objects({name}, {table}));\n",
        elf = facts.elf,
        name = literal(name),
        table = literal(&facts.table),
    )
}

/// The statements that make a role without other rights the owner of a source's functions.
pub fn own(name: &str, facts: &SourceFacts) -> String {
    let functions =
        SUFFIXES.map(|suffix| literal(&format!("{}.elf_source_{name}{suffix}", facts.elf)));
    let policed: Vec<String> = facts
        .with_policies
        .iter()
        .map(|table| literal(table))
        .collect();
    fill(
        include_str!("../../sql/source/own.sql"),
        &[
            ("functions", functions.join(", ")),
            ("with_policies", policed.join(", ")),
            ("elf", literal(&facts.elf)),
            ("schema", literal(&facts.schema)),
            ("table", literal(&facts.table)),
            ("notes", literal(&facts.notes)),
        ],
    )
}

/// An expression of each column that a template names, and the condition, to ask Postgres what they use.
pub fn expressions(source: &Source, alias: &str) -> Vec<String> {
    let mut all = Columns {
        source,
        alias,
        plain: &[],
    }
    .all();
    all.push(format!(
        "({}) is true",
        source.condition.as_deref().unwrap_or("true")
    ));
    all
}

/// The columns of a note.
fn list(prefix: &str) -> String {
    COLUMNS
        .map(|(name, _)| format!("{prefix}{name}"))
        .join(", ")
}

/// A source without a template of the time has that of the change, which is no difference by itself.
fn with_time(columns: String, of: &str, default: &str) -> String {
    let time = format!("{of}.updated_at");
    columns.replace(&time, &format!("coalesce({time}, {default})"))
}

struct Script<'a> {
    source: &'a Source,
    facts: &'a SourceFacts,
}

impl Script<'_> {
    fn install(&self) -> String {
        [
            uninstall(&self.source.name),
            // The names in the body of `_rows` are looked up now, and never again.
            "select set_config('elf.search_path', current_setting('search_path'), true);
set local search_path = pg_catalog, pg_temp;\n"
                .to_owned(),
            self.rows(),
            self.gone(),
            self.put(),
            self.attempt(),
            self.page(),
            self.notes(),
            self.touch(),
            self.trigger_function(),
            self.triggers(),
            "select set_config('search_path', current_setting('elf.search_path'), true);\n"
                .to_owned(),
        ]
        .concat()
    }

    fn rows(&self) -> String {
        let SourceFacts {
            table, alias, key, ..
        } = self.facts;
        let of_note = |name: &str| {
            let mut types = self.facts.note_types.iter();
            types
                .find(|(column, _)| column == name)
                .map(|(_, kind)| kind.as_str())
        };
        let kinds = COLUMNS.map(|(name, kind)| format!("{name} {}", of_note(name).unwrap_or(kind)));
        let wanted = COLUMNS.map(|(name, _)| {
            let value = match name {
                "text" => TRIMMED.into(),
                name => format!("i.{name}"),
            };
            match of_note(name) {
                Some(kind) => format!("({value})::{kind}"),
                None => value,
            }
        });
        let columns = self.each(", ", |_, name, _| format!("{alias}.{}", quoted(name)));
        let is_key = match key.len() {
            1 => format!("{columns} = any ($1)"),
            _ => format!(
                "({columns}) in (select * from unnest({}) as elf_k)",
                self.each(", ", |n, _, _| format!("${n}"))
            ),
        };
        let columns_of = self.facts.columns.iter().filter(|column| column.is_own);
        let plain: Vec<String> = columns_of.map(|column| column.name.clone()).collect();
        let values = Columns {
            source: self.source,
            alias,
            plain: &plain,
        }
        .all();
        let values = COLUMNS
            .iter()
            .zip(values)
            .map(|((name, _), value)| format!("{value} as {name}"));
        self.fill(
            include_str!("../../sql/source/rows.sql"),
            &[
                (
                    "key_types",
                    self.each(", ", |_, _, kind| format!("{kind}[]")),
                ),
                ("columns", kinds.join(", ")),
                (
                    "source_id",
                    self.source_id(|_, name| format!("{alias}.{}", quoted(name))),
                ),
                ("wanted", wanted.join(",\n           ")),
                (
                    "values",
                    values.collect::<Vec<_>>().join(",\n                   "),
                ),
                ("only", self.only().into()),
                ("table", table.clone()),
                ("alias", alias.clone()),
                ("is_key", is_key),
                (
                    "condition",
                    self.source
                        .condition
                        .clone()
                        .unwrap_or_else(|| "true".into()),
                ),
            ],
        )
    }

    fn gone(&self) -> String {
        let columns = self.each(", ", |_, name, _| format!("r.{}", quoted(name)));
        self.fill(
            include_str!("../../sql/source/gone.sql"),
            &[
                ("gone", self.function("$gone")),
                ("only", self.only().into()),
                ("table", self.facts.table.clone()),
                ("columns", columns),
                ("key", self.key_of("k.source_id")),
            ],
        )
    }

    fn put(&self) -> String {
        let names = COLUMNS.map(|(name, _)| format!("{name} = excluded.{name}"));
        self.fill(
            include_str!("../../sql/source/put.sql"),
            &[
                ("read", list("r.")),
                ("of_note", list("o.")),
                ("as_wanted", with_time(list("w."), "w", "o.updated_at")),
                ("set", names.join(", ")),
            ],
        )
    }

    fn attempt(&self) -> String {
        let half = |slice: &str| self.each(", ", |n, _, _| format!("elf_{n}{slice}"));
        self.fill(
            include_str!("../../sql/source/try.sql"),
            &[
                ("first_half", half("[:cardinality(elf_1) / 2]")),
                ("second_half", half("[cardinality(elf_1) / 2 + 1:]")),
            ],
        )
    }

    /// A page of the table, in the order of its key.
    fn page(&self) -> String {
        let SourceFacts { table, alias, .. } = self.facts;
        let column = |name: &str| format!("{alias}.{}", quoted(name));
        let key = self.each(", ", |_, name, _| column(name));
        let columns = self.each(", ", |n, name, _| format!("{} as k{n}", column(name)));
        let order = self.each(", ", |n, _, _| format!("k.k{n}"));
        let values = self.each(", ", |n, _, kind| {
            format!("array_agg((k.k{n})::{kind} order by {order})")
        });
        let after = self.key_of("elf_after");
        let (only, into) = (self.only(), self.arrays());
        let page = |condition: &str| {
            format!(
                "select {values} into {into}
          from (select {columns} from {only}{table} as {alias}{condition} order by {key} limit elf_count) k;"
            )
        };
        let read = format!(
            "if elf_after is null then
        {}
    else
        {}
    end if;
    elf_rows := coalesce(cardinality(elf_1), 0);
    if elf_rows > 0 then
        elf_last := {};
    end if;",
            page(""),
            page(&format!(" where ({key}) > ({after})")),
            self.source_id(|n, _| format!("elf_{n}[cardinality(elf_{n})]"))
        );
        self.compared("$page", "rows, by their key", read)
    }

    /// A page of the notes and of the rows that are left out, in the order of the notes' ids: those whose rows are gone.
    fn notes(&self) -> String {
        let SourceFacts { elf, notes, .. } = self.facts;
        let name = literal(&self.source.name);
        let next = |table: &str| {
            format!(
                "(select t.note_id, t.source_id from {table} t
               where t.source = {name} and t.source_id <> ''
                 and t.note_id > coalesce(elf_after, '00000000-0000-0000-0000-000000000000')::uuid order by t.note_id limit elf_count)"
            )
        };
        let values = self.each_key("k.source_id", |value| {
            format!("(select array_agg({value}) from elf_gone k)")
        });
        let read = format!(
            "with elf_page as materialized (
        select * from ({} union {}) u order by u.note_id limit elf_count
    ),
    elf_gone as materialized (
        select k.source_id from {}(array(select p.source_id from elf_page p)) as k (source_id)
    )
    select max(p.note_id::text), count(*), {values} into elf_last, elf_rows, {} from elf_page p;",
            next(notes),
            next(&format!("{elf}.elf_left_out")),
            self.function("$gone"),
            self.arrays()
        );
        self.compared(
            "$notes",
            "notes and rows that are left out, by the ids of notes, whose rows are gone",
            read,
        )
    }

    fn compared(&self, suffix: &str, what: &str, read: String) -> String {
        self.fill(
            include_str!("../../sql/source/page.sql"),
            &[
                ("function", self.function(suffix)),
                ("what", what.into()),
                ("read", read),
            ],
        )
    }

    fn touch(&self) -> String {
        let of_ids = self.each_key("k.source_id", |value| format!("array_agg({value})"));
        self.fill(
            include_str!("../../sql/source/touch.sql"),
            &[("touch", self.function("$touch")), ("of_ids", of_ids)],
        )
    }

    fn trigger_function(&self) -> String {
        let names = COLUMNS.map(|(name, _)| format!("{name} = r.{name}"));
        let of = |rows: &[&str]| {
            self.each(" ", |n, name, kind| {
                let values = rows
                    .iter()
                    .map(|row| format!("({row}.{})::{kind}", quoted(name)));
                format!(
                    "elf_{n} := array[{}];",
                    values.collect::<Vec<_>>().join(", ")
                )
            })
        };
        self.fill(
            include_str!("../../sql/source/trigger.sql"),
            &[
                ("function", self.function("")),
                ("of_notes", self.function("$notes")),
                (
                    "of_all",
                    self.each(", ", |_, name, kind| {
                        format!("array_agg((r.{})::{kind})", quoted(name))
                    }),
                ),
                (
                    "has_keys",
                    self.each(" and ", |n, _, _| format!("elf_{n} is not null")),
                ),
                ("of_new", of(&["new"])),
                ("of_old", of(&["old"])),
                ("of_both", of(&["old", "new"])),
                (
                    "is_same_key",
                    self.each(" and ", |n, _, _| {
                        format!("concat(elf_{n}[1]) = concat(elf_{n}[2])")
                    }),
                ),
                ("of_note", list("n.")),
                ("as_row", with_time(list("r."), "r", "n.updated_at")),
                ("updated", with_time(names.join(", "), "r", "now()")),
            ],
        )
    }

    /// Fills a text of `sql/source/` with these values, and with those that most of them have.
    fn fill(&self, text: &str, values: &[(&'static str, String)]) -> String {
        let SourceFacts { elf, notes, .. } = self.facts;
        let name = literal(&self.source.name);
        let names = self.each(", ", |n, _, _| format!("k{n}"));
        let policies = match self.facts.with_policies.is_empty() {
            true => "off",
            false => "on",
        };
        let mut all = vec![
            ("rows", self.function("$rows")),
            ("put", self.function("$put")),
            ("try", self.function("$try")),
            (
                "keys",
                self.each(", ", |n, _, kind| format!("elf_{n} {kind}[]")),
            ),
            (
                "declared",
                self.each("\n    ", |n, _, kind| format!("elf_{n} {kind}[];")),
            ),
            ("arrays", self.arrays()),
            (
                "unnested",
                format!("unnest({}) as k ({names})", self.arrays()),
            ),
            ("id", self.source_id(|n, _| format!("k.k{n}"))),
            ("note_id", fill(NOTE_ID, &[("name", name.clone())])),
            ("notes_table", notes.clone()),
            ("left_out", format!("{elf}.elf_left_out")),
            ("list", list("")),
            ("inserted", with_time(list("r."), "r", "now()")),
            ("settings", SETTINGS.replace("{policies}", policies)),
            ("drift", DRIFT.into()),
            ("is_no_fault_of_rows", IS_NO_FAULT_OF_ROWS.into()),
            ("is_misfit", IS_MISFIT.into()),
            ("name", name),
        ];
        all.extend_from_slice(values);
        fill(text, &all)
    }

    fn function(&self, suffix: &str) -> String {
        format!("{}.elf_source_{}{suffix}", self.facts.elf, self.source.name)
    }

    /// What stands before the table: a source is one table, or all partitions of one.
    fn only(&self) -> &'static str {
        if self.facts.partitions.is_empty() {
            "only "
        } else {
            ""
        }
    }

    /// The columns of the key, each written by `one`: its number, name and type.
    fn each(&self, between: &str, one: impl Fn(usize, &str, &str) -> String) -> String {
        let each = (1..).zip(&self.facts.key);
        let each = each.map(|(n, (name, kind))| one(n, name, kind));
        each.collect::<Vec<_>>().join(between)
    }

    /// The arrays of keys that the functions take.
    fn arrays(&self) -> String {
        self.each(", ", |n, _, _| format!("elf_{n}"))
    }

    /// The id of a row, from the values of its key.
    fn source_id(&self, value: impl Fn(usize, &str) -> String) -> String {
        let values = self.each(", ", |n, name, _| format!("concat({})", value(n, name)));
        match self.facts.key.len() {
            1 => values,
            _ => format!("jsonb_build_array({values})::text"),
        }
    }

    /// The values of the key of the row with this id.
    fn key_of(&self, source_id: &str) -> String {
        self.each_key(source_id, |value| value)
    }

    fn each_key(&self, source_id: &str, one: impl Fn(String) -> String) -> String {
        let is_one = self.facts.key.len() == 1;
        self.each(", ", |n, _, kind| {
            one(match is_one {
                true => format!("({source_id})::{kind}"),
                false => format!("(({source_id})::jsonb ->> {})::{kind}", n - 1),
            })
        })
    }

    fn triggers(&self) -> String {
        let SourceFacts {
            table,
            partitions,
            is_partition,
            ..
        } = self.facts;
        // A trigger of statements sees no row that is written to a partition directly or through its root, and none that
        // arrives by replication.
        let by_row = self.source.replicated || *is_partition || !partitions.is_empty();
        let [inserted, deleted] = match by_row {
            true => ["for each row"; 2],
            false => [
                "referencing new table as new_rows for each statement",
                "referencing old table as old_rows for each statement",
            ],
        };
        // Of a change that no note shows, Postgres does not even call the function.
        let updated = format!("for each row\n    when ({})", self.has_changed());
        [
            self.trigger(table, "inserted", "insert", inserted),
            self.trigger(table, "updated", "update", &updated),
            self.trigger(table, "deleted", "delete", deleted),
            self.truncated(table),
        ]
        .concat()
    }

    fn truncated(&self, table: &str) -> String {
        self.trigger(table, "truncated", "truncate", "for each statement")
    }

    fn trigger(&self, table: &str, what: &str, event: &str, how: &str) -> String {
        let name = format!("elf_source_{}_{what}", self.source.name);
        let function = self.function("");
        let always = match self.source.replicated {
            true => format!("alter table {table} enable always trigger {name};\n"),
            false => String::new(),
        };
        format!(
            "create trigger {name} after {event} on {table} {how} execute function {function}();\n{always}"
        )
    }

    fn has_changed(&self) -> String {
        let text = match &self.source.text {
            Text::Sql(sql) => Some(sql),
            Text::Template(_) => None,
        };
        // It may take the whole row, as an argument of a function.
        let bare = self.facts.alias.trim_matches('"').to_lowercase();
        let sources = self.source.condition.iter().chain(text);
        let mut expressions = sources.chain(&self.source.metadata_sql);
        if expressions.any(|sql| sql.to_lowercase().contains(&bare)) {
            return "(old)::pg_catalog.record operator(pg_catalog.*<>) (new)::pg_catalog.record"
                .into();
        }
        let columns = self.facts.columns.iter().filter(|column| {
            let is_key = self.facts.key.iter().any(|(name, _)| *name == column.name);
            is_key || self.facts.used.contains(&column.name)
        });
        let changed = columns.map(|column| self.column_has_changed(column));
        changed.collect::<Vec<_>>().join("\n        or ")
    }

    /// Values of most types are told apart by Postgres's own operators, which is cheap; those that may be equal and have
    /// two texts, as 1.0 and 1.00, by their image. A long value that stays where it is stored has not changed: it is not
    /// read.
    fn column_has_changed(&self, column: &SourceColumn) -> String {
        const FIXED: [&str; 8] = [
            "bool",
            "int2",
            "int4",
            "int8",
            "uuid",
            "date",
            "timestamp",
            "timestamptz",
        ];
        let [old, new] = ["old", "new"].map(|row| format!("{row}.{}", quoted(&column.name)));
        let kind = column.kind.as_str();
        let by_image = format!(
            "row({old})::pg_catalog.record operator(pg_catalog.*<>) row({new})::pg_catalog.record"
        );
        let differs = match kind {
            _ if !column.is_own => by_image,
            _ if FIXED.contains(&kind) => return format!("{old} is distinct from {new}"),
            "text" | "varchar" => {
                format!(
                    "{old}::text collate pg_catalog.\"C\" is distinct from {new}::text collate pg_catalog.\"C\""
                )
            }
            _ => by_image,
        };
        match self.facts.knows_stored_values {
            true => format!(
                "(pg_catalog.pg_column_toast_chunk_id({old}) = pg_catalog.pg_column_toast_chunk_id({new})) is not true and {differs}"
            ),
            false => differs,
        }
    }
}
