//! Two embedding versions side by side: built, swapped, rolled back, dropped.

mod canary;
mod changes;
mod command_line;
mod interruptions;
mod lost_job;
mod rollback;
mod swap;
mod vectors;

use std::collections::{BTreeMap, BTreeSet};

use elf::config::Config;
use elf::index::StoredPoint;
use elf::note::chunk_id;
use elf::reindex::{self, ReindexError, Report, Then};
use elf::store::Lifecycle;
use elf::verify;
use elf::worker::{self, Pipeline, Worker};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::embedding_server::vector_of;
use crate::support::harness::{Harness, chunks, distance, unit};

/// Another configuration over the same database and the same engine.
struct Beside {
    pipeline: Pipeline,
    config: Config,
}

async fn beside(h: &Harness, change: impl FnOnce(&mut Config)) -> Beside {
    let mut config = h.config.clone();
    change(&mut config);
    let pipeline = h.pipeline_of(&config).await;
    Beside { pipeline, config }
}

async fn smaller_chunks(h: &Harness) -> Beside {
    beside(h, |config| config.chunking.settings.max_tokens = 24).await
}

impl Beside {
    fn worker(&self) -> Worker {
        Worker::new(
            self.pipeline.clone(),
            &self.config.worker,
            &self.config.outbox,
        )
    }

    async fn run(&self, then: Then) -> Result<Report, ReindexError> {
        self.run_with(&self.worker(), then).await
    }

    async fn run_with(&self, worker: &Worker, then: Then) -> Result<Report, ReindexError> {
        let options = verify::Options {
            repair: false,
            ..verify::Options::repairing()
        };
        reindex::run(
            &self.pipeline,
            worker,
            then,
            &options,
            CancellationToken::new(),
        )
        .await
    }

    async fn drain(&self) -> worker::Report {
        let worker = self.worker();
        worker.drain(CancellationToken::new()).await.unwrap();
        worker.totals()
    }

    async fn state(&self) -> Option<Lifecycle> {
        state_of(&self.pipeline).await
    }
}

async fn state_of(pipeline: &Pipeline) -> Option<Lifecycle> {
    let known = pipeline
        .serving
        .store
        .version(&pipeline.version.name)
        .await
        .unwrap();
    known.map(|known| known.state)
}

async fn collection_of(pipeline: &Pipeline) -> String {
    let all = pipeline
        .serving
        .store
        .collections(&pipeline.version.name)
        .await
        .unwrap();
    all[0].name.clone()
}

async fn points_in(pipeline: &Pipeline, collection: &str) -> Vec<StoredPoint> {
    let mut points: Vec<StoredPoint> = Vec::new();
    loop {
        let after = points.last().map(|p| p.chunk_id);
        let page = pipeline
            .serving
            .index
            .scroll(collection, after, 500, true)
            .await
            .unwrap();
        let end = page.len() < 500;
        points.extend(page);
        if end {
            return points;
        }
    }
}

/// The points of a version are the chunks that its chunker cuts the live notes into,
/// with the vectors of their texts, and its outbox is empty.
#[track_caller]
fn assert_points(points: &[StoredPoint], pipeline: &Pipeline, notes: &[(Uuid, String)]) {
    let mut expected = BTreeMap::new();
    for (note, text) in notes {
        for (i, chunk) in chunks(&pipeline.chunker, text).iter().enumerate() {
            expected.insert(chunk_id(*note, i as u32), &text[chunk.start..chunk.end]);
        }
    }
    assert_eq!(
        points.iter().map(|p| p.chunk_id).collect::<BTreeSet<_>>(),
        expected.keys().copied().collect(),
        "the points of {} are not its chunks",
        pipeline.version.name
    );
    for point in points {
        assert_eq!(point.payload["embedding_version"], pipeline.version.name);
        let wanted = vector_of(expected[&point.chunk_id], pipeline.version.dim);
        let found = point.vector.as_deref().unwrap();
        assert!(distance(&unit(&wanted), &unit(found)) < 1e-5);
    }
}

async fn assert_in_step(h: &Harness, pipeline: &Pipeline) {
    let left = pipeline
        .serving
        .store
        .outbox_counts(Some(&pipeline.version.name))
        .await
        .unwrap();
    assert_eq!(
        (left.pending, left.leased, left.failed, left.dead),
        (0, 0, 0, 0)
    );
    let notes: Vec<(Uuid, String)> = sqlx::query_as(
        "select note_id, text from memory_notes
          where status = 'active' and (expires_at is null or expires_at > now())",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap();
    let points = points_in(pipeline, &collection_of(pipeline).await).await;
    assert_points(&points, pipeline, &notes);
}

/// Expires the leases and the job of a dead process.
async fn expire_leases_and_job(on: impl sqlx::PgExecutor<'_>) {
    sqlx::query(
        "with job as (update index_job set lease_until = now() - interval '1 second')
         update note_index_state set lease_until = now() - interval '1 second'
          where lease_until is not null",
    )
    .execute(on)
    .await
    .unwrap();
}

async fn alias_of(h: &Harness) -> String {
    h.pipeline
        .serving
        .index
        .resolve(&h.pipeline.serving.alias)
        .await
        .unwrap()
        .unwrap()
}
