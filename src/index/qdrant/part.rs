//! Splits an upsert into the parts that one request each can hold.

use std::collections::BTreeMap;

use crate::index::{Point, UpsertMode};

/// Points in one request, at most: the server locks a shard during a request.
const MAX_POINTS: usize = 512;

/// Approximate bytes in one request, at most: some proxies pass no more.
const MAX_BYTES: usize = 4 << 20;

/// Points of one request.
#[derive(Default)]
pub(super) struct Part<'a> {
    /// The request replaces stored points up to this revision; `None` replaces none.
    pub(super) revision: Option<i64>,
    pub(super) points: Vec<&'a Point>,
    /// The size of the request, about.
    pub(super) bytes: usize,
}

/// Splits points into requests: one condition per request, so one revision, and
/// no request too large.
///
/// Each point takes `options` bytes besides its own.
pub(super) fn parts(points: &[Point], mode: UpsertMode, options: usize) -> Vec<Part<'_>> {
    let mut by_revision: BTreeMap<Option<i64>, Vec<&Point>> = BTreeMap::new();
    for point in points {
        let revision = match mode {
            UpsertMode::NotNewer => Some(point.payload.note.revision),
            UpsertMode::UpTo(revision) => Some(revision),
            UpsertMode::InsertOnly => None,
        };
        by_revision.entry(revision).or_default().push(point);
    }
    let mut parts = Vec::new();
    for (revision, points) in by_revision {
        let empty = || Part {
            revision,
            ..Part::default()
        };
        let mut part = empty();
        for point in points {
            let more = point.bytes() + options;
            let full = part.points.len() == MAX_POINTS
                || (part.bytes + more > MAX_BYTES && !part.points.is_empty());
            if full {
                parts.push(std::mem::replace(&mut part, empty()));
            }
            part.bytes += more;
            part.points.push(point);
        }
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::payload::test_payload;

    fn point(revision: i64, dim: usize) -> Point {
        let mut payload = test_payload();
        payload.note.revision = revision;
        Point {
            payload,
            vector: Some(vec![0.0; dim]),
            lead: String::new(),
            text: String::new(),
        }
    }

    fn shape(parts: &[Part<'_>]) -> Vec<(Option<i64>, usize)> {
        parts
            .iter()
            .map(|part| (part.revision, part.points.len()))
            .collect()
    }

    #[test]
    fn a_request_holds_one_revision() {
        let points = vec![point(2, 4), point(1, 4), point(2, 4)];
        assert_eq!(
            shape(&parts(&points, UpsertMode::NotNewer, 100)),
            [(Some(1), 1), (Some(2), 2)]
        );
        assert_eq!(
            shape(&parts(&points, UpsertMode::InsertOnly, 100)),
            [(None, 3)]
        );
    }

    #[test]
    fn a_large_upsert_is_split_and_loses_no_point() {
        assert_eq!(
            shape(&parts(&vec![point(1, 4); 1100], UpsertMode::NotNewer, 100)),
            [(Some(1), 512), (Some(1), 512), (Some(1), 76)]
        );
        // 9 kB of options each
        let sizes = shape(&parts(&vec![point(1, 4); 512], UpsertMode::NotNewer, 9_000));
        assert_eq!(sizes.len(), 2, "{sizes:?}");
        // 1 MB each
        let sizes = shape(&parts(
            &vec![point(1, 256 * 1024); 10],
            UpsertMode::InsertOnly,
            100,
        ));
        assert_eq!(sizes.iter().map(|(_, points)| points).sum::<usize>(), 10);
        assert!(sizes.iter().all(|(_, points)| *points <= 4), "{sizes:?}");
        // one that is too large for any request still goes
        assert_eq!(
            shape(&parts(
                &[point(1, 2 * 1024 * 1024)],
                UpsertMode::InsertOnly,
                100
            )),
            [(None, 1)]
        );
    }
}
