//! A real index that stops, fails or counts calls where a test wants it to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use elf::index::{
    Answer, Candidate, CollectionInfo, CollectionSpec, CollectionStatus, Filter, IndexError,
    IndexPlace, Point, Query, Relabel, StoredPoint, UpsertMode, VectorIndex,
};
use elf::metadata::Declared;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

/// A verb of [`VectorIndex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    CreateCollection,
    Collection,
    BeginLoad,
    EndLoad,
    DropCollection,
    Resolve,
    PointAlias,
    Upsert,
    Relabel,
    Delete,
    Count,
    /// The count of a batch before it deletes older points.
    CountOlder,
    /// The count of a batch before its ack.
    CheckTokens,
    Points,
    Scroll,
    Search,
}

/// On which side of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The engine has not received the call.
    Before,
    /// The engine has done the work, and the caller has no answer yet.
    After,
}

/// Passes every call on to a real engine.
pub struct Hooked {
    inner: Arc<dyn VectorIndex>,
    rules: Mutex<Vec<(When, Verb, Rule)>>,
    calls: Mutex<Vec<Verb>>,
    /// Collections whose fields were indexed.
    indexed: Mutex<Vec<String>>,
    refused: Mutex<Vec<Uuid>>,
    late: Mutex<Option<Halt>>,
    load: Mutex<Option<u64>>,
    restarted: AtomicBool,
    on_the_network: TaskTracker,
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
    /// Waits until `count` calls have stopped here.
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
    /// Passes every call on to `inner` unchanged, until a test asks for more.
    pub fn over(inner: &Arc<dyn VectorIndex>) -> Arc<Self> {
        Arc::new(Self {
            inner: inner.clone(),
            rules: Mutex::default(),
            calls: Mutex::default(),
            indexed: Mutex::default(),
            refused: Mutex::default(),
            late: Mutex::default(),
            load: Mutex::default(),
            restarted: AtomicBool::default(),
            on_the_network: TaskTracker::new(),
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

    /// Every such call fails from now on: before the engine gets it, or after it did the work.
    pub fn fail(&self, when: When, verb: Verb, error: IndexError) {
        self.add(when, verb, Rule::Fail(error));
    }

    /// Upserts with a point of this note are refused from now on.
    pub fn refuse(&self, note: Uuid) {
        self.refused.lock().unwrap().push(note);
    }

    fn refusal(&self, points: &[Point]) -> Option<IndexError> {
        let refused = self.refused.lock().unwrap();
        let point = points
            .iter()
            .find(|p| refused.contains(&p.payload.note.note_id))?;
        Some(IndexError::Refused {
            engine: "the engine".into(),
            reason: format!("it does not like point {}", point.payload.chunk_id),
        })
    }

    /// The engine takes so many points in one load.
    pub fn load_at_most(&self, points: u64) {
        *self.load.lock().unwrap() = Some(points);
    }

    /// The engine says that it is grey until a load is ended again.
    pub fn restart(&self) {
        self.restarted.store(true, Ordering::SeqCst);
    }

    /// Upserts reach the engine only when this is opened, even if the caller has stopped waiting.
    pub fn delay_upserts(&self) -> Halt {
        let halt = Halt {
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        };
        *self.late.lock().unwrap() = Some(halt.clone());
        halt
    }

    /// Waits until upserts that were delayed have reached the engine.
    pub async fn all_landed(&self) {
        self.on_the_network.close();
        self.on_the_network.wait().await;
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        let is_halt = |rule: &Rule| matches!(rule, Rule::Halt(_));
        let mut rules = self.rules.lock().unwrap();
        rules.retain(|(_, _, rule)| is_halt(rule));
    }

    /// The collections whose fields were indexed.
    pub fn indexed(&self) -> Vec<String> {
        self.indexed.lock().unwrap().clone()
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

    fn place(&self) -> IndexPlace {
        self.inner.place()
    }

    fn create_collection<'a>(&'a self, name: &'a str, spec: &'a CollectionSpec) -> Answer<'a, ()> {
        let call = self.inner.create_collection(name, spec);
        self.on_the_way(Verb::CreateCollection, call)
    }

    fn index_fields<'a>(&'a self, collection: &'a str, fields: &'a Declared) -> Answer<'a, ()> {
        if !fields.is_empty() {
            self.indexed.lock().unwrap().push(collection.to_owned());
        }
        self.inner.index_fields(collection, fields)
    }

    fn collection<'a>(&'a self, name: &'a str) -> Answer<'a, Option<CollectionInfo>> {
        let said = async move {
            let mut info = self.inner.collection(name).await?;
            if let Some(info) = &mut info
                && self.restarted.load(Ordering::SeqCst)
            {
                info.status = CollectionStatus::Grey;
            }
            Ok(info)
        };
        self.on_the_way(Verb::Collection, Box::pin(said))
    }

    fn begin_load<'a>(&'a self, collection: &'a str) -> Answer<'a, u64> {
        let begun = async move {
            let most = self.inner.begin_load(collection).await?;
            Ok(self.load.lock().unwrap().unwrap_or(most))
        };
        self.on_the_way(Verb::BeginLoad, Box::pin(begun))
    }

    fn end_load<'a>(&'a self, collection: &'a str) -> Answer<'a, ()> {
        let ended = async move {
            self.restarted.store(false, Ordering::SeqCst);
            self.inner.end_load(collection).await
        };
        self.on_the_way(Verb::EndLoad, Box::pin(ended))
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
        points: &'a [Point],
        mode: UpsertMode,
    ) -> Answer<'a, ()> {
        if let Some(refusal) = self.refusal(points) {
            return self.on_the_way(Verb::Upsert, Box::pin(async { Err(refusal) }));
        }
        if let Some(halt) = self.late.lock().unwrap().clone() {
            let (inner, collection) = (self.inner.clone(), collection.to_owned());
            let points = points.to_vec();
            let landing = self.on_the_network.spawn(async move {
                halt.arrived.send_modify(|arrived| *arrived += 1);
                halt.open.subscribe().wait_for(|open| *open).await.unwrap();
                inner.upsert(&collection, &points, mode).await
            });
            return self.on_the_way(Verb::Upsert, Box::pin(async { landing.await.unwrap() }));
        }
        let call = self.inner.upsert(collection, points, mode);
        self.on_the_way(Verb::Upsert, call)
    }

    fn relabel<'a>(&'a self, collection: &'a str, notes: &'a [Relabel]) -> Answer<'a, ()> {
        self.on_the_way(Verb::Relabel, self.inner.relabel(collection, notes))
    }

    fn delete<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, ()> {
        self.on_the_way(Verb::Delete, self.inner.delete(collection, filter))
    }

    fn count<'a>(&'a self, collection: &'a str, filter: &'a Filter) -> Answer<'a, u64> {
        let verb = match (&filter.note_ids, &filter.except_chunk_ids) {
            (Some(_), Some(_)) => Verb::CountOlder,
            (Some(_), None) => Verb::CheckTokens,
            (None, _) => Verb::Count,
        };
        self.on_the_way(verb, self.inner.count(collection, filter))
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

    fn search<'a>(&'a self, collection: &'a str, query: &'a Query) -> Answer<'a, Vec<Candidate>> {
        self.on_the_way(Verb::Search, self.inner.search(collection, query))
    }
}
