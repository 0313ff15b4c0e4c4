//! The file as a whole: its keys, its defaults and its errors.

use super::super::read::read;
use super::super::value::Surroundings;
use super::super::*;
use super::{REQUIRED, assert_refused, parse, with};

fn surroundings(env: &dyn Fn(&str) -> Option<String>) -> Surroundings<'_> {
    let folder = std::path::Path::new("");
    Surroundings {
        env,
        folder,
        has_secrets: true,
    }
}

#[test]
fn two_keys_are_enough() {
    let config = parse(REQUIRED).unwrap();
    assert_eq!(config.service.admin_bind, "127.0.0.1:9464");
    assert_eq!(config.storage.qdrant.alias, "notes");
    assert_eq!(config.providers.embedding.provider, ProviderKind::Openai);
    assert_eq!(
        (
            config.chunking.settings.max_tokens,
            config.chunking.settings.overlap_tokens
        ),
        (512, 128)
    );
    assert!(config.chunking.settings.enabled && config.worker.listen);
    assert_eq!(
        (config.worker.lease_secs, config.worker.max_attempts),
        (30, 8)
    );
    assert_eq!(config.worker.poll_interval_ms, 1000);
}

#[test]
fn what_is_required_is_named_with_what_to_write() {
    let error = parse("").unwrap_err();
    assert_eq!(
        error,
        "elf.toml: storage.postgres.dsn: missing; write dsn = \"postgres://user:password@host:5432/database\" in [storage.postgres]\n\
         elf.toml: storage.qdrant.url: missing; write url = \"http://host:6334\" or url = \"embedded:DIR\" in [storage.qdrant]"
    );
}

#[test]
fn all_errors_come_at_once_in_the_order_of_lines() {
    let text = "[chunking]\nmax_tokns = 100\noverlap_tokens = \"many\"\n\
                [storage.qdrant]\nurl = \"localhost:6334\"\nzzz = 3\n\
                [worker]\nlease_secs = 2\nlisten = 1\n[serivce]\nlog_level = \"info\"\n";
    assert_eq!(
        parse(text).unwrap_err().lines().collect::<Vec<_>>(),
        [
            "elf.toml:2: chunking.max_tokns: unknown key; did you mean max_tokens?",
            "elf.toml:3: chunking.overlap_tokens: must be a whole number, not a string",
            "elf.toml:5: storage.qdrant.url: must be http://HOST:PORT, https://HOST:PORT or embedded:DIR",
            "elf.toml:6: storage.qdrant.zzz: unknown key; known here: url, api_key, alias, shard_number, \
             replication_factor, write_consistency_factor, on_disk, datatype, quantization, timeout_ms, hnsw, bm25",
            "elf.toml:8: worker.lease_secs: must be from 5 to 3600, not 2",
            "elf.toml:9: worker.listen: must be true or false, not a whole number",
            "elf.toml:10: serivce: unknown key; did you mean service?",
            "elf.toml: storage.postgres.dsn: missing; write dsn = \"postgres://user:password@host:5432/database\" in \
             [storage.postgres]",
        ]
    );
}

#[test]
fn an_unknown_key_names_the_nearest_one_wherever_it_is() {
    assert_refused("worker", "max_attempt = 3", "did you mean max_attempts?");
    assert_refused(
        "worker",
        "max_tokens = 3",
        "did you mean chunking.max_tokens?",
    );
    assert_refused("storage", "bm25 = {}", "did you mean storage.qdrant.bm25?");
    assert_refused("outbox", "whatever = 3", "known here: retention_secs");
    let of_type = "chunking.by_type.log";
    assert_refused(of_type, "lead = []", "did you mean chunking.lead?");
    assert_refused(of_type, "max_token = 3", "did you mean max_tokens?");
    assert_refused(of_type, "zzz = 3", "known here: enabled, max_tokens");
}

