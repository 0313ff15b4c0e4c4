//! A small embeddings server that fails on demand as real ones fail by accident, and speaks any of
//! their dialects. It speaks the wire protocol over real sockets. Its vectors are made from the
//! SHA-256 of the text, so the same text always has the same vector.

mod dialect;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response, StatusCode, header};
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::stream;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub use dialect::{Base64, Dialect, Indexes, When};

/// Floats in each vector, unless the server was started with another number.
pub const DIM: usize = 8;

/// 400,000 spaces, compressed.
const GZIPPED_SPACES: &str = "H4sIAGj1AmsC/+3BMQEAAADCoCrrn9IUfkABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADA\
    3wB0C1+8gBoGAA==";

/// What the server does with a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Behaviour {
    /// Embeds. The default when nothing is scripted.
    Embed,
    /// Answers with a status and a JSON error.
    Status(u16),
    /// Answers with a status, one header and a body.
    Answer(u16, &'static str, String, String),
    /// Answers with a status and these bytes.
    Raw(u16, Vec<u8>),
    /// Leaves the last vector out.
    TooFew,
    /// Gives each vector one float too many.
    WrongDimension,
    /// Gives the first vector a NaN, as base64.
    Nan,
    /// Gives the first vector a NaN, as Python's JSON encoder writes it.
    NanLiteral,
    /// Gives a first vector of zeros.
    Zeros,
    /// Answers 200 with a page for people.
    Html,
    /// Breaks off before the end that its Content-Length promises.
    CutShort,
    /// Never answers.
    Never,
    /// Answers with far more bytes than vectors take.
    Endless,
    /// Answers with a few bytes that decompress to far more than vectors take.
    Bomb,
}

/// A server on a free port of this machine. It ends with the test's runtime.
#[derive(Clone)]
pub struct EmbeddingServer {
    url: String,
    shared: Arc<Shared>,
}

struct Shared {
    dim: usize,
    state: Mutex<Inner>,
    held: watch::Sender<bool>,
    processor: Arc<tokio::sync::Mutex<()>>,
    /// Requests that have arrived, and those that wait for a release.
    arrived: watch::Sender<usize>,
    waiting: watch::Sender<usize>,
}

#[derive(Default)]
struct Inner {
    script: VecDeque<Behaviour>,
    rules: Vec<(When, Behaviour)>,
    dialect: Dialect,
    /// The time of a text on the one processor that all requests share.
    processor: Option<Duration>,
    requests: Vec<Request>,
}

/// What a request held.
#[derive(Debug, Clone)]
pub struct Request {
    pub headers: HeaderMap,
    pub body: Value,
    /// Its `input`.
    pub texts: Vec<String>,
}

impl EmbeddingServer {
    /// A server for vectors of [`DIM`] floats.
    pub async fn start() -> Self {
        Self::start_with_dim(DIM).await
    }

