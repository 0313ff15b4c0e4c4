//! A search against the least that finds the same: the bare hybrid query of the engine and one
//! look-up in Postgres. Both ask for the same query, one after the other, in turns. Then with the
//! filter of one tenant among a thousand, and then by sixteen clients while a worker indexes.
//!
//! The vectors of the queries are made before: the provider is not measured. `DATABASE_URL` names
//! the Postgres server; Qdrant is `QDRANT_URL`, else the `qdrant` program on the PATH.

#![expect(
    clippy::large_futures,
    reason = "a bench polls them on the main thread"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use elf::chunk::{Chunker, Tokenizer};
use elf::config::Config;
use elf::embed::provider::Provider;
use elf::index::Filter;
use elf::rebuild;
use elf::registry::{IndexContext, Progress};
use elf::search::{Request, Searcher};
use elf::worker::{Worker, WorkerContext};
use free::{Free, free_vector};
use qdrant_client::Qdrant;
use qdrant_client::qdrant::{
    Condition, DocumentBuilder, Filter as PointFilter, Fusion, PrefetchQueryBuilder, Query,
    QueryPointsBuilder, VectorInput, vector_input,
};
use stock::{DIM, Database, Result, TENANTS, site, values, version};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

mod free;
#[path = "../tests/support/qdrant_server.rs"]
mod qdrant_server;
mod stock;

const CHUNKS: usize = 100_000;
const QUERIES: usize = 500;
const LIMIT: u64 = 10;
/// As many candidates of each ranking as a search takes by default.
const CANDIDATES: u64 = 50;
const CLIENTS: usize = 16;

#[tokio::main]
async fn main() -> Result<()> {
    let Some(url) = qdrant_server::url() else {
        println!("search: skipped, it takes a Qdrant server (QDRANT_URL, or qdrant on the PATH)");
        return Ok(());
    };
    println!(
        "search, {CHUNKS} chunks of {TENANTS} tenants, {DIM} dimensions, Qdrant server at {url}"
    );
    let database = Database::create(CHUNKS).await?;
    let stores = site(&database.name, url).await?;
    fill(&stores).await?;
    let bench = Arc::new(Bench::new(stores.clone(), url, &database.name).await?);
    let queries = queries(&stores).await?;
    for query in &queries {
        bench.searcher.embed_ahead(&request(query, None)).await?;
        bench
            .searcher
            .embed_ahead(&request(query, Some("t1")))
            .await?;
    }
    bench.one_by_one(&queries[..100], None).await?;
    println!("one client, {QUERIES} queries in turns:");
    let (bare, elf) = bench.one_by_one(&queries, None).await?;
    print(&bare, &elf, "asked: 1.3 and 2");
    bench.print_stages(&queries).await?;
    println!("the filter of one tenant, against all tenants:");
    let (_, filtered) = bench.one_by_one(&queries, Some("t1")).await?;
    print(&elf, &filtered, "asked: 1");

    let before = memory()?;
    println!("{CLIENTS} clients, while a worker indexes changes of all notes as fast as it can:");
    let (bare, elf, indexed) = bench.under_load(&queries).await?;
    print(&bare, &elf, "asked: p99 3");
    println!(
        "  {} searches without an error; the worker indexed {indexed} notes meanwhile; memory {before:.0} MB before, {:.0} MB after",
        elf.len(),
        memory()?
    );
    // The engine may still be busy with the load.
    if let Err(error) = database.end(&stores).await {
        eprintln!("search: the database of the bench is left behind: {error}");
    }
    Ok(())
}

fn print(base: &[Duration], compared: &[Duration], asked: &str) {
    let at = |times: &[Duration], share: f64| {
        let mut times = times.to_vec();
        times.sort();
        times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3
    };
    let (p50, p99) = (at(base, 0.5), at(base, 0.99));
    let (compared_p50, compared_p99) = (at(compared, 0.5), at(compared, 0.99));
    println!(
        "  p50 {compared_p50:.2} / {p50:.2} ms = {:.2}, p99 {compared_p99:.2} / {p99:.2} ms = {:.2} ({asked})",
        compared_p50 / p50,
        compared_p99 / p99
    );
}

