//! Measures how long an engine, whichever it is, takes and how often it fails.

use std::sync::Arc;

use metrics::{counter, histogram};
use uuid::Uuid;

use super::{
    Answer, Candidate, CollectionInfo, CollectionSpec, Filter, IndexError, IndexPlace, Point,
    Query, Relabel, StoredPoint, UpsertMode, VectorIndex,
};
use crate::metadata::Declared;
use crate::telemetry;

/// An engine whose operations are counted and timed.
pub(super) struct Measured(pub Arc<dyn VectorIndex>);

fn measured<'a, T: Send + 'a>(operation: &'static str, answer: Answer<'a, T>) -> Answer<'a, T> {
    Box::pin(async move {
        let span = tracing::debug_span!("index", otel.name = operation, operation);
        let seconds = histogram!("elf_index_operation_seconds", "operation" => operation);
        let done = telemetry::timed(span, seconds, answer).await;
        if let Err(error) = &done {
            let kind = kind(error);
            counter!("elf_index_errors_total", "operation" => operation, "kind" => kind)
                .increment(1);
        }
        done
    })
}

fn kind(error: &IndexError) -> &'static str {
    match error {
        IndexError::Unavailable { .. } => "unavailable",
        IndexError::NotFound { .. } => "not_found",
        IndexError::Denied { .. } => "denied",
        IndexError::Refused { .. } => "refused",
    }
}

impl VectorIndex for Measured {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn place(&self) -> IndexPlace {
        self.0.place()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        measured("change", self.0.create_collection(name, spec))
    }

    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()> {
        measured("change", self.0.index_fields(collection, fields))
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        measured("describe", self.0.collection(name))
    }

    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64> {
        measured("change", self.0.begin_load(collection))
    }

    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()> {
        measured("change", self.0.end_load(collection))
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        measured("change", self.0.drop_collection(name))
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        measured("describe", self.0.resolve(alias))
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        measured("change", self.0.point_alias(alias, collection))
    }

    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: &'a [Point],
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        measured("upsert", self.0.upsert(collection, points, mode))
    }

    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()> {
        measured("relabel", self.0.relabel(collection, notes))
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        measured("delete", self.0.delete(collection, filter))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        measured("count", self.0.count(collection, filter))
    }

    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        measured("points", self.0.points(collection, ids, with_vectors))
    }

    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        measured(
            "scroll",
            self.0.scroll(collection, after, limit, with_vectors),
        )
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>> {
        measured("search", self.0.search(collection, query))
    }
}
