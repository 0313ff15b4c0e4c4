//! Objects of the application as answers show them.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgTypeInfo, PgValueRef};
use sqlx::types::Json;
use sqlx::{Decode, Postgres, Type};

/// A `jsonb` that an application wrote. Postgres holds numbers and depths that JSON libraries do not: an object with
/// one is shown empty, because it must not cost the answer the other notes.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Shown(pub Value);

impl Shown {
    /// Whether it has no field.
    pub fn is_empty(&self) -> bool {
        self.0.as_object().is_none_or(serde_json::Map::is_empty)
    }
}

impl Type<Postgres> for Shown {
    fn type_info() -> PgTypeInfo {
        <Json<Box<RawValue>> as Type<Postgres>>::type_info()
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        <Json<Box<RawValue>> as Type<Postgres>>::compatible(ty)
    }
}

impl<'r> Decode<'r, Postgres> for Shown {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let Json(raw) = <Json<Box<RawValue>> as Decode<Postgres>>::decode(value)?;
        Ok(Self(
            serde_json::from_str(raw.get()).unwrap_or_else(|_| json!({})),
        ))
    }
}
