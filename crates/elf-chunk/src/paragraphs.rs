//! The outline of a text of paragraphs with blank lines between them.

use super::cuts::CutPoint;
use super::intros;
use super::math;
use super::outline::{Cut, Kind, Outline, rank};

pub(super) fn outline(text: &str) -> Outline {
    let mut cuts = Vec::new();
    let math = math::blocks(text);
    let is_in_math = |position: usize| {
        let block = math.get(math.partition_point(|block| block.end <= position));
        block.is_some_and(|block| block.start < position)
    };
    let mut start = 0;
    let mut is_behind_blank = false;
    // Paragraphs that introduce the next one, in a row.
    let mut intros = 0;
    let lines = text.split_inclusive('\n');
    for line in lines.flat_map(|line| line.split_inclusive('\u{2029}')) {
        let is_blank = line.trim_start().is_empty();
        if is_behind_blank && !is_blank {
            let cut = CutPoint::at(text, start);
            let CutPoint { end, next, .. } = cut;
            if end > 0 && !is_in_math(start) {
                let is_intro = intros < intros::MAX_RUN && intros::is_intro(text, cut);
                intros = if is_intro { intros + 1 } else { 0 };
                cuts.push(Cut {
                    end,
                    next,
                    rank: if is_intro { rank::INTRO } else { rank::BLOCK },
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
