//! Where secrets come from, and where they never go.

use super::super::*;
use super::{REQUIRED, assert_refused, no_env, parse, with};

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
        assert!(error.contains("no user, password or key"), "{error}");
        assert!(!error.contains("pw"), "{error}");
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

    let served = |bind: &str| {
        let text = format!("{REQUIRED}[service]\nhttp_bind = \"{bind}\"");
        parse(&text).unwrap().clear_text_warnings()
    };
    for bind in [
        "0.0.0.0:9465",
        "[::]:9465",
        "10.0.0.7:9465",
        "elf.example:9465",
    ] {
        let warned = served(bind);
        assert!(
            warned.len() == 1 && warned[0].starts_with("service.http_bind"),
            "{warned:?}"
        );
    }
    for here in ["127.0.0.1:9465", "localhost:9465", "[::1]:9465"] {
        assert_eq!(served(here), Vec::<String>::new());
    }
}
