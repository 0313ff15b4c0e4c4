//! A cross-encoder in this process: a BERT-family model that reads a query and a text together and
//! gives one number, `…ForSequenceClassification` with one label in transformers.

use std::sync::Arc;

use pulp::Arch;
use serde_json::Value;
use tokenizers::tokenizer::PostProcessor;
use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{Encoding, Tokenizer};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::config::{Config, Family};
use super::cpu::{Activation, Linear};
use super::encoder::{Encoder, Tokens, UnknownNumber};
use super::weights::Weights;
use super::{Files, batches, layout, load_tokenizer, read_json, unavailable};
use crate::embed::EmbedError;
use crate::hub::ModelFiles;

/// A cross-encoder with its tokenizer.
pub struct CrossEncoder {
    model: Arc<Model>,
    /// One request for each core: more at once would only take more memory.
    cores: Arc<Semaphore>,
}

struct Model {
    tokenizer: Tokenizer,
    encoder: Encoder,
    head: Head,
    dim: usize,
    window: usize,
}

/// What makes a score of the first token's vector.
struct Head {
    inner: Linear,
    activation: Activation,
    outer: Linear,
}

/// A query and a part of a text, as the model reads them.
struct Pair {
    /// Which text.
    text: usize,
    ids: Vec<u32>,
    types: Vec<u32>,
}

impl CrossEncoder {
    /// Loads the model `name`: a folder, or a repository on the Hugging Face hub.
    ///
    /// # Errors
    ///
    /// `Config` when a file is missing, or the model is of a kind that this module does not
    /// compute.
    pub async fn open(name: &str) -> Result<Self, EmbedError> {
        let blame = |reason: String| {
            EmbedError::config(format!(
                "the model {name} {reason}; choose another one in `search.rerank.model`"
            ))
        };
        let files = Files(ModelFiles::open(name).await.map_err(unavailable)?);
        let required = async |file: &str| files.0.file(file).await.map_err(unavailable);
        let tokenizer_config = files.json("tokenizer_config.json").await?;
        let config = read_json(&required("config.json").await?).await?;
        let tokenizer = required("tokenizer.json").await?;
        let weights = required("model.safetensors").await?;
        let load = move || {
            let tokenizer = load_tokenizer(&tokenizer)?;
            let bytes = std::fs::read(&weights).map_err(|error| {
                format!("has a {} that cannot be read: {error}", weights.display())
            })?;
            let weights = Weights::read(&bytes, Arch::new())?;
            let labels = labels(&config);
            let config = Config::read(&config)?;
            let encoder = Encoder::load(&config, &weights)?;
            Ok(Model {
                tokenizer,
                head: Head::load(labels, &config, &weights)?,
                encoder,
                dim: config.dim,
                window: layout::window(&Value::Null, &tokenizer_config, config.window()),
            })
        };
        let model = tokio::task::spawn_blocking(load)
            .await
            .unwrap_or_else(|error| Err(format!("could not be loaded: {error}")))
            .map_err(blame)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            model: Arc::new(model),
            cores: Arc::new(Semaphore::new(cores)),
        })
    }

    /// How well each of the texts answers the query: the model's number before any sigmoid, larger
    /// is better. A text that is longer than the model reads is cut into parts, and has the score of
    /// its best one (MaxP; Dai and Callan, "Deeper Text Understanding for IR with Contextual
    /// Neural Language Modeling", SIGIR 2019). Of the query, half of what the model reads counts.
    ///
    /// If the caller is dropped, the work ends after the pass in progress.
    pub async fn scores(&self, query: &str, texts: &[&str]) -> Result<Vec<f32>, EmbedError> {
        let core = self.cores.clone().acquire_owned().await;
        let core = core.expect("the semaphore is never closed");
        let dropped = CancellationToken::new();
        let _at_the_end = dropped.clone().drop_guard();
        let model = self.model.clone();
        let query = query.to_owned();
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let score = move || {
            let scores = model.scores(&query, &texts, &dropped);
            drop(core);
            scores
        };
        tokio::task::spawn_blocking(score)
            .await
            .unwrap_or_else(|error| Err(EmbedError::failed(format!("the model failed: {error}"))))
    }
}

