//! The `openai` embedder and the provider around it, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod dialects;

use std::sync::Arc;
use std::time::Duration;

use crate::support::embedding_server::{Behaviour, DIM, EmbeddingServer, vector_of};
use crate::support::harness::Harness;
use elf::config::{self, Secret};
use elf::embed::provider::{CircuitState, Input, Provider, Timing};
use elf::embed::{EmbedError, Embedder, ModelFacts, Purpose, connect};
use futures::FutureExt;

/// Pauses too short to slow a test down.
const QUICK: Timing = Timing {
    base: Duration::from_millis(1),
    max: Duration::from_millis(5),
    config_recheck: Duration::from_millis(1),
};

/// Pauses that outlast a test.
const LONG: Timing = Timing {
    base: Duration::from_secs(3600),
    max: Duration::from_secs(3600),
    config_recheck: Duration::from_secs(3600),
};

fn settings(server: &EmbeddingServer) -> config::Embedding {
    config::Embedding {
        provider: config::ProviderKind::Openai,
        api_base: server.url().to_owned(),
        path: "/v1/embeddings".to_owned(),
        model: "test-model".to_owned(),
        dimensions: None,
        api_key: Some(Secret::new("sk-very-secret")),
        ca_file: None,
        client_cert_file: None,
        client_key_file: None,
        headers: [("x-team".to_owned(), Secret::new("blue"))].into(),
        max_batch_inputs: 64,
        max_batch_tokens: 100_000,
        concurrency: 4,
        timeout_ms: 10_000,
        requests_per_minute: None,
        tokens_per_minute: None,
        usd_per_million_tokens: None,
        document_prefix: String::new(),
        query_prefix: String::new(),
        document_fields: Default::default(),
        query_fields: Default::default(),
    }
}

async fn embedder(server: &EmbeddingServer) -> Arc<dyn Embedder> {
    connect(&settings(server), Some(DIM)).await.unwrap().0
}

async fn provider(server: &EmbeddingServer, timing: Timing) -> Provider {
    Provider::with_timing(embedder(server).await, &settings(server), timing)
}

/// The vectors of one request for notes.
async fn vectors(
    embedder: &Arc<dyn Embedder>,
    texts: &[&str],
) -> Result<Vec<Vec<f32>>, EmbedError> {
    let embedded = embedder.embed(texts, Purpose::Note).await;
    embedded.map(|embedded| embedded.vectors)
}

fn inputs<T: AsRef<str>>(texts: &[T]) -> Vec<Input<'_>> {
    texts
        .iter()
        .map(|text| Input::new(text.as_ref(), 10))
        .collect()
}

/// Texts enough that the provider fills its requests afterwards.
async fn warm_up(provider: &Provider) {
    let texts: Vec<String> = (0..100).map(|n| format!("warm {n}")).collect();
    assert!(
        provider
            .embed(&inputs(&texts), Purpose::Note)
            .await
            .iter()
            .all(Result::is_ok)
    );
}

/// The error of a single request for two texts.
async fn meets(behaviour: Behaviour) -> EmbedError {
    let server = EmbeddingServer::start().await;
    server.always(behaviour);
    let embedder = embedder(&server).await;
    vectors(&embedder, &["one text", "another text"])
        .await
        .unwrap_err()
}

fn may_be_the_inputs_fault(error: &EmbedError) -> bool {
    matches!(
        error,
        EmbedError::Unavailable {
            perhaps_input: true,
            ..
        }
    )
}

#[tokio::test]
async fn a_request_carries_model_key_headers_and_texts() {
    let server = EmbeddingServer::start().await;
    let settings = config::Embedding {
        dimensions: Some(DIM),
        ..settings(&server)
    };
    let (embedder, facts) = connect(&settings, settings.dimensions).await.unwrap();
    assert_eq!(
        facts,
        ModelFacts {
            dim: DIM,
            window: None,
            weights: None,
        }
    );
    assert_eq!(
        server.requests(),
        0,
        "a configured dimension needs no request"
    );
    let vectors = vectors(&embedder, &["a", "b"]).await.unwrap();
    assert_eq!(vectors, [vector_of("a", DIM), vector_of("b", DIM)]);
    let request = &server.request_log()[0];
    assert_eq!(request.headers["authorization"], "Bearer sk-very-secret");
    assert_eq!(request.headers["x-team"], "blue");
    assert_eq!(request.body["model"], "test-model");
    assert_eq!(request.body["dimensions"], DIM);
    assert_eq!(request.texts, ["a", "b"]);
}

