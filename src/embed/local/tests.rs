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

/// All texts in one request, so that short ones share a pass with long ones.
async fn agrees(local: &Local, references: &[Reference]) {
    let texts: Vec<&str> = references
        .iter()
        .map(|reference| &*reference.text)
        .collect();
    let vectors = local.vectors(&texts).await.unwrap();
    for (reference, vector) in references.iter().zip(&vectors) {
        let text = &reference.text;
        let cosine = cosine(&reference.vector, vector);
        assert!(cosine > 1.0 - 1e-6, "{text:?}: cosine {cosine}");
        let (ours, theirs) = (norm(vector), norm(&reference.vector));
        assert!(
            (ours - theirs).abs() < 1e-5 * theirs,
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
    let together = local.vectors(&texts).await.unwrap();
    for (text, vector) in texts.iter().zip(&together) {
        let alone = local.vectors(&[text]).await.unwrap();
        assert_eq!(&alone[0], vector, "{text}");
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
    local.vectors(&[&fits]).await.unwrap();
    let error = local
        .vectors(&["short", &format!("{fits}x")])
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
    assert_eq!(local.vectors(&texts).await.unwrap().len(), texts.len());
    assert!(local.vectors(&[]).await.unwrap().is_empty());
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

#[derive(serde::Deserialize)]
struct Scored {
    query: String,
    text: String,
    score: f32,
}

async fn cross_encoder(kind: &str) -> CrossEncoder {
    let folder = data(&format!("tiny-cross-{kind}"));
    CrossEncoder::open(folder.to_str().unwrap()).await.unwrap()
}

#[tokio::test]
async fn cross_encoders_give_the_scores_of_transformers() {
    for kind in ["bert", "roberta", "distilbert"] {
        let encoder = cross_encoder(kind).await;
        let file = data(&format!("tiny-cross-{kind}/reference.json"));
        let references: Vec<Scored> =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(references.len() > 10);
        for of_query in references.chunk_by(|a, b| a.query == b.query) {
            let texts: Vec<&str> = of_query.iter().map(|scored| &*scored.text).collect();
            let scores = encoder.scores(&of_query[0].query, &texts).await.unwrap();
            for (reference, score) in of_query.iter().zip(scores) {
                let Scored {
                    text,
                    score: theirs,
                    ..
                } = reference;
                assert!(
                    (score - theirs).abs() < 1e-4,
                    "{kind} {text:?}: {score}, not {theirs}"
                );
            }
        }
    }
}

#[tokio::test]
async fn every_part_of_a_long_text_counts() {
    for kind in ["bert", "roberta"] {
        let encoder = cross_encoder(kind).await;
        let long = "the pump in cellar two stopped ".repeat(100);
        let query = "pump ".repeat(500);
        let alone = encoder.scores(&query, &[&long]).await.unwrap()[0];
        let endings = ["4711", "🦓", "Der Zug", "x y z", "東京", "?!"];
        let texts: Vec<String> = endings
            .iter()
            .map(|ending| format!("{long}{}", format!("{ending} ").repeat(200)))
            .collect();
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let scores = encoder.scores(&query, &texts).await.unwrap();
        assert!(
            scores.iter().any(|score| *score > alone + 1e-4),
            "{kind}: {scores:?}, {alone}"
        );
    }
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
async fn texts_that_are_hardly_texts_have_scores() {
    let encoder = cross_encoder("bert").await;
    let texts = ["", " ", "\u{0}", "\u{200d}"];
    assert_eq!(encoder.scores("", &texts).await.unwrap().len(), 4);
    assert!(encoder.scores("zebra", &[]).await.unwrap().is_empty());
}