/// Writes the points, and waits until the engine has built its graphs.
async fn fill(stores: &IndexContext) -> Result<()> {
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let progress = Arc::new(Progress::default());
    let began = Instant::now();
    rebuild::run(stores, &options, progress, CancellationToken::new()).await?;
    println!("  filled in {:.0} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Some words of a chunk each, and words of another one.
async fn queries(stores: &IndexContext) -> Result<Vec<String>> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "select split_part(a.text, ' ', 5) || ' ' || split_part(a.text, ' ', 9) || ' '
                || split_part(a.text, ' ', 30),
                split_part(b.text, ' ', 20)
           from (select text, row_number() over (order by chunk_id) as n from memory_note_chunks) a
           join (select text, row_number() over (order by chunk_id desc) as n from memory_note_chunks) b
             on b.n = a.n
          where a.n % 199 = 0 limit $1",
    )
    .bind(QUERIES as i64)
    .fetch_all(stores.store.pool())
    .await?;
    Ok(rows.into_iter().map(|(a, b)| format!("{a} {b}")).collect())
}

fn request(query: &str, tenant: Option<&str>) -> Request {
    let keywords = tenant.map(|tenant| ("tenant_id".to_owned(), tenant.to_owned()));
    Request {
        filter: Filter {
            keywords: keywords.into_iter().collect(),
            ..Filter::default()
        },
        ..Request::hybrid(query, LIMIT as usize)
    }
}

struct Bench {
    context: WorkerContext,
    config: Config,
    searcher: Searcher,
    bare: Qdrant,
}

impl Bench {
    async fn new(stores: IndexContext, url: &str, alias: &str) -> Result<Self> {
        let model =
            std::env::var("ELF_TEST_MODEL").unwrap_or(".elf/models/all-MiniLM-L6-v2".into());
        let text = format!(
            "[storage.postgres]\ndsn = \"postgres://127.0.0.1/x\"\n[storage.qdrant]\nurl = {url:?}\n\
             alias = {alias:?}\n[providers.embedding]\napi_base = \"http://127.0.0.1:1\"\n\
             model = \"free\"\n[chunking]\ntokenizer_repo = {model:?}\n"
        );
        let config = Config::parse(&text, "bench", &|_| None)?;
        let tokenizer = Arc::new(Tokenizer::open(&model).await?);
        let context = WorkerContext {
            stores: stores.clone(),
            provider: Arc::new(Provider::new(Arc::new(Free), &config.providers.embedding)),
            chunker: Arc::new(Chunker::new(tokenizer.clone(), &config.chunking, "")?),
            version: version(),
            document_prefix: String::new(),
        };
        Ok(Self {
            searcher: Searcher::new(
                stores,
                context.provider.clone(),
                &version().name,
                "",
                Chunker::new(tokenizer, &config.chunking, "")?,
                config.search.clone(),
                None,
            ),
            context,
            config,
            bare: Qdrant::from_url(url).skip_compatibility_check().build()?,
        })
    }

