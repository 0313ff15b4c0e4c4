//! A first block of `elf.toml` for a table.

use std::fmt::Write;

use super::text::quoted;
use crate::metadata;
use crate::store::{SourceColumn, SourceFacts, Store, StoreError};

/// Names that columns of titles often have; the first that the table has is taken.
const TITLES: &[&str] = &[
    "title",
    "subject",
    "name",
    "headline",
    "summary",
    "post_title",
];

/// The same of texts.
const TEXTS: &[&str] = &[
    "body",
    "text",
    "content",
    "description",
    "message",
    "note",
    "notes",
    "comment",
    "details",
];

/// The same of whose row it is.
const TENANTS: &[&str] = &[
    "tenant_id",
    "organization_id",
    "organisation_id",
    "org_id",
    "account_id",
    "customer_id",
    "workspace_id",
    "company_id",
    "shop_id",
];

/// The same of the time of the last change.
const CHANGES: &[&str] = &[
    "updated_at",
    "modified_at",
    "changed_at",
    "updated_on",
    "updated",
    "modified",
    "post_modified_gmt",
];

/// The same of what says that a row is deleted, as a time or as a boolean.
const DELETIONS: &[&str] = &[
    "deleted_at",
    "discarded_at",
    "trashed_at",
    "removed_at",
    "is_deleted",
    "deleted",
];

/// What the names of such columns may have in them: description_plaintext, post_content.
const PROSE: &[&str] = &["description", "content", "body", "message", "comment"];

/// Columns that no text is made of, although they hold one.
const NO_TEXTS: &[&str] = &[
    "password", "secret", "token", "hash", "slug", "url", "email", "phone", "status", "state",
    "locale", "lang", "language", "currency", "type", "kind", "sku", "ip", "html", "seo", "search",
    "priority",
];

/// Columns that no hit should show.
const SECRETS: &[&str] = &["password", "secret", "token", "hash", "salt", "key"];

/// The line of a table without a text.
pub const NO_TEXT: &str = "text = \"…\"";

/// Fields of metadata in a proposal.
const MAX_FIELDS: usize = 8;

/// What the first rows of a table have in some of its columns. A table without rows has nothing.
#[derive(Debug, Default)]
pub struct Sample {
    /// The columns with a text of several words in half of the rows that have one at all.
    worded: Vec<String>,
    /// The columns of text that have one in some row.
    filled: Vec<String>,
    /// Whether a row has no tenant.
    lacks_tenant: bool,
}

/// A block of `elf.toml` for a table, to be read before use.
pub async fn propose(store: &Store, facts: &SourceFacts) -> Result<String, StoreError> {
    let columns: Vec<&SourceColumn> = facts
        .columns
        .iter()
        .filter(|column| is_text(column))
        .collect();
    let counts = columns
        .iter()
        .filter(|column| column.is_own)
        .flat_map(|column| {
            let value = format!("r.{}", quoted(&column.name));
            [
                format!("count(*) filter (where {value} ~ '\\S')"),
                format!("count(*) filter (where {value} ~ '\\S\\s+\\S+\\s+\\S')"),
            ]
        });
    let tenant = named(&facts.columns, TENANTS);
    let tenants = tenant.map(|tenant| format!("count(*) - count(r.{})", quoted(tenant)));
    let counts: Vec<String> = counts.chain(tenants).collect();
    let counted = store.of_first_rows(&facts.table, &counts).await?;
    let mut sample = Sample {
        lacks_tenant: tenant.is_some() && counted.last().is_some_and(|rows| *rows > 0),
        ..Sample::default()
    };
    for (column, counts) in columns
        .iter()
        .filter(|column| column.is_own)
        .zip(counted.chunks(2))
    {
        if let [filled, worded] = counts
            && *filled > 0
        {
            sample.filled.push(column.name.clone());
            if worded * 2 >= *filled {
                sample.worded.push(column.name.clone());
            }
        }
    }
    Ok(block(
        &facts.table,
        &facts.alias,
        &facts.columns,
        &facts.key,
        &sample,
    ))
}

fn named<'a>(columns: &'a [SourceColumn], names: &[&str]) -> Option<&'a str> {
    let of = |name: &&str| {
        columns
            .iter()
            .find(|column| column.name.eq_ignore_ascii_case(name))
    };
    names.iter().find_map(of).map(|column| column.name.as_str())
}

fn is_text(column: &SourceColumn) -> bool {
    ["text", "varchar", "citext", "bpchar"].contains(&column.kind.as_str())
}

