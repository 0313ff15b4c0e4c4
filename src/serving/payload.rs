//! The payload of a point, from the row of its chunk.

use crate::index::{NotePayload, Payload};
use crate::store::LiveChunk;

/// The payload of the point of `chunk`. The worker, the rebuild and the verify all build it
/// here: promise 1 needs them to agree.
pub fn payload(chunk: &LiveChunk, version: &str) -> Payload {
    Payload {
        chunk_id: chunk.chunk_id,
        chunk_index: chunk.chunk_index,
        start_offset: chunk.start as u64,
        end_offset: chunk.end as u64,
        note: NotePayload {
            note_id: chunk.note_id,
            status: chunk.status.clone(),
            expires_at: chunk.expires_at,
            labels: chunk.labels.clone(),
            embedding_version: version.to_owned(),
            revision: chunk.revision,
        },
    }
}
