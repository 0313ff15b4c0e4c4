//! The encoder against its formulas, computed one number at a time in 64-bit floats.

use std::collections::BTreeMap;

use pulp::Arch;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use super::config::{Config, Family};
use super::cpu::Activation;
use super::encoder::{Encoder, Tokens};
use super::weights::Weights;

const VOCABULARY: usize = 50;
const PAD: u32 = 1;
/// Longer than a block of rows.
const WINDOW: usize = 150;

/// A model with random weights. Its sizes fit no register.
struct Plain {
    config: Config,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Plain {
    fn new(kind: &str, dim: usize, heads: usize, activation: &str) -> Self {
        let json = config(kind, dim, heads, activation);
        let config = Config::read(&json).expect("it is complete");
        let mut model = Self {
            tensors: BTreeMap::new(),
            config,
        };
        let Config { inner, layers, .. } = model.config;
        model.random("embeddings.word_embeddings.weight", &[VOCABULARY, dim]);
        let positions = model.config.positions;
        model.random("embeddings.position_embeddings.weight", &[positions, dim]);
        if kind != "distilbert" {
            model.random("embeddings.token_type_embeddings.weight", &[2, dim]);
        }
        model.norm("embeddings.LayerNorm", dim);
        let [stem, names] = names(model.config.family);
        for layer in 0..layers {
            let sizes = [
                (dim, dim),
                (dim, dim),
                (dim, dim),
                (dim, dim),
                (inner, dim),
                (dim, inner),
            ];
            let names: Vec<String> = names
                .split(' ')
                .map(|name| format!("{stem}{layer}.{name}"))
                .collect();
            for (name, (outputs, inputs)) in names.iter().zip(sizes) {
                model.random(&format!("{name}.weight"), &[outputs, inputs]);
                model.random(&format!("{name}.bias"), &[outputs]);
            }
            model.norm(&names[6], dim);
            model.norm(&names[7], dim);
        }
        model
    }

    /// Numbers of about 1, other ones for each name; smaller in a matrix, so that its products are
    /// of about 1 too.
    fn random(&mut self, name: &str, shape: &[usize]) {
        let largest = match shape {
            [_, inputs] if !name.starts_with("embeddings") => (3.0 / *inputs as f32).sqrt(),
            _ => 1.0,
        };
        let mut state = name.bytes().fold(7u64, |state, byte| {
            state.wrapping_mul(131) ^ u64::from(byte)
        });
        let number = |_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * largest
        };
        let numbers = (0..shape.iter().product()).map(number).collect();
        self.tensors
            .insert(name.to_owned(), (shape.to_vec(), numbers));
    }

    fn norm(&mut self, name: &str, dim: usize) {
        self.random(&format!("{name}.weight"), &[dim]);
        self.random(&format!("{name}.bias"), &[dim]);
    }

