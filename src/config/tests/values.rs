//! Which values are valid, each alone and together.

use super::super::*;
use super::{REQUIRED, assert_refused, parse, with};

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
fn numbers_keep_to_their_ranges() {
    for (section, key, below, first, last, above) in [
        (
            "storage.postgres",
            "pool_max_conns",
            "9",
            "10",
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
        ("chunking", "parent_tokens", "-1", "0", "131072", "131073"),
        ("worker", "lease_secs", "4", "5", "3600", "3601"),
        ("worker", "max_attempts", "0", "1", "1000", "1001"),
        ("worker", "poll_interval_ms", "9", "10", "600000", "600001"),
        ("worker", "batch_notes", "0", "1", "1000", "1001"),
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
            "storage.postgres",
            "vector_type = \"float16\"",
            "vector_type = \"halfvec\"",
        ),
        (
            "storage.qdrant",
            "alias = \"my notes\"",
            "alias = \"my-notes_2\"",
        ),
        ("storage.qdrant", "alias = \"\"", "alias = \"n\""),
        (
            "storage.qdrant",
            "datatype = \"uint8\"",
            "datatype = \"float16\"",
        ),
        (
            "storage.qdrant",
            "quantization = \"product\"",
            "quantization = \"binary\"",
        ),
        (
            "chunking",
            "boundaries = \"fixed\"",
            "boundaries = \"stable\"",
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
fn a_parent_is_larger_than_a_chunk() {
    assert_refused(
        "chunking",
        "parent_tokens = 512",
        "512 must be 0, or more than max_tokens, which is 512",
    );
    with("chunking", "parent_tokens = 513").unwrap();
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

#[test]
fn fields_of_a_request_are_any_values_but_those_that_elf_sets() {
    let section = "providers.embedding";
    let fields =
        "document_fields = { input_type = \"passage\", n = 1, deep = { on = true, f = [0.5] } }";
    let config = with(section, fields).unwrap();
    let fields = serde_json::to_value(&config.providers.embedding.document_fields).unwrap();
    let expected = serde_json::json!({
        "input_type": "passage", "n": 1, "deep": { "on": true, "f": [0.5] },
    });
    assert_eq!(fields, expected);
    let shown = config.to_toml();
    let again = shown.replace("\"***\"", "\"postgres://elf:hunter2@localhost/elf\"");
    let again = parse(&again).unwrap();
    assert_eq!(again.providers, config.providers, "{shown}");
    for (name, said) in [
        ("input", "is what ELF itself sets"),
        ("encoding_format", "is what ELF itself sets"),
        ("model", "set providers.embedding.model instead"),
        ("dimensions", "set providers.embedding.dimensions instead"),
    ] {
        let error = with(section, &format!("query_fields = {{ {name} = 1 }}")).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
    let date = "query_fields = { since = 2026-01-01 }";
    let error = with(section, date).unwrap_err();
    assert!(error.contains("must not be a date"), "{error}");
}

#[test]
fn the_path_follows_the_address() {
    for (api_base, path) in [
        ("https://api.openai.com", "/v1/embeddings"),
        ("https://api.openai.com/v1", "/embeddings"),
        ("https://api.openai.com/v1/", "/embeddings"),
        (
            "https://h/openai/deployments/small?api-version=2024-10-21",
            "/embeddings",
        ),
    ] {
        let config = with("providers.embedding", &format!("api_base = {api_base:?}")).unwrap();
        assert_eq!(config.providers.embedding.path, path, "{api_base}");
    }
}
