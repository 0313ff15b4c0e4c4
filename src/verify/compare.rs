//! Decides whether a point equals its chunk. `points` reads them.

use serde::Serialize;
use uuid::Uuid;

use crate::index::StoredPoint;
use crate::serving;
use crate::store::LiveChunk;

/// How far two unit vectors may be apart, component by component: an engine
/// normalises in its own order of additions.
const VECTOR_TOLERANCE: f32 = 1e-4;

/// And how far in proportion to a component: the engine may keep 11 bits of it (float16).
const ROUNDING: f32 = 1.0 / 1024.0;

/// What is wrong with a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Drift {
    /// A chunk has no point.
    Missing,
    /// The point is of another revision, has another payload or another vector.
    Stale,
    /// No chunk has this point.
    Orphaned,
}

/// How the point of an id differs from its chunk, if it does. A chunk that lost its vector has no
/// point: that is an inconsistency of its note and no drift.
pub fn drift(
    chunk: Option<&LiveChunk>,
    point: Option<&StoredPoint>,
    version: &str,
) -> Option<Drift> {
    match (chunk, point) {
        (None, None) => None,
        (Some(chunk), _) if !chunk.has_point() => None,
        (Some(_), None) => Some(Drift::Missing),
        (None, Some(_)) => Some(Drift::Orphaned),
        (Some(chunk), Some(point)) => {
            let same_payload = serving::payload(chunk, version).to_json() == point.payload;
            (!same_payload || !same_vector(chunk, point)).then_some(Drift::Stale)
        }
    }
}

/// Compares which of the two have a vector, and the vectors if both were read: that is done only on
/// request.
fn same_vector(chunk: &LiveChunk, point: &StoredPoint) -> bool {
    if point.has_vector == Some(chunk.awaits_vector) {
        return false;
    }
    let (Some(wanted), Some(found)) = (&chunk.vector, &point.vector) else {
        return true;
    };
    let norm = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>().sqrt();
    let (a, b) = (norm(wanted), norm(found));
    wanted.len() == found.len()
        && wanted
            .iter()
            .zip(found)
            .map(|(x, y)| (x / a, y / b))
            .all(|(x, y)| (x - y).abs() < VECTOR_TOLERANCE + ROUNDING * x.abs())
}

/// The ids whose chunk and point differ. Both lists are sorted by id.
pub fn differing_ids(chunks: &[LiveChunk], points: &[StoredPoint], version: &str) -> Vec<Uuid> {
    let (mut chunks, mut points) = (chunks.iter().peekable(), points.iter().peekable());
    let mut differing = Vec::new();
    loop {
        let id = match (chunks.peek(), points.peek()) {
            (None, None) => return differing,
            (Some(chunk), None) => chunk.chunk_id,
            (None, Some(point)) => point.chunk_id,
            (Some(chunk), Some(point)) => chunk.chunk_id.min(point.chunk_id),
        };
        let chunk = chunks.next_if(|chunk| chunk.chunk_id == id);
        let point = points.next_if(|point| point.chunk_id == id);
        if drift(chunk, point, version).is_some() {
            differing.push(id);
        }
    }
}

