use std::path::{Path, PathBuf};

use super::{BiEncoder, CrossEncoder, Error};

#[derive(serde::Deserialize)]
struct Reference {
    text: String,
    vector: Vec<f32>,
}

/// The folder of the workspace, which has the data of the tests and, under `.elf`, the model of the demo.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn data(name: &str) -> PathBuf {
    root().join("tests/data").join(name)
}

fn references(name: &str) -> Vec<Reference> {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

fn minilm() -> PathBuf {
    std::env::var_os("ELF_TEST_MODEL").map_or_else(
        || root().join(".elf/models/all-MiniLM-L6-v2"),
        PathBuf::from,
    )
}

fn open(folder: &Path) -> BiEncoder {
    BiEncoder::open(folder).unwrap()
}

fn vectors(model: &BiEncoder, texts: &[&str]) -> Result<Vec<Vec<f32>>, Error> {
    model.vectors(texts.iter().map(|text| (*text).to_owned()).collect())
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn norm(vector: &[f32]) -> f32 {
    vector.iter().map(|x| x * x).sum::<f32>().sqrt()
}

/// All texts in one request, so that short ones share a pass with long ones.
fn agrees(local: &BiEncoder, references: &[Reference]) {
    let texts: Vec<&str> = references
        .iter()
        .map(|reference| &*reference.text)
        .collect();
    let vectors = vectors(local, &texts).unwrap();
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

#[test]
fn minilm_gives_the_vectors_of_sentence_transformers() {
    let local = open(&minilm());
    assert_eq!((local.dim(), local.window()), (384, 256));
    agrees(&local, &references("minilm_reference.json"));
}

#[test]
fn distilbert_with_cls_pooling_gives_the_vectors_of_sentence_transformers() {
    let local = open(&data("tiny-distilbert"));
    assert_eq!((local.dim(), local.window()), (32, 128));
    agrees(&local, &references("tiny-distilbert/reference.json"));
}

#[test]
fn roberta_with_max_pooling_gives_the_vectors_of_sentence_transformers() {
    let local = open(&data("tiny-roberta"));
    assert_eq!((local.dim(), local.window()), (32, 120));
    agrees(&local, &references("tiny-roberta/reference.json"));
}

#[test]
fn a_text_has_the_same_vector_alone_and_among_longer_ones() {
    let local = open(&data("tiny-roberta"));
    let texts = ["ELF", "a much longer text than the other one", "x y z"];
    let together = vectors(&local, &texts).unwrap();
    for (text, vector) in texts.iter().zip(&together) {
        let alone = vectors(&local, &[text]).unwrap();
        assert_eq!(&alone[0], vector, "{text}");
    }
}

#[test]
fn a_text_beyond_the_window_is_refused_and_never_cut() {
    let local = open(&data("tiny-roberta"));
    let fits = "x".repeat(118);
    let tokens = local.tokenizer.encode_fast(&*fits, true).unwrap().len();
    assert_eq!(tokens, local.window());
    vectors(&local, &[&fits]).unwrap();
    let error = vectors(&local, &["short", &format!("{fits}x")]).unwrap_err();
    assert_eq!(
        error,
        Error::Input("text 1 has 121 tokens, the model reads 120".into())
    );
}

#[test]
fn texts_that_are_hardly_texts_have_vectors() {
    let local = open(&data("tiny-distilbert"));
    let texts = [
        "",
        " ",
        "\u{0}\u{7}",
        "[SEP] [MASK]",
        "\u{200d}",
        "e\u{301}",
    ];
    assert_eq!(vectors(&local, &texts).unwrap().len(), texts.len());
    assert!(vectors(&local, &[]).unwrap().is_empty());
}

#[derive(serde::Deserialize)]
struct Scored {
    query: String,
    text: String,
    score: f32,
}

fn scores(model: &CrossEncoder, query: &str, texts: &[&str]) -> Vec<f32> {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    model.scores(query, &texts, || false).unwrap()
}

fn cross_encoder(kind: &str) -> CrossEncoder {
    let folder = data(&format!("tiny-cross-{kind}"));
    CrossEncoder::open(&folder).unwrap()
}

#[test]
fn cross_encoders_give_the_scores_of_transformers() {
    for kind in ["bert", "roberta", "distilbert"] {
        let encoder = cross_encoder(kind);
        let file = data(&format!("tiny-cross-{kind}/reference.json"));
        let references: Vec<Scored> =
            serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(references.len() > 10);
        for of_query in references.chunk_by(|a, b| a.query == b.query) {
            let texts: Vec<&str> = of_query.iter().map(|scored| &*scored.text).collect();
            let scores = scores(&encoder, &of_query[0].query, &texts);
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

#[test]
fn every_part_of_a_long_text_counts() {
    for kind in ["bert", "roberta"] {
        let encoder = cross_encoder(kind);
        let long = "the pump in cellar two stopped ".repeat(100);
        let query = "pump ".repeat(500);
        let alone = scores(&encoder, &query, &[&long])[0];
        let endings = ["4711", "🦓", "Der Zug", "x y z", "東京", "?!"];
        let texts: Vec<String> = endings
            .iter()
            .map(|ending| format!("{long}{}", format!("{ending} ").repeat(200)))
            .collect();
        let texts: Vec<&str> = texts.iter().map(|text| &**text).collect();
        let scores = scores(&encoder, &query, &texts);
        assert!(
            scores.iter().any(|score| *score > alone + 1e-4),
            "{kind}: {scores:?}, {alone}"
        );
    }
}

#[test]
fn texts_that_are_hardly_texts_have_scores() {
    let encoder = cross_encoder("bert");
    let texts = ["", " ", "\u{0}", "\u{200d}"];
    assert_eq!(scores(&encoder, "", &texts).len(), 4);
    assert!(scores(&encoder, "zebra", &[]).is_empty());
}
