//! Help, wrong usage, completions and manual pages follow from the commands themselves.

use super::elf_with;
use crate::support::site::{elf, run};

/// The commands that the help of `command` lists.
fn listed(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // The lines of a long description begin further right.
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !["", "help"].contains(name))
        .collect()
}

#[tokio::test]
async fn help_goes_to_stdout_and_succeeds() {
    // The help lists every command, except the hidden `man`.
    let mut commands: Vec<Vec<String>> = vec![vec![], vec!["man".to_owned()]];
    let mut seen = 0;
    while let Some(command) = commands.pop() {
        seen += 1;
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        let usage = format!("Usage: {}", [&["elf"], &args[..]].concat().join(" "));
        args.push("--help");
        let done = elf_with(None, &args, &[]).await.exits(0);
        assert!(done.stdout.contains(&usage), "{done:?}");
        assert_eq!(done.stderr, "");
        for name in listed(&done.stdout) {
            commands.push([&command[..], &[name.to_owned()]].concat());
        }
    }
    assert!(seen > 20, "the help lists only {seen} commands");
    let done = elf_with(None, &["--version"], &[]).await.exits(0);
    assert!(done.stdout.starts_with("elf "), "{done:?}");
}

#[tokio::test]
async fn wrong_usage_exits_with_2_and_leaves_stdout_empty() {
    let id = "6f1c2a34-8d5e-4c1b-9a57-3e0d2b7c4f10";
    let wrong: &[&[&str]] = &[
        &[],
        &["--frobnicate"],
        &["frobnicate"],
        &["worker", "--twice"],
        &["dead"],
        &["dead", "show"],
        &["dead", "retry"],
        &["dead", "retry", id, "--all"],
        &["dead", "purge"],
        &["dead", "purge", "not-an-id"],
        &["enqueue"],
        &["enqueue", "--all", "--note", id],
        &["enqueue", "--note", "not-an-id"],
        &["import"],
        &["chunk"],
        &["config"],
        &["search"],
        &["search", "word", "--limit", "0"],
        &["search", "word", "--by", "luck"],
        &["eval"],
        &["migrate", "now"],
    ];
    for args in wrong {
        let done = elf_with(None, args, &[]).await.exits(2);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[tokio::test]
async fn a_wrong_value_is_told_how_to_write_it() {
    let wrong: &[(&[&str], &str)] = &[
        (
            &["search", "word", "--updated-after", "yesterday"],
            "'--updated-after <TIME>': write a time as 2026-03-01T12:00:00Z",
        ),
        (
            &[
                "search",
                "word",
                "--updated-before",
                "+99999-01-01T00:00:00Z",
            ],
            "write a time as 2026-03-01T12:00:00Z",
        ),
        (
            &["search", ""],
            "the query is empty: write what to search for",
        ),
        (
            &["search", " \t"],
            "the query is empty: write what to search for",
        ),
        (
            &["search", "word", "--limit", "ten"],
            "write a whole number from 1 to 1000",
        ),
        (
            &["search", "word", "--min-importance", "high"],
            "write a number from 0 to 1",
        ),
        (
            &["enqueue", "--note", "abc"],
            "'abc' for '--note <ID>': write the note_id of a row of memory_notes, such as 6f1c2a34",
        ),
        (&["dead", "show", "abc"], "an id that `elf dead list` shows"),
        (
            &["dead", "retry", "abc"],
            "an id that `elf dead list` shows",
        ),
        (&["key", "revoke", "abc"], "an id that `elf key list` shows"),
        (&["key", "create", "--tenant", ""], "the tenant is empty"),
        (&["import", "-", "--tenant", ""], "the tenant is empty"),
        (
            &["mcp", "--url", "foo"],
            "'foo' for '--url <URL>': write a URL such as http://127.0.0.1:9465",
        ),
        (
            &["mcp", "--url", "localhost:9465"],
            "write a URL such as http://127.0.0.1:9465",
        ),
        (
            &["eval", "set", "-k", "0"],
            "write a whole number from 1 to 100",
        ),
        (&["verify", "--sample", "0"], "give percent"),
    ];
    for (args, says) in wrong {
        elf_with(None, args, &[]).await.exits(2).says(&[says]);
    }
}

#[tokio::test]
async fn completions_and_manual_pages_come_from_the_commands_themselves() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let mut command = elf(folder.path());
        command.args(["completions", shell]);
        let script = run(command, b"").await.exits(0).stdout;
        for word in ["rebuild", "once"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let mut command = elf(folder.path());
    command.args(["man", "pages"]);
    run(command, b"").await.exits(0);
    let page =
        |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(
        page("elf.1").contains("elf\\-rebuild(1)"),
        "{}",
        page("elf.1")
    );
    assert!(page("elf-worker.1").contains("once"));
}
