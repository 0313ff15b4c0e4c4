//! Arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    elf::cli::run(elf::cli::Args::parse())
}
