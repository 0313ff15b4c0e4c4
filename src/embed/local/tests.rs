#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::PathBuf;

use super::*;
use crate::embed::{connect, probe};

const LIMITS: Limits = Limits {
    max_inputs: 64,
    max_tokens: 100_000,
};

#[derive(serde::Deserialize)]
struct Reference {
    text: String,
    vector: Vec<f32>,
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

fn references(name: &str) -> Vec<Reference> {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn minilm() -> PathBuf {
    std::env::var_os("ELF_TEST_MODEL").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf/models/all-MiniLM-L6-v2"),
        PathBuf::from,
    )
}

async fn open(folder: &Path) -> Local {
    Local::open(folder.to_str().unwrap(), LIMITS).await.unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// All texts in one request, so that short ones are padded to long ones.
async fn agrees(local: &Local, references: &[Reference]) {
    let texts: Vec<&str> = references
        .iter()
        .map(|reference| &*reference.text)
        .collect();
    let vectors = local.embed(&texts).await.unwrap();
    for (reference, vector) in references.iter().zip(&vectors) {
        let text = &reference.text;
        let cosine = cosine(&reference.vector, vector);
        assert!(cosine > 1.0 - 1e-4, "{text:?}: cosine {cosine}");
        let (ours, theirs) = (norm(vector), norm(&reference.vector));
        assert!(
            (ours - theirs).abs() < 1e-2 * theirs,
            "{text:?}: length {ours}, not {theirs}"
        );
    }
}

#[tokio::test]
async fn minilm_gives_the_vectors_of_sentence_transformers() {
    let local = open(&minilm()).await;
    assert_eq!((local.dim(), local.window()), (384, 256));
    agrees(&local, &references("minilm_reference.json")).await;
}

#[tokio::test]
async fn distilbert_with_cls_pooling_gives_the_vectors_of_sentence_transformers() {
    let local = open(&data("tiny-distilbert")).await;
    assert_eq!((local.dim(), local.window()), (32, 128));
    agrees(&local, &references("tiny-distilbert/reference.json")).await;
}

#[tokio::test]
async fn roberta_with_max_pooling_gives_the_vectors_of_sentence_transformers() {
    let local = open(&data("tiny-roberta")).await;
    assert_eq!((local.dim(), local.window()), (32, 120));
    agrees(&local, &references("tiny-roberta/reference.json")).await;
}

#[tokio::test]
async fn a_text_has_the_same_vector_alone_and_among_longer_ones() {
    let local = open(&data("tiny-roberta")).await;
    let texts = ["ELF", "a much longer text than the other one", "x y z"];
    let together = local.embed(&texts).await.unwrap();
    for (text, vector) in texts.iter().zip(&together) {
        let alone = local.embed(&[text]).await.unwrap();
        assert!(cosine(&alone[0], vector) > 1.0 - 1e-6, "{text}");
    }
}

#[tokio::test]
async fn a_text_beyond_the_window_is_refused_and_never_cut() {
    let local = open(&data("tiny-roberta")).await;
    let fits = "x".repeat(118);
    let tokens = local
        .model
        .tokenizer
        .encode_fast(&*fits, true)
        .unwrap()
        .len();
    assert_eq!(tokens, local.window());
    local.embed(&[&fits]).await.unwrap();
    let error = local
        .embed(&["short", &format!("{fits}x")])
        .await
        .unwrap_err();
    assert_eq!(
        error,
        EmbedError::input("text 1 has 121 tokens, the model reads 120")
    );
}

#[tokio::test]
async fn texts_that_are_hardly_texts_have_vectors() {
    let local = open(&data("tiny-distilbert")).await;
    let texts = [
        "",
        " ",
        "\u{0}\u{7}",
        "[SEP] [MASK]",
        "\u{200d}",
        "e\u{301}",
    ];
    assert_eq!(local.embed(&texts).await.unwrap().len(), texts.len());
    assert!(local.embed(&[]).await.unwrap().is_empty());
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

#[test]
fn texts_of_like_length_go_together_within_the_budget() {
    let lengths = [3, 100, 4, 90, 5, 1];
    let batches = batches(&lengths, 200);
    assert_eq!(batches, [vec![5, 0, 2, 4], vec![3, 1]]);
    assert_eq!(super::batches(&[300, 300], 200), [[0], [1]]);
    assert!(super::batches(&[], 200).is_empty());
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
    };
    let (embedder, facts) = connect(&settings).await.unwrap();
    assert_eq!((facts.dim, facts.window), (32, Some(120)));
    assert_eq!(probe(&*embedder).await, Ok(32));
    settings.dimensions = Some(33);
    let error = connect(&settings).await.err().unwrap();
    assert!(
        matches!(&error, EmbedError::Config { reason } if reason.contains("providers.embedding.dimensions")),
        "{error}"
    );
}
