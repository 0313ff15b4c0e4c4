//! How much of this machine's arithmetic the local model turns into vectors: useful operations a
//! second of the model, over those of bare matrix products of the same shapes on as many cores.
//!
//! Useful operations are those that the answer needs: two for each
//! multiplication and addition of the layers' products and of attention, none for padding, and none
//! for the tokenizer, activations, normalisations and softmax, whose time counts all the same.
//! The products keep their matrices in memory, and take no time for anything else.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use elf::embed::local::Local;
use elf::embed::{Embedder, Limits, Purpose};
use futures::future::try_join_all;
// Named in Cargo.toml for its AVX-512 kernels, which ndarray does not turn on.
use matrixmultiply as _;
use ndarray::Array2;
use ndarray::linalg::general_mat_mul;
use serde_json::Value;

use crate::report::{Report, Side, Target};
use crate::rounds::Rounds;
use crate::{Options, Result, model};

/// Texts of a request, as a worker sends them.
const REQUEST: usize = 64;

/// Words of the texts, in turn: titles, sentences, paragraphs and full chunks.
const WORDS: [usize; 8] = [8, 120, 30, 110, 60, 115, 100, 4];

/// `matrixmultiply` uses no more.
const MAX_CORES: usize = 4;

/// Rows of the bare products: as many as a pass of the model has.
const ROWS: usize = 1024;

pub async fn run(options: Options) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get().min(MAX_CORES);
    // Fails where a tokenizer has made the threads already: the report says how many there are.
    let _ = rayon::ThreadPoolBuilder::new()
        .num_threads(cores)
        .build_global();
    let folder = model()?;
    let shape = Shape::read(&folder)?;
    let limits = Limits {
        max_inputs: REQUEST,
        max_tokens: usize::MAX,
    };
    let local = Local::open(
        folder.to_str().ok_or("the model's path is no UTF-8")?,
        limits,
    )
    .await?;
    let texts = texts(&folder, local.window(), options.size(300, 60))?;
    let (texts, lengths): (Vec<&str>, Vec<usize>) = texts
        .iter()
        .map(|(text, tokens)| (&**text, *tokens))
        .unzip();
    let useful: f64 = lengths.iter().map(|tokens| shape.operations(*tokens)).sum();
    let mut bare = Bare::new(shape);

    let mut report = Report::new("local", options, "no store");
    report.fact("model", "all-MiniLM-L6-v2");
    report.fact("texts", texts.len());
    report.fact("tokens", lengths.iter().sum::<usize>());
    report.fact("threads of the model", rayon::current_num_threads());
    report.fact("threads of the products", cores);
    let [model, products] = Rounds::few(options, 7)
        .measure(
            async || {
                let start = Instant::now();
                try_join_all(
                    texts
                        .chunks(REQUEST)
                        .map(|request| local.embed(request, Purpose::Note)),
                )
                .await?;
                Ok(useful / start.elapsed().as_secs_f64() / 1e9)
            },
            async || {
                let start = Instant::now();
                let operations = bare.multiply(useful / 2.0);
                Ok(operations / start.elapsed().as_secs_f64() / 1e9)
            },
        )
        .await?;
    report.ratio(
        "the model / bare products",
        "useful GFLOP/s",
        [Side::new("model", model), Side::new("products", products)],
        Target::AtLeast(0.5),
    );
    report.write()
}

/// What the `config.json` of a BERT says of its sizes.
#[derive(Clone, Copy)]
struct Shape {
    dim: usize,
    inner: usize,
    layers: usize,
}

impl Shape {
    fn read(folder: &Path) -> Result<Self> {
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        let size = |key: &str| {
            let size = config[key].as_u64().map(|size| size as usize);
            size.ok_or_else(|| format!("no {key} in the model's config.json"))
        };
        Ok(Self {
            dim: size("hidden_size")?,
            inner: size("intermediate_size")?,
            layers: size("num_hidden_layers")?,
        })
    }

    /// (outputs, inputs) of the products of a layer.
    fn products(&self) -> [(usize, usize); 4] {
        let Self { dim, inner, .. } = *self;
        [(3 * dim, dim), (dim, dim), (inner, dim), (dim, inner)]
    }

    /// Operations of a text of this many tokens.
    fn operations(&self, tokens: usize) -> f64 {
        let weights: usize = self.products().iter().map(|(a, b)| a * b).sum();
        let attention = 2 * tokens * tokens * self.dim;
        (2 * self.layers * (tokens * weights + attention)) as f64
    }
}

/// The products of a layer, without anything between them, by the library `matrixmultiply`.
struct Bare {
    products: Vec<Product>,
    /// Operations of all of them.
    operations: f64,
}

struct Product {
    /// ([`ROWS`], inputs)
    rows: Array2<f32>,
    /// (outputs, inputs)
    weights: Array2<f32>,
    /// ([`ROWS`], outputs)
    out: Array2<f32>,
}

impl Bare {
    fn new(shape: Shape) -> Self {
        let filled = |rows, columns| {
            Array2::from_shape_fn((rows, columns), |(a, b)| ((a + b) % 7) as f32 - 3.0)
        };
        let products = shape.products().map(|(outputs, inputs)| Product {
            rows: filled(ROWS, inputs),
            weights: filled(outputs, inputs),
            out: filled(ROWS, outputs),
        });
        let weights: usize = shape.products().iter().map(|(a, b)| a * b).sum();
        Self {
            products: products.into(),
            operations: (2 * ROWS * weights) as f64,
        }
    }

    /// Multiplies until there were this many `operations`; gives how many there were.
    fn multiply(&mut self, operations: f64) -> f64 {
        let mut done = 0.0;
        while done < operations {
            for Product { rows, weights, out } in &mut self.products {
                general_mat_mul(1.0, rows, &weights.t(), 0.0, out);
                black_box(out);
            }
            done += self.operations;
        }
        done
    }
}

/// Pieces of the example notes and of the documentation that fit the window, with their tokens.
fn texts(folder: &Path, window: usize, count: usize) -> Result<Vec<(String, usize)>> {
    let mut tokenizer = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json"))?;
    tokenizer.with_padding(None).with_truncation(None)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut prose = String::new();
    for folder in ["examples/notes", "docs"] {
        read_notes(&root.join(folder), &mut prose)
            .map_err(|error| format!("no notes in {folder}: {error}"))?;
    }
    let mut words = prose.split_whitespace();
    let mut texts = Vec::new();
    for length in WORDS.iter().cycle() {
        let piece: Vec<&str> = words.by_ref().take(*length).collect();
        if piece.is_empty() {
            return Err("there are too few notes".into());
        }
        let text = piece.join(" ");
        let tokens = tokenizer.encode_fast(&*text, true)?.len();
        // Tables and code have many more tokens than words.
        if tokens <= window {
            texts.push((text, tokens));
        }
        if texts.len() == count {
            break;
        }
    }
    Ok(texts)
}

/// Every `.md` below `folder`, in the order of their names.
fn read_notes(folder: &Path, text: &mut String) -> Result<()> {
    let mut paths = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read_notes(&path, text)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            text.push_str(&std::fs::read_to_string(&path)?);
            text.push('\n');
        }
    }
    Ok(())
}
