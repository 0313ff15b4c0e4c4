//! What concerns only the engine in this process: its folder, and the end of its
//! process.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use elf::index::{Filter, IndexError, Point, UpsertMode, connect};

use crate::qdrant_server;
use crate::setup::{
    assert_same_direction, block_on, by_meaning, direction, id, point, query, settings, spec,
};

pub fn at(dir: &Path) -> elf::config::Qdrant {
    settings(&format!("embedded:{}", dir.display()))
}

#[test]
fn a_folder_keeps_everything_when_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let points: Vec<_> = (0..50)
            .map(|n| point(n, direction(n), "some words"))
            .collect();
        let before = {
            let index = connect(&at(dir.path())).await.unwrap();
            index.create_collection("notes__1", &spec()).await.unwrap();
            index.create_collection("notes__2", &spec()).await.unwrap();
            index.point_alias("notes", "notes__1").await.unwrap();
            index
                .upsert("notes", &points, UpsertMode::NotNewer)
                .await
                .unwrap();
            index.drop_collection("notes__2").await.unwrap();
            index.scroll("notes", None, 100, true).await.unwrap()
        };
        let index = connect(&at(dir.path())).await.unwrap();
        assert_eq!(
            index.resolve("notes").await.unwrap().as_deref(),
            Some("notes__1")
        );
        assert_eq!(index.collection("notes__2").await.unwrap(), None);
        assert_eq!(
            index.collection("notes").await.unwrap().unwrap().spec,
            Some(spec())
        );
        assert_eq!(
            index.scroll("notes", None, 100, true).await.unwrap(),
            before
        );
        let hits = index
            .search("notes", &query(direction(7), "words"))
            .await
            .unwrap();
        assert_eq!(by_meaning(&hits)[0], id(7));
        // Versions continue where they were: an update is not taken for an old one.
        index
            .upsert(
                "notes",
                &[point(7, direction(8), "new")],
                UpsertMode::NotNewer,
            )
            .await
            .unwrap();
        let after = index.scroll("notes", None, 100, true).await.unwrap();
        let seven = after.iter().find(|point| point.chunk_id == id(7)).unwrap();
        assert_same_direction(seven.vector.as_ref().unwrap(), &direction(8));
    });
}

#[test]
fn folders_that_a_crash_left_half_made_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let collections = dir.path().join("collections");
    for half in [".new-notes__1/shard/wal", ".dropped-notes__0/shard"] {
        std::fs::create_dir_all(collections.join(half)).unwrap();
    }
    std::fs::write(dir.path().join("aliases.draft"), "{").unwrap();
    block_on(async {
        let index = connect(&at(dir.path())).await.unwrap();
        index.create_collection("notes__1", &spec()).await.unwrap();
        let names: Vec<_> = std::fs::read_dir(&collections)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["notes__1"]);
    });
}

#[test]
fn a_broken_collection_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("collections/notes__1");
    std::fs::create_dir_all(&broken).unwrap();
    let error = block_on(connect(&at(dir.path())))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("notes__1") && error.contains("elf rebuild"),
        "{error}"
    );
}

/// After the steps that the message above asks for, a rebuild can start on the folder.
#[test]
fn a_collection_that_was_moved_elsewhere_takes_its_alias_along() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        {
            let index = connect(&at(dir.path())).await.unwrap();
            for (name, alias) in [("notes__1", "notes"), ("others__1", "others")] {
                index.create_collection(name, &spec()).await.unwrap();
                index.point_alias(alias, name).await.unwrap();
            }
        }
        let collections = dir.path().join("collections");
        std::fs::rename(collections.join("notes__1"), dir.path().join("broken")).unwrap();
        let index = connect(&at(dir.path())).await.unwrap();
        assert_eq!(index.resolve("notes").await.unwrap(), None);
        assert_eq!(
            index.resolve("others").await.unwrap().as_deref(),
            Some("others__1")
        );
    });
}

/// A child process holds every lock of its parent from the fork until it executes its program.
#[test]
fn collections_are_made_while_the_process_starts_others() {
    let dir = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    Command::new("true").status().unwrap();
                }
            });
        }
        let made = block_on(async {
            let index = connect(&at(dir.path())).await.unwrap();
            let mut made = Ok(());
            for i in 0..40 {
                made = made.and(
                    index
                        .create_collection(&format!("notes__{i}"), &spec())
                        .await,
                );
            }
            made
        });
        done.store(true, Ordering::Relaxed);
        made.unwrap();
    });
}

#[test]
fn a_name_that_is_no_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let index = connect(&at(dir.path())).await.unwrap();
        for name in ["", "../up", ".hidden", "a/b", "ü"] {
            let error = index.create_collection(name, &spec()).await.unwrap_err();
            assert!(
                matches!(error, IndexError::Denied { .. }),
                "{name:?}: {error:?}"
            );
        }
    });
}

