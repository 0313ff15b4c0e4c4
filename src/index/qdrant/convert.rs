//! ELF's types to the server's and back.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use qdrant_client::qdrant::r#match::MatchValue;
use qdrant_client::qdrant::payload_index_params::IndexParams;
use qdrant_client::qdrant::point_id::PointIdOptions;
use qdrant_client::qdrant::points_update_operation::{Operation, SetPayload};
use qdrant_client::qdrant::vectors_config::Config as VectorsConfigKind;
use qdrant_client::qdrant::{
    self, BinaryQuantizationBuilder, CollectionInfo, Condition, CreateCollection,
    CreateCollectionBuilder, DatetimeRange, DeletePointVectors, DeletePointVectorsBuilder,
    Distance, FieldType, GetPoints, GetPointsBuilder, HnswConfigDiff, IdfParams,
    KeywordIndexParamsBuilder, Modifier, PayloadSchemaType, PointId, PointsUpdateOperation,
    QueryPoints, QueryPointsBuilder, Range, RepeatedIntegers, RepeatedStrings, RetrievedPoint,
    ScalarQuantizationBuilder, ScoredPoint, ScrollPoints, ScrollPointsBuilder, SearchParams,
    SparseVectorParamsBuilder, SparseVectorsConfigBuilder, Timestamp, UpdateBatchPoints,
    UpdateBatchPointsBuilder, Value, VectorInput, VectorParamsBuilder, VectorsConfigBuilder,
    VectorsSelector, vector_input,
};
use serde_json::{Map, Value as Json, json};
use uuid::Uuid;

use super::bm25::Bm25Document;
use super::json::{to_json, to_value};
use crate::config::{self, Datatype, Hnsw, Quantization};
use crate::index::candidates::Scored;
use crate::index::payload::{FieldIndex, IMPORTANCE, REVISION, declared_index, short_decimal};
use crate::index::{BM25, CollectionSpec, DENSE, Filter, Query, Relabel, StoredPoint};
use crate::metadata::{self, FieldType as FieldKind};

/// The value of `made_by` in a collection's metadata.
const ELF: &str = "elf";

/// A request to make `name`; the payload indexes are separate requests.
pub(super) fn create_collection(
    name: &str,
    spec: &CollectionSpec,
    settings: &config::Qdrant,
    timeout_secs: u64,
) -> CreateCollection {
    let mut vectors = VectorsConfigBuilder::default();
    let datatype = match settings.datatype {
        Datatype::Float32 => qdrant::Datatype::Float32,
        Datatype::Float16 => qdrant::Datatype::Float16,
    };
    let dense = VectorParamsBuilder::new(spec.dim as u64, Distance::Cosine)
        .on_disk(settings.on_disk)
        .datatype(datatype);
    let dense = match settings.hnsw {
        Hnsw {
            m: None,
            ef_construct: None,
        } => dense,
        Hnsw { m, ef_construct } => dense.hnsw_config(HnswConfigDiff {
            m: m.map(u64::from),
            ef_construct: ef_construct.map(u64::from),
            ..HnswConfigDiff::default()
        }),
    };
    vectors.add_named_vector_params(DENSE, dense);
    let mut sparse = SparseVectorsConfigBuilder::default();
    sparse.add_named_vector_params(
        BM25,
        SparseVectorParamsBuilder::default().modifier(Modifier::Idf),
    );
    let metadata: HashMap<String, Value> = [
        ("made_by", json!(ELF)),
        ("embedding_version", json!(spec.embedding_version)),
        ("bm25", json!(spec.bm25)),
    ]
    .into_iter()
    .map(|(key, json)| (key.to_owned(), to_value(json)))
    .collect();

    let mut request = CreateCollectionBuilder::new(name)
        .vectors_config(vectors)
        .sparse_vectors_config(sparse)
        .timeout(timeout_secs);
    if let Some(shards) = settings.shard_number {
        request = request.shard_number(shards);
    }
    if let Some(copies) = settings.replication_factor {
        request = request.replication_factor(copies);
    }
    if let Some(copies) = settings.write_consistency_factor {
        request = request.write_consistency_factor(copies);
    }
    request = match settings.quantization {
        Quantization::None => request,
        // 0.99 cuts off the outliers, which would cost all other values precision.
        Quantization::Scalar => request.quantization_config(
            ScalarQuantizationBuilder::default()
                .quantile(0.99)
                .always_ram(true),
        ),
        Quantization::Binary => request.quantization_config(BinaryQuantizationBuilder::new(true)),
    };
    let mut request = request.build();
    request.metadata = metadata;
    request
}

