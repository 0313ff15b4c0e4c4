//! Processes that die or stop, and servers that fail, while notes are written.

use std::collections::HashSet;
use std::future::poll_fn;
use std::task::Poll;

use elf::cli::wiring;
use elf::config::Config;
use rand::Rng;
use sqlx::{Connection, PgConnection, Row};
use uuid::Uuid;

use crate::support::application::Application;
use crate::support::articles::Articles;
use crate::support::database::TestDatabase;
use crate::support::harness::Harness;
use crate::support::own_postgres::OwnPostgres;
use crate::support::proxy::Proxy;
use crate::support::qdrant::Qdrant;
use crate::support::site::Site;
use crate::support::{DEADLINE, eventually};

/// Keeps done rows, so that the test can read their attempts.
fn keep_done(site: &Site) {
    let text = site.toml();
    site.write(
        "elf.toml",
        format!("{text}[outbox]\nretention_secs = 3600\n"),
    );
}

/// The texts that the worker sent in one life, each as often as it was sent. A life is one
/// run of the worker, from its start to its kill. Each life sends a header of its own, so
/// that a request which the server reads late is counted for the life that sent it.
pub fn embedded_in(site: &Site, life: usize) -> Vec<String> {
    let life = life.to_string();
    let requests = site.provider.request_log();
    let of_life = requests
        .into_iter()
        .filter(|request| request.headers.get("x-life").is_some_and(|l| l == &*life));
    of_life
        .flat_map(|request| request.texts)
        .filter(|text| text != elf::embed::PROBE)
        .collect()
}

pub fn begin_life(site: &Site, life: usize) {
    if life == 0 {
        site.configure(
            "model = \"test\"\n",
            "model = \"test\"\nheaders = { X-Life = \"0\" }\n",
        );
    } else {
        let (old, new) = (
            format!("X-Life = \"{}\"", life - 1),
            format!("X-Life = \"{life}\""),
        );
        site.configure(&old, &new);
    }
}

/// Kills a worker `kills` times, at random moments, while an application writes; also a command that runs beside it,
/// and Postgres, if it is the test's own.
///
/// For promise 5 this holds exactly: no life sends a text twice, and none sends a text
/// whose vector Postgres had before the life began. So a kill costs at most the vectors
/// in flight from the provider to Postgres. (A deleted note loses its vectors, and a
/// worker that has just read the row may ask for them again.)
async fn killed_again_and_again(site: Site, kills: usize, postgres: Option<&OwnPostgres>) {
    let mut articles = Articles::start(&site, &mut site.connect().await).await;
    let mut is_synced = true;
    let mut application = Application::of(&site.database).await;
    let mut known = HashSet::new();
    let mut texts = 0;
    let mut assert_pays_once = async |application: &mut Application, life: usize| {
        let sent = embedded_in(&site, life);
        texts += sent.len();
        let distinct: HashSet<String> = sent.iter().cloned().collect();
        assert_eq!(distinct.len(), sent.len(), "life {life} sent a text twice");
        let known_now = application.paid_for().await;
        let all_along: HashSet<String> = known.intersection(&known_now).cloned().collect();
        let again: Vec<&String> = distinct.intersection(&all_along).collect();
        assert_eq!(again, Vec::<&String>::new(), "life {life} paid again");
        known = known_now;
    };
    for life in 0..kills {
        begin_life(&site, life);
        let worker = site.worker();
        // Some die before they claim anything.
        if application.random.random_bool(0.8) {
            worker.says("worker started").await;
        }
        // Six claims of a note that are lost in a row would dead-letter it.
        if life % 4 == 3 {
            application.wait_until_drained(&[&worker]).await;
        }
        let beside: &[&str] = match application.random.random_range(0..4) {
            0 => {
                articles.edit(&site);
                is_synced = false;
                &["source", "apply"]
            }
            1 => {
                site.elf(&["source", "apply"]).await.exits(0);
                &["source", "sync"]
            }
            2 => &["rebuild"],
            _ => &["source", "list"],
        };
        let beside = site.begin(beside);
        for _ in 0..application.random.random_range(1..25) {
            application.change().await;
        }
        application.linger().await;
        if let Some(postgres) = postgres.filter(|_| application.random.random_bool(0.7)) {
            postgres.crash();
            application.connect(&site.database).await;
            for _ in 0..application.random.random_range(1..25) {
                application.change().await;
            }
        }
        beside.kill().await;
        let done = worker.kill().await;
        assert_eq!(done.code, None, "it ended by itself: {done:?}");
        application.wait_until_alone().await;
        assert_pays_once(&mut application, life).await;
        if !is_synced && application.random.random_bool(0.5) {
            articles.apply_and_sync(&site).await;
            is_synced = true;
        }
        if is_synced {
            articles.assert_followed(&mut application.db).await;
        }
        // Some leases still hold when the next worker starts.
        if application.random.random_bool(0.7) {
            application.expire_leases("").await;
        }
    }
    articles.apply_and_sync(&site).await;
    application.expire_leases("").await;
    begin_life(&site, kills);
    let done = site.elf(&["worker", "--once", "--json"]).await.exits(0);
    assert_eq!(done.json()["dead"], 0);
    application.wait_until_alone().await;
    assert_pays_once(&mut application, kills).await;
    assert_eq!(application.count("indexing_outbox").await, 0, "{done:?}");
    assert!(texts > kills, "hardly anything was embedded");
    articles.assert_followed(&mut application.db).await;
    let verified = site.json(&["verify", "--deep"]).await;
    for drift in ["missing", "stale", "orphaned"] {
        assert_eq!(verified["sources"][0][drift], 0, "{verified}");
    }
    site.elf(&["rebuild"]).await.exits(0);
    Harness::over(site).await.assert_converged().await;
}

