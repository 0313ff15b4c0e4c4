//! What an edit of a long note costs: how many texts ELF embeds after one sentence was inserted,
//! changed or deleted, with both settings of `chunking.boundaries`.
//!
//! Edits and made texts come from a fixed seed.
//!
//! Tried and not kept, for stable boundaries: at least half of a chunk new instead of two fifths (means of 2.03 and
//! 1.94 instead of 1.98 and 1.90); chunks that add no more than the size without the overlap (up to 7% more chunks);
//! three chunks ahead instead of two (no gain); at least 0.6 or 0.7 of a chunk new (6 to 13% fewer chunks, 95% of 7 to
//! 16). With 120 edits of each text, 95% is uncertain by about 1.
//!
//! Passed over: chunk ids that follow from the content. Between the commit and the new points, a search would drop a
//! note whose only chunk was edited.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use elf_chunk::{Boundaries, Chunk, Chunker, Settings, Tokenizer};
use unicode_segmentation::UnicodeSegmentation;

use crate::corpus::files;
use crate::report::{Report, Target};
use crate::{Options, Result};

/// `max_tokens`, `overlap_tokens`.
const SIZES: [(usize, usize); 2] = [(256, 64), (512, 128)];

/// Chunks of each text with greedy boundaries.
const CHUNKS: usize = 100;

/// A longer sentence is edited in pieces of about this size.
const MAX_EDIT_BYTES: usize = 120;

pub fn run(options: Options) -> Result<()> {
    let mut report = Report::new("edits", options, "no engine");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read(crate::tokenizer("minilm")?)?;
    let tokenizer = Arc::new(Tokenizer::from_json(&json)?);
    let edits = options.size(300, 3);
    report.fact("edits of each text", edits);
    let mut texts = texts(root)?;
    texts.truncate(options.size(texts.len(), 2));
    for (max_tokens, overlap_tokens) in SIZES {
        for boundaries in [Boundaries::Greedy, Boundaries::Stable] {
            let [greedy, chunker] = [Boundaries::Greedy, boundaries].map(|boundaries| {
                let settings = Settings {
                    enabled: true,
                    max_tokens,
                    overlap_tokens,
                    boundaries,
                    ..Settings::default()
                };
                Chunker::new(tokenizer.clone(), &settings, "")
            });
            let (greedy, chunker) = (greedy?, chunker?);
            let (mean, p95) = match boundaries {
                Boundaries::Greedy => (Target::None, Target::None),
                Boundaries::Stable => (Target::AtMost(2.0), Target::AtMost(3.0)),
            };
            for (name, text) in &texts {
                let chunks = greedy.chunk(text)?;
                let text = &text[..chunks[chunks.len().min(CHUNKS) - 1].end];
                let of = Figures::of(&chunker, text, max_tokens, edits)?;
                let name = format!("{max_tokens}/{overlap_tokens} {boundaries:?}, {name}");
                report.value(&format!("{name}: mean"), "texts", vec![of.mean], mean);
                report.value(&format!("{name}: 95%"), "texts", vec![of.p95 as f64], p95);
                report.value(
                    &format!("{name}: max"),
                    "texts",
                    vec![of.max as f64],
                    Target::None,
                );
                report.value(&format!("{name}: fill"), "", vec![of.fill], Target::None);
                report.value(
                    &format!("{name}: chunks"),
                    "",
                    vec![of.chunks as f64],
                    Target::None,
                );
            }
        }
    }
    report.write()
}

struct Figures {
    chunks: usize,
    /// Mean share of `max_tokens` that a chunk uses.
    fill: f64,
    /// Texts embedded after an edit.
    mean: f64,
    p95: usize,
    max: usize,
}

impl Figures {
    fn of(chunker: &Chunker, text: &str, max_tokens: usize, edits: usize) -> Result<Self> {
        let chunks = chunker.chunk(text)?;
        let old: HashSet<&str> = slices(text, &chunks).collect();
        let sentences = sentences(text);
        let mut random = Random(7);
        let mut embedded = Vec::with_capacity(edits);
        for edit in 0..edits {
            let (start, end) = sentences[random.below(sentences.len())];
            let (other_start, other_end) = sentences[random.below(sentences.len())];
            // A number makes it a sentence that the text did not have.
            let new = format!(
                "{} {}",
                random.below(90_000) + 10_000,
                &text[other_start..other_end]
            );
            let edited = match edit % 3 {
                0 => [&text[..start], &new, &text[start..]].concat(),
                1 => [&text[..start], &new, &text[end..]].concat(),
                _ => [&text[..start], &text[end..]].concat(),
            };
            let chunks = chunker.chunk(&edited)?;
            let new: HashSet<&str> = slices(&edited, &chunks).collect();
            embedded.push(new.difference(&old).count());
        }
        embedded.sort_unstable();
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens).sum();
        Ok(Self {
            chunks: chunks.len(),
            fill: tokens as f64 / (chunks.len() * max_tokens) as f64,
            mean: embedded.iter().sum::<usize>() as f64 / edits as f64,
            p95: embedded[(edits * 95).div_ceil(100) - 1],
            max: embedded[edits - 1],
        })
    }
}

