//! The admin page of a real worker in a real browser.

use std::path::Path;

use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::support::application::Application;
use crate::support::browser::{Browser, ENTER, ESCAPE, TAB, axe};
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
    browser.shows("#circuit", "Closed").await;
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
async fn dead_letters_are_retried_and_discarded_after_a_confirmation() {
    let test = "dead_letters_are_retried_and_discarded_after_a_confirmation";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let site = Site::start().await;
    set_token(&site);
    site.provider.poison("poison", Behaviour::Status(400));
    let texts = [
        "first poison",
        "second poison",
        "third poison",
        "A good note.",
    ];
    let (worker, admin) = worker_with_dead(&site, &texts, 3).await;
    let mut db = site.connect().await;

    // The page reports a wrong token and keeps the right one.
    browser.open(&admin).await;
    browser.until("document.activeElement.id === 'token'").await;
    browser.type_into("#token", &format!("wrong{ENTER}")).await;
    browser.shows("#sign-in-error", "did not accept").await;
    sign_in(&browser, &admin).await;
    browser
        .shows("#verdict-title", "Ready, but 3 notes are dead-lettered")
        .await;
    browser
        .shows("#todo", "docs/operations.md#dead-letters")
        .await;
    browser.shows("#dead-count", "showing 3 of 3").await;
    for words in ["The embedding provider rejected it", "poison", "UPSERT"] {
        browser.shows("#letters", words).await;
    }
    browser.shows("#letters", "Attempts").await;

    // Without a confirmation nothing changes, and the focus returns to where it was.
    let discard = ".letter:first-child button:last-child";
    browser.click(discard).await;
    browser.shows("#confirm", "Discard this dead letter?").await;
    browser
        .shows("#confirm", "The note stays in Postgres")
        .await;
    browser.press(ESCAPE).await;
    browser
        .until(&format!(
            "!document.querySelector('#confirm').open && document.activeElement === document.querySelector('{discard}')"
        ))
        .await;
    assert_eq!(count(&mut db, DEAD).await, 3);

    // By keyboard: the dialog focuses the cancel button first.
    browser.press(ENTER).await;
    browser
        .until("document.activeElement.id === 'confirm-no'")
        .await;
    browser.press(TAB).await;
    browser.press(ENTER).await;
    browser.shows("#dead-result", "Discarded").await;
    browser.shows("#dead-count", "showing 2 of 2").await;
    browser
        .until("document.activeElement.id === 'dead-title'")
        .await;
    assert_eq!(count(&mut db, "indexing_outbox").await, 2);
    assert_eq!(count(&mut db, "memory_notes").await, 4);

    // The provider accepts the text now, and the rest is retried.
    site.provider.heal();
    browser.click(".letter:first-child .row button").await;
    browser.shows("#confirm", "Its attempts are reset").await;
    browser.click("#confirm-yes").await;
    browser.shows("#dead-result", "the note is due again").await;
    browser.shows("#dead-count", "showing 1 of 1").await;
    browser.click("#retry-all").await;
    browser.shows("#confirm", "Retry the dead letter?").await;
    browser.click("#confirm-yes").await;
    browser
        .shows("#dead-result", "Retried: 1 note due again")
        .await;
    browser
        .shows("#verdict-title", "Ready, and nothing waits")
        .await;
    let db = tokio::sync::Mutex::new(db);
    eventually(async || count(&mut *db.lock().await, "indexing_outbox").await == 0).await;
    let indexed = "note_index_state where indexed_at is not null";
    assert_eq!(count(&mut *db.lock().await, indexed).await, 3);
    // The audit log names who did it.
    worker.says("discarded from the admin page").await;
    worker.says("retried from the admin page").await;

    browser.click("#sign-out").await;
    browser.until("document.activeElement.id === 'token'").await;
    let kept = browser
        .run("return sessionStorage.length + localStorage.length + document.cookie.length")
        .await;
    assert_eq!(kept, 0);
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
async fn a_note_is_shown_as_text_and_never_as_markup() {
    let Some(browser) = Browser::start("a_note_is_shown_as_text_and_never_as_markup").await else {
        return;
    };
    let site = Site::start().await;
    set_token(&site);
    let reason = "<b onmouseover=hacked=1>no</b><script>hacked=1</script>";
    let body = json!({"error": {"message": reason}}).to_string();
    let kind = "application/json".to_owned();
    site.provider.poison(
        "arsenic",
        Behaviour::Answer(400, "content-type", kind, body),
    );
    let text = "<img src=x onerror=hacked=1><script>hacked=1</script></blockquote>\u{202e} arsenic";
    let (_worker, admin) = worker_with_dead(&site, &[text], 1).await;
    sign_in(&browser, &admin).await;
    browser.shows("#letters blockquote", text).await;
    browser.shows("#letters .error", reason).await;
    browser.click(".letter .row button").await;
    browser.shows("#confirm-what", "<img src=x onerror").await;
    let found = browser
        .run("return [typeof hacked, document.querySelectorAll('img, b, main script, dialog script').length]")
        .await;
    assert_eq!(found, json!(["undefined", 0]));
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
        .shows("#todo", "docs/operations.md#provider-unavailable")
        .await;
    browser.shows("#circuit", "pen").await;
    browser.shows("#announce", "Not ready").await;
    browser.shows("[data-f='key.waiting']", "1").await;
    site.provider.heal();
    browser
        .shows("#verdict-title", "Ready, and nothing waits")
        .await;
    browser.shows("#circuit", "Closed").await;
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
        .shows("#todo", "docs/operations.md#worker-absent")
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
    // The server would do it by itself a moment later.
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

/// Narrow screens, long and many texts, light and dark, by keyboard and for screen readers.
#[tokio::test]
async fn the_page_is_accessible_at_every_size_and_in_both_colours() {
    let test = "the_page_is_accessible_at_every_size_and_in_both_colours";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let axe = axe();
    if axe.is_none() {
        eprintln!("{test}: NOT CHECKED BY axe-core: .elf/axe.min.js is missing, see `make setup`");
    }
    let site = Site::start().await;
    set_token(&site);
    let body = json!({"error": {"message": "word".repeat(2000)}}).to_string();
    let kind = "application/json".to_owned();
    site.provider
        .poison("poison", Behaviour::Answer(400, "content-type", kind, body));
    let texts: Vec<String> = (0..60)
        .map(|i| format!("poison {i} {}", "long".repeat(200)))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (_worker, admin) = worker_with_dead(&site, &texts, 60).await;

    browser.resize(360, 740).await;
    browser.open(&admin).await;
    browser.until("document.activeElement.id === 'token'").await;
    check(&browser, axe.as_deref()).await;
    sign_in(&browser, &admin).await;
    browser.shows("#dead-count", "showing 10 of 60").await;
    check(&browser, axe.as_deref()).await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        for (width, height) in [(360, 740), (768, 1024), (1280, 900)] {
            browser.resize(width, height).await;
            check(&browser, axe.as_deref()).await;
        }
    }
    browser.click(".letter .row button").await;
    check(&browser, axe.as_deref()).await;
    browser.press(ESCAPE).await;

    // The tab key reaches every button in order, and the focus is visible.
    let visible = "[...document.querySelectorAll('a, button')].filter((e) => e.checkVisibility())";
    browser.run(&format!("{visible}[0].focus()")).await;
    let expected = browser.run(&format!("return {visible}.length")).await;
    let expected = expected.as_u64().unwrap();
    assert!(expected > 20, "{expected}");
    for i in 1..expected {
        browser.press(TAB).await;
        let here = browser
            .run(&format!(
                "const e = document.activeElement; return [{visible}.indexOf(e), getComputedStyle(e).outlineStyle]"
            ))
            .await;
        assert_eq!(here, json!([i, "solid"]));
    }

    // Fifty letters look like ten, and take minutes to check at every size.
    browser.click("#show-more").await;
    browser.shows("#dead-count", "showing 50 of 60").await;
    browser
        .shows("#dead-rest", "elf dead list --limit 60")
        .await;
    check(&browser, axe.as_deref()).await;
    browser.assert_clean().await;
}

/// Nothing scrolls sideways, and axe-core finds nothing.
async fn check(browser: &Browser, axe: Option<&str>) {
    let wide = browser
        .run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        .await;
    assert_eq!(wide, 0);
    let Some(axe) = axe else {
        return;
    };
    // The page's policy does not apply to scripts that WebDriver runs in it.
    let missing = browser.run("return window.axe === undefined").await;
    if missing == true {
        browser.run(&format!("{axe}; window.axe = axe;")).await;
    }
    let found = browser
        .run_async(
            "axe.run({resultTypes: ['violations']}).then((result) => done(result.violations.map(
                 (v) => [v.id, v.help, v.nodes.slice(0, 3).map((n) => `${n.target}: ${n.failureSummary}`)])))",
        )
        .await;
    assert_eq!(found, json!([]), "{found:#}");
}

