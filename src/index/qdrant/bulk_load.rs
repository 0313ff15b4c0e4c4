//! Loading many points at once: the server builds HNSW graphs only after the last
//! point, instead of building and merging graphs during the load, and keeps the segments
//! that take points small, because the index for BM25 adds a point the slower, the more
//! points its segment has: each word of the point walks the list of its points
//! (qdrant 1.18.3, `PostingList::upsert`). After the load the server merges them.
//!
//! The switches are the collection's `indexing_threshold`, where 0 means never, and its
//! `max_segment_size`. ELF keeps the previous values in the collection's metadata, so that any
//! process can restore them, also after a crash. The server merges metadata key by key.
//!
//! The server applies new settings in the background, after its answer (qdrant 1.18.3,
//! `local_shard/updaters.rs`). Until then its status is still the `green` from before. So the
//! end of a bulk load waits for another status, for as long as the collection's size tells that
//! there will be one: a collection that needs no graphs stays green.

use std::collections::HashMap;
use std::time::Duration;

use qdrant_client::qdrant::{
    CollectionConfig, CollectionInfo, OptimizersConfigDiff, UpdateCollection, Value,
};
use serde_json::{Value as Json, json};

use super::convert;
use super::json::to_value;

/// How often to look meanwhile.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The keys of the metadata that hold what to restore, in kB.
const THRESHOLD_BEFORE: &str = "indexing_threshold_before_bulk_load";
const SEGMENT_BEFORE: &str = "max_segment_size_before_bulk_load";

/// The server's threshold where none is set, in kB. A threshold cannot be unset
/// again.
const DEFAULT_THRESHOLD: u64 = 10_000;

/// The largest segment where none is set, in kB. The server's default is 256,000 kB for each
/// of the threads that build a graph, one to sixteen, and cannot be asked for or set again.
const DEFAULT_SEGMENT: u64 = 4 * 256_000;

/// How many points a segment takes during a load, by the size of their dense vectors.
const SEGMENT_POINTS: u64 = 5_000;

/// How many segments a load makes, about. The server maps some 75 files of each into its
/// memory, and Linux allows a process 65,530 by default.
const SEGMENTS: u64 = 200;

/// The most segments that a server wants where it chooses the number itself.
const DEFAULT_SEGMENTS: u64 = 8;

/// What is known of a collection that is loaded.
pub(super) struct Loaded {
    now: Settings,
    kept: Kept,
    /// The largest segment during a load, in kB.
    loading: u64,
    dim: usize,
    shards: u64,
    points: u64,
    segments: u64,
}

impl Loaded {
    /// `None` for a collection that ELF did not make.
    pub(super) fn of(info: &CollectionInfo) -> Option<Self> {
        let config = info.config.as_ref()?;
        let dim = convert::spec(info)?.dim;
        Some(Self {
            now: now(config),
            kept: kept(config),
            loading: kilobytes(SEGMENT_POINTS, dim),
            dim,
            shards: config.params.as_ref()?.shard_number.max(1).into(),
            points: info.points_count(),
            segments: info.segments_count,
        })
    }
}

/// The changes, one after the other, that begin a load. A crash between them loses nothing:
/// the old settings are in the metadata before they change and until they are restored. One
/// request would not be safe: the server saves the settings first and the metadata second.
pub(super) fn begin(loaded: &Loaded) -> Vec<Step> {
    steps(loaded.now, loaded.kept, loaded.loading, true)
}

/// The changes that end it.
pub(super) fn end(loaded: &Loaded) -> Vec<Step> {
    steps(loaded.now, loaded.kept, loaded.loading, false)
}

/// How many points a load has at most: as many as the largest segment of each shard takes, so
/// that few of the graphs that end it are built again after the next load.
pub(super) fn most_points(loaded: &Loaded) -> u64 {
    let largest = loaded.shards * (DEFAULT_SEGMENT * 1024 / (4 * loaded.dim as u64));
    largest.min(SEGMENTS * SEGMENT_POINTS)
}

