//! Search for notes. The index finds chunks by meaning and by keyword, `fusion` makes one score
//! of the two, and Postgres revalidates the best (`revalidation`): the search drops a chunk that is
//! gone, or whose note it may not show now, and scores a chunk again that is newer than its point.
//! `ranking` keeps the best chunk of each note, and `context` joins it with its neighbours. A
//! reranker, if there is one, puts these in order.
//!
//! While a part of ELF is unavailable, a search answers without it and names it in [`Answer::degraded`].

mod again;
mod answer;
mod background;
mod context;
mod diversity;
mod fusion;
mod judge;
mod passage;
mod pause;
mod query_vector;
mod ranking;
mod relevance;
mod request;
mod rerank;
mod retrieve;
mod revalidation;
mod terms;
mod trace;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Utc;
use metrics::{counter, histogram};
use serde_json::json;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::chunk::Chunker;
use crate::config;
use crate::embed::EmbedError;
use crate::embed::provider::Provider;
use crate::error_class::ErrorClass;
use crate::index::{Filter, IndexError, Query};
use crate::serving::Serving;
use crate::shares::Shares;
use crate::store::{FoundNote, Shown, StoreError, Surroundings};
pub use again::PastItem;
pub use answer::{Answer, Degradation, Item, Missing};
use background::Backgrounds;
pub use context::Context;
use fusion::Fusion;
use judge::Judge;
pub use passage::{Highlight, Passage};
use pause::Pause;
use query_vector::QueryVectors;
use ranking::{Live, Ranked};
pub use relevance::WEAK;
use relevance::{Cosines, JUDGED, is_near};
pub use request::{By, Request};
pub use rerank::{RerankError, Reranker};
use terms::Terms;
use trace::timed;
pub use trace::{StageTimes, Trace};

/// Candidates of each ranking, at most. The first hundreds may be chunks of a few long notes.
const MAX_CANDIDATES: usize = 1000;

/// If its candidates were of too few notes, a search asks for so many times as many.
const MORE: usize = 4;

/// Scans of Postgres at once while the index is unavailable. The other connections look up keys
/// and notes.
const FULL_SCANS: usize = 1;
const SMALL_SCANS: u64 = 6;

/// A search chooses a diverse answer from so many times as many notes as the request asks for.
const DIVERSE_OF: usize = 3;

/// But from so many at most, unless the request asks for more: it compares each with each that it takes.
const MAX_DIVERSE: usize = 300;

/// Searches the index.
pub struct Searcher {
    serving: Serving,
    vectors: QueryVectors,
    /// The collection to search instead of that of the alias.
    collection: Option<String>,
    /// The embedding version of the collection.
    version: String,
    settings: config::Search,
    terms: Terms,
    background: Backgrounds,
    index_pause: Arc<Pause>,
    full_scans: Semaphore,
    small_scans: Arc<Shares>,
    reranker: Option<Reranker>,
}

/// Why a search failed.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// The vector engine refuses the query itself.
    #[error(transparent)]
    Index(IndexError),
    /// Postgres did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SearchError {
    /// What has to change before the same work can succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Index(error) => error.class(),
            Self::Store(error) => error.class(),
        }
    }
}

impl Searcher {
    /// A searcher for the alias of `serving`, which serves `version`. `query_prefix` stands before
    /// every query, and `query_chunker` counts with it. `reranker` is that of `settings`.
    pub fn new(
        serving: Serving,
        provider: Arc<Provider>,
        version: &str,
        query_prefix: &str,
        query_chunker: Chunker,
        settings: config::Search,
        reranker: Option<Reranker>,
    ) -> Self {
        let time = Duration::from_millis(settings.query_timeout_ms);
        Self {
            terms: Terms::new(&serving.bm25),
            serving,
            vectors: QueryVectors::new(provider, query_chunker, query_prefix, time),
            collection: None,
            background: Backgrounds::new(),
            version: version.to_owned(),
            reranker,
            settings,
            index_pause: Arc::default(),
            full_scans: Semaphore::new(FULL_SCANS),
            small_scans: Shares::new(SMALL_SCANS),
        }
    }

