//! A reranker puts the notes in order, and a search does without one that fails.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use elf::cli::wiring;
use elf::config::{Rerank, RerankApi};
use elf::search::{Answer, Missing, Request, Searcher};
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::harness::{Harness, sentences};

/// What the reranker does.
#[derive(Clone, Copy)]
enum Does {
    /// It prefers the text with the most zebras.
    CountZebras,
    Fail,
    /// It never answers.
    Hang,
    LeaveOneOut,
}

/// A reranker that speaks the wire protocol of Cohere and of TEI.
#[derive(Clone)]
struct RerankServer {
    does: Does,
    /// What it does with a query that has this word in it.
    meets: Arc<Mutex<Option<(&'static str, Does)>>>,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl RerankServer {
    async fn start(does: Does) -> (Self, String) {
        let server = Self {
            does,
            meets: Arc::default(),
            asked: Arc::default(),
        };
        let app = Router::new()
            .route("/rerank", post(rerank))
            .with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/rerank", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (server, url)
    }

    fn meets(&self, word: &'static str, does: Does) {
        *self.meets.lock().unwrap() = Some((word, does));
    }

    fn asked(&self) -> Vec<Value> {
        self.asked.lock().unwrap().clone()
    }
}

async fn rerank(
    State(server): State<RerankServer>,
    Json(request): Json<Value>,
) -> (StatusCode, Json<Value>) {
    server.asked.lock().unwrap().push(request.clone());
    let is_tei = request.get("texts").is_some();
    let texts = request[if is_tei { "texts" } else { "documents" }].as_array();
    let mut scored: Vec<Value> = texts
        .unwrap()
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let zebras = text.as_str().unwrap().matches("zebra").count() as f32;
            match is_tei {
                true => json!({ "index": index, "score": zebras }),
                // As vLLM and Jina do, with the text.
                false => json!({
                    "index": index,
                    "relevance_score": zebras / 10.0,
                    "document": { "text": text },
                }),
            }
        })
        .collect();
    let query = request["query"].as_str().unwrap();
    let met = *server.meets.lock().unwrap();
    let met = met.filter(|(word, _)| query.contains(word));
    match met.map_or(server.does, |(_, does)| does) {
        Does::CountZebras => {}
        Does::Fail => return (StatusCode::BAD_GATEWAY, Json(json!("no model"))),
        Does::Hang => std::future::pending().await,
        Does::LeaveOneOut => drop(scored.pop()),
    }
    // The best first, as servers answer.
    scored.reverse();
    let answer = match is_tei {
        true => json!(scored),
        false => json!({ "results": scored }),
    };
    (StatusCode::OK, Json(answer))
}

async fn with_zebras() -> Harness {
    let h = Harness::start().await;
    for zebras in 1..=6 {
        // Long enough that a server which sends the texts back has a long answer.
        let text = format!(
            "{} sleeps. {}",
            "The zebra ".repeat(zebras),
            sentences(60, "the night")
        );
        h.insert(&text).await;
    }
    h.drain().await;
    h
}

async fn searcher(h: &mut Harness, url: &str, api: RerankApi) -> Searcher {
    h.config.search.rerank = Some(Rerank {
        url: url.to_owned(),
        api,
        model: "the model".to_owned(),
        api_key: None,
        timeout_ms: 2000,
        notes: 5,
    });
    wiring::searcher(&h.pipeline, &h.config).await.unwrap()
}

async fn search(h: &mut Harness, url: &str, api: RerankApi, requests: &[Request]) -> Vec<Answer> {
    let searcher = searcher(h, url, api).await;
    let mut answers = Vec::new();
    for request in requests {
        answers.push(searcher.search(request).await.unwrap());
    }
    answers
}

#[tokio::test]
async fn a_reranker_puts_the_notes_in_order() {
    let mut h = with_zebras().await;
    for api in [RerankApi::Cohere, RerankApi::Tei] {
        let (server, url) = RerankServer::start(Does::CountZebras).await;
        let requests = [
            Request::hybrid("zebra", 3),
            Request {
                rerank: false,
                ..Request::hybrid("zebra", 5)
            },
        ];
        let answers = search(&mut h, &url, api, &requests).await;
        assert_eq!(answers[0].degraded, []);
        let zebras = |text: &str| text.matches("zebra").count();
        let items = &answers[0].items;
        let order: Vec<usize> = items.iter().map(|i| zebras(&i.context.text)).collect();
        // The best three of the five that it saw.
        let mut seen: Vec<usize> = answers[1].items.iter().map(|i| zebras(&i.text)).collect();
        seen.sort_by(|a, b| b.cmp(a));
        assert_eq!(order, seen[..3], "{items:?}");
        assert!(items[0].rerank > items[1].rerank, "{items:?}");

        let asked = server.asked();
        assert_eq!(asked.len(), 1, "the second search does not ask: {asked:?}");
        assert_eq!(asked[0]["query"], "zebra");
        let texts = match api {
            RerankApi::Cohere => {
                assert_eq!(asked[0]["model"], "the model");
                &asked[0]["documents"]
            }
            _ => &asked[0]["texts"],
        };
        assert_eq!(texts.as_array().unwrap().len(), 5);
    }
}

