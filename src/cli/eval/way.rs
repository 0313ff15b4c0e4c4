//! Asks the queries of an evaluation, each in several ways, and measures the answers.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context;

use super::Args;
use crate::cli::import;
use crate::eval::{Certainty, Dataset, Measured, Quote, Report, Scores, of_ranking};
use crate::index::Filter;
use crate::search::{By, Item, Request, Searcher};

/// The most notes that a reranker can read.
const RERANKED: usize = 100;

/// Asks each query by each of the ways. The ways take turns to be first, so that none of them
/// always meets warm caches.
pub(super) async fn measure(
    searcher: &Searcher,
    dataset: &Dataset,
    args: &Args,
) -> anyhow::Result<Report> {
    let mut ways: Vec<Way> = [By::Dense, By::Bm25, By::Hybrid]
        .into_iter()
        .map(|by| Way::new(by, false))
        .collect();
    if searcher.has_reranker() {
        ways.push(Way::new(By::Hybrid, true));
    }
    let mut ceiling = 0.0;
    for (id, text) in &dataset.queries {
        // The times are those of the search alone.
        let embedded = searcher.embed_ahead(&request(args, text, &ways[0])).await;
        embedded.with_context(|| format!("query {id:?}"))?;
        ways.rotate_left(1);
        for way in &mut ways {
            let asked = way.ask(searcher, dataset, (id, text), args);
            asked.await.with_context(|| format!("query {id:?}"))?;
        }
        let perfect = perfectly_reranked(searcher, dataset, (id, text), args);
        ceiling += perfect.await.with_context(|| format!("query {id:?}"))?;
    }
    let mut unanswered = Way::new(By::Hybrid, false);
    for (id, text) in &dataset.unanswered {
        let asked = unanswered.ask(searcher, dataset, (id, text), args);
        asked.await.with_context(|| format!("query {id:?}"))?;
    }
    ways.sort_by_key(|way| (way.by, way.rerank));
    let hybrid = ways.iter().find(|way| way.by == By::Hybrid);
    let answered = hybrid.and_then(|way| way.relevance.as_deref());
    let certainty = answered.zip(unanswered.relevance.as_deref());
    let certainty = certainty.map(|(answered, unanswered)| Certainty::of(answered, unanswered));
    let mut measured = ways.into_iter().map(Way::measured);
    let mut next = || measured.next().expect("there are three ways at least");
    let (dense, bm25, hybrid) = (next(), next(), next());
    let reranked = measured.next();
    Ok(Report {
        documents: dataset.documents.len(),
        queries: dataset.queries.len(),
        k: args.k.into(),
        ceiling: ceiling / dataset.queries.len() as f64,
        p_hybrid_dense: hybrid.p_against(&dense),
        p_hybrid_bm25: hybrid.p_against(&bm25),
        p_reranked_hybrid: reranked.as_ref().map(|way| way.p_against(&hybrid)),
        dense,
        bm25,
        hybrid,
        reranked,
        certainty,
    })
}

/// The nDCG of the best order of the notes that a reranker would read.
async fn perfectly_reranked(
    searcher: &Searcher,
    dataset: &Dataset,
    (id, text): (&str, &str),
    args: &Args,
) -> anyhow::Result<f64> {
    let mut request = request(args, text, &Way::new(By::Hybrid, false));
    request.limit = request.limit.max(RERANKED);
    let items = searcher.search(&request).await?.items;
    let keys = items.into_iter().filter_map(|item| item.note.key);
    let is_document = dataset.queried_documents.contains(id);
    let mut ranking: Vec<String> = keys.filter(|key| !is_document || *key != id).collect();
    let relevant = &dataset.relevant[id];
    ranking.sort_by_key(|key| Reverse(relevant.get(key).copied().unwrap_or(0)));
    Ok(of_ranking(&ranking, relevant, args.k.into()).ndcg)
}