#[tokio::test]
async fn without_a_configured_dimension_the_server_is_asked() {
    let server = EmbeddingServer::start_with_dim(12).await;
    let (embedder, facts) = connect(&settings(&server), None).await.unwrap();
    assert_eq!(facts.dim, 12);
    assert_eq!(server.requests(), 1);
    assert!(server.request_log()[0].body.get("dimensions").is_none());
    server.script([Behaviour::WrongDimension]);
    let error = vectors(&embedder, &["a"]).await.unwrap_err();
    assert!(
        matches!(error, EmbedError::Config { .. }),
        "pinned by the probe: {error}"
    );
}

#[tokio::test]
async fn malformed_answers_are_the_providers_state() {
    for behaviour in [Behaviour::TooFew, Behaviour::Html, Behaviour::CutShort] {
        let error = meets(behaviour.clone()).await;
        assert!(may_be_the_inputs_fault(&error), "{behaviour:?}: {error:?}");
    }
    assert!(
        meets(Behaviour::Html)
            .await
            .to_string()
            .contains("text/html")
    );
}

#[tokio::test]
async fn a_wrong_dimension_is_a_configuration_error() {
    let error = meets(Behaviour::WrongDimension).await;
    assert!(matches!(&error, EmbedError::Config { reason }
        if reason.contains("9 dimensions where 8") && reason.contains("providers.embedding.dimensions")));
}

#[tokio::test]
async fn vectors_without_a_direction_are_the_inputs_fault() {
    for behaviour in [Behaviour::Nan, Behaviour::Zeros] {
        let error = meets(behaviour.clone()).await;
        assert!(
            matches!(error, EmbedError::Input { .. }),
            "{behaviour:?}: {error:?}"
        );
    }
    let server = EmbeddingServer::start().await;
    server.script([Behaviour::NanLiteral]);
    let settings = settings(&server);
    let (embedder, _) = connect(&settings, Some(2)).await.unwrap();
    let error = vectors(&embedder, &["a"]).await.unwrap_err();
    assert!(matches!(error, EmbedError::Input { .. }), "{error:?}");
}

#[tokio::test]
async fn a_server_that_never_answers_times_out() {
    let server = EmbeddingServer::start().await;
    server.always(Behaviour::Never);
    let settings = config::Embedding {
        timeout_ms: 100,
        ..settings(&server)
    };
    let error = connect(&settings, settings.dimensions).await.err().unwrap();
    assert!(may_be_the_inputs_fault(&error), "{error:?}");
    assert!(error.to_string().contains("timeout_ms"), "{error}");
    let (embedder, _) = connect(&settings, Some(DIM)).await.unwrap();
    let error = vectors(&embedder, &["a"]).await.unwrap_err();
    assert!(matches!(error, EmbedError::TimedOut { .. }), "{error:?}");
}

#[tokio::test]
async fn an_answer_is_read_only_up_to_the_size_of_its_vectors() {
    for behaviour in [Behaviour::Endless, Behaviour::Bomb] {
        let error = meets(behaviour.clone()).await;
        assert!(may_be_the_inputs_fault(&error), "{behaviour:?}: {error:?}");
        for word in [
            "2 vectors of 8 floats",
            "providers.embedding.api_base",
            "dimensions",
        ] {
            assert!(error.to_string().contains(word), "{behaviour:?}: {error}");
        }
    }
}

/// 410 notes' worth of texts on a server that computes all requests on one
/// processor. Four requests of 64 texts each would take two and a half times the
/// timeout.
#[tokio::test]
async fn a_slow_server_that_shares_one_processor_gets_each_text_once() {
    let server = EmbeddingServer::start().await;
    server.share_processor(Duration::from_millis(10));
    let settings = config::Embedding {
        timeout_ms: 1000,
        ..settings(&server)
    };
    let (embedder, _) = connect(&settings, Some(DIM)).await.unwrap();
    let provider = Provider::new(embedder, &settings);
    let texts: Vec<String> = (0..410).map(|n| format!("text {n}")).collect();
    let outcomes = provider.embed(&inputs(&texts), Purpose::Note).await;
    for (text, outcome) in texts.iter().zip(outcomes) {
        assert_eq!(outcome.unwrap().to_vec(), vector_of(text, DIM));
    }
    let sent = server.texts_seen().len();
    assert!(sent <= 451, "{sent} texts sent for 410");
}