/// How long to wait until the server merges segments and builds graphs, after the end of a
/// load. To apply settings it first ends its workers, which takes milliseconds if they do
/// nothing, and seconds if they write to a slow disk.
pub(super) fn begins_within(loaded: &Loaded) -> Duration {
    let threshold = before(loaded.now, loaded.kept, loaded.loading).threshold;
    patience(
        kilobytes(loaded.points, loaded.dim),
        loaded.segments,
        threshold,
    )
}

fn patience(kilobytes: u64, segments: u64, threshold: u64) -> Duration {
    match threshold {
        0 => Duration::ZERO,
        // No segment is that large.
        threshold if kilobytes < threshold => Duration::ZERO,
        // The server merges some of them, or the largest segment is that large.
        threshold if segments > DEFAULT_SEGMENTS || kilobytes / segments.max(1) >= threshold => {
            Duration::from_secs(30)
        }
        // The largest segment may be.
        _ => Duration::from_secs(2),
    }
}

/// What the dense vectors of so many points take.
fn kilobytes(points: u64, dim: usize) -> u64 {
    points.saturating_mul(4 * dim as u64) / 1024
}

/// What a load changes, in kB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Settings {
    threshold: u64,
    /// The largest segment.
    segment: u64,
}

/// What the metadata says to restore. A load that an older ELF began has no segment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Kept {
    threshold: Option<u64>,
    segment: Option<u64>,
}

fn now(config: &CollectionConfig) -> Settings {
    let set = config.optimizer_config.as_ref();
    let threshold = set.and_then(|optimizers| optimizers.indexing_threshold);
    let segment = set.and_then(|optimizers| optimizers.max_segment_size);
    Settings {
        threshold: threshold.unwrap_or(DEFAULT_THRESHOLD),
        segment: segment.unwrap_or(DEFAULT_SEGMENT),
    }
}

fn kept(config: &CollectionConfig) -> Kept {
    let number = |key| {
        let value = config.metadata.get(key).and_then(Value::as_integer)?;
        u64::try_from(value).ok()
    };
    Kept {
        threshold: number(THRESHOLD_BEFORE),
        segment: number(SEGMENT_BEFORE),
    }
}

/// The settings without the load: those that are kept, but for what an operator set meanwhile.
fn before(now: Settings, kept: Kept, loading: u64) -> Settings {
    Settings {
        threshold: match kept.threshold {
            Some(kept) if now.threshold == 0 => kept,
            _ => now.threshold,
        },
        segment: match kept.segment {
            Some(kept) if now.segment == kept.min(loading) => kept,
            _ => now.segment,
        },
    }
}

/// A change of a collection.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Remember(Settings),
    Forget,
    Set(Settings),
}

fn steps(now: Settings, kept: Kept, loading: u64, on: bool) -> Vec<Step> {
    let before = before(now, kept, loading);
    let during = Settings {
        threshold: 0,
        segment: before.segment.min(loading),
    };
    match on {
        true if now == during && kept != Kept::default() => vec![],
        true => vec![Step::Remember(before), Step::Set(during)],
        false if kept == Kept::default() => vec![],
        // Restored before a crash, or set by an operator meanwhile.
        false if now == before => vec![Step::Forget],
        false => vec![Step::Set(before), Step::Forget],
    }
}

pub(super) fn request(name: &str, step: Step, timeout_secs: u64) -> UpdateCollection {
    let mut request = UpdateCollection {
        collection_name: name.into(),
        timeout: Some(timeout_secs),
        ..UpdateCollection::default()
    };
    match step {
        Step::Remember(Settings { threshold, segment }) => {
            request.metadata = metadata(json!(threshold), json!(segment));
        }
        // The server drops keys whose new value is null.
        Step::Forget => request.metadata = metadata(Json::Null, Json::Null),
        Step::Set(Settings { threshold, segment }) => {
            request.optimizers_config = Some(OptimizersConfigDiff {
                indexing_threshold: Some(threshold),
                max_segment_size: Some(segment),
                ..OptimizersConfigDiff::default()
            });
        }
    }
    request
}

