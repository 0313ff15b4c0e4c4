//! The vectors of a batch: those that are known, and the rest on its way through the provider.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::batch::stage;
use super::plan::{ChunkedNote, HashedChunk, Vectors};
use super::{Report, Shared};
use crate::embed::provider::{Input, Outcome};
use crate::note::TextHash;
use crate::store::StoreError;

/// Vectors that are looked up and embedded. Dropped it ends at once; see [`Self::leave`].
pub struct Embedding {
    /// What has arrived, by the hash of the chunk's text, without the prefix.
    pub vectors: Vectors,
    /// Those of them that were paid for and are in no [`Report`] yet.
    pub fresh: HashSet<TextHash>,
    arriving: mpsc::UnboundedReceiver<Result<Arrived, StoreError>>,
    stop: CancellationToken,
    embedding: AbortOnDropHandle<()>,
}

struct Arrived {
    hash: TextHash,
    outcome: Outcome,
    was_sent: bool,
}

/// A text that the batch needs a vector of.
struct Wanted<'a> {
    /// The hash of the chunk's text, without the prefix.
    hash: TextHash,
    /// The hash of the text as it is sent, with the prefix.
    input: TextHash,
    text: &'a str,
    tokens: usize,
}

impl Embedding {
    /// Begins to look up and to embed the texts of `cuts`, each once.
    pub fn start(shared: &Arc<Shared>, cuts: Arc<Vec<ChunkedNote>>) -> Self {
        let (arrived, arriving) = mpsc::unbounded_channel();
        let shared = shared.clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let embed = async move {
            if let Err(error) = look_up_and_embed(&shared, &cuts, &stopped, &arrived).await {
                // The batch may have ended meanwhile; here and below.
                let _ = arrived.send(Err(error));
            }
        };
        Self {
            vectors: Vectors::new(),
            fresh: HashSet::new(),
            arriving,
            stop,
            embedding: AbortOnDropHandle::new(tokio::spawn(embed.in_current_span())),
        }
    }

    /// Sends nothing more. What is in flight ends, and its vectors are kept for the next
    /// claim of the notes.
    pub fn leave(self) {
        self.stop.cancel();
        drop(self.embedding.detach());
    }

    /// Takes in what arrives within `time`. Returns whether more is to come.
    pub async fn collect(&mut self, time: Duration) -> Result<bool, StoreError> {
        let Self {
            vectors,
            fresh,
            arriving,
            ..
        } = self;
        let collect_all = async {
            while let Some(arrived) = arriving.recv().await {
                let Arrived {
                    hash,
                    outcome,
                    was_sent,
                } = arrived?;
                if was_sent {
                    fresh.insert(hash);
                }
                vectors.insert(hash, outcome);
            }
            Ok(())
        };
        match tokio::time::timeout(time, collect_all).await {
            Ok(ended) => ended.map(|()| false),
            Err(_) => Ok(true),
        }
    }
}

/// Sends each vector on as soon as it is there. One that was paid for is kept from the
/// moment its own request ends, whatever becomes of the batch.
async fn look_up_and_embed(
    shared: &Shared,
    cuts: &[ChunkedNote],
    stop: &CancellationToken,
    arrived: &mpsc::UnboundedSender<Result<Arrived, StoreError>>,
) -> Result<(), StoreError> {
    let provider = &shared.context.provider;
    let wanted = wanted(shared, cuts);
    // Before the look-up: a vector that another batch is given after it would be paid for
    // twice.
    let mut claims = provider.claim(wanted.iter().map(|wanted| wanted.input));
    let mine: HashSet<TextHash> = claims.mine().collect();
    let is_mine = |wanted: &&Wanted| mine.contains(&wanted.input);
    let known = known_vectors(shared, wanted.iter().filter(is_mine)).await?;
    for wanted in &wanted {
        if let Some(vector) = known.get(&wanted.hash) {
            claims.is_known(wanted.input, vector.clone());
            let _ = arrived.send(Ok(Arrived {
                hash: wanted.hash,
                outcome: Ok(vector.clone()),
                was_sent: false,
            }));
        }
    }
    let prefix = &shared.context.document_prefix;
    let unknown = wanted.iter().filter(|w| !known.contains_key(&w.hash));
    let inputs: Vec<Input> = unknown
        .map(|wanted| Input {
            hash: wanted.input,
            text: format!("{prefix}{}", wanted.text).into(),
            tokens: wanted.tokens,
        })
        .collect();
    let by_input: HashMap<TextHash, &Wanted> = wanted.iter().map(|w| (w.input, w)).collect();
    let each = |input: TextHash, outcome: &Outcome, was_sent: bool| {
        let Wanted { hash, tokens, .. } = *by_input[&input];
        if let Ok(vector) = outcome
            && was_sent
        {
            shared.uncommitted.keep(hash, vector.clone());
            shared.totals.add(&Report {
                embedded: 1,
                tokens: tokens as u64,
                ..Report::default()
            });
        }
        let _ = arrived.send(Ok(Arrived {
            hash,
            outcome: outcome.clone(),
            was_sent,
        }));
    };
    provider.embed_each(&inputs, claims, stop, each).await;
    Ok(())
}

/// The texts of these notes, in their order, so that the first notes are complete first. A
/// text without a token is not sent.
fn wanted<'a>(shared: &Shared, cuts: &'a [ChunkedNote]) -> Vec<Wanted<'a>> {
    let context = &shared.context;
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for cut in cuts {
        let (Some(note), Ok(hashed_chunks)) = (&cut.note, &cut.hashed_chunks) else {
            continue;
        };
        for HashedChunk { chunk, hash } in hashed_chunks {
            let text = &note.text[chunk.start..chunk.end];
            if chunk.tokens > context.chunker.fixed_tokens() && seen.insert(*hash) {
                wanted.push(Wanted {
                    hash: *hash,
                    input: TextHash::of_both(&context.document_prefix, text),
                    text,
                    tokens: chunk.tokens,
                });
            }
        }
    }
    wanted
}

/// The vectors that need not be paid for again.
async fn known_vectors<'w>(
    shared: &Shared,
    wanted: impl Iterator<Item = &'w Wanted<'w>>,
) -> Result<HashMap<TextHash, Arc<[f32]>>, StoreError> {
    let context = &shared.context;
    let mut known = HashMap::new();
    let mut unknown = Vec::new();
    // First those that no commit has yet: one that is committed between the two looks
    // is found by the second.
    for Wanted { hash, .. } in wanted {
        match shared.uncommitted.get(hash) {
            Some(vector) => drop(known.insert(*hash, vector)),
            None => unknown.push(*hash),
        }
    }
    let lookup = context
        .stores
        .store
        .known_vectors(&context.version.name, &unknown);
    known.extend(stage("lookup", lookup).await?);
    Ok(known)
}
