//! The promises of `elf.toml`.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use super::read::read;
use super::*;

const REQUIRED: &str = r#"
[storage.postgres]
dsn = "postgres://elf:hunter2@localhost/elf"
[storage.qdrant]
url = "http://localhost:6334"
"#;

fn no_env(_: &str) -> Option<String> {
    None
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "elf.toml", &no_env).map_err(|error| error.to_string())
}

/// A valid file with `lines` added to `section`.
fn with(section: &str, lines: &str) -> Result<Config, String> {
    let header = format!("[{section}]");
    if REQUIRED.contains(&header) {
        return parse(&REQUIRED.replace(&header, &format!("{header}\n{lines}")));
    }
    parse(&format!("{REQUIRED}{header}\n{lines}"))
}

#[track_caller]
fn assert_refused(section: &str, line: &str, expected: &str) {
    let error = with(section, line).expect_err(&format!("{line} in [{section}] is taken"));
    let key = line.split(' ').next().unwrap();
    assert!(error.contains(&format!(" {section}.{key}: ")), "{error}");
    assert!(error.contains(expected), "{error}");
}

#[test]
fn an_old_name_of_a_key_is_answered_with_the_new_one() {
    let toml = "[storage.postgres]\ndsn = \"postgres://h/d\"\n[storage.qdrant]\n\
                url = \"embedded:x\"\ncollection = \"notes\"";
    let error = Config::parse(toml, "elf.toml", &|_| None).unwrap_err();
    let said = "elf.toml:5: storage.qdrant.collection: this key is called storage.qdrant.alias now";
    assert!(error.to_string().contains(said), "{error}");
}

