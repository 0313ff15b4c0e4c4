//! What a request tells the server about BM25: the options of the collection, with every text.

use std::collections::HashMap;

use qdrant_client::qdrant::{Document, DocumentBuilder, Value};
use serde_json::json;

use super::json::to_value;
use crate::config::{Bm25Options, NO_LANGUAGE};
use crate::index::{Point, keywords};

/// How the server turns texts of one collection into BM25 vectors.
pub(super) struct Bm25Document {
    bm25: Bm25Options,
    options: HashMap<String, Value>,
    bytes: usize,
}

impl Bm25Document {
    pub(super) fn new(bm25: &Bm25Options) -> Self {
        // For the language `none`, the server uses no stemmer (1.19 warns of it, unless stopwords are given).
        let language = keywords::stemmed_language(bm25).unwrap_or(NO_LANGUAGE);
        let mut options = vec![
            ("tokenizer", json!(bm25.tokenizer)),
            ("language", json!(language)),
            ("ascii_folding", json!(bm25.ascii_folding)),
            ("k", json!(bm25.k)),
            ("b", json!(bm25.b)),
            ("avg_len", json!(bm25.avg_len)),
        ];
        if language == NO_LANGUAGE || !bm25.stopwords.is_empty() {
            options.push(("stopwords", keywords::stopwords(bm25)));
        }
        let bytes = options
            .iter()
            .map(|(key, json)| key.len() + json.to_string().len());
        Self {
            bytes: bytes.sum(),
            bm25: bm25.clone(),
            options: options
                .into_iter()
                .map(|(key, json)| (key.to_owned(), to_value(json)))
                .collect(),
        }
    }

    /// What the options add to each text in a request, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn of_point(&self, point: &Point) -> Document {
        self.of_prepared(&point.words(&self.bm25))
    }

    pub(super) fn of_query(&self, words: &str) -> Document {
        self.of_prepared(&keywords::prepared(words, &self.bm25))
    }

    fn of_prepared(&self, text: &str) -> Document {
        DocumentBuilder::new(text, "qdrant/bm25")
            .options(self.options.clone())
            .build()
    }
}
