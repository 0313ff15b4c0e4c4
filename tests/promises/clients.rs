//! The examples of clients of the HTTP API.

use crate::support::api::key;
use crate::support::clients::Served;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/clients");
const NOTE: &str = "Parcels that are lost are paid back after ten days.";

#[tokio::test]
async fn a_client_generated_from_the_description_adds_a_note_that_retrievers_find() {
    let test = "a_client_generated_from_the_description_adds_a_note_that_retrievers_find";
    let Some(served) = Served::start(test).await else {
        return;
    };
    let secret = key(&served.site, &["--tenant", "acme", "--write"]).await;
    let description = reqwest::get(format!("{}/openapi.json", served.url))
        .await
        .unwrap();
    let description = description.text().await.unwrap();
    served.site.write("openapi.json", &description);
    served.site.write("generator.json", r#"{"post_hooks": []}"#);
    let generate = [
        "-m",
        "openapi_python_client",
        "generate",
        "--path",
        "openapi.json",
        "--output-path",
        "elf_client",
        "--meta",
        "none",
        "--config",
        "generator.json",
        "--fail-on-warning",
    ];
    served.python(&secret, &generate, "").await;

    let run = async |example: &str, argument: &str| {
        let script = format!("{EXAMPLES}/{example}.py");
        let done = served.python(&secret, &[&script, argument], "").await;
        done.stdout
    };
    let lines = run("generated_client", NOTE).await;
    let (first, found) = lines.split_once('\n').unwrap();
    let added = first.strip_prefix("added ").unwrap();
    let note = added.strip_suffix(" indexed True").unwrap();
    let expected = format!("{note} {NOTE}\n");
    assert_eq!(found, expected);
    for retriever in ["langchain_retriever", "llamaindex_retriever"] {
        assert_eq!(
            run(retriever, "lost parcels").await,
            expected,
            "{retriever}"
        );
    }
}

#[tokio::test]
async fn types_generated_from_the_description_fit_a_typescript_client() {
    let test = "types_generated_from_the_description_fit_a_typescript_client";
    let Some(served) = Served::start(test).await else {
        return;
    };
    let secret = key(&served.site, &["--tenant", "acme", "--write"]).await;
    let description = reqwest::get(format!("{}/openapi.json", served.url))
        .await
        .unwrap();
    let description = description.text().await.unwrap();
    served.site.write("openapi.json", &description);
    let client = std::fs::read_to_string(format!("{EXAMPLES}/client.ts")).unwrap();
    served.site.write("client.ts", &client);
    let node = async |args: &[&str]| served.node(test, &secret, args).await;
    let generate = [
        "node_modules/openapi-typescript/bin/cli.js",
        "openapi.json",
        "--default-non-nullable=false",
        "--output",
        "api.d.ts",
    ];
    if node(&generate).await.is_none() {
        return;
    }
    let compile = [
        "node_modules/typescript/bin/tsc",
        "--strict",
        "--module",
        "nodenext",
    ];
    let compile = [&compile[..], &["--skipLibCheck", "client.ts"]].concat();
    node(&compile).await.unwrap();
    let done = node(&["client.js", NOTE]).await.unwrap();
    let (first, found) = done.stdout.split_once('\n').unwrap();
    let added = first.strip_prefix("added ").unwrap();
    let note = added.strip_suffix(" indexed true").unwrap();
    assert_eq!(found, format!("{note} {NOTE}\n"));
}