#[test]
fn two_keys_are_enough() {
    let config = parse(REQUIRED).unwrap();
    assert_eq!(config.service.admin_bind, "127.0.0.1:9464");
    assert_eq!(config.storage.qdrant.alias, "notes");
    assert_eq!(config.providers.embedding.provider, ProviderKind::Openai);
    assert_eq!(
        (config.chunking.max_tokens, config.chunking.overlap_tokens),
        (512, 128)
    );
    assert!(config.chunking.enabled && config.worker.listen);
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
fn a_local_provider_needs_a_model_and_takes_smaller_batches() {
    let error = with("providers.embedding", "provider = \"local\"").unwrap_err();
    assert!(
        error.starts_with("elf.toml:6: providers.embedding.model: missing; write model = "),
        "{error}"
    );
    let config = with(
        "providers.embedding",
        "provider = \"local\"\nmodel = \"some/folder\"",
    )
    .unwrap();
    assert_eq!(config.providers.embedding.max_batch_inputs, 32);
    assert_eq!(config.providers.embedding.max_batch_tokens, 8192);
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
             replication_factor, write_consistency_factor, on_disk, quantization, timeout_ms, bm25",
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
fn numbers_keep_to_their_ranges() {
    for (section, key, below, first, last, above) in [
        (
            "storage.postgres",
            "pool_max_conns",
            "1",
            "2",
            "1000",
            "1001",
        ),
        ("storage.qdrant", "shard_number", "0", "1", "1000", "1001"),
        (
            "storage.qdrant",
            "replication_factor",
            "0",
            "1",
            "100",
            "101",
        ),
        (
            "storage.qdrant",
            "write_consistency_factor",
            "0",
            "1",
            "100",
            "101",
        ),
        (
            "storage.qdrant",
            "timeout_ms",
            "99",
            "100",
            "600000",
            "600001",
        ),
        ("storage.qdrant.bm25", "k", "-0.1", "0", "100.0", "100.1"),
        ("storage.qdrant.bm25", "b", "-0.1", "0.0", "1", "1.1"),
        (
            "storage.qdrant.bm25",
            "avg_len",
            "0.0",
            "1.0",
            "1000000",
            "inf",
        ),
        (
            "providers.embedding",
            "dimensions",
            "0",
            "1",
            "65536",
            "65537",
        ),
        (
            "providers.embedding",
            "max_batch_inputs",
            "0",
            "1",
            "2048",
            "2049",
        ),
        (
            "providers.embedding",
            "max_batch_tokens",
            "0",
            "512",
            "10000000",
            "10000001",
        ),
        ("providers.embedding", "concurrency", "0", "1", "256", "257"),
        (
            "providers.embedding",
            "timeout_ms",
            "99",
            "100",
            "600000",
            "600001",
        ),
        (
            "providers.embedding",
            "requests_per_minute",
            "0",
            "1",
            "4294967295",
            "4294967296",
        ),
        (
            "providers.embedding",
            "tokens_per_minute",
            "0",
            "1",
            "4294967295",
            "4294967296",
        ),
        (
            "providers.embedding",
            "usd_per_million_tokens",
            "-0.01",
            "0",
            "0.13",
            "inf",
        ),
        ("chunking", "max_tokens", "0", "129", "100000", "131073"),
        ("chunking", "overlap_tokens", "-1", "0", "511", "131072"),
        ("worker", "lease_secs", "4", "5", "3600", "3601"),
        ("worker", "max_attempts", "0", "1", "1000", "1001"),
        ("worker", "poll_interval_ms", "9", "10", "600000", "600001"),
        ("worker", "batch_notes", "0", "1", "10000", "10001"),
        (
            "worker",
            "max_note_bytes",
            "0",
            "1",
            "268435456",
            "268435457",
        ),
        ("worker", "concurrency", "0", "1", "64", "65"),
        ("worker", "grace_secs", "-1", "0", "3600", "3601"),
        (
            "worker",
            "verify_interval_secs",
            "-1",
            "0",
            "31536000",
            "31536001",
        ),
        ("worker", "backoff_base_ms", "0", "1", "300000", "86400001"),
        (
            "worker",
            "backoff_max_ms",
            "0",
            "1000",
            "86400000",
            "86400001",
        ),
        (
            "outbox",
            "retention_secs",
            "-1",
            "0",
            "315360000",
            "315360001",
        ),
        ("search", "candidates", "0", "1", "1000", "1001"),
    ] {
        for wrong in [below, above] {
            assert_refused(
                section,
                &format!("{key} = {wrong}"),
                if wrong == "inf" { "not inf" } else { "" },
            );
        }
        for right in [first, last] {
            with(section, &format!("{key} = {right}")).unwrap();
        }
    }
}

#[test]
fn texts_keep_to_their_forms() {
    for (section, wrong, right) in [
        (
            "service",
            "admin_bind = \"9464\"",
            "admin_bind = \"127.0.0.1:0\"",
        ),
        (
            "service",
            "admin_bind = \"localhost:70000\"",
            "admin_bind = \"[::1]:9464\"",
        ),
        (
            "service",
            "log_level = \"inof\"",
            "log_level = \"info,elf::worker=debug\"",
        ),
        (
            "service",
            "log_level = \"elf=loud\"",
            "log_level = \"trace\"",
        ),
        (
            "storage.qdrant",
            "alias = \"my notes\"",
            "alias = \"my-notes_2\"",
        ),
        ("storage.qdrant", "alias = \"\"", "alias = \"n\""),
        (
            "storage.qdrant",
            "quantization = \"product\"",
            "quantization = \"binary\"",
        ),
        (
            "storage.qdrant.bm25",
            "language = \"englisch\"",
            "language = \"none\"",
        ),
        (
            "providers.embedding",
            "provider = \"tei\"",
            "provider = \"openai\"",
        ),
        (
            "providers.embedding",
            "api_base = \"localhost:8080\"",
            "api_base = \"http://localhost:8080\"",
        ),
        (
            "providers.embedding",
            "path = \"embed\"",
            "path = \"/embed\"",
        ),
        ("providers.embedding", "model = \" \"", "model = \"m\""),
        ("providers.embedding", "model = 3", "model = \"3\""),
    ] {
        assert_refused(section, wrong, "");
        with(section, right).unwrap();
    }
}

#[test]
fn an_overlap_leaves_room_for_something_new() {
    assert_refused(
        "chunking",
        "overlap_tokens = 512",
        "512 must be less than max_tokens, which is 512",
    );
    let error = with("chunking", "max_tokens = 100").unwrap_err();
    assert_eq!(
        error,
        "elf.toml:7: chunking.overlap_tokens: 128 must be less than max_tokens, which is 100"
    );
    with("chunking", "max_tokens = 100\noverlap_tokens = 99").unwrap();
}

#[test]
fn values_that_do_not_go_together_are_refused() {
    assert_refused(
        "worker",
        "backoff_base_ms = 400000",
        "at most backoff_max_ms, which is 300000",
    );
    assert_refused(
        "providers.embedding",
        "max_batch_tokens = 511",
        "chunking.max_tokens is 512",
    );
    assert_refused(
        "storage.qdrant",
        "write_consistency_factor = 3\nreplication_factor = 2",
        "3 copies",
    );
}

#[test]
fn the_stores_are_urls() {
    for (url, taken) in [
        ("http://localhost:6334", true),
        ("https://qdrant.example", true),
        ("embedded:data", true),
        ("embedded:", false),
        ("grpc://localhost:6334", false),
        ("http://", false),
    ] {
        assert_eq!(
            parse(&REQUIRED.replace("http://localhost:6334", url)).is_ok(),
            taken,
            "{url}"
        );
    }
    for (dsn, taken) in [
        ("postgresql://localhost/elf", true),
        ("postgres:///elf?host=/run/postgresql", true),
        ("mysql://localhost/elf", false),
        ("postgres://localhost:port/elf", false),
    ] {
        assert_eq!(
            parse(&REQUIRED.replace("postgres://elf:hunter2@localhost/elf", dsn)).is_ok(),
            taken,
            "{dsn}"
        );
    }
}

#[test]
fn secrets_come_from_the_environment_and_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "from a file\n").unwrap();
    let text = REQUIRED.replace("postgres://elf:hunter2@localhost/elf", "env:DSN")
        + &format!(
            "api_key = \"file:{}\"\n[providers.embedding]\napi_key = \"plain\"\nheaders = {{ X-Team = \"env:TEAM\" }}",
            file.display()
        );
    let env = |name: &str| match name {
        "DSN" => Some("postgres://localhost/elf".to_owned()),
        "TEAM" => Some("search".to_owned()),
        _ => None,
    };
    let config = Config::parse(&text, "elf.toml", &env).unwrap();
    assert_eq!(
        config.storage.postgres.dsn.expose(),
        "postgres://localhost/elf"
    );
    assert_eq!(
        config.storage.qdrant.api_key.unwrap().expose(),
        "from a file"
    );
    assert_eq!(
        config.providers.embedding.api_key.unwrap().expose(),
        "plain"
    );
    assert_eq!(
        config.providers.embedding.headers["X-Team"].expose(),
        "search"
    );
}