fn block(
    table: &str,
    alias: &str,
    columns: &[SourceColumn],
    key: &[(String, String)],
    sample: &Sample,
) -> String {
    let named = |names: &[&str]| named(columns, names);
    let texts: Vec<&str> = columns
        .iter()
        .filter(|column| is_text(column))
        .map(|column| column.name.as_str())
        .collect();
    let is_prose = |name: &str| {
        let name = name.to_lowercase();
        PROSE.iter().any(|part| name.contains(part))
            && !NO_TEXTS.iter().any(|part| name.contains(part))
    };
    let title = named(TITLES).filter(|title| texts.contains(title));
    let mut text: Vec<&str> = TEXTS
        .iter()
        .filter_map(|name| texts.iter().find(|text| text.eq_ignore_ascii_case(name)))
        .copied()
        .collect();
    if text.is_empty() {
        text = texts
            .iter()
            .copied()
            .filter(|name| Some(*name) != title && is_prose(name))
            .take(1)
            .collect();
    }
    if text.is_empty() {
        let is_no_text = |name: &str| {
            NO_TEXTS
                .iter()
                .any(|part| name.to_lowercase().contains(part))
        };
        text = texts
            .iter()
            .copied()
            .filter(|name| {
                let has = |names: &[String]| names.iter().any(|one| one == name);
                let is_of_words = has(&sample.worded) || !has(&sample.filled);
                Some(*name) != title
                    && is_of_words
                    && !is_no_text(name)
                    && !key.iter().any(|(key, _)| key == name)
            })
            .collect();
    }
    let parts = title.into_iter().chain(text);
    let parts: Vec<String> = parts.map(|name| format!("{{{name}}}")).collect();
    let mut block = format!(
        "[[sources]]\nname = {:?}\ntable = {table:?}\n",
        source_name(alias)
    );
    let _ = match parts.is_empty() {
        true => writeln!(
            block,
            "{NO_TEXT} # no column holds a text: name some, as in \"{{column}}\""
        ),
        false => writeln!(block, "text = {:?}", parts.join("\n\n")),
    };
    if let Some(title) = title {
        let _ = writeln!(block, "title = \"{{{title}}}\"");
    }
    if let Some(condition) = not_deleted(columns) {
        let _ = writeln!(block, "where = {condition:?} # other rows are no notes");
    }
    let _ = match named(TENANTS) {
        Some(tenant) if sample.lacks_tenant => writeln!(
            block,
            "# tenant_id = \"{{{tenant}}}\" # some rows have none, and would be left out; without it, all are in the \
             tenant \"default\""
        ),
        Some(tenant) => writeln!(
            block,
            "tenant_id = \"{{{tenant}}}\" # a key of the API reaches one tenant; without this line, all are in \"default\""
        ),
        None => writeln!(
            block,
            "# tenant_id = \"{{column}}\" # without it, all are in the tenant \"default\""
        ),
    };
    let changed = named(CHANGES).filter(|name| {
        columns
            .iter()
            .any(|column| column.name == *name && is_time(column))
    });
    if let Some(changed) = changed {
        let _ = writeln!(block, "updated_at = \"{{{changed}}}\"");
    }
    let is_used = |name: &str| {
        block.contains(&format!("{{{name}}}"))
            || DELETIONS.contains(&name)
            || key.iter().any(|(key, _)| key == name)
    };
    let fields: Vec<String> = columns
        .iter()
        .filter(|column| is_field(column) && !is_used(&column.name))
        .take(MAX_FIELDS)
        .map(|column| format!("{0} = \"{{{0}}}\"", column.name))
        .collect();
    if !fields.is_empty() {
        let _ = writeln!(
            block,
            "# metadata = {{ {} }} # hits show these fields, and searches filter by those that [metadata] declares",
            fields.join(", ")
        );
    }
    block
}

fn is_time(column: &SourceColumn) -> bool {
    ["timestamptz", "timestamp", "date"].contains(&column.kind.as_str())
}

/// Which rows are there, where the application marks a row instead of deleting it.
fn not_deleted(columns: &[SourceColumn]) -> Option<String> {
    let name = named(columns, DELETIONS)?;
    let column = columns.iter().find(|column| column.name == name)?;
    let value = match DELETIONS.contains(&name) {
        true => name.to_owned(),
        false => quoted(name),
    };
    match column.kind.as_str() {
        "bool" => Some(format!("{value} is not true")),
        _ if is_time(column) => Some(format!("{value} is null")),
        _ => None,
    }
}

