//! One form for what Unicode writes in several, alike for notes and queries. What is stored and
//! shown stays the exact text of the note.

use std::borrow::Cow;
use std::ops::Range;

pub use elf_chunk::composed;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_normalization_alignments::char::is_combining_mark;
use unicode_segmentation::UnicodeSegmentation;

/// A text in NFD: `é` is `e` and U+0301.
pub fn decomposed(text: &str) -> String {
    text.nfd().map(|(c, _)| c).collect()
}

/// A text as an engine for keywords gets it: in NFKC, with spaces between its words.
///
/// Engines compare code points, and take for a word whatever stands between characters that are
/// neither letter nor number. In `警報GX-5521が` they would see the words `警報GX` and `5521が`.
pub fn for_keywords(text: &str, ascii_folding: bool) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let characters = text.chars().filter(|c| !is_invisible(*c));
    Cow::Owned(match ascii_folding {
        false => spaced(letters(characters.nfkc().map(|(c, _)| c))),
        true => {
            // The engine folds what is a letter of its own, such as ø and ß.
            let unmarked = characters.nfkd().map(|(c, _)| c).filter(|c| !is_accent(*c));
            spaced(letters(unmarked.nfc().map(|(c, _)| c)))
        }
    })
}

/// The words of a text, in lower case, without stemmer and stopwords.
pub fn words(text: &str, ascii_folding: bool) -> Vec<String> {
    let words = located_words(text, ascii_folding).into_iter();
    words.map(|(_, word)| word.into_owned()).collect()
}

/// The same words, each with where it is in the text. In a script without spaces between words, they overlap.
pub fn located_words(text: &str, ascii_folding: bool) -> Vec<(Range<usize>, Cow<'_, str>)> {
    let mut found = LocatedWords {
        text,
        words: Vec::new(),
        before: None,
    };
    let mut start = 0;
    while start < text.len() {
        let plain = start + plain_bytes(&text[start..]);
        found.push_plain(start..plain);
        let others = plain + bytes_until_plain(&text[plain..]);
        found.push_graphemes(plain..others, ascii_folding);
        start = others;
    }
    found.in_lower_case()
}

/// Whether a character is one word or letter of the index as it is, and never a part of a longer grapheme by
/// itself: most of ASCII, Cyrillic, Japanese, Chinese and Korean. Others take longer.
pub fn is_plain(c: char) -> bool {
    c.is_ascii() || Script::of_plain(c).is_some()
}

/// So many bytes at the beginning of a text are plain characters, and graphemes by themselves.
fn plain_bytes(text: &str) -> usize {
    let mut last = 0;
    for (at, c) in text.char_indices() {
        if !is_plain(c) {
            // It may be a mark on the last one.
            return last;
        }
        last = at;
    }
    text.len()
}

/// Between two plain characters there is a bound of graphemes, or a line break.
fn bytes_until_plain(text: &str) -> usize {
    let mut is_behind_plain = false;
    for (at, c) in text.char_indices() {
        if std::mem::replace(&mut is_behind_plain, is_plain(c)) && is_behind_plain {
            return at;
        }
    }
    text.len()
}

struct LocatedWords<'t> {
    text: &'t str,
    words: Vec<(Range<usize>, Cow<'t, str>)>,
    /// The letter or number directly before: its script, itself, and where its grapheme begins.
    before: Option<(Script, char, usize)>,
}

