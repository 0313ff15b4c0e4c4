//! What a request tells the server about BM25: the options of the collection, with every text.

use std::borrow::Cow;
use std::collections::HashMap;

use prost::Message;
use qdrant_client::qdrant::{Document, DocumentBuilder, Value};
use serde_json::json;

use super::json::to_value;
use crate::config::Bm25Options;
use crate::unicode::for_keywords;

/// How the server turns texts of one collection into BM25 vectors.
pub(super) struct Bm25Document {
    fold_accents: bool,
    options: HashMap<String, Value>,
    /// All of a document but the text, encoded.
    pub(super) rest: Vec<u8>,
}

impl Bm25Document {
    pub(super) fn new(bm25: &Bm25Options) -> Self {
        // The server takes the language `none`: no stemmer and no stopwords.
        let options = [
            ("language", json!(bm25.language)),
            ("ascii_folding", json!(bm25.fold_accents)),
            ("k", json!(bm25.k)),
            ("b", json!(bm25.b)),
            ("avg_len", json!(bm25.avg_len)),
        ];
        let options: HashMap<String, Value> = options
            .into_iter()
            .map(|(key, json)| (key.to_owned(), to_value(json)))
            .collect();
        Self {
            fold_accents: bm25.fold_accents,
            rest: document("", options.clone()).encode_to_vec(),
            options,
        }
    }

    pub(super) fn of(&self, text: &str) -> Document {
        document(&self.prepared(text), self.options.clone())
    }

    /// A text as the server gets it.
    pub(super) fn prepared<'a>(&self, text: &'a str) -> Cow<'a, str> {
        for_keywords(text, self.fold_accents)
    }
}

fn document(text: &str, options: HashMap<String, Value>) -> Document {
    DocumentBuilder::new(text, "qdrant/bm25")
        .options(options)
        .build()
}
