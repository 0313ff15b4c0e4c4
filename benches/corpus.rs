//! Texts of real words: prose in seven languages, source code and log lines. Words are as frequent
//! as in their language. The same seed gives the same text, and another seed another one.

use std::path::{Path, PathBuf};

use crate::Result;

/// Where `scripts/bench_data.py` puts the words.
const WORDS: &str = ".elf/bench/words";

/// Words of one language.
struct Language {
    name: String,
    words: Vec<String>,
    /// The sum of the frequencies up to each word.
    upto: Vec<f64>,
}

impl Language {
    fn new(name: &str, words: impl Iterator<Item = (String, f64)>) -> Self {
        let mut sum = 0.0;
        let (words, upto) = words
            .map(|(word, frequency)| {
                sum += frequency;
                (word, sum)
            })
            .unzip();
        Self {
            name: name.to_owned(),
            words,
            upto,
        }
    }

    fn word(&self, random: &mut Random) -> &str {
        let at = random.share() * self.upto.last().copied().unwrap_or_default();
        let place = self.upto.partition_point(|upto| *upto <= at);
        &self.words[place.min(self.words.len() - 1)]
    }

    /// Chinese and Japanese have no spaces between words.
    fn space(&self) -> &'static str {
        match self.name.as_str() {
            "ja" | "zh" => "",
            _ => " ",
        }
    }

    fn stop(&self) -> &'static str {
        match self.name.as_str() {
            "ja" | "zh" => "。",
            _ => ". ",
        }
    }
}

/// The kinds of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Prose,
    English,
    Code,
    Log,
    /// Seven in ten prose of any language, the others code or logs.
    Mixed,
}

/// Makes texts.
pub struct Corpus {
    languages: Vec<Language>,
    /// Lines of this repository's source.
    code: Vec<String>,
    pub source: String,
}

impl Corpus {
    /// Words of `scripts/bench_data.py` if they are there, else those of this repository's documents
    /// and of the tokenizer's vocabulary.
    pub fn load() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut languages = Vec::new();
        let lists = files(&root.join(WORDS), "txt").unwrap_or_default();
        for path in &lists {
            let name = path.file_stem().and_then(|stem| stem.to_str());
            let lines = std::fs::read_to_string(path)?;
            let words = lines.lines().enumerate().flat_map(|(line, words)| {
                let frequency = 10f64.powf(-(line as f64) / 100.0);
                words
                    .split(' ')
                    .map(move |word| (word.to_owned(), frequency))
            });
            languages.push(Language::new(
                name.ok_or("a word list has no name")?,
                words.filter(|(word, _)| !word.is_empty()),
            ));
        }
        let source = match languages.is_empty() {
            true => {
                languages.push(own_words(root)?);
                "this repository and the model's vocabulary"
            }
            false => "wordfreq 3.1.1",
        };
        let mut code = Vec::new();
        for path in files(&root.join("src"), "rs")? {
            let text = std::fs::read_to_string(path)?;
            code.extend(
                text.lines()
                    .filter(|l| !l.trim().is_empty())
                    .map(str::to_owned),
            );
        }
        let words: usize = languages.iter().map(|language| language.words.len()).sum();
        let of: Vec<&str> = languages.iter().map(|l| l.name.as_str()).collect();
        Ok(Self {
            source: format!("{words} words of {} ({source})", of.join(", ")),
            languages,
            code,
        })
    }

    /// A text of about this size, never longer.
    pub fn text(&self, kind: Kind, seed: u64, bytes: usize) -> String {
        let mut random = Random::new(seed);
        let kind = match (kind, random.below(20)) {
            (Kind::Mixed, 0..14) => Kind::Prose,
            (Kind::Mixed, 14..17) => Kind::Code,
            (Kind::Mixed, _) => Kind::Log,
            (kind, _) => kind,
        };
        let language = match kind {
            Kind::English => self.languages.iter().find(|l| l.name == "en"),
            _ => None,
        };
        let language =
            language.unwrap_or_else(|| &self.languages[random.below(self.languages.len())]);
        let mut text = String::with_capacity(bytes + 256);
        while text.len() < bytes {
            match kind {
                Kind::Code => self.code_block(language, &mut random, &mut text),
                Kind::Log => log_line(language, &mut random, &mut text),
                Kind::Prose | Kind::English | Kind::Mixed => {
                    paragraph(language, &mut random, &mut text);
                }
            }
        }
        text.truncate(text.floor_char_boundary(bytes));
        text
    }

    /// A long text of many short ones, so that it has all kinds.
    pub fn long_text(&self, kind: Kind, seed: u64, bytes: usize) -> String {
        const PART: usize = 4000;
        let mut text = String::with_capacity(bytes + PART);
        let mut part = seed << 32;
        while text.len() < bytes {
            text += &self.text(kind, part, PART);
            text += "\n\n";
            part += 1;
        }
        text.truncate(text.floor_char_boundary(bytes));
        text
    }

    /// As many mixed texts of this size, with seeds from `first` on.
    pub fn notes(&self, first: usize, count: usize, bytes: usize) -> Vec<String> {
        (first..first + count)
            .map(|seed| self.text(Kind::Mixed, seed as u64, bytes))
            .collect()
    }

    /// A comment of words and some lines that follow each other in the source.
    fn code_block(&self, language: &Language, random: &mut Random, text: &mut String) {
        *text += "// ";
        for _ in 0..4 + random.below(8) {
            *text += language.word(random);
            *text += " ";
        }
        let first = random.below(self.code.len());
        for line in self.code.iter().skip(first).take(2 + random.below(8)) {
            *text += "\n";
            *text += line;
        }
        *text += "\n\n";
    }
}

