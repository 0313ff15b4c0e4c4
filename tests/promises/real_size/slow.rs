//! Tests that take minutes, for `make test-slow`, with the program as it is shipped.

use std::time::{Duration, Instant};

use rand::Rng;

use super::NOTES;
use crate::support::application::Application;
use crate::support::articles::Articles;
use crate::support::site::Running;
use crate::support::town::Town;

/// Kills of workers, of connections, of rebuilds, of changes of a source and, where there is a server, of Qdrant, for
/// `ELF_CHAOS_SECS` (four minutes), while notes and rows are written. Promises 1 to 3, 7 to 9 and 16.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn minutes_of_kills_under_writes_lose_nothing() {
    let mut town = Town::start("minutes_of_kills_under_writes").await;
    let seconds = std::env::var("ELF_CHAOS_SECS").map_or(240, |secs| secs.parse().unwrap());
    town.load(NOTES).await;
    let mut articles = Articles::start(&town.site, &mut town.db).await;
    let seed = town.random.random();
    let mut application = Application::named("", &town.site.database, seed, 20).await;
    // The engine in the process allows only one worker.
    let workers = if town.server.is_some() { 2 } else { 1 };
    let mut running: Vec<Running> = (0..workers).map(|_| town.site.worker()).collect();
    let (mut kills, mut outages, mut cuts, mut interrupted) = (0, 0, 0, 0);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        let writes = town.random.random_range(1..60);
        town.churn(writes).await;
        let beside: Option<&[&str]> = match town.random.random_range(0..8) {
            0 => {
                articles.edit(&town.site);
                Some(&["source", "apply"])
            }
            1 => Some(&["source", "sync"]),
            2 => Some(&["rebuild"]),
            _ => None,
        };
        let beside = beside.map(|args| town.site.begin(args));
        for _ in 0..writes {
            application.change().await;
        }
        if town.count("memory_notes").await < NOTES as i64 {
            town.load(200).await;
        }
        match town.random.random_range(0..4) {
            0 => {
                let victim = town.random.random_range(0..running.len());
                running.swap_remove(victim).kill().await;
                running.push(town.site.worker());
                kills += 1;
            }
            1 => {
                town.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity
                      where datname = current_database() and application_name = 'elf' and random() < 0.5",
                )
                .await;
                cuts += 1;
            }
            2 => {
                if let Some(server) = &mut town.server {
                    server.kill().await;
                    server.restart().await;
                    outages += 1;
                }
            }
            _ => town.wait_for_progress(100).await,
        }
        if let Some(beside) = beside {
            beside.kill().await;
            interrupted += 1;
        }
        town.expire_leases().await;
    }
    articles.apply_and_sync(&town.site).await;
    println!(
        "{kills} workers, {interrupted} commands, {outages} Qdrants and {cuts} times connections were killed"
    );
    town.wait_until_drained(&running[0]).await;
    for worker in running {
        worker.stop().await.exits(0);
    }
    // The notes that a late worker requeued when it noticed its lost leases.
    town.site.json(&["worker", "--once"]).await;
    articles.assert_followed(&mut town.db).await;
    town.compare().await.assert_none();
}

/// The first bulk load of a daemon that has been idle on an almost empty database.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn a_bulk_load_into_a_running_daemon_takes_no_longer_than_a_drain() {
    const BULK: usize = 20_000;
    let texts: Vec<String> = (0..BULK)
        .map(|i| format!("Bulk note {i} of many."))
        .collect();

    let mut once = Town::start("a_bulk_load_by_worker_once").await;
    once.write(&texts).await;
    let began = Instant::now();
    once.site.json(&["worker", "--once"]).await;
    let drained = began.elapsed();

    let mut town = Town::start("a_bulk_load_into_a_running_daemon").await;
    town.load(20).await;
    let worker = town.site.worker();
    town.wait_until_drained(&worker).await;
    town.write(&texts).await;
    let began = Instant::now();
    town.wait_for_progress(1).await;
    let first = began.elapsed();
    town.wait_until_drained(&worker).await;
    let loaded = began.elapsed();
    println!("{BULK} notes: --once {drained:.1?}, daemon {loaded:.1?}, its first note {first:.1?}");
    worker.stop().await.exits(0);
    town.compare().await.assert_none();
    assert!(
        first < Duration::from_secs(5),
        "the first note took {first:?}"
    );
    assert!(
        loaded < drained * 2,
        "the daemon took {loaded:?}, a drain {drained:?}"
    );
}

/// Promise 10: equal texts cost no more each when there are more of them.
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn ten_thousand_equal_texts_are_linear() {
    let mut took = Vec::new();
    let mut town = Town::start("ten_thousand_equal_texts").await;
    for count in [2_000, 10_000, 10_000, 10_000] {
        town.write(&vec!["ok, thanks".to_owned(); count]).await;
        let began = Instant::now();
        town.site.json(&["worker", "--once"]).await;
        took.push(began.elapsed());
    }
    println!("2,000 and three times 10,000 equal texts: {took:.1?}");
    assert_eq!(town.site.provider.texts_seen(), ["ok, thanks"]);
    town.compare().await.assert_none();
    assert!(
        took[3] < took[1] * 2,
        "each costs more than the one before: {took:?}"
    );
}

/// Promise 10: a daemon's memory does not grow with the backlog.
#[cfg(target_os = "linux")]
#[tokio::test]
#[ignore = "slow: make test-slow"]
async fn the_memory_of_a_daemon_does_not_grow_with_its_backlog() {
    let mut town = Town::start("the_memory_of_a_daemon").await;
    let worker = town.site.worker();
    let mut peaks = Vec::new();
    for count in [2 * NOTES, 2 * NOTES, 8 * NOTES] {
        town.load(count).await;
        town.wait_until_drained(&worker).await;
        peaks.push(peak_mebibytes(&worker));
    }
    let long = "The log of the station goes on and on, in one line. ".repeat(200_000);
    town.write(&[long]).await;
    town.wait_until_drained(&worker).await;
    println!(
        "peaks of MiB after 5, 10 and 30 thousand notes: {peaks:?}; with 10 MB in one note: {}",
        peak_mebibytes(&worker)
    );
    worker.stop().await.exits(0);
    let is_embedded = town.server.is_none();
    town.compare().await.assert_none();
    // The engine in the process holds the index itself in memory.
    if !is_embedded {
        assert!(
            peaks[2] < peaks[1] + 64,
            "it grows with the backlog: {peaks:?}"
        );
    }
}

#[cfg(target_os = "linux")]
fn peak_mebibytes(worker: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", worker.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kibibytes = line.split_whitespace().nth(1).unwrap();
    kibibytes.parse::<u64>().unwrap() / 1024
}
