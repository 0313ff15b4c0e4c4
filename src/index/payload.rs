//! What both engines share: the JSON of a point's payload, and the fields that are
//! indexed.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{NotePayload, Payload};
use crate::metadata::FieldType;
use crate::note::Fields;

/// The path of a declared field in the payload, and how it is indexed.
pub(super) fn declared_index(name: &str, kind: FieldType) -> (String, FieldIndex) {
    let index = match kind {
        FieldType::Keyword | FieldType::Keywords => FieldIndex::Keyword,
        FieldType::Integer => FieldIndex::Integer,
        FieldType::Number => FieldIndex::Float,
        FieldType::Boolean => FieldIndex::Boolean,
        FieldType::Datetime => FieldIndex::Datetime,
    };
    (format!("{METADATA}.{name}"), index)
}

/// How a payload field is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldIndex {
    Uuid,
    /// A keyword by which the engine lays out its storage: queries nearly
    /// always name one tenant.
    Tenant,
    Keyword,
    Integer,
    Datetime,
    Float,
    Boolean,
}

/// The lease token under which a point was written.
pub(super) const REVISION: &str = "revision";
pub(super) const TENANT: &str = "tenant_id";

/// The declared fields of `metadata`, each under its name.
pub(super) const METADATA: &str = "metadata";

/// How much a note matters, as its application says.
pub(super) const IMPORTANCE: &str = "importance";

/// The indexed fields. Indexes are made before the first point: HNSW graphs
/// built earlier would not support the filters.
pub(super) const FIELD_INDEXES: [(&str, FieldIndex); 13] = [
    ("note_id", FieldIndex::Uuid),
    (TENANT, FieldIndex::Tenant),
    ("project_id", FieldIndex::Keyword),
    ("agent_id", FieldIndex::Keyword),
    ("scope", FieldIndex::Keyword),
    ("type", FieldIndex::Keyword),
    ("key", FieldIndex::Keyword),
    ("source", FieldIndex::Keyword),
    ("status", FieldIndex::Keyword),
    (REVISION, FieldIndex::Integer),
    ("updated_at", FieldIndex::Datetime),
    ("expires_at", FieldIndex::Datetime),
    (IMPORTANCE, FieldIndex::Float),
];

/// The first id of the page after `after`; `None` when no id can follow. The
/// engines order numbers before UUIDs: from the lowest UUID on, there are only
/// UUIDs.
pub(super) fn page_start(after: Option<Uuid>) -> Option<Uuid> {
    match after {
        None => Some(Uuid::nil()),
        Some(after) => after.as_u128().checked_add(1).map(Uuid::from_u128),
    }
}

/// What to do about vectors of another length than the collection's.
pub(super) const OTHER_MODEL: &str = "the collection holds vectors of another model: set \
     providers.embedding back to that one, or move to the new one with `elf reindex`";

/// Why bulk loading is refused.
pub(super) fn alias_to_load(alias: &str) -> String {
    format!("{alias:?} is an alias: bulk loading needs the name of a collection")
}

/// The value of a payload's field.
enum Field<'a> {
    Text(Cow<'a, str>),
    Integer(i64),
    Decimal(f64),
    Object(&'a Fields),
    /// It has no value.
    Unset,
}

impl Payload {
    /// The payload exactly as an engine stores and returns it: times as RFC 3339
    /// strings, fields without a value left out.
    pub fn to_json(&self) -> Map<String, Value> {
        let set = self.fields().filter(|(_, field)| field.is_set());
        set.map(|(name, field)| (name.into(), field.into()))
            .collect()
    }

    /// Every field that a payload can have.
    fn fields(&self) -> impl Iterator<Item = (&'static str, Field<'_>)> {
        let chunk = [
            ("chunk_id", Field::id(self.chunk_id)),
            ("chunk_index", Field::Integer(self.chunk_index.into())),
            ("start_offset", Field::Integer(self.start_offset as i64)),
            ("end_offset", Field::Integer(self.end_offset as i64)),
        ];
        chunk.into_iter().chain(self.note.fields())
    }
}

impl NotePayload {
    /// Its fields as an engine merges them into a payload: null removes a field.
    pub(super) fn to_merge(&self) -> Map<String, Value> {
        self.fields()
            .into_iter()
            .map(|(name, field)| (name.into(), field.into()))
            .collect()
    }

    fn fields(&self) -> [(&'static str, Field<'_>); 16] {
        let labels = &self.labels;
        [
            ("note_id", Field::id(self.note_id)),
            ("status", Field::text(&self.status)),
            (
                "expires_at",
                self.expires_at.map_or(Field::Unset, Field::time),
            ),
            (TENANT, Field::text(&labels.tenant_id)),
            ("project_id", Field::text(&labels.project_id)),
            ("agent_id", Field::text(&labels.agent_id)),
            ("scope", Field::text(&labels.scope)),
            ("type", Field::text(&labels.kind)),
            ("key", Field::text_if(labels.key.as_deref())),
            ("source", Field::text_if(labels.source.as_deref())),
            (IMPORTANCE, Field::score(labels.importance)),
            ("confidence", Field::score(labels.confidence)),
            ("updated_at", Field::time(labels.updated_at)),
            (METADATA, Field::object_if(&labels.fields)),
            ("embedding_version", Field::text(&self.embedding_version)),
            (REVISION, Field::Integer(self.revision)),
        ]
    }
}

impl<'a> Field<'a> {
    fn text(text: &'a str) -> Self {
        Self::Text(text.into())
    }

    fn text_if(text: Option<&'a str>) -> Self {
        text.map_or(Self::Unset, Self::text)
    }

    fn object_if(fields: &'a Fields) -> Self {
        match fields.is_empty() {
            true => Self::Unset,
            false => Self::Object(fields),
        }
    }

    fn id(id: Uuid) -> Self {
        Self::Text(id.to_string().into())
    }

    fn time(time: DateTime<Utc>) -> Self {
        let text = time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
        Self::Text(text.into())
    }

    fn score(score: f32) -> Self {
        match score.is_finite() {
            true => Self::Decimal(short_decimal(score)),
            false => Self::Unset,
        }
    }

    fn is_set(&self) -> bool {
        !matches!(self, Self::Unset)
    }
}

impl From<Field<'_>> for Value {
    fn from(field: Field<'_>) -> Self {
        match field {
            Field::Text(text) => text.into(),
            Field::Integer(integer) => integer.into(),
            Field::Decimal(decimal) => decimal.into(),
            Field::Object(fields) => fields.clone().into(),
            Field::Unset => Self::Null,
        }
    }
}

