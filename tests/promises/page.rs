//! The admin page of a real worker in a real browser.

mod accessibility;
mod dead_letters;
mod screenshots;

use serde_json::json;
use sqlx::PgConnection;

use crate::support::browser::{Browser, ENTER};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::Harness;
use crate::support::qdrant::Qdrant;
use crate::support::site::{Running, Site};

const TOKEN: &str = "a-token-that-nobody-guesses";

/// Lets a site's page change things.
fn set_token(site: &Site) {
    let bind = "admin_bind = \"127.0.0.1:0\"";
    site.configure(bind, &format!("{bind}\nadmin_token = \"{TOKEN}\""));
}

/// Writes notes as an application does.
async fn import(site: &Site, texts: &[&str]) {
    let line = |text: &&str| json!({ "key": text, "text": text }).to_string();
    let lines: Vec<String> = texts.iter().map(line).collect();
    let input = lines.join("\n");
    site.elf_reading(&["import", "-"], input.as_bytes())
        .await
        .exits(0);
}

async fn count(db: &mut PgConnection, from: &'static str) -> i64 {
    let query = sqlx::AssertSqlSafe(format!("select count(*) from {from}"));
    sqlx::query_scalar(query).fetch_one(db).await.unwrap()
}

const DEAD: &str = "indexing_outbox where status = 'DEAD'";

/// A worker that has dead-lettered `dead` of these notes, and the URL of its page.
async fn worker_with_dead(site: &Site, texts: &[&str], dead: i64) -> (Running, String) {
    let worker = site.worker();
    let admin = worker.admin().await;
    import(site, texts).await;
    let db = tokio::sync::Mutex::new(site.connect().await);
    eventually(async || count(&mut *db.lock().await, DEAD).await == dead).await;
    (worker, admin)
}

async fn sign_in(browser: &Browser, admin: &str) {
    browser.open(admin).await;
    browser.until("document.activeElement.id === 'token'").await;
    browser
        .type_into("#token", &format!("{TOKEN}{ENTER}"))
        .await;
    browser
        .until("document.querySelector('#sign-in').hidden")
        .await;
    browser.shows("#verdict-title", "eady").await;
}

#[tokio::test]
async fn the_page_answers_at_once_whether_all_is_well() {
    let Some(browser) = Browser::start("the_page_answers_at_once_whether_all_is_well").await else {
        return;
    };
    let site = Site::start().await;
    let worker = site.worker();
    import(&site, &["The mill turns.", "The roof leaks."]).await;
    browser.open(&worker.admin().await).await;
    browser
        .shows("#verdict-title", "Ready, and nothing waits")
        .await;
    browser.shows("[data-f='notes.indexed']", "2 (100 %)").await;
    assert_eq!(
        browser.text("[data-f='worker.embedded']").await,
        "2 (100 %)"
    );
    assert_eq!(browser.text("[data-f='key.dead']").await, "0");
    assert_eq!(browser.text("#dead-count").await, "none");
    browser.shows("#circuit", "Working").await;
    browser.shows("#collections", "active, served").await;
    browser.shows("[data-f='index.alias']", "→").await;
    // Each chart says in words what it draws.
    browser
        .until("document.querySelectorAll('.plot svg[role=img][aria-label*=\"in the last\"]').length === 3")
        .await;
    browser.shows("#chart-backlog .now", "0 changes").await;
    let title = browser.run("return document.title").await;
    assert_eq!(title, "✓ Ready, and nothing waits · ELF");
    browser.assert_clean().await;
}

#[tokio::test]
async fn without_a_token_the_page_shows_and_changes_nothing() {
    let Some(browser) = Browser::start("without_a_token_the_page_shows_and_changes_nothing").await
    else {
        return;
    };
    let site = Site::start().await;
    site.provider.poison("poison", Behaviour::Status(400));
    let (_worker, admin) = worker_with_dead(&site, &["poison"], 1).await;
    browser.open(&admin).await;
    browser.shows("#dead-count", "showing 1 of 1").await;
    browser.shows("#read-only", "service.admin_token").await;
    browser.shows("#read-only", "elf dead retry").await;
    let buttons = browser
        .run("return [...document.querySelectorAll('main button')].filter((b) => b.checkVisibility()).length")
        .await;
    assert_eq!(buttons, 0);
    let refused = browser
        .run_async(
            "fetch('api/dead/retry', {method: 'POST', headers: {'content-type': 'application/json'}, body: '{\"all\":true}'})
                 .then((answer) => done(answer.status))",
        )
        .await;
    assert_eq!(refused, 403);
    assert_eq!(count(&mut site.connect().await, DEAD).await, 1);
    browser.assert_clean().await;
}

