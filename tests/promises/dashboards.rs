//! The operator's monitoring: a dashboard, recording rules and alerts.

mod files;
mod promql;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use elf::telemetry::catalog::{self, Kind, Label, Metric};
use reqwest::Method;
use serde_json::Value;
use tokio::process::Command;

use crate::support::api;
use crate::support::application::Application;
use crate::support::embedding_server::Behaviour;
use crate::support::prometheus::{self, Prometheus};
use crate::support::qdrant::Qdrant;
use crate::support::site::{Done, Site, run};
use crate::support::{DEADLINE, eventually};
use files::{anchors, dashboard, dashboard_expressions, panels, read, rules, yaml_files};
use promql::{Selector, sides, spoken};

const RUNBOOK: &str = "docs/operate/runbook.md";

/// The metric of the catalog that a name in an expression means.
fn in_catalog(name: &str) -> Option<&'static Metric> {
    catalog::all().find(|metric| match metric.kind {
        Kind::Histogram(_) => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
        _ => name == metric.name,
    })
}

/// The labels that a metric can have in Prometheus; `None` when there is no such metric.
fn labels_of(name: &str, recorded: &BTreeSet<String>) -> Option<Vec<String>> {
    let mut labels = vec!["job".to_owned()];
    if recorded.contains(name) {
        // The name is level:metric:operations; the level names the labels.
        let level = name.split(':').next().unwrap();
        labels.extend(level.split('_').map(str::to_owned));
        return Some(labels);
    }
    labels.push("instance".to_owned());
    if name == "ALERTS" {
        labels.extend(["alertname", "alertstate", "severity"].map(str::to_owned));
        let all = catalog::all().flat_map(|metric| metric.labels);
        labels.extend(all.map(|label| label.name.to_owned()));
    } else if let Some(metric) = in_catalog(name) {
        labels.extend(metric.labels.iter().map(|label| label.name.to_owned()));
        if name.ends_with("_bucket") {
            labels.push("le".to_owned());
        }
    } else if name != "up" && !name.starts_with("process_") {
        return None;
    }
    Some(labels)
}

/// The values that a label can have, where they are known.
fn values_of(metric: &str, label: &str) -> Vec<&'static str> {
    let named = |labels: &'static [Label]| labels.iter().filter(|l| l.name == label);
    let labels: Vec<&Label> = match in_catalog(metric) {
        Some(metric) => named(metric.labels).collect(),
        None => catalog::all().flat_map(|m| named(m.labels)).collect(),
    };
    labels.iter().flat_map(|l| l.values).copied().collect()
}

fn assert_matches_something(selector: &Selector, place: &str) {
    for matcher in &selector.matchers {
        let known = values_of(&selector.metric, &matcher.label);
        // `le` is a number, and a variable is the dashboard's.
        if known.is_empty() || matcher.text.contains('$') {
            continue;
        }
        for value in matcher.text.split('|') {
            assert!(
                known.contains(&value),
                "{place}: {} of {} is never {value:?}",
                matcher.label,
                selector.metric
            );
        }
    }
}

