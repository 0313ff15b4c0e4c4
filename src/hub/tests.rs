//! The hub, played by a server on this machine.

use std::sync::{Arc, Mutex};

use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::*;

const COMMIT: &str = "c5f93f70e82ae7a2b7a5b3ff1b0c0ea4d2d5c1a9";
const TOKENIZER: &[u8] = b"{\"version\":\"1.0\"}";

/// The requests that a hub received, oldest first.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<Vec<(String, HeaderMap)>>>);

/// Answers as the hub does for small files: the body in ranges, with the
/// commit and the entity tag in the headers.
async fn resolve(
    State(requests): State<Requests>,
    UrlPath(path): UrlPath<String>,
    headers: HeaderMap,
) -> Response {
    requests
        .0
        .lock()
        .unwrap()
        .push((path.clone(), headers.clone()));
    let body = match path.as_str() {
        "org/model/resolve/main/tokenizer.json" => TOKENIZER,
        "org/model/resolve/v2/tokenizer.json" => b"{\"version\":\"2.0.0\"}",
        "org/model/resolve/main/1_Pooling/config.json" => b"{}",
        "org/broken/resolve/main/tokenizer.json" => {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        "org/secret/resolve/main/tokenizer.json" => {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let commit = match path.contains("/resolve/main/") {
        true => COMMIT,
        false => "0000000000000000000000000000000000000000",
    };
    let range = headers[header::RANGE].to_str().unwrap();
    let (first, last) = range
        .strip_prefix("bytes=")
        .unwrap()
        .split_once('-')
        .unwrap();
    let first: usize = first.parse().unwrap();
    let last = last.parse::<usize>().unwrap().min(body.len() - 1);
    let range = format!("bytes {first}-{last}/{}", body.len());
    (
        StatusCode::PARTIAL_CONTENT,
        [
            (header::CONTENT_RANGE.as_str(), range.as_str()),
            (
                header::ETAG.as_str(),
                format!("\"{:x}\"", body.len()).as_str(),
            ),
            ("x-repo-commit", commit),
        ],
        body[first..=last].to_vec(),
    )
        .into_response()
}

/// A hub on a free port and an empty cache.
async fn hub() -> (Hub, Requests, tempfile::TempDir) {
    let requests = Requests::default();
    let app = axum::Router::new()
        .route("/{*path}", axum::routing::get(resolve))
        .with_state(requests.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub {
        endpoint,
        cache: cache.path().join("hub"),
        token: Some("t0ken".into()),
    };
    (hub, requests, cache)
}

#[tokio::test]
async fn a_file_is_downloaded_once_and_with_the_token() {
    let (hub, requests, _cache) = hub().await;
    let files = ModelFiles::open_from("org/model", hub.clone())
        .await
        .unwrap();
    let path = files.file("tokenizer.json").await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), TOKENIZER);
    let asked = requests.0.lock().unwrap().len();
    for (_, headers) in requests.0.lock().unwrap().iter() {
        assert_eq!(headers[header::AUTHORIZATION], "Bearer t0ken");
    }

    let again = ModelFiles::open_from("org/model", hub).await.unwrap();
    assert_eq!(again.file("tokenizer.json").await.unwrap(), path);
    assert_eq!(requests.0.lock().unwrap().len(), asked, "the cache answers");
}

#[tokio::test]
async fn a_revision_is_another_model() {
    let (hub, _, _cache) = hub().await;
    let mut texts = Vec::new();
    for model in ["org/model", "org/model@v2", "org/model"] {
        let files = ModelFiles::open_from(model, hub.clone()).await.unwrap();
        let path = files.file("tokenizer.json").await.unwrap();
        assert_eq!(files.optional("absent.json").await.unwrap(), None);
        texts.push(std::fs::read_to_string(path).unwrap());
    }
    assert_eq!(texts[1], "{\"version\":\"2.0.0\"}");
    assert_eq!(texts[0].as_bytes(), TOKENIZER);
    assert_eq!(texts[2], texts[0]);
    for model in [
        "org/model@",
        "org/model@../x",
        "org/model@a//b",
        "org/model@-x",
    ] {
        let error = ModelFiles::open_from(model, hub.clone()).await.unwrap_err();
        assert!(matches!(error, HubError::Name { .. }), "{error}");
    }
}

/// The names come from the model's own `modules.json`.
#[tokio::test]
async fn no_file_outside_of_a_model_is_read() {
    let (hub, requests, cache) = hub().await;
    let folder = cache.path().join("model");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(cache.path().join("secret.json"), "{}").unwrap();
    let absolute = cache.path().join("secret.json");
    for model in [folder.to_str().unwrap(), "org/model"] {
        let files = ModelFiles::open_from(model, hub.clone()).await.unwrap();
        for name in [
            "../secret.json",
            "1_Pooling/../../secret.json",
            "..\\secret.json",
            "%2e%2e/secret.json",
            "tokenizer.json?x",
            absolute.to_str().unwrap(),
        ] {
            for error in [
                files.file(name).await.unwrap_err(),
                files.optional(name).await.unwrap_err(),
            ] {
                assert!(matches!(error, HubError::Outside { .. }), "{error}");
            }
        }
    }
    assert!(requests.0.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_cached_model_opens_without_the_hub() {
    let (mut hub, _, _cache) = hub().await;
    let files = ModelFiles::open_from("org/model", hub.clone())
        .await
        .unwrap();
    files.file("tokenizer.json").await.unwrap();
    assert!(
        files
            .optional("1_Pooling/config.json")
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        files.optional("sentence_bert_config.json").await.unwrap(),
        None
    );

    hub.endpoint = "http://127.0.0.1:1".into();
    let offline = ModelFiles::open_from("org/model", hub).await.unwrap();
    offline.file("tokenizer.json").await.unwrap();
    assert!(
        offline
            .optional("1_Pooling/config.json")
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        offline.optional("sentence_bert_config.json").await.unwrap(),
        None
    );
    assert!(
        offline.optional("never_asked.json").await.is_err(),
        "cannot know"
    );
}

#[tokio::test]
async fn an_error_says_what_was_tried_and_what_to_do() {
    let (mut hub, _, _cache) = hub().await;
    let error = async |model: &str, hub: &Hub| {
        let files = ModelFiles::open_from(model, hub.clone()).await.unwrap();
        let error = files.file("tokenizer.json").await.unwrap_err();
        (error.to_string(), error.class().may_pass())
    };
    let url = |model| format!("{}/{model}/resolve/main/tokenizer.json", hub.endpoint);

    let (absent, may_pass) = error("org/absent", &hub).await;
    assert!(!may_pass);
    assert!(absent.contains("no folder \"org/absent\""), "{absent}");
    assert!(absent.contains(&url("org/absent")), "{absent}");
    assert!(absent.contains("404"), "{absent}");
    let (secret, may_pass) = error("org/secret", &hub).await;
    assert!(!may_pass);
    assert!(
        secret.contains("401") && secret.contains("HF_TOKEN"),
        "{secret}"
    );
    let (broken, may_pass) = error("org/broken", &hub).await;
    assert!(may_pass);
    assert!(
        broken.contains("502") && broken.contains("HF_ENDPOINT"),
        "{broken}"
    );

    // Port 1 is privileged and unused: refused at once.
    hub.endpoint = "http://127.0.0.1:1".into();
    let (refused, may_pass) = error("org/model", &hub).await;
    assert!(may_pass);
    assert!(refused.contains("providers.embedding.model"), "{refused}");
    assert!(refused.to_lowercase().contains("refused"), "{refused}");
}

#[tokio::test]
async fn a_hub_that_never_answers_times_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut hub, _, _cache) = hub().await;
    hub.endpoint = format!("http://{}", listener.local_addr().unwrap());
    let mut files = ModelFiles::open_from("org/model", hub).await.unwrap();
    files.stall = Duration::from_millis(10);
    let error = files.file("tokenizer.json").await.unwrap_err().to_string();
    assert!(error.contains("sent nothing for"), "{error}");
}

#[tokio::test]
async fn a_folder_and_a_file_need_no_hub() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = folder.path().join("my-tokenizer.json");
    std::fs::write(&tokenizer, TOKENIZER).unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();

    let model = folder.path().to_str().unwrap();
    let files = ModelFiles::open(model).await.unwrap();
    assert_eq!(
        files.file("config.json").await.unwrap(),
        folder.path().join("config.json")
    );
    assert_eq!(files.optional("modules.json").await.unwrap(), None);
    let error = files.file("tokenizer.json").await.unwrap_err().to_string();
    assert!(
        error.contains("tokenizer.json") && error.contains(model),
        "{error}"
    );

    let files = ModelFiles::open(tokenizer.to_str().unwrap()).await.unwrap();
    assert_eq!(files.file("tokenizer.json").await.unwrap(), tokenizer);
    assert_eq!(
        files.file("config.json").await.unwrap(),
        folder.path().join("config.json")
    );
}

#[tokio::test]
async fn a_path_that_is_not_there_is_not_looked_up_on_the_hub() {
    for model in [
        "./absent",
        "/absent/model",
        "a/b/c",
        "",
        "../no-such-model",
        "org/",
        "name with space",
    ] {
        let error = ModelFiles::open(model).await.unwrap_err();
        assert!(matches!(error, HubError::Name { .. }), "{model}: {error}");
    }
    assert!(is_repository_name("sentence-transformers/all-MiniLM-L6-v2"));
    assert!(is_repository_name("gpt2"));
}
