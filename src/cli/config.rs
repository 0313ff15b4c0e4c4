//! `elf config`

use std::path::Path;

use serde_json::json;

use super::output::Output;
use crate::config::{Config, ConfigError};
use crate::eval::Golden;

/// Subcommands of `elf config`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// List every problem of the file
    ///
    /// It reads the file alone, and opens no model, folder or server that the file names.
    Check,
    /// Print the settings in effect, without secrets
    Show,
}

pub fn run(path: &Path, command: Command, out: Output) -> anyhow::Result<()> {
    let config = match Config::load(path) {
        Err(ConfigError::Invalid { origin, problems }) if out.json => {
            let said: Vec<String> = problems.iter().map(|p| format!("{origin}:{p}")).collect();
            out.report(
                &json!({ "ok": false, "path": path, "problems": said }),
                |_| String::new(),
            )?;
            return Err(ConfigError::Invalid { origin, problems }.into());
        }
        loaded => loaded?,
    };
    match command {
        Command::Check => {
            let warnings = warnings(&config);
            let report = json!({ "ok": true, "path": path, "warnings": warnings });
            out.report(&report, |_| {
                let warnings = warnings
                    .iter()
                    .map(|warning| format!("warning: {warning}\n"));
                let warnings: String = warnings.collect();
                format!("{warnings}{} is fine", path.display())
            })
        }
        Command::Show => out.report(&config, |config| config.to_toml().trim_end().to_owned()),
    }
}

/// Also of the files that no other part of a configuration reads.
fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = config.warnings();
    let folder = config.quality.folder.as_deref().map(Path::new);
    if let Some(Err(error)) = folder.map(Golden::read) {
        warnings.push(format!("quality.folder: {error:#}"));
    }
    let canary = config.quality.canary.config.as_deref().map(Path::new);
    if let Some(Err(error)) = canary.map(Config::load) {
        warnings.push(format!("quality.canary.config: {error}"));
    }
    warnings
}
