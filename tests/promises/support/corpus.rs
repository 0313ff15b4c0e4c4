//! Notes as people and programs write them: several languages, code, logs. Most are short,
//! some are long. The same seed gives the same notes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

/// Words that are made up for each language, beside those of the example notes.
const MADE_UP: usize = 5_000;

/// The most words of a text.
const LONGEST: f64 = 3_000.0;

/// The words and the punctuation of a language.
struct Language {
    words: Vec<String>,
    between: &'static str,
    full_stop: &'static str,
}

/// A source of texts.
pub struct Corpus {
    random: StdRng,
    languages: Vec<Language>,
}

impl Corpus {
    /// Texts that only depend on `seed`.
    pub fn seeded(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let real: Vec<String> = example_words().into_iter().collect();
        let mut made_up = |syllables: &[&str], between, full_stop| {
            let mut words = BTreeSet::new();
            while words.len() < MADE_UP {
                let length = random.random_range(1..=4);
                words.insert(
                    (0..length)
                        .map(|_| *syllables.choose(&mut random).unwrap())
                        .collect(),
                );
            }
            Language {
                words: words.into_iter().collect(),
                between,
                full_stop,
            }
        };
        let languages = vec![
            Language {
                words: real,
                between: " ",
                full_stop: ". ",
            },
            made_up(&ENGLISH, " ", ". "),
            made_up(&GERMAN, " ", ". "),
            made_up(&SPANISH, " ", "! "),
            made_up(&RUSSIAN, " ", ". "),
            made_up(&HINDI, " ", "। "),
            made_up(&JAPANESE, "", "。"),
            made_up(&CHINESE, "", "。"),
        ];
        Self { random, languages }
    }

    /// How many distinct words there are.
    pub fn vocabulary(&self) -> usize {
        let all = self.languages.iter().flat_map(|language| &language.words);
        all.collect::<BTreeSet<_>>().len()
    }

    /// `count` texts.
    pub fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.text()).collect()
    }

    /// A text: prose in nine of twelve, else code or a log.
    pub fn text(&mut self) -> String {
        // Pareto: half have fewer than 14 words, one in a thousand has 2,000.
        let tail: f64 = 1.0 - self.random.random::<f64>();
        let words = (8.0 * tail.powf(-0.8)).min(LONGEST) as usize;
        match self.random.random_range(0..12) {
            0..9 => self.prose(words),
            9 => self.code(words),
            _ => self.log(words),
        }
    }

    /// A word. A few words of each language make up most of a text (Zipf's law).
    fn word(&mut self, language: usize) -> String {
        let words = &self.languages[language].words;
        let rank = (words.len() as f64).powf(self.random.random()) as usize;
        words[rank.min(words.len()) - 1].clone()
    }

    fn prose(&mut self, words: usize) -> String {
        let language = self.random.random_range(0..self.languages.len());
        let (between, full_stop) = {
            let language = &self.languages[language];
            (language.between, language.full_stop)
        };
        let mut text = String::new();
        let mut left = words;
        while left > 0 {
            let length = self.random.random_range(4..18).min(left);
            left -= length;
            let sentence: Vec<String> = (0..length).map(|_| self.word(language)).collect();
            text += &sentence.join(between);
            text += full_stop;
            match self.random.random_range(0..12) {
                0 => text += "\n\n",
                1 => text += "\n- ",
                2 => text += "\n\n## ",
                _ => {}
            }
        }
        text
    }

    fn code(&mut self, words: usize) -> String {
        let mut text = String::new();
        for line in 0..words.div_ceil(6) {
            let (name, of) = (self.word(0), self.word(1));
            let number: u16 = self.random.random();
            let _ = match line % 3 {
                0 => writeln!(text, "fn {name}_{of}(input: &[u8]) -> Option<u{number}> {{"),
                1 => writeln!(text, "    let {name} = {of}.get({number})?;"),
                _ => writeln!(text, "}}  // {name} {of}"),
            };
        }
        text
    }

    fn log(&mut self, words: usize) -> String {
        let mut text = String::new();
        for _ in 0..words.div_ceil(8) {
            let (what, on) = (self.word(0), self.word(1));
            let (ms, code): (u32, u16) = (
                self.random.random_range(0..86_400_000),
                self.random.random(),
            );
            let level = ["INFO", "WARN", "ERROR"].choose(&mut self.random).unwrap();
            let _ = writeln!(
                text,
                "2026-03-14T{:02}:{:02}:{:02}.{:03}Z {level} {on}[{code}]: {what} failed, ERR-{code:04}",
                ms / 3_600_000,
                ms / 60_000 % 60,
                ms / 1_000 % 60,
                ms % 1_000,
            );
        }
        text
    }
}

