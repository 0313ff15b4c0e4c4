//! What servers do differently, and how much they take.

use elf::embed::Purpose;
use elf::embed::provider::CircuitState;

use super::{LONG, embedder, inputs, provider, vectors};
use crate::support::embedding_server::{
    Base64, Behaviour, DIM, Dialect, EmbeddingServer, Indexes, Request, When, vector_of,
};
use crate::support::harness::{distance, sentences};
use crate::support::site::Site;

#[tokio::test]
async fn vectors_of_any_form_and_order_are_understood() {
    let dialect = |base64, indexes| Dialect {
        base64,
        indexes,
        ..Dialect::default()
    };
    for base64 in [Base64::Given, Base64::Ignored, Base64::Refused] {
        for indexes in [
            Indexes::Given,
            Indexes::Reversed,
            Indexes::LeftOut,
            Indexes::FirstLeftOut,
            Indexes::FromOne,
            Indexes::Zero,
        ] {
            let server = EmbeddingServer::start().await;
            server.speaks(dialect(base64.clone(), indexes));
            let embedder = embedder(&server).await;
            let embedded = vectors(&embedder, &["a", "b", "c"]).await.unwrap();
            let expected: Vec<_> = ["a", "b", "c"].map(|text| vector_of(text, DIM)).into();
            for (vector, expected) in embedded.iter().zip(&expected) {
                let distance = distance(vector, expected);
                assert!(distance < 1e-6, "{base64:?} {indexes:?}: {embedded:?}");
            }
        }
    }
}

/// What a server answers in the forms that it was asked for.
async fn formats(server: &EmbeddingServer) -> Vec<String> {
    let format = |request: &Request| {
        let format = request.body["encoding_format"].as_str();
        format.unwrap_or("none").to_owned()
    };
    server.request_log().iter().map(format).collect()
}

#[tokio::test]
async fn a_server_without_base64_is_asked_for_floats_from_then_on() {
    let server = EmbeddingServer::start().await;
    server.speaks(Dialect {
        base64: Base64::Refused,
        ..Dialect::default()
    });
    let embedder = embedder(&server).await;
    vectors(&embedder, &["a"]).await.unwrap();
    vectors(&embedder, &["b"]).await.unwrap();
    assert_eq!(formats(&server).await, ["base64", "float", "float"]);
}

#[tokio::test]
async fn a_server_that_takes_no_encoding_format_gets_none() {
    let server = EmbeddingServer::start().await;
    for said in [
        "encoding_format: extra fields not permitted",
        "not for you",
        "",
    ] {
        let from = server.requests();
        server.rule(
            When::Has("encoding_format"),
            Behaviour::Raw(422, said.as_bytes().to_vec()),
        );
        let embedder = embedder(&server).await;
        vectors(&embedder, &["a"]).await.unwrap();
        vectors(&embedder, &["b"]).await.unwrap();
        let formats = formats(&server).await;
        assert_eq!(
            formats[from..],
            ["base64", "float", "none", "none"],
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_server_that_requires_an_encoding_format_gets_it() {
    let server = EmbeddingServer::start().await;
    server.rule(
        When::Lacks("encoding_format", &["float"]),
        Behaviour::Raw(400, b"'encoding_format' must be one of: float".to_vec()),
    );
    let embedder = embedder(&server).await;
    vectors(&embedder, &["a"]).await.unwrap();
    vectors(&embedder, &["b"]).await.unwrap();
    assert_eq!(formats(&server).await, ["base64", "float", "float"]);
}

#[tokio::test]
async fn a_text_that_is_refused_first_does_not_change_the_form() {
    let server = EmbeddingServer::start().await;
    server.poison("poison", Behaviour::Status(400));
    let embedder = embedder(&server).await;
    vectors(&embedder, &["poison"]).await.unwrap_err();
    vectors(&embedder, &["a"]).await.unwrap();
    vectors(&embedder, &["poison"]).await.unwrap_err();
    let formats = formats(&server).await;
    assert_eq!(formats, ["base64", "float", "none", "base64", "base64"]);
}

/// The server says how much it takes, or only that it was too much, or fails.
#[tokio::test]
async fn a_limit_of_the_server_is_learned_once() {
    for (status, said) in [
        (422, "batch size 64 > maximum allowed batch size 32"),
        (400, "at most 32 texts in one request"),
        (413, "<html>Request Entity Too Large</html>"),
        (400, "bad request"),
        (500, "out of memory"),
    ] {
        let server = EmbeddingServer::start().await;
        let too_much = Behaviour::Raw(status, said.as_bytes().to_vec());
        server.rule(When::MoreThan(32), too_much);
        let provider = provider(&server, LONG).await;
        let mut requests = 0;
        for round in 0..4 {
            let texts: Vec<String> = (0..256).map(|n| format!("text {round} {n}")).collect();
            let outcomes = provider.embed(&inputs(&texts), Purpose::Note).await;
            assert!(outcomes.iter().all(Result::is_ok), "{said}: {outcomes:?}");
            let log = server.request_log();
            let refused = log[requests..].iter().filter(|r| r.texts.len() > 32);
            let refused = refused.count();
            // At first there may be several: the request, the same again, and its half.
            assert!(
                refused <= if round == 0 { 4 } else { 0 },
                "{said}: {refused} in {round}"
            );
            requests = log.len();
        }
        assert_eq!(provider.state(), CircuitState::Closed);
    }
}

#[tokio::test]
async fn a_server_that_reads_less_than_it_is_sent_is_reported_once() {
    let site = Site::start().await;
    site.provider.speaks(Dialect {
        window: Some(5),
        ..Dialect::default()
    });
    let worker = site.worker();
    let insert = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                  values ('t', 'p', 'a', 's', 'n', $1)";
    sqlx::query(insert)
        .bind(sentences(40, "the tides"))
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    worker.says("the provider counts fewer tokens").await;
    worker.stop().await.exits(0);
}
