//! Narrow screens, both colours, the keyboard and screen readers.

use serde_json::json;

use super::{set_token, sign_in, worker_with_dead};
use crate::support::browser::{Browser, ESCAPE, TAB, axe};
use crate::support::embedding_server::Behaviour;
use crate::support::site::Site;

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
    browser.assert_accessible(axe.as_deref()).await;
    sign_in(&browser, &admin).await;
    browser.shows("#dead-count", "showing 10 of 60").await;
    browser.assert_accessible(axe.as_deref()).await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        for (width, height) in [(360, 740), (768, 1024), (1280, 900)] {
            browser.resize(width, height).await;
            browser.assert_accessible(axe.as_deref()).await;
        }
    }
    browser.click(".letter .row button").await;
    browser.assert_accessible(axe.as_deref()).await;
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

    // Checked at one size: every size would take minutes, and fifty letters look like ten.
    browser.click("#show-more").await;
    browser.shows("#dead-count", "showing 50 of 60").await;
    browser
        .shows("#dead-rest", "elf dead list --limit 60")
        .await;
    browser.assert_accessible(axe.as_deref()).await;
    browser.assert_clean().await;
}
