//! A bi-encoder: a vector for each text, as sentence-transformers computes it.

use std::path::Path;

use pulp::Arch;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use super::config::Config;
use super::encoder::{Encoder, Tokens, UnknownNumber};
use super::files::Folder;
use super::layout::{self, Modules};
use super::pooling::Pooling;
use super::weights::Weights;
use super::{Error, LoadError, batches};

/// A sentence-transformers model with its tokenizer.
pub struct BiEncoder {
    pub(super) tokenizer: Tokenizer,
    encoder: Encoder,
    pooling: Pooling,
    normalize: bool,
    lowercase: bool,
    dim: usize,
    window: usize,
    fingerprint: [u8; 32],
}

impl BiEncoder {
    /// Reads the model in `folder`, with the files of [`super::files_of_bi_encoder`]. It reads the disk and
    /// hashes the weights: call it from a thread that may block.
    pub fn open(folder: &Path) -> Result<Self, LoadError> {
        let files = Folder(folder);
        let modules = match files.optional("modules.json")? {
            Value::Null => Modules::default(),
            json => layout::modules(&json)?,
        };
        let at = |file: &str| format!("{}{file}", modules.encoder);
        let pooling = match &modules.pooling {
            Some(folder) => layout::pooling(&files.optional(&format!("{folder}config.json"))?)?,
            None => Pooling::Mean,
        };
        let sentence_config = files.sentence_config(&modules.encoder)?;
        let tokenizer_config = files.optional(&at("tokenizer_config.json"))?;
        let config = Config::read(&files.json(&at("config.json"))?)?;
        let weights = files.bytes(&at("model.safetensors"))?;
        let lowercase = sentence_config["do_lower_case"] == true;
        // Hashing takes a second for 400 MB on a slow processor, and the weights are in
        // memory anyway.
        let mut hash = Sha256::new_with_prefix(&weights);
        hash.update(format!("{pooling:?} {} {lowercase}", modules.normalize));
        Ok(Self {
            fingerprint: hash.finalize().into(),
            tokenizer: files.tokenizer(&at("tokenizer.json"))?,
            encoder: Encoder::load(&config, &Weights::read(&weights, Arch::new())?)?,
            pooling,
            normalize: modules.normalize,
            lowercase,
            dim: config.dim,
            window: layout::window(&sentence_config, &tokenizer_config, config.window()),
        })
    }

    /// Floats in each vector.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Tokens that the model reads of a text, special ones included.
    pub fn window(&self) -> usize {
        self.window
    }

    /// The SHA-256 of the weights, the pooling, the normalisation and the lowercasing.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// One vector for each text, in their order. It computes on the threads of `rayon`: call it from a thread
    /// that may block.
    pub fn vectors(&self, mut texts: Vec<String>) -> Result<Vec<Vec<f32>>, Error> {
        if self.lowercase {
            texts
                .iter_mut()
                .for_each(|text| *text = text.to_lowercase());
        }
        let tokens = self.tokens(texts)?;
        let lengths: Vec<usize> = tokens.iter().map(Vec::len).collect();
        let mut vectors = Vec::with_capacity(tokens.len());
        for batch in batches::batches(&lengths, rayon::current_num_threads()) {
            vectors.extend(self.forward(&tokens[batch]).map_err(Error::failed)?);
        }
        Ok(vectors)
    }

    fn tokens(&self, texts: Vec<String>) -> Result<Vec<Vec<u32>>, Error> {
        let encodings = self.tokenizer.encode_batch_fast(texts, true);
        let encodings = encodings.map_err(|error| Error::tokenizer(&error))?;
        for (index, encoding) in encodings.iter().enumerate() {
            match encoding.len() {
                0 => return Err(Error::Input(format!("text {index} has no tokens"))),
                length if length > self.window => {
                    return Err(Error::Input(format!(
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

    fn forward(&self, texts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, UnknownNumber> {
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