    /// The content of its `model.safetensors`.
    fn file(&self, prefix: &str) -> Vec<u8> {
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (shape, numbers))| {
                let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
                (format!("{prefix}{name}"), shape.clone(), bytes.collect())
            })
            .collect();
        let views = bytes.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("the shape fits");
            (name.clone(), view)
        });
        serialize(views, None).expect("the names differ")
    }

    fn row(&self, name: &str, row: usize) -> Vec<f64> {
        let (shape, numbers) = &self.tensors[name];
        let columns = shape.last().copied().unwrap_or(1);
        let row = &numbers[row * columns..(row + 1) * columns];
        row.iter().map(|number| f64::from(*number)).collect()
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let bias = self.row(&format!("{name}.bias"), 0);
        let output = |(index, bias)| dot(&self.row(&format!("{name}.weight"), index), x) + bias;
        bias.into_iter().enumerate().map(output).collect()
    }

    fn normalized(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let count = x.len() as f64;
        let mean = x.iter().sum::<f64>() / count;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
        let deviation = (variance + f64::from(self.config.epsilon)).sqrt();
        let scale = self.row(&format!("{name}.weight"), 0);
        let shift = self.row(&format!("{name}.bias"), 0);
        let scaled = x.iter().zip(scale).zip(shift);
        scaled
            .map(|((x, scale), shift)| (x - mean) / deviation * scale + shift)
            .collect()
    }

    fn embedding(&self, text: Tokens<'_>, index: usize) -> Vec<f64> {
        let id = text.ids[index];
        let word = self.row("embeddings.word_embeddings.weight", id as usize);
        let position = match self.config.family {
            Family::Roberta if id == PAD => PAD as usize,
            Family::Roberta => {
                let real = text.ids[..=index].iter().filter(|id| **id != PAD);
                PAD as usize + real.count()
            }
            Family::Bert | Family::DistilBert => index,
        };
        let mut sum = add(
            &word,
            &self.row("embeddings.position_embeddings.weight", position),
        );
        let segment = match self.config.family {
            Family::Bert => text
                .segments
                .get(index)
                .map_or(0, |segment| *segment as usize),
            Family::Roberta | Family::DistilBert => 0,
        };
        if self.config.family != Family::DistilBert {
            sum = add(
                &sum,
                &self.row("embeddings.token_type_embeddings.weight", segment),
            );
        }
        self.normalized("embeddings.LayerNorm", &sum)
    }

    fn forward(&self, text: Tokens<'_>) -> Vec<Vec<f64>> {
        let [stem, names] = names(self.config.family);
        let mut hidden: Vec<Vec<f64>> = (0..text.ids.len())
            .map(|index| self.embedding(text, index))
            .collect();
        for layer in 0..self.config.layers {
            let names: Vec<String> = names
                .split(' ')
                .map(|name| format!("{stem}{layer}.{name}"))
                .collect();
            let [queries, keys, values] = [0, 1, 2].map(|kind| {
                let rows = hidden.iter().map(|x| self.linear(&names[kind], x));
                rows.collect::<Vec<_>>()
            });
            let layer = hidden.iter().zip(&queries).map(|(x, query)| {
                let mixed = self.mixed(query, &keys, &values);
                let x = self.normalized(&names[6], &add(x, &self.linear(&names[3], &mixed)));
                let inner: Vec<f64> = self
                    .linear(&names[4], &x)
                    .into_iter()
                    .map(|x| activated(self.config.activation, x))
                    .collect();
                self.normalized(&names[7], &add(&x, &self.linear(&names[5], &inner)))
            });
            hidden = layer.collect();
        }
        hidden
    }

    fn mixed(&self, query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
        let size = self.config.dim / self.config.heads;
        let mut mixed = vec![0.0; query.len()];
        for head in (0..query.len())
            .step_by(size)
            .map(|first| first..first + size)
        {
            let scores = keys
                .iter()
                .map(|key| dot(&query[head.clone()], &key[head.clone()]) / (size as f64).sqrt());
            let scores: Vec<f64> = scores.collect();
            let largest = scores.iter().fold(f64::MIN, |a, b| a.max(*b));
            let terms: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = terms.iter().sum();
            for (term, value) in terms.iter().zip(values) {
                for index in head.clone() {
                    mixed[index] += term / sum * value[index];
                }
            }
        }
        mixed
    }
}

fn config(kind: &str, dim: usize, heads: usize, activation: &str) -> Value {
    // RoBERTa's positions begin behind the padding token's.
    let positions = if kind == "roberta" {
        WINDOW + 2
    } else {
        WINDOW
    };
    json!({
        "model_type": kind, "pad_token_id": PAD, "vocab_size": VOCABULARY,
        "max_position_embeddings": positions,
        "hidden_size": dim, "intermediate_size": 2 * dim + 3, "num_hidden_layers": 2,
        "num_attention_heads": heads, "hidden_act": activation, "layer_norm_eps": 1e-5,
        "type_vocab_size": 2,
        "dim": dim, "hidden_dim": 2 * dim + 3, "n_layers": 2, "n_heads": heads,
        "activation": activation,
    })
}