fn slices<'a>(text: &'a str, chunks: &'a [Chunk]) -> impl Iterator<Item = &'a str> {
    chunks.iter().map(|chunk| &text[chunk.start..chunk.end])
}

/// Where sentences begin and end, with the whitespace behind them.
fn sentences(text: &str) -> Vec<(usize, usize)> {
    let mut sentences = Vec::new();
    for (start, sentence) in text.split_sentence_bound_indices() {
        let mut piece = start;
        for (offset, word) in sentence.split_word_bound_indices() {
            let end = start + offset + word.len();
            if end == start + sentence.len() || end - piece >= MAX_EDIT_BYTES {
                sentences.push((piece, end));
                piece = end;
            }
        }
    }
    sentences.retain(|&(start, end)| !text[start..end].trim().is_empty());
    sentences
}

/// The kinds of text, each with its name.
fn texts(root: &Path) -> Result<Vec<(String, String)>> {
    let notes = read_all(&root.join("examples/notes"), "md")?;
    let words: Vec<&str> = notes.split_whitespace().collect();
    let prose = words.join(" ");
    let bare: Vec<String> = notes.unicode_words().map(str::to_lowercase).collect();
    let vocabulary: Vec<&str> = words
        .iter()
        .copied()
        .filter(|word| word.len() > 3)
        .collect();
    let kinds = [
        ("notes, paragraphs", notes.clone()),
        ("the same in one line", prose.clone()),
        ("the same without punctuation", bare.join(" ")),
        ("documentation", read_all(&root.join("docs"), "md")?),
        ("source code", read_all(&root.join("src"), "rs")?),
        ("log lines", log_lines(&vocabulary)),
        ("numbered lines", numbered_lines()),
        (
            "equal lines",
            "The pump is on and the valve is open.\n".repeat(20_000),
        ),
        ("Chinese", chinese()),
    ];
    Ok(kinds.map(|(name, text)| (name.to_owned(), text)).into())
}

fn log_lines(vocabulary: &[&str]) -> String {
    let mut random = Random(1);
    let mut text = String::new();
    for line in 0..20_000 {
        let level = ["INFO", "INFO", "INFO", "DEBUG", "WARN"][random.below(5)];
        let component = ["worker", "store", "provider", "http"][random.below(4)];
        text += &format!(
            "2026-03-{:02}T{:02}:{:02}:{:02}Z {level} {component}: ",
            line / 1000 + 1,
            line / 40 % 24,
            line % 60,
            random.below(60),
        );
        for _ in 0..random.below(4) + 2 {
            text += vocabulary[random.below(vocabulary.len())];
            text += " ";
        }
        text += &format!("ms={} id={}\n", random.below(900), random.below(1 << 30));
    }
    text
}

/// Lines of the same length, all different.
fn numbered_lines() -> String {
    (10_000..30_000)
        .map(|line| format!("reading {line} of the gauge at the weir\n"))
        .collect()
}

/// Sentences of 8 to 40 characters without spaces, sometimes a paragraph's end.
fn chinese() -> String {
    let words = [
        "会议",
        "星期三",
        "上午",
        "十点",
        "开始",
        "请",
        "带上",
        "报告",
        "我们",
        "明天",
        "去",
        "图书馆",
        "水位",
        "上升",
        "缓慢",
        "下降",
        "记录",
        "仪器",
        "观测站",
        "数据",
        "已经",
        "没有",
        "可以",
        "需要",
        "研究",
        "蒸发",
        "湖泊",
        "河流",
        "温度",
        "降雨",
        "老师",
        "学生",
        "看见",
        "一只",
        "鸟",
        "飞过",
    ];
    let mut random = Random(3);
    let mut text = String::new();
    for _ in 0..8_000 {
        for word in 0..random.below(14) + 4 {
            text += words[random.below(words.len())];
            if word % 6 == 5 {
                text += "，";
            }
        }
        text += "。";
        if random.below(12) == 0 {
            text += "\n\n";
        }
    }
    text
}

/// Every file below `folder` with this extension, in the order of their paths.
fn read_all(folder: &Path, extension: &str) -> Result<String> {
    let mut text = String::new();
    for path in files(folder, extension)? {
        text += &std::fs::read_to_string(path)?;
        text += "\n\n";
    }
    Ok(text)
}

/// The same numbers in every release of every library.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = (self.0 ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.0 ^= self.0 >> 29;
        (self.0 >> 16) as usize % bound
    }
}
