//! Where sentences and clauses end that UAX #29 gets wrong: behind abbreviations, at line breaks
//! inside a paragraph, and in scripts that write no full stop.

use super::cuts::{self, CutPoint};

/// How a sentence ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With a terminator, or a blank line.
    Sentence,
    /// With a line break alone: prose may be wrapped there, a list of short lines is not.
    LineBreak,
}

/// Abbreviations before which a sentence seldom ends, in lower case, without the full stop. English,
/// German, French, Spanish, Portuguese, Italian, Dutch, Polish, Czech, Russian, Greek.
const ABBREVIATIONS: &[&str] = &[
    "abb", "abs", "al", "allg", "anm", "apr", "assoc", "aufl", "aug", "ausg", "av", "bd", "bde",
    "bl", "blvd", "bzgl", "bzw", "ca", "capt", "cf", "cfr", "ch", "chap", "cit", "co", "col",
    "corp", "dec", "dept", "dgl", "dipl", "dott", "dr", "dra", "ebd", "ed", "eds", "ee", "eg",
    "ej", "eng", "enz", "esp", "ev", "evtl", "excl", "fam", "feb", "fig", "figs", "fol", "fr",
    "frl", "geb", "gegr", "gen", "ggf", "gr", "hon", "hr", "hrsg", "ing", "inkl", "insb", "jan",
    "jg", "jh", "jhd", "jr", "jul", "jun", "kap", "kl", "lic", "lt", "maj", "mgr", "mio", "mlle",
    "mme", "mr", "mrd", "mrs", "ms", "mt", "mtl", "nov", "np", "nr", "num", "núm", "obs", "oct",
    "okt", "op", "orig", "pag", "pág", "pp", "prof", "pt", "qq", "resp", "rev", "rr", "sec", "sen",
    "sept", "sez", "sig", "sog", "sr", "sra", "srta", "st", "ste", "str", "tel", "tj", "tzv",
    "tzw", "usf", "vd", "vgl", "vol", "vs", "wg", "zb", "zit", "zt", "zzgl", "акад", "г", "гл",
    "др", "им", "напр", "пр", "проф", "рис", "см", "стр", "тов", "тыс", "ул", "βλ", "κεφ", "σελ",
];

/// Titles, and letters of names, in Hindi; "tel." in Thai and Lao.
const UNCASED: [&str; 15] = [
    "डॉ",
    "प्रो",
    "आर",
    "एन",
    "एम",
    "एल",
    "एस",
    "के",
    "जे",
    "डी",
    "पी",
    "बी",
    "सी",
    "โทร",
    "ໂທ",
];

/// Abbreviations that take a number behind them: "No. 5", "p. 7", but "I said no."
const BEFORE_NUMBERS: [&str; 12] = [
    "no", "nos", "p", "pos", "n", "art", "nº", "lit", "sek", "ver", "cap", "αρ",
];

/// Abbreviations of letters that often end a sentence, and words that begin one behind them.
const TIMES_AND_STATES: [&str; 5] = ["a.m", "p.m", "U.S", "U.K", "D.C"];
const STARTS: [&str; 11] = [
    "The", "He", "She", "It", "They", "We", "This", "These", "But", "Then", "There",
];

/// How the sentence before `cut` ends; `None` if it goes on.
pub(super) fn end(text: &str, cut: CutPoint) -> Option<End> {
    let gap = &text[cut.end..cut.next];
    if cut.paragraph {
        return Some(End::Sentence);
    }
    let before = &text[..cut.end];
    let after = &text[cut.next..];
    let is_line_break = gap.contains(['\n', '\r', '\u{85}', '\u{2028}']);
    if let Some(sentence) = before.strip_suffix('.') {
        if ends_with_abbreviation(sentence, after) {
            return is_line_break.then_some(End::LineBreak);
        }
        return Some(End::Sentence);
    }
    if is_inside_quoting(before, after) || is_no_end(before, after) {
        return None;
    }
    if is_line_break && !ends_with_terminator(before) {
        return Some(End::LineBreak);
    }
    Some(End::Sentence)
}

