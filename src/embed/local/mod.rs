//! A BERT-family sentence-transformers model in this process, on its CPU.

mod batches;
mod config;
mod cpu;
mod cross_encoder;
mod encoder;
mod layer;
mod layout;
mod pooling;
mod weights;

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use pulp::Arch;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;
use tokio::sync::Semaphore;

use super::check::{self, Indexed};
use super::{EmbedError, Embedded, Embedder, Limits, Purpose};
use crate::hub::{HubError, ModelFiles};
use config::Config;
pub use cross_encoder::CrossEncoder;
use encoder::{Encoder, Tokens};
use layout::Modules;
use pooling::Pooling;
use weights::Weights;

/// A model with its tokenizer.
pub struct Local {
    model: Arc<Model>,
    limits: Limits,
    /// One request for each core: more at once would only take more memory.
    cores: Arc<Semaphore>,
}

struct Model {
    tokenizer: Tokenizer,
    encoder: Encoder,
    pooling: Pooling,
    normalize: bool,
    lowercase: bool,
    dim: usize,
    window: usize,
    weights: [u8; 32],
}

impl Local {
    /// Loads the model `name`: a folder, or a repository on the Hugging Face hub.
    /// One request may hold what `limits` allow; memory does not depend on them.
    ///
    /// # Errors
    ///
    /// `Config` when a file is missing or the model is of a kind that this module does
    /// not compute.
    pub async fn open(name: &str, limits: Limits) -> Result<Self, EmbedError> {
        let blame = |reason: String| {
            EmbedError::config(format!(
                "the model {name} {reason}; choose another one in `providers.embedding.model`"
            ))
        };
        let files = Files(ModelFiles::open(name).await.map_err(unavailable)?);
        let modules = match files.json("modules.json").await? {
            Value::Null => Modules::default(),
            json => layout::modules(&json).map_err(blame)?,
        };
        let at = |file: &str| format!("{}{file}", modules.encoder);
        let pooling = match &modules.pooling {
            Some(folder) => {
                let json = files.json(&format!("{folder}config.json")).await?;
                layout::pooling(&json).map_err(blame)?
            }
            None => Pooling::Mean,
        };
        let sentence_config = files.sentence_config(&modules.encoder).await?;
        let tokenizer_config = files.json(&at("tokenizer_config.json")).await?;
        let config = read_json(
            &files
                .0
                .file(&at("config.json"))
                .await
                .map_err(unavailable)?,
        )
        .await?;
        let tokenizer = files
            .0
            .file(&at("tokenizer.json"))
            .await
            .map_err(unavailable)?;
        let weights = files
            .0
            .file(&at("model.safetensors"))
            .await
            .map_err(unavailable)?;

        let load = move || {
            let tokenizer = load_tokenizer(&tokenizer)?;
            let weights = std::fs::read(&weights).map_err(|error| {
                format!("has a {} that cannot be read: {error}", weights.display())
            })?;
            let lowercase = sentence_config["do_lower_case"] == true;
            // Hashing takes a second for 400 MB on a slow processor, and the weights are in
            // memory anyway.
            let mut hash = Sha256::new_with_prefix(&weights);
            hash.update(format!("{pooling:?} {} {lowercase}", modules.normalize));
            let config = Config::read(&config)?;
            let encoder = Encoder::load(&config, &Weights::read(&weights, Arch::new())?)?;
            Ok(Model {
                weights: hash.finalize().into(),
                tokenizer,
                encoder,
                pooling,
                normalize: modules.normalize,
                lowercase,
                dim: config.dim,
                window: layout::window(&sentence_config, &tokenizer_config, config.window()),
            })
        };
        let model = tokio::task::spawn_blocking(load)
            .await
            .unwrap_or_else(|error| Err(format!("could not be loaded: {error}")))
            .map_err(blame)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            model: Arc::new(model),
            limits,
            cores: Arc::new(Semaphore::new(cores)),
        })
    }

    /// Floats in each vector.
    pub fn dim(&self) -> usize {
        self.model.dim
    }

    /// Tokens that the model reads of a text, special ones included.
    pub fn window(&self) -> usize {
        self.model.window
    }

    /// The SHA-256 of the weights, the pooling, the normalisation and the lowercasing.
    pub fn weights(&self) -> [u8; 32] {
        self.model.weights
    }

    /// One vector for each text, in their order.
    pub async fn vectors(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let core = self
            .cores
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        let model = self.model.clone();
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let embed = move || {
            let vectors = model.embed(texts);
            // Released when the work ends: the caller may be cancelled before.
            drop(core);
            vectors
        };
        tokio::task::spawn_blocking(embed)
            .await
            .unwrap_or_else(|error| Err(EmbedError::failed(format!("the model failed: {error}"))))
    }
}

