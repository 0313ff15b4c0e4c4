//! `elf completions`

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `elf completions`.
#[derive(clap::Args)]
pub struct Args {
    /// The shell to print the script for
    shell: Shell,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    // `generate` panics on a closed pipe (`| head`), so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Args::command(), "elf", &mut script);
    Ok(std::io::stdout().write_all(&script)?)
}