#[test]
fn dashboard_and_rules_use_every_metric_and_no_unknown_one() {
    let rules = rules();
    let recorded: BTreeSet<String> = rules
        .iter()
        .filter(|rule| !rule.is_alert)
        .map(|rule| rule.name.clone())
        .collect();
    let mut expressions = dashboard_expressions(&dashboard());
    assert!(expressions.len() > 40 && recorded.len() > 5);
    expressions.extend(rules.iter().map(|rule| files::Expression {
        place: rule.name.clone(),
        text: rule.expression.clone(),
        legend: String::new(),
    }));
    let mut used = BTreeSet::new();
    for expression in &expressions {
        let place = &expression.place;
        let spoken = spoken(&expression.text);
        let mut labels = BTreeSet::new();
        for selector in &spoken.selectors {
            let own = labels_of(&selector.metric, &recorded)
                .unwrap_or_else(|| panic!("{place}: there is no {}", selector.metric));
            for matcher in &selector.matchers {
                assert!(
                    own.contains(&matcher.label),
                    "{place}: {selector:?} has no such label"
                );
            }
            assert_matches_something(selector, place);
            labels.extend(own);
            used.insert(selector.metric.clone());
        }
        let in_legend = expression.legend.split("{{").skip(1);
        let in_legend = in_legend.map(|rest| rest.split("}}").next().unwrap());
        for label in spoken.grouping.iter().map(String::as_str).chain(in_legend) {
            assert!(labels.contains(label), "{place}: nothing has {label:?}");
        }
    }
    let unused: Vec<&str> = catalog::all()
        .map(|metric| metric.name)
        .filter(|name| {
            !used
                .iter()
                .any(|u| in_catalog(u).is_some_and(|m| m.name == *name))
        })
        .collect();
    assert_eq!(unused, Vec::<&str>::new(), "metrics that nothing uses");
    let unused: Vec<&String> = recorded.difference(&used).collect();
    assert_eq!(unused, Vec::<&String>::new(), "recorded and not used");
}

#[test]
fn every_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on() {
    for alert in rules().iter().filter(|rule| rule.is_alert) {
        let field = |key| {
            let value = alert.field(key);
            value.unwrap_or_else(|| panic!("{} has no {key}", alert.name))
        };
        assert!(["page", "ticket"].contains(&&*field("severity")));
        assert!(!field("for").is_empty() && !field("summary").is_empty());
        assert!(field("description").len() > 80, "{}", alert.name);
        assert_leads_somewhere(&field("runbook_url"), &alert.name);
        let named = read(RUNBOOK).contains(&alert.name);
        assert!(named, "{RUNBOOK} does not name {}", alert.name);
    }
}

/// A link to the runbook leads to one of its headings.
#[track_caller]
fn assert_leads_somewhere(link: &str, place: &str) {
    let (page, anchor) = link.split_once('#').unwrap();
    assert_eq!(page, RUNBOOK, "{place}");
    assert!(
        anchors(&read(RUNBOOK)).iter().any(|a| a == anchor),
        "{place}: {RUNBOOK} has no #{anchor}"
    );
}

#[test]
fn every_rule_has_a_test_and_every_alert_one_in_which_it_does_not_fire() {
    let tests: Vec<String> = yaml_files("deploy/prometheus/tests")
        .iter()
        .map(|file| read(file))
        .collect();
    let cases: Vec<&str> = tests
        .iter()
        .flat_map(|test| test.split("- expr: ").skip(1))
        .collect();
    for rule in rules() {
        let (asked, is_alert) = match rule.is_alert {
            true => (format!("ALERTS{{alertname=\"{}\"", rule.name), true),
            false => (rule.name.clone(), false),
        };
        let asking = cases
            .iter()
            .filter(|case| case.lines().next().unwrap().contains(&asked));
        let (quiet, loud): (Vec<&str>, Vec<&str>) =
            asking.partition(|case| case.contains("exp_samples: []"));
        assert!(!loud.is_empty(), "{} is not tested", rule.name);
        assert!(!is_alert || !quiet.is_empty(), "{} always fires", rule.name);
    }
}

