//! One folder, several processes: the one that has it open answers the others.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use elf::index::{Filter, IndexError, UpsertMode, VectorIndex, connect, connect_to_search};

use crate::embedded_only::at;
use crate::setup::{block_on, direction, id, point, query, spec};

/// Another process that has a folder open. It is killed when this is dropped.
struct Holder {
    child: Child,
    /// It writes a last line when it ends.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Waits until it has the folder open.
    fn start(dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::child_that_holds_a_folder",
                "--ignored",
                "--nocapture",
            ])
            .env("ELF_TEST_CHILD_DIR", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("holding")));
        Self {
            child,
            _stdout: lines,
        }
    }

    fn name(&self) -> String {
        format!("process {}", self.child.id())
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -s {name} {}", self.child.id());
        let done = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(done.success());
    }

    /// Stops it. One thread after the other stops.
    fn stop(&self) {
        self.signal("STOP");
        let is_stopped = || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            tasks.into_iter().all(|task| {
                let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
                stat.rsplit_once(") ").unwrap().1.starts_with('T')
            })
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
    }

    /// Lets it end as a process does that has nothing more to do.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the child of the other tests"]
fn child_that_holds_a_folder() {
    let Some(dir) = std::env::var_os("ELF_TEST_CHILD_DIR") else {
        return;
    };
    block_on(async {
        let index = connect(&at(Path::new(&dir))).await.unwrap();
        index.create_collection("notes", &spec()).await.unwrap();
        println!("holding {}", index.describe());
        let wait = || std::io::stdin().read_line(&mut String::new());
        tokio::task::spawn_blocking(wait).await.unwrap().unwrap();
    });
}

async fn count(index: &dyn VectorIndex) -> u64 {
    index.count("notes", &Filter::default()).await.unwrap()
}

async fn write(index: &dyn VectorIndex, n: u64) -> Result<(), IndexError> {
    let point = point(n, direction(n), "some words");
    index.upsert("notes", &[point], UpsertMode::NotNewer).await
}

#[track_caller]
fn assert_unavailable(error: &IndexError, words: &[&str]) {
    assert!(matches!(error, IndexError::Unavailable { .. }), "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?}: {error}");
    }
}

#[test]
fn a_process_asks_the_one_that_has_the_folder_and_opens_it_when_that_one_ends() {
    let dir = tempfile::tempdir().unwrap();
    let holder = Holder::start(dir.path());
    block_on(async {
        let roundabout = dir.path().join("collections/..");
        let index = connect(&at(&roundabout)).await.unwrap();
        let told = index.describe();
        assert!(told.contains(&holder.name()), "{told}");
        assert!(!told.contains("/.."), "{told}");
        write(&*index, 1).await.unwrap();
        let place = index.place();

        holder.end();
        write(&*index, 2).await.unwrap();
        assert_eq!(count(&*index).await, 2);
        assert!(
            !index.describe().contains("open in"),
            "{}",
            index.describe()
        );
        assert_eq!(index.place(), place);

        let third = connect(&at(dir.path())).await.unwrap();
        assert!(third.describe().contains("open in"), "{}", third.describe());
        assert_eq!(count(&*third).await, 2);
        drop(index);
        write(&*third, 3).await.unwrap();
        assert_eq!(count(&*third).await, 3);
    });
}

#[test]
fn the_next_process_carries_out_what_a_killed_one_did_not() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = 0;
    for _ in 0..3 {
        let mut holder = Holder::start(dir.path());
        block_on(async {
            let index = &*connect(&at(dir.path())).await.unwrap();
            assert!(index.describe().contains(&holder.name()));
            let from = written;
            // Eight at once, of which one kills the holder halfway.
            let writers = (0..8).map(|writer| {
                let kill = (writer == 0).then(|| holder.child.id());
                async move {
                    for n in (from + writer..from + 80).step_by(8) {
                        write(index, n).await.unwrap();
                        if let Some(pid) = kill.filter(|_| n == from + 32) {
                            let kill = format!("kill -9 {pid}");
                            let kill = Command::new("sh").args(["-c", &kill]).status();
                            assert!(kill.unwrap().success());
                        }
                    }
                }
            });
            futures::future::join_all(writers).await;
            written += 80;
            assert_eq!(count(index).await, written);
            assert!(!index.describe().contains("open in"));
        });
        holder.child.wait().unwrap();
    }
}

