//! Metrics, logs and traces: what they contain, and what they never contain.

use std::collections::{BTreeMap, BTreeSet};

use elf::telemetry::catalog::{self, Kind, Metric};
use reqwest::Method;
use serde_json::Value;

use crate::support::api;
use crate::support::embedding_server::Behaviour;
use crate::support::site::Site;
use crate::support::{eventually, eventually_has};

#[test]
fn the_names_of_metrics_are_prometheuss_way() {
    for metric in catalog::all() {
        let Metric { name, kind, .. } = metric;
        assert!(name.starts_with("elf_"), "{name}");
        assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
        let last = name.rsplit('_').next().unwrap();
        assert!(
            !["ms", "millis", "secs", "kb", "mb", "percent"].contains(&last),
            "{name} is not in a base unit"
        );
        for label in metric.labels {
            assert!(
                !label.values.is_empty() && label.values.len() <= 16,
                "{name}"
            );
        }
    }
    let names: BTreeSet<&str> = catalog::all().map(|metric| metric.name).collect();
    assert_eq!(names.len(), catalog::all().count(), "a name is there twice");
}

/// One series of a scrape.
fn series(line: &str) -> (String, BTreeMap<String, String>) {
    let (series, _) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels
        .trim_end_matches('}')
        .split(',')
        .filter(|l| !l.is_empty());
    let labels = labels.map(|label| {
        let (name, value) = label.split_once('=').unwrap();
        (name.to_owned(), value.trim_matches('"').to_owned())
    });
    (name.to_owned(), labels.collect())
}

