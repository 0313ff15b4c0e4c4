//! The screenshots of the documentation.

use std::path::Path;

use serde_json::Value;

use super::{set_token, sign_in};
use crate::search_page::site_with_model;
use crate::support::application::Application;
use crate::support::browser::Browser;

/// Takes the screenshot of the admin page in docs/screenshots: `make screenshots`.
#[tokio::test]
#[ignore = "it checks nothing and takes minutes: make screenshots"]
async fn screenshots() {
    let Some(browser) = Browser::start("screenshots").await else {
        panic!("there is no browser");
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let site = site_with_model().await;
    set_token(&site);
    let worker = site.worker();
    let admin = worker.admin().await;
    let notes = root.join("examples/notes");
    site.elf(&["import", notes.to_str().unwrap()])
        .await
        .exits(0);
    // An application edits its notes in waves until the charts have data.
    let mut application = Application::of(&site.database).await;
    browser.resize(1280, 860).await;
    browser.prefer("light").await;
    sign_in(&browser, &admin).await;
    let samples = "fetch('api/status', {headers: {authorization: `Bearer ${sessionStorage.getItem('elf-admin-token')}`}})
                       .then((answer) => answer.json()).then((status) => done(status.history.samples.length))";
    for wave in 0.. {
        let notes = [4, 30, 9, 60, 1][wave % 5];
        let edit = format!(
            "update memory_notes set text = text || ' Read again on day {wave}.', updated_at = now()
              where note_id in (select note_id from memory_notes order by random() limit {notes})"
        );
        application.execute(&edit).await;
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
    browser
        .screenshot(&root.join("docs/screenshots/admin.png"), false)
        .await;
}