/// Each round, the one that has the folder ends while all others ask for it.
#[test]
fn of_many_processes_that_end_one_after_the_other_none_fails() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let mut all = Vec::new();
        for _ in 0..6 {
            all.push(connect(&at(dir.path())).await.unwrap());
        }
        all[0].create_collection("notes", &spec()).await.unwrap();
        let mut n = 0;
        while !all.is_empty() {
            let holds = |index: &&dyn VectorIndex| !index.describe().contains("open in");
            assert_eq!(all.iter().map(|index| &**index).filter(holds).count(), 1);
            let writers = all.iter().enumerate().map(|(i, index)| {
                let (index, from) = (index.clone(), n + 100 * i as u64);
                tokio::spawn(async move {
                    for n in from..from + 20 {
                        write(&*index, n).await.unwrap();
                    }
                })
            });
            let writers: Vec<_> = writers.collect();
            all.retain(|index| index.describe().contains("open in"));
            for writer in writers {
                writer.await.unwrap();
            }
            if let Some(index) = all.first() {
                // Whoever has it now, all see all points.
                let points = count(&**index).await;
                for index in &all {
                    assert_eq!(count(&**index).await, points);
                }
            }
            n += 1000;
        }
        let index = connect(&at(dir.path())).await.unwrap();
        assert_eq!(
            count(&*index).await,
            (1..=6).map(|all| all * 20).sum::<u64>()
        );
    });
}

#[test]
fn errors_are_the_same_as_in_the_process_itself() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let here = connect(&at(dir.path())).await.unwrap();
        let there = connect(&at(dir.path())).await.unwrap();
        here.create_collection("notes", &spec()).await.unwrap();
        let mut wide = query(direction(1), "words");
        wide.vector = Some(vec![1.0; 5]);
        for (asked, wanted) in [("nowhere", "NotFound"), ("notes", "Denied")] {
            let errors = [&here, &there].map(async |index| {
                let error = index.search(asked, &wide).await.unwrap_err();
                (format!("{error:?}"), error.class())
            });
            let [here, there] = errors;
            let (here, there) = (here.await, there.await);
            assert_eq!(here, there);
            assert!(here.0.starts_with(wanted), "{here:?}");
        }
    });
}

#[test]
fn a_stopped_process_is_named_and_asked_again_when_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let holder = Holder::start(dir.path());
    let mut settings = at(dir.path());
    settings.timeout_ms = 300;
    block_on(async {
        let index = connect(&settings).await.unwrap();
        holder.stop();
        let error = write(&*index, 1).await.unwrap_err();
        assert_unavailable(&error, &[&holder.name(), "stopped"]);
        let error = connect(&settings).await.err().unwrap();
        assert_unavailable(&error, &[&holder.name(), "stopped"]);
        let searching = connect_to_search(&settings).await.unwrap();

        holder.signal("CONT");
        write(&*index, 2).await.unwrap();
        let query = query(direction(2), "words");
        let hits = searching.search("notes", &query).await.unwrap();
        assert_eq!(hits.len() as u64, count(&*index).await);
    });
}

#[test]
fn a_process_that_has_the_folder_and_does_not_listen_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let lock = File::create(dir.path().join("lock")).unwrap();
    lock.try_lock().unwrap();
    writeln!(&lock, "process 4711 (elf)").unwrap();
    let mut settings = at(dir.path());
    settings.timeout_ms = 200;
    block_on(async {
        let error = connect(&settings).await.err().unwrap();
        assert_unavailable(&error, &["process 4711 (elf)", "stop it"]);
        let index = connect_to_search(&settings).await.unwrap();
        assert_unavailable(&index.resolve("notes").await.unwrap_err(), &["4711"]);
        lock.unlock().unwrap();
        assert_eq!(index.resolve("notes").await.unwrap(), None);
    });
}

/// Any version must be able to read the greeting of any other.
#[test]
fn a_process_of_another_version_is_not_asked() {
    let dir = tempfile::tempdir().unwrap();
    let lock = File::create(dir.path().join("lock")).unwrap();
    lock.try_lock().unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let old = std::thread::spawn(move || {
        let greeting = b"\x82\xa7version\xa50.0.1\xa7process\xb2process 4711 (elf)";
        let (mut client, _) = listener.accept().unwrap();
        let length = u32::try_from(greeting.len()).unwrap();
        client.write_all(&length.to_be_bytes()).unwrap();
        client.write_all(greeting).unwrap();
    });
    let error = block_on(connect(&at(dir.path()))).err().unwrap();
    assert_unavailable(&error, &["process 4711 (elf)", "0.0.1", "same version"]);
    old.join().unwrap();
}