#[tokio::test]
async fn a_worker_reports_the_metrics_of_the_catalog_and_no_other() {
    let site = Site::start().await;
    site.configure("[worker]", "[worker]\nverify_interval_secs = 1");
    site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
    let secret = api::key(&site, &["--tenant", "t"]).await;
    site.provider.poison("poison", Behaviour::Status(400));
    let note = site.note("A note that is found.").await;
    site.note("poison").await;
    site.ask_golden(&[("q", "found", &note.to_string())]);
    let worker = site.worker();
    let url = format!("{}/metrics", worker.admin().await);
    worker.says("note dead-lettered").await;
    let scrape = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
    let first = [
        "elf_dead_letters{reason=\"provider\"} 1\n",
        "elf_notes{state=\"indexed\"} 1\n",
        "elf_index_points 1\n",
        "elf_drift{kind=\"missing\"} 0\n",
        "elf_quality{measure=\"recall\"} 1\n",
    ];
    eventually_has(scrape, &first).await;
    let api = api::url(&worker).await;
    let body = Some(serde_json::json!({"query": "found"}));
    let searched = api::ask(&api, Method::POST, "/v2/searches", &secret, body).await;
    assert_eq!(searched.status, 200, "{searched:?}");
    let text = scrape().await;
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut seen = BTreeSet::new();
    for (name, labels) in lines.map(series) {
        if name.starts_with("process_") {
            continue;
        }
        let metric = catalog::all()
            .find(|metric| match metric.kind {
                Kind::Histogram(_) => ["_bucket", "_sum", "_count"]
                    .iter()
                    .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
                _ => name == metric.name,
            })
            .unwrap_or_else(|| panic!("{name} is not in the catalog"));
        seen.insert(metric.name);
        for (label, value) in labels.iter().filter(|(label, _)| *label != "le") {
            let known = metric.labels.iter().find(|known| known.name == label);
            let known = known.unwrap_or_else(|| panic!("{name} has no label {label}"));
            assert!(
                known.values.contains(&value.as_str()),
                "{name}: {label} = {value}"
            );
        }
    }
    let missing: Vec<&str> = catalog::all()
        .map(|metric| metric.name)
        .filter(|name| !seen.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new(), "{text}");
    for line in [
        "elf_notes_indexed_total 1",
        "elf_note_attempts_failed_total 3",
        "elf_notes_dead_total{reason=\"provider\"} 1",
        "elf_text_bytes_total 21",
        "elf_batches_in_flight 0",
        "elf_searches_total{outcome=\"found\"} 1",
        "elf_ready 1",
        "elf_coverage_ratio 0.5",
    ] {
        assert!(
            text.contains(&format!("{line}\n")),
            "{line} is not in {text}"
        );
    }
    assert!(text.contains("process_resident_memory_bytes "), "{text}");
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn golden_questions_measure_what_is_served_and_not_an_outage() {
    let site = Site::start().await;
    let answer = site.note("The zebra sleeps under the baobab.").await;
    site.note("The gauge is frozen.").await;
    let gone = uuid::Uuid::nil();
    let answered = ("q1", "zebra baobab", &*answer.to_string());
    site.ask_golden(&[answered, ("q2", "gauge", &gone.to_string())]);
    let worker = site.worker();
    let url = format!("{}/metrics", worker.admin().await);
    let scrape = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
    eventually_has(scrape, &["elf_quality{measure=\"mrr\"} 0.5\n"]).await;
    let text = scrape().await;
    assert!(text.contains("elf_quality_questions 2\n"), "{text}");
    assert!(
        text.contains("elf_quality{measure=\"zero_results\"} 0\n"),
        "{text}"
    );
    assert!(
        text.contains("elf_searches_total{outcome=\"found\"} 0\n"),
        "{text}"
    );

    // The owner of the folder changes it, and a wrong line ends nothing.
    site.write("golden/qrels/test.tsv", "q1 without tabs\n");
    worker.says("golden questions not asked").await;
    site.write("golden/qrels/test.tsv", format!("q1\t{answer}\t1\n"));
    eventually_has(scrape, &["elf_quality{measure=\"mrr\"} 1\n"]).await;

    // Without the provider, searches find by keyword alone: that says nothing of the index.
    site.provider.always(Behaviour::Status(503));
    site.write(
        "golden/queries.jsonl",
        "{\"_id\": \"q1\", \"text\": \"a text that no vector is remembered of\"}\n",
    );
    worker
        .says("a search was answered without query_vector")
        .await;
    assert!(scrape().await.contains("elf_quality{measure=\"mrr\"} 1\n"));
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn wrong_golden_questions_are_named_and_stop_no_worker() {
    let site = Site::start().await;
    site.ask_golden(&[("q", "zebra", "key")]);
    site.write("golden/qrels/test.tsv", "q\tkey\t0\n");
    let checked = site.elf(&["config", "check"]).await.exits(0);
    assert!(
        checked.stdout.contains("quality.folder: no query of"),
        "{checked:?}"
    );
    let worker = site.worker();
    worker.says("golden questions not asked").await;
    worker.stop().await.exits(0);
}

#[tokio::test]
async fn tokens_that_were_paid_and_saved_are_counted_with_their_price() {
    let site = Site::start().await;
    site.configure(
        "model = \"test\"",
        "model = \"test\"\nusd_per_million_tokens = 1e6",
    );
    site.note("The same text in two notes.").await;
    let worker = site.worker();
    let url = format!("{}/metrics", worker.admin().await);
    let value = async |name: &str| {
        let text = reqwest::get(&url).await.unwrap().text().await.unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name} ")));
        let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        number.unwrap_or_else(|| panic!("{name} is not in {text}"))
    };
    eventually(async || value("elf_points_written_total").await == 1.0).await;
    let paid = value("elf_embedding_tokens_total").await;
    assert!(paid > 5.0);
    assert_eq!(
        value("elf_embedding_cost_usd").await,
        paid,
        "a dollar a token"
    );
    assert_eq!(value("elf_embedding_tokens_saved_total").await, 0.0);
    site.note("The same text in two notes.").await;
    eventually(async || value("elf_points_written_total").await == 2.0).await;
    assert_eq!(value("elf_embedding_tokens_total").await, paid);
    assert_eq!(value("elf_embedding_tokens_saved_total").await, paid);
    worker.stop().await.exits(0);
}

const SECRET: &str = "sk-that-nobody-may-see";
const TEXT: &str = "Zymurgy is the last word, and poison";

/// The log of a worker at trace level, after a bad note and an outage.
async fn talkative(json: bool) -> String {
    let site = Site::start().await;
    site.configure(
        "log_level = \"debug\"",
        &format!("log_level = \"elf=trace\"\nlog_json = {json}\nadmin_token = \"{SECRET}\""),
    );
    site.configure(
        "model = \"test\"",
        &format!("model = \"test\"\napi_key = \"{SECRET}\""),
    );
    site.provider.poison("poison", Behaviour::Status(400));
    site.note(TEXT).await;
    let worker = site.worker();
    worker.says("note dead-lettered").await;
    let before = site.provider.requests();
    site.provider.always(Behaviour::Status(503));
    site.note("Nothing is wrong with Zymurgy.").await;
    worker.says("embedding paused").await;
    // A few probes of the same outage.
    site.provider.arrived(before + 4).await;
    site.provider.heal();
    worker.says("embedding resumed").await;
    let password = site.database.url();
    let password = reqwest::Url::parse(&password)
        .unwrap()
        .password()
        .unwrap_or("-none-")
        .to_owned();
    let log = worker.stop().await.exits(0).stderr;
    for never in ["Zymurgy", "zymurgy", SECRET, &password] {
        assert!(!log.contains(never), "{never:?} is in the log:\n{log}");
    }
    log
}

#[tokio::test]
async fn the_log_says_an_outage_once_and_never_a_text_or_a_secret() {
    let log = talkative(false).await;
    for once in ["embedding paused", "embedding resumed"] {
        assert_eq!(log.matches(once).count(), 1, "{once:?} in:\n{log}");
    }
}

#[tokio::test]
async fn every_line_of_a_json_log_is_an_object_and_a_notes_lines_name_it() {
    let log = talkative(true).await;
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    let gave_up = lines
        .iter()
        .find(|line| {
            line["fields"]["message"]
                .as_str()
                .is_some_and(|m| m.starts_with("note dead-lettered"))
        })
        .unwrap();
    let spans = gave_up["spans"].as_array().unwrap();
    let batch = spans.iter().find(|span| span["name"] == "batch").unwrap();
    assert!(batch["token"].is_number(), "{gave_up}");
    let note = spans.iter().find(|span| span["name"] == "note").unwrap();
    assert!(uuid::Uuid::parse_str(note["note_id"].as_str().unwrap()).is_ok());
}

#[tokio::test]
async fn rust_log_wins_over_the_configuration() {
    let site = Site::start().await;
    site.configure("log_level = \"debug\"", "log_level = \"off\"");
    let worker = site.worker_with(&[("RUST_LOG", "info")]);
    worker.says("worker started").await;
    worker.stop().await.exits(0);
}

#[cfg(feature = "otlp")]
mod traces {
    use std::sync::{Arc, Mutex};

    use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
        TraceService, TraceServiceServer,
    };
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Response, Status};

    use super::*;

    /// A collector that keeps what it is sent.
    #[derive(Clone, Default)]
    struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            let mut kept = self.0.lock().unwrap();
            for resource in request.into_inner().resource_spans {
                let attributes = resource.resource.unwrap_or_default().attributes;
                let service = attributes.iter().find(|a| a.key == "service.name");
                let service = format!("{:?}", service.and_then(|a| a.value.clone()));
                for scope in resource.scope_spans {
                    kept.extend(scope.spans.into_iter().map(|span| (service.clone(), span)));
                }
            }
            Ok(Response::new(ExportTraceServiceResponse::default()))
        }
    }

    impl Collector {
        async fn start() -> (Self, String) {
            let collector = Self::default();
            let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = incoming.local_addr().unwrap();
            let service = TraceServiceServer::new(collector.clone());
            let server = tonic::transport::Server::builder().add_service(service);
            tokio::spawn(server.serve_with_incoming(incoming));
            (collector, format!("http://{address}"))
        }

        fn spans(&self) -> Vec<(String, Span)> {
            self.0.lock().unwrap().clone()
        }
    }

    fn attribute(span: &Span, key: &str) -> Option<String> {
        let found = span.attributes.iter().find(|a| a.key == key)?;
        match found.value.clone()?.value? {
            Value::StringValue(text) => Some(text),
            Value::IntValue(number) => Some(number.to_string()),
            _ => None,
        }
    }

    #[tokio::test]
    async fn a_notes_way_can_be_followed_across_the_stages() {
        let (collector, endpoint) = Collector::start().await;
        let site = Site::start().await;
        let note = site.note("Zymurgy is the last word.").await;
        let worker = site.worker_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
        worker.says("sending traces").await;
        let url = format!("{}/metrics", worker.admin().await);
        let scrape = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
        eventually_has(scrape, &["elf_points_written_total 1\n"]).await;
        // The worker sends the last spans when it stops.
        worker.stop().await.exits(0);
        let spans = collector.spans();
        let (service, own) = spans
            .iter()
            .find(|(_, span)| attribute(span, "note_id") == Some(note.to_string()))
            .unwrap_or_else(|| panic!("no span names {note}: {spans:?}"));
        assert!(service.contains("elf"), "{service}");
        assert_eq!(attribute(own, "outcome").as_deref(), Some("indexed"));
        let names: BTreeSet<&str> = spans
            .iter()
            .filter(|(_, span)| span.trace_id == own.trace_id)
            .map(|(_, span)| span.name.as_str())
            .collect();
        for stage in [
            "batch", "load", "chunk", "lookup", "embed", "request", "commit", "upsert", "prune",
            "ack",
        ] {
            assert!(names.contains(stage), "{stage} is not in {names:?}");
        }
        assert!(!format!("{spans:?}").contains("Zymurgy"));
    }

    #[tokio::test]
    async fn an_unavailable_collector_disturbs_no_work() {
        let site = Site::start().await;
        site.note("It is indexed all the same.").await;
        let port = crate::support::proxy::Proxy::to("127.0.0.1", 1)
            .await
            .port();
        let endpoint = format!("http://127.0.0.1:{port}");
        let worker = site.worker_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)]);
        let url = format!("{}/metrics", worker.admin().await);
        let scrape = async || reqwest::get(&url).await.unwrap().text().await.unwrap();
        eventually_has(scrape, &["elf_points_written_total 1\n"]).await;
        worker.stop().await.exits(0);
    }
}
