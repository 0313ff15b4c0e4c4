//! Splits a text into pieces as the patterns of byte-level BPE tokenizers do, without a regular
//! expression.
//!
//! Two patterns and a variant are in use: that of GPT-2 and RoBERTa, and that of cl100k, Llama 3 and
//! Qwen. A tokenizer with another one is left to the library.

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const SPACE: u8 = 4;
/// Besides [`SPACE`].
const LINE_BREAK: u8 = 8;

/// Characters from here on are neither letters, numbers nor whitespace.
const CLASSES: usize = 0x3_3480;

/// How a text is split. Its pieces follow each other without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Gpt2,
    Cl100k {
        /// The most digits of a piece.
        digits: usize,
    },
}

impl Pattern {
    /// The pattern of a byte-level pre-tokenizer, if it is one of these.
    pub(super) fn of(pre_tokenizer: &PreTokenizerWrapper) -> Option<Self> {
        match pre_tokenizer {
            PreTokenizerWrapper::ByteLevel(level) => {
                (level.use_regex && !level.add_prefix_space).then_some(Self::Gpt2)
            }
            PreTokenizerWrapper::Sequence(all) => match all.as_ref() {
                [
                    PreTokenizerWrapper::Split(split),
                    PreTokenizerWrapper::ByteLevel(level),
                ] if !level.use_regex && !level.add_prefix_space => Self::of_split(split),
                _ => None,
            },
            _ => None,
        }
    }

    fn of_split(split: &Split) -> Option<Self> {
        let keeps_pieces = match split.behavior {
            SplitDelimiterBehavior::Isolated => true,
            SplitDelimiterBehavior::Removed => split.invert,
            _ => false,
        };
        let SplitPattern::Regex(regex) = &split.pattern else {
            return None;
        };
        let digits = match regex
            .strip_prefix(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}")?
            .strip_suffix(r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")?
        {
            "{1,3}" => 3,
            "" => 1,
            _ => return None,
        };
        keeps_pieces.then_some(Self::Cl100k { digits })
    }

    /// Where the piece ends that begins at `start`, which is not the end of the text.
    pub(super) fn piece_end(self, text: &str, start: usize) -> usize {
        match self {
            Self::Gpt2 => gpt2_end(text, start),
            Self::Cl100k { digits } => cl100k_end(text, start, digits),
        }
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
fn gpt2_end(text: &str, start: usize) -> usize {
    let bytes = text.as_bytes();
    if bytes[start] == b'\''
        && let Some(end) = contraction_end(bytes, start, |byte| byte)
    {
        return end;
    }
    let begin = start + usize::from(bytes[start] == b' ');
    let (class, _) = class_at(text, begin);
    match class {
        LETTER | NUMBER | 0 if begin < text.len() => run_end(text, begin, |c| c == class),
        _ => spaces_end(text, start),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
fn cl100k_end(text: &str, start: usize, digits: usize) -> usize {
    let bytes = text.as_bytes();
    if bytes[start] == b'\'' {
        if let Some(end) = contraction_end(bytes, start, |byte| byte.to_ascii_lowercase()) {
            return end;
        }
        // The long s is an s to whom case does not matter.
        if text[start + 1..].starts_with('ſ') {
            return start + 1 + 'ſ'.len_utf8();
        }
    }
    let (class, len) = class_at(text, start);
    if class == LETTER {
        return run_end(text, start + len, |c| c == LETTER);
    }
    if class == NUMBER {
        let mut end = start + len;
        for _ in 1..digits {
            match class_at(text, end) {
                (NUMBER, len) => end += len,
                _ => break,
            }
        }
        return end;
    }
    let next = start + len;
    let (class_of_next, len_of_next) = class_at(text, next);
    if class & LINE_BREAK == 0 && class_of_next == LETTER {
        return run_end(text, next + len_of_next, |c| c == LETTER);
    }
    let is_blank = bytes[start] == b' ';
    if class == 0 || (is_blank && next < text.len() && class_of_next == 0) {
        let end = run_end(text, next, |c| c == 0);
        return run_end(text, end, |c| c & LINE_BREAK != 0);
    }
    let end = run_end(text, start, |c| c & SPACE != 0);
    let line_break = bytes[start..end]
        .iter()
        .rposition(|byte| matches!(byte, b'\r' | b'\n'));
    match line_break {
        Some(last) => start + last + 1,
        None => spaces_end(text, start),
    }
}

/// Where `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` ends.
fn contraction_end(bytes: &[u8], start: usize, case: impl Fn(u8) -> u8) -> Option<usize> {
    let letter = |place| bytes.get(start + place).map(|&byte| case(byte));
    match (letter(1)?, letter(2)) {
        (b's' | b't' | b'm' | b'd', _) => Some(start + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(start + 3),
        _ => None,
    }
}

/// `\s+(?!\S)|\s+`: the last of several spaces belongs to the word that follows.
fn spaces_end(text: &str, start: usize) -> usize {
    let end = run_end(text, start, |c| c & SPACE != 0);
    if end == text.len() {
        return end;
    }
    let last = text[start..end].char_indices().next_back();
    match last {
        Some((before, _)) if before > 0 => start + before,
        _ => end,
    }
}

fn run_end(text: &str, start: usize, belongs: impl Fn(u8) -> bool) -> usize {
    let mut end = start;
    while end < text.len() {
        let (class, len) = class_at(text, end);
        if !belongs(class) {
            break;
        }
        end += len;
    }
    end
}

/// The class and the bytes of the character at `position`; no class and no bytes at the end.
fn class_at(text: &str, position: usize) -> (u8, usize) {
    let Some(&byte) = text.as_bytes().get(position) else {
        return (0, 0);
    };
    let classes = classes();
    if byte.is_ascii() {
        return (classes[usize::from(byte)], 1);
    }
    let c = text[position..].chars().next().unwrap_or_default();
    let class = classes.get(c as usize).copied().unwrap_or_default();
    (class, c.len_utf8())
}

fn classes() -> &'static [u8] {
    static CLASSES_OF: OnceLock<Box<[u8]>> = OnceLock::new();
    CLASSES_OF.get_or_init(|| {
        let mut classes = vec![0; CLASSES].into_boxed_slice();
        for (pattern, class) in [(r"\p{L}", LETTER), (r"\p{N}", NUMBER), (r"\s", SPACE)] {
            let hir = regex_syntax::parse(pattern).expect("the pattern is valid");
            let HirKind::Class(Class::Unicode(members)) = hir.kind() else {
                unreachable!("the pattern is a class of characters");
            };
            for range in members.ranges() {
                classes[range.start() as usize..=range.end() as usize].fill(class);
            }
        }
        for line_break in ['\r', '\n'] {
            classes[line_break as usize] |= LINE_BREAK;
        }
        classes
    })
}
