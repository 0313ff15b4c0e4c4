//! Every key of `elf.toml` with its default and its range, in the order of
//! `elf.toml.example`.

use std::path::Path;

use reqwest::Url;
use reqwest::header::{HeaderName, HeaderValue};
use toml::{Table, Value};

use crate::metadata::{self, FieldType};

use super::bm25::{Bm25Options, LANGUAGES, NO_LANGUAGE, Tokenizer};
use super::chunking::chunking;
use super::document::Known;
use super::paths;
use super::section::{self, Section};
use super::sources::source;
use super::value::{Refusal, Surroundings};
use super::{
    Canary, Config, ConfigError, Datatype, Dsn, Embedding, FusionMethod, Hnsw, Outbox, Postgres,
    Problem, ProviderKind, Providers, Qdrant, Quality, Quantization, Rerank, RerankApi, Search,
    Service, Setting, Storage, VectorType, Worker, is_loopback,
};

/// Keys whose values are secrets, in any section.
const SECRETS: [&str; 3] = ["api_key", "dsn", "admin_token"];

const MINUTE_MS: u64 = 60_000;
const DAY_MS: u64 = 24 * 60 * MINUTE_MS;
const TEN_YEARS_SECS: u64 = 10 * 365 * 24 * 60 * 60;

impl Config {
    /// Reads a file, and the environment variables and files that its secrets name.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::load_file(path, true)
    }

    /// Reads a file for what needs no server: its secrets need not be there.
    pub fn load_without_secrets(path: &Path) -> Result<Self, ConfigError> {
        Self::load_file(path, false)
    }

    /// Reads a file with some settings changed, written as in an inline table of TOML:
    /// `chunking.strategy = "auto", search.fusion = "rrf"`. The file by itself must be valid.
    pub fn load_with(path: &Path, changes: &str) -> Result<Self, ConfigError> {
        // No message repeats the changes, which may hold a secret.
        let origin = "changed settings";
        let text = with_changes(&text_of(path)?, changes).map_err(|message| {
            let problem = Problem {
                line: None,
                key: String::new(),
                message,
            };
            ConfigError::Invalid {
                origin: origin.to_owned(),
                problems: vec![problem],
            }
        })?;
        Self::of_text(&text, path, origin, true).map_err(|mut error| {
            if let ConfigError::Invalid { problems, .. } = &mut error {
                // The lines are those of no file.
                problems.iter_mut().for_each(|problem| problem.line = None);
            }
            error
        })
    }

    fn load_file(path: &Path, has_secrets: bool) -> Result<Self, ConfigError> {
        let origin = path.display().to_string();
        Self::of_text(&text_of(path)?, path, &origin, has_secrets)
    }

    fn of_text(
        text: &str,
        path: &Path,
        origin: &str,
        has_secrets: bool,
    ) -> Result<Self, ConfigError> {
        let folder = paths::folder_of(path);
        let surroundings = Surroundings {
            env: &|name| std::env::var(name).ok(),
            folder: &folder,
            has_secrets,
        };
        let mut config = Self::parse_in(text, origin, surroundings)?;
        config.start_paths_at(&folder);
        Ok(config)
    }

    /// Reads TOML. Errors call it `origin`; `env` looks up the environment variables that
    /// secrets name. Relative paths start at the current directory.
    pub fn parse(
        text: &str,
        origin: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let surroundings = Surroundings {
            env,
            folder: Path::new(""),
            has_secrets: true,
        };
        Self::parse_in(text, origin, surroundings)
    }

    fn parse_in(
        text: &str,
        origin: &str,
        surroundings: Surroundings<'_>,
    ) -> Result<Self, ConfigError> {
        let invalid = |problems| ConfigError::Invalid {
            origin: origin.to_owned(),
            problems,
        };
        read(text, surroundings).0.map_err(invalid)
    }
}

