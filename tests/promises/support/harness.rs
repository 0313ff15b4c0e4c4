//! A database, a vector engine, an embeddings server and the parts of a worker,
//! all of a test's own.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use elf::chunk::{Chunk, NoteChunker, Subject};
use elf::cli::wiring::{self, EmbeddingSetup};
use elf::config::Config;
use elf::embed::provider::Provider;
use elf::index::{Filter, StoredPoint, VectorIndex};
use elf::serving;
use elf::store::JobLease;
use elf::verify;
use elf::worker::{Breakpoint, Checkpoint, Pipeline, Report, Worker};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::embedding_server::vector_of;
use super::qdrant::Qdrant;
use super::site::Site;

/// Everything that a worker needs, and methods that check what it did.
pub struct Harness {
    pub pipeline: Pipeline,
    pub config: Config,
    pub pool: PgPool,
    // Dropped last: the others still use it.
    site: Site,
}

impl Deref for Harness {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

/// A worker that works in the background.
pub struct Working {
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Working {
    /// Asks it to stop, and waits for that.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}

/// The model whose tokenizer the tests chunk with; `make setup` brings it.
pub fn model() -> PathBuf {
    match std::env::var_os("ELF_TEST_MODEL") {
        Some(path) => path.into(),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".elf/models/all-MiniLM-L6-v2"),
    }
}

/// `elf.toml` for a test: chunks of at most 32 tokens and 512 bytes, so that short texts have several.
pub fn elf_toml(database: &str, index: &str, provider: &str) -> String {
    format!(
        r#"
[service]
admin_bind = "127.0.0.1:0"
log_level = "debug"
[storage.postgres]
dsn = "{database}"
[storage.qdrant]
url = "{index}"
[providers.embedding]
provider = "openai"
api_base = "{provider}"
model = "test"
timeout_ms = 6000
[chunking]
max_tokens = 32
overlap_tokens = 8
tokenizer_repo = "{}"
[worker]
lease_secs = 5
max_attempts = 3
poll_interval_ms = 50
batch_notes = 16
concurrency = 2
grace_secs = 5
backoff_base_ms = 1
backoff_max_ms = 5
"#,
        model().display()
    )
}

fn config(toml: &str) -> Config {
    Config::parse(toml, "elf.toml", &|_| None).unwrap()
}

impl Harness {
    pub async fn start() -> Self {
        Self::start_with(|toml| toml).await
    }

    /// With another `elf.toml` than [`elf_toml`] makes.
    pub async fn start_with(change: impl FnOnce(String) -> String) -> Self {
        let site = Site::empty().await;
        let toml = change(site.toml());
        site.write("elf.toml", &toml);
        let config = config(&toml);
        let store = wiring::store(&config).await.unwrap();
        store.migrate().await.unwrap();
        Self::with(site, config).await
    }

    /// With its index in a server.
    pub async fn start_on(server: &Qdrant) -> Self {
        let site = Site::empty().await;
        site.use_server(&server.url());
        let config = config(&site.toml());
        let store = wiring::store(&config).await.unwrap();
        store.migrate().await.unwrap();
        Self::with(site, config).await
    }

    /// A harness over an existing site. No other process may have the site's index open.
    pub async fn over(site: Site) -> Self {
        let config = config(&site.toml());
        Self::with(site, config).await
    }

    async fn with(site: Site, config: Config) -> Self {
        let pipeline = wiring::pipeline(&config).await.unwrap();
        serving::register_or_check_version(&pipeline.serving.store, &pipeline.version)
            .await
            .unwrap();
        serving::ensure_ready(&pipeline.serving, &pipeline.version)
            .await
            .unwrap();
        // On a disk that others keep busy, a connection may take longer than sqlx's half a minute.
        let pool = PgPoolOptions::new().acquire_timeout(super::DEADLINE);
        let pool = pool.connect(&site.database.url()).await.unwrap();
        Self {
            pipeline,
            config,
            pool,
            site,
        }
    }