/// Closing quotation marks, some of which open in another language.
const QUOTES: [char; 10] = ['"', '\'', '»', '«', '”', '“', '’', '‘', '」', '』'];

/// Whether a quoted sentence ends between the two that is part of the one around it.
fn is_inside_quoting(before: &str, after: &str) -> bool {
    // « Viens ! », dit-il.
    let behind = after.strip_prefix(['»', '”']);
    if behind.is_some_and(|behind| behind.starts_with([',', '.', ';'])) {
        return true;
    }
    // 「行こう。」と言った, and the same in Burmese.
    let quotes = ["と", "っ", "は", "を", "が", "の", "に", "လို့", "ဟု"];
    let last = before.chars().next_back();
    if !last.is_some_and(|last| last == '）' || QUOTES.contains(&last)) {
        return false;
    }
    let quoted = before.trim_end_matches(QUOTES);
    // "Why?" she asked.
    let is_asked = quoted.trim_end().ends_with(['!', '?']);
    (is_asked && after.starts_with(char::is_lowercase))
        || quotes.iter().any(|word| after.starts_with(word))
        || is_chinese_tag(after)
}

/// Whether a text begins with who said what stands before: 她问。
fn is_chinese_tag(text: &str) -> bool {
    let ends = ['。', '，', '：', '！', '？'];
    let longest = text.char_indices().nth(6).map_or(text.len(), |(at, _)| at);
    let tag = text[..longest].split_once(ends).map(|(tag, _)| tag);
    tag.is_some_and(|tag| {
        tag.ends_with(['问', '問', '说', '說', '道', '答', '喊', '叫'])
            // "Nobody answered", "he knows".
            && !tag.contains(['没', '沒', '不', '知'])
    })
}

/// Whether the mark before, which ends a sentence to UAX #29, is the comma of Burmese or belongs to ។ល។, "and so on"
/// in Khmer.
fn is_no_end(before: &str, after: &str) -> bool {
    before.ends_with('၊')
        || before.ends_with("។ល។")
        || (before.ends_with('។') && after.starts_with("ល។"))
}

fn ends_with_terminator(text: &str) -> bool {
    let closers = [
        '"', '\'', ')', ']', '}', '»', '”', '’', '›', '」', '』', '）', '*', '_', '`',
    ];
    let text = text.trim_end_matches(closers);
    text.ends_with([
        '.', '!', '?', '…', '。', '！', '？', '؟', '۔', '।', '॥', '։', '።', '។', '៕', '။', '｡',
        '‽', ':', '：',
    ])
}

/// Whether the full stop behind `sentence` belongs to an abbreviation, an initial or a number.
fn ends_with_abbreviation(sentence: &str, after: &str) -> bool {
    let before_number = after.starts_with(|c: char| c.is_ascii_digit());
    // The last word, and the parts of "z. B" or "U.S": all short.
    let from = sentence.ceil_char_boundary(sentence.len().saturating_sub(40));
    let word = sentence[from..]
        .rsplit(|c: char| {
            c.is_whitespace() || matches!(c, '(' | '[' | '„' | '"' | '“' | '«' | '/' | '–')
        })
        .next()
        .unwrap_or_default();
    let last = word.rsplit(['.', '-']).next().unwrap_or_default();
    let mut letters = last.chars();
    match (letters.next(), letters.next()) {
        (None, _) => return false,
        // An initial, or the last letter of "z. B." A lone "I" is a word.
        (Some(c), None) if c.is_alphabetic() => {
            let ends = TIMES_AND_STATES.contains(&word) && starts_sentence(after);
            return is_initial(c) && (word != "I" || before_number) && !ends;
        }
        _ => {}
    }
    if is_item_number(word) {
        let (before, number) = sentence.split_at(sentence.len() - word.len());
        if before.is_empty() || begins_item(before, number) {
            return true;
        }
    }
    // An ordinal number: "am 3. Oktober".
    if last.len() <= 2 && last.bytes().all(|byte| byte.is_ascii_digit()) {
        return is_month(after);
    }
    let last = last.to_lowercase();
    // "Hauptstr. 5", and letters without a vowel as in "ดร."
    let is_short = last.chars().all(is_southeast_consonant) && last.chars().nth(3).is_none();
    is_short
        || ABBREVIATIONS.contains(&last.as_str())
        || UNCASED.contains(&last.as_str())
        || (before_number && (BEFORE_NUMBERS.contains(&last.as_str()) || last.ends_with("str")))
}

