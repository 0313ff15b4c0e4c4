//! The page that tries the HTTP API, in a real browser.

use serde_json::json;

use crate::support::api::Served;
use crate::support::browser::{Browser, ENTER, axe};

/// Opens an operation of the page.
async fn open(browser: &Browser, operation: &str) {
    browser.click(&format!("#{operation} > summary")).await;
    let form = format!("document.querySelector('#{operation} form').checkVisibility()");
    browser.until(&form).await;
}

async fn send(browser: &Browser, operation: &str) {
    browser.click(&format!("#{operation} button")).await;
}

#[tokio::test]
async fn every_request_of_the_api_can_be_tried() {
    let Some(browser) = Browser::start("every_request_of_the_api_can_be_tried").await else {
        return;
    };
    let served = Served::start().await;
    let secret = served.key(&["--tenant", "t", "--write"]).await;
    let hostile = "<img src=x onerror=\"document.title='taken'\"> a zebra's </pre>";
    let note = served.add(&secret, hostile).await;

    browser.open(&format!("{}/api", served.url)).await;
    browser
        .until("document.querySelectorAll('.operation').length > 0")
        .await;
    let described: serde_json::Value = reqwest::get(format!("{}/openapi.json", served.url))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let paths = described["paths"].as_object().unwrap().values();
    let operations: usize = paths.map(|path| path.as_object().unwrap().len()).sum();
    let shown = "return document.querySelectorAll('.operation').length";
    assert_eq!(browser.run(shown).await, operations);

    // Without a key.
    open(&browser, "get_note").await;
    browser
        .type_into("#get_note [name='path.id']", &note.to_string())
        .await;
    send(&browser, "get_note").await;
    browser.shows("#get_note .status", "401").await;

    browser.type_into("#key", &format!("{secret}{ENTER}")).await;
    browser.shows("#key-state", "carry the key").await;
    send(&browser, "get_note").await;
    browser.shows("#get_note .status", "200").await;
    browser.shows("#get_note pre", "onerror").await;

    open(&browser, "search_notes").await;
    browser.click("#search_notes form summary").await;
    browser.shows("#search_notes", "filter.updated_after").await;
    browser
        .run("document.querySelector('#search_notes textarea').value = JSON.stringify({query: \"a zebra's\"})")
        .await;
    send(&browser, "search_notes").await;
    browser.shows("#search_notes .status", "200").await;
    browser
        .shows("#search_notes .answer", &note.to_string())
        .await;
    // The command does the same.
    let command = "return document.querySelector('#search_notes .answer details pre').textContent";
    let command = browser.run(command).await;
    let ran = tokio::process::Command::new("sh")
        .args(["-c", command.as_str().unwrap()])
        .env("ELF_API_KEY", &secret)
        .output()
        .await
        .unwrap();
    let answered = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(answered.contains(&note.to_string()), "{answered}");

    // The body that the form begins with is one that every key may send.
    open(&browser, "add_notes").await;
    send(&browser, "add_notes").await;
    browser.shows("#add_notes .status", "201").await;
    open(&browser, "delete_note").await;
    browser
        .type_into("#delete_note [name='path.id']", "not a/note")
        .await;
    send(&browser, "delete_note").await;
    browser.shows("#delete_note .status", "40").await;
    assert_eq!(browser.run("return document.title").await, "ELF API");
    let parsed = "return document.querySelectorAll('#operations img').length";
    assert_eq!(browser.run(parsed).await, json!(0));

    let axe = axe();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        for (width, height) in [(360, 740), (1280, 900)] {
            browser.resize(width, height).await;
            browser.assert_accessible(axe.as_deref()).await;
        }
    }
    browser.assert_clean().await;
}