#[tokio::test]
async fn an_outage_is_shown_with_its_reason_and_a_link() {
    let test = "an_outage_is_shown_with_its_reason_and_a_link";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let site = Site::start().await;
    let worker = site.worker();
    browser.open(&worker.admin().await).await;
    browser.shows("#verdict-title", "Ready").await;
    site.provider.always(Behaviour::Status(503));
    import(&site, &["The mill turns."]).await;
    browser.shows("#verdict-title", "Not ready").await;
    browser.shows("#verdict-why", "Failing for").await;
    browser.shows("#todo", "503").await;
    browser
        .shows("#todo", "docs/operate/runbook.md#provider-unavailable")
        .await;
    browser.shows("#circuit", "Paused").await;
    browser.shows("#announce", "Not ready").await;
    browser.shows("[data-f='key.waiting']", "1").await;
    site.provider.heal();
    browser
        .shows("#verdict-title", "Ready, and nothing waits")
        .await;
    browser.shows("#circuit", "Working").await;
    browser.assert_clean().await;
}

#[tokio::test]
async fn when_the_worker_is_gone_the_page_says_so_keeps_what_it_saw_and_recovers() {
    let test = "when_the_worker_is_gone_the_page_says_so_keeps_what_it_saw_and_recovers";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let site = Site::start().await;
    let worker = site.worker();
    let admin = worker.admin().await;
    import(&site, &["The mill turns."]).await;
    browser.open(&admin).await;
    browser.shows("[data-f='notes.indexed']", "1 (100 %)").await;
    worker.kill().await;
    browser.shows("#verdict-title", "does not answer").await;
    browser.shows("#verdict-why", "Next try in").await;
    browser.shows("#age", "old").await;
    browser
        .shows("#todo", "docs/operate/runbook.md#worker-absent")
        .await;
    browser
        .until("document.body.classList.contains('stale')")
        .await;
    assert_eq!(browser.text("[data-f='notes.indexed']").await, "1 (100 %)");
    site.configure("127.0.0.1:0", admin.strip_prefix("http://").unwrap());
    let _worker = site.worker();
    browser.shows("#verdict-title", "Ready").await;
    browser
        .until("!document.body.classList.contains('stale')")
        .await;
    browser.assert_clean().await;
}

#[tokio::test]
async fn a_running_rebuild_is_shown_until_it_ends() {
    let test = "a_running_rebuild_is_shown_until_it_ends";
    let (Some(browser), Some(server)) = (Browser::start(test).await, Qdrant::start(test).await)
    else {
        return;
    };
    let h = Harness::start_on(&server).await;
    h.stock(30_000).await;
    // Autovacuum would do it a moment later.
    sqlx::raw_sql("analyze").execute(&h.pool).await.unwrap();
    let site = h.into_site().await;
    let worker = site.worker();
    browser.open(&worker.admin().await).await;
    browser.shows("#verdict-title", "eady").await;
    let rebuild = site.begin(&["rebuild"]);
    browser.shows("#job-title", "Rebuild").await;
    browser
        .shows("[data-f='job.done']", "of 30,000 points")
        .await;
    browser.shows("#collections", "building").await;
    let bar = browser
        .run("const bar = document.querySelector('#job-bar'); return [bar.max, bar.value <= bar.max]")
        .await;
    assert_eq!(bar, json!([30_000, true]));
    rebuild.ended().await.exits(0);
    browser.until("document.querySelector('#job').hidden").await;
    browser.shows("#collections", "30,000").await;
    browser.assert_clean().await;
}