/// Takes the screenshots in docs/screenshots: `make screenshots`.
#[tokio::test]
#[ignore = "it checks nothing and takes minutes: make screenshots"]
async fn screenshots() {
    let Some(browser) = Browser::start("screenshots").await else {
        panic!("there is no browser");
    };
    let server = Qdrant::start("screenshots").await.expect("a Qdrant");
    let shoot = async |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join(format!("docs/screenshots/{name}.png"));
        browser.screenshot(&path, false).await;
    };
    let h = Harness::start_on(&server).await;
    h.stock(30_000).await;
    sqlx::raw_sql("analyze").execute(&h.pool).await.unwrap();
    let site = h.into_site().await;
    // So that their points are in the index as well.
    site.elf(&["rebuild"]).await.exits(0);
    set_token(&site);
    let notes = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/notes");
    let notes = notes.to_str().unwrap();
    let worker = site.worker();
    let admin = worker.admin().await;
    site.elf(&["import", notes]).await.exits(0);
    // An application writes in waves until the charts have data.
    let mut application = Application::of(&site.database).await;
    browser.resize(1280, 860).await;
    browser.prefer("light").await;
    sign_in(&browser, &admin).await;
    let samples = "fetch('api/status', {headers: {authorization: `Bearer ${sessionStorage.getItem('elf-admin-token')}`}})
                       .then((answer) => answer.json()).then((status) => done(status.history.samples.length))";
    for wave in 0.. {
        let notes = [40, 900, 150, 2500, 10][wave % 5];
        let insert = format!(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             select 't', 'p', 'a', 's', 'n', 'Wave {wave}, note ' || i from generate_series(1, {notes}) i"
        );
        application.execute(&insert).await;
        let before = browser.run_async(samples).await;
        let before = before.as_u64().unwrap_or(0);
        if before >= 60 {
            break;
        }
        loop {
            let now: Value = browser.run_async(samples).await;
            if now.as_u64().unwrap_or(0) > before {
                break;
            }
        }
    }
    shoot("light").await;
    browser.prefer("dark").await;
    shoot("dark").await;
    browser.resize(360, 780).await;
    shoot("phone").await;

    browser.prefer("light").await;
    browser.resize(1280, 860).await;
    let rebuild = site.begin(&["rebuild"]);
    browser
        .until("document.querySelector('#job-bar').position > .4")
        .await;
    shoot("rebuild").await;
    rebuild.ended().await.exits(0);

    let message = "the content filter rejected the input";
    let body = json!({"error": {"message": message}}).to_string();
    let kind = "application/json".to_owned();
    site.provider.poison(
        "invoice",
        Behaviour::Answer(400, "content-type", kind, body),
    );
    import(
        &site,
        &[
            "The invoice of the roofer came to 4,180 and is to be paid by the end of March.",
            "<img src=x onerror=alert(1)> The scanned invoice is in the second drawer.",
        ],
    )
    .await;
    browser.shows("#dead-count", "showing 2 of 2").await;
    browser
        .shows("#verdict-title", "2 notes are dead-lettered")
        .await;
    shoot("dead-letters").await;
}
