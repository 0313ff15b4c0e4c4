//! A cross-encoder: a BERT-family model that reads a query and a text together and
//! gives one number, `…ForSequenceClassification` with one label in transformers.

use std::path::Path;

use pulp::Arch;
use serde_json::Value;
use tokenizers::tokenizer::PostProcessor;
use tokenizers::utils::truncation::TruncationDirection;
use tokenizers::{Encoding, Tokenizer};

use super::config::{Config, Family};
use super::cpu::{Activation, Linear};
use super::encoder::{Encoder, Tokens, UnknownNumber};
use super::files::Folder;
use super::weights::Weights;
use super::{Error, LoadError, batches, layout};

/// A cross-encoder with its tokenizer.
pub struct CrossEncoder {
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
    /// Its index among the texts of the call.
    text: usize,
    ids: Vec<u32>,
    types: Vec<u32>,
}

impl CrossEncoder {
    /// Reads the model in `folder`, with the files of [`super::files_of_cross_encoder`]: call it from a thread
    /// that may block.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        let files = Folder(folder);
        let tokenizer_config = files.optional("tokenizer_config.json")?;
        let json = files.json("config.json")?;
        let config = Config::read(&json)?;
        let bytes = files.bytes("model.safetensors")?;
        let weights = Weights::read(&bytes, Arch::new())?;
        Ok(Self {
            tokenizer: files.tokenizer("tokenizer.json")?,
            head: Head::load(labels(&json), &config, &weights)?,
            encoder: Encoder::load(&config, &weights)?,
            dim: config.dim,
            window: layout::window(&Value::Null, &tokenizer_config, config.window()),
        })
    }

    /// How well each of the texts answers the query: the model's number before any sigmoid, larger
    /// is better. A text that is longer than the model reads is cut into parts, and has the score of
    /// its best one. That is MaxP (Dai and Callan, "Deeper Text Understanding for IR with Contextual
    /// Neural Language Modeling", SIGIR 2019). Of the query, half of what the model reads counts.
    ///
    /// It computes on the threads of `rayon`: call it from a thread that may block. Between two passes it asks
    /// `is_cancelled`; then the scores are of no use.
    pub fn scores(
        &self,
        query: &str,
        texts: &[String],
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Vec<f32>, Error> {
        let pairs = self.pairs(query, texts);
        let pairs = pairs.map_err(|error| Error::tokenizer(&error))?;
        let lengths: Vec<usize> = pairs.iter().map(|pair| pair.ids.len()).collect();
        let mut scores = vec![f32::NEG_INFINITY; texts.len()];
        for batch in batches::batches(&lengths, rayon::current_num_threads()) {
            if is_cancelled() {
                break;
            }
            let batch = &pairs[batch];
            let scored = self.forward(batch).map_err(Error::failed)?;
            for (pair, score) in batch.iter().zip(scored) {
                if !score.is_finite() {
                    return Err(Error::Failed("gave no finite score".into()));
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
