//! `elf man`

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;

/// Arguments of `elf man`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder for elf.1 and a page for every command; created if it is missing
    dir: PathBuf,
}

/// Writes manual pages, for packages of ELF.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let failed = || format!("failed to write manual pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(failed)?;
    clap_mangen::generate_to(super::Args::command(), &args.dir).with_context(failed)
}
