//! Small inputs that people met in production with systems that do ELF's job: one folder in
//! `tests/data/cases` each, and here the right value of each.

mod files;
mod http;
mod poolers;
mod postgres_settings;
mod provider;
mod replication;
mod unreadable_row;

use std::collections::BTreeSet;
use std::path::PathBuf;

/// The folder of a case.
pub struct Case(PathBuf);

impl Case {
    fn open(folder: &str) -> Self {
        Self(cases().join(folder))
    }

    /// The path of one of its files.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    /// One of its files, which is UTF-8.
    pub fn text(&self, file: &str) -> String {
        String::from_utf8(self.bytes(file)).unwrap()
    }

    /// One of its files.
    pub fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.path(file)).unwrap()
    }
}

fn cases() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/cases")
}

/// One test for each line: its name, the folder, and the function that tries it.
macro_rules! cases {
    ($($name:ident: $folder:literal => $check:path;)*) => {
        const FOLDERS: &[&str] = &[$($folder),*];
        $(
            #[tokio::test]
            async fn $name() {
                $check(Case::open($folder)).await;
            }
        )*
    };
}

cases! {
    a_changed_key_is_a_change_and_an_import_resets_nothing: "12-import-key" => files::import_key;
    a_byte_order_mark_is_no_part_of_a_line: "13-bom" => files::byte_order_mark;
    accents_are_found_in_every_form: "19-accents" => files::accents;
    names_of_files_are_told_apart_and_found_again: "20-file-names" => files::file_names;
    an_unreadable_folder_is_named: "21-unreadable-folder" => files::unreadable_folder;
    an_id_in_a_text_without_spaces_is_found: "24-id-in-cjk" => files::id_in_cjk;
    statement_timeout: "07-statement-timeout" => postgres_settings::statement_timeout;
    unreadable_row: "10-unreadable-row" => unreadable_row::unreadable_row;
    logical_replication: "11-logical-replication" => replication::logical_replication;
    vector_in_another_schema: "23-vector-in-another-schema" => postgres_settings::vector_in_another_schema;
    schemas_that_every_client_takes: "17-mcp-schemas" => http::mcp_schemas;
    a_long_note_for_an_agent: "18-mcp-get-note" => http::mcp_get_note;
    nul_in_a_message: "01-nul-in-message" => provider::nul_in_a_message;
    forbidden_for_one_text: "02-403-for-one-text" => provider::forbidden_for_one_text;
    failed_dependency: "03-424" => provider::failed_dependency;
    base64_answered_empty: "04-base64-answered-empty" => provider::base64_answered_empty;
    index_left_out: "06-index-left-out" => provider::index_left_out;
    required_field: "16-required-field" => provider::required_field;
    a_full_pooler: "08-xx000-is-passing" => poolers::a_full_pooler_is_waited_for;
}

#[test]
fn every_folder_is_tried() {
    let folders = std::fs::read_dir(cases()).unwrap();
    let folders: BTreeSet<_> = folders
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let tried: BTreeSet<_> = FOLDERS.iter().map(ToString::to_string).collect();
    assert_eq!(folders, tried);
}
