//! Stitching: a chunk and what is around it become one slice of the note's text.

use serde::Serialize;

use crate::store::{ChunkText, Surroundings};

/// A slice of a note's text: the parent of a chunk, or the chunk with the one before it and the one after it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Context {
    /// The byte offset in the note's text (UTF-8) where it begins.
    pub start_offset: usize,
    /// The byte offset where it ends.
    pub end_offset: usize,
    /// The slice.
    pub text: String,
}

impl Context {
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }
}

/// The context of `chunk`. The chunk alone if the note's text has changed there since it was
/// chunked, or is too long to read.
pub fn stitch(chunk: &ChunkText, around: Surroundings) -> Context {
    exact(chunk, around).unwrap_or_else(|| Context {
        start_offset: chunk.start_offset,
        end_offset: chunk.end_offset,
        text: chunk.text.clone(),
    })
}

fn exact(chunk: &ChunkText, around: Surroundings) -> Option<Context> {
    let Surroundings {
        start_offset,
        bytes,
    } = around;
    let text = String::from_utf8(bytes?).ok()?;
    let before = chunk.start_offset.checked_sub(start_offset)?;
    text.get(before..)?
        .starts_with(&chunk.text)
        .then(|| Context {
            start_offset,
            end_offset: start_offset + text.len(),
            text,
        })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::FoundNote;

    const NOTE: &str = "Größe. First part.\n\nSecond part. Third.";

    fn chunk(text: &str) -> ChunkText {
        let start = NOTE.find(text).unwrap_or(3);
        ChunkText {
            chunk_id: Uuid::nil(),
            note_id: Uuid::nil(),
            note: FoundNote::default(),
            chunk_index: 1,
            start_offset: start,
            end_offset: start + text.len(),
            text: text.into(),
            importance: 0.5,
            revision: 1,
        }
    }

    fn around(start: usize, end: usize) -> Surroundings {
        Surroundings {
            start_offset: start,
            bytes: Some(NOTE.as_bytes()[start..end].to_vec()),
        }
    }

    #[test]
    fn a_context_is_a_slice_of_the_note() {
        let context = stitch(&chunk("Second part."), around(0, NOTE.len()));
        assert_eq!(context.text, NOTE[context.start_offset..context.end_offset]);
        assert_eq!(context.text, NOTE);
        let context = stitch(&chunk("Second part."), around(8, 34));
        assert_eq!(context.text, NOTE[8..34]);
        assert_eq!((context.start_offset, context.end_offset), (8, 34));
    }

    #[test]
    fn a_text_that_changed_or_is_too_long_leaves_the_chunk_alone() {
        let changed = chunk("Fourth part.");
        let cut = Surroundings {
            start_offset: 0,
            bytes: Some(NOTE.as_bytes()[..3].to_vec()),
        };
        let long = Surroundings {
            start_offset: 0,
            bytes: None,
        };
        for around in [around(0, NOTE.len()), around(20, NOTE.len()), cut, long] {
            let context = stitch(&changed, around);
            assert_eq!(context.text, "Fourth part.");
            assert_eq!(context.start_offset, changed.start_offset);
            assert_eq!(context.end_offset, changed.end_offset);
        }
    }
}
