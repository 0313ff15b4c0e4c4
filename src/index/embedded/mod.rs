//! The engine in the process: the same index as a server's, for the demo, tests and laptops. One
//! process has the folder open, and answers the others over a socket in it ([`access`]).

mod access;
mod collection;
mod collections;
mod convert;
mod engine;
mod folder;
mod frames;
mod journal;
mod peer;
mod request;
mod server;
mod socket;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use self::access::{Access, At};
use self::peer::Silence;
use self::request::{Reply, Request};
use super::{
    Answer, Candidate, CollectionInfo, CollectionSpec, Filter, IndexError, IndexPlace, Point,
    Query, Relabel, StoredPoint, UpsertMode, VectorIndex,
};
use crate::config;
use crate::metadata::Declared;

/// The version that Cargo.toml pins.
const VERSION: &str = "0.7.2";

/// Approximate bytes of points in one request, at most.
const UPSERT_BYTES: usize = 4 << 20;

/// How often a request is sent, at most. It is sent again if the process that has it ends; one that
/// does not end may fail on it each time.
const TRIES: usize = 5;

/// The engine on one data folder, in this process or in the one that has the folder open.
pub(super) struct Embedded {
    access: Arc<Access>,
    /// How long a request to another process may take.
    limit: Duration,
}

impl Embedded {
    /// The engine on this folder, which the first request opens.
    pub(super) fn new(dir: PathBuf, settings: &config::Qdrant) -> Self {
        let place = folder::without_dots(&dir);
        let engine = format!("qdrant-edge {VERSION} in {}", place.display());
        Self {
            access: Arc::new(Access::new(dir, engine, settings.on_disk)),
            limit: Duration::from_millis(settings.timeout_ms),
        }
    }

    /// Opens the folder, or makes it, or finds the process that has it open.
    pub(super) async fn open(&self) -> Result<(), IndexError> {
        self.access
            .find(Instant::now() + self.limit)
            .await
            .map(drop)
    }

    async fn ask<T>(
        &self,
        request: Request<'_>,
        read: impl FnOnce(Reply) -> Option<T>,
    ) -> Result<T, IndexError> {
        let reply = self.carry_out(request).await?;
        let misread = || {
            self.access
                .unavailable("the reply is to another request".into())
        };
        read(reply).ok_or_else(misread)
    }

    async fn carry_out(&self, request: Request<'_>) -> Result<Reply, IndexError> {
        let deadline = Instant::now() + self.limit;
        let mut tries = 1;
        loop {
            let peer = match self.access.find(deadline).await? {
                At::Here(open) => return request.carry_out(&*open.engine).await,
                At::Elsewhere(peer) => peer,
                At::Unknown { .. } => unreachable!("it was found"),
            };
            let silence = match peer.ask(&request, deadline).await {
                Ok(reply) => return reply,
                Err(silence) => silence,
            };
            // Whoever has the folder now gets it: every request is idempotent.
            match silence {
                Silence::Gone => {}
                Silence::Cut if tries < TRIES => tries += 1,
                silence => return Err(self.access.silent(silence, &peer.process)),
            }
            self.access.forget(&peer);
        }
    }
}

/// Splits points into requests that are not too large.
fn parts(points: &[Point]) -> impl Iterator<Item = &[Point]> {
    let mut bytes = 0;
    let fits = move |_: &Point, next: &Point| {
        bytes += next.bytes();
        let fits = bytes < UPSERT_BYTES;
        if !fits {
            bytes = 0;
        }
        fits
    };
    points.chunk_by(fits)
}

impl VectorIndex for Embedded {
    fn describe(&self) -> String {
        let engine = &self.access.engine;
        match self.access.known() {
            At::Here(_) => engine.clone(),
            At::Elsewhere(peer) => format!("{engine}, open in {}", peer.process),
            At::Unknown { .. } => format!("{engine}, not open"),
        }
    }

    fn place(&self) -> IndexPlace {
        folder::place(&self.access.dir)
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        let request = Request::CreateCollection(name.into(), Cow::Borrowed(spec));
        Box::pin(self.ask(request, Reply::done))
    }

    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()> {
        let request = Request::IndexFields(collection.into(), Cow::Borrowed(fields));
        Box::pin(self.ask(request, Reply::done))
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        Box::pin(self.ask(Request::Collection(name.into()), Reply::collection))
    }

    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64> {
        Box::pin(self.ask(Request::BeginLoad(collection.into()), Reply::number))
    }

    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()> {
        Box::pin(self.ask(Request::EndLoad(collection.into()), Reply::done))
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.ask(Request::DropCollection(name.into()), Reply::done))
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        Box::pin(self.ask(Request::Resolve(alias.into()), Reply::name))
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        let (alias, collection) = (alias.into(), collection.into());
        Box::pin(self.ask(Request::PointAlias { alias, collection }, Reply::done))
    }

    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: &'a [Point],
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        Box::pin(async move {
            for part in parts(points) {
                let request = Request::Upsert {
                    collection: collection.into(),
                    points: part.into(),
                    mode,
                };
                self.ask(request, Reply::done).await?;
            }
            Ok(())
        })
    }

    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()> {
        Box::pin(self.ask(
            Request::Relabel(collection.into(), notes.into()),
            Reply::done,
        ))
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        let request = Request::Delete(collection.into(), Cow::Borrowed(filter));
        Box::pin(self.ask(request, Reply::done))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        let request = Request::Count(collection.into(), Cow::Borrowed(filter));
        Box::pin(self.ask(request, Reply::number))
    }

    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let request = Request::Points {
            collection: collection.into(),
            ids: ids.into(),
            with_vectors,
        };
        Box::pin(self.ask(request, Reply::points))
    }

    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let request = Request::Scroll {
            collection: collection.into(),
            after,
            limit,
            with_vectors,
        };
        Box::pin(self.ask(request, Reply::points))
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>> {
        let request = Request::Search(collection.into(), Cow::Borrowed(query));
        Box::pin(self.ask(request, Reply::candidates))
    }
}
