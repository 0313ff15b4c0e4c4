//! Connects to Postgres and the vector engine, and builds the provider and the worker's pipeline,
//! from the configuration.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::chunk::{self, Chunker, NoteChunker};
use crate::config::{Config, Dsn};
use crate::embed::provider::Provider;
use crate::embed::{self, Embedder};
use crate::index::{self, IndexError, VectorIndex};
use crate::search::{Reranker, Searcher};
use crate::serving::{self, Serving, embedding_version};
use crate::store::{CollectionRow, RegisteredVersion, Store, StoreError, Version};
use crate::worker::Pipeline;

/// Connects to Postgres.
pub async fn store(config: &Config) -> anyhow::Result<Store> {
    let postgres = &config.storage.postgres;
    let dsn = postgres.dsn.expose();
    let connected = Store::connect(dsn, postgres.pool_max_conns).await;
    connected.map_err(|error| {
        let place = match &error {
            // It has the place.
            StoreError::Unavailable(_) => None,
            _ => Dsn::parse(dsn)
                .ok()
                .map(|dsn| format!(" ({})", dsn.place())),
        };
        let place = place.unwrap_or_default();
        anyhow::Error::new(error)
            .context(format!("failed to connect to storage.postgres.dsn{place}"))
    })
}

/// Connects to the vector engine.
pub async fn index(config: &Config) -> anyhow::Result<Arc<dyn VectorIndex>> {
    connected(index::connect(&config.storage.qdrant).await)
}

fn connected(
    index: Result<Arc<dyn VectorIndex>, IndexError>,
) -> anyhow::Result<Arc<dyn VectorIndex>> {
    let index = index.context("failed to open storage.qdrant.url")?;
    tracing::debug!(engine = index.describe(), "connected to the vector engine");
    Ok(index)
}

/// The pipeline of a rebuild or a verify: no tokenizer and no model, so that neither can
/// embed.
pub async fn serving(config: &Config) -> anyhow::Result<Serving> {
    let store = store(config).await?;
    store.check_schema().await?;
    with_index(config, store).await
}

/// Connects to the vector engine, and returns it together with `store`.
pub async fn with_index(config: &Config, store: Store) -> anyhow::Result<Serving> {
    Ok(serving_of(config, store, index(config).await?))
}

fn serving_of(config: &Config, store: Store, index: Arc<dyn VectorIndex>) -> Serving {
    Serving {
        store,
        index,
        alias: config.storage.qdrant.alias.clone(),
        bm25: config.storage.qdrant.bm25.clone(),
        fields: config.metadata.clone(),
    }
}

/// Loads the tokenizer and builds the chunker. Also returns the tokenizer's fingerprint.
pub async fn chunker(config: &Config) -> anyhow::Result<(Arc<NoteChunker>, String)> {
    let tokenizer = chunk::open_tokenizer(config.tokenizer_source()).await?;
    let fingerprint = tokenizer.fingerprint().to_owned();
    let prefix = &config.providers.embedding.document_prefix;
    let chunker = NoteChunker::new(Arc::new(tokenizer), &config.chunking, prefix)
        .context("failed to chunk by [chunking] with providers.embedding.document_prefix")?;
    Ok((Arc::new(chunker), fingerprint))
}

/// The chunker and the embedder of a configuration, and the version that they make.
pub struct EmbeddingSetup {
    /// Connected; its schema is this program's.
    pub store: Store,
    /// Text → chunks.
    pub chunker: Arc<NoteChunker>,
    /// Texts → vectors.
    pub embedder: Arc<dyn Embedder>,
    /// The version that the configuration asks for, registered or not.
    pub version: Version,
}

/// Loads the tokenizer and connects the embedder. Its dimension and weights complete the
/// version.
pub async fn setup(config: &Config) -> anyhow::Result<EmbeddingSetup> {
    // Postgres first: a wrong DSN is reported before a slow download of a model.
    let store = store(config).await?;
    store.check_schema().await?;
    let (chunker, tokenizer) = chunker(config).await?;
    let embedding = &config.providers.embedding;
    let known = store.versions().await?;
    let dim = pinned_dimension(config, &tokenizer, &known).or(embedding.dimensions);
    let (embedder, facts) = embed::connect(embedding, dim)
        .await
        .context("failed to start providers.embedding")?;
    let (key, max_tokens) = config.chunking.largest();
    embed::check_window((&key, max_tokens), facts.window, &embedding.model)?;
    let version = embedding_version(config, &tokenizer, facts.dim, facts.weights);
    Ok(EmbeddingSetup {
        store,
        chunker,
        embedder,
        version,
    })
}