#[tokio::test]
async fn killed_at_any_moment_it_converges_and_pays_once() {
    killed_again_and_again(Site::start().await, 15, None).await;
}

#[tokio::test]
async fn killed_at_any_moment_it_converges_on_a_server_too() {
    let Some(server) = Qdrant::start("killed_at_any_moment_it_converges_on_a_server_too").await
    else {
        return;
    };
    let site = Site::start().await;
    site.use_server(&server.url());
    killed_again_and_again(site, 8, None).await;
}

#[tokio::test]
async fn killed_with_its_postgres_it_converges_and_pays_once() {
    let Some(server) = OwnPostgres::start("killed_with_its_postgres_it_converges_and_pays_once")
    else {
        return;
    };
    let site = Site::with_database(TestDatabase::create_on(server.options(), "").await).await;
    site.elf(&["migrate"]).await.exits(0);
    killed_again_and_again(site, 8, Some(&server)).await;
}

#[tokio::test]
async fn a_qdrant_that_crashes_costs_no_attempts() {
    let Some(mut server) = Qdrant::start("a_qdrant_that_crashes_costs_no_attempts").await else {
        return;
    };
    let site = Site::start().await;
    site.use_server(&server.url());
    keep_done(&site);
    let mut application = Application::of(&site.database).await;
    let worker = site.worker();
    worker.says("worker started").await;
    for _ in 0..3 {
        let done = application
            .count("indexing_outbox where status = 'DONE'")
            .await;
        for _ in 0..60 {
            application.change().await;
        }
        application.wait_for_more_than(done).await;
        server.kill().await;
        for _ in 0..20 {
            application.change().await;
        }
        let admin = worker.admin().await;
        eventually(async || {
            let ready = reqwest::get(format!("{admin}/readyz")).await.unwrap();
            ready.status() == 503
        })
        .await;
        worker.says("claims paused").await;
        server.restart().await;
        eventually(async || {
            let ready = reqwest::get(format!("{admin}/readyz")).await.unwrap();
            ready.status() == 200
        })
        .await;
    }
    application.wait_until_drained(&[&worker]).await;
    application.assert_no_attempts().await;
    worker.stop().await.exits(0).says(&["paused", "resumed"]);
    Harness::over(site).await.assert_converged().await;
}

#[tokio::test]
async fn an_outage_of_postgres_costs_no_attempts() {
    let site = Site::start().await;
    let (host, port) = site.database.server();
    let line = Proxy::to(host, port).await;
    let (direct, through) = (site.database.url(), site.database.url_through(line.port()));
    site.configure(&direct, &through);
    keep_done(&site);
    let mut application = Application::of(&site.database).await;
    let worker = site.worker();
    let admin = worker.admin().await;
    worker.says("worker started").await;
    let is = async |status: u16| {
        eventually(async || {
            let ready = reqwest::get(format!("{admin}/readyz")).await.unwrap();
            ready.status() == status
        })
        .await;
    };
    for _ in 0..3 {
        let done = application
            .count("indexing_outbox where status = 'DONE'")
            .await;
        for _ in 0..60 {
            application.change().await;
        }
        application.wait_for_more_than(done).await;
        line.cut();
        for _ in 0..20 {
            application.change().await;
        }
        is(503).await;
        line.restore();
        is(200).await;
        // The leases that it could not release expire, and it claims their notes again.
        application.expire_leases("").await;
    }
    application.wait_until_drained(&[&worker]).await;
    application.assert_no_attempts().await;
    worker.stop().await.exits(0).says(&["paused", "resumed"]);
    site.configure(&through, &direct);
    Harness::over(site).await.assert_converged().await;
}