/// A process that works on a request says so, and may take longer than the limit.
#[test]
fn a_slow_answer_of_a_process_that_lives_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let lock = File::create(dir.path().join("lock")).unwrap();
    lock.try_lock().unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let slow = std::thread::spawn(move || {
        let version = env!("CARGO_PKG_VERSION");
        let mut greeting = b"\x82\xa7version".to_vec();
        greeting.push(0xa0 | version.len() as u8);
        greeting.extend(version.as_bytes());
        greeting.extend(b"\xa7process\xb2process 4711 (elf)");
        let send = |client: &mut UnixStream, frame: &[u8]| {
            let length = u32::try_from(frame.len()).unwrap();
            client.write_all(&length.to_be_bytes()).unwrap();
            client.write_all(frame).unwrap();
        };
        // The first connection asks who is here.
        for _ in 0..2 {
            let (mut client, _) = listener.accept().unwrap();
            send(&mut client, &greeting);
            if client.read(&mut [0; 4096]).unwrap() == 0 {
                continue;
            }
            for _ in 0..10 {
                std::thread::sleep(std::time::Duration::from_millis(100));
                send(&mut client, b"");
            }
            send(&mut client, b"\x81\xa2Ok\x81\xa6Number\x07");
        }
    });
    let mut settings = at(dir.path());
    settings.timeout_ms = 500;
    block_on(async {
        let index = connect(&settings).await.unwrap();
        assert_eq!(count(&*index).await, 7);
    });
    slow.join().unwrap();
}

#[test]
fn clients_that_send_nonsense_or_nothing_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let holder = connect(&at(dir.path())).await.unwrap();
        holder.create_collection("notes", &spec()).await.unwrap();
        let socket = dir.path().join("socket");
        let broken = |sent: &[u8]| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            stream.write_all(sent).unwrap();
            stream
        };
        let mut streams = vec![
            broken(b"\xff\xff\xff\xffnonsense"),
            broken(b"\0\0\0\x08nonsense"),
            broken(b"\0\0\xff\xffthe end is missing"),
        ];
        // More than it has places for.
        streams.extend((0..70).map(|_| broken(b"")));
        let index = connect(&at(dir.path())).await.unwrap();
        write(&*index, 1).await.unwrap();
        assert_eq!(count(&*index).await, 1);
        // None of them keeps the folder open.
        drop((index, holder));
        let next = connect(&at(dir.path())).await.unwrap();
        assert_eq!(count(&*next).await, 1);
        assert!(!next.describe().contains("open in"), "{}", next.describe());
        drop(streams);
    });
}

#[test]
fn many_requests_of_several_processes_at_once_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let _holder = Holder::start(dir.path());
    block_on(async {
        let mut asking = Vec::new();
        for _ in 0..4 {
            let index = connect(&at(dir.path())).await.unwrap();
            asking.extend((0..300).map(|_| {
                let index = index.clone();
                tokio::spawn(async move { count(&*index).await })
            }));
        }
        for asked in asking {
            assert_eq!(asked.await.unwrap(), 0);
        }
    });
}

#[test]
fn a_folder_whose_path_is_too_long_for_an_address_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let deep: PathBuf = dir.path().join("long/".repeat(60));
    let holder = Holder::start(&deep);
    block_on(async {
        let index = connect(&at(&deep)).await.unwrap();
        assert!(index.describe().contains(&holder.name()));
        write(&*index, 1).await.unwrap();
        holder.end();
        write(&*index, 2).await.unwrap();
        let other = connect(&at(&deep)).await.unwrap();
        assert_eq!(count(&*other).await, 2);
    });
}

/// Also in a folder that an operator made.
#[test]
fn only_the_user_of_a_folder_can_connect() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = dir.path().join("socket");
    block_on(async {
        let index = connect(&at(dir.path())).await.unwrap();
        let mode = socket.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(index);
    });
    assert!(!socket.exists());
}

#[test]
fn large_upserts_and_pages_cross() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let holder = connect(&at(dir.path())).await.unwrap();
        let index = connect(&at(dir.path())).await.unwrap();
        let spec = elf::index::CollectionSpec {
            dim: 4096,
            ..spec()
        };
        index.create_collection("notes", &spec).await.unwrap();
        let points: Vec<_> = (0..600)
            .map(|n| {
                let mut point = point(n, direction(n), "some words");
                let wave = (0..4096).map(|i| (n as f32 + i as f32 / 7.0).sin());
                point.vector = Some(wave.collect());
                point
            })
            .collect();
        index
            .upsert("notes", &points, UpsertMode::InsertOnly)
            .await
            .unwrap();
        let page = index.scroll("notes", None, 1000, true).await.unwrap();
        assert_eq!(page.len(), 600);
        let seven = page.iter().find(|point| point.chunk_id == id(7)).unwrap();
        let here = holder.points("notes", &[id(7)], true).await.unwrap();
        assert_eq!(seven, &here[0], "bit by bit");
        tokio::time::timeout(Duration::from_secs(60), index.drop_collection("notes"))
            .await
            .unwrap()
            .unwrap();
    });
}
