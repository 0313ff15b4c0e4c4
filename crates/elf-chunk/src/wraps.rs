//! Line breaks inside a sentence: prose that is wrapped, told from lines that stand by themselves.
//!
//! An editor breaks a line where the next word would exceed the width. So a line of wrapped prose is so
//! long that the next word would make it longer than its neighbours. Lines of a log, a table or a verse
//! are longer or shorter by chance.

use super::cuts::CutPoint;
use super::languages::{self, End};
use super::lines::{first_break, last_break};

/// A wrapped line has at least so many bytes. A shorter one is an item or a verse.
const LEAST_BYTES: usize = 50;

/// A longer line is a paragraph of its own, or a record.
const MOST_BYTES: usize = 400;

/// A line with so many blanks before it, and another number of them than its neighbour, may be code.
const CODE_INDENT: usize = 4;

/// Lines on both sides that are compared.
const NEIGHBOURS: usize = 2;

/// The longest beginning of a line that is a word: behind it, an address begins, or a script without spaces.
const MOST_OF_A_WORD: usize = 20;

/// Whether the cut is a line break inside a sentence of wrapped prose.
pub(super) fn is_wrapped(text: &str, cut: CutPoint) -> bool {
    // Most lines of a list or a log are short.
    let last = &text.as_bytes()[cut.end.saturating_sub(LEAST_BYTES)..cut.end];
    if last.contains(&b'\n') || languages::end(text, cut) != Some(End::LineBreak) {
        return false;
    }
    let mut above = lines_above(&text[..cut.end]);
    let mut below = lines_below(&text[cut.next..]);
    let (Some(line), Some(next)) = (above.next(), below.next()) else {
        return false;
    };
    // A man page indents all of its lines.
    let indent = line.len() - line.trim_start_matches(' ').len();
    let gap = &text[cut.end..cut.next];
    let indent_below = gap.len() - gap.trim_end_matches(' ').len();
    if indent != indent_below && indent.max(indent_below) >= CODE_INDENT {
        return false;
    }
    let line = &line[indent..];
    if line.len() < LEAST_BYTES || begins_part(next) {
        return false;
    }
    let opened = next.trim_start_matches(|c: char| "\"'“„«‘(¿¡*_`".contains(c));
    let Some(first) = opened.chars().next() else {
        return false;
    };
    let others = above.take(NEIGHBOURS).chain(below.take(NEIGHBOURS - 1));
    let others = others.map(|line| line.trim_start_matches(' '));
    let longest = others.chain([next]).map(width).max().unwrap_or(0);
    let width = width(line);
    // A name or a German noun may begin a line, but so does a sentence.
    let is_wide = longest * 4 >= width * 3;
    let is_full = match first {
        // Written by hand, lines differ.
        _ if first.is_lowercase() => width * 4 >= longest * 3,
        // Chinese and Japanese are wrapped between characters.
        '\u{2e80}'..='\u{9fff}' => is_wide && width + 2 >= longest,
        _ => is_wide && first.is_alphabetic() && width + 1 + word(next) > longest,
    };
    is_full && is_prose(line) && is_prose(next)
}

/// The lines that end with `text`, the last one first, up to a blank one. One that is too long ends them too, after it
/// was given without its beginning.
fn lines_above(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let from = text.ceil_char_boundary(text.len().saturating_sub(MOST_BYTES));
        let start = last_break(&text[from..]).map(|at| from + at + 1);
        let line = &text[start.unwrap_or(from)..];
        rest = start.map(|start| {
            let above = &text[..start - 1];
            above.strip_suffix('\r').unwrap_or(above)
        });
        Some(line.trim_end()).filter(|line| !line.trim_start().is_empty())
    })
    .fuse()
}

/// The lines that `text` begins with, likewise.
fn lines_below(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let most = &text[..text.floor_char_boundary(MOST_BYTES)];
        let end = first_break(most);
        rest = end.map(|end| {
            let below = &text[end..];
            below.strip_prefix("\r\n").unwrap_or(&below[1..])
        });
        let line = most[..end.unwrap_or(most.len())].trim_end();
        Some(line).filter(|line| !line.trim_start().is_empty())
    })
    .fuse()
}

fn width(line: &str) -> usize {
    line.chars().count()
}

/// Characters of the first word.
fn word(line: &str) -> usize {
    let word = line.chars().take(MOST_OF_A_WORD);
    word.take_while(|c| !c.is_whitespace()).count()
}

