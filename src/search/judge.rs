//! What an answer says of each hit: the passage that answers best, and the relevance.

use super::answer::Item;
use super::passage;
use super::ranking::Live;
use super::relevance::{Cosines, JUDGED, Words, is_near, relevance};
use super::terms::{self, Finder, Terms};

/// The words of a query, weighed by the best chunks that it found.
pub struct Judge<'t> {
    finder: Finder<'t>,
    places: passage::Places,
    words: Words,
    /// The cosine of each of the best chunks, and the share of the query's words that it has.
    best: Vec<(Option<f32>, Option<f32>)>,
}

impl<'t> Judge<'t> {
    /// `best` are the best chunks of the best notes.
    pub fn new(terms: &'t Terms, query: &str, best: &[Live]) -> Self {
        let query = terms.of(query);
        let best = &best[..best.len().min(JUDGED)];
        let mut finder = Finder::new(terms, &query);
        let texts = best.iter().map(|live| finder.find(&live.chunk.text));
        let texts: Vec<_> = texts.collect();
        let weights = terms::weights(&query, texts.iter().map(Vec::as_slice));
        let words = Words::new(&weights, &texts);
        let evidence = |(live, terms): (&Live, &Vec<_>)| {
            let covered = words.covered(terms, 0..live.chunk.text.len());
            (live.ranked.candidate.dense, covered)
        };
        Self {
            best: best.iter().zip(&texts).map(evidence).collect(),
            places: passage::places(&query, &weights),
            words,
            finder,
        }
    }

    /// Whether one of the best notes is no weak hit, also of those that the limit of the search leaves out.
    pub fn is_near(&self, cosines: Cosines) -> bool {
        let mut best = self.best.iter();
        best.any(|(cosine, covered)| is_near(relevance(cosines, *cosine, *covered)))
    }

    /// Gives each item its passage and its relevance.
    pub fn judge(&mut self, cosines: Cosines, items: &mut [Item]) {
        for item in items {
            let terms = self.finder.find(&item.context.text);
            let chunk = item.start_offset..item.end_offset;
            let from = item.context.start_offset;
            let in_context = chunk.start.saturating_sub(from)..chunk.end.saturating_sub(from);
            let covered = self.words.covered(&terms, in_context);
            item.relevance = relevance(cosines, item.dense, covered);
            item.passage = passage::of(&item.context, &terms, &self.places, chunk);
        }
    }
}
