//! Loading many points at once: the server builds HNSW graphs only after the last
//! point, instead of building and merging graphs during the load.
//!
//! The switch is the collection's `indexing_threshold`; 0 means never. ELF keeps the
//! previous threshold in the collection's metadata, so that any process can restore
//! it, also after a crash. The server merges metadata key by key.
//!
//! The server applies a new threshold in the background, after its answer (qdrant 1.18.3,
//! `local_shard/updaters.rs`). Until then its status is still the `green` from before. So the
//! end of a bulk load waits for another status, for as long as the collection's size tells that
//! there will be one: a collection that needs no graphs stays green.

use std::collections::HashMap;
use std::time::Duration;

use qdrant_client::qdrant::{
    CollectionConfig, CollectionInfo, OptimizersConfigDiff, UpdateCollection, Value,
};
use serde_json::{Value as Json, json};

use super::json::to_value;

/// How often to look meanwhile.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The key of the metadata that holds the threshold to restore, in kB.
const RESTORE: &str = "indexing_threshold_before_bulk_load";

/// The server's threshold where none is set, in kB. A threshold cannot be unset
/// again.
const DEFAULT_THRESHOLD: u64 = 10_000;

/// The requests, one after the other, that turn bulk loading of a collection on
/// or off. A crash between them loses nothing: the old threshold is in the metadata
/// before it changes and until it is restored. One request would not be safe: the
/// server saves the threshold first and the metadata second.
pub(super) fn requests(
    name: &str,
    config: &CollectionConfig,
    on: bool,
    timeout_secs: u64,
) -> Vec<UpdateCollection> {
    let (threshold, restore) = thresholds(config);
    steps(threshold, restore, on)
        .into_iter()
        .map(|step| request(name, step, timeout_secs))
        .collect()
}

/// How long to wait until the server builds graphs. To apply a threshold it first ends its
/// workers, which takes milliseconds if they do nothing, and seconds if they write to a slow disk.
pub(super) fn begins_within(
    info: &CollectionInfo,
    config: &CollectionConfig,
    dim: usize,
) -> Duration {
    let threshold = match thresholds(config) {
        (0, restore) => restore.unwrap_or(0),
        (threshold, _) => threshold,
    };
    patience(info.points_count(), info.segments_count, dim, threshold)
}

fn patience(points: u64, segments: u64, dim: usize, threshold: u64) -> Duration {
    let kilobytes = points.saturating_mul(4 * dim as u64) / 1024;
    match threshold {
        0 => Duration::ZERO,
        // No segment is that large.
        threshold if kilobytes < threshold => Duration::ZERO,
        // The largest segment may be.
        threshold if kilobytes / segments.max(1) < threshold => Duration::from_secs(2),
        // The largest segment is.
        _ => Duration::from_secs(30),
    }
}

/// The threshold that is set, and the one to restore.
fn thresholds(config: &CollectionConfig) -> (u64, Option<u64>) {
    let threshold = config
        .optimizer_config
        .as_ref()
        .and_then(|optimizers| optimizers.indexing_threshold)
        .unwrap_or(DEFAULT_THRESHOLD);
    let restore = config
        .metadata
        .get(RESTORE)
        .and_then(Value::as_integer)
        .and_then(|threshold| u64::try_from(threshold).ok());
    (threshold, restore)
}

#[derive(Debug, PartialEq)]
enum Step {
    Remember(u64),
    Forget,
    SetThreshold(u64),
}

fn steps(threshold: u64, restore: Option<u64>, on: bool) -> Vec<Step> {
    match (on, threshold, restore) {
        // Bulk loading is on already, or an operator wants no graphs at all.
        (true, 0, _) => vec![],
        (true, threshold, _) => vec![Step::Remember(threshold), Step::SetThreshold(0)],
        (false, _, None) => vec![],
        (false, 0, Some(restore)) => vec![Step::SetThreshold(restore), Step::Forget],
        // Restored before a crash, or set by an operator meanwhile.
        (false, _, Some(_)) => vec![Step::Forget],
    }
}

fn request(name: &str, step: Step, timeout_secs: u64) -> UpdateCollection {
    let mut request = UpdateCollection {
        collection_name: name.into(),
        timeout: Some(timeout_secs),
        ..UpdateCollection::default()
    };
    match step {
        Step::Remember(threshold) => request.metadata = metadata(json!(threshold)),
        // The server drops keys whose new value is null.
        Step::Forget => request.metadata = metadata(Json::Null),
        Step::SetThreshold(threshold) => {
            request.optimizers_config = Some(OptimizersConfigDiff {
                indexing_threshold: Some(threshold),
                ..OptimizersConfigDiff::default()
            });
        }
    }
    request
}

fn metadata(threshold: Json) -> HashMap<String, Value> {
    HashMap::from([(RESTORE.to_owned(), to_value(threshold))])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A collection's threshold and what its metadata says to restore.
    type State = (u64, Option<u64>);

    fn after((threshold, restore): State, step: &Step) -> State {
        match step {
            Step::Remember(threshold_before) => (threshold, Some(*threshold_before)),
            Step::Forget => (threshold, None),
            Step::SetThreshold(threshold) => (*threshold, restore),
        }
    }

    /// The state after as many steps of a switch as there are before a crash.
    fn switch(state: State, on: bool, before_crash: usize) -> State {
        steps(state.0, state.1, on)
            .iter()
            .take(before_crash)
            .fold(state, after)
    }

    #[test]
    fn off_restores_what_on_found_wherever_either_crashes() {
        for crash_on in 0..=2 {
            for crash_off in 0..=2 {
                let crashed = switch((7_000, None), true, crash_on);
                let loading = switch(crashed, true, 2);
                assert_eq!(loading, (0, Some(7_000)));
                let crashed = switch(loading, false, crash_off);
                assert_eq!(switch(crashed, false, 2), (7_000, None));
            }
        }
    }

    #[test]
    fn a_repeated_switch_sends_nothing_to_the_server() {
        assert_eq!(steps(0, Some(7_000), true), []);
        assert_eq!(steps(7_000, None, false), []);
    }

    #[test]
    fn only_a_collection_that_needs_graphs_is_waited_for() {
        // 2.5 vectors of 100 numbers have one kB.
        assert_eq!(patience(24_000, 1, 100, 10_000), Duration::ZERO);
        assert_eq!(patience(26_000, 2, 100, 10_000), Duration::from_secs(2));
        assert_eq!(patience(26_000, 1, 100, 10_000), Duration::from_secs(30));
        assert_eq!(patience(52_000, 2, 100, 10_000), Duration::from_secs(30));
        // The operator wants none.
        assert_eq!(patience(52_000, 2, 100, 0), Duration::ZERO);
    }

    #[test]
    fn the_operators_settings_stay() {
        // No graphs at all, before, during and after.
        assert_eq!(switch((0, None), true, 2), (0, None));
        assert_eq!(switch((0, None), false, 2), (0, None));
        // Another threshold, set while the load ran.
        assert_eq!(switch((300, Some(7_000)), false, 2), (300, None));
    }
}