    /// Where the time of a search is.
    async fn print_stages(&self, queries: &[String]) -> Result<()> {
        let mut stages: [Vec<Duration>; 3] = Default::default();
        for query in queries {
            let took = self
                .searcher
                .search(&request(query, None))
                .await?
                .trace
                .took;
            for (stage, time) in
                stages
                    .iter_mut()
                    .zip([took.retrieve, took.revalidate, took.stitch])
            {
                stage.push(time);
            }
        }
        let [retrieve, revalidate, stitch] = stages.each_mut().map(|times| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e3
        });
        println!(
            "  of it: {retrieve:.2} ms to retrieve, {revalidate:.2} to revalidate, {stitch:.2} to stitch"
        );
        Ok(())
    }

    /// The times of both, in turns.
    async fn one_by_one(
        &self,
        queries: &[String],
        tenant: Option<&str>,
    ) -> Result<(Vec<Duration>, Vec<Duration>)> {
        let (mut bare, mut elf) = (Vec::new(), Vec::new());
        for (i, query) in queries.iter().enumerate() {
            if i % 2 == 0 {
                bare.push(self.bare(query, tenant).await?);
                elf.push(self.elf(query, tenant).await?);
            } else {
                elf.push(self.elf(query, tenant).await?);
                bare.push(self.bare(query, tenant).await?);
            }
        }
        Ok((bare, elf))
    }

    async fn elf(&self, query: &str, tenant: Option<&str>) -> Result<Duration> {
        let began = Instant::now();
        let answer = self.searcher.search(&request(query, tenant)).await?;
        let took = began.elapsed();
        assert!(answer.degraded.is_empty(), "{:?}", answer.degraded);
        assert!(!answer.items.is_empty(), "{query}");
        Ok(took)
    }

    /// The hybrid query of the engine, and the texts of its ten best from Postgres.
    async fn bare(&self, query: &str, tenant: Option<&str>) -> Result<Duration> {
        let bm25 = serde_json::to_value(&self.context.stores.bm25)?;
        let options = values(bm25.as_object().ok_or("no object")?);
        let document = DocumentBuilder::new(query, "qdrant/bm25")
            .options(options)
            .build();
        let words = VectorInput {
            variant: Some(vector_input::Variant::Document(document)),
        };
        let vector = VectorInput::new_dense(free_vector(query));
        let filter = match tenant {
            Some(tenant) => PointFilter::must([Condition::matches("tenant_id", tenant.to_owned())]),
            None => PointFilter::default(),
        };
        let prefetch = |input, using: &str| {
            PrefetchQueryBuilder::default()
                .query(Query::new_nearest(input))
                .using(using)
                .filter(filter.clone())
                .limit(CANDIDATES)
        };
        let began = Instant::now();
        let found = self
            .bare
            .query(
                QueryPointsBuilder::new(&self.context.stores.alias)
                    .add_prefetch(prefetch(vector, "dense"))
                    .add_prefetch(prefetch(words, "bm25"))
                    .query(Query::new_fusion(Fusion::Rrf))
                    .limit(LIMIT)
                    .with_payload(true),
            )
            .await?;
        let ids: Vec<Uuid> = found
            .result
            .into_iter()
            .filter_map(|point| point.payload.get("chunk_id")?.as_str()?.parse().ok())
            .collect();
        let texts: Vec<(String,)> = sqlx::query_as(
            "select c.text from memory_note_chunks c join memory_notes n using (note_id)
              where c.chunk_id = any ($1) and c.embedding_version = $2 and n.status = 'active'",
        )
        .bind(&ids)
        .bind(version().name)
        .fetch_all(self.context.stores.store.pool())
        .await?;
        let took = began.elapsed();
        assert!(!texts.is_empty(), "{query}");
        Ok(took)
    }

    /// The times of both by many clients, and how many notes a worker indexed beside them.
    async fn under_load(
        self: &Arc<Self>,
        queries: &[String],
    ) -> Result<(Vec<Duration>, Vec<Duration>, u64)> {
        let stop = CancellationToken::new();
        let pool = self.context.stores.store.pool().clone();
        sqlx::query("update memory_notes set text = text || ' again'")
            .execute(&pool)
            .await?;
        let worker = Arc::new(Worker::new(
            self.context.clone(),
            &self.config.worker,
            &self.config.outbox,
        ));
        let working = tokio::spawn({
            let (worker, stop) = (worker.clone(), stop.clone());
            async move { worker.run(stop).await }
        });
        let clients = (0..CLIENTS).map(|client| {
            let (bench, queries) = (self.clone(), queries.to_vec());
            tokio::spawn(async move {
                let mine: Vec<String> = queries.into_iter().skip(client * 31 % QUERIES).collect();
                bench.one_by_one(&mine, None).await
            })
        });
        let (mut bare, mut elf) = (Vec::new(), Vec::new());
        for client in clients.collect::<Vec<_>>() {
            let (of_bare, of_elf) = client.await??;
            bare.extend(of_bare);
            elf.extend(of_elf);
        }
        let indexed = worker.totals().notes;
        stop.cancel();
        working.await?;
        Ok((bare, elf, indexed))
    }
}

fn memory() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kib: f64 = resident.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