#[test]
fn a_section_that_is_no_table_is_named() {
    let error = parse(&format!("chunking = 5\n{REQUIRED}")).unwrap_err();
    assert_eq!(
        error,
        "elf.toml:1: chunking: must be a table, not a whole number"
    );
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_every_such_line() {
    let error = parse("[service]\nlog_level = \n[chunking]\nmax_tokens 512\n").unwrap_err();
    let lines: Vec<_> = error.lines().collect();
    assert!(lines[0].starts_with("elf.toml:2: not TOML: "), "{error}");
    assert!(lines[1].starts_with("elf.toml:4: not TOML: "), "{error}");
}

#[test]
fn the_shown_configuration_is_a_file_again() {
    let config = with("storage.qdrant.bm25", "language = \"german\"").unwrap();
    let shown = config.to_toml();
    let again =
        parse(&shown.replace("\"***\"", "\"postgres://elf:hunter2@localhost/elf\"")).unwrap();
    assert_eq!(again, config);
}

#[test]
fn a_missing_file_says_where_it_was_looked_for_and_what_to_do() {
    let error = Config::load(std::path::Path::new("no/such/elf.toml"))
        .unwrap_err()
        .to_string();
    for word in ["no/such/elf.toml", "-c", "ELF_CONFIG", "elf.toml.example"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn the_example_has_every_key_with_its_default() {
    let example = include_str!("../../../elf.toml.example");
    let env = |_: &str| Some("postgres://localhost/elf".to_owned());
    let (config, known) = read(example, surroundings(&env));
    config.unwrap();

    let mut unseen: std::collections::BTreeMap<_, _> = known
        .into_iter()
        .map(|known| (known.path, known.default))
        .collect();
    let mut section = String::new();
    let mut has_free_names = false;
    for line in example.lines() {
        // A list of tables has its header in a comment: the example has none.
        let header = line.strip_prefix("# [[").or(line.strip_prefix('['));
        if let Some(header) = header {
            section = header.trim_end_matches(']').to_owned();
            has_free_names = unseen.remove(&section).is_some();
        }
        if has_free_names {
            continue;
        }
        let Some((key, value)) = line.trim_start_matches("# ").split_once(" = ") else {
            continue;
        };
        // Skips a sentence that quotes a setting.
        if key.contains(' ') {
            continue;
        }
        let path = format!("{section}.{key}");
        let default = unseen
            .remove(&path)
            .unwrap_or_else(|| panic!("{path} is no key, or is there twice"));
        match (line.starts_with("# "), default) {
            (true, Some(default)) => assert_eq!(value, default, "{path}"),
            (true, None) if ["sources.name", "sources.table"].contains(&&*path) => {}
            (true, None) => assert!(value.contains("# default: "), "{path}: {value}"),
            (false, default) => assert_eq!(
                default, None,
                "{path} has a default: it should be commented"
            ),
        }
    }
    assert!(unseen.is_empty(), "not in the example: {unseen:?}");
    // The optional keys are valid as they are shown.
    let (example, _) = example.split_once("# [[sources]]").unwrap();
    let all: Vec<_> = example
        .lines()
        .map(|line| {
            if line.contains("# default: ") {
                &line[2..]
            } else {
                line
            }
        })
        .collect();
    let all = all
        .join("\n")
        .replace("env:OPENAI_API_KEY", "key")
        .replace("env:QDRANT_API_KEY", "key");
    read(&all, surroundings(&env)).0.unwrap();
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for model in ["model", "tokenizer", "reranker"] {
        std::fs::create_dir(at(model)).unwrap();
    }
    let dsn =
        "postgres://u:p%40%3F@/elf?host=db&sslrootcert=ca.pem&sslcert=a%20b.pem&sslkey=%2Fk.pem";
    std::fs::write(at("dsn"), dsn).unwrap();
    let text = "[storage.postgres]\ndsn = \"file:dsn\"\n\
                [storage.qdrant]\nurl = \"embedded:index\"\n\
                [providers.embedding]\nprovider = \"local\"\nmodel = \"model\"\n\
                ca_file = \"ca.pem\"\nclient_cert_file = \"own.pem\"\nclient_key_file = \"../own.key\"\n\
                [chunking]\ntokenizer_repo = \"tokenizer\"\n\
                [search.rerank]\napi = \"local\"\nmodel = \"reranker\"\n\
                [quality]\nfolder = \"golden\"\ncanary.config = \"canary.toml\"\n";
    std::fs::write(at("elf.toml"), text).unwrap();
    let config = Config::load(&folder.path().join("elf.toml")).unwrap();
    let embedding = &config.providers.embedding;
    let quality = &config.quality;
    for (found, name) in [
        (Some(&embedding.model), "model"),
        (embedding.ca_file.as_ref(), "ca.pem"),
        (embedding.client_cert_file.as_ref(), "own.pem"),
        (embedding.client_key_file.as_ref(), "../own.key"),
        (Some(&config.chunking.tokenizer_repo), "tokenizer"),
        (
            config.search.rerank.as_ref().map(|it| &it.model),
            "reranker",
        ),
        (quality.folder.as_ref(), "golden"),
        (quality.canary.config.as_ref(), "canary.toml"),
    ] {
        assert_eq!(found, Some(&at(name)));
    }
    let index = config.storage.qdrant.url.strip_prefix("embedded:");
    assert_eq!(index, Some(&*at("index")));
    let dsn = config.storage.postgres.dsn.expose();
    assert!(
        dsn.starts_with("postgres://u:p%40%3F@/elf?host=db&"),
        "{dsn}"
    );
    let files = crate::config::Dsn::parse(dsn).unwrap();
    let files = format!("{files:?}");
    for path in [at("ca.pem"), at("a b.pem"), "/k.pem".to_owned()] {
        assert!(files.contains(&format!("\"{path}\"")), "{path}: {files}");
    }

    // Not a path that is there: a repository on the hub.
    std::fs::remove_dir(at("tokenizer")).unwrap();
    let config = Config::load(&folder.path().join("elf.toml")).unwrap();
    assert_eq!(config.chunking.tokenizer_repo, "tokenizer");
}

/// A new one belongs into the test above.
#[test]
fn the_settings_that_are_paths_are_known() {
    let is_path = |key: &&str| {
        let name = key.rsplit('.').next().unwrap();
        ["file", "folder", "config", "dir", "path"]
            .iter()
            .any(|word| name.ends_with(word))
    };
    let keys: Vec<String> = crate::config::settings()
        .into_iter()
        .map(|setting| setting.key)
        .collect();
    let paths: Vec<&str> = keys.iter().map(String::as_str).filter(is_path).collect();
    let known = [
        // A part of a URL.
        "providers.embedding.path",
        "providers.embedding.ca_file",
        "providers.embedding.client_cert_file",
        "providers.embedding.client_key_file",
        "quality.folder",
        "quality.canary.config",
    ];
    assert_eq!(paths, known);
}
