//! A search against the least that finds the same: the bare hybrid query of the engine and one
//! look-up in Postgres. Both ask for the same query, one after the other, in turns. Then with the
//! filter of one tenant among a thousand, and then by sixteen clients while a worker indexes.
//!
//! The vectors of the queries are made before: the provider is not measured. `DATABASE_URL` names
//! the Postgres server; Qdrant is `QDRANT_URL`, else the `qdrant` program on the PATH.

use std::sync::Arc;
use std::time::{Duration, Instant};

use elf::chunk::{Chunker, NoteChunker, open_tokenizer};
use elf::config::Config;
use elf::embed::connect;
use elf::embed::provider::Provider;
use elf::index::Filter;
use elf::rebuild;
use elf::search::{Request, Searcher};
use elf::serving::{Progress, Serving};
use elf::worker::{Pipeline, Worker};
use qdrant_client::Qdrant;
use qdrant_client::qdrant::{
    Condition, DocumentBuilder, Filter as PointFilter, Fusion, PrefetchQueryBuilder, Query,
    QueryPointsBuilder, VectorInput, vector_input,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::corpus::Corpus;
use crate::engine;
use crate::report::{Report, Side, Target, quantile};
use crate::stand_in::{StandIn, vector};
use crate::stock::{Database, TENANTS};
use crate::{Options, Result};

const DIM: usize = 384;
const LIMIT: u64 = 10;
/// As many candidates of each ranking as a search takes by default.
const CANDIDATES: u64 = 50;
const CLIENTS: usize = 16;

pub async fn run(options: Options) -> Result<()> {
    let Some((engine, mut report)) = engine::server("search", options).await? else {
        return Ok(());
    };
    let corpus = Corpus::load()?;
    report.fact("texts", &corpus.source);
    report.fact("chunks", options.size(100_000, 2000));
    report.fact("tenants", TENANTS);
    report.fact("dimensions", DIM);
    let database = Database::create(&corpus, options.size(100_000, 2000), DIM).await?;
    let serving = database.serving(&engine.url).await?;
    report.fact(
        "seconds to fill the index",
        format!("{:.0}", fill(&serving).await?),
    );
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let bench = Arc::new(Bench::new(&database, serving.clone(), &engine.url, &provider).await?);
    let queries = queries(&serving, options.size(500, 10)).await?;
    for query in &queries {
        bench.searcher.embed_ahead(&request(query, None)).await?;
        bench
            .searcher
            .embed_ahead(&request(query, Some("t1")))
            .await?;
    }
    let pairs = async |tenant| bench.one_by_one(&queries, tenant).await;
    let all = rounds(options, || pairs(None)).await?;
    let name = format!("one client, {} queries", queries.len());
    compare(
        &mut report,
        &name,
        ["bare", "ELF"],
        &all,
        [Target::AtMost(1.3), Target::AtMost(2.0)],
    );
    bench.report_stages(&mut report, &queries).await?;
    let filtered = rounds(options, || pairs(Some("t1"))).await?;
    let name = "the filter of one tenant, against all tenants";
    let against_all = all
        .into_iter()
        .zip(filtered)
        .map(|((_, all), (_, one))| (all, one));
    let of_all: Vec<_> = against_all.collect();
    compare(
        &mut report,
        name,
        ["all", "one tenant"],
        &of_all,
        [Target::AtMost(1.0), Target::AtMost(1.0)],
    );

    let before = memory()?;
    let (bare, elf, indexed) = bench.under_load(&queries).await?;
    let name = format!("{CLIENTS} clients while a worker indexes");
    compare(
        &mut report,
        &name,
        ["bare", "ELF"],
        &[(bare, elf)],
        [Target::None, Target::AtMost(3.0)],
    );
    report.fact("notes that the worker indexed meanwhile", indexed);
    report.value(
        "memory that the searches added",
        "MB",
        vec![memory()? - before],
        Target::None,
    );
    // The engine may still be busy with the load.
    if let Err(error) = database.end(&serving).await {
        eprintln!("search: the database of the bench is left behind: {error}");
    }
    report.write()
}

type Times = Vec<Duration>;

/// The times of both sides in each round. A query asks both, one after the other.
async fn rounds<F: Future<Output = Result<(Times, Times)>>>(
    options: Options,
    mut round: impl FnMut() -> F,
) -> Result<Vec<(Times, Times)>> {
    let mut measured = Vec::new();
    for _ in 0..options.size(6, 1) {
        measured.push(round().await?);
    }
    // The first one warms up.
    Ok(measured.split_off(options.size(1, 0)))
}

fn compare(
    report: &mut Report,
    name: &str,
    [base_name, name_of_side]: [&str; 2],
    rounds: &[(Times, Times)],
    targets: [Target; 2],
) {
    for ((quantile_name, share), target) in [("p50", 0.5), ("p99", 0.99)].into_iter().zip(targets) {
        let at = |times: &Times| {
            let millis: Vec<f64> = times.iter().map(|time| 1e3 * time.as_secs_f64()).collect();
            quantile(&millis, share)
        };
        let base = rounds.iter().map(|(base, _)| at(base)).collect();
        let compared = rounds.iter().map(|(_, compared)| at(compared)).collect();
        let sides = [
            Side::new(name_of_side, compared),
            Side::new(base_name, base),
        ];
        report.ratio(&format!("{name}, {quantile_name}"), "ms", sides, target);
    }
}

/// Writes the points, and waits until the engine has built its graphs; the seconds.
async fn fill(serving: &Serving) -> Result<f64> {
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let progress = Arc::new(Progress::default());
    let began = Instant::now();
    rebuild::run(serving, &options, progress, CancellationToken::new()).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Some words of a chunk each, and words of another one.
async fn queries(serving: &Serving, count: usize) -> Result<Vec<String>> {
    let rows: Vec<(String, String)> = sqlx::query_as(
        "select split_part(a.text, ' ', 5) || ' ' || split_part(a.text, ' ', 9) || ' '
                || split_part(a.text, ' ', 30),
                split_part(b.text, ' ', 20)
           from (select text, row_number() over (order by chunk_id) as n from memory_note_chunks) a
           join (select text, row_number() over (order by chunk_id desc) as n from memory_note_chunks) b
             on b.n = a.n
          where a.n % 199 = 0 or $1 < 100 limit $1",
    )
    .bind(count as i64)
    .fetch_all(serving.store.pool())
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
    context: Pipeline,
    config: Config,
    searcher: Searcher,
    bare: Qdrant,
}

impl Bench {
    async fn new(
        database: &Database,
        serving: Serving,
        url: &str,
        provider: &StandIn,
    ) -> Result<Self> {
        let model = crate::model()?.display().to_string();
        let text = format!(
            "[storage.postgres]\ndsn = \"postgres://127.0.0.1/x\"\n[storage.qdrant]\nurl = {url:?}\n\
             alias = {:?}\n[providers.embedding]\napi_base = {:?}\n\
             model = \"bench\"\n[chunking]\ntokenizer_repo = {model:?}\n",
            database.name, provider.url
        );
        let config = Config::parse(&text, "bench", &|_| None)?;
        let tokenizer = Arc::new(open_tokenizer(&model).await?);
        let settings = &config.providers.embedding;
        let (embedder, _) = connect(settings, Some(DIM)).await?;
        let context = Pipeline {
            serving: serving.clone(),
            provider: Arc::new(Provider::new(embedder, settings)),
            chunker: Arc::new(NoteChunker::new(tokenizer.clone(), &config.chunking, "")?),
            version: database.version(),
            document_prefix: String::new(),
        };
        Ok(Self {
            searcher: Searcher::new(
                serving,
                context.provider.clone(),
                &context.version.name,
                "",
                Chunker::new(tokenizer, &config.chunking.settings, "")?,
                config.search.clone(),
                None,
            ),
            context,
            config,
            bare: engine::client(url)?,
        })
    }

    /// Where the time of a search is.
    async fn report_stages(&self, report: &mut Report, queries: &[String]) -> Result<()> {
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
        for (name, times) in ["retrieve", "revalidate", "stitch"].iter().zip(&stages) {
            let millis: Vec<f64> = times.iter().map(|time| 1e3 * time.as_secs_f64()).collect();
            let name = format!("of a search, {name}, p50");
            report.value(&name, "ms", vec![quantile(&millis, 0.5)], Target::None);
        }
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
        assert!(!answer.items.is_empty() || tenant.is_some(), "{query}");
        Ok(took)
    }

    /// The hybrid query of the engine, and the texts of its ten best from Postgres.
    async fn bare(&self, query: &str, tenant: Option<&str>) -> Result<Duration> {
        let options = engine::bm25_options(&self.context.serving.bm25)?;
        let document = DocumentBuilder::new(query, "qdrant/bm25")
            .options(options)
            .build();
        let words = VectorInput {
            variant: Some(vector_input::Variant::Document(document)),
        };
        let vector = VectorInput::new_dense(vector(query.len() as u64, DIM));
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
                QueryPointsBuilder::new(&self.context.serving.alias)
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
        .bind(&self.context.version.name)
        .fetch_all(self.context.serving.store.pool())
        .await?;
        let took = began.elapsed();
        assert!(!texts.is_empty() || tenant.is_some(), "{query}");
        Ok(took)
    }

    /// The times of both by many clients, and how many notes a worker indexed beside them.
    async fn under_load(
        self: &Arc<Self>,
        queries: &[String],
    ) -> Result<(Vec<Duration>, Vec<Duration>, u64)> {
        let stop = CancellationToken::new();
        let pool = self.context.serving.store.pool().clone();
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
                let mine = queries[client * 31 % queries.len()..].to_vec();
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

/// Resident memory in MB.
fn memory() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kib: f64 = resident.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}