/// The same through the worker, with its own batches and a timeout that today's
/// requests would pass.
#[tokio::test]
async fn a_slow_server_costs_no_note_an_attempt() {
    let h = Harness::start_with(|toml| {
        toml.replace("timeout_ms = 6000", "timeout_ms = 1000")
            .replace("batch_notes = 16", "batch_notes = 256")
            .replace("lease_secs = 5", "lease_secs = 30")
    })
    .await;
    h.provider.share_processor(Duration::from_millis(10));
    for n in 0..410 {
        h.insert(&format!("note {n}")).await;
    }
    let report = h.drain().await;
    assert_eq!((report.notes, report.embedded, report.dead), (410, 410, 0));
    assert_eq!(h.count("indexing_outbox").await, 0);
    let sent = h.provider.texts_seen().len();
    assert!(sent <= 451, "{sent} texts sent for 410");
}

#[tokio::test]
async fn a_text_that_the_server_never_answers_is_found_and_no_other_is_blamed() {
    let server = EmbeddingServer::start().await;
    server.poison("poison", Behaviour::Never);
    let settings = config::Embedding {
        timeout_ms: 1_000,
        ..settings(&server)
    };
    let (embedder, _) = connect(&settings, Some(DIM)).await.unwrap();
    let provider = Provider::with_timing(embedder, &settings, LONG);
    let mut texts: Vec<String> = (0..64).map(|n| format!("text {n}")).collect();
    texts[37] = "poison".to_owned();
    let outcomes = provider.embed(&inputs(&texts), Purpose::Note).await;
    for (text, outcome) in texts.iter().zip(outcomes) {
        match (text.as_str(), outcome) {
            ("poison", Err(EmbedError::Input { .. })) => {}
            (text, Ok(vector)) => assert_eq!(vector.to_vec(), vector_of(text, DIM)),
            (text, outcome) => panic!("{text}: {outcome:?}"),
        }
    }
    assert_eq!(provider.state(), CircuitState::Closed);
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable_and_no_text_is_blamed() {
    let server = EmbeddingServer::start().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = config::Embedding {
        api_base: format!("http://{}", free.local_addr().unwrap()),
        ..settings(&server)
    };
    drop(free);
    let error = connect(&settings, settings.dimensions).await.err().unwrap();
    assert!(
        matches!(&error, EmbedError::Unavailable { perhaps_input: false, reason, .. } if reason.contains("refused")),
        "{error:?}"
    );
}

#[tokio::test]
async fn statuses_are_classed_by_who_must_act() {
    for (status, class) in [
        (400, "rejected an input"),
        (413, "rejected an input"),
        (401, "refuses the configuration"),
        (404, "refuses the configuration"),
        (429, "is unavailable"),
        (500, "is unavailable"),
        (503, "is unavailable"),
    ] {
        let error = meets(Behaviour::Status(status)).await.to_string();
        assert!(
            error.contains(class) && error.contains(": scripted"),
            "{status}: {error}"
        );
    }
    assert!(
        meets(Behaviour::Status(401))
            .await
            .to_string()
            .contains("providers.embedding.api_key")
    );
    assert!(
        meets(Behaviour::Status(404))
            .await
            .to_string()
            .contains("test-model")
    );
}

#[tokio::test]
async fn retry_after_is_carried_to_the_caller() {
    let busy = Behaviour::Answer(429, "retry-after", "7".into(), "{}".into());
    assert!(matches!(
        meets(busy).await,
        EmbedError::Unavailable { retry_after: Some(wait), .. } if wait == Duration::from_secs(7)
    ));
}

#[tokio::test]
async fn messages_tell_neither_the_key_nor_the_text() {
    for status in [200, 400, 401, 500] {
        let body = "Bearer sk-very-secret may not embed 'another text', sorry".to_owned();
        let error = meets(Behaviour::Answer(
            status,
            "content-type",
            "text/plain".into(),
            body,
        ))
        .await;
        let error = format!("{error} {error:?}");
        assert!(error.contains("sorry"), "{error}");
        assert!(
            !error.contains("sk-very-secret") && !error.contains("another text"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Behaviour::Answer(
        302,
        "location",
        "https://example.com/".into(),
        String::new(),
    );
    let error = meets(elsewhere).await;
    assert!(
        matches!(&error, EmbedError::Config { reason } if reason.contains("https://example.com/")),
        "{error}"
    );
}

#[tokio::test]
async fn many_texts_come_back_in_order_from_requests_within_the_limits() {
    let server = EmbeddingServer::start().await;
    let settings = config::Embedding {
        max_batch_inputs: 3,
        max_batch_tokens: 25,
        ..settings(&server)
    };
    let (embedder, _) = connect(&settings, Some(DIM)).await.unwrap();
    let provider = Provider::new(embedder, &settings);
    let texts: Vec<String> = (0..20).map(|n| format!("text {n}")).collect();
    let vectors = provider.embed(&inputs(&texts), Purpose::Note).await;
    for (text, vector) in texts.iter().zip(vectors) {
        assert_eq!(vector.unwrap().to_vec(), vector_of(text, DIM));
    }
    assert_eq!(server.requests(), 10, "two texts of ten tokens fit 25");
}

#[tokio::test]
async fn one_bad_text_among_64_is_found_in_a_logarithmic_number_of_requests() {
    for behaviour in [Behaviour::Status(400), Behaviour::Nan, Behaviour::Zeros] {
        let server = EmbeddingServer::start().await;
        server.poison("poison", behaviour.clone());
        let provider = provider(&server, LONG).await;
        // Only then a request holds all of them.
        warm_up(&provider).await;
        let before = server.requests();
        let mut texts: Vec<String> = (0..64).map(|n| format!("text {n}")).collect();
        texts[37] = "poison".to_owned();
        let outcomes = provider.embed(&inputs(&texts), Purpose::Note).await;
        for (text, outcome) in texts.iter().zip(outcomes) {
            match (text.as_str(), outcome) {
                ("poison", Err(EmbedError::Input { .. })) => {}
                (text, Ok(vector)) => assert_eq!(vector.to_vec(), vector_of(text, DIM)),
                (text, outcome) => panic!("{text}: {outcome:?}"),
            }
        }
        // One for the whole, two for each of the six halvings.
        assert_eq!(server.requests() - before, 13, "{behaviour:?}");
        assert_eq!(provider.state(), CircuitState::Closed);
    }
}

#[tokio::test]
async fn a_text_that_makes_the_server_fail_is_found_though_the_server_blames_itself() {
    for behaviour in [
        Behaviour::Status(500),
        Behaviour::TooFew,
        Behaviour::Html,
        Behaviour::CutShort,
    ] {
        let server = EmbeddingServer::start().await;
        server.poison("poison", behaviour.clone());
        let provider = provider(&server, LONG).await;
        let outcomes = provider
            .embed(&inputs(&["a", "b", "poison", "c"]), Purpose::Note)
            .await;
        assert!(
            matches!(outcomes[2], Err(EmbedError::Input { .. })),
            "{behaviour:?}: {outcomes:?}"
        );
        assert_eq!(
            outcomes.iter().filter(|outcome| outcome.is_ok()).count(),
            3,
            "{behaviour:?}"
        );
        assert_eq!(provider.state(), CircuitState::Closed);
    }
}

#[tokio::test]
async fn a_query_that_hangs_is_asked_apart_the_next_time() {
    let server = EmbeddingServer::start().await;
    server.poison("poison", Behaviour::Never);
    let provider = provider(&server, LONG).await;
    let ask = |text: &'static str| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.embed(&inputs(&[text]), Purpose::Query).await })
    };
    let first = ask("poison");
    server.arrived(1).await;
    // As a search does after its time.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(ask("one").await.unwrap()[0].is_ok());
    let second = ask("poison");
    server.arrived(3).await;
    assert!(
        ask("another").await.unwrap()[0].is_ok(),
        "it waits for no lane"
    );
    second.abort();
    assert_eq!(provider.state(), CircuitState::Closed);
}

#[tokio::test]
async fn one_failed_request_is_retried_unnoticed() {
    let server = EmbeddingServer::start().await;
    server.script([Behaviour::Status(500)]);
    let provider = provider(&server, LONG).await;
    let outcomes = provider.embed(&inputs(&["a"]), Purpose::Note).await;
    assert!(outcomes[0].is_ok());
}

#[tokio::test]
async fn the_same_text_in_flight_twice_is_embedded_once() {
    let server = EmbeddingServer::start().await;
    let provider = provider(&server, LONG).await;
    server.hold();
    let embed = |texts: &'static [&'static str]| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.embed(&inputs(texts), Purpose::Note).await })
    };
    let first = embed(&["shared", "first", "shared"]);
    server.holding(1).await;
    // Both are called; the server is given a second request only when it has shown
    // that it computes more than one at once.
    let texts = inputs(&["second", "shared"]);
    let mut second = Box::pin(provider.embed(&texts, Purpose::Note));
    assert!((&mut second).now_or_never().is_none());
    server.release();
    let (first, second) = (first.await.unwrap(), second.await);
    assert_eq!(first[0], first[2]);
    assert_eq!(first[0], second[1]);
    let mut seen = server.texts_seen();
    seen.sort();
    assert_eq!(seen, ["first", "second", "shared"]);
}

