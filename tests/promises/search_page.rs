//! The search page in a real browser.

use std::path::Path;

use reqwest::Method;
use serde_json::json;

use crate::support::api::Served;
use crate::support::browser::{Browser, ENTER, TAB, axe};
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{self, sentences};
use crate::support::site::Site;

async fn sign_in(browser: &Browser, url: &str, secret: &str) {
    browser.open(url).await;
    browser.until("document.activeElement.id === 'token'").await;
    browser
        .type_into("#token", &format!("{secret}{ENTER}"))
        .await;
    browser.until("document.activeElement.id === 'query'").await;
}

async fn ask(browser: &Browser, query: &str) {
    browser
        .run("document.querySelector('#query').value = ''")
        .await;
    browser
        .type_into("#query", &format!("{query}{ENTER}"))
        .await;
}

#[tokio::test]
async fn a_person_finds_a_note_and_sees_why() {
    let Some(browser) = Browser::start("a_person_finds_a_note_and_sees_why").await else {
        return;
    };
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let long = format!(
        "{}\n\nDie Größe 🦓 of the zebra under the baobab.\n\n{}",
        sentences(9, "the savanna"),
        sentences(9, "the desert")
    );
    served.add(&secret, &long).await;
    served.add(&secret, "The library opens at nine.").await;

    sign_in(&browser, &served.url, "elf_wrong").await;
    ask(&browser, "zebra").await;
    browser
        .shows("#sign-in-error", "does not know this key")
        .await;
    browser
        .type_into("#token", &format!("{secret}{ENTER}"))
        .await;
    browser.until("document.activeElement.id === 'query'").await;
    ask(&browser, "zebra baobab").await;
    browser.shows("#summary", "2 notes").await;
    browser.shows("#announce", "2 notes").await;
    let first = "#results > li:first-child";
    let passage = browser.text(&format!("{first} .passage")).await;
    assert!(
        passage.contains("Die Größe 🦓 of the zebra under the baobab."),
        "{passage}"
    );
    let marks = format!(
        "return [...document.querySelectorAll('{first} mark')].map((mark) => mark.textContent)"
    );
    assert_eq!(browser.run(&marks).await, json!(["zebra", "baobab"]));
    let context = browser.text(&format!("{first} .context")).await;
    assert!(context.contains(&passage), "{context}");
    let visible = format!(
        "const [a, b] = ['.context', '.passage'].map((name) => document.querySelector('{first} ' + name).getBoundingClientRect()); return a.top <= b.top && b.top < a.bottom"
    );
    assert_eq!(browser.run(&visible).await, json!(true));

    browser.click(&format!("{first} .why summary")).await;
    browser
        .until("document.querySelector('.why svg')?.getAttribute('aria-label').includes('Answer rank 1')")
        .await;
    browser.shows(&format!("{first} .why table"), "Fused").await;
    browser
        .shows(&format!("{first} .why"), "The stages took")
        .await;
    browser.click(&format!("{first} .chunks summary")).await;
    browser
        .shows(&format!("{first} .chunks"), "also in the chunk before")
        .await;
    let pieces = format!("return document.querySelectorAll('{first} .pieces li.this').length");
    assert_eq!(browser.run(&pieces).await, 1);

    browser.click("#filters summary").await;
    browser.type_into("[name=type]", "no-such-type").await;
    ask(&browser, "zebra").await;
    browser.shows("#summary", "No note found").await;
    browser
        .run("document.querySelector('[name=type]').value = ''")
        .await;
    served.site.provider.always(Behaviour::Status(503));
    ask(&browser, "another zebra").await;
    browser.shows("#degraded", "found by keyword alone").await;
    served.site.provider.heal();

    browser.click("#sign-out").await;
    browser.until("document.activeElement.id === 'token'").await;
    let left = "return [document.querySelectorAll('#results li').length, sessionStorage.length]";
    assert_eq!(browser.run(left).await, json!([0, 0]));
    browser.assert_clean().await;
}

