#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::*;
use crate::embed::{connect, probe};

const LIMITS: Limits = Limits {
    max_inputs: 64,
    max_tokens: 100_000,
};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

#[tokio::test]
async fn a_model_that_is_not_computed_is_refused_by_its_type() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["tokenizer.json", "model.safetensors"] {
        std::fs::copy(data("tiny-roberta").join(file), folder.path().join(file)).unwrap();
    }
    for (config, complaint) in [
        (r#"{"model_type": "t5"}"#, "model_type \"t5\""),
        (
            r#"{"model_type": "bert", "position_embedding_type": "relative_key"}"#,
            "relative_key",
        ),
        (r#"{"model_type": "bert"}"#, "config.json"),
        ("{", "config.json"),
    ] {
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let error = Local::open(folder.path().to_str().unwrap(), LIMITS)
            .await
            .err()
            .unwrap();
        assert!(
            matches!(&error, EmbedError::Config { reason } if reason.contains(complaint)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn connecting_tells_dimension_and_window_and_refuses_another_dimension() {
    let mut settings = crate::config::Embedding {
        provider: crate::config::ProviderKind::Local,
        api_base: String::new(),
        path: String::new(),
        model: data("tiny-roberta").to_str().unwrap().to_owned(),
        dimensions: None,
        api_key: None,
        ca_file: None,
        client_cert_file: None,
        client_key_file: None,
        headers: Default::default(),
        max_batch_inputs: 1,
        max_batch_tokens: 1,
        concurrency: 1,
        timeout_ms: 1,
        requests_per_minute: None,
        tokens_per_minute: None,
        usd_per_million_tokens: None,
        document_prefix: String::new(),
        query_prefix: String::new(),
        document_fields: Default::default(),
        query_fields: Default::default(),
    };
    let (embedder, facts) = connect(&settings, settings.dimensions).await.unwrap();
    assert_eq!((facts.dim, facts.window), (32, Some(120)));
    assert_eq!(probe(&*embedder).await, Ok(32));
    settings.dimensions = Some(33);
    let error = connect(&settings, settings.dimensions).await.err().unwrap();
    assert!(
        matches!(&error, EmbedError::Config { reason } if reason.contains("providers.embedding.dimensions")),
        "{error}"
    );
}

#[tokio::test]
async fn a_model_that_is_no_cross_encoder_is_refused() {
    let folder = data("tiny-roberta");
    let refused = CrossEncoder::open(folder.to_str().unwrap()).await;
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("search.rerank.model"), "{error}");
    assert!(error.contains("id2label"), "{error}");
}

#[tokio::test]
async fn a_text_that_the_model_cannot_read_is_the_texts_fault() {
    let folder = data("tiny-roberta");
    let local = Local::open(folder.to_str().unwrap(), LIMITS).await.unwrap();
    let long = "x".repeat(119);
    let error = local.vectors(&["short", &long]).await.unwrap_err();
    let expected = EmbedError::input("text 1 has 121 tokens, the model reads 120");
    assert_eq!(error, expected);
    assert_eq!(local.vectors(&["short"]).await.unwrap().len(), 1);
}
