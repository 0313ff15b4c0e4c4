//! A note that an agent changes or deletes, by its id or by its key.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::super::Shared;
use super::super::auth::Caller;
use super::super::error::ApiError;
use super::super::keyed::Key;
use super::super::searches::object;
use crate::store::NoteChange;

/// Which note to change, and what.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateRequest {
    /// The id of the note, as `search` and `add_note` return it. Without it, `key` says which note.
    note_id: Option<Uuid>,
    /// The key of the note, if its id is not known.
    key: Option<String>,
    /// The project of the note that has the key.
    project_id: Option<String>,
    /// The agent of the note that has the key.
    agent_id: Option<String>,
    /// The scope of the note that has the key.
    scope: Option<String>,
    /// The new text, whole: it replaces the old one.
    text: Option<String>,
    /// The new title.
    title: Option<String>,
    /// The new type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// The new importance, 0 to 1.
    importance: Option<f32>,
    /// `active`, or another word such as `archived`, which takes the note out of searches.
    status: Option<String>,
    /// When the note ends, as in RFC 3339.
    expires_at: Option<DateTime<Utc>>,
    /// The new fields of the application: they replace all of the old ones.
    #[serde(default, deserialize_with = "given_object")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

fn given_object<'d, D: serde::Deserializer<'d>>(
    value: D,
) -> Result<Option<Map<String, Value>>, D::Error> {
    object(value).map(Some)
}

/// Which note to delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    /// The id of the note, as `search` and `add_note` return it. Without it, `key` says which note.
    note_id: Option<Uuid>,
    /// The key of the note, if its id is not known.
    key: Option<String>,
    /// The project of the note that has the key.
    project_id: Option<String>,
    /// The agent of the note that has the key.
    agent_id: Option<String>,
    /// The scope of the note that has the key.
    scope: Option<String>,
}

impl UpdateRequest {
    /// The note, and what to change of it.
    pub async fn read(
        self,
        shared: &Shared,
        caller: &Caller,
    ) -> Result<(Uuid, NoteChange), ApiError> {
        let name = DeleteRequest {
            note_id: self.note_id,
            key: self.key,
            project_id: self.project_id,
            agent_id: self.agent_id,
            scope: self.scope,
        };
        let change = NoteChange {
            text: self.text,
            kind: self.kind,
            importance: self.importance,
            status: self.status,
            title: self.title.map(Some),
            expires_at: self.expires_at.map(Some),
            metadata: self.metadata,
            ..NoteChange::default()
        };
        Ok((name.note(shared, caller).await?, change))
    }
}

impl DeleteRequest {
    /// The note that it names.
    pub async fn note(self, shared: &Shared, caller: &Caller) -> Result<Uuid, ApiError> {
        match (self.note_id, self.key) {
            (Some(id), _) => Ok(id),
            (None, Some(key)) => {
                let key = Key {
                    key,
                    project_id: self.project_id,
                    agent_id: self.agent_id,
                    scope: self.scope,
                    wait: None,
                };
                key.note(shared, caller).await
            }
            (None, None) => Err(ApiError::invalid(
                "note_id",
                "send note_id or key: which note?",
            )),
        }
    }
}