#[tokio::test]
async fn the_search_page_is_accessible_and_takes_hostile_texts_as_text() {
    let test = "the_search_page_is_accessible_and_takes_hostile_texts_as_text";
    let Some(browser) = Browser::start(test).await else {
        return;
    };
    let axe = axe();
    if axe.is_none() {
        eprintln!("{test}: NOT CHECKED BY axe-core: .elf/axe.min.js is missing, see `make setup`");
    }
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let hostile = "<img src=x onerror=\"document.title='taken'\"> </mark><script>document.title='taken'</script> zebra";
    let key = "<b>key</b>".repeat(20);
    let note = |text: &str| json!({"project_id": "p", "agent_id": "a", "scope": "s", "type": "n", "key": format!("{key}{}", text.len()), "text": text});
    let body = json!({"notes": [note(hostile), note(&format!("zebra {}", "long".repeat(400)))]});
    let path = "/v2/notes?wait=indexed";
    let added = served.ask(Method::POST, path, &secret, Some(body)).await;
    assert_eq!(added.status, 201, "{added:?}");

    browser.resize(360, 740).await;
    browser.open(&served.url).await;
    browser.until("document.activeElement.id === 'token'").await;
    browser.assert_accessible(axe.as_deref()).await;
    sign_in(&browser, &served.url, &secret).await;
    browser.click("#filters summary").await;
    ask(&browser, "zebra").await;
    browser.shows("#summary", "2 notes").await;
    for css in [".why summary", ".chunks summary"] {
        browser
            .click(&format!("#results > li:first-child {css}"))
            .await;
    }
    browser
        .until("document.querySelector('.why svg') && document.querySelector('.pieces')")
        .await;
    browser.shows("#results", "<b>key</b>").await;
    browser.shows("#results", "onerror").await;
    assert_eq!(browser.run("return document.title").await, "ELF search");
    let images =
        "return document.querySelectorAll('#results img, #results script, #results b').length";
    assert_eq!(browser.run(images).await, 0);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        for (width, height) in [(360, 740), (1280, 900)] {
            browser.resize(width, height).await;
            browser.assert_accessible(axe.as_deref()).await;
        }
    }

    // The tab key reaches everything that takes input, in order, and the focus is visible.
    let visible = "[...document.querySelectorAll('a, button, input, select, summary, .context')].filter((e) => e.checkVisibility())";
    browser.run(&format!("{visible}[0].focus()")).await;
    let expected = browser.run(&format!("return {visible}.length")).await;
    let expected = expected.as_u64().unwrap();
    assert!(expected > 15, "{expected}");
    let mut reached = 1;
    let mut presses = 0;
    while reached < expected {
        browser.press(TAB).await;
        presses += 1;
        // A date has a stop for each of its parts.
        assert!(presses < 3 * expected, "{reached} of {expected}");
        let here = browser
            .run(&format!(
                "const e = document.activeElement; return [{visible}.indexOf(e), getComputedStyle(e).outlineStyle]"
            ))
            .await;
        let at = here[0].as_u64().unwrap_or_else(|| panic!("{here}"));
        assert!(at + 1 == reached || at == reached, "{here} after {reached}");
        assert_eq!(here[1], "solid", "{here}");
        reached = at + 1;
    }
    browser.assert_clean().await;
}

/// With the model of the demo, so that a picture shows what a reader would find.
pub async fn site_with_model() -> Site {
    let site = Site::start().await;
    let provider = site.provider.url().to_owned();
    std::os::unix::fs::symlink(harness::model(), site.path("all-MiniLM-L6-v2")).unwrap();
    site.configure("provider = \"openai\"", "provider = \"local\"");
    site.configure(&format!("api_base = \"{provider}\"\n"), "");
    site.configure("model = \"test\"", "model = \"./all-MiniLM-L6-v2\"");
    site.configure(
        "max_tokens = 32\noverlap_tokens = 8",
        "max_tokens = 256\noverlap_tokens = 64",
    );
    site
}

/// Takes the screenshot of the search page in docs/screenshots: `make screenshots`.
#[tokio::test]
#[ignore = "it checks nothing: make screenshots"]
async fn screenshots() {
    let Some(browser) = Browser::start("screenshots").await else {
        panic!("there is no browser");
    };
    let served = Served::on(site_with_model().await, "").await;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let notes = root.join("examples/notes");
    let import = ["import", notes.to_str().unwrap(), "--tenant", "acme"];
    served.site.elf(&import).await.exits(0);
    let secret = served.key(&["--tenant", "acme"]).await;
    let waiting = "select count(*) from indexing_outbox";
    let database = tokio::sync::Mutex::new(served.site.connect().await);
    eventually(async || {
        let waiting = sqlx::query_scalar::<_, i64>(waiting);
        waiting
            .fetch_one(&mut *database.lock().await)
            .await
            .unwrap()
            == 0
    })
    .await;
    browser.resize(1280, 1000).await;
    browser.prefer("light").await;
    sign_in(&browser, &served.url, &secret).await;
    ask(&browser, "the dog has swallowed something").await;
    browser.shows("#summary", "notes").await;
    browser
        .click("#results > li:first-child .why summary")
        .await;
    browser.until("document.querySelector('.why svg')").await;
    browser
        .screenshot(&root.join("docs/screenshots/search.png"), false)
        .await;
}