#[test]
fn a_secret_that_is_not_there_is_named() {
    assert_refused(
        "providers.embedding",
        "api_key = \"env:NO_SUCH\"",
        "the environment variable NO_SUCH is not set",
    );
    assert_refused(
        "providers.embedding",
        "api_key = \"file:/no/such\"",
        "cannot read the file /no/such",
    );
    assert_refused("providers.embedding", "api_key = \"\"", "is empty");
    let error = with(
        "providers.embedding",
        "headers = { \"X Team\" = \"a\", Y = \"env:NO_SUCH\" }",
    )
    .unwrap_err();
    assert!(
        error.contains(":7: providers.embedding.headers.X Team: is not the name of an HTTP header"),
        "{error}"
    );
    assert!(
        error.contains(":7: providers.embedding.headers.Y: the environment variable NO_SUCH"),
        "{error}"
    );
}

#[test]
fn secrets_are_never_printed() {
    let keys = "api_key = \"hunter2\"\nheaders = { X = \"hunter2\" }";
    let config = with("providers.embedding", keys).unwrap();
    for printed in [
        format!("{config:?}"),
        config.to_toml(),
        serde_json::to_string(&config).unwrap(),
    ] {
        assert!(!printed.contains("hunter2"), "{printed}");
        assert!(printed.contains("***"), "{printed}");
    }
    // Each secret is invalid in a different way.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "hunter2\nhunter2").unwrap();
    let text = format!(
        "[storage.postgres]\ndsn = \"mysql://elf:hunter2@localhost\"\n\
         [storage.qdrant]\nurl = \"ftp://elf:hunter2@localhost\"\napi_key = [\"hunter2\"]\n\
         [providers.embedding]\napi_base = \"elf:hunter2@localhost\"\napi_key = \"file:{}\"\n\
         headers = {{ X = \"hunter2\\u0007\" }}",
        file.path().display()
    );
    let error = Config::parse(&text, "elf.toml", &no_env).unwrap_err();
    assert_eq!(error.to_string().lines().count(), 6, "{error}");
    assert!(
        !format!("{error}{error:?}").contains("hunter2"),
        "{error:?}"
    );
    let error = parse("[storage.postgres]\ndsn = \"hunter2\n").unwrap_err();
    assert!(!error.contains("hunter2"), "{error}");
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
fn the_tokenizer_is_the_models_own_unless_it_is_named() {
    let source = |section, lines| with(section, lines).unwrap().tokenizer_source().to_owned();
    assert_eq!(
        source("providers.embedding", "model = \"intfloat/e5-small\""),
        "intfloat/e5-small"
    );
    assert_eq!(
        source("chunking", "tokenizer_repo = \"my/tokenizer\""),
        "my/tokenizer"
    );
    assert_eq!(source("chunking", ""), "Xenova/text-embedding-ada-002");
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
    let example = include_str!("../../elf.toml.example");
    let env = |_: &str| Some("postgres://localhost/elf".to_owned());
    let (config, known) = read(example, &env);
    config.unwrap();

    let mut unseen: std::collections::BTreeMap<_, _> = known
        .into_iter()
        .map(|known| (known.path, known.default))
        .collect();
    let mut section = String::new();
    for line in example.lines() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
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
            (true, None) => assert!(value.contains("# default: "), "{path}: {value}"),
            (false, default) => assert_eq!(
                default, None,
                "{path} has a default: it should be commented"
            ),
        }
    }
    assert!(unseen.is_empty(), "not in the example: {unseen:?}");
    // The optional keys are valid as they are shown.
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
    read(&all, &env).0.unwrap();
}