#[test]
fn the_dashboard_can_be_read_and_maintained_by_hand() {
    let dashboard = dashboard();
    let panels = panels(&dashboard);
    let mut ids = BTreeSet::new();
    let mut rows = Vec::new();
    let mut taken: HashMap<(u64, u64), u64> = HashMap::new();
    for panel in &panels {
        let (id, title) = (
            panel["id"].as_u64().unwrap(),
            panel["title"].as_str().unwrap(),
        );
        assert!(ids.insert(id), "two panels have the id {id}");
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(side("x") + side("w") <= 24, "{title} is too wide");
        for x in side("x")..side("x") + side("w") {
            for y in side("y")..side("y") + side("h") {
                let other = taken.insert((x, y), id);
                assert_eq!(other, None, "{title} lies over another panel");
            }
        }
        if panel["type"] == "row" {
            rows.push(title);
            continue;
        }
        assert!(panel["description"].as_str().unwrap().len() > 20, "{title}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let defaults = &panel["fieldConfig"]["defaults"];
        let has_no_unit = ["table", "state-timeline", "heatmap"];
        let kind = panel["type"].as_str().unwrap();
        assert!(
            has_no_unit.contains(&kind) || defaults["unit"].is_string(),
            "{title} has no unit"
        );
        for link in panel["links"].as_array().into_iter().flatten() {
            let url = link["url"].as_str().unwrap();
            assert_leads_somewhere(&url.replace("${runbook}", RUNBOOK), title);
        }
        let targets = panel["targets"].as_array().unwrap();
        let names: BTreeSet<&str> = targets.iter().filter_map(|t| t["refId"].as_str()).collect();
        assert_eq!(names.len(), targets.len(), "{title}");
    }
    for row in [
        "Freshness",
        "Backlog",
        "Throughput",
        "Provider",
        "Postgres and the index",
        "Drift",
        "Rebuild",
        "Process",
    ] {
        assert!(rows.contains(&row), "there is no row {row}");
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variable = |name: &str| variables.iter().find(|v| v["name"] == name).unwrap();
    assert_eq!(variable("datasource")["type"], "datasource");
    assert_eq!(variable("runbook")["query"], RUNBOOK);
    variable("job");
    variable("instance");
}

async fn promtool(test: &str, args: &[&str]) -> Option<Done> {
    let mut command = Command::new(prometheus::program("promtool", test)?);
    command.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    Some(run(command, b"").await)
}

#[tokio::test]
async fn promtool_finds_nothing_wrong_with_configuration_rules_and_their_tests() {
    let test = "promtool_finds_nothing_wrong_with_configuration_rules_and_their_tests";
    let config = "deploy/prometheus/prometheus.yml";
    let Some(done) = promtool(test, &["check", "config", config]).await else {
        return;
    };
    assert!(done.exits(0).stdout.contains("2 rule files found"));
    let rules = yaml_files("deploy/prometheus/rules");
    let tests = yaml_files("deploy/prometheus/tests");
    for (command, files) in [("check", rules), ("test", tests)] {
        let mut args = vec![command, "rules"];
        args.extend(files.iter().map(String::as_str));
        promtool(test, &args).await.unwrap().exits(0);
    }
}

/// `prometheus.yml` with another target and shorter intervals.
fn config(address: &str) -> String {
    let mut text = read("deploy/prometheus/prometheus.yml");
    let rules = files::path("deploy/prometheus/rules");
    for (old, new) in [
        ("elf:9464", address.trim_start_matches("http://")),
        ("15s", "1s"),
        ("rules/*.yml", &format!("{}/*.yml", rules.display())),
    ] {
        assert!(text.contains(old), "{old:?} is not in prometheus.yml");
        text = text.replace(old, new);
    }
    text
}

/// An expression as Grafana sends it.
fn filled_in(expression: &str) -> String {
    let filled = expression
        .replace("$__rate_interval", "5s")
        .replace("$job", "elf")
        .replace("$instance", ".*");
    assert!(!filled.contains('$'), "{filled}");
    filled
}

/// Writes notes, now and then one that cannot be embedded, as fast as they are indexed.
async fn write_notes(mut application: Application) {
    for round in 0.. {
        for _ in 0..10 {
            application.change().await;
        }
        if round % 5 == 0 {
            application.execute(POISON).await;
        }
        let waiting = "indexing_outbox where status <> 'DEAD'";
        while application.count(waiting).await > 50 {}
    }
}

/// Searches them meanwhile.
async fn search_notes(url: String, secret: String) {
    loop {
        let body = Some(serde_json::json!({"query": "a note"}));
        let answered = api::ask(&url, Method::POST, "/v2/searches", &secret, body).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

const POISON: &str = "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
                      values ('t', 'p', 'a', 's', 'n', 'this is poison')";

#[tokio::test]
async fn every_expression_of_dashboard_and_rules_has_data_while_a_worker_works() {
    let test = "every_expression_of_dashboard_and_rules_has_data_while_a_worker_works";
    if prometheus::program("prometheus", test).is_none() {
        return;
    }
    let site = Site::empty().await;
    let server = Qdrant::start(test).await;
    if let Some(server) = &server {
        site.use_server(&server.url());
    }
    site.configure(
        "timeout_ms = 6000",
        "timeout_ms = 6000\nusd_per_million_tokens = 0.02",
    );
    site.configure("[worker]", "[worker]\nverify_interval_secs = 1");
    site.ask_golden(&[("q", "what is new?", "no-such-key")]);
    site.configure("log_level = \"debug\"", "log_level = \"info\"");
    site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
    site.elf(&["migrate"]).await.exits(0);
    let mut worker = site.worker();
    let config = config(&worker.admin().await);
    let (api, secret) = (
        api::url(&worker).await,
        api::key(&site, &["--tenant", "t"]).await,
    );
    let mut prometheus = Prometheus::start(test, &config).await.unwrap();

    // Then the provider is unavailable until Prometheus has recorded it.
    worker.says("worker started").await;
    site.provider.always(Behaviour::Status(503));
    let mut application = Application::of(&site.database).await;
    application.insert().await;
    eventually(async || {
        let open = prometheus.query("elf_embedding_circuit_open == 1").await;
        !open.is_empty()
    })
    .await;
    site.provider.heal();
    site.provider.poison("poison", Behaviour::Status(400));
    let load = tokio::spawn(async {
        tokio::join!(write_notes(application), search_notes(api, secret));
    });

    let mut waiting = expressions();
    let asked = waiting.len();
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !waiting.is_empty() {
        let mut without = Vec::new();
        for (place, expression) in waiting {
            if !prometheus.has_number(&expression).await {
                without.push((place, expression));
            }
        }
        waiting = without;
        assert!(prometheus.is_running(), "{}", prometheus.log());
        assert!(worker.is_running(), "{}", worker.log());
        assert!(!load.is_finished(), "the application stopped writing");
        assert!(
            tokio::time::Instant::now() < deadline,
            "of {asked}, these have no data: {waiting:#?}"
        );
    }
    let told = "ALERTS{alertname=\"ElfDeadLetters\"}";
    eventually(async || prometheus.has_number(told).await).await;
    assert_rules_are_healthy(&prometheus).await;
    load.abort();
    worker.stop().await.exits(0);
}

/// Every expression that needs data, with its place: expressions of the dashboard and of
/// recording rules as they are, and each side of the alerts' comparisons.
fn expressions() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = dashboard_expressions(&dashboard())
        .into_iter()
        .map(|expression| (expression.place, filled_in(&expression.text)))
        .collect();
    for rule in rules() {
        if rule.is_alert {
            let sides = sides(&rule.expression).into_iter();
            all.extend(sides.map(|side| (rule.name.clone(), side)));
        } else {
            all.push((rule.name.clone(), rule.name));
        }
    }
    all
}

/// Prometheus has read the same rules as this test and can evaluate each. It could render
/// the texts of the pending alerts.
async fn assert_rules_are_healthy(prometheus: &Prometheus) {
    let known = prometheus.rules().await;
    let names = |names: Vec<String>| names.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(
        names(rules().into_iter().map(|rule| rule.name).collect()),
        names(known.iter().map(|rule| text(&rule["name"])).collect()),
    );
    for rule in &known {
        assert_eq!(rule["health"], "ok", "{rule}");
        for alert in rule["alerts"].as_array().into_iter().flatten() {
            let said = alert["annotations"].to_string();
            assert!(!said.contains("<error"), "{said}");
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}