impl Embedder for Local {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        _: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>> {
        let embedded = |vectors| Embedded {
            vectors,
            tokens: None,
        };
        async move { self.vectors(texts).await.map(embedded) }.boxed()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

impl Model {
    fn embed(&self, mut texts: Vec<String>) -> Result<Vec<Vec<f32>>, EmbedError> {
        if self.lowercase {
            texts
                .iter_mut()
                .for_each(|text| *text = text.to_lowercase());
        }
        let count = texts.len();
        let tokens = self.tokens(texts)?;
        let lengths: Vec<usize> = tokens.iter().map(Vec::len).collect();
        let mut answer = Vec::with_capacity(count);
        for batch in batches::batches(&lengths, rayon::current_num_threads()) {
            let vectors = self
                .forward(&tokens[batch])
                .map_err(|error| EmbedError::failed(format!("the model failed: {error}")))?;
            answer.extend(vectors.into_iter().map(|vector| Indexed {
                index: None,
                vector,
            }));
        }
        check::answer(answer, count, Some(self.dim))
    }

    fn tokens(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, EmbedError> {
        let encodings = self
            .tokenizer
            .encode_batch_fast(texts, true)
            .map_err(|error| EmbedError::input(format!("the tokenizer failed: {error}")))?;
        for (index, encoding) in encodings.iter().enumerate() {
            match encoding.len() {
                0 => return Err(EmbedError::input(format!("text {index} has no tokens"))),
                length if length > self.window => {
                    return Err(EmbedError::input(format!(
                        "text {index} has {length} tokens, the model reads {}",
                        self.window
                    )));
                }
                _ => {}
            }
        }
        Ok(encodings
            .iter()
            .map(|encoding| encoding.get_ids().to_vec())
            .collect())
    }

    fn forward(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, encoder::UnknownNumber> {
        let texts: Vec<Tokens<'_>> = texts
            .iter()
            .map(|ids| Tokens { ids, segments: &[] })
            .collect();
        let mut vectors = self
            .encoder
            .forward(&texts, |tokens| self.pooling.pool(tokens, self.dim))?;
        if self.normalize {
            vectors.iter_mut().for_each(|vector| normalize(vector));
        }
        Ok(vectors)
    }
}

fn normalize(vector: &mut [f32]) {
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|x| *x /= norm);
}

fn load_tokenizer(path: &Path) -> Result<Tokenizer, String> {
    let unreadable = |error| format!("has a {} that cannot be read: {error}", path.display());
    let mut tokenizer = Tokenizer::from_file(path).map_err(unreadable)?;
    // Many files truncate at 128 tokens, without any error.
    tokenizer.with_truncation(None).map_err(unreadable)?;
    tokenizer.with_padding(None);
    Ok(tokenizer)
}

struct Files(ModelFiles);

impl Files {
    /// The file's content, or null where the model has no such file.
    async fn json(&self, name: &str) -> Result<Value, EmbedError> {
        match self.0.optional(name).await.map_err(unavailable)? {
            Some(path) => read_json(&path).await,
            None => Ok(Value::Null),
        }
    }

    async fn sentence_config(&self, folder: &str) -> Result<Value, EmbedError> {
        // Older releases named the file after the model's class.
        for kind in ["bert", "roberta", "distilbert", "xlm-roberta", "camembert"] {
            let json = self
                .json(&format!("{folder}sentence_{kind}_config.json"))
                .await?;
            if !json.is_null() {
                return Ok(json);
            }
        }
        Ok(Value::Null)
    }
}

async fn read_json(path: &Path) -> Result<Value, EmbedError> {
    let read = async || {
        let bytes = tokio::fs::read(path)
            .await
            .map_err(|error| error.to_string())?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    };
    read().await.map_err(|error| {
        EmbedError::config(format!(
            "cannot read {}: {error}; download the model again",
            path.display()
        ))
    })
}

fn unavailable(error: HubError) -> EmbedError {
    if error.class().may_pass() {
        EmbedError::unavailable(error.to_string())
    } else {
        EmbedError::config(error.to_string())
    }
}

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