pub fn note_id(point: &StoredPoint) -> Option<Uuid> {
    point.payload.get("note_id")?.as_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::note::Labels;

    fn chunk(id: u128) -> LiveChunk {
        LiveChunk {
            lead: String::new(),
            chunk_id: Uuid::from_u128(id),
            note_id: Uuid::from_u128(7),
            chunk_index: 0,
            start: 0,
            end: 4,
            revision: 5,
            text: None,
            has_vector: true,
            awaits_vector: false,
            vector: Some(vec![3.0, 4.0]),
            status: "active".into(),
            expires_at: None,
            labels: Labels {
                tenant_id: "t".into(),
                project_id: "p".into(),
                agent_id: "a".into(),
                scope: "s".into(),
                kind: "n".into(),
                key: None,
                source: None,
                importance: 0.5,
                confidence: 1.0,
                updated_at: chrono::DateTime::UNIX_EPOCH,
                fields: Default::default(),
            },
            unreadable: None,
        }
    }

    #[test]
    fn a_vector_that_the_engine_keeps_in_half_precision_is_the_same() {
        let half = |x: f32| f32::from_bits((x.to_bits() + 0x1000) & !0x1fff);
        let vector: Vec<f32> = (0..384_u16).map(|n| (f32::from(n) * 0.7).sin()).collect();
        let chunk = LiveChunk {
            vector: Some(vector.clone()),
            ..chunk(1)
        };
        let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        let kept: Vec<f32> = vector.iter().map(|x| half(x / norm)).collect();
        let mut other = kept.clone();
        let point_with = |kept: Vec<f32>| StoredPoint {
            vector: Some(kept),
            ..point(1)
        };
        assert!(same_vector(&chunk, &point_with(kept)));
        other[7] += 0.001;
        assert!(!same_vector(&chunk, &point_with(other)));
    }

    fn point(id: u128) -> StoredPoint {
        StoredPoint {
            chunk_id: Uuid::from_u128(id),
            payload: serving::payload(&chunk(id), "v").to_json(),
            vector: Some(vec![0.6, 0.8]),
            has_vector: Some(true),
        }
    }

    #[test]
    fn both_sides_are_compared_to_their_ends() {
        let chunks = [chunk(1), chunk(2), chunk(4), chunk(6)];
        let points = [point(2), point(3), point(4), point(9)];
        let ids = |ids: &[u128]| -> Vec<Uuid> { ids.iter().map(|i| Uuid::from_u128(*i)).collect() };
        assert_eq!(differing_ids(&chunks, &points, "v"), ids(&[1, 3, 6, 9]));
        assert_eq!(differing_ids(&chunks, &[], "v"), ids(&[1, 2, 4, 6]));
        assert_eq!(differing_ids(&[], &points, "v"), ids(&[2, 3, 4, 9]));
        assert_eq!(differing_ids(&[], &[], "v"), ids(&[]));
    }

    #[test]
    fn every_way_to_differ_has_its_name() {
        let (row, stored) = (chunk(1), point(1));
        let of = |row: Option<&LiveChunk>, stored: Option<&StoredPoint>| drift(row, stored, "v");
        assert_eq!(of(Some(&row), Some(&stored)), None);
        assert_eq!(of(Some(&row), None), Some(Drift::Missing));
        assert_eq!(of(None, Some(&stored)), Some(Drift::Orphaned));
        assert_eq!(drift(Some(&row), Some(&stored), "w"), Some(Drift::Stale));
        let mut turned = stored.clone();
        turned.vector = Some(vec![0.8, 0.6]);
        assert_eq!(of(Some(&row), Some(&turned)), Some(Drift::Stale));
        let mut relabelled = stored.clone();
        relabelled.payload.insert("scope".into(), "x".into());
        assert_eq!(of(Some(&row), Some(&relabelled)), Some(Drift::Stale));
        let mut more = stored;
        more.payload.insert("text".into(), "secret".into());
        assert_eq!(of(Some(&row), Some(&more)), Some(Drift::Stale));
    }

    #[test]
    fn a_chunk_that_awaits_its_vector_has_a_point_without_one() {
        let row = LiveChunk {
            has_vector: false,
            awaits_vector: true,
            vector: None,
            ..chunk(1)
        };
        let mut stored = point(1);
        assert_eq!(drift(Some(&row), None, "v"), Some(Drift::Missing));
        assert_eq!(drift(Some(&row), Some(&stored), "v"), Some(Drift::Stale));
        stored.vector = None;
        assert_eq!(drift(Some(&row), Some(&stored), "v"), Some(Drift::Stale));
        stored.has_vector = Some(false);
        assert_eq!(drift(Some(&row), Some(&stored), "v"), None);
        assert_eq!(
            drift(Some(&chunk(1)), Some(&stored), "v"),
            Some(Drift::Stale),
            "the point of a chunk with a vector has lost it"
        );
    }

    #[test]
    fn a_chunk_without_a_vector_is_no_drift() {
        let row = LiveChunk {
            has_vector: false,
            ..chunk(1)
        };
        assert_eq!(drift(Some(&row), None, "v"), None);
    }

    #[test]
    fn a_revision_that_no_worker_can_have_is_none() {
        let mut stored = point(1);
        assert_eq!(stored.revision(), Some(5));
        stored.payload.insert("revision".into(), i64::MAX.into());
        assert_eq!(stored.revision(), None);
        stored.payload.remove("revision").unwrap();
        assert_eq!(stored.revision(), None);
    }
}
