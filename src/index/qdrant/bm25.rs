//! What a request tells the server about BM25: the options of the collection, with every text.

use std::collections::HashMap;

use qdrant_client::qdrant::{Document, DocumentBuilder, Value};
use serde_json::json;

use super::json::to_value;
use crate::config::Bm25Options;
use crate::index::Point;
use crate::unicode::for_keywords;

/// How the server turns texts of one collection into BM25 vectors.
pub(super) struct Bm25Document {
    bm25: Bm25Options,
    options: HashMap<String, Value>,
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
        Self {
            bm25: bm25.clone(),
            options: options
                .into_iter()
                .map(|(key, json)| (key.to_owned(), to_value(json)))
                .collect(),
        }
    }

    pub(super) fn of_point(&self, point: &Point) -> Document {
        self.of(&point.words(&self.bm25))
    }

    pub(super) fn of(&self, text: &str) -> Document {
        let text = for_keywords(text, self.bm25.fold_accents);
        DocumentBuilder::new(text, "qdrant/bm25")
            .options(self.options.clone())
            .build()
    }
}
