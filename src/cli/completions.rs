//! `elf completions`

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `elf completions`.
#[derive(clap::Args)]
pub struct Args {
    /// For which shell
    shell: Shell,
}

/// Prints a script for a shell to complete this program's arguments with.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // In memory first: a pipe that is closed early is no reason to panic.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "elf", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
