//! Records searches in the background. A search never waits for its record: while Postgres is
//! slow, records are left out, and a metric counts them.

use std::time::Duration;

use metrics::counter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Api;
use crate::error_class::ErrorClass;
use crate::store::{Hit, SearchTrace, Store, StoreError};

/// Records that wait at most. A record has the query, the filter, and up to 200 chunks.
const MAX_WAITING: usize = 64;

/// How often old records are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// How long a request waits for the records before it.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Where searches are recorded.
pub struct TraceLog(Option<mpsc::Sender<Record>>);

enum Record {
    Search(Box<SearchTrace>),
    Hits(Vec<Hit>),
    /// To be told when the records before are written.
    Barrier(oneshot::Sender<()>),
}

/// Deletes records that are older than this many days, until dropped. Every process that serves
/// the API does it: none knows of the others.
pub async fn forget(store: Store, days: u32) {
    let mut ticks = tokio::time::interval(FORGET_EVERY);
    loop {
        ticks.tick().await;
        if let Err(error) = store.drop_traces(days as i32).await {
            tracing::debug!(%error, "could not delete old records of searches");
        }
    }
}

impl TraceLog {
    /// A log that records nothing if `trace_days` is 0. The task ends after the last record, when
    /// the log is dropped.
    pub fn start(api: &Api) -> (Self, JoinHandle<()>) {
        let (queue, records) = mpsc::channel(MAX_WAITING);
        let writer = Writer {
            store: api.store.clone(),
            version: api.version.clone(),
            is_failing: false,
        };
        let queue = Some(queue).filter(|_| api.trace_days > 0);
        (Self(queue), tokio::spawn(writer.run(records)))
    }

    /// Records a search. Returns its id, or nothing if it is not recorded.
    pub fn search(&self, trace: SearchTrace) -> Option<Uuid> {
        let id = trace.trace_id;
        self.record(Record::Search(Box::new(trace))).then_some(id)
    }

    /// Records which notes of an answer a client read.
    pub fn hits(&self, hits: Vec<Hit>) {
        if !hits.is_empty() {
            self.record(Record::Hits(hits));
        }
    }

    fn record(&self, record: Record) -> bool {
        let Some(queue) = &self.0 else {
            return false;
        };
        let is_recorded = queue.try_send(record).is_ok();
        if !is_recorded {
            counter!("elf_search_traces_lost_total").increment(1);
        }
        is_recorded
    }

    /// Waits until the records of this process before now are written, for a moment at most.
    pub async fn written(&self) {
        let Some(queue) = &self.0 else {
            return;
        };
        let (done, written) = oneshot::channel();
        let waiting = async {
            if queue.send(Record::Barrier(done)).await.is_ok() {
                let _ = written.await;
            }
        };
        let _ = tokio::time::timeout(MAX_WAIT, waiting).await;
    }
}

struct Writer {
    store: Store,
    version: String,
    /// Whether the last write failed, so that an outage is logged once.
    is_failing: bool,
}

impl Writer {
    async fn run(mut self, mut queue: mpsc::Receiver<Record>) {
        let mut records = Vec::new();
        while queue.recv_many(&mut records, MAX_WAITING).await > 0 {
            let (mut traces, mut hits, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            for record in records.drain(..) {
                match record {
                    Record::Search(trace) => traces.push(*trace),
                    Record::Hits(read) => hits.extend(read),
                    Record::Barrier(done) => waiting.push(done),
                }
            }
            if !traces.is_empty() || !hits.is_empty() {
                self.write(&traces, &hits).await;
            }
            for done in waiting {
                // The request may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    async fn write(&mut self, traces: &[SearchTrace], hits: &[Hit]) {
        let written = self.store.add_traces(&self.version, traces, hits).await;
        match written {
            // One record must not take the others with it.
            Err(error) if error.class() == ErrorClass::Item && traces.len() + hits.len() > 1 => {
                for trace in traces {
                    let alone = std::slice::from_ref(trace);
                    let written = self.store.add_traces(&self.version, alone, &[]).await;
                    self.note(written, 1);
                }
                let written = self.store.add_traces(&self.version, &[], hits).await;
                self.note(written, hits.len());
            }
            written => self.note(written, traces.len() + hits.len()),
        }
    }

    fn note(&mut self, written: Result<(), StoreError>, records: usize) {
        match written {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                counter!("elf_search_traces_lost_total").increment(records as u64);
                if !self.is_failing {
                    tracing::warn!(%error, records, "searches not recorded");
                }
                self.is_failing = true;
            }
        }
    }
}