    /// Searches a collection that the alias does not serve yet.
    pub fn in_collection(self, collection: String) -> Self {
        Self {
            collection: Some(collection),
            ..self
        }
    }

    /// Whether there is a reranker.
    pub fn has_reranker(&self) -> bool {
        self.reranker.is_some()
    }

    /// Embeds a query, so that searches for it soon after ask the provider nothing.
    pub async fn embed_ahead(&self, request: &Request) -> Result<(), EmbedError> {
        self.vector_of(request).await.map(drop)
    }

    async fn vector_of(&self, request: &Request) -> Result<Arc<[f32]>, EmbedError> {
        self.vectors.embed(request.tenant(), &request.text).await
    }

    /// The best notes for a request.
    pub async fn search(&self, request: &Request) -> Result<Answer, SearchError> {
        let began = Instant::now();
        let mut degraded = Vec::new();
        let answered = self.answer(request, &mut degraded).await;
        for missing in &degraded {
            counter!("elf_search_degraded_total", "missing" => missing.code.as_str()).increment(1);
        }
        let outcome = match &answered {
            Ok(found) if found.items.is_empty() => "empty",
            Ok(found) if found.nothing_near => "weak",
            Ok(_) => "found",
            Err(_) => "failed",
        };
        counter!("elf_searches_total", "outcome" => outcome).increment(1);
        histogram!("elf_search_seconds").record(began.elapsed());
        let answer = answered?;
        Ok(Answer { degraded, ..answer })
    }

    /// [`Self::search`] for ELF itself. The metrics count the searches of users alone.
    pub async fn search_uncounted(&self, request: &Request) -> Result<Answer, SearchError> {
        let mut degraded = Vec::new();
        let answer = self.answer(request, &mut degraded).await?;
        Ok(Answer { degraded, ..answer })
    }

    /// The answer without what is `degraded`.
    async fn answer(
        &self,
        request: &Request,
        degraded: &mut Vec<Degradation>,
    ) -> Result<Answer, SearchError> {
        let reranker = self.reranker.as_ref().filter(|_| request.rerank);
        let is_diverse = self.settings.mmr_lambda < 1.0;
        let considered = match is_diverse {
            true => (request.limit * DIVERSE_OF).min(request.limit.max(MAX_DIVERSE)),
            false => request.limit,
        };
        let wanted = reranker.map_or(0, Reranker::notes).max(considered);
        let compared = wanted.max(JUDGED);
        let mut took = StageTimes::default();
        let mut query = timed(&mut took.embed, self.query(request, wanted, degraded)).await;
        let mut around = HashMap::new();
        let (mut best, mut trace) = loop {
            let retrieving = self.candidates(&query, degraded);
            let candidates = timed(&mut took.retrieve, retrieving).await?;
            let found = candidates.len();
            let fusion = Fusion::of(self.settings.fusion, &candidates);
            let ranked = ranking::ranked(&fusion, candidates);
            // The answer nearly always has these chunks. To read their surroundings during the revalidation
            // saves a round trip to Postgres.
            let first = match around.is_empty() {
                true => ids(ranked.iter().take(wanted)),
                false => Vec::new(),
            };
            let reading = self.surroundings(&query.filter, &first);
            let revalidating = self.revalidate(&query, &fusion, ranked, compared, degraded);
            let both = async { tokio::join!(revalidating, reading) };
            let (revalidated, read) = timed(&mut took.revalidate, both).await;
            around.extend(read?);
            let revalidated = match revalidated? {
                Ok(revalidated) => revalidated,
                Err(index_is_away) => {
                    degraded.push(index_is_away);
                    continue;
                }
            };
            let trace = Trace::of(found, &revalidated);
            let best = ranking::best_of_notes(revalidated.live, compared);
            if best.is_empty()
                && found > 0
                && let Some(index_is_unknown) = self.unknown_index(degraded).await
            {
                degraded.push(index_is_unknown);
                continue;
            }
            let is_enough = best.len() >= wanted || found < query.candidates;
            if is_enough || query.candidates >= MAX_CANDIDATES {
                break (best, trace);
            }
            query.candidates = (query.candidates * MORE).min(MAX_CANDIDATES);
        };
        let mut judge = Judge::new(&self.terms, &request.text, &best);
        best.truncate(wanted);
        let stitching = self.stitch(&query.filter, best, around);
        let mut items = timed(&mut took.stitch, stitching).await?;
        if let Some(reranker) = reranker {
            let reranking = rerank(reranker, request, &mut items);
            if let Err(error) = timed(&mut took.rerank, reranking).await {
                degraded.push(Degradation {
                    code: Missing::Rerank,
                    reason: error.to_string(),
                });
            }
        }
        let mut scores = HashMap::new();
        if is_diverse {
            let diversifying = self.diversify(&mut items, considered, request.limit);
            scores = timed(&mut took.diversify, diversifying).await?;
        }
        trace.finish(&items, request.limit, took, &scores);
        items.truncate(request.limit);
        let cosines = self.cosines(&query).await;
        judge.judge(cosines, &mut items);
        let shown = items.iter().any(|item| is_near(item.relevance));
        let nothing_near = !shown && !judge.is_near(cosines);
        let least = self.settings.min_relevance as f32;
        items.retain(|item| item.relevance.is_none_or(|relevance| relevance >= least));
        Ok(Answer {
            items,
            nothing_near,
            degraded: Vec::new(),
            trace,
        })
    }

