//! Loading many points at once. The server builds HNSW graphs only after the last point, and
//! merges none during the load. Meanwhile it keeps segments small: the index for BM25 adds a
//! point the slower, the more points its segment has. For each word of the point it walks the
//! list of the points with that word (qdrant 1.18.3, `PostingList::upsert`). After the load the
//! server merges the segments.
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
    CollectionConfig, CollectionInfo, CollectionStatus, OptimizersConfigDiff, UpdateCollection,
    Value,
};
use serde_json::{Value as Json, json};

use super::convert;
use super::json::to_value;

/// How often to look meanwhile.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The keys of the metadata that hold what to restore, in kB.
const THRESHOLD_BEFORE: &str = "indexing_threshold_before_bulk_load";
const SEGMENT_BEFORE: &str = "max_segment_size_before_bulk_load";
/// The largest segment that ELF has set, in kB: any other one is an operator's.
const SEGMENT_DURING: &str = "max_segment_size_of_bulk_load";

/// The server's threshold where none is set, in kB. A threshold cannot be unset
/// again.
const DEFAULT_THRESHOLD: u64 = 10_000;

/// The largest segment where none is set, in kB. The server's default is 256,000 kB for each
/// of the threads that build a graph, one to sixteen, and cannot be asked for or set again.
const DEFAULT_SEGMENT: u64 = 4 * 256_000;

/// How many points a segment takes during a load, by the size of their dense vectors. The
/// server counts 12 bytes for each word of a text: where those are more, a segment takes fewer.
const SEGMENT_POINTS: u64 = 5_000;

/// In kB. During a load, a segment may become at least so large that it gets a graph, if that is not above
/// this. The server does not merge all segments: up to six in a shard stay as they are.
const LARGEST_THRESHOLD: u64 = 40_000;

/// How many points a load has at most, or it would make too many segments. The server maps
/// some 75 files of each into its memory, and Linux allows a process 65,530 by default.
const LOAD_POINTS: u64 = 1_000_000;

/// The most segments that a server wants in a shard where it chooses the number itself.
const DEFAULT_SEGMENTS: u64 = 8;

/// What is known of a collection that is loaded.
pub(super) struct Loaded {
    now: Settings,
    kept: Option<Kept>,
    /// The server was restarted, and optimises nothing until a setting changes or a point is
    /// written.
    waits: bool,
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
            waits: info.status() == CollectionStatus::Grey,
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
    begin_steps(
        loaded.now,
        loaded.kept,
        kilobytes(SEGMENT_POINTS, loaded.dim),
    )
}

/// The changes that end it.
pub(super) fn end(loaded: &Loaded) -> Vec<Step> {
    end_steps(loaded.now, loaded.kept, loaded.waits)
}

/// How many points a load has at most: as many as a segment of 1 GB in each shard takes. The
/// server seldom merges such a segment with another, so most graphs are built once.
pub(super) fn most_points(loaded: &Loaded) -> u64 {
    let largest = loaded.shards * (DEFAULT_SEGMENT * 1024 / (4 * loaded.dim as u64));
    largest.min(LOAD_POINTS)
}

/// How long to wait until the server merges segments and builds graphs, after the end of a
/// load. To apply settings it first ends its workers, which takes milliseconds if they do
/// nothing, and seconds if they write to a slow disk.
pub(super) fn begins_within(loaded: &Loaded) -> Duration {
    let threshold = before(loaded.now, loaded.kept).threshold;
    let kilobytes = kilobytes(loaded.points, loaded.dim);
    patience(kilobytes, loaded.segments, loaded.shards, threshold)
}

fn patience(kilobytes: u64, segments: u64, shards: u64, threshold: u64) -> Duration {
    match threshold {
        // The server merges some of them.
        _ if segments > shards * DEFAULT_SEGMENTS => Duration::from_secs(30),
        0 => Duration::ZERO,
        // No segment is that large.
        threshold if kilobytes < threshold => Duration::ZERO,
        // The largest segment may be.
        threshold if kilobytes / segments.max(1) < threshold => Duration::from_secs(2),
        // The largest segment is.
        _ => Duration::from_secs(30),
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
    /// How large a segment may become.
    segment: u64,
}

/// What the metadata says of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kept {
    before: Settings,
    /// The largest segment during the load.
    during: u64,
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

fn kept(config: &CollectionConfig) -> Option<Kept> {
    let number = |key| {
        let value = config.metadata.get(key).and_then(Value::as_integer)?;
        u64::try_from(value).ok()
    };
    Some(Kept {
        before: Settings {
            threshold: number(THRESHOLD_BEFORE)?,
            segment: number(SEGMENT_BEFORE)?,
        },
        during: number(SEGMENT_DURING)?,
    })
}

/// The settings without the load: those that are kept, but for what an operator set meanwhile.
fn before(now: Settings, kept: Option<Kept>) -> Settings {
    let Some(Kept { before, during }) = kept else {
        return now;
    };
    Settings {
        threshold: match now.threshold {
            0 => before.threshold,
            set => set,
        },
        segment: match now.segment {
            own if own == during => before.segment,
            set => set,
        },
    }
}

/// A change of a collection.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Remember { before: Settings, during: Settings },
    Forget,
    Set(Settings),
}

