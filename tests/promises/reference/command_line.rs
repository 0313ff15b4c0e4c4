//! `docs/reference/command-line.md`

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command, CommandFactory};

use super::{assert_written, made_of};

const INTRODUCTION: &str = "# Command line

`elf COMMAND --help` prints what this page says of a command.

## Every command

";

const ANSWERS: &str = "
Logs and errors go to stderr. A command that fails prints nothing on stdout, with two exceptions: `elf import` says what it imported, and with `--json` `elf config check` says what is wrong, as `{\"ok\": false, \"path\": …, \"problems\": […]}`.

Exit codes:

- 0: done; also a worker or `elf serve` that was stopped
- 1: failed, or stopped before the end
- 2: wrong usage
- 3: `elf verify` or `elf reindex --swap` found drift that was not repaired
- 78: the configuration is wrong, or does not fit what is there
- 130, 143: a second Ctrl-C or SIGTERM

After a first Ctrl-C or SIGTERM, `elf worker`, `serve`, `rebuild`, `reindex` and `eval` end what is in flight. A second one ends them at once, as safely as a crash: run the command again. Other commands end at the first one.
";

fn page() -> String {
    let mut elf = elf::cli::Args::command();
    elf.build();
    let mut page = made_of("the definitions in src/cli") + INTRODUCTION;
    for arg in elf.get_arguments().filter(|arg| arg.is_global_set()) {
        page += &described(arg);
    }
    page += ANSWERS;
    for command in commands(&elf) {
        add(&mut page, command, "elf", "##");
    }
    page
}

/// Those that the help lists.
fn commands(of: &Command) -> impl Iterator<Item = &Command> {
    let is_listed = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    of.get_subcommands().filter(is_listed)
}

fn add(page: &mut String, command: &Command, before: &str, heading: &str) {
    let name = format!("{before} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about());
    *page += &format!("\n{heading} `{name}`\n\n{}\n", sentences(about));
    let mut args = command
        .get_arguments()
        .filter(|arg| !is_everywhere(arg))
        .peekable();
    if args.peek().is_some() {
        page.push('\n');
    }
    for arg in args {
        *page += &described(arg);
    }
    if let Some(more) = command.get_after_help() {
        *page += &format!("\n{more}\n");
    }
    for below in commands(command) {
        add(page, below, &name, "###");
    }
}

/// Whether each command has it.
fn is_everywhere(arg: &Arg) -> bool {
    let action = arg.get_action();
    arg.is_global_set() || arg.get_id() == "help" || matches!(action, ArgAction::Version)
}

/// An item of a list.
fn described(arg: &Arg) -> String {
    let names = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let mut name = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.get_action().takes_values() {
        let value = arg.get_value_names().and_then(|names| names.first());
        let value = value.map_or(arg.get_id().as_str(), |name| name.as_str());
        match arg.is_positional() {
            true => name = written(arg, value),
            false => name += &format!(" {value}"),
        }
    }
    let mut says = sentences(arg.get_long_help().or(arg.get_help()));
    if arg.is_required_set() && !arg.is_positional() {
        says += " Required.";
    }
    // An option without a value has a default too: false.
    if arg.get_action().takes_values() {
        let words: Vec<String> = arg
            .get_possible_values()
            .iter()
            .map(|word| format!("`{}`", word.get_name()))
            .collect();
        if !words.is_empty() {
            says += &format!(" One of {}.", words.join(", "));
        }
        let default = arg
            .get_default_values()
            .first()
            .map(|value| value.to_string_lossy());
        if let Some(default) = default.filter(|default| !default.is_empty()) {
            says += &format!(" Default: `{default}`.");
        }
    }
    if let Some(variable) = arg.get_env() {
        says += &format!(" Environment: `{}`.", variable.to_string_lossy());
    }
    format!("- `{name}`: {says}\n")
}

/// A positional argument, as the usage has it.
fn written(arg: &Arg, value: &str) -> String {
    let is_repeated = arg
        .get_num_args()
        .is_some_and(|number| number.max_values() > 1);
    let dots = if is_repeated { "..." } else { "" };
    match arg.is_required_set() {
        true => format!("{value}{dots}"),
        false => format!("[{value}{dots}]"),
    }
}

/// The help with the full stops that clap leaves out, in one paragraph.
fn sentences(help: Option<&StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    let paragraphs = help.split("\n\n").map(|paragraph| {
        let text = paragraph.trim().replace('\n', " ");
        let text = match text.split_once(" [default: ") {
            Some((text, default)) => format!("{text}. Default: {}", default.trim_end_matches(']')),
            None => text,
        };
        match text.ends_with('.') {
            true => text,
            false => text + ".",
        }
    });
    paragraphs.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_page_of_the_command_line_is_that_of_its_definitions() {
    assert_written("docs/reference/command-line.md", &page());
}

#[test]
fn the_page_has_the_exit_codes_of_the_help() {
    let help = elf::cli::Args::command()
        .get_after_help()
        .unwrap()
        .to_string();
    let codes = help
        .split(|letter: char| !letter.is_ascii_digit())
        .filter(|digits| !digits.is_empty());
    for code in codes {
        assert!(
            ANSWERS.contains(&format!("\n- {code}: ")),
            "{code} is missing"
        );
    }
}
