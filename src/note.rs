//! What a note is, when it is live, and the ids of its chunks.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A row of `memory_notes` as ELF reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// Primary key, chosen by the application.
    pub note_id: Uuid,
    /// The searchable text. May be empty.
    pub text: String,
    /// Bytes of the text in the row. More than `text` has when the text was too long to read.
    pub text_bytes: u64,
    /// What the application calls it, up to 1,000 characters.
    pub title: Option<String>,
    /// `source_ref.cuts` as Postgres writes it: see [`crate::chunk::cuts`].
    pub cuts: Option<String>,
    /// `active` makes a note searchable; any other value takes it out of the index.
    pub status: String,
    /// When the note stops being live; `None` means never.
    pub expires_at: Option<DateTime<Utc>>,
    /// The other values that a search may filter on.
    pub labels: Labels,
}

/// What a search filters on, copied into the payload of every point of a note.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Labels {
    /// Whose note it is; the outermost partition.
    pub tenant_id: String,
    /// A partition within the tenant.
    pub project_id: String,
    /// The agent that wrote it.
    pub agent_id: String,
    /// The circle of readers that may see it, in the application's words.
    pub scope: String,
    /// What kind of note it is, in the application's words.
    pub kind: String,
    /// The application's own name for the note.
    pub key: Option<String>,
    /// The source whose row the note follows.
    pub source: Option<String>,
    /// 0 to 1, the application's judgement.
    pub importance: f32,
    /// 0 to 1, the application's judgement.
    pub confidence: f32,
    /// Last change, by the application's clock.
    pub updated_at: DateTime<Utc>,
    /// The declared fields of `metadata` that have a value of their type.
    pub fields: Fields,
}

/// Fields of `metadata` by name.
pub type Fields = serde_json::Map<String, Value>;

/// The fields of a JSON object from Postgres, in the form in which both engines give them back: a number beyond
/// 64 bits with a sign is a double.
pub fn fields(object: Option<Value>) -> Fields {
    let Some(Value::Object(mut fields)) = object else {
        return Fields::new();
    };
    for value in fields.values_mut() {
        if let Some(large) = value.as_u64().filter(|n| i64::try_from(*n).is_err()) {
            *value = (large as f64).into();
        }
    }
    fields
}

impl Labels {
    /// The hash of the labels that decide which searches find a note.
    pub fn access(&self) -> AccessHash {
        let mut hash = Sha256::new();
        for label in [
            &self.tenant_id,
            &self.project_id,
            &self.agent_id,
            &self.scope,
        ] {
            // The length goes first, so that no two lists of labels hash the same bytes.
            hash.update((label.len() as u64).to_be_bytes());
            hash.update(label.as_bytes());
        }
        AccessHash(hash.finalize().into())
    }
}

/// SHA-256 of a note's access labels: tenant, project, agent and scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessHash(pub [u8; 32]);

impl Note {
    /// Whether a search may find the note at `now`.
    pub fn is_live(&self, now: DateTime<Utc>) -> bool {
        self.status == "active" && self.expires_at.is_none_or(|at| at > now)
    }
}

/// Most cuts that an application may give a note. The worker has their chunks in memory, each with its vector.
pub const MAX_CUTS: usize = 100_000;

/// Most bytes of `source_ref.cuts` as Postgres writes it: ten digits, a comma and a space each.
pub const MAX_CUTS_BYTES: usize = 12 * MAX_CUTS;

/// SHA-256 of a text: the key under which its vector is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TextHash(pub [u8; 32]);

impl TextHash {
    /// The hash of the exact bytes of `text`.
    pub fn of(text: &str) -> Self {
        Self::of_both("", text)
    }

    /// The hash of the exact bytes of `prefix` and `text`, one after the other.
    pub fn of_both(prefix: &str, text: &str) -> Self {
        let digest = Sha256::new().chain_update(prefix).chain_update(text);
        Self(digest.finalize().into())
    }
}

/// The id of a chunk, and of its point: the same note and index give the same
/// id every time, so that writing a chunk again replaces it (UUIDv5, RFC 9562).
pub fn chunk_id(note_id: Uuid, chunk_index: u32) -> Uuid {
    Uuid::new_v5(&note_id, &chunk_index.to_be_bytes())
}

/// Of a field of JSON that may be left out: `Some(None)` for `null`.
pub fn present<'d, D: Deserializer<'d>, T: Deserialize<'d>>(
    value: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}

/// Checks a value that is 0 to 1, such as an importance.
pub fn check_zero_to_one(field: &str, value: f32) -> Result<(), String> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(format!("{field} must be 0 to 1, not {value}")),
    }
}

/// Most bytes of a label, a key or a title: the payload of every point has the labels.
const MAX_LABEL: usize = 1000;

/// Most bytes of a key and the labels around it, together: Postgres has an index on them.
const MAX_NAME: usize = 2500;

/// Checks that the payload of a point can have a label, a key or a title.
pub fn check_label(field: &str, value: &str) -> Result<(), String> {
    let bytes = value.len();
    if bytes > MAX_LABEL {
        return Err(format!(
            "{field} has {bytes} bytes; at most {MAX_LABEL} are possible"
        ));
    }
    match value.contains('\0') {
        true => Err(format!("{field} has a NUL character")),
        false => Ok(()),
    }
}

/// Checks that Postgres can find a note by its key and the four labels in which the key is unique.
pub fn check_key(key: &str, labels: [&str; 4]) -> Result<(), String> {
    let bytes = key.len() + labels.map(str::len).iter().sum::<usize>();
    match bytes {
        ..=MAX_NAME => Ok(()),
        _ => Err(format!(
            "key, scope, tenant, project_id and agent_id have {bytes} bytes together; at most {MAX_NAME} \
             are possible for a note with a key"
        )),
    }
}

/// Whether a string of `value` has a NUL character, which Postgres does not store.
pub fn holds_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(holds_nul),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| name.contains('\0') || holds_nul(value)),
        _ => false,
    }
}