/// Both engines turn the same texts into the same ranking.
#[test]
fn bm25_ranks_as_a_server_does() {
    let Some(url) = qdrant_server::url() else {
        return;
    };
    let texts = [
        "The pump was repaired; the pump runs, the pump hums.",
        "A pump, once.",
        "Pumping water uphill takes a pump, a hose, patience, and a great deal of power all day long.",
        "Überraschung: naïve café pumps — 東京の水",
        "no such thing here",
        "E-mail pump@example.org about part no. 4711/b.",
    ];
    let dir = tempfile::tempdir().unwrap();
    let name = format!("elf_contract_{}", uuid::Uuid::new_v4().simple());
    block_on(async {
        let mut of_engines = Vec::new();
        for settings in [at(dir.path()), settings(url)] {
            let index = connect(&settings).await.unwrap();
            index.create_collection(&name, &spec()).await.unwrap();
            let mut points = Vec::new();
            for (n, text) in texts.iter().enumerate() {
                points.push(point(n as u64, [1.0, n as f32, 0.0, 0.0], text));
            }
            index
                .upsert(&name, &points, UpsertMode::NotNewer)
                .await
                .unwrap();
            let mut rankings = Vec::new();
            for words in [
                "pump",
                "pump water",
                "café",
                "4711",
                "東京の水",
                "example.org power",
            ] {
                let hits = index
                    .search(&name, &query([1.0, 0.0, 0.0, 0.0], words))
                    .await
                    .unwrap();
                rankings.push((words, hits));
            }
            index.drop_collection(&name).await.unwrap();
            of_engines.push(rankings);
        }
        assert_eq!(of_engines[0], of_engines[1]);
    });
}

/// Writes point after point in a child process and kills it in the middle: before
/// the engine has flushed anything, soon after its first flush, and later.
#[test]
fn confirmed_writes_survive_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let mut answered = BTreeSet::<u64>::new();
    for answers in [3, 90, 170] {
        let from = answered.last().map_or(0, |n| n + 1);
        answered.extend(answers_until_killed(dir.path(), from, answers));
    }
    assert!(answered.len() >= 3 + 90 + 170);

    block_on(async {
        let index = connect(&at(dir.path())).await.unwrap();
        let stored = index.scroll("notes", None, 1000, true).await.unwrap();
        for &n in &answered {
            let found = stored.iter().find(|point| point.chunk_id == id(n));
            let found = found.unwrap_or_else(|| panic!("point {n} was answered and is gone"));
            assert_same_direction(found.vector.as_ref().unwrap(), &direction(n));
            assert!(
                found.payload == bulky(n).payload.to_json(),
                "point {n} has another payload"
            );
            let hits = index
                .search("notes", &query(direction(n), &bulky(n).text))
                .await
                .unwrap();
            assert_eq!(by_meaning(&hits)[0], id(n));
        }
        // And it can be written to.
        index
            .upsert("notes", &[bulky(0)], UpsertMode::NotNewer)
            .await
            .unwrap();
    });
}

/// The points, from `from` on, whose writes were confirmed to a child process. It is killed
/// after `answers` confirmations.
fn answers_until_killed(dir: &Path, from: u64, answers: usize) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "embedded_only::child_that_writes",
            "--ignored",
            "--nocapture",
        ])
        .env("ELF_TEST_CHILD_DIR", dir)
        .env("ELF_TEST_CHILD_FROM", from.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answered = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        answered.extend(
            line.strip_prefix("answered ")
                .map(|n| n.parse::<u64>().unwrap()),
        );
        if answered.len() == answers {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    answered
}

/// Point `n` with 200 KB of payload: eighty of them and the engine flushes.
fn bulky(n: u64) -> Point {
    let mut bulky = point(n, direction(n), &format!("word{n}"));
    bulky.payload.note.embedding_version = format!("{n} ").repeat(200_000 / format!("{n} ").len());
    bulky
}

#[test]
#[ignore = "the child of confirmed_writes_survive_kill_9"]
fn child_that_writes() {
    let Some(dir) = std::env::var_os("ELF_TEST_CHILD_DIR") else {
        return;
    };
    let from: u64 = std::env::var("ELF_TEST_CHILD_FROM")
        .unwrap()
        .parse()
        .unwrap();
    block_on(async {
        let index = connect(&at(Path::new(&dir))).await.unwrap();
        index.create_collection("notes", &spec()).await.unwrap();
        let write = async |start: u64| {
            for n in (start..).step_by(3) {
                index
                    .upsert("notes", &[bulky(n)], UpsertMode::NotNewer)
                    .await
                    .unwrap();
                println!("answered {n}");
            }
        };
        // Three at once, so that some share a sync.
        futures::join!(write(from), write(from + 1), write(from + 2));
    });
}

/// The engine's log keeps its end, and versions continue from there.
#[test]
fn the_engines_log_is_trimmed_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("collections/notes/shard/wal");
    let full_segments = || {
        let names = std::fs::read_dir(&log).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("closed-")).count()
    };
    block_on(async {
        let mut written = 0;
        for round in 0..3 {
            let index = connect(&at(dir.path())).await.unwrap();
            index.create_collection("notes", &spec()).await.unwrap();
            assert!(round == 0 || full_segments() == 1);
            while round == 0 && full_segments() < 3 || written < 3 * (round + 1) {
                let points = (0..50).map(|_| {
                    written += 1;
                    bulky(written)
                });
                index
                    .upsert("notes", &points.collect::<Vec<_>>(), UpsertMode::NotNewer)
                    .await
                    .unwrap();
            }
            index
                .upsert("notes", &[bulky(1)], UpsertMode::NotNewer)
                .await
                .unwrap();
            let count = index.count("notes", &Filter::default()).await.unwrap();
            assert_eq!(count, written, "an update was ignored");
        }
    });
}