fn metadata(threshold: Json, segment: Json) -> HashMap<String, Value> {
    HashMap::from([
        (THRESHOLD_BEFORE.to_owned(), to_value(threshold)),
        (SEGMENT_BEFORE.to_owned(), to_value(segment)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADING: u64 = 5_000;
    const DURING: Settings = Settings {
        threshold: 0,
        segment: LOADING,
    };
    const OWN: Settings = Settings {
        threshold: 7_000,
        segment: 90_000,
    };

    /// A collection's settings and what its metadata says to restore.
    type State = (Settings, Kept);

    const fn kept(settings: Settings) -> Kept {
        Kept {
            threshold: Some(settings.threshold),
            segment: Some(settings.segment),
        }
    }

    fn after((now, kept_now): State, step: &Step) -> State {
        match step {
            Step::Remember(before) => (now, kept(*before)),
            Step::Forget => (now, Kept::default()),
            Step::Set(settings) => (*settings, kept_now),
        }
    }

    /// The state after as many steps of a switch as there are before a crash.
    fn switch(state: State, on: bool, before_crash: usize) -> State {
        steps(state.0, state.1, LOADING, on)
            .iter()
            .take(before_crash)
            .fold(state, after)
    }

    #[test]
    fn off_restores_what_on_found_wherever_either_crashes() {
        let lowest = Settings {
            threshold: 0,
            segment: 1,
        };
        for own in [OWN, DURING, lowest] {
            let during = Settings {
                threshold: 0,
                segment: own.segment.min(LOADING),
            };
            for crash_on in 0..=2 {
                for crash_off in 0..=2 {
                    let crashed = switch((own, Kept::default()), true, crash_on);
                    let loading = switch(crashed, true, 2);
                    assert_eq!(loading, (during, kept(own)));
                    let crashed = switch(loading, false, crash_off);
                    assert_eq!(switch(crashed, false, 2), (own, Kept::default()));
                    assert_eq!(switch(crashed, true, 2), (during, kept(own)));
                }
            }
        }
    }

    #[test]
    fn a_repeated_switch_sends_nothing_to_the_server() {
        assert_eq!(steps(DURING, kept(OWN), LOADING, true), []);
        assert_eq!(steps(OWN, Kept::default(), LOADING, false), []);
    }

    #[test]
    fn what_an_operator_sets_during_a_load_stays() {
        for threshold in [0, 300] {
            for segment in [300, LOADING, 20_000] {
                let set = Settings { threshold, segment };
                let (settings, left) = switch((set, kept(OWN)), false, 2);
                let wanted = |set, during, own| if set == during { own } else { set };
                assert_eq!(settings.threshold, wanted(threshold, 0, OWN.threshold));
                assert_eq!(settings.segment, wanted(segment, LOADING, OWN.segment));
                assert_eq!(left, Kept::default());
            }
        }
    }

    #[test]
    fn a_load_that_an_older_elf_began_goes_on() {
        let old = Kept {
            threshold: Some(7_000),
            segment: None,
        };
        let now = Settings {
            threshold: 0,
            ..OWN
        };
        assert_eq!(switch((now, old), true, 2), (DURING, kept(OWN)));
        assert_eq!(switch((now, old), false, 2), (OWN, Kept::default()));
    }

    #[test]
    fn only_a_collection_that_needs_graphs_is_waited_for() {
        assert_eq!(patience(9_000, 1, 10_000), Duration::ZERO);
        assert_eq!(patience(11_000, 2, 10_000), Duration::from_secs(2));
        assert_eq!(patience(11_000, 1, 10_000), Duration::from_secs(30));
        assert_eq!(patience(22_000, 2, 10_000), Duration::from_secs(30));
        // Small segments, so many that the server merges some.
        assert_eq!(patience(22_000, 9, 10_000), Duration::from_secs(30));
        // The operator wants none.
        assert_eq!(patience(22_000, 2, 0), Duration::ZERO);
    }
}