/// Every word of the example notes.
fn example_words() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/notes");
    let mut words = BTreeSet::new();
    let mut folders = vec![root];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(path).unwrap();
                let of_text = text.split(|c: char| !c.is_alphanumeric());
                words.extend(of_text.filter(|w| !w.is_empty()).map(str::to_owned));
            }
        }
    }
    words
}

const ENGLISH: [&str; 24] = [
    "har", "bour", "light", "ing", "re", "ment", "sto", "ver", "wick", "tion", "al", "ous", "gar",
    "den", "pre", "ly", "ness", "quay", "th", "or", "un", "able", "mark", "et",
];
const GERMAN: [&str; 22] = [
    "ge", "ver", "über", "ung", "schaft", "lich", "wert", "haus", "straße", "können", "ent", "zug",
    "mäß", "ig", "keit", "bau", "auf", "ein", "nach", "richt", "stell", "größ",
];
const SPANISH: [&str; 22] = [
    "ción", "mañ", "ana", "des", "pués", "co", "razón", "mien", "to", "lla", "ve", "puer", "ta",
    "niñ", "o", "re", "cor", "dar", "ár", "bol", "que", "rer",
];
const RUSSIAN: [&str; 22] = [
    "при", "вет", "ние", "ость", "пере", "ход", "ный", "ская", "за", "пись", "мор", "ской", "до",
    "рога", "раз", "го", "вор", "ка", "ли", "сь", "по", "год",
];
const HINDI: [&str; 18] = [
    "नम",
    "स्ते",
    "घर",
    "पानी",
    "कल",
    "सु",
    "बह",
    "रात",
    "मि",
    "त्र",
    "का",
    "की",
    "बा",
    "त",
    "दि",
    "न",
    "रो",
    "टी",
];
const JAPANESE: [&str; 24] = [
    "の", "に", "は", "を", "た", "が", "で", "て", "と", "し", "れ", "さ", "ある", "いる", "カ",
    "ード", "港", "時", "計", "朝", "魚", "雨", "味", "噌",
];
const CHINESE: [&str; 24] = [
    "中", "国", "人", "大", "学", "生", "日", "本", "天", "气", "很", "好", "我", "们", "去", "海",
    "港", "灯", "塔", "书", "店", "早", "晚", "饭",
];

#[test]
fn the_corpus_is_large_varied_and_the_same_for_a_seed() {
    let mut corpus = Corpus::seeded(7);
    assert!(
        corpus.vocabulary() > 30_000,
        "{} words",
        corpus.vocabulary()
    );
    let texts = corpus.texts(2_000);
    assert_eq!(texts, Corpus::seeded(7).texts(2_000));
    assert!(texts.iter().all(|text| !text.trim().is_empty()));
    let mut lengths: Vec<usize> = texts.iter().map(String::len).collect();
    lengths.sort_unstable();
    assert!(lengths[1_000] < 400, "half are short: {}", lengths[1_000]);
    assert!(lengths[1_990] > 1_500, "a few are long: {}", lengths[1_990]);
}
