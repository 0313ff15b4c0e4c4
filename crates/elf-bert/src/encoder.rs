//! The architectures: tokens → one vector each.

use rayon::prelude::*;

use super::config::{Config, Family};
use super::cpu::LayerNorm;
use super::layer::{Layer, Rows};
use super::weights::Weights;

/// Rows that a thread takes at once, in whole tiles. They are enough to use each weight often while it
/// is in a core's cache, and few enough that their inner vectors stay there.
const MAX_BLOCK: usize = 48;

/// The rows of the highest tile: a smaller block would waste registers.
const MIN_BLOCK: usize = 12;

/// A BERT-family encoder with its weights.
pub struct Encoder {
    family: Family,
    dim: usize,
    pad: u32,
    /// (vocabulary, dim)
    words: Vec<f32>,
    /// (positions, dim)
    positions: Vec<f32>,
    /// (segments, dim)
    segments: Vec<f32>,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

/// The tokens of a text.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Places in the vocabulary.
    pub ids: &'a [u32],
    /// 1 for each token of the second of two texts, where the model tells them apart, else 0.
    /// Where it is shorter than the text, the rest is 0.
    pub segments: &'a [u32],
}

/// The tokenizer gave a number that the model has no row for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer gave {number} for a {what}, but the model has {rows} of them")]
pub struct UnknownNumber {
    what: &'static str,
    number: usize,
    rows: usize,
}

impl Encoder {
    /// The encoder of `config` with `weights`. The error finishes "the model …".
    pub fn load(config: &Config, weights: &Weights<'_>) -> Result<Self, String> {
        let prefix = prefix(config, weights);
        let dim = config.dim;
        let layers = match config.family {
            Family::Bert | Family::Roberta => "encoder",
            Family::DistilBert => "transformer",
        };
        let table = |name: &str, rows| {
            let name = format!("{prefix}embeddings.{name}_embeddings.weight");
            weights.tensor(&name, &[rows, dim])
        };
        Ok(Self {
            family: config.family,
            dim,
            pad: config.pad,
            words: table("word", config.vocabulary)?,
            positions: table("position", config.positions)?,
            segments: match config.segments {
                0 => Vec::new(),
                rows => table("token_type", rows)?,
            },
            norm: weights.norm(
                &format!("{prefix}embeddings.LayerNorm"),
                dim,
                config.epsilon,
            )?,
            layers: (0..config.layers)
                .map(|layer| format!("{prefix}{layers}.layer.{layer}"))
                .map(|name| Layer::load(weights, &name, config))
                .collect::<Result<_, _>>()?,
        })
    }

    /// `read` of each of the texts, which gets its tokens' vectors (tokens, dim). The encoder
    /// computes them on all threads.
    pub fn forward<T>(
        &self,
        texts: &[Tokens<'_>],
        read: impl Fn(&[f32]) -> T,
    ) -> Result<Vec<T>, UnknownNumber> {
        let mut inputs = Vec::new();
        for text in texts {
            self.inputs(*text, &mut inputs)?;
        }
        let lengths = texts.iter().map(|text| text.ids.len()).collect();
        let mut rows = Rows::new(lengths, self.dim, block(inputs.len()));
        self.embed(&inputs, &mut rows);
        for layer in &self.layers {
            layer.forward(&mut rows);
        }
        Ok(rows.texts().map(read).collect())
    }

    /// Adds a text's tokens to `inputs`.
    fn inputs(&self, text: Tokens<'_>, inputs: &mut Vec<Input>) -> Result<(), UnknownNumber> {
        let mut seen = 0;
        for (index, id) in text.ids.iter().enumerate() {
            let position = match self.family {
                Family::Bert | Family::DistilBert => index,
                // As in transformers: a padding token has its own position, also within a text.
                Family::Roberta if *id == self.pad => self.pad as usize,
                Family::Roberta => {
                    seen += 1;
                    self.pad as usize + seen
                }
            };
            let segment = text.segments.get(index).copied().unwrap_or(0);
            let segment = match self.family {
                Family::Bert => segment as usize,
                Family::Roberta | Family::DistilBert => 0,
            };
            let input = Input {
                word: *id as usize,
                position,
                segment,
            };
            check("token", input.word, self.words.len() / self.dim)?;
            check("position", position, self.positions.len() / self.dim)?;
            check("segment", segment, (self.segments.len() / self.dim).max(1))?;
            inputs.push(input);
        }
        Ok(())
    }

    /// The vectors that go into the first layer.
    fn embed(&self, inputs: &[Input], rows: &mut Rows) {
        let dim = self.dim;
        rows.hidden
            .par_chunks_mut(rows.block * dim)
            .zip(inputs.par_chunks(rows.block))
            .for_each_init(Vec::new, |added, (hidden, inputs)| {
                added.clear();
                for (row, input) in hidden.chunks_exact_mut(dim).zip(inputs) {
                    row.copy_from_slice(&self.words[input.word * dim..][..dim]);
                    added.extend_from_slice(&self.positions[input.position * dim..][..dim]);
                    let segment = self.segments.chunks_exact(dim).nth(input.segment);
                    for (value, segment) in row.iter_mut().zip(segment.unwrap_or_default()) {
                        *value += segment;
                    }
                }
                self.norm.add_and_normalize(hidden, added);
            });
    }
}

/// Rows that a thread takes at once, of this many in all.
fn block(rows: usize) -> usize {
    rows.div_ceil(rayon::current_num_threads())
        .next_multiple_of(MIN_BLOCK)
        .clamp(MIN_BLOCK, MAX_BLOCK)
}

/// What is known of a token before the first layer: rows of three tables.
struct Input {
    word: usize,
    position: usize,
    segment: usize,
}

fn check(what: &'static str, number: usize, rows: usize) -> Result<(), UnknownNumber> {
    if number < rows {
        Ok(())
    } else {
        Err(UnknownNumber { what, number, rows })
    }
}

/// What is in front of the encoder's names: models for a task put the family there.
fn prefix(config: &Config, weights: &Weights<'_>) -> String {
    let family = match config.family {
        Family::Bert => "bert",
        Family::Roberta => "roberta",
        Family::DistilBert => "distilbert",
    };
    [format!("{family}."), format!("{}.", config.kind)]
        .into_iter()
        .find(|prefix| weights.contains(&format!("{prefix}embeddings.word_embeddings.weight")))
        .unwrap_or_default()
}
