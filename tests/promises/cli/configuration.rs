//! A wrong configuration ends a command with code 78 and a message that names each setting.
//! A secret is never printed.

use serde_json::json;

use super::elf_with;
use crate::support::embedding_server::Behaviour;
use crate::support::site::{Site, elf, run};

#[tokio::test]
async fn a_missing_configuration_says_what_to_do() {
    for args in [
        &["config", "check"][..],
        &["migrate"],
        &["worker"],
        &["worker", "--once"],
        &["status"],
        &["search", "word"],
        &["import", "."],
    ] {
        let done = elf_with(None, args, &[]).await;
        let done = done
            .exits(78)
            .says(&["elf.toml", "-c FILE", "ELF_CONFIG", "elf.toml.example"]);
        assert_eq!(done.stdout, "");
    }
    let done = elf_with(None, &["-c", "elsewhere.toml", "status"], &[]).await;
    done.exits(78).says(&["elsewhere.toml"]);
    let done = elf_with(None, &["status"], &[("ELF_CONFIG", "in-the-variable.toml")]).await;
    done.exits(78).says(&["in-the-variable.toml"]);
}

#[tokio::test]
async fn a_wrong_configuration_is_told_all_at_once_with_its_lines() {
    let toml = "[storage.postgres]\ndsn = \"mysql://elf:hunter2@db/elf\"\n\
                [storage.qdrant]\nurl = \"nowhere\"\n\
                [chunking]\nmax_tokens = 10\noverlap_tokns = 4\noverlap_tokens = 10\n";
    for args in [
        &["config", "check"][..],
        &["worker", "--once"],
        &["migrate"],
    ] {
        let done = elf_with(Some(toml), args, &[]).await.exits(78).says(&[
            "elf.toml:2: storage.postgres.dsn",
            "elf.toml:4: storage.qdrant.url",
            "elf.toml:7: chunking.overlap_tokns",
            "did you mean overlap_tokens?",
            "elf.toml:8: chunking.overlap_tokens",
        ]);
        assert!(!done.stderr.contains("hunter2"), "{}", done.stderr);
        assert_eq!(done.stdout, "");
    }
    let done = elf_with(Some(toml), &["config", "check", "--json"], &[]).await;
    let report = done.exits(78).json();
    assert_eq!(report["ok"], false);
    let problems = report["problems"].as_array().unwrap();
    assert!(
        problems[0].as_str().unwrap().starts_with("elf.toml:2: "),
        "{problems:?}"
    );
    let done = elf_with(Some("[storage"), &["config", "check"], &[]).await;
    done.exits(78).says(&["elf.toml:1:"]);
}

#[tokio::test]
async fn secrets_are_read_from_where_they_are_and_never_printed() {
    let toml = "[storage.postgres]\ndsn = \"env:ELF_TEST_DSN\"\n\
                [storage.qdrant]\nurl = \"http://localhost:6334\"\napi_key = \"file:key.txt\"\n\
                [providers.embedding]\napi_key = \"plain-hunter4\"\nheaders = { X-Team = \"team-hunter5\" }\n";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("elf.toml"), toml).unwrap();
    std::fs::write(folder.path().join("key.txt"), "file-hunter3\n").unwrap();
    for args in [
        &["config", "check"][..],
        &["config", "check", "--json"],
        &["config", "show"],
        &["config", "show", "--json"],
        &["status"],
    ] {
        let mut command = elf(folder.path());
        command.args(args);
        // Port 1 refuses at once.
        command.env("ELF_TEST_DSN", "postgres://elf:hunter2@127.0.0.1:1/elf");
        let done = run(command, b"").await;
        let expected = if args[0] == "status" { 1 } else { 0 };
        let done = done.exits(expected);
        for stream in [&done.stdout, &done.stderr] {
            assert!(!stream.contains("hunter"), "{done:?}");
        }
        if args.contains(&"--json") {
            done.json();
        }
    }
    let mut command = elf(folder.path());
    let done = {
        command.args(["config", "check"]);
        run(command, b"").await
    };
    done.exits(78)
        .says(&["elf.toml:2: storage.postgres.dsn", "ELF_TEST_DSN"]);
}