    /// Closes the index, so that a process can open it.
    pub async fn into_site(self) -> Site {
        self.pool.close().await;
        self.site
    }

    /// Starts a worker in the background.
    pub fn work(&self) -> Working {
        let (worker, stop) = (self.worker(), CancellationToken::new());
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { worker.run(stop).await }
        });
        Working { stop, running }
    }

    /// What a rebuild works with, over `index`.
    pub fn rebuilds_with(&self, index: Arc<dyn VectorIndex>) -> serving::Serving {
        serving::Serving {
            index,
            ..self.pipeline.serving.clone()
        }
    }

    /// The collection that has all of the active version.
    pub async fn collection(&self) -> String {
        let registered = self
            .pipeline
            .serving
            .store
            .registered_collections()
            .await
            .unwrap();
        let active = registered.into_iter().find(|c| c.is_active());
        active.expect("one is active").name
    }

    /// Compares the index with Postgres.
    pub async fn verify(&self, options: &verify::Options) -> verify::Report {
        let pipeline = &self.pipeline;
        verify::run(&pipeline.serving, options).await.unwrap()
    }

    /// Fails unless promise 1 holds and a deep verify finds no drift either.
    pub async fn assert_exact(&self) {
        let found = Findings::default();
        let report = self.verify(&found.deep()).await;
        assert_eq!(report.drift(), 0, "{report:?}\n{}", found.all().join("\n"));
        assert_eq!(report.chunks, report.points);
        self.assert_converged().await;
    }

    /// The lease of a job whose process hangs: its steps succeed until another job begins.
    pub async fn dead_job(&self) -> JobLease {
        let holder = Uuid::new_v4().to_string();
        let store = &self.pipeline.serving.store;
        let job = store.take_job("test", "test", &holder, Duration::ZERO);
        assert_eq!(job.await.unwrap().holder, holder);
        JobLease::of(&holder)
    }