    /// Takes `wanted` of the first items in the order of maximal marginal relevance. Returns their
    /// scores.
    async fn diversify(
        &self,
        items: &mut Vec<Item>,
        considered: usize,
        wanted: usize,
    ) -> Result<HashMap<Uuid, f32>, SearchError> {
        items.truncate(considered);
        let chunks: Vec<Uuid> = items.iter().map(|item| item.chunk_id).collect();
        let store = &self.serving.store;
        let mut vectors = store.chunk_vectors(&self.version, &chunks).await?;
        let vectors: Vec<Option<Vec<f32>>> =
            chunks.iter().map(|chunk| vectors.remove(chunk)).collect();
        let scores = diversity::scores(items);
        let lambda = self.settings.mmr_lambda as f32;
        let order = diversity::order(&scores, &vectors, lambda, wanted);
        let mut places: Vec<Option<Item>> = items.drain(..).map(Some).collect();
        items.extend(order.iter().filter_map(|(at, _)| places[*at].take()));
        Ok(order
            .iter()
            .map(|(at, score)| (chunks[*at], *score))
            .collect())
    }

    /// The first items, each with its passage alone, that together have at most `max_tokens` tokens of the embedding
    /// model; at least one.
    pub fn within_tokens(&self, items: Vec<Item>, max_tokens: usize) -> Vec<Item> {
        let brief = items.into_iter().map(|item| Item {
            text: String::new(),
            context: Context::default(),
            note: FoundNote {
                source_ref: Shown::default(),
                ..item.note
            },
            ..item
        });
        let mut spent = 0;
        let fits = |(i, item): &(usize, Item)| {
            spent += self.vectors.tokens(&json!(item).to_string());
            *i == 0 || spent <= max_tokens
        };
        let fitting = brief.enumerate().take_while(fits);
        fitting.map(|(_, item)| item).collect()
    }

    /// What the cosines of a query are compared with.
    async fn cosines(&self, query: &Query) -> Cosines {
        if query.vector.is_none() {
            return Cosines::None;
        }
        let background = &self.background;
        let labels = &query.filter.keywords;
        let of_labels = Filter {
            keywords: labels.clone(),
            ..Filter::default()
        };
        let counting = self.count_of_index(&of_labels);
        let (measured, chunks) = tokio::join!(
            background.get(&self.serving.store, &self.version),
            background.chunks(labels, counting),
        );
        let Some(measured) = measured else {
            return Cosines::Unknown;
        };
        Cosines::Before(chunks.map_or(measured, |chunks| measured.before_best_of(chunks)))
    }

