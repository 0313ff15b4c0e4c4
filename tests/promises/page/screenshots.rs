//! The screenshots of the documentation.

use std::path::Path;

use serde_json::{Value, json};

use super::{import, set_token, sign_in};
use crate::support::application::Application;
use crate::support::browser::Browser;
use crate::support::embedding_server::Behaviour;
use crate::support::harness::Harness;
use crate::support::qdrant::Qdrant;

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