#[test]
fn a_secret_in_a_url_is_refused_because_urls_are_printed() {
    for (key, url) in [
        ("api_base", "https://user:pw@embed.example"),
        ("api_base", "https://embed.example/?key=pw"),
    ] {
        let text = format!(
            "[storage.postgres]\ndsn = \"postgres://h/d\"\n[storage.qdrant]\nurl = \"embedded:x\"\n\
             [providers.embedding]\n{key} = {url:?}\n"
        );
        let error = Config::parse(&text, "elf.toml", &|_| None)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no user, password or query"), "{error}");
        assert!(!error.contains("pw"), "{error}");
    }
}

#[test]
fn a_port_is_this_machines_own_by_its_address_and_not_by_its_looks() {
    for own in [
        "127.0.0.1:9464",
        "[::1]:0",
        "localhost:1",
        "LOCALHOST",
        "127.1.2.3",
        "[::1]",
    ] {
        assert!(is_loopback(own), "{own}");
    }
    for open in [
        "0.0.0.0:9464",
        "[::]:9464",
        "10.0.0.1:9464",
        "elf.example:9464",
        "localhost.evil.example",
        "127.0.0.1.evil.example:1",
        "",
    ] {
        assert!(!is_loopback(open), "{open}");
    }
}

#[test]
fn a_secret_that_leaves_this_machine_in_the_clear_is_warned_of() {
    let config = |dsn: &str, qdrant: &str, api_base: &str| {
        let text = format!(
            "[storage.postgres]\ndsn = \"{dsn}\"\n[storage.qdrant]\nurl = \"{qdrant}\"\napi_key = \"k\"\n\
             [providers.embedding]\napi_base = \"{api_base}\"\napi_key = \"k\""
        );
        parse(&text).unwrap().clear_text_warnings()
    };
    let warned = config(
        "postgres://elf:hunter2@db.example/elf",
        "http://qdrant.example:6334",
        "http://10.0.0.7:8080",
    );
    assert_eq!(warned.len(), 3, "{warned:?}");
    for (warning, key) in warned.iter().zip([
        "storage.postgres.dsn",
        "storage.qdrant.url",
        "providers.embedding.api_base",
    ]) {
        assert!(
            warning.starts_with(key) && !warning.contains("hunter2"),
            "{warning}"
        );
    }
    for here in ["localhost", "127.0.0.1", "[::1]"] {
        let none = config(
            &format!("postgres://elf:hunter2@{here}/elf"),
            &format!("http://{here}:6334"),
            &format!("http://{here}:8080"),
        );
        assert_eq!(none, Vec::<String>::new());
    }
    let encrypted = config(
        "postgres://elf:hunter2@db.example/elf?sslmode=verify-full",
        "https://qdrant.example:6334",
        "https://api.openai.com",
    );
    assert_eq!(encrypted, Vec::<String>::new());
}

#[test]
fn a_client_certificate_goes_with_its_key() {
    let error = with("providers.embedding", "client_cert_file = \"elf.pem\"").unwrap_err();
    assert!(
        error.contains("client_cert_file and client_key_file go together"),
        "{error}"
    );
    let both =
        "client_cert_file = \"elf.pem\"\nclient_key_file = \"elf.key\"\nca_file = \"ca.pem\"";
    let config = with("providers.embedding", both).unwrap();
    assert_eq!(
        config.providers.embedding.ca_file.as_deref(),
        Some("ca.pem")
    );
}