/// Whether people may want to see a column, or to filter by it.
fn is_field(column: &SourceColumn) -> bool {
    let is_secret = |part: &&str| column.name.to_lowercase().contains(*part);
    let kinds = [
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "numeric",
        "date",
        "timestamp",
        "timestamptz",
        "text",
        "varchar",
        "_text",
        "_varchar",
    ];
    column.is_own
        && kinds.contains(&column.kind.as_str())
        && metadata::check_name(&column.name).is_ok()
        && !SECRETS.iter().any(is_secret)
}

/// A name that a source may have, like that of its table.
fn source_name(table: &str) -> String {
    let mut name: String = table
        .trim_matches('"')
        .to_lowercase()
        .chars()
        .map(|c| {
            if c.is_ascii_lowercase() || c.is_ascii_digit() {
                c
            } else {
                '_'
            }
        })
        .take(40)
        .collect();
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        name.insert(0, 't');
        name.truncate(40);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(of: &[(&str, &str)]) -> Vec<SourceColumn> {
        let column = |(name, kind): &(&str, &str)| SourceColumn {
            name: (*name).into(),
            kind: (*kind).into(),
            is_own: true,
        };
        of.iter().map(column).collect()
    }

    #[test]
    fn the_columns_of_a_ticket_are_recognised() {
        let columns = columns(&[
            ("id", "int8"),
            ("customer_id", "int8"),
            ("Subject", "varchar"),
            ("body", "text"),
            ("status", "text"),
            ("updated_at", "timestamptz"),
        ]);
        let key = [("id".to_owned(), "pg_catalog.int8".to_owned())];
        assert_eq!(
            block(
                "support.tickets",
                "tickets",
                &columns,
                &key,
                &Sample::default()
            ),
            "[[sources]]\nname = \"tickets\"\ntable = \"support.tickets\"\ntext = \"{Subject}\\n\\n{body}\"\n\
             title = \"{Subject}\"\ntenant_id = \"{customer_id}\" # a key of the API reaches one tenant; without this line, \
             all are in \"default\"\nupdated_at = \"{updated_at}\"\n# metadata = { status = \"{status}\" } # hits \
             show these fields, and searches filter by those that [metadata] declares\n"
        );
    }

    #[test]
    fn without_a_usual_name_all_texts_but_those_of_machines_are_taken() {
        let columns = columns(&[
            ("code", "text"),
            ("Was", "text"),
            ("image_url", "text"),
            ("updated_at", "int4"),
        ]);
        let key = [("code".to_owned(), "pg_catalog.text".to_owned())];
        let block = block(
            "t.\"Dinge 2\"",
            "\"Dinge 2\"",
            &columns,
            &key,
            &Sample::default(),
        );
        assert!(block.contains("name = \"dinge_2\"\n"), "{block}");
        assert!(block.contains("text = \"{Was}\"\n"), "{block}");
        assert!(
            !block.contains("updated_at = \"{updated_at}\"\n"),
            "{block}"
        );
    }

    #[test]
    fn rows_that_are_marked_as_deleted_are_no_notes() {
        let block_of = |kind: &str, name: &str| {
            let columns = columns(&[("id", "int8"), ("body", "text"), (name, kind)]);
            let key = [("id".to_owned(), "pg_catalog.int8".to_owned())];
            block("posts", "posts", &columns, &key, &Sample::default())
        };
        let has = |block: String, line: &str| assert!(block.contains(line), "{block}");
        has(
            block_of("timestamptz", "deleted_at"),
            "where = \"deleted_at is null\" # other",
        );
        has(
            block_of("timestamp", "Deleted_at"),
            "where = \"\\\"Deleted_at\\\" is null\" # other",
        );
        has(
            block_of("bool", "is_deleted"),
            "where = \"is_deleted is not true\" # other",
        );
        assert!(!block_of("text", "deleted").contains("where"));
    }

    #[test]
    fn what_the_rows_hold_decides_where_no_name_does() {
        let columns = columns(&[
            ("id", "int8"),
            ("customer_id", "int8"),
            ("thumbnail", "varchar"),
            ("memo", "varchar"),
            ("unused", "varchar"),
        ]);
        let key = [("id".to_owned(), "pg_catalog.int8".to_owned())];
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let sample = Sample {
            worded: names(&["memo"]),
            filled: names(&["memo", "thumbnail"]),
            lacks_tenant: true,
        };
        let block = block("shop.cards", "cards", &columns, &key, &sample);
        assert!(
            block.contains("text = \"{memo}\\n\\n{unused}\"\n"),
            "{block}"
        );
        assert!(
            block.contains("\n# tenant_id = \"{customer_id}\" # some rows"),
            "{block}"
        );
    }
}