    /// Retires every version, as a drop does before it deletes.
    pub async fn retire_all(&self) {
        sqlx::raw_sql(
            "update index_versions set state = 'retired';
             update index_collections set state = 'retired'",
        )
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// Expires the job lease of a rebuild that died.
    pub async fn expire_job_lease(&self) {
        sqlx::query("update index_job set lease_until = now() - interval '1 second'")
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// What a worker with another configuration needs, over the same index.
    pub async fn pipeline_of(&self, config: &Config) -> Pipeline {
        let EmbeddingSetup {
            store,
            chunker,
            embedder,
            version,
        } = wiring::setup(config).await.unwrap();
        Pipeline {
            serving: serving::Serving {
                store,
                ..self.pipeline.serving.clone()
            },
            provider: Arc::new(Provider::new(embedder, &config.providers.embedding)),
            chunker,
            version,
            document_prefix: config.providers.embedding.document_prefix.clone(),
        }
    }

    pub fn worker(&self) -> Worker {
        Worker::new(
            self.pipeline.clone(),
            &self.config.worker,
            &self.config.outbox,
        )
    }

    /// A worker on `pipeline` with one batch at a time: while that batch is held, it claims
    /// nothing.
    pub fn one_batch_worker(&self, pipeline: Pipeline) -> Worker {
        let settings = elf::config::Worker {
            concurrency: 1,
            ..self.config.worker.clone()
        };
        Worker::new(pipeline, &settings, &self.config.outbox)
    }

    /// Starts a worker, and waits until a batch of it stands at `checkpoint`.
    pub async fn held_at(&self, checkpoint: Checkpoint) -> Held {
        Held::at(checkpoint, self.worker()).await
    }

    /// Works until nothing is due.
    pub async fn drain(&self) -> Report {
        let worker = self.worker();
        worker.drain(CancellationToken::new()).await.unwrap();
        worker.totals()
    }

    /// Works until the outbox has only dead letters. Retries come at once.
    pub async fn drain_with_retries(&self) -> Report {
        let mut total = Report::default();
        loop {
            let report = self.drain().await;
            total.notes += report.notes;
            total.embedded += report.embedded;
            total.dead += report.dead;
            if self.count("indexing_outbox where status <> 'DEAD'").await == 0 {
                return total;
            }
        }
    }

    pub async fn insert(&self, text: &str) -> Uuid {
        sqlx::query_scalar(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1) returning note_id",
        )
        .bind(text)
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }

    pub async fn edit(&self, note: Uuid, text: &str) {
        self.execute(
            "update memory_notes set text = $2 where note_id = $1",
            note,
            text,
        )
        .await;
    }

    pub async fn delete(&self, note: Uuid) {
        sqlx::query("delete from memory_notes where note_id = $1")
            .bind(note)
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// Runs a statement whose `$1` is a note and `$2` a text.
    pub async fn execute(&self, statement: &'static str, note: Uuid, text: &str) {
        sqlx::query(statement)
            .bind(note)
            .bind(text)
            .execute(&self.pool)
            .await
            .unwrap();
    }

    /// Counts the rows of `table where condition`.
    pub async fn count(&self, from: &str) -> i64 {
        let statement = format!("select count(*) from {from}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    /// Expires every lease, as if its worker had died a while ago.
    pub async fn expire_leases(&self) {
        // Locked in the order in which workers lock them, so that neither waits for the other.
        let statement = "with leased as (
                 select note_id, embedding_version from note_index_state
                  where lease_until is not null
                  order by note_id, embedding_version for update)
             update note_index_state s set lease_until = now() - interval '1 second'
               from leased
              where (s.note_id, s.embedding_version)
                    = (leased.note_id, leased.embedding_version)";
        sqlx::query(statement).execute(&self.pool).await.unwrap();
    }

    /// All points of the alias.
    pub async fn points(&self) -> Vec<StoredPoint> {
        let mut points: Vec<StoredPoint> = Vec::new();
        loop {
            let after = points.last().map(|p| p.chunk_id);
            let page = self
                .pipeline
                .serving
                .index
                .scroll(&self.pipeline.serving.alias, after, 500, true)
                .await
                .unwrap();
            let end = page.len() < 500;
            points.extend(page);
            if end {
                return points;
            }
        }
    }

    pub async fn points_of(&self, note: Uuid) -> u64 {
        let filter = Filter {
            note_ids: Some(vec![note]),
            ..Filter::default()
        };
        self.pipeline
            .serving
            .index
            .count(&self.pipeline.serving.alias, &filter)
            .await
            .unwrap()
    }

    /// Promise 1: the points equal the chunks of the live notes, and these chunks follow
    /// from the present texts.
    pub async fn assert_converged(&self) {
        assert_eq!(
            self.count("indexing_outbox").await,
            0,
            "the outbox is not empty"
        );
        let chunks: Vec<ChunkRow> = sqlx::query_as(
            "select c.chunk_id, c.note_id, c.chunk_index, c.start_offset, c.end_offset, c.lead, c.text, s.revision,
                    e.vec, n.tenant_id, n.scope, n.key
               from memory_note_chunks c
               join note_chunk_embeddings e using (chunk_id, embedding_version)
               join memory_notes n using (note_id)
               join note_index_state s
                 on (s.note_id, s.embedding_version) = (c.note_id, c.embedding_version)
              where n.status = 'active' and (n.expires_at is null or n.expires_at > now())
              order by c.chunk_id",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        let points = self.points().await;
        let ids = |of: Vec<Uuid>| of;
        assert_eq!(
            ids(points.iter().map(|p| p.chunk_id).collect()),
            ids(chunks.iter().map(|c| c.chunk_id).collect()),
            "the points are not the chunks of the live notes"
        );
        for (point, chunk) in points.iter().zip(&chunks) {
            chunk.assert_is(point);
        }
        let uncovered: Vec<Uuid> = sqlx::query_scalar(
            "select note_id from memory_notes n
              where n.status = 'active' and (n.expires_at is null or n.expires_at > now())
                and n.text ~ '\\S' and not exists (select from memory_note_chunks c where c.note_id = n.note_id)",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        assert_eq!(uncovered, Vec::<Uuid>::new(), "live notes without a chunk");
        self.assert_cut_as_now().await;
    }

    /// Every live note has the chunks that the chunker makes of its present text.
    async fn assert_cut_as_now(&self) {
        let notes: Vec<(Uuid, String, Option<String>, Option<String>)> = sqlx::query_as(
            "select note_id, text, title, (source_ref -> 'cuts')::text from memory_notes n
              where n.status = 'active' and (n.expires_at is null or n.expires_at > now())",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        let rows: Vec<(Uuid, i32, i32, String)> = sqlx::query_as(
            "select note_id, start_offset, end_offset, text from memory_note_chunks
              order by note_id, chunk_index",
        )
        .fetch_all(&self.pool)
        .await
        .unwrap();
        let mut stored_of: BTreeMap<Uuid, Vec<(i32, i32, String)>> = BTreeMap::new();
        for (note, start, end, text) in rows {
            stored_of.entry(note).or_default().push((start, end, text));
        }
        for (note, text, title, cuts) in notes {
            let cuts = cuts.map(|json| elf::chunk::cuts(&json, &text));
            let stored = stored_of.remove(&note).unwrap_or_default();
            let subject = Subject {
                title: title.as_deref(),
                cuts: &cuts.and_then(Result::ok).unwrap_or_default(),
                ..subject()
            };
            let split = self.pipeline.chunker.split(&text, subject).unwrap();
            let cut = split.chunks;
            let cut: Vec<(i32, i32, String)> = cut
                .iter()
                .map(|c| {
                    (
                        c.start as i32,
                        c.end as i32,
                        text[c.start..c.end].to_owned(),
                    )
                })
                .collect();
            assert_eq!(
                stored, cut,
                "the chunks of {note} are not those of its text"
            );
        }
    }
}

#[derive(sqlx::FromRow)]
struct ChunkRow {
    chunk_id: Uuid,
    note_id: Uuid,
    chunk_index: i32,
    start_offset: i32,
    end_offset: i32,
    lead: String,
    text: String,
    revision: i64,
    vec: pgvector::Vector,
    tenant_id: String,
    scope: String,
    key: Option<String>,
}

impl ChunkRow {
    fn assert_is(&self, point: &StoredPoint) {
        let of = |name: &str| &point.payload[name];
        assert_eq!(of("note_id"), &self.note_id.to_string());
        assert_eq!(of("chunk_id"), &self.chunk_id.to_string());
        assert_eq!(of("chunk_index"), &self.chunk_index);
        assert_eq!(of("start_offset"), &self.start_offset);
        assert_eq!(of("end_offset"), &self.end_offset);
        assert_eq!(of("revision"), &self.revision);
        assert_eq!(of("tenant_id"), &self.tenant_id);
        assert_eq!(of("scope"), &self.scope);
        assert_eq!(
            point.payload.get("key").and_then(|k| k.as_str()),
            self.key.as_deref()
        );
        assert!(
            !point.payload.contains_key("text"),
            "the text went into the payload"
        );
        let stored = self.vec.to_vec();
        let expected = vector_of(&format!("{}{}", self.lead, self.text), stored.len());
        assert!(
            distance(&stored, &expected) < 1e-5,
            "the vector is not that of the text"
        );
        let indexed = point.vector.as_deref().expect("vectors were asked for");
        assert!(
            distance(&unit(&stored), &unit(indexed)) < 1e-5,
            "the index has another vector"
        );
    }
}

pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| (x - y).abs())
        .fold(0.0, f32::max)
}

/// The vector of length 1 in the same direction.
pub fn unit(v: &[f32]) -> Vec<f32> {
    let norm = v.iter().map(|x| x * x).sum::<f32>().sqrt();
    v.iter().map(|x| x / norm).collect()
}

/// Runs `worker` in the background until the token is cancelled.
pub fn spawn(worker: Worker) -> (Arc<Worker>, CancellationToken, JoinHandle<()>) {
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let running = tokio::spawn({
        let (worker, stop) = (worker.clone(), stop.clone());
        async move { worker.run(stop).await }
    });
    (worker, stop, running)
}

/// Stops batches at a checkpoint until it is opened. A test waits for one to arrive.
#[derive(Clone)]
pub struct Barrier {
    checkpoint: Checkpoint,
    arrived: Arc<watch::Sender<usize>>,
    open: Arc<watch::Sender<bool>>,
}

impl Barrier {
    pub fn at(checkpoint: Checkpoint) -> Self {
        Self {
            checkpoint,
            arrived: Arc::new(watch::Sender::new(0)),
            open: Arc::new(watch::Sender::new(false)),
        }
    }

    pub fn breakpoint(&self) -> Breakpoint {
        let barrier = self.clone();
        Arc::new(move |checkpoint| {
            let barrier = barrier.clone();
            Box::pin(async move {
                if checkpoint == barrier.checkpoint {
                    barrier.arrived.send_modify(|n| *n += 1);
                    barrier
                        .open
                        .subscribe()
                        .wait_for(|open| *open)
                        .await
                        .unwrap();
                }
            })
        })
    }

    /// Waits until a batch stands here.
    pub async fn reached(&self) {
        self.arrived.subscribe().wait_for(|n| *n > 0).await.unwrap();
    }

    /// Lets everything through from now on.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

/// A worker in the background whose batches stand at a checkpoint.
pub struct Held {
    pub worker: Arc<Worker>,
    barrier: Barrier,
    stop: CancellationToken,
    running: JoinHandle<()>,
}

impl Held {
    /// Starts `worker`, and waits until a batch of it stands at `checkpoint`.
    pub async fn at(checkpoint: Checkpoint, worker: Worker) -> Self {
        let barrier = Barrier::at(checkpoint);
        let (worker, stop, running) = spawn(worker.with_breakpoint(barrier.breakpoint()));
        barrier.reached().await;
        Self {
            worker,
            barrier,
            stop,
            running,
        }
    }

    /// Lets its batches go on, now and later.
    pub fn open(&self) {
        self.barrier.open();
    }

    /// Asks it to stop, and does not wait for that.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Asks it to stop, and waits for that.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }

    /// Ends it as a SIGKILL does: its leases stay.
    pub async fn kill(self) {
        self.running.abort();
        self.running.await.unwrap_err();
    }
}

/// The findings of a verify, as it words them.
#[derive(Default)]
pub struct Findings(Arc<std::sync::Mutex<Vec<String>>>);

impl Findings {
    /// Checks everything, vectors too, and repairs nothing.
    pub fn deep(&self) -> verify::Options {
        verify::Options {
            deep: true,
            repair: false,
            notice: self.notice(),
            ..verify::Options::repairing()
        }
    }

    /// Records every finding.
    pub fn notice(&self) -> elf::serving::Notice {
        let found = self.0.clone();
        Arc::new(move |finding| found.lock().unwrap().push(finding))
    }

    /// Everything so far.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Whether one of them has all of `words`.
    pub fn have(&self, words: &[&str]) -> bool {
        let found = self.all();
        found
            .iter()
            .any(|f| words.iter().all(|word| f.contains(word)))
    }
}

/// Sentences that differ, `count` of them, about 9 tokens each.
pub fn sentences(count: usize, about: &str) -> String {
    (0..count)
        .map(|i| format!("Sentence number {i} tells of {about} at length. "))
        .collect()
}

/// The chunks of a text, as those of a note.
pub fn chunks(chunker: &NoteChunker, text: &str) -> Vec<Chunk> {
    chunker.split(text, subject()).unwrap().chunks
}

/// What a note is split by, if it has a text alone.
pub fn subject() -> Subject<'static> {
    Subject {
        kind: "",
        title: None,
        cuts: &[],
        updated_at: DateTime::UNIX_EPOCH,
    }
}
