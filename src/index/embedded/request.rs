//! A request to the engine, as one process sends it to the other.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::index::{
    Candidate, CollectionInfo, CollectionSpec, Filter, IndexError, Point, Query, Relabel,
    StoredPoint, UpsertMode, VectorIndex,
};
use crate::metadata::Declared;

/// One call of a verb of [`VectorIndex`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Request<'a> {
    CreateCollection(Cow<'a, str>, Cow<'a, CollectionSpec>),
    IndexFields(Cow<'a, str>, Cow<'a, Declared>),
    Collection(Cow<'a, str>),
    BeginLoad(Cow<'a, str>),
    EndLoad(Cow<'a, str>),
    DropCollection(Cow<'a, str>),
    Resolve(Cow<'a, str>),
    PointAlias {
        alias: Cow<'a, str>,
        collection: Cow<'a, str>,
    },
    Upsert {
        collection: Cow<'a, str>,
        points: Cow<'a, [Point]>,
        mode: UpsertMode,
    },
    Relabel(Cow<'a, str>, Cow<'a, [Relabel]>),
    Delete(Cow<'a, str>, Cow<'a, Filter>),
    Count(Cow<'a, str>, Cow<'a, Filter>),
    Points {
        collection: Cow<'a, str>,
        ids: Cow<'a, [Uuid]>,
        with_vectors: bool,
    },
    Scroll {
        collection: Cow<'a, str>,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    },
    Search(Cow<'a, str>, Cow<'a, Query>),
}

/// What a verb returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Done,
    Collection(Option<CollectionInfo>),
    Name(Option<String>),
    Number(u64),
    Points(Vec<StoredPoint>),
    Candidates(Vec<Candidate>),
}

impl Request<'_> {
    /// Asks the engine.
    pub(super) async fn carry_out(&self, engine: &dyn VectorIndex) -> Result<Reply, IndexError> {
        let done = |()| Reply::Done;
        match self {
            Self::CreateCollection(name, spec) => {
                engine.create_collection(name, spec).await.map(done)
            }
            Self::IndexFields(name, fields) => engine.index_fields(name, fields).await.map(done),
            Self::Collection(name) => engine.collection(name).await.map(Reply::Collection),
            Self::BeginLoad(name) => engine.begin_load(name).await.map(Reply::Number),
            Self::EndLoad(name) => engine.end_load(name).await.map(done),
            Self::DropCollection(name) => engine.drop_collection(name).await.map(done),
            Self::Resolve(alias) => engine.resolve(alias).await.map(Reply::Name),
            Self::PointAlias { alias, collection } => {
                engine.point_alias(alias, collection).await.map(done)
            }
            Self::Upsert {
                collection,
                points,
                mode,
            } => engine.upsert(collection, points, *mode).await.map(done),
            Self::Relabel(name, notes) => engine.relabel(name, notes).await.map(done),
            Self::Delete(name, filter) => engine.delete(name, filter).await.map(done),
            Self::Count(name, filter) => engine.count(name, filter).await.map(Reply::Number),
            Self::Points {
                collection,
                ids,
                with_vectors,
            } => {
                let points = engine.points(collection, ids, *with_vectors).await;
                points.map(Reply::Points)
            }
            Self::Scroll {
                collection,
                after,
                limit,
                with_vectors,
            } => {
                let page = engine.scroll(collection, *after, *limit, *with_vectors);
                page.await.map(Reply::Points)
            }
            Self::Search(name, query) => engine.search(name, query).await.map(Reply::Candidates),
        }
    }
}

/// The value of a reply; `None` if it is the reply to another verb.
impl Reply {
    pub(super) fn done(self) -> Option<()> {
        (self == Self::Done).then_some(())
    }

    pub(super) fn collection(self) -> Option<Option<CollectionInfo>> {
        match self {
            Self::Collection(collection) => Some(collection),
            _ => None,
        }
    }

    pub(super) fn name(self) -> Option<Option<String>> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn number(self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(number),
            _ => None,
        }
    }

    pub(super) fn points(self) -> Option<Vec<StoredPoint>> {
        match self {
            Self::Points(points) => Some(points),
            _ => None,
        }
    }

    pub(super) fn candidates(self) -> Option<Vec<Candidate>> {
        match self {
            Self::Candidates(candidates) => Some(candidates),
            _ => None,
        }
    }
}
