//! The outline of a text of paragraphs with blank lines between them.

use super::cuts::CutPoint;
use super::outline::{Cut, Kind, Outline, rank};

pub(super) fn outline(text: &str) -> Outline {
    let mut cuts = Vec::new();
    let mut start = 0;
    let mut is_behind_blank = false;
    for line in text.split_inclusive(['\n', '\u{2029}']) {
        let is_blank = line.trim().is_empty();
        if is_behind_blank && !is_blank {
            let CutPoint { end, next, .. } = CutPoint::at(text, start);
            if end > 0 {
                cuts.push(Cut {
                    end,
                    next,
                    rank: rank::BLOCK,
                    inside: None,
                });
            }
        }
        is_behind_blank = is_blank || line.ends_with('\u{2029}');
        start += line.len();
    }
    Outline {
        kind: Kind::Paragraph,
        cuts,
        ..Outline::default()
    }
}