fn text_of(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => ConfigError::Missing {
            path: path.to_owned(),
        },
        _ => ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        },
    })
}

fn with_changes(text: &str, changes: &str) -> Result<String, String> {
    let read = |text: &str| -> Result<Table, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    };
    let mut all = read(text)?;
    let changes = read(&format!("changes = {{ {changes} }}"))?;
    let Some(Value::Table(changes)) = changes.into_iter().map(|(_, value)| value).next() else {
        return Err("write settings as in an inline table of TOML: a.b = 1, a.c = \"d\"".into());
    };
    if changes.is_empty() {
        return Err("there are none".into());
    }
    refuse_secrets(&changes)?;
    merge(&mut all, changes);
    Ok(toml::to_string(&all).expect("what was read from TOML has a form in TOML"))
}

/// Changes are printed and logged, and so are no place for a secret.
fn refuse_secrets(changes: &Table) -> Result<(), String> {
    let is_named = |text: &str| text.starts_with("env:") || text.starts_with("file:");
    for (key, value) in changes {
        match value {
            Value::String(text) if SECRETS.contains(&key.as_str()) && !is_named(text) => {
                return Err(format!("{key} is a secret: write env:NAME or file:PATH"));
            }
            Value::Table(headers) if key == "headers" => {
                let mut values = headers.values().filter_map(Value::as_str);
                if values.any(|text| !is_named(text)) {
                    return Err("headers may be secrets: write env:NAME or file:PATH".to_owned());
                }
            }
            Value::Table(inner) => refuse_secrets(inner)?,
            _ => {}
        }
    }
    Ok(())
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Every key of `elf.toml`, in the order of `elf.toml.example`. docs/reference/settings.md is made of them.
pub fn settings() -> Vec<Setting> {
    let env = |_: &str| None;
    let surroundings = Surroundings {
        env: &env,
        folder: Path::new(""),
        has_secrets: true,
    };
    let setting = |known: Known| Setting {
        key: known.path,
        default: known.default,
        allowed: known.allowed,
    };
    let (_, known) = read("", surroundings);
    known.into_iter().map(setting).collect()
}

/// Reads TOML; also returns every key that ELF knows.
pub(super) fn read(
    text: &str,
    surroundings: Surroundings<'_>,
) -> (Result<Config, Vec<Problem>>, Vec<Known>) {
    section::read(text, surroundings, |root| {
        let mut config = Config {
            service: root.section("service", service),
            storage: root.section("storage", |storage| Storage {
                postgres: storage.section("postgres", postgres),
                qdrant: storage.section("qdrant", qdrant),
            }),
            providers: root.section("providers", |providers| Providers {
                embedding: providers.section("embedding", embedding),
            }),
            chunking: root.section("chunking", chunking),
            worker: root.section("worker", worker),
            outbox: root.section("outbox", outbox),
            search: root.section("search", search),
            quality: root.section("quality", quality),
            metadata: root.words("metadata", &FieldType::ALL, metadata::check_name),
            sources: root.tables("sources", source),
            without_effect: Vec::new(),
        };
        root.check(
            &["metadata"],
            config.metadata.len() <= metadata::MAX_FIELDS,
            || format!("at most {} fields are possible", metadata::MAX_FIELDS),
        );
        let (key, chunk) = config.chunking.largest();
        let request = config.providers.embedding.max_batch_tokens;
        root.check(
            &[
                "providers.embedding.max_batch_tokens",
                "chunking.max_tokens",
            ],
            chunk <= request,
            || format!("{request} is less than one chunk: {key} is {chunk}"),
        );
        let mut names = std::collections::BTreeSet::new();
        for (at, source) in config.sources.iter().enumerate() {
            let is_new = names.insert(&source.name);
            root.check(&[&format!("sources[{at}].name")], is_new, || {
                format!("two sources have the name {:?}", source.name)
            });
        }
        config.without_effect = root.take_warnings();
        config
    })
}

fn service(section: &mut Section<'_, '_>) -> Service {
    let service = Service {
        admin_bind: section.text("admin_bind", "127.0.0.1:9464", host_and_port),
        admin_token: section.secret("admin_token", token),
        http_bind: section.text_or_unset("http_bind", host_and_port),
        log_level: section.text("log_level", "info", log_filter),
        log_json: section.flag("log_json", false),
    };
    section.check(
        &["admin_bind", "admin_token"],
        service.admin_token.is_some() || is_loopback(&service.admin_bind),
        || {
            format!(
                "other machines can reach {}, and the admin page shows notes: set admin_token, \
                 or bind 127.0.0.1",
                service.admin_bind
            )
        },
    );
    service
}

fn quality(section: &mut Section<'_, '_>) -> Quality {
    Quality {
        folder: section.text_or_unset("folder", not_empty),
        interval_secs: section.int("interval_secs", 3600, 1..=31_536_000),
        canary: section.section("canary", |canary| Canary {
            config: canary.text_or_unset("config", not_empty),
            min_relevance: canary.float("min_relevance", 0.9, 0.0..=1.0),
            max_errors: canary.float("max_errors", 1.5, 1.0..=1000.0),
            max_latency: canary.float("max_latency", 2.0, 1.0..=1000.0),
        }),
    }
}

fn postgres(section: &mut Section<'_, '_>) -> Postgres {
    Postgres {
        dsn: section.required_secret(
            "dsn",
            "dsn = \"postgres://user:password@host:5432/database\"",
            postgres_url,
        ),
        // At least what a worker and its API need.
        pool_max_conns: section.int("pool_max_conns", 36, 10..=1000),
        vector_type: section
            .choice_or_unset("vector_type", &[VectorType::Vector, VectorType::Halfvec]),
    }
}

fn qdrant(section: &mut Section<'_, '_>) -> Qdrant {
    let qdrant = Qdrant {
        url: section.required_text(
            "url",
            "url = \"http://host:6334\" or url = \"embedded:DIR\"",
            qdrant_url,
        ),
        api_key: section.secret("api_key", header_value),
        alias: section.text("alias", "notes", alias),
        shard_number: section.int_or_unset("shard_number", 1..=1000),
        replication_factor: section.int_or_unset("replication_factor", 1..=100),
        write_consistency_factor: section.int_or_unset("write_consistency_factor", 1..=100),
        on_disk: section.flag("on_disk", false),
        datatype: section.choice(
            "datatype",
            Datatype::Float32,
            &[Datatype::Float32, Datatype::Float16],
        ),
        quantization: section.choice(
            "quantization",
            Quantization::None,
            &[
                Quantization::None,
                Quantization::Scalar,
                Quantization::Binary,
            ],
        ),
        timeout_ms: section.int("timeout_ms", 10_000, 100..=10 * MINUTE_MS),
        hnsw: section.section("hnsw", hnsw),
        bm25: section.section("bm25", bm25),
    };
    if let (Some(writes), Some(copies)) =
        (qdrant.write_consistency_factor, qdrant.replication_factor)
    {
        section.check(
            &["write_consistency_factor", "replication_factor"],
            writes <= copies,
            || {
                format!(
                    "{writes} copies cannot acknowledge a write: replication_factor is {copies}"
                )
            },
        );
    }
    qdrant
}

fn hnsw(section: &mut Section<'_, '_>) -> Hnsw {
    Hnsw {
        m: section.int_or_unset("m", 2..=256),
        ef_construct: section.int_or_unset("ef_construct", 4..=4096),
    }
}

fn bm25(section: &mut Section<'_, '_>) -> Bm25Options {
    let default = Bm25Options::default();
    let words: Vec<&str> = LANGUAGES.into_iter().chain([NO_LANGUAGE]).collect();
    let options = Bm25Options {
        tokenizer: section.choice(
            "tokenizer",
            default.tokenizer,
            &[Tokenizer::Word, Tokenizer::Multilingual],
        ),
        language: section.word("language", &default.language, &words),
        stopwords: section.texts("stopwords", &default.stopwords, not_empty),
        ascii_folding: section.flag("ascii_folding", default.ascii_folding),
        lead: section.flag("lead", default.lead),
        k: section.float("k", default.k, 0.0..=100.0),
        b: section.float("b", default.b, 0.0..=1.0),
        avg_len: section.float("avg_len", default.avg_len, 1.0..=1_000_000.0),
    };
    let wrong = options.check().err();
    let keys = ["stopwords", "language", "k", "b", "avg_len"];
    section.check(&keys, wrong.is_none(), || wrong.clone().unwrap_or_default());
    options
}

fn embedding(section: &mut Section<'_, '_>) -> Embedding {
    let provider = section.choice(
        "provider",
        ProviderKind::Openai,
        &[ProviderKind::Openai, ProviderKind::Local],
    );
    // OpenAI accepts 2048 texts and 300,000 tokens. The defaults are lower: the provider's
    // tokenizer may count more tokens than ELF's, and a request must end well within the
    // timeout. The local model needs about 200 MB for a batch of 8192 tokens.
    let (batch_inputs, batch_tokens) = match provider {
        ProviderKind::Openai => (256, 100_000),
        ProviderKind::Local => (32, 8192),
    };
    let api_base = section.text("api_base", "https://api.openai.com", http_url_with_query);
    let embedding = Embedding {
        provider,
        path: section.text("path", path_below(&api_base), absolute_path),
        api_base,
        model: match provider {
            ProviderKind::Openai => section.text("model", "text-embedding-3-small", not_empty),
            ProviderKind::Local => section.required_text(
                "model",
                "model = \"sentence-transformers/all-MiniLM-L6-v2\" or a folder",
                not_empty,
            ),
        },
        dimensions: section.int_or_unset("dimensions", 1..=65_536),
        api_key: section.secret("api_key", header_value),
        max_batch_inputs: section.int("max_batch_inputs", batch_inputs, 1..=2048),
        max_batch_tokens: section.int("max_batch_tokens", batch_tokens, 1..=10_000_000),
        concurrency: section.int("concurrency", 16, 1..=256),
        timeout_ms: section.int("timeout_ms", 30_000, 100..=10 * MINUTE_MS),
        requests_per_minute: section.int_or_unset("requests_per_minute", 1..=u32::MAX),
        tokens_per_minute: section.int_or_unset("tokens_per_minute", 1..=u32::MAX),
        usd_per_million_tokens: section.float_or_unset("usd_per_million_tokens", 0.0..=1e6),
        document_prefix: section.text("document_prefix", "", anything),
        query_prefix: section.text("query_prefix", "", anything),
        document_fields: section.fields("document_fields", field),
        query_fields: section.fields("query_fields", field),
        ca_file: section.text_or_unset("ca_file", not_empty),
        client_cert_file: section.text_or_unset("client_cert_file", not_empty),
        client_key_file: section.text_or_unset("client_key_file", not_empty),
        headers: section.secrets("headers", header),
    };
    section.check(
        &["client_cert_file", "client_key_file"],
        embedding.client_cert_file.is_some() == embedding.client_key_file.is_some(),
        || "client_cert_file and client_key_file go together".to_owned(),
    );
    embedding
}

/// Where an address has its embeddings endpoint. OpenAI's clients take one that ends with `/v1`,
/// Azure's one with the deployment.
fn path_below(api_base: &str) -> &'static str {
    let base = api_base.split('?').next().unwrap_or_default();
    let is_whole = base.trim_end_matches('/').ends_with("/v1") || base.contains("/deployments/");
    if is_whole {
        "/embeddings"
    } else {
        "/v1/embeddings"
    }
}