/// Whether a line is words with spaces between them, not code or a record.
fn is_prose(line: &str) -> bool {
    if line.len() >= MOST_BYTES || line.starts_with(['#', '|', '\t']) {
        return false;
    }
    let bytes = line.as_bytes();
    let is_sign = |byte: u8| matches!(byte, b'\t' | b'|' | b'=' | b'{' | b'}');
    // Without an end inside, the loop compares many bytes at once.
    if bytes
        .iter()
        .fold(false, |found, &byte| found | is_sign(byte))
    {
        return false;
    }
    // "a;b;c", but not "a; b".
    let separates =
        |pair: &&[u8]| matches!(pair[0], b',' | b';') && pair[1].is_ascii_alphanumeric();
    bytes.windows(2).filter(separates).count() < 2
}

/// Whether a line begins with a sign of a block, an item or a record.
fn begins_part(line: &str) -> bool {
    let marks = ['#', '>', '|', '~', '[', '<', '!', '/', '{', '}'];
    let is_item = line.starts_with(['-', '*', '+', '•'])
        && line.chars().nth(1).is_none_or(char::is_whitespace);
    let word = &line[..line.find(char::is_whitespace).unwrap_or(line.len())];
    // "a)", "iv.", "key:", "Anna:"
    let is_label = word.ends_with(':')
        || (word.ends_with(')') && !word.contains('('))
        || (word.ends_with('.') && word.chars().count() == 2);
    is_item || is_label || line.starts_with(marks) || line.starts_with("```")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the first line break is one inside a sentence.
    fn wraps(text: &str) -> bool {
        let at = text.find('\n').expect("a text of two lines");
        let cut = CutPoint::at(text, at);
        let paragraph = text[cut.end..cut.next].contains("\n\n");
        is_wrapped(text, CutPoint { paragraph, ..cut })
    }

    #[test]
    fn prose_is_wrapped() {
        for text in [
            "It is a rather long line of prose that surely goes on\nbehind the break.",
            "The committee agreed that the bridge over the river near\nCologne is safe, but that the path along it is not\nand must be closed.",
            "They came from the towns to the north of the river (and\n(it seems) from the south.",
            "Der Zug aus Hamburg kommt wegen der gesperrten Strecke am\r\nMontag erst um acht Uhr abends in Köln und um neun in Bonn an.",
            "The author of the book that I told you about is called J.\nSmith, and lives in a house by the sea with her brother.",
            "       The program reads the file again when a signal arrives, and\n       goes on with the new settings.",
            "会议定于星期三上午十点在三楼的大会议室里开始举行并请\n带上报告和上次会议的记录以及所有尚未解决的问题的清单再\n来",
        ] {
            assert!(wraps(text), "{text}");
        }
    }

    #[test]
    fn lines_that_stand_by_themselves_are_not_wrapped() {
        for text in [
            // A sentence ends, or a paragraph.
            "It is a rather long line of prose that surely ends here.\nbehind the break.",
            "It is a rather long line of prose without a full stop\n\nbehind the break",
            // Too short.
            "Shall I compare thee to a summer's day,\nthou art more lovely",
            // The next word would have had its place.
            "A list of what is missing in the cellar of the house\nLamps\nA ladder that reaches the roof, and a rope of thirty metres or more",
            "usb 1-1: new high-speed device number 4 using the controller\nusb 1-1: the device has a strange descriptor, so that the driver looked at all of its interfaces twice before it went on",
            "Prices of the ferry to the island in the winter of 1999\nAdults pay twice",
            // Records.
            "Nov 28 22:47:01 host sshd: Accepted password for the user\nNov 28 22:47:09 host sshd: session opened for the user root by the daemon",
            "level=info msg=started component=worker queue=default time=1\nlevel=info msg=stopped component=worker",
            "anna;berlin;a remark of some length;another one;active now\nberta;bonn;a remark;another;inactive",
            "anna,berlin,a remark of some length,another one,active now\nberta,bonn,a remark,another,inactive",
            "anna | berlin | a remark of some length | another | active\nberta | bonn | a remark",
            // Signs.
            "It is a rather long line of prose that surely goes on and\n- is a list",
            "It is a rather long line of prose that surely goes on and\nb) is a list",
            "It is a rather long line of prose that surely goes on and\n# is a heading",
            "speaker: it is a rather long line that somebody has said and\nanna: so is this",
            "    let code = of_a_function_with_a_long_name(and, arguments)\nend",
        ] {
            assert!(!wraps(text), "{text}");
        }
    }
}