#[tokio::test]
async fn a_text_whose_call_was_cancelled_is_embedded_by_a_waiting_call() {
    let server = EmbeddingServer::start().await;
    let provider = provider(&server, LONG).await;
    server.hold();
    let embed = |texts: &'static [&'static str]| {
        let provider = provider.clone();
        tokio::spawn(async move { provider.embed(&inputs(texts), Purpose::Note).await })
    };
    let first = embed(&["shared"]);
    server.holding(1).await;
    let texts = inputs(&["second", "shared"]);
    let mut second = Box::pin(provider.embed(&texts, Purpose::Note));
    assert!((&mut second).now_or_never().is_none());
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    server.release();
    assert!(second.await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn an_outage_pauses_all_calls_and_one_probe_resumes() {
    let server = EmbeddingServer::start().await;
    server.always(Behaviour::Status(503));
    let provider = provider(&server, QUICK).await;
    let outcomes = provider.embed(&inputs(&["a", "b"]), Purpose::Note).await;
    assert!(
        outcomes
            .iter()
            .all(|outcome| matches!(outcome, Err(EmbedError::Unavailable { .. })))
    );
    assert!(matches!(
        provider.state().error(),
        Some(EmbedError::Unavailable { .. })
    ));
    // A few probes fail. Each is sent alone and with a text of the probe's own.
    server.arrived(4).await;
    assert_eq!(server.texts_seen(), ["a", "b"]);
    server.heal();
    provider.ready().await;
    assert_eq!(provider.state(), CircuitState::Closed);
    assert!(provider.embed(&inputs(&["a"]), Purpose::Note).await[0].is_ok());
    assert_eq!(server.texts_seen(), ["a", "b", "a"]);
}

#[tokio::test]
async fn nothing_is_sent_while_the_circuit_is_open() {
    let server = EmbeddingServer::start().await;
    server.script([Behaviour::Answer(
        429,
        "retry-after",
        "3600".into(),
        "{}".into(),
    )]);
    let provider = provider(&server, QUICK).await;
    for _ in 0..5 {
        let outcomes = provider.embed(&inputs(&["a"]), Purpose::Note).await;
        assert!(matches!(outcomes[0], Err(EmbedError::Unavailable { .. })));
    }
    assert_eq!(server.requests(), 1);
    let CircuitState::Open { probe_at, .. } = provider.state() else {
        panic!("{:?}", provider.state());
    };
    assert!(probe_at > std::time::Instant::now() + Duration::from_secs(3500));
}

#[tokio::test]
async fn an_outage_with_status_500_blames_no_text() {
    let server = EmbeddingServer::start().await;
    server.always(Behaviour::Status(500));
    let provider = provider(&server, LONG).await;
    let outcomes = provider.embed(&inputs(&["a"]), Purpose::Note).await;
    assert!(
        matches!(outcomes[0], Err(EmbedError::Unavailable { .. })),
        "{outcomes:?}"
    );
    assert_eq!(server.texts_seen(), ["a", "a", "a"], "in each form");
}

#[tokio::test]
async fn a_server_that_rejects_everything_blames_no_text() {
    let server = EmbeddingServer::start().await;
    server.always(Behaviour::Status(400));
    let provider = provider(&server, LONG).await;
    let outcomes = provider.embed(&inputs(&["a"]), Purpose::Note).await;
    assert!(
        matches!(&outcomes[0], Err(EmbedError::Config { reason }) if reason.contains("even \"probe\"")),
        "{outcomes:?}"
    );
}

#[tokio::test]
async fn a_refused_configuration_is_checked_again_until_it_is_accepted() {
    let server = EmbeddingServer::start().await;
    server.always(Behaviour::Status(401));
    let provider = provider(&server, QUICK).await;
    let outcomes = provider.embed(&inputs(&["a"]), Purpose::Note).await;
    assert!(matches!(outcomes[0], Err(EmbedError::Config { .. })));
    assert!(matches!(
        provider.state().error(),
        Some(EmbedError::Config { .. })
    ));
    server.arrived(3).await;
    server.heal();
    provider.ready().await;
    assert!(provider.embed(&inputs(&["a"]), Purpose::Note).await[0].is_ok());
}
