//! What a line or a file says of a note.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::file::Contents;
use super::{Args, DEFAULT_TENANT};
use crate::chunk;
use crate::cli::value;
use crate::metadata;
use crate::note::{check_key, check_label, check_zero_to_one, holds_nul, present};
use crate::store::{Field, ImportedNote, Origin};

/// The UUIDv5 namespace of note ids that are derived from keys.
const KEYS: Uuid = Uuid::from_u128(0x656c_6600_6b65_7973_8000_6e6f_7465_7321);

/// A line of JSONL. `text` is required, and one of `key` and `note_id`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Line {
    pub note_id: Option<Uuid>,
    #[serde(default, deserialize_with = "present")]
    pub key: Option<Option<String>>,
    pub text: String,
    pub tenant_id: Option<String>,
    pub project_id: Option<String>,
    pub agent_id: Option<String>,
    pub scope: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub importance: Option<f32>,
    pub confidence: Option<f32>,
    #[serde(default, deserialize_with = "present")]
    pub expires_at: Option<Option<DateTime<Utc>>>,
    pub source_ref: Option<Value>,
    pub metadata: Option<Map<String, Value>>,
    #[serde(default, deserialize_with = "present")]
    pub title: Option<Option<String>>,
}

/// The note of a text file. Its source, and a title that is the file's name, are those of a new note alone: an
/// application may have set others.
pub(super) fn of_file(key: String, file: Contents, args: &Args) -> anyhow::Result<ImportedNote> {
    let source = json!({ "file": key });
    let line = Line {
        title: file.has_title.then(|| file.title.clone()),
        text: file.text,
        key: Some(Some(key)),
        metadata: file.metadata,
        ..Line::default()
    };
    let mut note = of_line(line, args)?;
    note.source_ref.value = source;
    note.title.value = file.title;
    check(&note).map_err(anyhow::Error::msg)?;
    Ok(note)
}

/// What a sync knows of the note of a file.
#[derive(Clone)]
pub(super) struct Synced {
    /// The folder and the file.
    pub origin: Origin,
    /// The note that is there already.
    pub note_id: Option<Uuid>,
    /// Whether it was the note of another file.
    pub is_moved: bool,
}

/// The note of a file of a folder that is synced: title and metadata are the file's too.
pub(super) fn of_synced(
    file: Contents,
    args: &Args,
    synced: Synced,
) -> anyhow::Result<ImportedNote> {
    let Synced {
        origin,
        note_id,
        is_moved,
    } = synced;
    let is_new = note_id.is_none();
    let line = Line {
        note_id,
        key: (is_new || is_moved).then(|| Some(origin.source_id.clone())),
        title: Some(file.title),
        text: file.text,
        metadata: Some(file.metadata.unwrap_or_default()),
        ..Line::default()
    };
    let mut note = of_line(line, args)?;
    note.origin = Some(origin);
    Ok(note)
}

/// The note of a line. The labels and the key of a line without `note_id` say which note it is: if
/// the application has changed them since, they stay as they are.
pub(super) fn of_line(line: Line, args: &Args) -> anyhow::Result<ImportedNote> {
    if let (Some(only), Some(named)) = (args.only_tenant(), &line.tenant_id) {
        anyhow::ensure!(
            only == named,
            "the note is of the tenant {named:?}, not {only:?}; --tenant-from-file allows it"
        );
    }
    for (field, share) in [
        ("importance", line.importance),
        ("confidence", line.confidence),
    ] {
        let checked = share.map_or(Ok(()), |share| check_zero_to_one(field, share));
        checked.map_err(anyhow::Error::msg)?;
    }
    if let Some(source) = &line.source_ref {
        anyhow::ensure!(source.is_object(), "source_ref is no object");
        let cuts = source.get("cuts").map(Value::to_string);
        let checked = cuts.map(|cuts| chunk::cuts(&cuts, &line.text));
        checked.transpose().map_err(anyhow::Error::msg)?;
    }
    let by_id = line.note_id.is_some();
    let identity = |of_line: Option<String>, of_args: &Option<String>, default: &str| {
        let field = Field::or(of_line.or_else(|| of_args.clone()), default.to_owned());
        Field {
            is_named: field.is_named && by_id,
            ..field
        }
    };
    let tenant_id = identity(line.tenant_id, &args.tenant, DEFAULT_TENANT);
    value::tenant(&tenant_id.value).map_err(anyhow::Error::msg)?;
    let project_id = identity(line.project_id, &args.project, "default");
    let agent_id = identity(line.agent_id, &args.agent, "import");
    let scope = identity(line.scope, &args.scope, "shared");
    let kind = Field::or(line.kind.or_else(|| args.kind.clone()), "note".to_owned());
    let key = Field {
        is_named: line.key.is_some() && by_id,
        value: line.key.flatten(),
    };
    let note_id = match (line.note_id, &key.value) {
        (Some(id), _) => id,
        (None, Some(key)) => {
            let labels = [&tenant_id, &project_id, &agent_id, &scope].map(|l| l.value.as_str());
            id_of(labels, key)
        }
        (None, None) => anyhow::bail!("the note has neither a key nor a note_id"),
    };
    let note = ImportedNote {
        note_id,
        is_keyed: !by_id,
        text: line.text,
        tenant_id,
        project_id,
        agent_id,
        scope,
        kind,
        key,
        importance: Field::or(line.importance, 0.5),
        confidence: Field::or(line.confidence, 1.0),
        expires_at: Field::or(line.expires_at, None),
        source_ref: Field::or(line.source_ref, json!({})),
        title: Field::or(line.title, None),
        metadata: Field::or(line.metadata.map(Value::Object), json!({})),
        origin: None,
    };
    check(&note).map_err(anyhow::Error::msg)?;
    Ok(note)
}

/// Checks that Postgres and the payload of a point can have the note.
fn check(note: &ImportedNote) -> Result<(), String> {
    let key = note.key.value.as_deref();
    for (field, value) in [
        ("tenant_id", Some(note.tenant_id.value.as_str())),
        ("project_id", Some(&note.project_id.value)),
        ("agent_id", Some(&note.agent_id.value)),
        ("scope", Some(&note.scope.value)),
        ("type", Some(&note.kind.value)),
        ("key", key),
        ("title", note.title.value.as_deref()),
    ] {
        check_label(field, value.unwrap_or_default())?;
    }
    if let Some(key) = key {
        let labels = [
            &note.tenant_id,
            &note.project_id,
            &note.agent_id,
            &note.scope,
        ];
        check_key(key, labels.map(|label| label.value.as_str()))?;
    }
    if let Value::Object(fields) = &note.metadata.value {
        metadata::check(fields)?;
    }
    match note.text.contains('\0') || holds_nul(&note.source_ref.value) {
        true => Err("the note has a NUL character, which Postgres cannot store".into()),
        false => Ok(()),
    }
}

/// The id of a note with `key`: the same key under the same access labels is the same note.
fn id_of([tenant_id, project_id, agent_id, scope]: [&str; 4], key: &str) -> Uuid {
    let name = serde_json::to_vec(&[tenant_id, project_id, agent_id, scope, key]);
    Uuid::new_v5(&KEYS, &name.expect("strings are JSON"))
}
