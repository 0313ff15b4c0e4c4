//! The embedding version: a name for everything that shapes a vector.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::{Boundaries, Config, ProviderKind};
use crate::store::{RegisteredVersion, Version};

/// The version that a configuration asks for. Two configurations have the same
/// one exactly when their vectors may be mixed.
///
/// `tokenizer` is the SHA-256 of the tokenizer's file in hex, `dim` the floats in
/// a vector.
pub fn embedding_version(config: &Config, tokenizer: &str, dim: usize) -> Version {
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
    let mut settings = vec![
        ("providers.embedding.provider", json!(provider)),
        ("providers.embedding.model", json!(model)),
        ("providers.embedding.dimensions", json!(dim)),
        (
            "providers.embedding.document_prefix",
            json!(embedding.document_prefix),
        ),
        (TOKENIZER, json!(tokenizer)),
        ("chunking.enabled", json!(chunking.enabled)),
        ("chunking.max_tokens", json!(chunking.max_tokens)),
        ("chunking.overlap_tokens", json!(chunking.overlap_tokens)),
    ];
    if embedding.provider == ProviderKind::Openai {
        if !embedding.document_fields.is_empty() {
            settings.push((FIELDS, json!(embedding.document_fields)));
        }
        // Azure ignores the model's name: the address names the model.
        if let Some(deployment) = deployment(&embedding.api_base) {
            settings.push((DEPLOYMENT, json!(deployment)));
        }
    }
    // Versions that are older than the setting are greedy, and keep their names.
    if chunking.boundaries != Boundaries::Greedy {
        settings.push((BOUNDARIES, json!(chunking.boundaries)));
    }
    let mut hash = Sha256::new();
    for (key, value) in &settings {
        hash.update(format!("{}={value}\n", name_in_hash(key)));
    }
    let digest = hex(&hash.finalize()[..4]);
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

/// The settings that no key of `elf.toml` holds: the digests of what the keys name.
const TOKENIZER: &str = "chunking.tokenizer_sha256";
const WEIGHTS: &str = "providers.embedding.weights_sha256";

/// Only in versions that have them.
const FIELDS: &str = "providers.embedding.document_fields";
const DEPLOYMENT: &str = "providers.embedding.api_base";

/// Only in versions whose boundaries are not greedy.
const BOUNDARIES: &str = "chunking.boundaries";

/// How the digest in a version's name spells a setting. It never changes: another spelling
/// would give every database a version that it does not know.
fn name_in_hash(key: &str) -> &str {
    match key {
        TOKENIZER => "chunking.tokenizer_repo (SHA-256 of the tokenizer)",
        WEIGHTS => "providers.embedding.model (SHA-256 of the weights)",
        key => key,
    }
}

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

/// The version with the weights of a local model in its settings. `known` are the versions in
/// the database.
///
/// A version that an older ELF registered without weights keeps its name. ELF takes these
/// weights as its own, and [`crate::store::Store::record_settings`] records them. A version
/// with other weights gets another name.
pub fn with_weights(version: Version, weights: [u8; 32], known: &[RegisteredVersion]) -> Version {
    let weights = hex(&weights);
    let same_name = known
        .iter()
        .find(|known| known.version.name == version.name);
    let is_of_these = |known: &RegisteredVersion| {
        let recorded = known.version.settings.get(WEIGHTS);
        recorded.is_none_or(|recorded| *recorded == weights)
    };
    let name = match (
        same_name.is_some_and(is_of_these),
        version.name.rsplit_once('-'),
    ) {
        (false, Some((model_and_dim, digest))) => {
            let both = Sha256::digest(format!("{digest}\n{}={weights}\n", name_in_hash(WEIGHTS)));
            format!("{model_and_dim}-{}", hex(&both[..4]))
        }
        _ => version.name,
    };
    let mut settings = version.settings;
    settings[WEIGHTS] = weights.into();
    Version {
        name,
        settings,
        ..version
    }
}

/// What differs between the version in the database and the one that the
/// configuration asks for, a line per setting.
pub fn differences(database: &Version, config: &Version) -> Vec<String> {
    let changes = changes(database, config);
    changes.iter().map(Change::line).collect()
}

/// The settings in which a configuration asks for another version than the one that is served, as far as
/// the configuration alone tells: no file of a model is read, and no provider is asked.
pub fn asked_changes(served: &Version, config: &Config) -> Vec<Change> {
    let tokenizer = served.settings.get(TOKENIZER).and_then(Value::as_str);
    let dim = config.providers.embedding.dimensions.unwrap_or(served.dim);
    let asked = embedding_version(config, tokenizer.unwrap_or_default(), dim);
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
    let value = |of: &Map<String, Value>, key: &String| match of.get(key) {
        None if key == BOUNDARIES => json!(Boundaries::Greedy),
        found => found.cloned().unwrap_or_default(),
    };
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
    use chrono::DateTime;

    use super::*;
    use crate::store::Lifecycle;

    fn known(version: &Version) -> RegisteredVersion {
        RegisteredVersion {
            version: version.clone(),
            state: Lifecycle::Active,
            state_since: DateTime::UNIX_EPOCH,
            enqueued: true,
        }
    }

    #[test]
    fn a_greedy_version_keeps_the_name_that_it_had_before_the_setting() {
        let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[providers.embedding]\n\
                    api_base = \"http://h\"\nmodel = \"m\"\n[storage.qdrant]\nurl = \"http://h:6334\"";
        let mut config = Config::parse(toml, "elf.toml", &|_| None).expect("a configuration");
        let greedy = embedding_version(&config, "tokenizer", 8);
        assert_eq!(greedy.name, "m-8-22d40ff3");
        assert_eq!(greedy.settings.get(BOUNDARIES), None);

        config.chunking.boundaries = Boundaries::Stable;
        let stable = embedding_version(&config, "tokenizer", 8);
        assert_ne!(stable.name, greedy.name);
        let changed = changes(&greedy, &stable);
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(
            (&changed[0].from, &changed[0].to),
            (&json!("greedy"), &json!("stable"))
        );
    }

    #[test]
    fn what_shapes_the_vectors_of_notes_is_part_of_the_version() {
        let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[storage.qdrant]\n\
                    url = \"http://h:6334\"\n[providers.embedding]\nmodel = \"m\"\n";
        let version = |keys: &str| {
            let toml = format!("{toml}{keys}");
            let config = Config::parse(&toml, "elf.toml", &|_| None).expect("a configuration");
            embedding_version(&config, "tokenizer", 8)
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
    fn weights_are_part_of_a_version_and_one_without_them_is_completed() {
        let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[providers.embedding]\nprovider = \"local\"\n\
                    model = \"org/m@v2\"\n[storage.qdrant]\nurl = \"embedded:x\"";
        let config = Config::parse(toml, "elf.toml", &|_| None).expect("a configuration");
        let old = embedding_version(&config, "tokenizer", 8);
        assert!(old.name.starts_with("m-8-"), "{}", old.name);

        let fresh = with_weights(old.clone(), [1; 32], &[]);
        assert_ne!(fresh.name, old.name);
        assert_eq!(with_weights(old.clone(), [1; 32], &[known(&fresh)]), fresh);
        let other = with_weights(old.clone(), [2; 32], &[known(&fresh)]);
        assert_ne!(other.name, fresh.name);
        let changed = changes(&fresh, &other);
        assert_eq!(changed.len(), 1, "{changed:?}");
        assert_eq!(changed[0].key, WEIGHTS);

        // Registered by an older ELF.
        let completed = with_weights(old.clone(), [1; 32], &[known(&old)]);
        assert_eq!(completed.name, old.name);
        assert_eq!(completed.settings, fresh.settings);
        // And later the weights change.
        let other = with_weights(old.clone(), [2; 32], &[known(&completed)]);
        assert_ne!(other.name, old.name);
        let again = with_weights(old.clone(), [1; 32], &[known(&completed)]);
        assert_eq!(again, completed);
    }
}