/// The double with the same shortest decimal as `score`: 0.7 as 0.7, not as the double
/// 0.699999988079071 that widening gives. So a filter `>= 0.7` matches it, and short decimals survive
/// any JSON parser.
pub(super) fn short_decimal(score: f32) -> f64 {
    score
        .to_string()
        .parse()
        .expect("Rust parses what it printed")
}

/// A payload for tests, with two fields unset and one score that is not a number.
#[cfg(test)]
pub(super) fn test_payload() -> Payload {
    let at = chrono::DateTime::from_timestamp_millis(1_709_209_800_250).expect("in range");
    Payload {
        chunk_id: Uuid::from_u128(2),
        chunk_index: 3,
        start_offset: 4,
        end_offset: 5,
        note: NotePayload {
            note_id: Uuid::from_u128(1),
            status: "active".into(),
            expires_at: None,
            labels: crate::note::Labels {
                tenant_id: "t".into(),
                project_id: "p".into(),
                agent_id: "a".into(),
                scope: "s".into(),
                kind: "fact".into(),
                key: None,
                source: None,
                importance: 0.7,
                confidence: f32::NAN,
                updated_at: at,
                fields: Fields::new(),
            },
            embedding_version: "v".into(),
            revision: 9,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The payload that applications may filter on: every field by name.
    #[test]
    fn a_payload_has_twenty_fields() {
        let mut payload = test_payload();
        payload.note.expires_at = Some(payload.note.labels.updated_at);
        payload.note.labels.key = Some("k".into());
        payload.note.labels.confidence = 0.25;
        payload.note.labels.source = Some("tickets".into());
        let fields = serde_json::json!({"lang": "de", "tags": ["bug", "ui"]});
        payload.note.labels.fields = crate::note::fields(Some(fields));
        let json = serde_json::json!({
            "chunk_id": "00000000-0000-0000-0000-000000000002",
            "chunk_index": 3,
            "start_offset": 4,
            "end_offset": 5,
            "note_id": "00000000-0000-0000-0000-000000000001",
            "status": "active",
            "expires_at": "2024-02-29T12:30:00.250Z",
            "tenant_id": "t",
            "project_id": "p",
            "agent_id": "a",
            "scope": "s",
            "type": "fact",
            "key": "k",
            "source": "tickets",
            "metadata": {"lang": "de", "tags": ["bug", "ui"]},
            "importance": 0.7,
            "confidence": 0.25,
            "updated_at": "2024-02-29T12:30:00.250Z",
            "embedding_version": "v",
            "revision": 9,
        });
        assert_eq!(Value::Object(payload.to_json()), json);
    }

    #[test]
    fn fields_without_a_value_are_left_out() {
        let json = test_payload().to_json();
        for field in ["key", "expires_at", "confidence", "metadata"] {
            assert!(!json.contains_key(field), "{field} is in {json:?}");
        }
        assert_eq!(json["type"], "fact");
        assert_eq!(json["revision"], 9);
    }

    #[test]
    fn a_merge_has_every_field_of_the_note_and_none_of_the_chunk() {
        let payload = test_payload();
        let merge = payload.note.to_merge();
        for field in ["key", "expires_at", "confidence"] {
            assert!(merge[field].is_null(), "{field} is kept by {merge:?}");
        }
        let whole = payload.to_json();
        let of_chunk: Vec<&String> = whole
            .keys()
            .filter(|key| !merge.contains_key(*key))
            .collect();
        assert_eq!(of_chunk.len(), 4, "{of_chunk:?}");
    }

    #[test]
    fn a_page_starts_at_the_next_id_there_can_be() {
        let id = Uuid::from_u128;
        assert_eq!(page_start(None), Some(id(0)));
        assert_eq!(page_start(Some(id(0))), Some(id(1)));
        assert_eq!(page_start(Some(Uuid::max())), None);
    }

    #[test]
    fn times_are_rfc_3339_and_scores_short_decimals() {
        let json = test_payload().to_json();
        assert_eq!(json["updated_at"], "2024-02-29T12:30:00.250Z");
        assert_eq!(json["importance"].to_string(), "0.7");
    }
}