fn worker(section: &mut Section<'_, '_>) -> Worker {
    let worker = Worker {
        lease_secs: section.int("lease_secs", 30, 5..=3600),
        max_attempts: section.int("max_attempts", 8, 1..=1000),
        poll_interval_ms: section.int("poll_interval_ms", 1000, 10..=10 * MINUTE_MS),
        listen: section.flag("listen", true),
        batch_notes: section.int("batch_notes", 256, 1..=1000),
        max_note_bytes: section.int("max_note_bytes", 32 << 20, 1..=256 << 20),
        concurrency: section.int("concurrency", 8, 1..=64),
        bm25_first: section.flag("bm25_first", false),
        verify_interval_secs: section.int("verify_interval_secs", 86_400, 0..=31_536_000),
        grace_secs: section.int("grace_secs", 20, 0..=3600),
        backoff_base_ms: section.int("backoff_base_ms", 1000, 1..=DAY_MS),
        backoff_max_ms: section.int("backoff_max_ms", 300_000, 1..=DAY_MS),
    };
    let Worker {
        backoff_base_ms: base,
        backoff_max_ms: max,
        ..
    } = worker;
    section.check(&["backoff_base_ms", "backoff_max_ms"], base <= max, || {
        format!("{base} must be at most backoff_max_ms, which is {max}")
    });
    worker
}

