//! Upsert requests as the bytes that the server reads, written straight from the points.
//!
//! With the client's types, a point would be some forty allocations, all of them cloned for a second
//! try. That took longer than everything else that ELF does for a point of a rebuild.
//! Tests compare these bytes with what the client's types say.

use std::iter;

use prost::Message;
use qdrant_client::qdrant::{
    Condition, Filter, Range, UpdateMode, UpsertPoints, UpsertPointsBuilder,
};

use super::batch::Batch;
use super::bm25::Bm25Document;
use crate::index::payload::{Field, REVISION};
use crate::index::{BM25, DENSE, Point};

/// Numbers of the fields that are written here, from `points.proto` of qdrant 1.18.
mod number {
    pub(super) const POINT_OF_REQUEST: u64 = 3;

    pub(super) const ID: u64 = 1;
    pub(super) const PAYLOAD: u64 = 3;
    pub(super) const VECTORS: u64 = 4;

    pub(super) const UUID_OF_ID: u64 = 2;
    pub(super) const NAMED_OF_VECTORS: u64 = 2;
    pub(super) const VECTOR_OF_NAMED: u64 = 1;

    /// Of an entry of any map.
    pub(super) const KEY: u64 = 1;
    pub(super) const VALUE: u64 = 2;

    pub(super) const DENSE: u64 = 101;
    pub(super) const DOCUMENT: u64 = 104;
    pub(super) const NUMBERS_OF_DENSE: u64 = 1;
    pub(super) const TEXT_OF_DOCUMENT: u64 = 1;

    pub(super) const DOUBLE: u64 = 2;
    pub(super) const INTEGER: u64 = 3;
    pub(super) const STRING: u64 = 4;
}

/// A request that writes the points of `batch`.
pub(super) fn request(
    collection: &str,
    batch: &Batch<'_>,
    bm25: &Bm25Document,
    timeout_secs: u64,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(batch.bytes);
    let without_points = without_points(collection, batch.revision, timeout_secs);
    without_points
        .encode(&mut bytes)
        .expect("a vector has room");
    // Fields of a message may come in any order, so the points can come last.
    for point in &batch.points {
        put_point(&mut bytes, point, bm25);
    }
    bytes
}

fn without_points(collection: &str, revision: Option<i64>, timeout_secs: u64) -> UpsertPoints {
    let request = UpsertPointsBuilder::new(collection, Vec::new())
        .wait(true)
        .timeout(timeout_secs);
    match revision {
        None => request.update_mode(UpdateMode::InsertOnly).build(),
        Some(revision) => {
            let not_newer = Range {
                lte: Some(revision as f64),
                ..Range::default()
            };
            request
                .update_filter(Filter::must([Condition::range(REVISION, not_newer)]))
                .build()
        }
    }
}

fn put_point(out: &mut Vec<u8>, point: &Point, bm25: &Bm25Document) {
    let id = point.payload.chunk_id.to_string();
    let text = bm25.prepared(&point.text);
    let payload: Vec<(&str, Field<'_>)> = point
        .payload
        .fields()
        .filter(|(_, field)| field.is_set())
        .collect();

    let id_len = field_len(number::UUID_OF_ID, id.len());
    let payload_len: usize = payload
        .iter()
        .map(|(name, field)| field_len(number::PAYLOAD, entry_len(name, value_len(field))))
        .sum();
    let document_len = field_len(number::TEXT_OF_DOCUMENT, text.len()) + bm25.rest.len();
    let bm25_len = field_len(number::DOCUMENT, document_len);
    let dense = point.vector.as_deref().map(|numbers| {
        let numbers_len = size_of_val(numbers);
        let dense_len = field_len(number::NUMBERS_OF_DENSE, numbers_len);
        (numbers, numbers_len, dense_len)
    });
    let vector_lens = iter::once((BM25, bm25_len))
        .chain(dense.map(|(_, _, dense_len)| (DENSE, field_len(number::DENSE, dense_len))));
    let named_len: usize = vector_lens
        .map(|(name, len)| field_len(number::VECTOR_OF_NAMED, entry_len(name, len)))
        .sum();
    let vectors_len = field_len(number::NAMED_OF_VECTORS, named_len);
    let point_len =
        field_len(number::ID, id_len) + payload_len + field_len(number::VECTORS, vectors_len);

    begin(out, number::POINT_OF_REQUEST, point_len);
    begin(out, number::ID, id_len);
    put(out, number::UUID_OF_ID, id.as_bytes());
    for (name, field) in &payload {
        begin_entry(out, number::PAYLOAD, name, value_len(field));
        put_value(out, field);
    }
    begin(out, number::VECTORS, vectors_len);
    begin(out, number::NAMED_OF_VECTORS, named_len);
    begin_entry(out, number::VECTOR_OF_NAMED, BM25, bm25_len);
    begin(out, number::DOCUMENT, document_len);
    put(out, number::TEXT_OF_DOCUMENT, text.as_bytes());
    out.extend_from_slice(&bm25.rest);
    if let Some((numbers, numbers_len, dense_len)) = dense {
        begin_entry(
            out,
            number::VECTOR_OF_NAMED,
            DENSE,
            field_len(number::DENSE, dense_len),
        );
        begin(out, number::DENSE, dense_len);
        begin(out, number::NUMBERS_OF_DENSE, numbers_len);
        put_numbers(out, numbers);
    }
}

fn put_numbers(out: &mut Vec<u8>, numbers: &[f32]) {
    let at = out.len();
    out.resize(at + size_of_val(numbers), 0);
    // The compiler makes one copy of this, but byte after byte of an `extend`.
    for (bytes, number) in out[at..].chunks_exact_mut(size_of::<f32>()).zip(numbers) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
}

fn value_len(field: &Field<'_>) -> usize {
    match field {
        Field::Text(text) => field_len(number::STRING, text.len()),
        Field::Integer(integer) => 1 + varint_len(*integer as u64),
        Field::Decimal(_) => 1 + size_of::<f64>(),
        Field::Unset => 0,
    }
}

fn put_value(out: &mut Vec<u8>, field: &Field<'_>) {
    match field {
        Field::Text(text) => put(out, number::STRING, text.as_bytes()),
        Field::Integer(integer) => {
            put_varint(out, key(number::INTEGER, WireType::Varint));
            put_varint(out, *integer as u64);
        }
        Field::Decimal(decimal) => {
            put_varint(out, key(number::DOUBLE, WireType::Fixed64));
            out.extend_from_slice(&decimal.to_le_bytes());
        }
        Field::Unset => {}
    }
}

// Protobuf (protobuf.dev/programming-guides/encoding).

#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    Fixed64 = 1,
    /// A length and so many bytes.
    Bytes = 2,
}

