//! The architectures: tokens → one vector each. The arithmetic is candle's.

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{bert, distilbert, xlm_roberta};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A BERT-family encoder with its weights.
pub enum Encoder {
    Bert(bert::BertModel),
    Roberta(xlm_roberta::XLMRobertaModel),
    DistilBert(distilbert::DistilBertModel),
}

/// What an encoder's `config.json` says of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Floats in a vector.
    pub dim: usize,
    /// Tokens that there are positions for.
    pub positions: usize,
    /// The token that fills up shorter texts.
    pub pad: u32,
}

impl Encoder {
    /// Builds the encoder of `config.json` from the weights. The error finishes "the model …".
    pub fn load(
        config: &Value,
        weights: VarBuilder<'_>,
    ) -> std::result::Result<(Self, Shape), String> {
        let kind = config["model_type"].as_str().unwrap_or("(none)");
        let config = completed(config, kind);
        match kind {
            "bert" => {
                let config: bert::Config = parse(&config)?;
                let shape = Shape {
                    dim: config.hidden_size,
                    positions: config.max_position_embeddings,
                    pad: config.pad_token_id as u32,
                };
                let model = bert::BertModel::load(weights, &config).map_err(mismatch)?;
                Ok((Self::Bert(model), shape))
            }
            "roberta" | "xlm-roberta" | "camembert" => {
                let config: xlm_roberta::Config = parse(&config)?;
                let shape = Shape {
                    dim: config.hidden_size,
                    // Positions are counted from the one after the padding token's.
                    positions: config
                        .max_position_embeddings
                        .saturating_sub(config.pad_token_id as usize + 1),
                    pad: config.pad_token_id,
                };
                let weights =
                    if weights.contains_tensor("roberta.embeddings.word_embeddings.weight") {
                        weights.pp("roberta")
                    } else {
                        weights
                    };
                let model =
                    xlm_roberta::XLMRobertaModel::new(&config, weights).map_err(mismatch)?;
                Ok((Self::Roberta(model), shape))
            }
            "distilbert" => {
                let positions = config["max_position_embeddings"].as_u64().unwrap_or(0) as usize;
                let config: distilbert::Config = parse(&config)?;
                let shape = Shape {
                    dim: config.dim,
                    positions,
                    pad: config.pad_token_id as u32,
                };
                let model =
                    distilbert::DistilBertModel::load(weights, &config).map_err(mismatch)?;
                Ok((Self::DistilBert(model), shape))
            }
            other => Err(format!(
                "has the model_type {other:?}; elf computes \"bert\", \"roberta\", \
                 \"xlm-roberta\", \"camembert\" and \"distilbert\""
            )),
        }
    }

    /// Vectors of shape (texts, tokens, dim). `ids`, `mask` and `types` have the shape
    /// (texts, tokens) and are `u32`. `mask` is 1 for a token and 0 for padding. `types` is 1 for
    /// the second of two texts, where the model tells them apart.
    pub fn forward(&self, ids: &Tensor, mask: &Tensor, types: &Tensor) -> Result<Tensor> {
        match self {
            Self::Bert(model) => model.forward(ids, types, Some(mask)),
            Self::Roberta(model) => model.forward(ids, mask, &ids.zeros_like()?, None, None, None),
            Self::DistilBert(model) => {
                // The inverse mask: what to ignore, of the shape (texts, heads, from, to).
                let hidden = mask.eq(0u32)?.unsqueeze(1)?.unsqueeze(1)?;
                model.forward(ids, &hidden)
            }
        }
    }
}

/// The weights of `model.safetensors`. The error finishes "the model …".
pub fn weights(bytes: Vec<u8>) -> std::result::Result<VarBuilder<'static>, String> {
    VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu)
        .map_err(|error| format!("has a model.safetensors that cannot be read: {error}"))
}

/// `config.json` as candle expects it: with the keys that some releases of
/// transformers leave out or name differently.
fn completed(config: &Value, kind: &str) -> Value {
    let mut config = config.clone();
    if config["position_embedding_type"].is_null() {
        config["position_embedding_type"] = json!("absolute");
    }
    let approximate = ["gelu_new", "gelu_fast", "gelu_pytorch_tanh"];
    if kind == "bert"
        && config["hidden_act"]
            .as_str()
            .is_some_and(|act| approximate.contains(&act))
    {
        config["hidden_act"] = json!("geluapproximate");
    }
    config
}

fn parse<T: DeserializeOwned>(config: &Value) -> std::result::Result<T, String> {
    if config["position_embedding_type"] != "absolute" {
        return Err(format!(
            "has position embeddings of the type {}; elf computes \"absolute\"",
            config["position_embedding_type"]
        ));
    }
    serde_json::from_value(config.clone())
        .map_err(|error| format!("has a config.json that elf does not understand: {error}"))
}

pub fn mismatch(error: candle_core::Error) -> String {
    format!("has a model.safetensors that does not fit its config.json: {error}")
}
