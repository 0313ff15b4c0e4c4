//! The gate of `elf reindex --swap --gate`.

use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

use super::eval::{self, Args, DEFAULT_SPLIT, DEFAULT_TENANT, Evaluation};
use super::wiring;
use crate::config::Config;
use crate::eval::{Comparison, Dataset, Report};
use crate::worker::Pipeline;

/// What decides whether `elf reindex --swap` swaps.
pub struct Gate {
    dataset: Dataset,
    before: Report,
    against: PathBuf,
    args: Args,
}

impl Gate {
    /// Reads the folder of an evaluation, and the report that `elf eval --json` wrote of it.
    pub fn read(folder: &Path, against: &Path) -> anyhow::Result<Self> {
        let before = eval::read_report(against)?;
        let args = Args {
            folder: folder.to_owned(),
            split: DEFAULT_SPLIT.to_owned(),
            k: u16::try_from(before.k).unwrap_or(u16::MAX),
            tenant: DEFAULT_TENANT.to_owned(),
            keep: false,
            against: Some(against.to_owned()),
            gate: true,
            trials: Vec::new(),
        };
        Ok(Self {
            dataset: Dataset::read(folder, DEFAULT_SPLIT)?,
            before,
            against: against.to_owned(),
            args,
        })
    }

    /// Measures the version of `pipeline` in a collection that the alias does not serve yet. Fails
    /// if a search finds less in it than the report says.
    pub async fn check(
        &self,
        pipeline: &Pipeline,
        config: &Config,
        collection: String,
        stop: CancellationToken,
    ) -> anyhow::Result<Comparison> {
        let searcher = wiring::searcher(pipeline, config)
            .await?
            .in_collection(collection);
        let evaluation = Evaluation::new(pipeline.clone(), searcher, config, stop).before_swap();
        let report = evaluation.run(&self.dataset, &self.args).await?;
        let comparison = eval::compared(&self.before, &report, &self.against)?;
        anyhow::ensure!(
            !comparison.is_worse(),
            "a search would find less than before ({}): nothing was swapped, the old version is \
             still served",
            comparison.line()
        );
        Ok(comparison)
    }
}