impl LocatedWords<'_> {
    fn push_plain(&mut self, part: Range<usize>) {
        let mut rest = part;
        while let Some(c) = self.text[rest.clone()].chars().next() {
            let start = rest.start;
            let run = self.text.as_bytes()[rest.clone()].iter();
            match run.take_while(|byte| byte.is_ascii_alphanumeric()).count() {
                0 => {
                    rest.start += c.len_utf8();
                    self.push(c, start..rest.start);
                }
                bytes => {
                    rest.start += bytes;
                    self.push_ascii(start..rest.start);
                }
            }
        }
    }

    /// A run of letters and numbers of ASCII.
    fn push_ascii(&mut self, run: Range<usize>) {
        let slice = &self.text[run.clone()];
        match (self.words.last_mut(), self.before) {
            (Some((range, word)), Some((Script::Latin, ..))) => {
                word.to_mut().push_str(slice);
                range.end = run.end;
            }
            _ => self.words.push((run.clone(), Cow::Borrowed(slice))),
        }
        let last = slice.chars().next_back();
        self.before = last.map(|last| (Script::Latin, last, run.end - 1));
    }

    fn push_graphemes(&mut self, part: Range<usize>, ascii_folding: bool) {
        let text = self.text;
        let mut graphemes = text[part.clone()].grapheme_indices(true).peekable();
        while let Some((at, grapheme)) = graphemes.next() {
            let start = part.start + at;
            let mut end = start + grapheme.len();
            // AM that is written as two letters is one letter of the index.
            if grapheme.contains(['\u{e4d}', '\u{ecd}'])
                && let Some((_, aa)) =
                    graphemes.next_if(|(_, next)| next.starts_with(['\u{e32}', '\u{eb2}']))
            {
                end += aa.len();
            }
            for c in for_keywords(&text[start..end], ascii_folding).chars() {
                self.push(c, start..end);
            }
        }
    }

    /// A character of a grapheme, which is at `at`.
    fn push(&mut self, c: char, at: Range<usize>) {
        let Some(script) = Script::of(c) else {
            self.before = None;
            return;
        };
        let continues = self.before.filter(|(last, ..)| *last == script);
        let text = self.text;
        match (self.words.last_mut(), continues, script) {
            (Some((range, word)), Some(_), _)
                if script != Script::Unspaced || word.chars().nth(1).is_none() =>
            {
                range.end = at.end;
                let is_slice = matches!(word, Cow::Borrowed(_)) && is_char(&text[at.clone()], c);
                match &text[range.clone()] {
                    slice if is_slice && slice.len() == word.len() + c.len_utf8() => {
                        *word = Cow::Borrowed(slice);
                    }
                    _ => word.to_mut().push(c),
                }
            }
            (_, Some((_, last, start)), _) => {
                let slice = &text[start..at.end];
                let pair = match slice.strip_prefix(last) {
                    Some(rest) if is_char(rest, c) => Cow::Borrowed(slice),
                    _ => Cow::Owned(String::from_iter([last, c])),
                };
                self.words.push((start..at.end, pair));
            }
            _ => {
                let slice = &text[at.clone()];
                let word = match is_char(slice, c) {
                    true => Cow::Borrowed(slice),
                    false => Cow::Owned(c.into()),
                };
                self.words.push((at.clone(), word));
            }
        }
        self.before = Some((script, c, at.start));
    }
}

impl<'t> LocatedWords<'t> {
    fn in_lower_case(mut self) -> Vec<(Range<usize>, Cow<'t, str>)> {
        for (_, word) in &mut self.words {
            if word.is_ascii() {
                if word.bytes().any(|byte| byte.is_ascii_uppercase()) {
                    word.to_mut().make_ascii_lowercase();
                }
            } else if !word.chars().all(is_plain_lower_case) {
                *word = Cow::Owned(word.to_lowercase());
            }
        }
        self.words
    }
}

/// Whether a text is this one character.
fn is_char(text: &str, c: char) -> bool {
    text.strip_prefix(c) == Some("")
}

/// Whether a character is plain, and in lower case or of a script without cases.
fn is_plain_lower_case(c: char) -> bool {
    is_plain(c) && !c.is_ascii_uppercase() && !matches!(c, '\u{410}'..='\u{42f}')
}

/// A normalised text without the marks that engines take for ends of words, such as the tone marks of Thai and the
/// virama of Hindi. The vowel AM of Thai and Lao stays one letter: NFKC makes two of it.
fn letters(characters: impl Iterator<Item = char>) -> impl Iterator<Item = char> {
    let mut characters = characters
        .filter(|c| c.is_alphanumeric() || !is_combining_mark(*c))
        .peekable();
    std::iter::from_fn(move || {
        let c = characters.next()?;
        Some(match (c, characters.peek()) {
            ('\u{e4d}', Some('\u{e32}')) | ('\u{ecd}', Some('\u{eb2}')) => {
                // AM follows AA in both scripts.
                characters
                    .next()
                    .map_or(c, |aa| char::from_u32(u32::from(aa) + 1).unwrap_or(aa))
            }
            _ => c,
        })
    })
}