fn outbox(section: &mut Section<'_, '_>) -> Outbox {
    Outbox {
        retention_secs: section.int("retention_secs", 0, 0..=TEN_YEARS_SECS),
    }
}

fn search(section: &mut Section<'_, '_>) -> Search {
    Search {
        fusion: section.choice(
            "fusion",
            FusionMethod::Adaptive,
            &[
                FusionMethod::Adaptive,
                FusionMethod::Dbsf,
                FusionMethod::Rrf,
            ],
        ),
        candidates: section.int("candidates", 50, 1..=1000),
        hnsw_ef: section.int_or_unset("hnsw_ef", 1..=10_000),
        exact: section.flag("exact", false),
        query_timeout_ms: section.int("query_timeout_ms", 5000, 10..=10 * MINUTE_MS),
        mmr_lambda: section.float("mmr_lambda", 1.0, 0.0..=1.0),
        trace_days: section.int("trace_days", 7, 0..=3650),
        min_relevance: section.float("min_relevance", 0.0, 0.0..=1.0),
        rerank: section.section("rerank", rerank),
    }
}

/// Without a URL there is no reranker, unless it is computed here.
fn rerank(section: &mut Section<'_, '_>) -> Option<Rerank> {
    let url = section.text_or_unset("url", http_url);
    let rerank = Rerank {
        url: url.clone().unwrap_or_default(),
        api: section.choice(
            "api",
            RerankApi::Cohere,
            &[RerankApi::Cohere, RerankApi::Tei, RerankApi::Local],
        ),
        model: section.text("model", "", anything),
        api_key: section.secret("api_key", header_value),
        timeout_ms: section.int("timeout_ms", 1000, 10..=MINUTE_MS),
        notes: section.int("notes", 20, 1..=100),
    };
    let is_local = rerank.api == RerankApi::Local;
    section.check(
        &["model", "api"],
        !is_local || !rerank.model.is_empty(),
        || {
            "is required with api = \"local\": a folder or a repository on the Hugging Face hub"
                .into()
        },
    );
    (url.is_some() || is_local).then_some(rerank)
}