fn key(number: u64, wire_type: WireType) -> u64 {
    number << 3 | wire_type as u64
}

/// The length of a field whose content has `len` bytes.
fn field_len(number: u64, len: usize) -> usize {
    varint_len(key(number, WireType::Bytes)) + varint_len(len as u64) + len
}

/// The length of the entry of a map whose value is a message of `value_len` bytes.
fn entry_len(name: &str, value_len: usize) -> usize {
    field_len(number::KEY, name.len()) + field_len(number::VALUE, value_len)
}

/// Begins a field whose content has `len` bytes. The content follows.
fn begin(out: &mut Vec<u8>, number: u64, len: usize) {
    put_varint(out, key(number, WireType::Bytes));
    put_varint(out, len as u64);
}

/// Begins an entry of the map in field `number`. The value follows, a message of `value_len` bytes.
fn begin_entry(out: &mut Vec<u8>, number: u64, name: &str, value_len: usize) {
    begin(out, number, entry_len(name, value_len));
    put(out, number::KEY, name.as_bytes());
    begin(out, number::VALUE, value_len);
}

fn put(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    begin(out, number, content.len());
    out.extend_from_slice(content);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use std::collections::HashMap;

    use chrono::DateTime;
    use proptest::prelude::*;
    use qdrant_client::qdrant::{NamedVectors, PointStruct, Value, Vector};
    use uuid::Uuid;

    use super::super::json::to_value;
    use super::*;
    use crate::config::Bm25Options;
    use crate::index::{NotePayload, Payload};
    use crate::note::Labels;

    /// The point as the client's types say it.
    fn point_struct(point: &Point, bm25: &Bm25Document) -> PointStruct {
        let mut vectors = NamedVectors::default().add_vector(BM25, bm25.of(&point.text));
        if let Some(dense) = &point.vector {
            vectors = vectors.add_vector(DENSE, Vector::new_dense(dense.clone()));
        }
        let payload: HashMap<String, Value> = point
            .payload
            .to_json()
            .into_iter()
            .map(|(key, json)| (key, to_value(json)))
            .collect();
        PointStruct::new(point.payload.chunk_id.to_string(), vectors, payload)
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            ".{0,12}",
            // Lengths of one, two and three bytes.
            (100..300usize).prop_map(|n| "é".repeat(n)),
            (8_100..8_300usize).prop_map(|n| "x".repeat(n)),
        ]
    }

    prop_compose! {
        fn labels()(
            words in prop::array::uniform5(text()),
            key in prop::option::of(text()),
            importance in any::<f32>(),
            confidence in 0.0..1.0f32,
            // The years that a point can have.
            updated_at in -62_135_596_800..253_402_300_799i64,
            nanos in 0..1_000_000_000u32,
        ) -> Labels {
            let [tenant_id, project_id, agent_id, scope, kind] = words;
            let updated_at = DateTime::from_timestamp(updated_at, nanos).unwrap();
            Labels { tenant_id, project_id, agent_id, scope, kind, key, importance, confidence, updated_at }
        }
    }

    prop_compose! {
        fn point()(
            labels in labels(),
            ids in any::<[u128; 2]>(),
            numbers in any::<(u32, u32, u32, i64)>(),
            expires in any::<bool>(),
            vector in prop::option::of(prop::collection::vec(-1.0..1.0f32, 0..40)),
            text in text(),
        ) -> Point {
            let note = NotePayload {
                note_id: Uuid::from_u128(ids[0]),
                status: "active".into(),
                expires_at: expires.then_some(labels.updated_at),
                labels,
                embedding_version: "v".into(),
                revision: numbers.3,
            };
            let payload = Payload {
                chunk_id: Uuid::from_u128(ids[1]),
                chunk_index: numbers.0,
                start_offset: numbers.1.into(),
                end_offset: numbers.2.into(),
                note,
            };
            Point { payload, vector, text }
        }
    }

    proptest! {
        #[test]
        fn the_bytes_say_what_the_types_of_the_client_say(
            points in prop::collection::vec(point(), 0..4),
            revision in prop::option::of(any::<i64>()),
        ) {
            let bm25 = Bm25Document::new(&Bm25Options::default());
            let batch = Batch { revision, points: points.iter().collect(), bytes: 0 };
            let bytes = request("notes", &batch, &bm25, 9);
            let said = UpsertPoints {
                points: points.iter().map(|point| point_struct(point, &bm25)).collect(),
                ..without_points("notes", revision, 9)
            };
            prop_assert_eq!(UpsertPoints::decode(bytes.as_slice()).unwrap(), said);
        }
    }
}
