//! What a person at a terminal sees: progress, and what Ctrl-C does.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::support::DEADLINE;
use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::site::{Site, elf, program};

/// Runs a program on a terminal of its own, and passes on what is typed and shown.
const TERMINAL: &str = "import os, pty, sys; \
                        sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// `elf` on a terminal.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    shown: String,
}

impl Terminal {
    fn start(site: &Site, args: &[&str]) -> Self {
        // For its folder and its environment.
        let of_elf = elf(site.folder.path());
        let mut command = tokio::process::Command::new("python3");
        command
            .args(["-c", TERMINAL])
            .arg(program())
            .args(args)
            .current_dir(of_elf.as_std().get_current_dir().unwrap());
        for (name, value) in of_elf.as_std().get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command
            .env("TERM", "xterm")
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            keys: child.stdin.take().unwrap(),
            screen: child.stdout.take().unwrap(),
            child,
            shown: String::new(),
        }
    }

    /// Waits until the screen has shown `word`.
    async fn shows(&mut self, word: &str) {
        let reading = async {
            let mut bytes = [0; 4096];
            while !self.shown.contains(word) {
                let read = self.screen.read(&mut bytes).await.unwrap();
                assert!(read > 0, "it ended without {word:?}:\n{}", self.shown);
                self.shown += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        let read = tokio::time::timeout(DEADLINE, reading).await;
        assert!(read.is_ok(), "it never showed {word:?}:\n{}", self.shown);
    }

    async fn press_ctrl_c(&mut self) {
        self.keys.write_all(b"\x03").await.unwrap();
        self.keys.flush().await.unwrap();
    }

    /// Its exit code, when it has ended.
    async fn ended(&mut self) -> Option<i32> {
        let ending = async {
            let mut rest = Vec::new();
            self.screen.read_to_end(&mut rest).await.unwrap();
            self.shown += &String::from_utf8_lossy(&rest);
            self.child.wait().await.unwrap().code()
        };
        let ended = tokio::time::timeout(DEADLINE, ending).await;
        ended.unwrap_or_else(|_| panic!("it does not end:\n{}", self.shown))
    }
}

#[tokio::test]
async fn ctrl_c_says_what_it_waits_for_and_a_second_one_ends_it_at_once() {
    for command in [&["worker"][..], &["worker", "--once"]] {
        let site = Site::start().await;
        // Longer than the test waits for anything.
        site.configure("grace_secs = 5", "grace_secs = 600");
        site.configure("log_level = \"debug\"", "log_level = \"error\"");
        site.configure("timeout_ms = 6000", "timeout_ms = 600000");
        let note = site.note("The provider does not answer.").await;
        site.provider.poison("answer", Behaviour::Never);
        let mut terminal = Terminal::start(&site, command);
        eventually(async || !site.provider.texts_seen().is_empty()).await;
        terminal.press_ctrl_c().await;
        let in_flight = "no new claims; work in flight has up to 600 s to end";
        terminal.shows(in_flight).await;
        terminal.shows("A second Ctrl-C ends it at once").await;
        terminal.press_ctrl_c().await;
        assert_eq!(terminal.ended().await, Some(130), "{}", terminal.shown);
        // Nothing is lost: the lease expires.
        site.provider.heal();
        let indexed = async || site.json(&["worker", "--once"]).await["notes"] == 1;
        eventually(indexed).await;
        let found = site.json(&["search", "provider"]).await;
        assert_eq!(found["items"][0]["note_id"], note.to_string());
    }
}

#[tokio::test]
async fn what_is_done_after_ctrl_c_is_counted() {
    let site = Site::start().await;
    site.configure("grace_secs = 5", "grace_secs = 600");
    site.configure("log_level = \"debug\"", "log_level = \"error\"");
    site.configure("timeout_ms = 6000", "timeout_ms = 600000");
    site.json(&["worker", "--once"]).await;
    site.configure("max_tokens = 32", "max_tokens = 24");
    site.configure("model = \"test\"", "model = \"test\"\nmax_batch_inputs = 1");
    for text in ["Embedded late.", "Embedded later."] {
        site.note(text).await;
    }
    // A slice of a batch takes a second.
    site.provider.share_processor(Duration::from_secs(3));
    let mut terminal = Terminal::start(&site, &["reindex"]);
    eventually(async || !site.provider.texts_seen().is_empty()).await;
    terminal.press_ctrl_c().await;
    terminal.shows("A second Ctrl-C ends it at once").await;
    terminal.shows("reindexing 1 of 2").await;
    assert_eq!(terminal.ended().await, Some(1), "{}", terminal.shown);
}

#[tokio::test]
async fn the_progress_of_an_evaluation_counts_its_documents_alone() {
    let site = Site::start().await;
    site.configure("log_level = \"debug\"", "log_level = \"error\"");
    let documents: String = (0..40)
        .map(|n| format!("{{\"_id\": \"d{n}\", \"text\": \"Gate {n} is green.\"}}\n"))
        .collect();
    site.write("set/corpus.jsonl", documents);
    site.write(
        "set/queries.jsonl",
        "{\"_id\": \"q\", \"text\": \"gate\"}\n",
    );
    site.write("set/qrels/test.tsv", "q\td\ts\nq\td1\t1\n");
    for n in 0..60 {
        site.note(&format!("Note {n} of the application.")).await;
    }
    site.provider.share_processor(Duration::from_millis(20));
    let mut terminal = Terminal::start(&site, &["eval", "set"]);
    assert_eq!(terminal.ended().await, Some(0), "{}", terminal.shown);
    let bars = terminal.shown.split("indexing documents ").skip(1);
    let counts: Vec<(u64, u64)> = bars
        .filter_map(|bar| {
            let mut words = bar.split_whitespace();
            let done = words.next()?.parse().ok()?;
            (words.next()? == "of").then_some(())?;
            Some((done, words.next()?.parse().ok()?))
        })
        .collect();
    assert!(counts.contains(&(0, 40)), "{counts:?}");
    assert!(
        counts
            .iter()
            .all(|(done, total)| done <= total && *total == 40),
        "{counts:?}"
    );
}

/// The report says what was done, and the log is for others.
#[tokio::test]
async fn a_command_on_a_terminal_shows_its_report_alone() {
    let site = Site::start().await;
    site.configure("log_level = \"debug\"", "log_level = \"info\"");
    site.note("The ferry leaves at noon.").await;
    let mut terminal = Terminal::start(&site, &["worker", "--once"]);
    assert_eq!(terminal.ended().await, Some(0));
    let shown = &terminal.shown;
    assert!(
        shown.contains("1 note, 1 chunk (1 embedded, 0 reused), 1 point"),
        "{shown}"
    );
    assert!(!terminal.shown.contains("INFO"), "{}", terminal.shown);
    let mut terminal = Terminal::start(&site, &["enqueue", "--where-scope", "s"]);
    assert_eq!(terminal.ended().await, Some(0));
    assert!(!terminal.shown.contains("audit"), "{}", terminal.shown);
}
