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
    words.map(|(_, word)| word).collect()
}

/// The same words, each with where it is in the text. In a script without spaces between words, they overlap.
pub fn located_words(text: &str, ascii_folding: bool) -> Vec<(Range<usize>, String)> {
    let mut words: Vec<(Range<usize>, String)> = Vec::new();
    let mut before: Option<(Script, char, usize)> = None;
    let mut graphemes = text.grapheme_indices(true).peekable();
    while let Some((start, grapheme)) = graphemes.next() {
        let mut end = start + grapheme.len();
        // AM that is written as two letters is one letter of the index.
        if grapheme.contains(['\u{e4d}', '\u{ecd}'])
            && let Some((_, aa)) =
                graphemes.next_if(|(_, next)| next.starts_with(['\u{e32}', '\u{eb2}']))
        {
            end += aa.len();
        }
        for c in for_keywords(&text[start..end], ascii_folding).chars() {
            let Some(script) = Script::of(c) else {
                before = None;
                continue;
            };
            let continues = before.filter(|(last, ..)| *last == script);
            match (words.last_mut(), continues, script) {
                (Some((range, word)), Some(_), _)
                    if script != Script::Unspaced || word.chars().count() == 1 =>
                {
                    word.push(c);
                    range.end = end;
                }
                (_, Some((_, last, start)), _) => {
                    words.push((start..end, String::from_iter([last, c])));
                }
                _ => words.push((start..end, c.into())),
            }
            before = Some((script, c, start));
        }
    }
    for (_, word) in &mut words {
        *word = word.to_lowercase();
    }
    words
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
    /// The script of a letter or number; `None` for what separates words.
    fn of(c: char) -> Option<Self> {
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
                .map(|(range, word)| (text[range].to_owned(), word))
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
