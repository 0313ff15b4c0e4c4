//! Records searches in the background. A search never waits for its record: while Postgres is
//! slow, records are left out, and a metric counts them.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Api;
use super::auth::Caller;
use crate::error_class::ErrorClass;
use crate::shares::{Share, Shares};
use crate::store::{Hit, SearchTrace, Store, StoreError};

/// Records that wait at most, of all tenants. A record has the query, the filter, and up to 200
/// chunks.
const MAX_WAITING: u64 = 64;

/// Records that are written at once.
const MAX_WRITTEN: usize = 64;

/// How often old records are deleted.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// How long a request waits for the records before it.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Where searches are recorded.
pub struct TraceLog(Option<Queue>);

struct Queue {
    records: mpsc::UnboundedSender<Record>,
    waiting: Arc<Shares>,
}

enum Record {
    Search(Box<SearchTrace>, Share),
    Hits(Vec<Hit>, Share),
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
        let (queue, records) = mpsc::unbounded_channel();
        let writer = Writer {
            store: api.store.clone(),
            version: api.version.clone(),
            is_failing: false,
        };
        let queue = (api.trace_days > 0).then(|| Queue {
            records: queue,
            waiting: Shares::new(MAX_WAITING),
        });
        (Self(queue), tokio::spawn(writer.run(records)))
    }

    /// Records a search of `caller`. Returns its id, or nothing if it is not recorded.
    pub fn search(&self, caller: &Caller, trace: SearchTrace) -> Option<Uuid> {
        let id = trace.trace_id;
        let record = |share| Record::Search(Box::new(trace), share);
        self.record(caller, record).then_some(id)
    }

    /// Records which notes of an answer `caller` read.
    pub fn hits(&self, caller: &Caller, hits: Vec<Hit>) {
        if !hits.is_empty() {
            self.record(caller, |share| Record::Hits(hits, share));
        }
    }

    /// Whether there is room for one more record of this caller.
    fn record(&self, caller: &Caller, record: impl FnOnce(Share) -> Record) -> bool {
        let Some(Queue { records, waiting }) = &self.0 else {
            return false;
        };
        let share = waiting.take(&caller.holder, 1);
        let is_recorded = share.is_some_and(|share| records.send(record(share)).is_ok());
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
            if queue.records.send(Record::Barrier(done)).is_ok() {
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
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Record>) {
        let mut records = Vec::new();
        while queue.recv_many(&mut records, MAX_WRITTEN).await > 0 {
            let (mut traces, mut hits, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            let mut until_written = Vec::new();
            for record in records.drain(..) {
                match record {
                    Record::Search(trace, share) => {
                        traces.push(*trace);
                        until_written.push(share);
                    }
                    Record::Hits(read, share) => {
                        hits.push(read);
                        until_written.push(share);
                    }
                    Record::Barrier(done) => waiting.push(done),
                }
            }
            if !traces.is_empty() || !hits.is_empty() {
                self.write(&traces, hits).await;
            }
            for done in waiting {
                // The request may have stopped waiting.
                let _ = done.send(());
            }
        }
    }

    async fn write(&mut self, traces: &[SearchTrace], hits: Vec<Vec<Hit>>) {
        let all = hits.concat();
        let written = self.store.add_traces(&self.version, traces, &all).await;
        match written {
            // One record must not take the others with it.
            Err(error) if error.class() == ErrorClass::Item && traces.len() + hits.len() > 1 => {
                for trace in traces {
                    let alone = std::slice::from_ref(trace);
                    let written = self.store.add_traces(&self.version, alone, &[]).await;
                    self.note(written, 1);
                }
                for hits in &hits {
                    let written = self.store.add_traces(&self.version, &[], hits).await;
                    self.note(written, hits.len());
                }
            }
            written => self.note(written, traces.len() + all.len()),
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
