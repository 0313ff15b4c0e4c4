//! The vector of a query, remembered for a while.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;

use crate::embed::EmbedError;
use crate::embed::provider::{Input, Provider};

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
    prefix: String,
    time: Duration,
    remembered: Cache<Asked, Arc<[f32]>>,
}

impl QueryVectors {
    /// `prefix` is put before every query. The provider has `time` to answer.
    pub fn new(provider: Arc<Provider>, prefix: &str, time: Duration) -> Self {
        Self {
            provider,
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
        let asked = (tenant.cloned(), query.to_owned());
        if let Some(vector) = self.remembered.get(&asked) {
            return Ok(vector);
        }
        let text = format!("{}{query}", self.prefix);
        // An upper bound instead of a count: each token has at least one byte, and special tokens
        // are added.
        let tokens = text.len() + 8;
        let inputs = [Input::new(text, tokens)];
        let embedded = tokio::time::timeout(self.time, self.provider.embed(&inputs)).await;
        let mut outcomes = embedded.map_err(|_| EmbedError::Unavailable {
            reason: format!("no vector of the query within {:?}", self.time),
            retry_after: None,
            perhaps_input: false,
        })?;
        let vector = outcomes.pop().expect("one outcome per input")?;
        self.remembered.insert(asked, vector.clone());
        Ok(vector)
    }
}
