//! The vector of a query, remembered for a while.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::chunk::Chunker;
use crate::embed::provider::{Input, Provider};
use crate::embed::{EmbedError, Purpose};
use crate::unicode::composed;

/// Vectors that are remembered at most: 6 MB at 1,536 dimensions.
const MAX_REMEMBERED: u64 = 1000;

/// How long a vector is remembered. It does not become wrong, because a version never changes.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A query, and the tenant that is searched. A tenant must not learn, by an answer or its time,
/// what another one asked.
type Asked = (Option<String>, String);

/// Embeds queries.
pub struct QueryVectors {
    provider: Arc<Provider>,
    /// Cuts a query to what the model reads, with the prefix.
    chunker: Chunker,
    prefix: String,
    time: Duration,
    remembered: Cache<Asked, Arc<[f32]>>,
}

impl QueryVectors {
    /// `prefix` is put before every query, and `chunker` counts with it. The provider has `time`
    /// to answer.
    pub fn new(provider: Arc<Provider>, chunker: Chunker, prefix: &str, time: Duration) -> Self {
        Self {
            provider,
            chunker,
            prefix: prefix.to_owned(),
            time,
            remembered: Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .time_to_live(REMEMBERED)
                .build(),
        }
    }

    /// The vector of a query in a tenant.
    pub async fn embed(
        &self,
        tenant: Option<&String>,
        query: &str,
    ) -> Result<Arc<[f32]>, EmbedError> {
        // As the texts of notes are sent.
        let query = composed(query);
        let asked = (tenant.cloned(), query.clone().into_owned());
        if let Some(vector) = self.remembered.get(&asked) {
            return Ok(vector);
        }
        let inputs = [self.input(&query)];
        let embedding = self.provider.embed(&inputs, Purpose::Query);
        let embedded = tokio::time::timeout(self.time, embedding).await;
        let mut outcomes = embedded.map_err(|_| EmbedError::Unavailable {
            reason: format!("no vector of the query within {:?}", self.time),
            retry_after: None,
            perhaps_input: false,
        })?;
        let vector = outcomes.pop().expect("one outcome per input")?;
        self.remembered.insert(asked, vector.clone());
        Ok(vector)
    }

    /// Tokens of a text, as the embedding model counts them.
    pub fn tokens(&self, text: &str) -> usize {
        // Each token has at least one byte.
        self.chunker.tokenizer().count(text).unwrap_or(text.len())
    }

    /// The query as it is sent: of a query that is longer than a chunk, its beginning.
    fn input(&self, query: &str) -> Input<'_> {
        // A query that has no chunk is the provider's to refuse.
        let first = self.chunker.chunk(query).ok();
        let first = first.and_then(|chunks| chunks.first().copied());
        let (text, tokens) = match first {
            Some(first) => (&query[first.start..first.end], first.tokens),
            // An upper bound: each token has at least one byte, and special tokens are added.
            None => (query, self.prefix.len() + query.len() + 8),
        };
        Input::new(format!("{}{text}", self.prefix), tokens)
    }
}