/// What one search meets is that search's alone.
#[tokio::test]
async fn a_query_that_the_reranker_fails_on_switches_it_off_for_no_other() {
    let mut h = with_zebras().await;
    for does in [Does::Fail, Does::Hang] {
        let (server, url) = RerankServer::start(Does::CountZebras).await;
        server.meets("<script>", does);
        let searcher = searcher(&mut h, &url, RerankApi::Cohere).await;
        for query in ["zebra <script>", "zebra <script> again", "zebra sleeps"] {
            let answer = searcher.search(&Request::hybrid(query, 3)).await.unwrap();
            let is_bad = query.contains("<script>");
            assert_eq!(answer.degraded.len(), usize::from(is_bad), "{answer:?}");
        }
        // Each bad query was followed by a probe that passed.
        eventually(async || server.asked().len() >= 4).await;
        let searched = searcher.search(&Request::hybrid("zebra", 3)).await;
        assert_eq!(searched.unwrap().degraded, []);
    }
}

#[tokio::test]
async fn without_its_reranker_a_search_keeps_the_fused_order() {
    let mut h = with_zebras().await;
    for does in [Does::Fail, Does::Hang, Does::LeaveOneOut] {
        let (server, url) = RerankServer::start(does).await;
        let plain = Request {
            rerank: false,
            ..Request::hybrid("zebra", 4)
        };
        let requests = [
            plain.clone(),
            Request::hybrid("zebra", 4),
            Request::hybrid("zebra", 4),
        ];
        let answers = search(&mut h, &url, RerankApi::Cohere, &requests).await;
        let order =
            |answer: &Answer| -> Vec<_> { answer.items.iter().map(|i| i.note_id).collect() };
        for answer in &answers[1..] {
            assert_eq!(order(answer), order(&answers[0]));
            assert_eq!(answer.degraded.len(), 1);
            assert_eq!(answer.degraded[0].code, Missing::Rerank);
            assert!(answer.degraded[0].reason.contains(&url), "{answer:?}");
            assert!(answer.items.iter().all(|item| item.rerank.is_none()));
        }
        // A plain text fails too: searches do without the reranker for a while.
        let searcher = searcher(&mut h, &url, RerankApi::Cohere).await;
        eventually(async || {
            let answer = searcher.search(&Request::hybrid("zebra", 4)).await.unwrap();
            answer.degraded[0].reason.contains("a moment ago")
        })
        .await;
        let asked = server.asked().len();
        searcher.search(&Request::hybrid("zebra", 4)).await.unwrap();
        assert_eq!(server.asked().len(), asked);
    }
}

#[tokio::test]
async fn the_same_texts_are_reranked_once_and_a_changed_one_again() {
    let mut h = with_zebras().await;
    let (server, url) = RerankServer::start(Does::CountZebras).await;
    let searcher = searcher(&mut h, &url, RerankApi::Tei).await;
    let request = Request::hybrid("zebra", 3);
    let first = searcher.search(&request).await.unwrap();
    let again = searcher.search(&request).await.unwrap();
    assert_eq!(server.asked().len(), 1);
    let order = |answer: &Answer| -> Vec<_> {
        let items = answer.items.iter();
        items.map(|item| (item.note_id, item.rerank)).collect()
    };
    assert_eq!(order(&first), order(&again));

    // What another tenant asked is not told by the time of an answer.
    let mut of_tenant = request.clone();
    let tenant = ("tenant_id".to_owned(), "t".to_owned());
    of_tenant.filter.keywords.extend([tenant]);
    let answer = searcher.search(&of_tenant).await.unwrap();
    assert_eq!(answer.items.len(), 3);
    assert_eq!(server.asked().len(), 2);

    let last = first.items[2].note_id;
    h.edit(last, &"zebra ".repeat(50)).await;
    h.drain().await;
    let edited = searcher.search(&request).await.unwrap();
    assert_eq!(server.asked().len(), 3);
    assert_eq!(edited.items[0].note_id, last);
}