/// Two workers on one server. One is stopped for longer than its lease, at a random
/// moment, and resumes after the other one has indexed newer texts.
#[tokio::test]
async fn a_worker_that_sleeps_past_its_lease_makes_nothing_old() {
    let Some(server) = Qdrant::start("a_worker_that_sleeps_past_its_lease_makes_nothing_old").await
    else {
        return;
    };
    let site = Site::start().await;
    site.use_server(&server.url());
    keep_done(&site);
    let mut application = Application::of(&site.database).await;
    for _ in 0..40 {
        application.insert().await;
    }
    let (one, two) = (site.worker(), site.worker());
    one.says("worker started").await;
    two.says("worker started").await;
    for _ in 0..4 {
        for _ in 0..20 {
            application.change().await;
        }
        application.linger().await;
        one.signal("STOP").await;
        for _ in 0..20 {
            application.change().await;
        }
        let holder = format!(":{}:", one.pid());
        application.expire_leases(&holder).await;
        application.wait_until_drained(&[&two]).await;
        one.signal("CONT").await;
    }
    // Both finish their work in flight.
    one.stop().await.exits(0);
    application.wait_until_drained(&[&two]).await;
    two.stop().await.exits(0);
    // The notes that the late worker requeued when it noticed its lost leases.
    site.json(&["worker", "--once"]).await;
    application.assert_no_attempts().await;
    Harness::over(site).await.assert_converged().await;
}

/// A worker that is stopped inside a transaction holds locks on notes. Postgres ends the
/// transaction, so that an application can delete them and other workers can index them.
#[tokio::test]
async fn a_worker_that_sleeps_in_a_transaction_blocks_no_application_for_long() {
    let site = Site::start().await;
    let worker = site.worker();
    worker.says("worker started").await;
    let mut application = Application::of(&site.database).await;
    // `pg_locks` lists no row locks, but it lists the table lock that comes with them.
    let holds_notes = |condition: &str| {
        format!(
            "pg_stat_activity join pg_locks using (pid)
              where datname = current_database() and application_name = 'elf' and {condition}
                and relation = 'memory_notes'::regclass and mode = 'RowShareLock'"
        )
    };
    for _ in 0..10 {
        application.insert().await;
    }
    application.wait_until_drained(&[&worker]).await;
    // The worker is stopped between two statements of a commit: while it waits for the second one.
    let mut blocker = PgConnection::connect(&site.database.url()).await.unwrap();
    sqlx::raw_sql("begin; lock table note_embeddings in share mode")
        .execute(&mut blocker)
        .await
        .unwrap();
    application
        .execute("update memory_notes set text = text || '.'")
        .await;
    application
        .wait_until(&holds_notes("wait_event_type = 'Lock'"))
        .await;
    worker.signal("STOP").await;
    blocker.close().await.unwrap();
    application
        .wait_until(&holds_notes("state = 'idle in transaction'"))
        .await;
    let delete = application.execute("delete from memory_notes");
    tokio::time::timeout(DEADLINE, delete)
        .await
        .expect("the application can delete its notes");
    worker.signal("CONT").await;
    application.wait_until_drained(&[&worker]).await;
    worker.stop().await.exits(0);
    Harness::over(site).await.assert_converged().await;
}

/// A timeout or a lost lease drops a transaction wherever it is, even while it begins.
#[tokio::test]
async fn a_transaction_that_is_dropped_at_any_moment_is_rolled_back() {
    let site = Site::start().await;
    let toml = site.toml().replace(
        "[storage.postgres]",
        "[storage.postgres]\npool_max_conns = 10",
    );
    let config = Config::parse(&toml, "elf.toml", &|_| None).unwrap();
    let store = wiring::store(&config).await.unwrap();
    let mut dropped = 0;
    for polls in (0..10).cycle().take(200) {
        let mut left = polls;
        let mut work = Box::pin(store.live_texts(Uuid::nil(), 10, 1_000));
        let ended = poll_fn(|cx| match left {
            0 => Poll::Ready(false),
            _ => {
                left -= 1;
                work.as_mut().poll(cx).map(|texts| texts.is_ok())
            }
        });
        dropped += u32::from(!ended.await);
        drop(work);
        // The pool has four connections, and one of them was the transaction's.
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(store.pool().acquire().await.unwrap());
        }
        for connection in &mut all {
            // As one message: each message of a prepared statement has a time of its own.
            let row = sqlx::raw_sql("select now() = statement_timestamp()")
                .fetch_one(&mut **connection)
                .await
                .unwrap();
            assert!(row.get::<bool, _>(0), "dropped after {polls} polls");
        }
    }
    assert!((20..200).contains(&dropped), "{dropped}");
}