/// The type and parameters of a payload index.
pub(super) fn field_index(index: FieldIndex) -> (FieldType, Option<IndexParams>) {
    match index {
        FieldIndex::Uuid => (FieldType::Uuid, None),
        FieldIndex::Keyword => (FieldType::Keyword, None),
        FieldIndex::Integer => (FieldType::Integer, None),
        FieldIndex::Datetime => (FieldType::Datetime, None),
        FieldIndex::Float => (FieldType::Float, None),
        FieldIndex::Boolean => (FieldType::Bool, None),
        FieldIndex::Tenant => {
            let params = KeywordIndexParamsBuilder::default().is_tenant(true).build();
            (
                FieldType::Keyword,
                Some(IndexParams::KeywordIndexParams(params)),
            )
        }
    }
}

/// The type of an index as the server names it.
pub(super) fn schema_type(index: FieldIndex) -> PayloadSchemaType {
    match index {
        FieldIndex::Uuid => PayloadSchemaType::Uuid,
        FieldIndex::Tenant | FieldIndex::Keyword => PayloadSchemaType::Keyword,
        FieldIndex::Integer => PayloadSchemaType::Integer,
        FieldIndex::Datetime => PayloadSchemaType::Datetime,
        FieldIndex::Float => PayloadSchemaType::Float,
        FieldIndex::Boolean => PayloadSchemaType::Bool,
    }
}

/// The spec of a collection that ELF made; `None` for any other.
pub(super) fn spec(info: &CollectionInfo) -> Option<CollectionSpec> {
    let config = info.config.as_ref()?;
    let text = |key: &str| config.metadata.get(key)?.as_str().cloned();
    if text("made_by")? != ELF {
        return None;
    }
    let params = config.params.as_ref()?;
    params.sparse_vectors_config.as_ref()?.map.get(BM25)?;
    let VectorsConfigKind::ParamsMap(vectors) = params.vectors_config.as_ref()?.config.as_ref()?
    else {
        return None;
    };
    let dense = vectors.map.get(DENSE)?;
    if dense.distance() != Distance::Cosine {
        return None;
    }
    Some(CollectionSpec {
        dim: usize::try_from(dense.size).ok()?,
        bm25: serde_json::from_value(to_json(config.metadata.get("bm25")?.clone())).ok()?,
        embedding_version: text("embedding_version")?,
    })
}

pub(super) fn relabel(collection: &str, notes: &[Relabel], timeout_secs: u64) -> UpdateBatchPoints {
    let operation = |note: &Relabel| {
        let set = SetPayload {
            payload: values(note.to.to_merge()),
            points_selector: Some(filter(&note.filter()).into()),
            ..SetPayload::default()
        };
        PointsUpdateOperation {
            operation: Some(Operation::SetPayload(set)),
        }
    };
    UpdateBatchPointsBuilder::new(collection, notes.iter().map(operation).collect::<Vec<_>>())
        .wait(true)
        .timeout(timeout_secs)
        .build()
}

pub(super) fn values(json: Map<String, Json>) -> HashMap<String, Value> {
    json.into_iter()
        .map(|(key, json)| (key, to_value(json)))
        .collect()
}

fn point_id(id: Uuid) -> PointId {
    PointId {
        point_id_options: Some(PointIdOptions::Uuid(id.to_string())),
    }
}

pub(super) fn chunk_id(id: Option<PointId>) -> Option<Uuid> {
    match id?.point_id_options? {
        PointIdOptions::Uuid(id) => id.parse().ok(),
        // ELF writes no numeric ids, so this point is not a chunk.
        PointIdOptions::Num(_) => None,
    }
}

fn timestamp(time: DateTime<Utc>) -> Timestamp {
    Timestamp {
        seconds: time.timestamp(),
        nanos: time.timestamp_subsec_nanos() as i32,
    }
}

