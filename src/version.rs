//! The embedding version: a name for everything that shapes a vector.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::{Config, Provider};
use crate::store::Version;

/// The version that a configuration asks for. Two configurations have the same
/// one exactly when their vectors may be mixed.
///
/// `tokenizer` is the SHA-256 of the tokenizer's file in hex, `dim` the floats in
/// a vector.
pub fn embedding_version(config: &Config, tokenizer: &str, dim: usize) -> Version {
    let embedding = &config.providers.embedding;
    let chunking = &config.chunking;
    let provider = match embedding.provider {
        Provider::Openai => "openai",
        Provider::Local => "local",
    };
    let model = match embedding.provider {
        Provider::Openai => embedding.model.as_str(),
        // The same model from a folder, or from the hub.
        Provider::Local => last_part(&embedding.model),
    };
    let settings = [
        ("providers.embedding.provider", json!(provider)),
        ("providers.embedding.model", json!(model)),
        ("providers.embedding.dimensions", json!(dim)),
        (
            "providers.embedding.document_prefix",
            json!(embedding.document_prefix),
        ),
        (
            "chunking.tokenizer_repo (SHA-256 of the tokenizer)",
            json!(tokenizer),
        ),
        ("chunking.enabled", json!(chunking.enabled)),
        ("chunking.max_tokens", json!(chunking.max_tokens)),
        ("chunking.overlap_tokens", json!(chunking.overlap_tokens)),
    ];
    let mut hash = Sha256::new();
    for (key, value) in &settings {
        hash.update(format!("{key}={value}\n"));
    }
    let digest: String = hash
        .finalize()
        .iter()
        .take(4)
        .map(|b| format!("{b:02x}"))
        .collect();
    Version {
        name: format!("{}-{dim}-{digest}", last_part(model)),
        dim,
        settings: settings
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v))
            .collect::<Map<_, _>>()
            .into(),
    }
}

/// What differs between the version in the database and the one that the
/// configuration asks for, a line per setting.
pub fn differences(database: &Version, config: &Version) -> Vec<String> {
    changes(database, config)
        .into_iter()
        .map(|Change { key, from, to }| {
            format!("{key} is {to} in the configuration, {from} in the database")
        })
        .collect()
}

/// A setting in which two versions differ; values as JSON, null where there is none.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Change {
    /// The key of `elf.toml`.
    pub key: String,
    /// Its value in the one version.
    pub from: Value,
    /// Its value in the other.
    pub to: Value,
}

/// The settings in which `to` differs from `from`, in order of their keys.
pub fn changes(from: &Version, to: &Version) -> Vec<Change> {
    let empty = Map::new();
    let old = from.settings.as_object().unwrap_or(&empty);
    let new = to.settings.as_object().unwrap_or(&empty);
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let value = |of: &Map<String, Value>, key: &String| of.get(key).cloned().unwrap_or_default();
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| Change {
            key: key.clone(),
            from: value(old, key),
            to: value(new, key),
        })
        .collect()
}

fn last_part(model: &str) -> &str {
    model
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(model)
}