/// Puts a space between letters of different scripts, and a run of a script without spaces between words as its
/// pairs of letters: `開めた` is `開め めた`. So a word of two letters and more is found inside of it.
fn spaced(characters: impl Iterator<Item = char>) -> String {
    let mut text = String::new();
    let mut before: Option<(char, Script)> = None;
    let mut is_pair = false;
    for c in characters {
        let script = Script::of(c);
        match (before, script) {
            (Some((_, last)), Some(script)) if last != script => {
                text.push(' ');
                is_pair = false;
            }
            (Some((last, _)), Some(Script::Unspaced)) => {
                if is_pair {
                    text.extend([' ', last]);
                }
                is_pair = true;
            }
            _ => is_pair = false,
        }
        text.push(c);
        before = script.map(|script| (c, script));
    }
    text
}

/// Soft hyphens and joiners: a word with one looks like the word without it.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{2060}' | '\u{feff}')
}

/// An accent of a Latin, Greek or Cyrillic letter. Other marks, such as those of が, make another
/// letter.
pub fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Script {
    /// Numbers too: an id has both.
    Latin,
    /// Written without spaces between words, or, as in Korean, with endings behind foreign words.
    Unspaced,
    Other,
}

impl Script {
    /// The script of a letter that no normalisation changes, and that begins no longer grapheme by itself. `None` for
    /// others, and for ASCII.
    fn of_plain(c: char) -> Option<Self> {
        match c {
            // Without й, of which folding makes и.
            '\u{410}'..='\u{418}' | '\u{41a}'..='\u{438}' | '\u{43a}'..='\u{44f}' => {
                Some(Self::Other)
            }
            '\u{3041}'..='\u{3096}'
            | '\u{30a1}'..='\u{30fa}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7a3}' => Some(Self::Unspaced),
            _ => None,
        }
    }

