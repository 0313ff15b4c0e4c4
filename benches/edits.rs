//! What an edit of a long note costs: how many texts ELF embeds after one sentence was inserted,
//! changed or deleted, with both settings of `chunking.boundaries`.
//!
//! `cargo bench --profile dev --bench edits [-- EDITS FILE...]`: so many edits of each kind of text,
//! and the texts of these files as well. Edits and made texts come from a fixed seed.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use elf::chunk::{Chunk, Chunker, Tokenizer};
use elf::config::{Boundaries, Chunking};
use unicode_segmentation::UnicodeSegmentation;

/// `max_tokens`, `overlap_tokens`.
const SIZES: [(usize, usize); 2] = [(256, 64), (512, 128)];

/// Chunks of each text with greedy boundaries.
const CHUNKS: usize = 100;

const DEFAULT_EDITS: usize = 300;

/// A longer sentence is edited in pieces of about this size.
const MAX_EDIT_BYTES: usize = 120;

fn main() -> Result<()> {
    // cargo adds `--bench`.
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"));
    let edits = match arguments.next() {
        Some(number) => number.parse().context("EDITS is a number")?,
        None => DEFAULT_EDITS,
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = std::env::var_os("ELF_TEST_MODEL")
        .map_or_else(|| root.join(".elf/models/all-MiniLM-L6-v2"), PathBuf::from);
    let path = model.join("tokenizer.json");
    let json = std::fs::read(&path)
        .with_context(|| format!("no tokenizer {}; `make demo` fetches it", path.display()))?;
    let tokenizer = Arc::new(Tokenizer::from_json(&json)?);

    let mut texts = texts(root)?;
    for file in arguments {
        let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
        texts.push((file, text));
    }
    for (max_tokens, overlap_tokens) in SIZES {
        println!("\nmax_tokens = {max_tokens}, overlap_tokens = {overlap_tokens}, {edits} edits\n");
        println!(
            "| text | chunks | stable/greedy | fill greedy, stable | greedy: mean, 95%, max \
             | stable: mean, 95%, max |"
        );
        println!("|---|---|---|---|---|---|");
        let [greedy, stable] = [Boundaries::Greedy, Boundaries::Stable].map(|boundaries| {
            let settings = Chunking {
                enabled: true,
                max_tokens,
                overlap_tokens,
                boundaries,
                tokenizer_repo: String::new(),
            };
            Chunker::new(tokenizer.clone(), &settings, "")
        });
        let (greedy, stable) = (greedy?, stable?);
        for (name, text) in &texts {
            let chunks = greedy.chunk(text)?;
            let text = &text[..chunks[chunks.len().min(CHUNKS) - 1].end];
            let [g, s] =
                [&greedy, &stable].map(|chunker| Figures::of(chunker, text, max_tokens, edits));
            let (g, s) = (g?, s?);
            println!(
                "| {name} | {} | {:.2} | {:.2}, {:.2} | {:.2}, {}, {} | {:.2}, {}, {} |",
                g.chunks,
                s.chunks as f64 / g.chunks as f64,
                g.fill,
                s.fill,
                g.mean,
                g.p95,
                g.max,
                s.mean,
                s.p95,
                s.max
            );
        }
    }
    Ok(())
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
    let mut paths = std::fs::read_dir(folder)
        .with_context(|| format!("no folder {}", folder.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    let mut text = String::new();
    for path in paths {
        if path.is_dir() {
            text += &read_all(&path, extension)?;
        } else if path.extension().is_some_and(|found| found == extension) {
            text += &std::fs::read_to_string(&path)?;
            text += "\n\n";
        }
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