fn request(args: &Args, text: &str, way: &Way) -> Request {
    let keywords = BTreeMap::from([
        ("tenant_id".to_owned(), args.tenant.clone()),
        ("agent_id".to_owned(), import::EVALUATION_AGENT.to_owned()),
    ]);
    Request {
        text: text.to_owned(),
        by: way.by,
        rerank: way.rerank,
        filter: Filter {
            keywords,
            ..Filter::default()
        },
        limit: args.k.into(),
    }
}

/// One way to search, and what it answered so far.
struct Way {
    by: By,
    rerank: bool,
    scores: BTreeMap<String, Scores>,
    times_ms: Vec<f64>,
    empty: usize,
    /// Of the best hit of each query; none if the search does not say.
    relevance: Option<Vec<f32>>,
    quotes: usize,
    quotes_in_chunks: usize,
    quotes_in_contexts: usize,
}

impl Way {
    fn new(by: By, rerank: bool) -> Self {
        Self {
            by,
            rerank,
            scores: BTreeMap::new(),
            times_ms: Vec::new(),
            empty: 0,
            relevance: Some(Vec::new()),
            quotes: 0,
            quotes_in_chunks: 0,
            quotes_in_contexts: 0,
        }
    }

    async fn ask(
        &mut self,
        searcher: &Searcher,
        dataset: &Dataset,
        (id, text): (&str, &str),
        args: &Args,
    ) -> anyhow::Result<()> {
        let mut request = request(args, text, self);
        // As BEIR measures: a query that is a document does not find itself.
        let is_document = dataset.queried_documents.contains(id);
        request.limit += usize::from(is_document);
        let began = Instant::now();
        let mut answer = searcher.search(&request).await?;
        self.times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        if let Some(missing) = answer.degraded.first() {
            anyhow::bail!("the search was answered in part: {}", missing.reason);
        }
        answer
            .items
            .retain(|item| !is_document || item.note.key.as_deref() != Some(id));
        answer.items.truncate(args.k.into());
        self.empty += usize::from(answer.items.is_empty());
        self.look_at_relevance(&answer.items);
        for quote in dataset.quotes.get(id).into_iter().flatten() {
            self.look_for(quote, &answer.items);
        }
        let keys = answer.items.into_iter().filter_map(|item| item.note.key);
        let ranking: Vec<String> = keys.collect();
        let scores = of_ranking(&ranking, &dataset.relevant[id], args.k.into());
        self.scores.insert(id.to_owned(), scores);
        Ok(())
    }

    fn look_at_relevance(&mut self, items: &[Item]) {
        let is_known = items.iter().all(|item| item.relevance.is_some());
        match &mut self.relevance {
            Some(of_queries) if is_known => {
                let of_items = items.iter().filter_map(|item| item.relevance);
                of_queries.push(of_items.reduce(f32::max).unwrap_or(0.0));
            }
            _ => self.relevance = None,
        }
    }

    /// Counts a quoted answer, and whether the result of its document has it whole.
    fn look_for(&mut self, quote: &Quote, items: &[Item]) {
        self.quotes += 1;
        let of_document = |item: &&Item| item.note.key.as_ref() == Some(&quote.document);
        let Some(item) = items.iter().find(of_document) else {
            return;
        };
        let has = |start, end| start <= quote.range.start && quote.range.end <= end;
        self.quotes_in_chunks += usize::from(has(item.start_offset, item.end_offset));
        let context = &item.context;
        self.quotes_in_contexts += usize::from(has(context.start_offset, context.end_offset));
    }

    fn measured(self) -> Measured {
        let mut times = self.times_ms;
        times.sort_by(f64::total_cmp);
        let percentile = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        let of_quotes = |found: usize| (self.quotes > 0).then(|| found as f64 / self.quotes as f64);
        let scores: Vec<Scores> = self.scores.values().copied().collect();
        Measured {
            mean: Scores::mean(&scores),
            zero_results: self.empty as f64 / scores.len() as f64,
            span_recall: of_quotes(self.quotes_in_chunks),
            context_recall: of_quotes(self.quotes_in_contexts),
            p50_ms: percentile(0.5),
            p99_ms: percentile(0.99),
            ndcg_by_query: (self.scores.into_iter())
                .map(|(id, scores)| (id, scores.ndcg))
                .collect(),
        }
    }
}
