//! The outline of a text that is split at separators of falling rank, as LangChain's
//! `RecursiveCharacterTextSplitter` does with `keep_separator="start"`.

use super::cuts::CutPoint;
use super::outline::{Block, Cut, Kind, Outline};

pub(super) fn outline(text: &str, separators: &[String]) -> Outline {
    let mut cuts: Vec<Cut> = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    // Start, end and block of each piece.
    let mut pieces = vec![(0, text.len(), None)];
    let separators = separators.iter().take(usize::from(u8::MAX));
    for (rank, separator) in (0..=u8::MAX).zip(separators) {
        if separator.is_empty() {
            break;
        }
        let mut smaller = Vec::new();
        for &(start, end, inside) in &pieces {
            let mut from = start;
            let mut last = 0..0;
            for (at, _) in text[start..end].match_indices(separator.as_str()) {
                // All cuts inside a run of whitespace are the same. To look at its beginning from each of a
                // million line breaks would take quadratic time.
                if last.contains(&(start + at)) {
                    continue;
                }
                let CutPoint { end, next, .. } = CutPoint::at(text, start + at);
                last = end..next;
                if end <= from || next <= from || next >= text.len() {
                    continue;
                }
                cuts.push(Cut {
                    end,
                    next,
                    rank,
                    inside,
                });
                smaller.push((from, end, inside));
                from = next;
            }
            if from > start {
                smaller.push((from, end, inside));
            } else {
                smaller.push((start, end, inside));
            }
        }
        // Each piece of a level is a block to the levels below.
        for piece in &mut smaller {
            let (start, end, _) = *piece;
            if let Some(span) = super::outline::trimmed(text, super::outline::Span { start, end }) {
                piece.2 = u32::try_from(blocks.len()).ok();
                blocks.push(Block {
                    start: span.start,
                    end: span.end,
                });
            }
        }
        pieces = smaller;
    }
    cuts.sort_by_key(|cut| (cut.next, cut.rank));
    cuts.dedup_by_key(|cut| cut.next);
    Outline {
        kind: Kind::Recursive,
        cuts,
        blocks,
        ..Outline::default()
    }
}