pub(super) fn anything(_: &str) -> Result<(), Refusal> {
    Ok(())
}

pub(super) fn not_empty(text: &str) -> Result<(), Refusal> {
    holds(!text.trim().is_empty(), || "must not be empty".to_owned())
}

fn host_and_port(text: &str) -> Result<(), Refusal> {
    let port = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
        .map(|(_, port)| port.parse::<u16>());
    holds(matches!(port, Some(Ok(_))), || {
        format!("must be HOST:PORT with a port up to 65535, not {text:?}")
    })
}

/// The error does not repeat the token.
fn token(text: &str) -> Result<(), Refusal> {
    header_value(text)?;
    holds(text.len() >= 16, || {
        "must have 16 characters or more, and be hard to guess: openssl rand -hex 32".to_owned()
    })
}

fn log_filter(text: &str) -> Result<(), Refusal> {
    // `EnvFilter` accepts any single word as the name of a module, so a misspelt level too.
    let word = text.chars().all(|letter| letter.is_ascii_alphabetic());
    let known = ["off", "error", "warn", "info", "debug", "trace"].contains(&text);
    holds(!word || known, || {
        format!("must be error, warn, info, debug, trace or off, not {text:?}")
    })?;
    tracing_subscriber::EnvFilter::try_new(text)
        .map(drop)
        .map_err(|error| format!("is not a filter like \"info,elf::worker=debug\": {error}"))
}