/// The output can be used as a configuration.
#[tokio::test]
async fn config_show_prints_a_whole_file() {
    let toml = "[storage.postgres]\ndsn = \"postgres://localhost/elf\"\n[storage.qdrant]\nurl = \"embedded:index\"\n";
    let shown = elf_with(Some(toml), &["config", "show"], &[])
        .await
        .exits(0);
    let with_dsn = shown.stdout.replace("***", "postgres://localhost/elf");
    let again = elf_with(Some(&with_dsn), &["config", "show"], &[]).await;
    assert_eq!(again.exits(0).stdout, shown.stdout);
}

#[cfg(feature = "local")]
#[tokio::test]
async fn chunks_beyond_the_window_of_the_model_are_refused() {
    let site = Site::start().await;
    let provider = site.provider.url().to_owned();
    site.configure("provider = \"openai\"", "provider = \"local\"");
    site.configure(&format!("api_base = \"{provider}\"\n"), "");
    site.configure(
        "model = \"test\"",
        &format!("model = \"{}\"", crate::support::harness::model().display()),
    );
    site.configure("max_tokens = 32", "max_tokens = 257");
    for args in [&["worker", "--once"][..], &["worker"], &["search", "word"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&["chunking.max_tokens", "257", "256"]);
    }
    site.configure("max_tokens = 257", "max_tokens = 9");
    let done = site.elf(&["worker", "--once"]).await.exits(78);
    done.says(&["[chunking]", "max_tokens = 9 is too small", "set it to"]);
    site.configure("max_tokens = 9", "max_tokens = 256");
    site.json(&["worker", "--once"]).await;
}

#[tokio::test]
async fn other_settings_than_those_of_the_database_are_refused_by_name() {
    let site = Site::start().await;
    site.json(&["worker", "--once"]).await;
    site.configure("max_tokens = 32", "max_tokens = 48");
    for args in [&["worker", "--once"][..], &["worker"], &["search", "word"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&["chunking.max_tokens", "48", "32"]);
    }
    let requests = site.provider.requests();
    let changes = &site.json(&["status"]).await["asked_changes"];
    let expected = json!([{"key": "chunking.max_tokens", "from": 32, "to": 48}]);
    assert_eq!(*changes, expected);
    let status = site.elf(&["status"]).await.exits(0);
    let told =
        "asks for another one: chunking.max_tokens is 48 in the configuration, 32 in the database";
    assert!(status.stdout.contains(told), "{status:?}");
    assert_eq!(site.provider.requests(), requests);
    site.configure("max_tokens = 48", "max_tokens = 32");
    site.configure("model = \"test\"", "model = \"another\"");
    let done = site.elf(&["worker", "--once"]).await.exits(78);
    done.says(&["providers.embedding.model", "another", "test"]);
    site.configure("model = \"another\"", "model = \"test\"");
    site.json(&["worker", "--once"]).await;
    assert_eq!(site.json(&["status"]).await["asked_changes"], json!([]));
    site.configure(
        "[storage.qdrant]",
        "[storage.qdrant]\nalias = \"elsewhere\"",
    );
    for args in [
        &["worker", "--once"][..],
        &["verify"],
        &["verify", "--repair"],
        &["rebuild"],
    ] {
        let done = site.elf(args).await.exits(78);
        done.says(&[
            "storage.qdrant.alias is \"elsewhere\"",
            "put the setting back",
        ]);
    }
}

#[tokio::test]
async fn a_provider_that_refuses_the_key_is_told_at_every_start() {
    let site = Site::start().await;
    for _ in 0..2 {
        site.provider.always(Behaviour::Status(401));
        let done = site.elf(&["worker"]).await.exits(78);
        done.says(&["providers.embedding.api_key"]);
        site.provider.heal();
        // From here on the dimension is known.
        site.json(&["worker", "--once"]).await;
    }
}