    /// Embeds the query. Without a vector, notes are found by keyword.
    async fn query(
        &self,
        request: &Request,
        wanted: usize,
        degraded: &mut Vec<Degradation>,
    ) -> Query {
        let vector = match request.by {
            By::Bm25 => None,
            By::Dense | By::Hybrid => match self.vector_of(request).await {
                Ok(vector) => Some(vector.to_vec()),
                Err(error) => {
                    degraded.push(Degradation {
                        code: Missing::QueryVector,
                        reason: error.to_string(),
                    });
                    None
                }
            },
        };
        let by_keyword = request.by != By::Dense || vector.is_none();
        Query {
            vector,
            words: by_keyword.then(|| request.text.clone()),
            filter: Filter {
                live_at: Some(Utc::now()),
                ..request.filter.clone()
            },
            candidates: (wanted * 4).max(self.settings.candidates),
            hnsw_ef: self.settings.hnsw_ef,
            exact: self.settings.exact,
        }
    }

    /// The text around those of the chunks whose note is live and as `filter` asks.
    async fn surroundings(
        &self,
        filter: &Filter,
        chunks: &[Uuid],
    ) -> Result<HashMap<Uuid, Surroundings>, StoreError> {
        if chunks.is_empty() {
            return Ok(HashMap::new());
        }
        let store = &self.serving.store;
        let wanted = filter.of_note();
        store.surroundings(&self.version, chunks, &wanted).await
    }

    /// Joins each chunk with its neighbours. `around` has the text around some of them. Leaves out
    /// a note that has other labels or is not live any more since the revalidation.
    async fn stitch(
        &self,
        filter: &Filter,
        best: Vec<Live>,
        mut around: HashMap<Uuid, Surroundings>,
    ) -> Result<Vec<Item>, SearchError> {
        let chunks = best.iter().map(|live| live.chunk.chunk_id);
        let others: Vec<Uuid> = chunks.filter(|chunk| !around.contains_key(chunk)).collect();
        around.extend(self.surroundings(filter, &others).await?);
        let item = |Live { ranked, chunk }: Live| {
            let around = around.remove(&chunk.chunk_id)?;
            let context = context::stitch(&chunk, around);
            Some(Item {
                note_id: chunk.note_id,
                note: chunk.note,
                chunk_id: chunk.chunk_id,
                chunk_index: chunk.chunk_index,
                start_offset: chunk.start_offset,
                end_offset: chunk.end_offset,
                score: ranked.score,
                dense: ranked.candidate.dense,
                bm25: ranked.candidate.bm25,
                relevance: None,
                rerank: None,
                passage: Passage::default(),
                text: chunk.text,
                context,
            })
        };
        Ok(best.into_iter().filter_map(item).collect())
    }
}

fn ids<'a>(ranked: impl IntoIterator<Item = &'a Ranked>) -> Vec<Uuid> {
    let ids = ranked.into_iter().map(|ranked| ranked.candidate.chunk_id);
    ids.collect()
}

/// Puts the first notes in the order of a reranker; the others stay behind them. Notes of equal
/// scores keep their order, and after an error all do.
async fn rerank(
    reranker: &Reranker,
    request: &Request,
    items: &mut [Item],
) -> Result<(), RerankError> {
    let ranked = items.len().min(reranker.notes());
    let first = &mut items[..ranked];
    let contexts: Vec<&str> = first
        .iter()
        .map(|item| item.context.text.as_str())
        .collect();
    let tenant = request.tenant();
    let scores = reranker.scores(tenant, &request.text, &contexts).await?;
    for (item, score) in first.iter_mut().zip(scores.iter()) {
        item.rerank = Some(*score);
    }
    let score = |item: &Item| item.rerank.unwrap_or(f32::NEG_INFINITY);
    first.sort_by(|a, b| score(b).total_cmp(&score(a)));
    Ok(())
}
