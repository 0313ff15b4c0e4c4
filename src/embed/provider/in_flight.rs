//! Texts in flight, so that no call sends a text that another call has sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use crate::embed::EmbedError;
use crate::lock::lock;
use crate::note::TextHash;

/// What became of a text: its vector of `dim` floats, or why it has none.
pub type Outcome = Result<Arc<[f32]>, EmbedError>;

/// The texts in flight, each with its pending outcome.
#[derive(Default)]
pub struct InFlightTexts(Mutex<HashMap<TextHash, Pending>>);

/// The outcome of a text that another call embeds.
pub type Pending = watch::Receiver<Option<Outcome>>;

/// Which call embeds a text.
pub enum Reservation<'a> {
    /// The caller.
    Mine(Ticket<'a>),
    /// Another call, which has reserved it already.
    Theirs(Pending),
}

impl InFlightTexts {
    /// Reserves `hash` for the caller, unless another call embeds it already.
    pub fn reserve(&self, hash: TextHash) -> Reservation<'_> {
        let mut texts = lock(&self.0);
        if let Some(pending) = texts.get(&hash) {
            return Reservation::Theirs(pending.clone());
        }
        let (outcome, pending) = watch::channel(None);
        texts.insert(hash, pending);
        Reservation::Mine(Ticket {
            hash,
            outcome,
            texts: self,
        })
    }
}

/// Obliges its call to embed one text. If it is dropped without an outcome, for example
/// because the call is cancelled, one of the calls that wait for the text embeds it.
pub struct Ticket<'a> {
    hash: TextHash,
    outcome: watch::Sender<Option<Outcome>>,
    texts: &'a InFlightTexts,
}

impl Ticket<'_> {
    /// Passes the outcome to every call that waits.
    pub fn complete(self, outcome: Outcome) {
        self.outcome.send_replace(Some(outcome));
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        lock(&self.texts.0).remove(&self.hash);
    }
}

/// The outcome, or `None` if the call that had the text dropped its ticket.
pub async fn wait(mut pending: Pending) -> Option<Outcome> {
    let completed = pending.wait_for(Option::is_some).await.ok()?;
    completed.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_call_at_a_time_embeds_a_text() {
        let texts = InFlightTexts::default();
        let hash = TextHash::of("x");
        let Reservation::Mine(ticket) = texts.reserve(hash) else {
            panic!("no call had it");
        };
        let Reservation::Theirs(pending) = texts.reserve(hash) else {
            panic!("it was taken");
        };
        ticket.complete(Ok(Arc::from([1.0])));
        assert_eq!(wait(pending).await, Some(Ok(Arc::from([1.0]))));
        assert!(matches!(texts.reserve(hash), Reservation::Mine(_)));
    }

    #[tokio::test]
    async fn a_dropped_reservation_frees_its_text() {
        let texts = InFlightTexts::default();
        let hash = TextHash::of("x");
        let first = texts.reserve(hash);
        let Reservation::Theirs(pending) = texts.reserve(hash) else {
            panic!("it was taken");
        };
        drop(first);
        assert_eq!(wait(pending).await, None);
        assert!(matches!(texts.reserve(hash), Reservation::Mine(_)));
    }
}
