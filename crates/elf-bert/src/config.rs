//! Reads `config.json` of the encoder: its family, and its sizes.

use serde::Deserialize;
use serde_json::Value;

use super::cpu::Activation;

/// Encoders that differ in the names of their weights and in the way they count positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// BERT, with a segment for each of two texts.
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: positions start behind the padding token's.
    Roberta,
    /// DistilBERT: no segments.
    DistilBert,
}

/// What a `config.json` says.
#[derive(Debug, Clone)]
pub struct Config {
    /// The `model_type`.
    pub kind: String,
    pub family: Family,
    /// Floats of a token's vector.
    pub dim: usize,
    /// Floats between the two products of a feed-forward layer.
    pub inner: usize,
    pub layers: usize,
    /// Heads of each layer's attention.
    pub heads: usize,
    /// What stands between the two products of a feed-forward layer.
    pub activation: Activation,
    /// What a layer normalisation adds to the variance.
    pub epsilon: f32,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Rows of the table of positions.
    pub positions: usize,
    /// Rows of the table of segments; none for DistilBERT.
    pub segments: usize,
    /// The token that fills up texts where a model needs texts of one length.
    pub pad: u32,
}

impl Config {
    /// Reads the content of the file. The error finishes "the model …".
    pub fn read(json: &Value) -> Result<Self, String> {
        let kind = json["model_type"].as_str().unwrap_or("(none)").to_owned();
        let positions = &json["position_embedding_type"];
        if !positions.is_null() && positions != "absolute" {
            return Err(format!(
                "has position embeddings of the type {positions}; elf computes \"absolute\""
            ));
        }
        let config = match &*kind {
            "bert" => parse::<BertFile>(json)?.config(kind, Family::Bert),
            "roberta" | "xlm-roberta" | "camembert" => {
                parse::<BertFile>(json)?.config(kind, Family::Roberta)
            }
            "distilbert" => parse::<DistilBertFile>(json)?.config(kind),
            other => Err(format!(
                "has the model_type {other:?}; elf computes \"bert\", \"roberta\", \
                 \"xlm-roberta\", \"camembert\" and \"distilbert\""
            )),
        }?;
        if config.heads == 0 || config.dim == 0 || !config.dim.is_multiple_of(config.heads) {
            return Err(format!(
                "has a config.json that splits vectors of {} floats into {} heads",
                config.dim, config.heads
            ));
        }
        Ok(config)
    }

    /// Tokens that there are positions for.
    pub fn window(&self) -> usize {
        match self.family {
            Family::Bert | Family::DistilBert => self.positions,
            // Positions are counted from the one after the padding token's.
            Family::Roberta => self.positions.saturating_sub(self.pad as usize + 1),
        }
    }
}

#[derive(Deserialize)]
struct BertFile {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    hidden_act: Value,
    layer_norm_eps: f32,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: usize,
    pad_token_id: u32,
}

impl BertFile {
    fn config(self, kind: String, family: Family) -> Result<Config, String> {
        Ok(Config {
            kind,
            family,
            dim: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            activation: Activation::named(&self.hidden_act)?,
            epsilon: self.layer_norm_eps,
            vocabulary: self.vocab_size,
            positions: self.max_position_embeddings,
            segments: self.type_vocab_size,
            pad: self.pad_token_id,
        })
    }
}

#[derive(Deserialize)]
struct DistilBertFile {
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    activation: Value,
    vocab_size: usize,
    max_position_embeddings: usize,
    pad_token_id: u32,
}

impl DistilBertFile {
    fn config(self, kind: String) -> Result<Config, String> {
        Ok(Config {
            kind,
            family: Family::DistilBert,
            dim: self.dim,
            inner: self.hidden_dim,
            layers: self.n_layers,
            heads: self.n_heads,
            activation: Activation::named(&self.activation)?,
            // The file does not name it; transformers has it in its code.
            epsilon: 1e-12,
            vocabulary: self.vocab_size,
            positions: self.max_position_embeddings,
            segments: 0,
            pad: self.pad_token_id,
        })
    }
}

fn parse<'a, T: Deserialize<'a>>(json: &'a Value) -> Result<T, String> {
    T::deserialize(json)
        .map_err(|error| format!("has a config.json that elf does not understand: {error}"))
}
