//! A real index that stops, fails or counts where a test wants it to.

use std::sync::{Arc, Mutex};

use elf::index::{
    Answer, CollectionInfo, CollectionSpec, Filter, Hit, IndexError, Point, Query, StoredPoint,
    UpsertMode, VectorIndex,
};
use tokio::sync::watch;
use uuid::Uuid;

/// A verb of [`VectorIndex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    CreateCollection,
    Collection,
    BulkLoad,
    DropCollection,
    Resolve,
    PointAlias,
    Upsert,
    Delete,
    Count,
    Points,
    Scroll,
    Search,
}

/// On which side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The engine knows nothing of it yet.
    Before,
    /// The engine has done it, and the caller does not know yet.
    After,
}

/// Hands every call on to a real engine.
pub struct Hooked {
    inner: Arc<dyn VectorIndex>,
    rules: Mutex<Vec<(When, Verb, Rule)>>,
    calls: Mutex<Vec<Verb>>,
    refused: Mutex<Vec<Uuid>>,
}

#[derive(Clone)]
enum Rule {
    Halt(Halt),
    Fail(IndexError),
}

/// Where calls stop until it is opened.
#[derive(Clone)]
pub struct Halt {
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Halt {
    /// Waits until `count` calls have come here.
    pub async fn reached_by(&self, count: usize) {
        let mut arrived = self.arrived.subscribe();
        let reached = arrived.wait_for(|arrived| *arrived >= count);
        tokio::time::timeout(super::DEADLINE, reached)
            .await
            .unwrap_or_else(|_| panic!("{} calls came, not {count}", *self.arrived.borrow()))
            .unwrap();
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Hooked {
    /// Nothing happens on the way to `inner` yet.
    pub fn over(inner: &Arc<dyn VectorIndex>) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            rules: Mutex::default(),
            calls: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Every such call stops from now on.
    pub fn halt(&self, when: When, verb: Verb) -> Halt {
        let halt = Halt {
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        };
        self.add(when, verb, Rule::Halt(halt.clone()));
        halt
    }

    /// Every such call fails from now on, [`When::After`] it was done if so wanted.
    pub fn fail(&self, when: When, verb: Verb, error: IndexError) {
        self.add(when, verb, Rule::Fail(error));
    }

    /// Every upsert fails from now on that has a point of `note`.
    pub fn refuse(&self, note: Uuid) {
        self.refused.lock().unwrap().push(note);
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        let is_halt = |rule: &Rule| matches!(rule, Rule::Halt(_));
        let mut rules = self.rules.lock().unwrap();
        rules.retain(|(_, _, rule)| is_halt(rule));
    }

    /// How often a verb was called.
    pub fn calls(&self, verb: Verb) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|called| **called == verb).count()
    }

    fn add(&self, when: When, verb: Verb, rule: Rule) {
        self.rules.lock().unwrap().push((when, verb, rule));
    }

    async fn pass(&self, when: When, verb: Verb) -> Result<(), IndexError> {
        let of_call = |(w, v, _): &&(When, Verb, Rule)| (*w, *v) == (when, verb);
        let rules: Vec<Rule> = {
            let rules = self.rules.lock().unwrap();
            rules
                .iter()
                .filter(of_call)
                .map(|(_, _, rule)| rule.clone())
                .collect()
        };
        for rule in rules {
            match rule {
                Rule::Fail(error) => return Err(error),
                Rule::Halt(halt) => {
                    halt.arrived.send_modify(|arrived| *arrived += 1);
                    halt.open.subscribe().wait_for(|open| *open).await.unwrap();
                }
            }
        }
        Ok(())
    }

    fn on_the_way<'a, T: Send + 'a>(&'a self, verb: Verb, call: Answer<'a, T>) -> Answer<'a, T> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(verb);
            self.pass(When::Before, verb).await?;
            let answer = call.await?;
            self.pass(When::After, verb).await?;
            Ok(answer)
        })
    }
}

impl VectorIndex for Hooked {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        let call = self.inner.create_collection(name, spec);
        self.on_the_way(Verb::CreateCollection, call)
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        self.on_the_way(Verb::Collection, self.inner.collection(name))
    }

    fn bulk_load<'a>(&'a self, collection: &'a str, on: bool) -> Answer<'a, ()> {
        self.on_the_way(Verb::BulkLoad, self.inner.bulk_load(collection, on))
    }

    fn drop_collection<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.on_the_way(Verb::DropCollection, self.inner.drop_collection(name))
    }

    fn resolve<'a>(&'a self, alias: &'a str) -> Answer<'a, Option<String>> {
        self.on_the_way(Verb::Resolve, self.inner.resolve(alias))
    }

    fn point_alias<'a>(&'a self, alias: &'a str, collection: &'a str) -> Answer<'a, ()> {
        let call = self.inner.point_alias(alias, collection);
        self.on_the_way(Verb::PointAlias, call)
    }

    fn upsert<'a>(
        &'a self,
        collection: &'a str,
        points: Vec<Point>,
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        let refused = self.refused.lock().unwrap().clone();
        if points.iter().any(|p| refused.contains(&p.payload.note_id)) {
            let (engine, reason) = (self.describe(), "a point that it does not take".into());
            return Box::pin(async { Err(IndexError::Refused { engine, reason }) });
        }
        let call = self.inner.upsert(collection, points, mode);
        self.on_the_way(Verb::Upsert, call)
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        self.on_the_way(Verb::Delete, self.inner.delete(collection, filter))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        self.on_the_way(Verb::Count, self.inner.count(collection, filter))
    }

    fn points<'a>(
        &'a self,
        collection: &'a str,
        ids: &'a [Uuid],
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let call = self.inner.points(collection, ids, with_vectors);
        self.on_the_way(Verb::Points, call)
    }

    fn scroll<'a>(
        &'a self,
        collection: &'a str,
        after: Option<Uuid>,
        limit: usize,
        with_vectors: bool,
    ) -> Answer<'a, Vec<StoredPoint>> {
        let call = self.inner.scroll(collection, after, limit, with_vectors);
        self.on_the_way(Verb::Scroll, call)
    }

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Hit>> {
        self.on_the_way(Verb::Search, self.inner.search(collection, query))
    }
}
