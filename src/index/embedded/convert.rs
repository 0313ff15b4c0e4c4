//! ELF's types to the engine's and back.

use crate::config::Bm25Options;
use qdrant_edge::bm25_embed::{EdgeBm25, EdgeBm25Config};
use qdrant_edge::external::ordered_float::OrderedFloat;
use qdrant_edge::{
    self as edge, AnyVariants, Condition, ConditionalInsertOperation, CountRequest, CreateIndex,
    DateTimeWrapper, Distance, EdgeConfig, EdgeSparseVectorParams, EdgeVectorParams,
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
use crate::index::payload::{FIELD_INDEXES, FieldIndex, IMPORTANCE, REVISION, short_decimal};
use crate::index::{
    BM25, CollectionSpec, DENSE, Filter, Point, Query, Relabel, StoredPoint, UpsertMode, keywords,
};

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
    let operation = |(field, index): (&str, FieldIndex)| {
        let schema = match index {
            FieldIndex::Uuid => PayloadFieldSchema::FieldType(PayloadSchemaType::Uuid),
            FieldIndex::Keyword => PayloadFieldSchema::FieldType(PayloadSchemaType::Keyword),
            FieldIndex::Integer => PayloadFieldSchema::FieldType(PayloadSchemaType::Integer),
            FieldIndex::Datetime => PayloadFieldSchema::FieldType(PayloadSchemaType::Datetime),
            FieldIndex::Float => PayloadFieldSchema::FieldType(PayloadSchemaType::Float),
            FieldIndex::Tenant => {
                PayloadFieldSchema::FieldParams(PayloadSchemaParams::Keyword(KeywordIndexParams {
                    is_tenant: Some(true),
                    ..KeywordIndexParams::default()
                }))
            }
        };
        let create = CreateIndex {
            field_name: path(field),
            field_schema: Some(schema),
        };
        UpdateOperation::FieldIndexOperation(FieldIndexOperations::CreateIndex(create))
    };
    FIELD_INDEXES.into_iter().map(operation).collect()
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
                (
                    must(vec![Condition::Field(FieldCondition::new_range(
                        path(REVISION),
                        not_newer,
                    ))]),
                    None,
                )
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
        conditions.push(Condition::Field(FieldCondition::new_match(
            path("note_id"),
            Match::new_any(any),
        )));
    }
    if filter.revision_below.is_some() || filter.revision_above.is_some() {
        let bound = |revision: i64| OrderedFloat(revision as f64);
        let between = Range {
            lt: filter.revision_below.map(bound),
            gt: filter.revision_above.map(bound),
            ..no_range()
        };
        conditions.push(Condition::Field(FieldCondition::new_range(
            path(REVISION),
            between,
        )));
    }
    for (field, keyword) in &filter.keywords {
        let value = Match::new_value(ValueVariants::String(keyword.clone()));
        conditions.push(Condition::Field(FieldCondition::new_match(
            path(field),
            value,
        )));
    }
    if filter.updated_after.is_some() || filter.updated_before.is_some() {
        let between = Range {
            gte: filter.updated_after.map(DateTimeWrapper),
            lt: filter.updated_before.map(DateTimeWrapper),
            gt: None,
            lte: None,
        };
        // There is no constructor for a range of times.
        let mut updated = FieldCondition::new_is_empty(path("updated_at"), false);
        updated.is_empty = None;
        updated.range = Some(RangeInterface::DateTime(between));
        conditions.push(Condition::Field(updated));
    }
    if let Some(least) = filter.min_importance {
        let range = Range {
            gte: Some(OrderedFloat(short_decimal(least))),
            ..no_range()
        };
        conditions.push(Condition::Field(FieldCondition::new_range(
            path(IMPORTANCE),
            range,
        )));
    }
    if let Some(now) = filter.live_at {
        let later = Range {
            gt: Some(DateTimeWrapper(now)),
            lt: None,
            gte: None,
            lte: None,
        };
        let mut later_than_now = FieldCondition::new_is_empty(path("expires_at"), false);
        later_than_now.is_empty = None;
        later_than_now.range = Some(RangeInterface::DateTime(later));
        let never = Condition::IsEmpty(path("expires_at").into());
        let never_or_later = edge::Filter {
            should: Some(vec![never, Condition::Field(later_than_now)]),
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

fn must(conditions: Vec<Condition>) -> edge::Filter {
    edge::Filter {
        must: Some(conditions),
        ..edge::Filter::new()
    }
}

fn no_range() -> Range<OrderedFloat<f64>> {
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