/// The dimension of the registered version that matches this configuration; `None` if no
/// registered version does.
fn pinned_dimension(
    config: &Config,
    tokenizer: &str,
    known: &[RegisteredVersion],
) -> Option<usize> {
    let asked = config.providers.embedding.dimensions;
    known
        .iter()
        .map(|known| &known.version)
        .filter(|version| asked.is_none_or(|dim| dim == version.dim))
        .find(|version| {
            embedding_version(config, tokenizer, version.dim, None).name == version.name
        })
        .map(|version| version.dim)
}

/// The pipeline of a worker. The caller checks that the database has the version:
/// [`serving::register_or_check_version`].
pub async fn pipeline(config: &Config) -> anyhow::Result<Pipeline> {
    let setup = setup(config).await?;
    Ok(pipeline_of(setup, config, index(config).await?))
}

/// The pipeline of a search, of the version that is served. It also starts while the vector engine
/// does not answer.
pub async fn search_pipeline(config: &Config) -> anyhow::Result<Pipeline> {
    let setup = setup(config).await?;
    serving::check_version_is_active(&setup.store, &setup.version).await?;
    let index = connected(index::connect_to_search(&config.storage.qdrant).await)?;
    let pipeline = pipeline_of(setup, config, index);
    serving::check_home_to_search(&pipeline.serving).await?;
    Ok(pipeline)
}

/// The pipeline of a worker or a search, on an engine that is open already.
pub fn pipeline_of(
    setup: EmbeddingSetup,
    config: &Config,
    index: Arc<dyn VectorIndex>,
) -> Pipeline {
    let EmbeddingSetup {
        store,
        chunker,
        embedder,
        version,
    } = setup;
    let embedding = &config.providers.embedding;
    Pipeline {
        serving: serving_of(config, store, index),
        provider: Arc::new(Provider::new(embedder, embedding)),
        chunker,
        version,
        document_prefix: embedding.document_prefix.clone(),
    }
}

/// A search over the collection and the version of a worker's pipeline.
pub async fn searcher(pipeline: &Pipeline, config: &Config) -> anyhow::Result<Searcher> {
    let reranker = match config.search.rerank.clone() {
        Some(settings) => Some(Reranker::open(settings).await?),
        None => None,
    };
    let prefix = &config.providers.embedding.query_prefix;
    let tokenizer = pipeline.chunker.tokenizer().clone();
    let settings = elf_chunk::Settings {
        max_tokens: config.chunking.settings.max_tokens,
        ..elf_chunk::Settings::default()
    };
    let chunker = Chunker::new(tokenizer, &settings, prefix)
        .context("failed to count with providers.embedding.query_prefix")?;
    Ok(Searcher::new(
        pipeline.serving.clone(),
        pipeline.provider.clone(),
        &pipeline.version.name,
        prefix,
        chunker,
        config.search.clone(),
        reranker,
    ))
}

/// A search of `version`, which is built by workers with the configuration at `path`, in the same
/// database and the same engine as `served`.
pub async fn searcher_of_built(
    path: &Path,
    served: Serving,
    version: &str,
) -> anyhow::Result<Searcher> {
    let config = Config::load(path)?;
    let setup = setup(&config).await?;
    let asked = &setup.version.name;
    anyhow::ensure!(
        asked == version,
        "quality.canary.config asks for {asked}, and the canary is {version}"
    );
    let collections = served.store.collections(version).await?;
    let main = collections.into_iter().find(CollectionRow::is_active);
    let main = main.with_context(|| format!("{version} has no collection"))?;
    let pipeline = pipeline_of(setup, &config, served.index);
    let searcher = searcher(&pipeline, &config).await?;
    Ok(searcher.in_collection(main.name))
}