impl Model {
    fn scores(
        &self,
        query: &str,
        texts: &[String],
        dropped: &CancellationToken,
    ) -> Result<Vec<f32>, EmbedError> {
        let pairs = self
            .pairs(query, texts)
            .map_err(|error| EmbedError::input(format!("the tokenizer failed: {error}")))?;
        let lengths: Vec<usize> = pairs.iter().map(|pair| pair.ids.len()).collect();
        let mut scores = vec![f32::NEG_INFINITY; texts.len()];
        for batch in batches::batches(&lengths, rayon::current_num_threads()) {
            if dropped.is_cancelled() {
                break;
            }
            let batch = &pairs[batch];
            let scored = self
                .forward(batch)
                .map_err(|error| EmbedError::failed(format!("the model failed: {error}")))?;
            for (pair, score) in batch.iter().zip(scored) {
                if !score.is_finite() {
                    return Err(EmbedError::failed("the model gave no finite score"));
                }
                scores[pair.text] = scores[pair.text].max(score);
            }
        }
        Ok(scores)
    }

    /// The query with each part of each text.
    fn pairs(&self, query: &str, texts: &[String]) -> tokenizers::Result<Vec<Pair>> {
        let special = self.tokenizer.get_post_processor();
        let special = special.map_or(0, |processor| processor.added_tokens(true));
        let mut query = self.tokenizer.encode(query, false)?;
        let half = self.window.saturating_sub(special) / 2;
        query.truncate(half, 0, TruncationDirection::Right);
        query.take_overflowing();
        let room = self.window.saturating_sub(special + query.len());
        let mut pairs = Vec::new();
        for (text, words) in texts.iter().enumerate() {
            let mut first = self.tokenizer.encode(&**words, false)?;
            first.truncate(room, 0, TruncationDirection::Right);
            let rest: Vec<Encoding> = first.take_overflowing();
            for part in std::iter::once(first).chain(rest) {
                let pair = self
                    .tokenizer
                    .post_process(query.clone(), Some(part), true)?;
                pairs.push(Pair {
                    text,
                    ids: pair.get_ids().to_vec(),
                    types: pair.get_type_ids().to_vec(),
                });
            }
        }
        Ok(pairs)
    }

    fn forward(&self, pairs: &[Pair]) -> Result<Vec<f32>, UnknownNumber> {
        let texts: Vec<Tokens<'_>> = pairs
            .iter()
            .map(|pair| Tokens {
                ids: &pair.ids,
                segments: &pair.types,
            })
            .collect();
        self.encoder
            .forward(&texts, |tokens| self.head.forward(&tokens[..self.dim]))
    }
}

impl Head {
    /// The layers behind the encoder. The error finishes "the model …".
    fn load(labels: usize, config: &Config, weights: &Weights<'_>) -> Result<Self, String> {
        if labels != 1 {
            return Err(format!(
                "is no cross-encoder that gives one score: its config.json has {labels} labels in \
                 id2label"
            ));
        }
        let (inner, activation, outer) = match config.family {
            Family::Bert => ("bert.pooler.dense", Activation::Tanh, "classifier"),
            Family::Roberta => ("classifier.dense", Activation::Tanh, "classifier.out_proj"),
            Family::DistilBert => ("pre_classifier", Activation::Relu, "classifier"),
        };
        Ok(Self {
            inner: weights.linear(inner, config.dim, config.dim)?,
            activation,
            outer: weights.linear(outer, config.dim, 1)?,
        })
    }

    /// The score of a first token's vector.
    fn forward(&self, first: &[f32]) -> f32 {
        let mut inner = vec![0.0; self.inner.outputs()];
        self.inner.forward(first, self.activation, &mut inner);
        let mut score = [0.0];
        self.outer.forward(&inner, Activation::None, &mut score);
        score[0]
    }
}

fn labels(config: &Value) -> usize {
    let labels = config["id2label"].as_object();
    labels.map_or(0, |labels| labels.len())
}