/// What a declared field must be like.
fn meets(name: &str, wanted: &metadata::Condition) -> Vec<Condition> {
    let (field, _) = declared_index(name, wanted.kind);
    let is_empty = Condition::is_empty(&field);
    if !wanted.exists {
        return vec![is_empty];
    }
    let mut must = Vec::new();
    if let Some(any) = &wanted.any {
        let texts = any.iter().filter_map(Json::as_str).map(str::to_owned);
        let either = |conditions: Vec<Condition>| qdrant::Filter::should(conditions).into();
        must.push(match wanted.kind {
            FieldKind::Keyword | FieldKind::Keywords => {
                let strings = texts.collect();
                Condition::matches(&field, MatchValue::Keywords(RepeatedStrings { strings }))
            }
            FieldKind::Integer => {
                let integers = any.iter().filter_map(Json::as_i64).collect();
                let integers = RepeatedIntegers { integers };
                Condition::matches(&field, MatchValue::Integers(integers))
            }
            FieldKind::Boolean => {
                let values = any.iter().filter_map(Json::as_bool);
                either(
                    values
                        .map(|value| Condition::matches(&field, value))
                        .collect(),
                )
            }
            FieldKind::Number | FieldKind::Datetime => {
                let equal = |value| between(&field, wanted.kind, [value, None, value, None]);
                either(any.iter().map(|value| equal(Some(value))).collect())
            }
        });
    }
    if wanted.has_range() {
        let bounds = [&wanted.gte, &wanted.gt, &wanted.lte, &wanted.lt].map(Option::as_ref);
        must.push(between(&field, wanted.kind, bounds));
    }
    if must.is_empty() {
        let has_value = qdrant::Filter::must_not([is_empty]);
        must.push(has_value.into());
    }
    must
}

/// `bounds`: gte, gt, lte, lt.
fn between(field: &str, kind: FieldKind, bounds: [Option<&Json>; 4]) -> Condition {
    if kind == FieldKind::Datetime {
        let time = |bound: Option<&Json>| metadata::time(bound?.as_str()?).map(timestamp);
        let [gte, gt, lte, lt] = bounds.map(time);
        return Condition::datetime_range(field, DatetimeRange { lt, gt, gte, lte });
    }
    let [gte, gt, lte, lt] = bounds.map(|bound| bound?.as_f64());
    Condition::range(field, Range { lt, gt, gte, lte })
}

/// Every field of the filter must match; an empty one matches every point.
pub(super) fn filter(filter: &Filter) -> qdrant::Filter {
    let mut must = Vec::new();
    if let Some(chunks) = &filter.chunk_ids {
        must.push(Condition::has_id(chunks.iter().copied().map(point_id)));
    }
    if let Some(notes) = &filter.note_ids {
        let strings = notes.iter().map(Uuid::to_string).collect();
        must.push(Condition::matches(
            "note_id",
            MatchValue::Keywords(RepeatedStrings { strings }),
        ));
    }
    if filter.revision_below.is_some() || filter.revision_above.is_some() {
        must.push(Condition::range(
            REVISION,
            Range {
                lt: filter.revision_below.map(|revision| revision as f64),
                gt: filter.revision_above.map(|revision| revision as f64),
                ..Range::default()
            },
        ));
    }
    for (field, keyword) in &filter.keywords {
        // Explicit, because the client turns a bare string with a space into a
        // full-text match.
        must.push(Condition::matches(
            field,
            MatchValue::Keyword(keyword.clone()),
        ));
    }
    if filter.updated_after.is_some() || filter.updated_before.is_some() {
        let between = DatetimeRange {
            gte: filter.updated_after.map(timestamp),
            lt: filter.updated_before.map(timestamp),
            ..DatetimeRange::default()
        };
        must.push(Condition::datetime_range("updated_at", between));
    }
    if let Some(least) = filter.min_importance {
        let range = Range {
            gte: Some(short_decimal(least)),
            ..Range::default()
        };
        must.push(Condition::range(IMPORTANCE, range));
    }
    for (name, condition) in &filter.fields {
        must.extend(meets(name, condition));
    }
    if let Some(now) = filter.live_at {
        let later = DatetimeRange {
            gt: Some(timestamp(now)),
            ..DatetimeRange::default()
        };
        let never_or_later = [
            Condition::is_empty("expires_at"),
            Condition::datetime_range("expires_at", later),
        ];
        must.push(qdrant::Filter::should(never_or_later).into());
    }
    let excepted = filter.except_chunk_ids.as_deref().unwrap_or_default();
    let must_not = match excepted {
        [] => Vec::new(),
        ids => vec![Condition::has_id(ids.iter().copied().map(point_id))],
    };
    qdrant::Filter {
        must,
        must_not,
        ..qdrant::Filter::default()
    }
}

pub(super) fn points(
    collection: &str,
    ids: &[Uuid],
    with_vectors: bool,
    timeout_secs: u64,
) -> GetPoints {
    let ids: Vec<_> = ids.iter().copied().map(point_id).collect();
    let mut request = GetPointsBuilder::new(collection, ids)
        .with_payload(true)
        .timeout(timeout_secs);
    if with_vectors {
        request = request.with_vectors(dense_only());
    }
    request.build()
}