/// The error does not repeat the URL, because it contains a password.
fn postgres_url(text: &str) -> Result<(), Refusal> {
    Dsn::parse(text).map(drop)
}

fn qdrant_url(text: &str) -> Result<(), Refusal> {
    match text.strip_prefix("embedded:") {
        Some(folder) => holds(!folder.is_empty(), || {
            "must name a folder: embedded:DIR".to_owned()
        }),
        None if !text.starts_with("http") => {
            Err("must be http://HOST:PORT, https://HOST:PORT or embedded:DIR".to_owned())
        }
        None => http_url(text),
    }
}

fn http_url(text: &str) -> Result<(), Refusal> {
    http_url_with_query(text)?;
    holds(!text.contains('?'), || "must contain no query".to_owned())
}

/// The error does not repeat the URL, because it may contain a password.
fn http_url_with_query(text: &str) -> Result<(), Refusal> {
    let url = Url::parse(text)
        .ok()
        .filter(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
        .ok_or("must be http://HOST or https://HOST")?;
    // Messages print URLs. They never print `api_key` or `headers`.
    let secret = ["key", "token", "secret", "pass", "auth", "sig"];
    let is_secret = |name: &str| secret.iter().any(|word| name.to_lowercase().contains(word));
    let is_open = url.username().is_empty()
        && url.password().is_none()
        && !url.query_pairs().any(|(name, _)| is_secret(&name));
    holds(is_open, || {
        "must contain no user, password or key: set a secret as api_key or in headers".to_owned()
    })
}

/// A field of a request that ELF does not set itself.
fn field(name: &str) -> Result<(), Refusal> {
    match name {
        "model" | "dimensions" => Err(format!("set providers.embedding.{name} instead")),
        "input" | "encoding_format" => Err("is what ELF itself sets".to_owned()),
        _ => Ok(()),
    }
}

fn absolute_path(text: &str) -> Result<(), Refusal> {
    holds(text.starts_with('/'), || {
        format!("must begin with /, not {text:?}")
    })
}

/// The characters are limited because the embedded engine also uses the alias and
/// `<alias>__<n>` as names of folders.
fn alias(text: &str) -> Result<(), Refusal> {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
    holds(
        !text.is_empty() && text.len() <= 200 && text.chars().all(allowed),
        || format!("must be 1 to 200 of the characters A-Z a-z 0-9 _ -, not {text:?}"),
    )
}

fn header(name: &str, value: &str) -> Result<(), Refusal> {
    holds(name.parse::<HeaderName>().is_ok(), || {
        "is not the name of an HTTP header".to_owned()
    })?;
    header_value(value)
}

fn header_value(text: &str) -> Result<(), Refusal> {
    holds(HeaderValue::from_str(text).is_ok(), || {
        "contains characters that an HTTP header must not contain".to_owned()
    })
}

pub(super) fn holds(condition: bool, refusal: impl FnOnce() -> Refusal) -> Result<(), Refusal> {
    if condition { Ok(()) } else { Err(refusal()) }
}