fn begin_steps(now: Settings, kept: Option<Kept>, segment: u64) -> Vec<Step> {
    if now.threshold == 0 && kept.is_some_and(|kept| kept.during == now.segment) {
        // It has begun already.
        return vec![];
    }
    let before = before(now, kept);
    let needs_graph = before.threshold.min(LARGEST_THRESHOLD);
    let during = Settings {
        threshold: 0,
        segment: before.segment.min(segment.max(needs_graph)),
    };
    vec![Step::Remember { before, during }, Step::Set(during)]
}

fn end_steps(now: Settings, kept: Option<Kept>, waits: bool) -> Vec<Step> {
    let before = before(now, kept);
    let mut steps = Vec::new();
    // Else they were restored before a crash, or an operator has set others. To set the same
    // ones again wakes a server that waits.
    if now != before || waits {
        steps.push(Step::Set(before));
    }
    if kept.is_some() {
        steps.push(Step::Forget);
    }
    steps
}

pub(super) fn request(name: &str, step: Step, timeout_secs: u64) -> UpdateCollection {
    let mut request = UpdateCollection {
        collection_name: name.into(),
        timeout: Some(timeout_secs),
        ..UpdateCollection::default()
    };
    match step {
        Step::Remember { before, during } => {
            request.metadata = metadata([
                json!(before.threshold),
                json!(before.segment),
                json!(during.segment),
            ]);
        }
        // The server drops keys whose new value is null.
        Step::Forget => request.metadata = metadata([Json::Null, Json::Null, Json::Null]),
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

fn metadata(values: [Json; 3]) -> HashMap<String, Value> {
    let keys = [THRESHOLD_BEFORE, SEGMENT_BEFORE, SEGMENT_DURING].map(str::to_owned);
    keys.into_iter().zip(values.map(to_value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOADING: u64 = 9_000;
    const DURING: Settings = Settings {
        threshold: 0,
        segment: LOADING,
    };
    const OWN: Settings = Settings {
        threshold: 7_000,
        segment: 90_000,
    };

    /// A collection's settings and what its metadata says to restore.
    type State = (Settings, Option<Kept>);

    fn kept(before: Settings, during: Settings) -> Option<Kept> {
        let during = during.segment;
        Some(Kept { before, during })
    }

    fn after((now, kept_now): State, step: &Step) -> State {
        match step {
            Step::Remember { before, during } => (now, kept(*before, *during)),
            Step::Forget => (now, None),
            Step::Set(settings) => (*settings, kept_now),
        }
    }

    /// The state after as many steps as there are before a crash.
    fn begun(state: State, before_crash: usize) -> State {
        let steps = begin_steps(state.0, state.1, LOADING);
        steps.iter().take(before_crash).fold(state, after)
    }

    fn ended(state: State, before_crash: usize) -> State {
        let steps = end_steps(state.0, state.1, false);
        steps.iter().take(before_crash).fold(state, after)
    }

    #[test]
    fn the_end_restores_what_the_beginning_found_wherever_either_crashes() {
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
                    let crashed = begun((own, None), crash_on);
                    let loading = begun(crashed, 2);
                    assert_eq!(loading, (during, kept(own, during)));
                    let crashed = ended(loading, crash_off);
                    assert_eq!(ended(crashed, 2), (own, None));
                    assert_eq!(begun(crashed, 2), (during, kept(own, during)));
                }
            }
        }
    }

    #[test]
    fn a_repeated_switch_sends_nothing_to_the_server() {
        assert_eq!(begin_steps(DURING, kept(OWN, DURING), LOADING), []);
        // With another size of segments.
        assert_eq!(begin_steps(DURING, kept(OWN, DURING), 2 * LOADING), []);
        assert_eq!(end_steps(OWN, None, false), []);
    }

    #[test]
    fn a_server_that_waits_is_woken() {
        assert_eq!(end_steps(OWN, None, true), [Step::Set(OWN)]);
    }

    #[test]
    fn a_segment_that_is_left_as_it_is_needs_a_graph() {
        for (threshold, segment) in [(0, LOADING), (20_000, 20_000), (60_000, LARGEST_THRESHOLD)] {
            let own = Settings { threshold, ..OWN };
            assert_eq!(begun((own, None), 2).0.segment, segment);
        }
    }

    #[test]
    fn what_an_operator_sets_during_a_load_stays() {
        for threshold in [0, 300] {
            for segment in [300, LOADING, 20_000] {
                let set = Settings { threshold, segment };
                let (settings, left) = ended((set, kept(OWN, DURING)), 2);
                let wanted = |set, during, own| if set == during { own } else { set };
                assert_eq!(settings.threshold, wanted(threshold, 0, OWN.threshold));
                assert_eq!(settings.segment, wanted(segment, LOADING, OWN.segment));
                assert_eq!(left, None);
            }
        }
    }

    #[test]
    fn only_a_collection_that_needs_graphs_is_waited_for() {
        assert_eq!(patience(9_000, 1, 1, 10_000), Duration::ZERO);
        assert_eq!(patience(11_000, 2, 1, 10_000), Duration::from_secs(2));
        assert_eq!(patience(11_000, 1, 1, 10_000), Duration::from_secs(30));
        assert_eq!(patience(22_000, 2, 1, 10_000), Duration::from_secs(30));
        // Small segments, so many that the server merges some.
        assert_eq!(patience(22_000, 9, 1, 10_000), Duration::from_secs(30));
        assert_eq!(patience(22_000, 9, 2, 10_000), Duration::from_secs(2));
        // The operator wants no graphs.
        assert_eq!(patience(22_000, 2, 1, 0), Duration::ZERO);
        assert_eq!(patience(22_000, 9, 1, 0), Duration::from_secs(30));
    }
}