    /// A server for vectors of `dim` floats.
    pub async fn start_with_dim(dim: usize) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            dim,
            state: Mutex::default(),
            held: watch::Sender::new(false),
            processor: Arc::default(),
            arrived: watch::Sender::new(0),
            waiting: watch::Sender::new(0),
        });
        let app = Router::new()
            .route("/v1/embeddings", post(answer))
            .with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, shared }
    }

    /// For `providers.embedding.api_base`; the path is `/v1/embeddings`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Requests that have arrived so far.
    pub fn requests(&self) -> usize {
        self.state().requests.len()
    }

    /// The requests that have arrived so far, whole.
    pub fn request_log(&self) -> Vec<Request> {
        self.state().requests.clone()
    }

    /// Every text that has arrived so far, once for each time, but for probes.
    pub fn texts_seen(&self) -> Vec<String> {
        let texts = self
            .state()
            .requests
            .iter()
            .flat_map(|request| request.texts.clone())
            .collect::<Vec<_>>();
        texts.into_iter().filter(|text| text != "probe").collect()
    }

    /// The behaviours of the next requests, one each; later requests are embedded.
    pub fn script(&self, behaviours: impl IntoIterator<Item = Behaviour>) -> &Self {
        self.state().script.extend(behaviours);
        self
    }

    /// The behaviour of requests from now on. It replaces that of an earlier rule for the same.
    pub fn rule(&self, when: When, behaviour: Behaviour) -> &Self {
        let mut state = self.state();
        state.rules.retain(|(earlier, _)| *earlier != when);
        state.rules.push((when, behaviour));
        drop(state);
        self
    }

    /// The behaviour of every request from now on, after the script has ended.
    pub fn always(&self, behaviour: Behaviour) -> &Self {
        self.rule(When::Always, behaviour)
    }

    /// The behaviour of every request that has a text with `word` in it.
    pub fn poison(&self, word: &str, behaviour: Behaviour) -> &Self {
        self.rule(When::Contains(word.to_owned()), behaviour)
    }

    /// Ends script and rules.
    pub fn heal(&self) {
        let mut state = self.state();
        state.script.clear();
        state.rules.clear();
    }

    /// What it does from now on where servers differ.
    pub fn speaks(&self, dialect: Dialect) -> &Self {
        self.state().dialect = dialect;
        self
    }

    /// From now on every text takes `per_text` on one processor, which the requests
    /// share. A request that its client abandons is computed to its end.
    pub fn share_processor(&self, per_text: Duration) -> &Self {
        self.state().processor = Some(per_text);
        self
    }

    /// Requests wait from now on.
    pub fn hold(&self) {
        self.shared.held.send_replace(true);
    }

    /// Requests that wait are answered, and later ones at once.
    pub fn release(&self) {
        self.shared.held.send_replace(false);
    }

    /// Whether requests wait.
    pub fn is_holding(&self) -> bool {
        *self.shared.waiting.borrow() > 0
    }

    /// Waits until `count` requests are held.
    pub async fn holding(&self, count: usize) {
        let mut waiting = self.shared.waiting.subscribe();
        waiting.wait_for(|waiting| *waiting >= count).await.unwrap();
    }

    /// Waits until `count` requests have arrived, from the start on.
    pub async fn arrived(&self, count: usize) {
        let mut arrived = self.shared.arrived.subscribe();
        arrived.wait_for(|arrived| *arrived >= count).await.unwrap();
    }

    fn state(&self) -> MutexGuard<'_, Inner> {
        self.shared.state.lock().unwrap()
    }
}