fn paragraph(language: &Language, random: &mut Random, text: &mut String) {
    for _ in 0..3 + random.below(4) {
        let words = 6 + random.below(14);
        for n in 0..words {
            let word = language.word(random);
            match (n, word.chars().next()) {
                (0, Some(first)) => {
                    text.extend(first.to_uppercase());
                    *text += &word[first.len_utf8()..];
                }
                _ => *text += word,
            }
            if n + 1 < words {
                if random.below(9) == 0 {
                    *text += ",";
                }
                *text += language.space();
            }
        }
        *text += language.stop();
    }
    *text += "\n\n";
}

fn log_line(language: &Language, random: &mut Random, text: &mut String) {
    let level = ["INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR"][random.below(6)];
    let part = ["worker", "store", "provider", "http", "scheduler"][random.below(5)];
    *text += &format!(
        "2026-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {level} {part}: ",
        random.below(12) + 1,
        random.below(28) + 1,
        random.below(24),
        random.below(60),
        random.below(60),
        random.below(1000),
    );
    for _ in 0..2 + random.below(6) {
        *text += language.word(random);
        *text += " ";
    }
    *text += &format!("ms={} id={:08x}\n", random.below(900), random.next() as u32);
}

/// Words of the documents, as often as they are there, and of the vocabulary of the demo's model.
fn own_words(root: &Path) -> Result<Language> {
    let mut counts = std::collections::BTreeMap::<String, f64>::new();
    for folder in ["docs", "examples/notes"] {
        for path in files(&root.join(folder), "md")? {
            for word in std::fs::read_to_string(path)?.split_whitespace() {
                *counts.entry(word.to_owned()).or_default() += 1.0;
            }
        }
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(crate::tokenizer("minilm")?)?)?;
    let vocabulary = json["model"]["vocab"].as_object().ok_or("no vocabulary")?;
    for word in vocabulary
        .keys()
        .filter(|word| word.chars().all(char::is_alphabetic))
    {
        *counts.entry(word.clone()).or_default() += 0.2;
    }
    Ok(Language::new("en", counts.into_iter()))
}

/// Every file below `folder` with this extension, in the order of their paths.
pub fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut entries = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|of| of == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

/// The same numbers in every release of every library (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
