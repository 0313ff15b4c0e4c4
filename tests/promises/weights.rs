//! A local model's weights are part of the embedding version.

use std::path::Path;

use elf::chunk::Tokenizer;
use elf::config::Config;
use elf::registry::embedding_version;
use serde_json::Value;

use crate::support::site::Site;

const WEIGHTS: &str = "providers.embedding.weights_sha256";

/// Of the model in tests/data.
const DIM: usize = 32;

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

/// As it was before weights were recorded.
async fn register_without_weights(site: &Site) -> String {
    let config = Config::parse(&site.toml(), "elf.toml", &|_| None).unwrap();
    let tokenizer = Tokenizer::open(config.tokenizer_source()).await.unwrap();
    let version = embedding_version(&config, tokenizer.fingerprint(), DIM);
    sqlx::query(
        "insert into index_versions (embedding_version, embedding_dim, settings, state)
         values ($1, $2, $3, 'active')",
    )
    .bind(&version.name)
    .bind(version.dim as i32)
    .bind(&version.settings)
    .execute(&mut site.connect().await)
    .await
    .unwrap();
    version.name
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

#[tokio::test]
async fn a_version_without_recorded_weights_still_works_and_is_completed() {
    let site = site().await;
    let name = register_without_weights(&site).await;
    site.note("The lighthouse is green.").await;
    site.json(&["worker", "--once"]).await;
    let after = registered(&site).await;
    assert_eq!(after.len(), 1);
    assert_eq!(after[0].0, name);
    assert!(after[0].1[WEIGHTS].is_string(), "{after:?}");
    site.elf(&["search", "lighthouse"]).await.exits(0);

    change_weights(&site);
    site.elf(&["worker", "--once"])
        .await
        .exits(78)
        .says(&["the weights of providers.embedding.model"]);
}
