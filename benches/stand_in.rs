//! An embedding server in a process of its own. It answers vectors that it made before: base64, as
//! JSON text. So a request costs it the reading of the inputs and the writing of the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use elf::note::TextHash;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::Result;
use crate::corpus::Random;
use crate::process::Helper;

/// The argument of the process.
pub const ROLE: &str = "--stand-in";

/// Different vectors.
const VECTORS: usize = 16_384;

pub struct StandIn {
    pub url: String,
    _process: Helper,
}

impl StandIn {
    /// A server that takes `latency` for a request.
    pub fn start(dim: usize, latency: Duration) -> Result<Self> {
        let millis = latency.as_millis().to_string();
        let (process, url) = Helper::start(&[ROLE, &dim.to_string(), &millis])?;
        Ok(Self {
            url,
            _process: process,
        })
    }

    /// Texts that it was sent so far.
    pub async fn texts(&self) -> Result<usize> {
        let count = reqwest::get(format!("{}/texts", self.url)).await?;
        Ok(count.json().await?)
    }
}

struct Server {
    latency: Duration,
    /// Each up to its index: `"embedding":"…"}`.
    vectors: Vec<String>,
    texts: AtomicUsize,
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    input: Vec<&'a RawValue>,
}

/// The process: prints its URL and serves until it is killed.
pub async fn serve(arguments: &[String]) -> Result<()> {
    let [dim, millis] = arguments else {
        return Err("which dimension and latency?".into());
    };
    let (dim, millis) = (dim.parse::<usize>()?, millis.parse()?);
    // As many bytes as 16,384 vectors of 384 dimensions have.
    let count = (VECTORS * 384 / dim).min(VECTORS);
    let server = Arc::new(Server {
        latency: Duration::from_millis(millis),
        vectors: (0..count)
            .map(|n| format!(",\"embedding\":\"{}\"}}", encoded(&vector(n as u64, dim))))
            .collect(),
        texts: AtomicUsize::new(0),
    });
    let app = Router::new()
        .route("/v1/embeddings", post(embed))
        .route("/texts", get(texts))
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(server);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn texts(State(server): State<Arc<Server>>) -> Json<usize> {
    Json(server.texts.load(Ordering::Relaxed))
}

async fn embed(State(server): State<Arc<Server>>, body: Bytes) -> impl IntoResponse {
    let texts = serde_json::from_slice::<Request<'_>>(&body).map_or(0, |r| r.input.len());
    let first = server.texts.fetch_add(texts, Ordering::Relaxed);
    if !server.latency.is_zero() {
        tokio::time::sleep(server.latency).await;
    }
    let mut answer = String::from("{\"object\":\"list\",\"model\":\"bench\",\"data\":[");
    for index in 0..texts {
        if index > 0 {
            answer.push(',');
        }
        answer += &format!("{{\"object\":\"embedding\",\"index\":{index}");
        answer += &server.vectors[(first + index) % server.vectors.len()];
    }
    answer += "]}";
    ([(CONTENT_TYPE, "application/json")], answer)
}

/// Some vector, always the same for the same seed.
pub fn vector(seed: u64, dim: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..dim).map(|_| random.share() as f32 - 0.5).collect()
}

/// The vector of a text: one of as many different ones as a server has, the same for the same text.
pub fn vector_of(text: &str, dim: usize) -> Vec<f32> {
    let hash = TextHash::of(text).0;
    let seed = usize::from(hash[0]) << 8 | usize::from(hash[1]);
    vector((seed % VECTORS) as u64, dim)
}

fn encoded(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector
        .iter()
        .flat_map(|float| float.to_le_bytes())
        .collect();
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