/// The page includes the point `start`, if it exists.
pub(super) fn scroll(
    collection: &str,
    start: Uuid,
    limit: usize,
    with_vectors: bool,
    timeout_secs: u64,
) -> ScrollPoints {
    let mut request = ScrollPointsBuilder::new(collection)
        .offset(point_id(start))
        .limit(u32::try_from(limit).unwrap_or(u32::MAX))
        .with_payload(true)
        .timeout(timeout_secs);
    if with_vectors {
        request = request.with_vectors(dense_only());
    }
    request.build()
}

/// Asks for those of `ids` that have no dense vector.
pub(super) fn without_vector(collection: &str, ids: &[Uuid], timeout_secs: u64) -> ScrollPoints {
    let filter = qdrant::Filter {
        must: vec![Condition::has_id(ids.iter().copied().map(point_id))],
        must_not: vec![Condition::has_vector(DENSE)],
        ..qdrant::Filter::default()
    };
    ScrollPointsBuilder::new(collection)
        .filter(filter)
        .limit(u32::try_from(ids.len()).unwrap_or(u32::MAX))
        .with_payload(false)
        .timeout(timeout_secs)
        .build()
}

/// Deletes the dense vectors that points have, up to a revision.
pub(super) fn delete_vectors(
    collection: &str,
    ids: Vec<Uuid>,
    revision: i64,
    timeout_secs: u64,
) -> DeletePointVectors {
    let mut written = filter(&Filter {
        chunk_ids: Some(ids),
        revision_below: Some(revision + 1),
        ..Filter::default()
    });
    written.must.push(Condition::has_vector(DENSE));
    DeletePointVectorsBuilder::new(collection)
        .points_selector(written)
        .vectors(dense_only())
        .wait(true)
        .timeout(timeout_secs)
        .build()
}

fn dense_only() -> VectorsSelector {
    VectorsSelector {
        names: vec![DENSE.into()],
    }
}

/// `with_vectors` is what the request asked for.
pub(super) fn stored_point(point: RetrievedPoint, with_vectors: bool) -> Option<StoredPoint> {
    let chunk_id = chunk_id(point.id)?;
    let payload = point
        .payload
        .into_iter()
        .map(|(key, value)| (key, to_json(value)))
        .collect();
    let dense = point
        .vectors
        .and_then(|vectors| vectors.get_vector_by_name(DENSE));
    let vector = dense.and_then(|vector| match vector {
        qdrant::vector_output::Vector::Dense(dense) => Some(dense.data),
        _ => None,
    });
    Some(StoredPoint {
        chunk_id,
        payload,
        has_vector: with_vectors.then_some(vector.is_some()),
        vector,
    })
}

/// By which vectors points are ranked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Ranking {
    Dense,
    Bm25,
}

/// The best `limit` points of a ranking. `None` if the query has nothing to rank them by. BM25 counts how
/// rare a word is among the points of `corpus`. Qdrant before 1.19 does not know that field, and counts
/// among all points.
pub(super) fn ranking(
    collection: &str,
    query: &Query,
    by: Ranking,
    corpus: Option<&Filter>,
    bm25: &Bm25Document,
    limit: usize,
) -> Option<QueryPoints> {
    let mut params = SearchParams::default();
    let (using, input) = match by {
        Ranking::Dense => {
            params.hnsw_ef = query.hnsw_ef.map(u64::from);
            params.exact = query.exact.then_some(true);
            (DENSE, VectorInput::new_dense(query.vector.clone()?))
        }
        Ranking::Bm25 => {
            let words = query.words.as_ref()?;
            params.idf = corpus.map(|corpus| IdfParams {
                corpus: Some(filter(corpus)),
            });
            let document = vector_input::Variant::Document(bm25.of_query(words));
            let input = VectorInput {
                variant: Some(document),
            };
            (BM25, input)
        }
    };
    let request = QueryPointsBuilder::new(collection)
        .query(qdrant::Query::new_nearest(input))
        .using(using)
        .params(params)
        .filter(filter(&query.filter))
        .limit(limit as u64)
        .build();
    Some(request)
}

pub(super) fn scored(point: ScoredPoint) -> Option<Scored> {
    Some(Scored {
        chunk_id: chunk_id(point.id)?,
        score: point.score,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_keyword_with_a_space_is_still_a_keyword() {
        let keywords = BTreeMap::from([("scope".to_owned(), "my team".to_owned())]);
        let filter = filter(&Filter {
            keywords,
            ..Filter::default()
        });
        let printed = format!("{filter:?}");
        assert!(printed.contains("Keyword(\"my team\")"), "{printed}");
    }
}
