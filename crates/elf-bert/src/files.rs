//! The files of a model, in a folder.

use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::LoadError;
use super::layout::{self, Modules};

/// The kinds of encoders after which older releases named a file of sentence-transformers.
const SENTENCE_KINDS: [&str; 5] = ["bert", "roberta", "distilbert", "xlm-roberta", "camembert"];

/// A file that a model is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its path below the folder of the model: the first of these that is there.
    pub any_of: Vec<String>,
    /// Whether the model cannot be read without it.
    pub is_required: bool,
}

/// The files of a sentence-transformers model, whose `modules.json` has this content; `None` without one.
pub fn files_of_bi_encoder(modules: Option<&[u8]>) -> Result<Vec<Wanted>, LoadError> {
    let modules = match modules {
        Some(json) => layout::modules(&parse("modules.json", json)?)?,
        None => Modules::default(),
    };
    let at = |file: &str| format!("{}{file}", modules.encoder);
    let mut files = encoder_files(&modules.encoder);
    files.push(optional(sentence_configs(&modules.encoder)));
    if let Some(folder) = &modules.pooling {
        files.push(optional(vec![format!("{folder}config.json")]));
    }
    files.push(optional(vec![at("tokenizer_config.json")]));
    files.push(optional(vec!["modules.json".to_owned()]));
    Ok(files)
}

/// The files of a cross-encoder.
pub fn files_of_cross_encoder() -> Vec<Wanted> {
    let mut files = encoder_files("");
    files.push(optional(vec!["tokenizer_config.json".to_owned()]));
    files
}

fn encoder_files(folder: &str) -> Vec<Wanted> {
    let required = |file: &str| Wanted {
        any_of: vec![format!("{folder}{file}")],
        is_required: true,
    };
    ["config.json", "tokenizer.json", "model.safetensors"]
        .map(required)
        .into()
}

fn optional(any_of: Vec<String>) -> Wanted {
    Wanted {
        any_of,
        is_required: false,
    }
}

fn sentence_configs(folder: &str) -> Vec<String> {
    let named = |kind| format!("{folder}sentence_{kind}_config.json");
    SENTENCE_KINDS.map(named).into()
}

/// The folder of a model. Errors finish "the model …".
pub(super) struct Folder<'a>(pub &'a Path);

impl Folder<'_> {
    /// The content of a file that the model must have.
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, String> {
        std::fs::read(self.0.join(name))
            .map_err(|error| format!("has a {name} that cannot be read: {error}"))
    }

    /// The content of a file that the model must have.
    pub(super) fn json(&self, name: &str) -> Result<Value, String> {
        parse(name, &self.bytes(name)?)
    }

    /// The content of a file, or null where the model has no such file.
    pub(super) fn optional(&self, name: &str) -> Result<Value, String> {
        match self.0.join(name).exists() {
            true => self.json(name),
            false => Ok(Value::Null),
        }
    }

    /// The content of `sentence_bert_config.json`, under one of its names.
    pub(super) fn sentence_config(&self, folder: &str) -> Result<Value, String> {
        let mut names = sentence_configs(folder).into_iter();
        let found = names.find(|name| self.0.join(name).exists());
        found.map_or(Ok(Value::Null), |name| self.json(&name))
    }

    /// A tokenizer that neither truncates nor pads.
    pub(super) fn tokenizer(&self, name: &str) -> Result<Tokenizer, String> {
        let unreadable = |error| format!("has a {name} that cannot be read: {error}");
        let mut tokenizer = Tokenizer::from_file(self.0.join(name)).map_err(unreadable)?;
        // Many files truncate at 128 tokens, without any error.
        tokenizer.with_truncation(None).map_err(unreadable)?;
        tokenizer.with_padding(None);
        Ok(tokenizer)
    }
}

fn parse(name: &str, json: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(json).map_err(|error| {
        format!("has a {name} that cannot be read: {error}; download the model again")
    })
}
