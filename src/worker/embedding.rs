//! The texts of a batch on their way through the provider.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::plan::Vectors;
use super::{Report, Shared};
use crate::embed::provider::{Input, Outcome};
use crate::note::TextHash;

/// Texts that are being embedded, until it is dropped.
pub struct Embedding {
    arriving: mpsc::UnboundedReceiver<(TextHash, Outcome)>,
    _embedding: AbortOnDropHandle<()>,
}

/// A text that has no vector yet, as it is sent.
pub struct Missing {
    /// The hash of the chunk's text, without the prefix.
    pub hash: TextHash,
    /// Prefix and text.
    pub input: Input<'static>,
}

impl Embedding {
    /// Begins to embed. Each vector is kept from the moment its own request ends, whatever
    /// becomes of the batch.
    pub fn start(shared: &Arc<Shared>, missing: Vec<Missing>) -> Self {
        let (arrived, arriving) = mpsc::unbounded_channel();
        let shared = shared.clone();
        let (hashes, inputs): (Vec<TextHash>, Vec<Input>) =
            missing.into_iter().map(|m| (m.hash, m.input)).unzip();
        let embed = async move {
            let by_input: HashMap<TextHash, (TextHash, usize)> = inputs
                .iter()
                .zip(hashes)
                .map(|(input, hash)| (input.hash, (hash, input.tokens)))
                .collect();
            let provider = shared.tools.provider.clone();
            let each = |input: TextHash, outcome: &Outcome| {
                let (hash, tokens) = by_input[&input];
                if let Ok(vector) = outcome {
                    shared.unspent.keep(hash, vector.clone());
                    shared.totals.add(&Report {
                        embedded: 1,
                        tokens: tokens as u64,
                        ..Report::default()
                    });
                }
                // The batch may have ended meanwhile.
                let _ = arrived.send((hash, outcome.clone()));
            };
            provider.embed_each(&inputs, each).await;
        };
        Self {
            arriving,
            _embedding: AbortOnDropHandle::new(tokio::spawn(embed.in_current_span())),
        }
    }

    /// Takes in what arrives within `time`. Returns whether more is to come.
    pub async fn collect(&mut self, time: Duration, vectors: &mut Vectors) -> bool {
        let collect_all = async {
            while let Some((hash, outcome)) = self.arriving.recv().await {
                vectors.insert(hash, outcome);
            }
        };
        tokio::time::timeout(time, collect_all).await.is_err()
    }
}
