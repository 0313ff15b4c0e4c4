//! The embedding version: a name for everything that shapes a vector.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::{Config, ProviderKind};
use crate::store::Version;

/// The version that a configuration asks for. Two configurations have the same
/// one exactly when their vectors may be mixed.
///
/// `tokenizer` is the SHA-256 of the tokenizer's file in hex, `dim` the floats in
/// a vector, `weights` the SHA-256 of a local model's weights.
pub fn embedding_version(
    config: &Config,
    tokenizer: &str,
    dim: usize,
    weights: Option<[u8; 32]>,
) -> Version {
    let embedding = &config.providers.embedding;
    let chunking = &config.chunking;
    let provider = match embedding.provider {
        ProviderKind::Openai => "openai",
        ProviderKind::Local => "local",
    };
    let model = match embedding.provider {
        ProviderKind::Openai => embedding.model.as_str(),
        // The same model from a folder, or from the hub.
        ProviderKind::Local => last_part(without_revision(&embedding.model)),
    };
    let mut settings: Vec<(String, Value)> = vec![
        ("providers.embedding.provider".into(), json!(provider)),
        ("providers.embedding.model".into(), json!(model)),
        ("providers.embedding.dimensions".into(), json!(dim)),
        (
            "providers.embedding.document_prefix".into(),
            json!(embedding.document_prefix),
        ),
        (TOKENIZER.into(), json!(tokenizer)),
    ];
    settings.extend(of_chunks("chunking", &chunking.settings));
    for (kind, of_type) in &chunking.by_type {
        settings.extend(of_chunks(&format!("chunking.by_type.{kind}"), of_type));
    }
    if !chunking.lead.is_empty() {
        settings.push(("chunking.lead".into(), json!(chunking.lead)));
    }
    if embedding.provider == ProviderKind::Openai {
        if !embedding.document_fields.is_empty() {
            settings.push((FIELDS.into(), json!(embedding.document_fields)));
        }
        // Azure ignores the model's name: the address names the model.
        if let Some(deployment) = deployment(&embedding.api_base) {
            settings.push((DEPLOYMENT.into(), json!(deployment)));
        }
    }
    if let Some(weights) = weights {
        settings.push((WEIGHTS.into(), json!(hex(&weights))));
    }
    let mut hash = Sha256::new();
    for (key, value) in &settings {
        hash.update(format!("{key}={value}\n"));
    }
    let digest = hex(&hash.finalize()[..4]);
    Version {
        name: format!("{}-{dim}-{digest}", last_part(model)),
        dim,
        settings: settings.into_iter().collect::<Map<_, _>>().into(),
    }
}

/// The settings of chunks below `path`, those that are set.
fn of_chunks(path: &str, settings: &elf_chunk::Settings) -> Vec<(String, Value)> {
    let fields = match json!(settings) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let mut fields: Vec<(String, Value)> = fields
        .into_iter()
        .filter(|(_, value)| value != &json!([]))
        .map(|(key, value)| (format!("{path}.{key}"), value))
        .collect();
    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
    fields
}

/// The settings that no key of `elf.toml` holds: the digests of what the keys name.
const TOKENIZER: &str = "chunking.tokenizer_sha256";
const WEIGHTS: &str = "providers.embedding.weights_sha256";

/// Only in versions that have them.
const FIELDS: &str = "providers.embedding.document_fields";
const DEPLOYMENT: &str = "providers.embedding.api_base";

/// How messages for people call a setting.
fn label(key: &str) -> &str {
    match key {
        TOKENIZER => "the tokenizer of chunking.tokenizer_repo (its SHA-256)",
        WEIGHTS => "the weights of providers.embedding.model (their SHA-256)",
        DEPLOYMENT => "the deployment in providers.embedding.api_base",
        key => key,
    }
}

/// The deployment that an address of Azure names.
fn deployment(api_base: &str) -> Option<&str> {
    let (_, after) = api_base.split_once("/deployments/")?;
    after
        .split(['/', '?'])
        .next()
        .filter(|name| !name.is_empty())
}

/// What differs between the version in the database and the one that the
/// configuration asks for, a line per setting.
pub fn differences(database: &Version, config: &Version) -> Vec<String> {
    let changes = changes(database, config);
    changes.iter().map(Change::line).collect()
}