    /// The script of a letter or number; `None` for what separates words.
    fn of(c: char) -> Option<Self> {
        if let Some(script) = Self::of_plain(c) {
            return Some(script);
        }
        c.is_alphanumeric().then_some(match c {
            '\0'..='\u{2af}'
            | '\u{1d00}'..='\u{1eff}'
            | '\u{2c60}'..='\u{2c7f}'
            | '\u{a720}'..='\u{a7ff}'
            | '\u{ab30}'..='\u{ab6f}' => Self::Latin,
            // Thai, Lao, Tibetan and Burmese; Khmer; Chinese, Japanese, Korean and Yi.
            '\u{e00}'..='\u{109f}'
            | '\u{1100}'..='\u{11ff}'
            | '\u{1780}'..='\u{17ff}'
            | '\u{2e80}'..='\u{a4cf}'
            | '\u{a960}'..='\u{a97f}'
            | '\u{aa60}'..='\u{aadf}'
            | '\u{ac00}'..='\u{d7ff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{1b000}'..='\u{1b2ff}'
            | '\u{20000}'..='\u{3ffff}' => Self::Unspaced,
            _ => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_word_in_every_script() {
        for text in [
            "警報GX-5521が出たら",
            "请检查错误GX-5521的原因",
            "오류GX-5521에서",
            "ข้อผิดพลาดGX-5521เกิดขึ้น",
            "ຜິດGX-5521ພາດ",
            "កំហុសGX-5521នៅ",
            "အမှားGX-5521ကို",
            "ошибкаGX-5521а",
            "שגיאהבGX-5521",
            "警報ＧＸ－５５２１が",
            "GX\u{2011}5521",
            "GX-55\u{ad}21",
        ] {
            let words = words(text, false);
            for word in ["gx", "5521"] {
                assert!(words.iter().any(|w| w == word), "{text}: {words:?}");
            }
        }
        assert_eq!(
            words("型番はTR2200です", false),
            ["型番", "番は", "tr2200", "です"]
        );
        assert_eq!(words("Café店", false), ["café", "店"]);
    }

    #[test]
    fn a_word_inside_a_text_without_spaces_is_a_part_of_it() {
        for (text, word) in [
            ("今天北京下雨", "北京"),
            ("ポンプの圧力が低い", "圧力"),
            ("서울에서 만나요", "서울"),
            ("วันนี้ฝนตก", "ฝนตก"),
        ] {
            let all = words(text, false);
            let of_word = words(word, false);
            assert!(
                of_word.iter().all(|pair| all.contains(pair)),
                "{all:?} {of_word:?}"
            );
        }
        assert_eq!(words("魚", false), ["魚"]);
        assert_eq!(words("abc déf", false), ["abc", "déf"]);
    }

    #[test]
    fn composed_and_decomposed_texts_have_the_same_words() {
        for text in ["Brûlé Zürich", "Việt Nam", "각하", "ガラス", "Ἀθῆναι"] {
            let decomposed = decomposed(text);
            assert_ne!(text, decomposed);
            assert_eq!(composed(&decomposed), text);
            assert_eq!(words(text, false), words(&decomposed, false));
            assert_eq!(words(text, true), words(&decomposed, true));
        }
    }

    #[test]
    fn marks_do_not_end_a_word() {
        for text in ["น้ำ", "น\u{e4d}\u{e49}\u{e32}", "น\u{e49}\u{e4d}\u{e32}"] {
            assert_eq!(words(text, false), ["นำ"], "{text}");
            assert_eq!(located_words(text, true)[0].0, 0..text.len());
        }
        assert_eq!(words("ค่ำ", true), ["คำ"]);
        assert_eq!(words("ນ້ຳ", false), ["ນຳ"]);
        assert_eq!(words("हिन्दी", false), ["हिनदी"]);
        assert_eq!(words("ẹ\u{300}kọ\u{301}", false), ["ẹkọ"]);
        assert_eq!(words("1\u{fe0f}\u{20e3}", false), ["1"]);
    }

    #[test]
    fn accents_are_folded_where_that_is_wanted() {
        for (text, folded) in [
            ("Brûlé", "brule"),
            ("Bru\u{302}le\u{301}", "brule"),
            ("καφέ", "καφε"),
            ("ёлка", "елка"),
            ("が", "が"),
        ] {
            assert_eq!(words(text, true), [folded]);
        }
        assert_eq!(words("Brûlé", false), ["brûlé"]);
    }

    #[test]
    fn a_word_is_located_in_the_exact_text() {
        let located = |text: &str| -> Vec<(String, String)> {
            let words = located_words(text, true).into_iter();
            words
                .map(|(range, word)| (text[range].to_owned(), word.into_owned()))
                .collect()
        };
        let as_is = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            let pairs = pairs.iter();
            pairs.map(|(a, b)| ((*a).into(), (*b).into())).collect()
        };
        assert_eq!(
            located("Cafe\u{301}, ＧＸ-55\u{ad}21!"),
            as_is(&[
                ("Cafe\u{301}", "cafe"),
                ("ＧＸ", "gx"),
                ("55\u{ad}21", "5521")
            ])
        );
        assert_eq!(
            located("型番はTR2"),
            as_is(&[("型番", "型番"), ("番は", "番は"), ("TR2", "tr2")])
        );
    }

    proptest::proptest! {
        #[test]
        fn the_words_are_those_that_the_engine_sees(
            text in "([a-zé0-9ßİΣς ,.\u{301}\u{ad}½ﬁÅ]|[漢字かなガｶﾞ각ไทยນ้ำ\u{e4d}າຳ\u{ecd}ກក]|[а-яёא]|\\PC){0,24}", fold in proptest::bool::ANY,
        ) {
            let engine = for_keywords(&text, fold).to_lowercase();
            let engine: Vec<&str> = engine.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()).collect();
            proptest::prop_assert_eq!(words(&text, fold), engine);
        }
    }

    #[test]
    fn an_ascii_text_is_handed_on_as_it_is() {
        let text = for_keywords("ERR-4417: SKU_123 v1.2.3", true);
        assert!(matches!(text, Cow::Borrowed("ERR-4417: SKU_123 v1.2.3")));
    }
}
