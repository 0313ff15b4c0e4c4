//! One layer of the encoder: attention, then a feed-forward layer, each with its residual and
//! normalisation.

use pulp::Arch;
use rayon::prelude::*;

use super::config::{Config, Family};
use super::cpu::{Activation, AttentionScratch, Heads, LayerNorm, Linear, Projected};
use super::weights::Weights;

/// The weights of a layer.
pub struct Layer {
    arch: Arch,
    heads: Heads,
    /// Queries, keys and values in one product.
    projection: Linear,
    output: Linear,
    attention_norm: LayerNorm,
    widen: Linear,
    activation: Activation,
    narrow: Linear,
    norm: LayerNorm,
}

/// Rows of the tokens of one pass, of all texts one after the other.
pub struct Rows {
    /// (tokens, dim)
    pub hidden: Vec<f32>,
    /// Tokens of each text.
    pub lengths: Vec<usize>,
    /// Rows that a thread takes at once.
    pub block: usize,
    /// (tokens, 3 · dim)
    projected: Vec<f32>,
    /// For each text, (heads, tokens of the text, head size).
    mixed: Vec<f32>,
}

impl Rows {
    /// Rows for texts of these `lengths`, with vectors of `dim` floats, all 0.
    pub fn new(lengths: Vec<usize>, dim: usize, block: usize) -> Self {
        let tokens: usize = lengths.iter().sum();
        Self {
            hidden: vec![0.0; tokens * dim],
            projected: vec![0.0; tokens * 3 * dim],
            mixed: vec![0.0; tokens * dim],
            lengths,
            block,
        }
    }

    /// The vectors of each text (tokens, dim).
    pub fn texts(&self) -> impl Iterator<Item = &[f32]> {
        let dim = self.hidden.len() / self.lengths.iter().sum::<usize>().max(1);
        self.lengths
            .iter()
            .scan(&self.hidden[..], move |rest, length| {
                let (text, after) = rest.split_at(length * dim);
                *rest = after;
                Some(text)
            })
    }
}

impl Layer {
    /// The layer with the names of `config`'s family below `prefix`. The error finishes
    /// "the model …".
    pub fn load(weights: &Weights<'_>, prefix: &str, config: &Config) -> Result<Self, String> {
        let names = match config.family {
            Family::Bert | Family::Roberta => &BERT,
            Family::DistilBert => &DISTILBERT,
        };
        let (dim, inner) = (config.dim, config.inner);
        let at = |name: &str| format!("{prefix}.{name}");
        Ok(Self {
            arch: weights.arch(),
            heads: Heads {
                count: config.heads,
                size: dim / config.heads,
            },
            projection: weights.stacked(&names.projection.map(at), dim, dim)?,
            output: weights.linear(&at(names.output), dim, dim)?,
            attention_norm: weights.norm(&at(names.attention_norm), dim, config.epsilon)?,
            widen: weights.linear(&at(names.widen), dim, inner)?,
            activation: config.activation,
            narrow: weights.linear(&at(names.narrow), inner, dim)?,
            norm: weights.norm(&at(names.norm), dim, config.epsilon)?,
        })
    }

    /// Replaces the hidden vectors by this layer's, on all threads.
    pub fn forward(&self, rows: &mut Rows) {
        let dim = self.output.outputs();
        let block = rows.block * dim;
        rows.projected
            .par_chunks_mut(3 * block)
            .zip(rows.hidden.par_chunks(block))
            .for_each(|(projected, hidden)| {
                self.projection.forward(hidden, Activation::None, projected);
            });
        self.attend(rows);
        let places = Places::new(&rows.lengths, self.heads);
        let mixed = &rows.mixed;
        rows.hidden.par_chunks_mut(block).enumerate().for_each_init(
            Vec::new,
            |scratch, (index, hidden)| {
                self.finish(mixed, &places, index * rows.block, hidden, scratch);
            },
        );
    }

    /// Attention of each head of each text.
    fn attend(&self, rows: &mut Rows) {
        let Heads { count, size } = self.heads;
        let (mut projected, mut mixed) = (&rows.projected[..], &mut rows.mixed[..]);
        let mut tasks = Vec::with_capacity(rows.lengths.len() * count);
        for tokens in &rows.lengths {
            let (text, rest) = projected.split_at(tokens * 3 * count * size);
            projected = rest;
            for head in 0..count {
                let (out, rest) = mixed.split_at_mut(tokens * size);
                mixed = rest;
                tasks.push((text, head, out));
            }
        }
        tasks.into_par_iter().for_each_init(
            AttentionScratch::default,
            |scratch, (rows, head, out)| {
                let heads = self.heads;
                Projected { rows, heads }.attend(self.arch, head, scratch, out);
            },
        );
    }

    /// All that follows attention, for the rows from `first` on.
    fn finish(
        &self,
        mixed: &[f32],
        places: &Places,
        first: usize,
        hidden: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let dim = self.output.outputs();
        let count = hidden.len() / dim;
        scratch.resize(count * (2 * dim + self.widen.outputs()), 0.0);
        let (gathered, rest) = scratch.split_at_mut(count * dim);
        let (narrow, wide) = rest.split_at_mut(count * dim);
        for (row, gathered) in gathered.chunks_exact_mut(dim).enumerate() {
            places.gather(mixed, first + row, gathered);
        }
        self.output.forward(gathered, Activation::None, narrow);
        self.attention_norm.add_and_normalize(hidden, narrow);
        self.widen.forward(hidden, self.activation, wide);
        self.narrow.forward(wide, Activation::None, narrow);
        self.norm.add_and_normalize(hidden, narrow);
    }
}

/// Where the heads' answers of each token are.
struct Places {
    heads: Heads,
    /// Of each token: where its text begins, in tokens, and how many tokens that has.
    texts: Vec<(usize, usize)>,
}

impl Places {
    fn new(lengths: &[usize], heads: Heads) -> Self {
        let mut texts = Vec::new();
        for length in lengths {
            texts.extend(std::iter::repeat_n((texts.len(), *length), *length));
        }
        Self { heads, texts }
    }

    /// Puts the heads' answers of a token side by side.
    fn gather(&self, mixed: &[f32], token: usize, row: &mut [f32]) {
        let Heads { count, size } = self.heads;
        let (start, tokens) = self.texts[token];
        for (head, part) in row.chunks_exact_mut(size).enumerate() {
            let first = (start * count + head * tokens + token - start) * size;
            part.copy_from_slice(&mixed[first..first + size]);
        }
    }
}

struct Names {
    projection: [&'static str; 3],
    output: &'static str,
    attention_norm: &'static str,
    widen: &'static str,
    narrow: &'static str,
    norm: &'static str,
}

const BERT: Names = Names {
    projection: [
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    widen: "intermediate.dense",
    narrow: "output.dense",
    norm: "output.LayerNorm",
};

const DISTILBERT: Names = Names {
    projection: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    widen: "ffn.lin1",
    narrow: "ffn.lin2",
    norm: "output_layer_norm",
};
