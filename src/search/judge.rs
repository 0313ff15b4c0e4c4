//! What an answer says of each hit: the passage that answers best, and the relevance.

use super::answer::Item;
use super::passage;
use super::ranking::Live;
use super::relevance::{Cosines, JUDGED, Words, relevance};
use super::terms::{self, Terms};

/// The words of a query, weighed by the best chunks that it found.
pub struct Judge<'t> {
    terms: &'t Terms,
    places: passage::Places,
    words: Words,
}

impl<'t> Judge<'t> {
    /// `best` are the best chunks of the best notes.
    pub fn new(terms: &'t Terms, query: &str, best: &[Live]) -> Self {
        let query = terms.of(query);
        let best = best.iter().take(JUDGED);
        let texts: Vec<_> = best.map(|live| terms.of(&live.chunk.text)).collect();
        let weights = terms::weights(&query, texts.iter().map(Vec::as_slice));
        Self {
            places: passage::places(&query, &weights),
            words: Words::new(&weights, &texts),
            terms,
        }
    }

    /// Gives each item its passage and its relevance.
    pub fn judge(&self, cosines: Cosines, items: &mut [Item]) {
        for item in items {
            let terms = self.terms.of(&item.context.text);
            let chunk = item.start_offset..item.end_offset;
            let from = item.context.start_offset;
            let in_context = chunk.start.saturating_sub(from)..chunk.end.saturating_sub(from);
            let covered = self.words.covered(&terms, in_context);
            item.relevance = relevance(cosines, item.dense, covered);
            item.passage = passage::of(&item.context, &terms, &self.places, chunk);
        }
    }
}
