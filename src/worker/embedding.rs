//! The vectors of a batch: looked up where they are known, embedded by the provider otherwise.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::plan::{ChunkedNote, HashedChunk, Vectors};
use super::stage::stage;
use super::{Report, Shared};
use crate::embed::provider::{Input, Outcome};
use crate::note::TextHash;
use crate::store::StoreError;
use crate::unicode::composed;

/// The look-up and embedding of a batch's texts. Dropping it aborts the requests in flight;
/// [`Self::stop_sending`] lets them end.
pub struct Embedding {
    /// The outcomes so far, by the hash of the chunk's text, without the prefix.
    pub vectors: Vectors,
    /// Texts that were sent to the provider and are in no [`Report`] yet.
    pub newly_embedded: HashSet<TextHash>,
    arriving: mpsc::UnboundedReceiver<Result<Arrived, StoreError>>,
    stop: CancellationToken,
    embedding: AbortOnDropHandle<()>,
}

/// The hash and the outcome of a text, and whether this call has sent it.
type Arrived = (TextHash, Outcome, bool);

/// A text that the batch needs a vector of.
struct Wanted<'a> {
    /// The hash of the chunk's text, without the prefix.
    hash: TextHash,
    /// The hash of the text as it is sent, with the prefix.
    input: TextHash,
    /// In NFC: the same text in another form has nearly another vector.
    text: Cow<'a, str>,
    tokens: usize,
}

impl Embedding {
    /// Begins to look up and embed the texts of `chunked_notes`, each once.
    pub fn start(shared: &Arc<Shared>, chunked_notes: Arc<Vec<ChunkedNote>>) -> Self {
        let (arrived, arriving) = mpsc::unbounded_channel();
        let shared = shared.clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let embed = async move {
            if let Err(error) = look_up_and_embed(&shared, &chunked_notes, &stopped, &arrived).await
            {
                // The receiver is gone if the batch has ended; here and below.
                let _ = arrived.send(Err(error));
            }
        };
        Self {
            vectors: Vectors::new(),
            newly_embedded: HashSet::new(),
            arriving,
            stop,
            embedding: AbortOnDropHandle::new(tokio::spawn(embed.in_current_span())),
        }
    }

    /// Sends no more requests. Those in flight end, and their vectors are kept for the next
    /// claim of the notes.
    pub fn stop_sending(self) {
        self.stop.cancel();
        drop(self.embedding.detach());
    }

    /// Collects the outcomes that arrive within `time`. Returns whether more are to come.
    pub async fn collect(&mut self, time: Duration) -> Result<bool, StoreError> {
        let Self {
            vectors,
            newly_embedded,
            arriving,
            ..
        } = self;
        let collect_all = async {
            while let Some(arrived) = arriving.recv().await {
                let (hash, outcome, was_sent) = arrived?;
                if was_sent {
                    newly_embedded.insert(hash);
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

/// Passes each vector on as soon as it arrives. An embedded vector is kept from the moment
/// its request ends, even if the batch fails.
async fn look_up_and_embed(
    shared: &Shared,
    chunked_notes: &[ChunkedNote],
    stop: &CancellationToken,
    arrived: &mpsc::UnboundedSender<Result<Arrived, StoreError>>,
) -> Result<(), StoreError> {
    let provider = &shared.pipeline.provider;
    let wanted = wanted(shared, chunked_notes);
    // Reserved before the look-up: another batch may embed and commit a text between the two,
    // and this one would embed it again.
    let mut reservations = provider.reserve(wanted.iter().map(|wanted| wanted.input));
    let mine: HashSet<TextHash> = reservations.mine().collect();
    let is_mine = |wanted: &&Wanted| mine.contains(&wanted.input);
    let known = known_vectors(shared, wanted.iter().filter(is_mine)).await?;
    for wanted in &wanted {
        if let Some(vector) = known.get(&wanted.hash) {
            reservations.resolve_known(wanted.input, vector.clone());
            let _ = arrived.send(Ok((wanted.hash, Ok(vector.clone()), false)));
        }
    }
    let prefix = &shared.pipeline.document_prefix;
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
            shared.uncommitted.insert(hash, vector.clone());
            shared.totals.add(&Report {
                embedded: 1,
                tokens: tokens as u64,
                ..Report::default()
            });
        }
        let _ = arrived.send(Ok((hash, outcome.clone(), was_sent)));
    };
    provider.embed_each(&inputs, reservations, stop, each).await;
    Ok(())
}

/// The texts of these notes, in the order of the notes, so that the first notes are complete
/// first.
fn wanted<'a>(shared: &Shared, chunked_notes: &'a [ChunkedNote]) -> Vec<Wanted<'a>> {
    let pipeline = &shared.pipeline;
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for chunked in chunked_notes {
        let (Some(note), Ok(hashed_chunks)) = (&chunked.note, &chunked.hashed_chunks) else {
            continue;
        };
        for HashedChunk { chunk, lead, hash } in hashed_chunks {
            if seen.insert(*hash) {
                let text = composed(&note.text[chunk.start..chunk.end]);
                let text = match lead.is_empty() {
                    true => text,
                    false => Cow::Owned(format!("{lead}{text}")),
                };
                wanted.push(Wanted {
                    hash: *hash,
                    input: TextHash::of_both(&pipeline.document_prefix, &text),
                    text,
                    tokens: chunk.tokens,
                });
            }
        }
    }
    wanted
}

/// The vectors that exist already, uncommitted or in Postgres.
async fn known_vectors<'w>(
    shared: &Shared,
    wanted: impl Iterator<Item = &'w Wanted<'w>>,
) -> Result<HashMap<TextHash, Arc<[f32]>>, StoreError> {
    let mut known = HashMap::new();
    let mut unknown = Vec::new();
    // Uncommitted vectors first: one that is committed between the two look-ups is found by
    // the second.
    for Wanted { hash, .. } in wanted {
        match shared.uncommitted.get(hash) {
            Some(vector) => drop(known.insert(*hash, vector)),
            None => unknown.push(*hash),
        }
    }
    let (store, version) = shared.store_and_version();
    let lookup = store.known_vectors(version, &unknown);
    known.extend(stage("lookup", lookup).await?);
    Ok(known)
}