/// The settings in which a configuration asks for another version than the one that is served. It reads no
/// file of a model and asks no provider, so it finds what the configuration alone tells.
pub fn asked_changes(served: &Version, config: &Config) -> Vec<Change> {
    let tokenizer = served.settings.get(TOKENIZER).and_then(Value::as_str);
    let dim = config.providers.embedding.dimensions.unwrap_or(served.dim);
    let asked = embedding_version(config, tokenizer.unwrap_or_default(), dim, None);
    if asked.name == served.name {
        return Vec::new();
    }
    let mut changes = changes(served, &asked);
    changes.retain(|change| change.key != WEIGHTS);
    changes
}

/// A setting in which two versions differ; values as JSON, null where there is none.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Change {
    /// The key of `elf.toml`, or `chunking.tokenizer_sha256`, `providers.embedding.weights_sha256`.
    pub key: String,
    /// Its value in the one version.
    pub from: Value,
    /// Its value in the other.
    pub to: Value,
}

impl Change {
    /// From the version in the database to the one that the configuration asks for, in words.
    pub fn line(&self) -> String {
        let Self { key, from, to } = self;
        let label = label(key);
        format!("{label} is {to} in the configuration, {from} in the database")
    }
}

/// The settings in which `to` differs from `from`, in order of their keys.
pub fn changes(from: &Version, to: &Version) -> Vec<Change> {
    let empty = Map::new();
    let old = from.settings.as_object().unwrap_or(&empty);
    let new = to.settings.as_object().unwrap_or(&empty);
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    let value = |of: &Map<String, Value>, key| of.get(key).cloned().unwrap_or_default();
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| Change {
            key: key.clone(),
            from: value(old, key),
            to: value(new, key),
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Strips the revision: versions differ by the hash of the weights instead.
fn without_revision(model: &str) -> &str {
    model.split_once('@').map_or(model, |(model, _)| model)
}

fn last_part(model: &str) -> &str {
    model
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shapes_the_vectors_of_notes_is_part_of_the_version() {
        let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[storage.qdrant]\n\
                    url = \"http://h:6334\"\n[providers.embedding]\nmodel = \"m\"\n";
        let version = |keys: &str| {
            let toml = format!("{toml}{keys}");
            let config = Config::parse(&toml, "elf.toml", &|_| None).expect("a configuration");
            embedding_version(&config, "tokenizer", 8, None)
        };
        let plain = version("api_base = \"http://h\"");
        for same in [
            "api_base = \"http://other/v1?api-version=3\"",
            "query_fields = { input_type = \"query\" }",
            "query_prefix = \"query: \"",
        ] {
            assert_eq!(version(same), plain, "{same}");
        }
        let fields =
            version("document_fields = { z = [1, { b = 2, a = 1.5 }], input_type = \"p\" }");
        let [changed] = &changes(&plain, &fields)[..] else {
            panic!("{:?}", fields.settings);
        };
        assert_eq!(changed.key, FIELDS);
        assert_eq!(
            changed.to.to_string(),
            r#"{"input_type":"p","z":[1,{"a":1.5,"b":2}]}"#
        );
        let azure =
            |name| format!("api_base = \"https://h/openai/deployments/{name}?api-version=1\"");
        let (small, large) = (version(&azure("small")), version(&azure("large")));
        assert_ne!(small.name, large.name);
        assert_eq!(changes(&small, &large)[0].to, json!("large"));
    }

    #[test]
    fn the_weights_of_a_local_model_are_part_of_a_version() {
        let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[providers.embedding]\nprovider = \"local\"\n\
                    model = \"org/m@v2\"\n[storage.qdrant]\nurl = \"embedded:x\"";
        let config = Config::parse(toml, "elf.toml", &|_| None).expect("a configuration");
        let version = |weights| embedding_version(&config, "tokenizer", 8, Some(weights));
        let (this, other) = (version([1; 32]), version([2; 32]));
        assert!(this.name.starts_with("m-8-"), "{}", this.name);
        assert_ne!(this.name, other.name);
        let changed = changes(&this, &other);
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(changed[0].key, WEIGHTS);
    }
}