/// The vector of `text`: `dim` floats, of unit length.
pub fn vector_of(text: &str, dim: usize) -> Vec<f32> {
    let mut vector = Vec::with_capacity(dim);
    let mut block = 0u32;
    while vector.len() < dim {
        let mut hash = Sha256::new();
        hash.update(block.to_le_bytes());
        hash.update(text.as_bytes());
        let bytes = hash.finalize();
        let floats = bytes
            .chunks_exact(2)
            .map(|pair| f32::from(i16::from_le_bytes([pair[0], pair[1]])));
        vector.extend(floats.take(dim - vector.len()));
        block += 1;
    }
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1.0);
    vector.iter().map(|x| x / norm).collect()
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: String,
) -> Response<Body> {
    let body: Value = serde_json::from_str(&body).unwrap();
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).unwrap();
    let wants_base64 = body["encoding_format"] == "base64";
    let (behaviour, dialect) = {
        let mut state = shared.state.lock().unwrap();
        let rule = |wanted: bool| {
            let is_for = |(when, _): &&(When, Behaviour)| {
                (*when == When::Always) == wanted && when.is_for(&body, &texts)
            };
            state
                .rules
                .iter()
                .find(is_for)
                .map(|(_, done)| done.clone())
        };
        let (ruled, always) = (rule(false), rule(true));
        let done = ruled.or_else(|| state.script.pop_front()).or(always);
        state.requests.push(Request {
            headers,
            body,
            texts: texts.clone(),
        });
        (done.unwrap_or(Behaviour::Embed), state.dialect.clone())
    };
    shared.arrived.send_modify(|arrived| *arrived += 1);
    if *shared.held.borrow() {
        shared.waiting.send_modify(|waiting| *waiting += 1);
        let mut held = shared.held.subscribe();
        held.wait_for(|held| !held).await.unwrap();
        shared.waiting.send_modify(|waiting| *waiting -= 1);
    }
    let per_text = shared.state.lock().unwrap().processor;
    if let Some(per_text) = per_text {
        compute(shared.processor.clone(), texts.len(), per_text).await;
    }
    if wants_base64 {
        match &dialect.base64 {
            Base64::Refused => return error(400, "encoding_format base64 is not supported"),
            Base64::Answered(body) => return json_body(body.clone()),
            Base64::Given | Base64::Ignored => {}
        }
    }
    let mut vectors: Vec<Vec<f32>> = texts
        .iter()
        .map(|text| vector_of(text, shared.dim))
        .collect();
    if dialect.fused {
        vectors.truncate(1);
    }
    let base64 = wants_base64 && dialect.base64 == Base64::Given;
    match behaviour {
        Behaviour::Embed | Behaviour::CutShort | Behaviour::NanLiteral => {}
        Behaviour::Raw(status, body) => {
            return respond(status, "content-type", "text/html", Body::from(body));
        }
        Behaviour::Status(status) => return error(status, "scripted"),
        Behaviour::Answer(status, name, value, body) => {
            return respond(status, name, &value, Body::from(body));
        }
        Behaviour::TooFew => drop(vectors.pop()),
        Behaviour::WrongDimension => vectors.iter_mut().for_each(|vector| vector.push(1.0)),
        Behaviour::Nan => vectors[0][0] = f32::NAN,
        Behaviour::Zeros => vectors[0].fill(0.0),
        Behaviour::Html => {
            let page = "<!doctype html><html><body><h1>Welcome to nginx!</h1></body></html>";
            return respond(200, "content-type", "text/html", Body::from(page));
        }
        Behaviour::Never => std::future::pending().await,
        Behaviour::Endless => {
            let spaces = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 1 << 16]));
            let body = Body::from_stream(spaces);
            return respond(200, "content-type", "application/json", body);
        }
        Behaviour::Bomb => {
            let bomb = STANDARD.decode(GZIPPED_SPACES).unwrap();
            return respond(200, "content-encoding", "gzip", Body::from(bomb));
        }
    }
    let mut data: Vec<Value> = vectors
        .iter()
        .enumerate()
        .map(|(place, vector)| {
            let mut item = json!({"object": "embedding", "embedding": encoded(vector, base64)});
            if let Some(index) = dialect.indexes.of(place) {
                item["index"] = json!(index);
            }
            item
        })
        .collect();
    if dialect.indexes == Indexes::Reversed {
        data.reverse();
    }
    let mut answer = json!({"object": "list", "data": data, "model": "test"});
    if let Some(window) = dialect.window {
        let read = |text: &String| text.split_whitespace().count().min(window);
        answer["usage"] = json!({"prompt_tokens": texts.iter().map(read).sum::<usize>()});
    }
    let mut body = answer.to_string();
    if behaviour == Behaviour::NanLiteral {
        body = r#"{"data":[{"index":0,"embedding":[NaN,1.0]}]}"#.to_owned();
    }
    if behaviour == Behaviour::CutShort {
        let promised = body.len().to_string();
        body.truncate(body.len() / 2);
        // Without an end to it, hyper closes the connection when the error comes.
        let parts = stream::iter([Ok(body), Err("cut short")]);
        return respond(200, "content-length", &promised, Body::from_stream(parts));
    }
    json_body(body)
}

fn json_body(body: String) -> Response<Body> {
    respond(200, "content-type", "application/json", Body::from(body))
}

/// Computes one text after the other, in turn with those of other requests. The task
/// continues when the client has disconnected.
async fn compute(processor: Arc<tokio::sync::Mutex<()>>, texts: usize, per_text: Duration) {
    let computing = tokio::spawn(async move {
        for _ in 0..texts {
            let _turn = processor.lock().await;
            tokio::time::sleep(per_text).await;
        }
    });
    computing.await.unwrap();
}

fn encoded(vector: &[f32], base64: bool) -> Value {
    if base64 {
        let bytes: Vec<u8> = vector
            .iter()
            .flat_map(|float| float.to_le_bytes())
            .collect();
        json!(STANDARD.encode(bytes))
    } else {
        json!(vector)
    }
}

fn error(status: u16, message: &str) -> Response<Body> {
    let body = json!({"error": {"message": message}}).to_string();
    respond(
        status,
        header::CONTENT_TYPE.as_str(),
        "application/json",
        Body::from(body),
    )
}

fn respond(status: u16, name: &str, value: &str, body: Body) -> Response<Body> {
    Response::builder()
        .status(StatusCode::from_u16(status).unwrap())
        .header(name, value)
        .body(body)
        .unwrap()
}
