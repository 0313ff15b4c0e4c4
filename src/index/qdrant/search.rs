//! Candidates of a search, each with both scores.
//!
//! The first request asks for the best points of each ranking, the second one for the scores that
//! are missing: those of points that only the other ranking found. One request could do both, but
//! the server would search each ranking twice.

use std::collections::HashSet;

use qdrant_client::qdrant::{QueryBatchPointsBuilder, QueryPoints};
use uuid::Uuid;

use super::Server;
use super::convert::{self, Ranking};
use super::options::OF_AN_ALIAS;
use crate::index::candidates::{self, Scored};
use crate::index::{Candidate, Filter, IndexError, Query};

/// The candidates of both rankings. Without a vector or without words, those of one.
pub(super) async fn candidates(
    server: &Server,
    collection: &str,
    query: &Query,
) -> Result<Vec<Candidate>, IndexError> {
    let bm25_options = server.bm25_options(collection, OF_AN_ALIAS).await?;
    let corpus = query.idf_corpus();
    let ranking = |query: &Query, by, limit| {
        let request =
            convert::ranking(collection, query, by, corpus.as_ref(), &bm25_options, limit);
        request.map(|request| (by, request))
    };
    let asked = [Ranking::Dense, Ranking::Bm25]
        .into_iter()
        .filter_map(|by| ranking(query, by, query.candidates));
    let found = ask(server, collection, asked.collect()).await?;
    let (mut dense, mut bm25) = (found.dense, found.bm25);
    if let Some(dense) = &mut dense
        && query.words.is_some()
    {
        let missing = [
            (Ranking::Dense, only_in(&bm25, dense)),
            (Ranking::Bm25, only_in(dense, &bm25)),
        ];
        let asked = missing.into_iter().filter_map(|(by, chunks)| {
            let of_chunks = Query {
                filter: Filter {
                    chunk_ids: Some(chunks.clone()),
                    ..Filter::default()
                },
                ..query.clone()
            };
            let request = ranking(&of_chunks, by, chunks.len());
            request.filter(|_| !chunks.is_empty())
        });
        let rest = ask(server, collection, asked.collect()).await?;
        dense.extend(rest.dense.unwrap_or_default());
        bm25.extend(rest.bm25);
    }
    Ok(candidates::join(dense, bm25))
}

#[derive(Default)]
struct Found {
    /// `None` if meaning was not asked for.
    dense: Option<Vec<Scored>>,
    bm25: Vec<Scored>,
}

async fn ask(
    server: &Server,
    collection: &str,
    asked: Vec<(Ranking, QueryPoints)>,
) -> Result<Found, IndexError> {
    let mut found = Found::default();
    if asked.is_empty() {
        return Ok(found);
    }
    let (rankings, requests): (Vec<Ranking>, Vec<QueryPoints>) = asked.into_iter().unzip();
    let request = QueryBatchPointsBuilder::new(collection, requests)
        .timeout(server.timeout_secs)
        .build();
    let response = server
        .ask(collection, server.client.query_batch(request))
        .await?;
    for (by, ranked) in rankings.into_iter().zip(response.result) {
        let scored = ranked.result.into_iter().filter_map(convert::scored);
        match by {
            Ranking::Dense => found.dense = Some(scored.collect()),
            Ranking::Bm25 => found.bm25 = scored.collect(),
        }
    }
    Ok(found)
}

/// The points of one ranking that the other one did not find.
fn only_in(these: &[Scored], others: &[Scored]) -> Vec<Uuid> {
    let others: HashSet<Uuid> = others.iter().map(|scored| scored.chunk_id).collect();
    let chunks = these.iter().map(|scored| scored.chunk_id);
    chunks.filter(|chunk| !others.contains(chunk)).collect()
}