/// What is in front of a layer's number, and its six products and two normalisations.
fn names(family: Family) -> [&'static str; 2] {
    match family {
        Family::Bert | Family::Roberta => [
            "encoder.layer.",
            "attention.self.query attention.self.key attention.self.value \
             attention.output.dense intermediate.dense output.dense \
             attention.output.LayerNorm output.LayerNorm",
        ],
        Family::DistilBert => [
            "transformer.layer.",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin ffn.lin1 ffn.lin2 \
             sa_layer_norm output_layer_norm",
        ],
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Gelu => super::cpu::exact_gelu(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
    }
}

/// Texts of these lengths, of all tokens that there are, the padding token too.
fn ids(lengths: &[usize]) -> Vec<Vec<u32>> {
    let text = |(seed, length): (usize, &usize)| {
        let token = |index| ((index * 7 + seed * 13) % VOCABULARY) as u32;
        (0..*length).map(token).collect()
    };
    lengths.iter().enumerate().map(text).collect()
}

fn encoder(model: &Plain, prefix: &str, arch: Arch) -> Encoder {
    let file = model.file(prefix);
    let weights = Weights::read(&file, arch).expect("the file was just written");
    Encoder::load(&model.config, &weights).expect("all tensors are there")
}

/// The instructions that this processor may be asked to use: the widest ones, and those of older
/// ones.
fn instruction_sets() -> Vec<Arch> {
    let mut sets = vec![Arch::new(), Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    sets.extend(pulp::x86::V3::try_new().map(Arch::V3));
    sets
}

#[test]
fn the_encoder_computes_its_formulas_for_texts_of_every_shape() {
    let shapes: [&[usize]; 5] = [&[1], &[2, 1], &[WINDOW], &[5, WINDOW, 1, 48, 13], &[12; 9]];
    let segments: Vec<u32> = (0..WINDOW as u32).map(|index| index / 4 % 2).collect();
    for (kind, dim, heads, activation) in [
        ("bert", 24, 3, "gelu"),
        ("bert", 96, 3, "gelu_new"),
        ("bert", 70, 1, "relu"),
        ("roberta", 36, 2, "gelu"),
        ("roberta", 33, 3, "silu"),
        ("distilbert", 40, 5, "gelu"),
    ] {
        let model = Plain::new(kind, dim, heads, activation);
        let encoders: Vec<Encoder> = instruction_sets()
            .into_iter()
            .map(|arch| encoder(&model, "", arch))
            .collect();
        for lengths in shapes {
            let ids = ids(lengths);
            let texts: Vec<Tokens<'_>> = ids
                .iter()
                .map(|ids| Tokens {
                    ids,
                    segments: &segments[..ids.len() / 2],
                })
                .collect();
            let exact: Vec<f64> = texts
                .iter()
                .flat_map(|text| model.forward(*text).concat())
                .collect();
            for encoder in &encoders {
                let ours = encoder.forward(&texts, <[f32]>::to_vec).expect("known ids");
                let ours = ours.concat();
                assert_eq!(ours.len(), exact.len());
                for (ours, exact) in ours.iter().zip(&exact) {
                    let error = (f64::from(*ours) - exact).abs();
                    assert!(error < 1e-5, "{kind} {dim} {lengths:?}: off by {error:e}");
                }
            }
        }
    }
}

#[test]
fn a_text_has_exactly_the_same_vectors_alone_and_among_others() {
    let encoder = encoder(&Plain::new("bert", 64, 2, "gelu"), "", Arch::new());
    let ids = ids(&[7, 150, 1, 49, 12, 96]);
    let tokens = |ids| Tokens { ids, segments: &[] };
    let texts: Vec<Tokens<'_>> = ids.iter().map(|ids| tokens(ids)).collect();
    let together = encoder.forward(&texts, <[f32]>::to_vec).expect("known ids");
    for (text, together) in texts.iter().zip(together) {
        let alone = encoder
            .forward(&[*text], <[f32]>::to_vec)
            .expect("known ids");
        assert_eq!(alone, [together]);
    }
}

#[test]
fn weights_are_found_behind_the_prefix_of_a_models_family() {
    for (kind, prefix) in [
        ("bert", "bert."),
        ("roberta", "roberta."),
        ("distilbert", "distilbert."),
    ] {
        let model = Plain::new(kind, 16, 2, "gelu");
        let text = [Tokens {
            ids: &[3, 4, 5],
            segments: &[],
        }];
        let vectors = |prefix| encoder(&model, prefix, Arch::new()).forward(&text, <[f32]>::to_vec);
        assert_eq!(vectors(prefix), vectors(""));
    }
}

#[test]
fn a_token_that_the_model_does_not_have_is_an_error() {
    let encoder = encoder(&Plain::new("bert", 16, 2, "gelu"), "", Arch::new());
    let long = [0; WINDOW + 1];
    for (ids, segments, complaint) in [
        (&[3, VOCABULARY as u32][..], &[][..], "50 for a token"),
        (&long, &[], "150 for a position"),
        (&[3], &[2], "2 for a segment"),
    ] {
        let error = encoder.forward(&[Tokens { ids, segments }], |_| ());
        let error = error.expect_err("there is no such row").to_string();
        assert!(error.contains(complaint), "{error}");
    }
}

#[test]
fn a_file_that_does_not_fit_is_refused_by_the_name_of_the_tensor() {
    let mut model = Plain::new("bert", 16, 2, "gelu");
    let refusal = |model: &Plain| {
        let file = model.file("");
        let weights = Weights::read(&file, Arch::new()).expect("the file was just written");
        Encoder::load(&model.config, &weights)
            .err()
            .unwrap_or_default()
    };
    assert_eq!(refusal(&model), "");
    let name = "encoder.layer.1.output.dense.bias";
    model.random(name, &[17]);
    let error = refusal(&model);
    assert!(error.contains(name) && error.contains("[17]"), "{error}");
    model.tensors.remove(name);
    assert!(refusal(&model).contains(name));
    assert!(Weights::read(b"no such file", Arch::new()).is_err());
}