/// Whether a word may be the number of an item, without the full stop: "12", "1.2", "IV".
fn is_item_number(word: &str) -> bool {
    let is_roman = |word: &str| word.bytes().all(|byte| b"IVXLC".contains(&byte));
    let is_short = |number: &str| {
        (1..=3).contains(&number.len()) && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    word.len() <= 7 && (is_roman(word) || word.split('.').all(is_short))
}

/// Whether a number behind `before` is that of an item: it begins a line or a sentence.
fn begins_item(before: &str, number: &str) -> bool {
    let line = before.trim_end_matches([' ', '\t', '>']);
    if line.ends_with('\n') {
        return true;
    }
    match line.strip_suffix('.') {
        _ if line.len() == before.len() => false,
        Some(sentence) => {
            !sentence.ends_with(|c: char| c.is_ascii_digit())
                && !ends_with_abbreviation(sentence, number)
        }
        None => line.ends_with(['!', '?', ':']),
    }
}

/// Whether a letter may stand for a name. One letter of Chinese, Japanese or Korean is a word.
fn is_initial(c: char) -> bool {
    c.is_lowercase()
        || c.is_uppercase()
        || matches!(c, '\u{5d0}'..='\u{10ff}' | '\u{1780}'..='\u{17a2}')
}

/// A consonant of Thai or Lao.
fn is_southeast_consonant(c: char) -> bool {
    matches!(c, '\u{e01}'..='\u{e2e}' | '\u{e81}'..='\u{eae}')
}

/// Whether `text` begins with a word that follows no abbreviation inside a sentence.
fn starts_sentence(text: &str) -> bool {
    let word = text.split(char::is_whitespace).next();
    word.is_some_and(|word| STARTS.contains(&word))
}

/// Whether `text` begins with a month, or a noun that German counts. A month may be a number: "am 3. 5. 1990".
fn is_month(text: &str) -> bool {
    let number = text
        .split_once('.')
        .and_then(|(number, _)| number.parse().ok());
    if number.is_some_and(|number: u32| (1..=12).contains(&number)) {
        return true;
    }
    const AFTER_ORDINALS: [&str; 22] = [
        "Januar",
        "Jänner",
        "Februar",
        "März",
        "April",
        "Mai",
        "Juni",
        "Juli",
        "August",
        "September",
        "Oktober",
        "November",
        "Dezember",
        "Jahrhundert",
        "Weltkrieg",
        "Kapitel",
        "Auflage",
        "Klasse",
        "Stock",
        "Tag",
        "Semester",
        "Platz",
    ];
    AFTER_ORDINALS.iter().any(|word| text.starts_with(word))
}

/// Whether a clause ends between `before` and `after`: also at a space in a script that writes none
/// between words.
pub(super) fn ends_clause(before: &str, after: &str) -> bool {
    let is_spaced = before.ends_with(char::is_whitespace) || after.starts_with(char::is_whitespace);
    let joins = |c: char| matches!(c, '\u{e01}'..='\u{e5b}' | '\u{e81}'..='\u{edf}' | '\u{1780}'..='\u{17d3}' | '\u{1000}'..='\u{109f}');
    cuts::ends_clause(before, after)
        || (is_spaced
            && before.trim_end().ends_with(joins)
            && after.trim_start().starts_with(joins))
}

#[cfg(test)]
mod tests {
    use super::super::cuts::SentenceScan;
    use super::super::sentences;
    use super::*;

    /// The sentences of a text, as the chunker cuts them.
    fn sentences_of(text: &str) -> Vec<&str> {
        let mut scan = SentenceScan::default();
        let mut start = 0;
        let mut found = Vec::new();
        let mut from = 0;
        for next in sentences::starts(text).chain([text.len()]) {
            if let Some(cut) = scan.push(text, start..next, true)
                && end(text, cut) == Some(End::Sentence)
            {
                found.push(&text[from..cut.end]);
                from = cut.next;
            }
            start = next;
        }
        found.push(&text[from..]);
        found
    }

    #[test]
    fn sentences_in_ten_languages() {
        for sentences in [
            // English
            &[
                "Dr. Smith paid 3.5 million to J. R. R. Tolkien Ltd. in May.",
                "He left.",
            ][..],
            &[
                "Some tools, e.g. Vim, i.e. editors, cf. Smith et al. 2001, are old.",
                "See Fig. 3 and No. 5.",
            ],
            &["I said no.", "Then it rained."],
            &[
                "He moved to the U.S. Army in 1999.",
                "It was I.",
                "That is it.",
            ],
            &[
                "Mr. and Mrs. Okafor vs. St. Mary.",
                "Why?",
                "\"Because!\"",
                "Then.",
            ],
            // German
            &[
                "Am 3. Oktober kam Prof. Dr. Weber, z. B. mit Nr. 7 bzw. 8, vgl. Abb. 2.",
                "Danach ging er.",
            ],
            &[
                "Das geschah im 19. Jahrhundert ca. 20 km entfernt.",
                "Es waren 12.",
                "Alle lachten.",
            ],
            // French
            &[
                "M. Dupont a vu Mme. Curie, p. ex. à Paris, cf. p. 7.",
                "Où est-il ?",
                "Ici.",
            ],
            // Spanish
            &[
                "El Sr. García y la Dra. López, pág. 5, núm. 3.",
                "¿Qué hora es?",
                "¡Ya!",
            ],
            // Russian
            &["См. рис. 2 и стр. 7, напр. у А. С. Пушкина.", "Он ушёл."],
            // Chinese
            &["会议三点开始。", "请带报告！", "真的吗？", "他问。"],
            // Japanese
            &["「行こう。」と彼は言った。", "雨が降った。", "寒い！"],
            // Hindi
            &["वह घर गया।", "डॉ ने कहा।"],
            // Arabic
            &["ذهبت إلى السوق.", "هل عدت؟", "نعم."],
            // Khmer
            &["ខ្ញុំទៅផ្សារ។", "គាត់នៅផ្ទះ។"],
            // Armenian
            &["Նա գնաց տուն։", "Ես մնացի։"],
        ] {
            for separator in [" ", ""] {
                let spaced = sentences[0].is_ascii() || sentences[0].contains(' ');
                if separator.is_empty() && spaced {
                    continue;
                }
                let text = sentences.join(separator);
                assert_eq!(sentences_of(&text), sentences);
            }
        }
    }

    #[test]
    fn a_line_break_inside_a_sentence_is_no_end_of_it() {
        assert_eq!(
            sentences_of("The ferry\nleaves. It\nis late.\n\nGo").len(),
            3
        );
        assert_eq!(sentences_of("Seen by Dr.\nSmith. Then").len(), 2);
    }

    #[test]
    fn scripts_without_spaces_between_words_have_clauses_between_spaces() {
        for (text, clauses) in [
            ("วันนี้ฝนตก เราอยู่บ้าน", 2),
            ("ມື້ນີ້ຝົນຕົກ ພວກເຮົາຢູ່ເຮືອນ", 2),
            ("ថ្ងៃនេះភ្លៀង យើងនៅផ្ទះ", 2),
            ("Today it rains and we stay", 1),
            ("今日は雨、家にいる", 2),
            ("今天下雨，我们在家", 2),
        ] {
            let ends = text.char_indices().filter(|&(at, c)| {
                !c.is_whitespace() && at > 0 && ends_clause(&text[..at], &text[at..])
            });
            assert_eq!(ends.count() + 1, clauses, "{text}");
        }
    }
}
