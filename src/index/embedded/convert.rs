//! ELF's types to the engine's and back.

use crate::config::Bm25Options;
use qdrant_edge::bm25_embed::{EdgeBm25, EdgeBm25Config};
use qdrant_edge::external::ordered_float::OrderedFloat;
use qdrant_edge::{
    self as edge, AnyVariants, Condition, ConditionalInsertOperation, CountRequest, CreateIndex,
    DateTimeWrapper, Distance, EdgeConfig, EdgeShard, EdgeSparseVectorParams, EdgeVectorParams,
    FieldCondition, FieldIndexOperations, HasVectorCondition, JsonPath, KeywordIndexParams, Match,
    Modifier, NamedQuery, NamedVectors, PayloadFieldSchema, PayloadOps, PayloadSchemaParams,
    PayloadSchemaType, PointId, PointInsertOperations, PointOperations, PointStruct, Prefetch,
    QueryEnum, QueryRequest, Range, RangeInterface, Record, ScoredPoint, ScoringQuery,
    ScrollRequest, SetPayloadOp, SparseVector, UpdateMode, UpdateOperation, ValueVariants, Vector,
    VectorInternal, VectorStructInternal, WithPayloadInterface, WithVector,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::index::candidates::Scored;
use crate::index::payload::{
    FIELD_INDEXES, FieldIndex, IMPORTANCE, REVISION, declared_index, short_decimal,
};
use crate::index::{
    BM25, CollectionSpec, DENSE, Filter, Point, Query, Relabel, StoredPoint, UpsertMode, keywords,
};
use crate::metadata::{self, Declared, FieldType};

pub(super) fn shard_config(spec: &CollectionSpec, on_disk: bool) -> EdgeConfig {
    // No quantization: the engine compresses vectors only in `EdgeShard::optimize`,
    // which ELF never calls.
    EdgeConfig::builder()
        .vector(
            DENSE,
            EdgeVectorParams::builder(spec.dim, Distance::Cosine)
                .on_disk(on_disk)
                .build(),
        )
        .sparse_vector(
            BM25,
            EdgeSparseVectorParams::builder()
                .modifier(Modifier::Idf)
                .build(),
        )
        .build()
}

/// The operations that make the payload indexes.
pub(super) fn field_indexes() -> Vec<UpdateOperation> {
    FIELD_INDEXES
        .into_iter()
        .map(|(field, index)| create_index(field, index))
        .collect()
}

fn create_index(field: &str, index: FieldIndex) -> UpdateOperation {
    let create = CreateIndex {
        field_name: path(field),
        field_schema: Some(schema(index)),
    };
    UpdateOperation::FieldIndexOperation(FieldIndexOperations::CreateIndex(create))
}

fn schema(index: FieldIndex) -> PayloadFieldSchema {
    let of_type = |kind| PayloadFieldSchema::FieldType(kind);
    match index {
        FieldIndex::Uuid => of_type(PayloadSchemaType::Uuid),
        FieldIndex::Keyword => of_type(PayloadSchemaType::Keyword),
        FieldIndex::Integer => of_type(PayloadSchemaType::Integer),
        FieldIndex::Datetime => of_type(PayloadSchemaType::Datetime),
        FieldIndex::Float => of_type(PayloadSchemaType::Float),
        FieldIndex::Boolean => of_type(PayloadSchemaType::Bool),
        FieldIndex::Tenant => {
            PayloadFieldSchema::FieldParams(PayloadSchemaParams::Keyword(KeywordIndexParams {
                is_tenant: Some(true),
                ..KeywordIndexParams::default()
            }))
        }
    }
}

/// The operations that make the indexes of these fields that a collection lacks, or has for another type.
pub(super) fn declared_indexes(shard: &EdgeShard, fields: &Declared) -> Vec<UpdateOperation> {
    let known = shard.info().payload_schema;
    let mut operations = Vec::new();
    for (name, kind) in fields {
        let (field, index) = declared_index(name, *kind);
        let PayloadFieldSchema::FieldType(wanted) = schema(index) else {
            continue;
        };
        match known.get(&path(&field)).map(|found| found.data_type) {
            Some(found) if found == wanted => continue,
            Some(_) => operations.push(UpdateOperation::FieldIndexOperation(
                FieldIndexOperations::DeleteIndex(path(&field)),
            )),
            None => {}
        }
        operations.push(create_index(&field, index));
    }
    operations
}

/// Makes BM25 vectors of texts, as a server would.
#[derive(Debug)]
pub(super) struct Bm25 {
    options: Bm25Options,
    engine: EdgeBm25,
}

impl Bm25 {
    fn document(&self, point: &Point) -> SparseVector {
        self.engine.embed_document(&point.words(&self.options))
    }

    fn query(&self, words: &str) -> SparseVector {
        self.engine
            .embed_query(&keywords::prepared(words, &self.options))
    }
}

pub(super) fn bm25(options: &Bm25Options) -> Result<Bm25, String> {
    options.check()?;
    let config = json!({
        "k": options.k,
        "b": options.b,
        "avg_len": options.avg_len,
        "tokenizer": options.tokenizer,
        "ascii_folding": options.ascii_folding,
        // A server accepts "none", this engine needs a language. It has no stemmer for Basque.
        "language": keywords::stemmed_language(options).unwrap_or("basque"),
        "stopwords": keywords::stopwords(options),
    });
    let config: EdgeBm25Config =
        serde_json::from_value(config).map_err(|error| error.to_string())?;
    let engine = EdgeBm25::new(config).map_err(|error| error.to_string())?;
    Ok(Bm25 {
        options: options.clone(),
        engine,
    })
}

/// The operations that write points: one condition each, so one revision each.
pub(super) fn upserts(points: Vec<Point>, mode: UpsertMode, bm25: &Bm25) -> Vec<UpdateOperation> {
    let mut by_revision = std::collections::BTreeMap::<i64, Vec<_>>::new();
    for point in points {
        let revision = match mode {
            UpsertMode::NotNewer => point.payload.note.revision,
            UpsertMode::UpTo(revision) => revision,
            UpsertMode::InsertOnly => 0,
        };
        by_revision
            .entry(revision)
            .or_default()
            .push(point_struct(point, bm25).into());
    }
    let upsert = |(revision, points)| {
        let (condition, update_mode) = match mode {
            UpsertMode::NotNewer | UpsertMode::UpTo(_) => {
                let not_newer = Range {
                    lte: Some(OrderedFloat(revision as f64)),
                    ..no_range()
                };
                (must(vec![in_range(REVISION, not_newer)]), None)
            }
            UpsertMode::InsertOnly => (edge::Filter::new(), Some(UpdateMode::InsertOnly)),
        };
        let points_op = PointInsertOperations::PointsList(points);
        let upsert = ConditionalInsertOperation {
            points_op,
            condition,
            update_mode,
        };
        UpdateOperation::PointOperation(PointOperations::UpsertPointsConditional(upsert))
    };
    by_revision.into_iter().map(upsert).collect()
}

fn point_struct(point: Point, bm25: &Bm25) -> PointStruct {
    let mut vectors = NamedVectors::default().add_vector(BM25, Vector::from(bm25.document(&point)));
    if let Some(dense) = point.vector {
        vectors = vectors.add_vector(DENSE, Vector::new_dense(dense));
    }
    PointStruct::new(
        PointId::Uuid(point.payload.chunk_id),
        vectors,
        Value::Object(point.payload.to_json()),
    )
}

pub(super) fn relabel(note: &Relabel) -> UpdateOperation {
    UpdateOperation::PayloadOperation(PayloadOps::SetPayload(SetPayloadOp {
        payload: edge::Payload(note.to.to_merge()),
        points: None,
        filter: Some(filter(&note.filter())),
        key: None,
    }))
}

pub(super) fn delete(filter: &Filter) -> UpdateOperation {
    UpdateOperation::PointOperation(PointOperations::DeletePointsByFilter(self::filter(filter)))
}

pub(super) fn count(filter: &Filter) -> CountRequest {
    CountRequest {
        filter: Some(self::filter(filter)),
        exact: true,
    }
}

/// Every field of the filter must match; an empty one matches every point.
fn filter(filter: &Filter) -> edge::Filter {
    let mut conditions = Vec::new();
    if let Some(chunks) = &filter.chunk_ids {
        let ids = chunks.iter().copied().map(PointId::Uuid).collect();
        conditions.push(Condition::HasId(ids));
    }
    if let Some(notes) = &filter.note_ids {
        let any = AnyVariants::Strings(notes.iter().map(Uuid::to_string).collect());
        conditions.push(matches("note_id", Match::new_any(any)));
    }
    if filter.revision_below.is_some() || filter.revision_above.is_some() {
        let bound = |revision: i64| OrderedFloat(revision as f64);
        let between = Range {
            lt: filter.revision_below.map(bound),
            gt: filter.revision_above.map(bound),
            ..no_range()
        };
        conditions.push(in_range(REVISION, between));
    }
    for (field, keyword) in &filter.keywords {
        let value = Match::new_value(ValueVariants::String(keyword.clone()));
        conditions.push(matches(field, value));
    }
    if filter.updated_after.is_some() || filter.updated_before.is_some() {
        let between = Range {
            gte: filter.updated_after.map(DateTimeWrapper),
            lt: filter.updated_before.map(DateTimeWrapper),
            ..no_range()
        };
        conditions.push(in_time("updated_at", between));
    }
    if let Some(least) = filter.min_importance {
        let range = Range {
            gte: Some(OrderedFloat(short_decimal(least))),
            ..no_range()
        };
        conditions.push(in_range(IMPORTANCE, range));
    }
    for (name, condition) in &filter.fields {
        conditions.extend(meets(name, condition));
    }
    if let Some(now) = filter.live_at {
        let later = Range {
            gt: Some(DateTimeWrapper(now)),
            ..no_range()
        };
        let never = Condition::IsEmpty(path("expires_at").into());
        let never_or_later = edge::Filter {
            should: Some(vec![never, in_time("expires_at", later)]),
            ..edge::Filter::new()
        };
        conditions.push(Condition::Filter(never_or_later));
    }
    let excepted = filter.except_chunk_ids.iter().flatten();
    let excepted: Vec<PointId> = excepted.copied().map(PointId::Uuid).collect();
    let must_not =
        (!excepted.is_empty()).then(|| vec![Condition::HasId(excepted.into_iter().collect())]);
    edge::Filter {
        must_not,
        ..must(conditions)
    }
}

/// What a declared field must be like.
fn meets(name: &str, wanted: &metadata::Condition) -> Vec<Condition> {
    let (field, _) = declared_index(name, wanted.kind);
    let is_empty = || Condition::IsEmpty(path(&field).into());
    if !wanted.exists {
        return vec![is_empty()];
    }
    let mut conditions = Vec::new();
    if let Some(any) = &wanted.any {
        let either = |conditions: Vec<Condition>| {
            Condition::Filter(edge::Filter {
                should: Some(conditions),
                ..edge::Filter::new()
            })
        };
        conditions.push(match wanted.kind {
            FieldType::Keyword | FieldType::Keywords => {
                let texts = any.iter().filter_map(Value::as_str).map(str::to_owned);
                let any = AnyVariants::Strings(texts.collect());
                matches(&field, Match::new_any(any))
            }
            FieldType::Integer => {
                let integers = any.iter().filter_map(Value::as_i64).collect();
                matches(&field, Match::new_any(AnyVariants::Integers(integers)))
            }
            FieldType::Boolean => {
                let values = any
                    .iter()
                    .filter_map(Value::as_bool)
                    .map(ValueVariants::Bool);
                either(
                    values
                        .map(|value| matches(&field, Match::new_value(value)))
                        .collect(),
                )
            }
            FieldType::Number | FieldType::Datetime => {
                let equal = |value| between(&field, wanted.kind, [value, None, value, None]);
                either(any.iter().map(|value| equal(Some(value))).collect())
            }
        });
    }
    if wanted.has_range() {
        let bounds = [&wanted.gte, &wanted.gt, &wanted.lte, &wanted.lt].map(Option::as_ref);
        conditions.push(between(&field, wanted.kind, bounds));
    }
    if conditions.is_empty() {
        conditions.push(Condition::Filter(edge::Filter {
            must_not: Some(vec![is_empty()]),
            ..edge::Filter::new()
        }));
    }
    conditions
}

/// `bounds`: gte, gt, lte, lt.
fn between(field: &str, kind: FieldType, bounds: [Option<&Value>; 4]) -> Condition {
    if kind == FieldType::Datetime {
        let time = |bound: Option<&Value>| metadata::time(bound?.as_str()?).map(DateTimeWrapper);
        let [gte, gt, lte, lt] = bounds.map(time);
        return in_time(field, Range { lt, gt, gte, lte });
    }
    let [gte, gt, lte, lt] = bounds.map(|bound| Some(OrderedFloat(bound?.as_f64()?)));
    in_range(field, Range { lt, gt, gte, lte })
}

fn must(conditions: Vec<Condition>) -> edge::Filter {
    edge::Filter {
        must: Some(conditions),
        ..edge::Filter::new()
    }
}

fn matches(field: &str, value: Match) -> Condition {
    Condition::Field(FieldCondition::new_match(path(field), value))
}

fn in_range(field: &str, range: Range<OrderedFloat<f64>>) -> Condition {
    Condition::Field(FieldCondition::new_range(path(field), range))
}

fn in_time(field: &str, range: Range<DateTimeWrapper>) -> Condition {
    // There is no constructor for a range of times.
    let mut condition = FieldCondition::new_is_empty(path(field), false);
    condition.is_empty = None;
    condition.range = Some(RangeInterface::DateTime(range));
    Condition::Field(condition)
}

fn no_range<T>() -> Range<T> {
    Range {
        lt: None,
        gt: None,
        gte: None,
        lte: None,
    }
}

/// A payload field by its name. A name that is not a path is quoted, and then
/// matches nothing, as it would on a server.
fn path(field: &str) -> JsonPath {
    field
        .parse()
        .or_else(|()| format!("\"{}\"", field.replace('"', "")).parse())
        .expect("a quoted key is a path")
}

/// Asks for those of `ids` that have no dense vector.
pub(super) fn without_vector(ids: &[Uuid]) -> ScrollRequest {
    let has_vector = HasVectorCondition {
        has_vector: DENSE.into(),
    };
    ScrollRequest {
        filter: Some(edge::Filter {
            must_not: Some(vec![Condition::HasVector(has_vector)]),
            ..must(vec![Condition::HasId(point_ids(ids).into_iter().collect())])
        }),
        limit: Some(ids.len()),
        offset: None,
        with_payload: Some(WithPayloadInterface::Bool(false)),
        with_vector: WithVector::Bool(false),
        order_by: None,
    }
}

/// The page includes the point `start`, if it exists.
pub(super) fn scroll(start: Uuid, limit: usize, with_vectors: bool) -> ScrollRequest {
    ScrollRequest {
        offset: Some(PointId::Uuid(start)),
        limit: Some(limit),
        filter: None,
        with_payload: Some(WithPayloadInterface::Bool(true)),
        with_vector: dense_if(with_vectors),
        order_by: None,
    }
}

pub(super) fn point_ids(ids: &[Uuid]) -> Vec<PointId> {
    ids.iter().copied().map(PointId::Uuid).collect()
}

pub(super) fn dense_if(with_vectors: bool) -> WithVector {
    if with_vectors {
        WithVector::Selector(vec![DENSE.into()])
    } else {
        WithVector::Bool(false)
    }
}

pub(super) fn chunk_id(id: PointId) -> Option<Uuid> {
    match id {
        PointId::Uuid(id) => Some(id),
        // ELF writes no numeric ids, so this point is not a chunk.
        PointId::NumId(_) => None,
    }
}

/// `with_vectors` is what the request asked for.
pub(super) fn stored_point(record: Record, with_vectors: bool) -> Option<StoredPoint> {
    let chunk_id = chunk_id(record.id)?;
    let vector = match record.vector {
        Some(VectorStructInternal::Named(mut vectors)) => match vectors.remove(DENSE) {
            Some(VectorInternal::Dense(dense)) => Some(dense),
            _ => None,
        },
        _ => None,
    };
    let payload = record
        .payload
        .map(|payload| payload.0.into_iter().collect())
        .unwrap_or_default();
    Some(StoredPoint {
        chunk_id,
        payload,
        has_vector: with_vectors.then_some(vector.is_some()),
        vector,
    })
}

/// The request of each ranking. Each finds the candidates of both rankings and scores all of
/// them by its own vector.
pub(super) struct Search {
    pub(super) dense: Option<QueryRequest>,
    pub(super) bm25: Option<QueryRequest>,
}

pub(super) fn search(query: &Query, bm25: &Bm25) -> Search {
    let nearest = |using: &str, vector: VectorInternal| {
        ScoringQuery::Vector(QueryEnum::Nearest(NamedQuery::new(vector, using)))
    };
    let dense = query
        .vector
        .as_ref()
        .map(|vector| nearest(DENSE, VectorInternal::Dense(vector.clone())));
    let words: Option<SparseVector> = query.words.as_ref().map(|words| bm25.query(words));
    // A query of only stopwords has an empty BM25 vector.
    let words = words
        .filter(|words| !words.indices.is_empty())
        .map(|words| nearest(BM25, VectorInternal::Sparse(words)));
    let prefetches: Vec<Prefetch> = dense
        .iter()
        .chain(&words)
        .map(|nearest| Prefetch {
            prefetches: Vec::new(),
            query: Some(nearest.clone()),
            limit: query.candidates,
            params: None,
            filter: Some(filter(&query.filter)),
            score_threshold: None,
        })
        .collect();
    let request = |nearest| QueryRequest {
        limit: query.candidates * prefetches.len(),
        prefetches: prefetches.clone(),
        query: Some(nearest),
        filter: None,
        score_threshold: None,
        offset: 0,
        params: None,
        with_vector: WithVector::Bool(false),
        with_payload: WithPayloadInterface::Bool(false),
    };
    Search {
        dense: dense.map(request),
        bm25: words.map(request),
    }
}

pub(super) fn scored(point: ScoredPoint) -> Option<Scored> {
    Some(Scored {
        chunk_id: chunk_id(point.id)?,
        score: point.score,
    })
}
