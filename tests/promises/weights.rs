//! A local model's weights are part of the embedding version.

use std::path::Path;

use serde_json::Value;

use crate::support::site::Site;

const WEIGHTS: &str = "providers.embedding.weights_sha256";

/// A site whose model is a folder in it.
async fn site() -> Site {
    let site = Site::start().await;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny-distilbert");
    for file in [
        "config.json",
        "config_sentence_transformers.json",
        "model.safetensors",
        "modules.json",
        "sentence_bert_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "1_Pooling/config.json",
        "2_Normalize/config.json",
    ] {
        if from.join(file).exists() {
            site.write(
                &format!("model/{file}"),
                std::fs::read(from.join(file)).unwrap(),
            );
        }
    }
    let folder = site.path("model").display().to_string();
    let tokenizer = crate::support::harness::model().display().to_string();
    site.configure("provider = \"openai\"", "provider = \"local\"");
    site.configure("model = \"test\"", &format!("model = \"{folder}\""));
    site.configure(&tokenizer, &folder);
    site
}

/// Flips the lowest bit of the last number.
fn change_weights(site: &Site) {
    let mut weights = std::fs::read(site.path("model/model.safetensors")).unwrap();
    let last = weights.len() - 4;
    weights[last] ^= 1;
    site.write("model/model.safetensors", weights);
}

async fn registered(site: &Site) -> Vec<(String, Value)> {
    sqlx::query_as("select embedding_version, settings from index_versions")
        .fetch_all(&mut site.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn other_weights_under_the_same_name_are_another_version() {
    let site = site().await;
    site.note("The lighthouse is green.").await;
    site.json(&["worker", "--once"]).await;
    let before = registered(&site).await;
    assert!(before[0].1[WEIGHTS].is_string(), "{before:?}");
    site.elf(&["search", "lighthouse"]).await.exits(0);

    change_weights(&site);
    for args in [&["worker", "--once"][..], &["search", "lighthouse"]] {
        site.elf(args)
            .await
            .exits(78)
            .says(&["the weights of providers.embedding.model", "elf reindex"]);
    }
    assert_eq!(registered(&site).await, before);
}
