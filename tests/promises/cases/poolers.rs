//! What connection poolers answer.

use std::sync::Arc;

use elf::rebuild;
use elf::serving::Serving;
use elf::store::Store;
use futures::future::join_all;
use reqwest::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Case;
use crate::support::api::{ask, key, url};
use crate::support::eventually;
use crate::support::harness::{Harness, sentences};
use crate::support::hooked::{Hooked, Verb, When};
use crate::support::pooler::Pooler;
use crate::support::site::Site;

/// Supavisor says XX000 where a PgBouncer says 53300.
pub async fn a_full_pooler_is_waited_for(case: Case) {
    let error = case.text("startup-error.txt");
    let (_, error) = error.trim().split_once("FATAL ").unwrap();
    let (sqlstate, message) = error.split_once(' ').unwrap();
    for sqlstate in [sqlstate, "53300"] {
        commands_wait(sqlstate, message).await;
        a_rebuild_goes_on(sqlstate, message).await;
    }
}

async fn commands_wait(sqlstate: &str, message: &str) {
    let site = Site::start().await;
    site.configure("[service]\n", "[service]\nhttp_bind = \"127.0.0.1:0\"\n");
    let secret = key(&site, &["--tenant", "t", "--write"]).await;
    let pooler = Pooler::to(site.database.server()).await;
    site.configure(
        &site.database.url(),
        &site.database.url_through(pooler.port()),
    );
    pooler.refuse(sqlstate, message);
    let worker = site.worker();
    let commands: [&[&str]; 9] = [
        &["status"],
        &["search", "rain"],
        &["verify"],
        &["rebuild"],
        &["migrate"],
        &["enqueue", "--where-tenant", "t"],
        &["dead", "list"],
        &["key", "list"],
        &["reindex"],
    ];
    let site = &site;
    let ends = commands.map(|args| async move {
        let done = site.elf(args).await.says(&[message]);
        assert_eq!(done.code, Some(1), "{args:?}: {done:?}");
    });
    join_all(ends).await;
    assert!(worker.says("waiting to start").await.contains(message));
    pooler.pass();
    let url = url(&worker).await;

    pooler.refuse(sqlstate, message);
    let query = json!({"query": "rain"});
    let search = ask(&url, Method::POST, "/v2/searches", &secret, Some(query)).await;
    search.is_error(503, "unavailable");
    worker.says("claims paused").await;
    site.note("written by an application that has its connection")
        .await;
    pooler.pass();
    let mut db = site.connect().await;
    let waiting = "select count(*) from indexing_outbox";
    while sqlx::query_scalar::<_, i64>(waiting)
        .fetch_one(&mut db)
        .await
        .unwrap()
        > 0
    {
        tokio::task::yield_now().await;
    }
    worker.stop().await.exits(0);
}

async fn a_rebuild_goes_on(sqlstate: &str, message: &str) {
    let h = Harness::start().await;
    for about in ["rain", "snow", "fog"] {
        h.insert(&sentences(12, about)).await;
    }
    h.drain().await;
    let pooler = Pooler::to(h.database.server()).await;
    let store = Store::connect(&h.database.url_through(pooler.port()), 5).await;
    let index = Hooked::over(&h.pipeline.serving.index);
    let writes = index.halt(When::Before, Verb::Upsert);
    let serving = Serving {
        store: store.unwrap(),
        ..h.rebuilds_with(index)
    };
    let options = rebuild::Options {
        swap_last: false,
        take_alias: false,
        keep_old: false,
        restart: false,
        notice: Arc::new(|_| {}),
    };
    let rebuilding = rebuild::run(&serving, &options, Arc::default(), CancellationToken::new());
    let test = async {
        writes.reached_by(1).await;
        pooler.refuse(sqlstate, message);
        writes.open();
        eventually(async || pooler.refused() > 2).await;
        pooler.pass();
    };
    let (report, ()) = tokio::join!(rebuilding, test);
    assert_eq!(
        report.unwrap().points as i64,
        h.count("memory_note_chunks").await
    );
    h.assert_exact().await;
}
