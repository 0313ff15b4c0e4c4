//! Vectors that are embedded and not yet committed to Postgres.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::note::TextHash;

/// Memory for them, in floats: 64 MB.
const MAX_FLOATS: usize = 16 << 20;

/// Remembers vectors from their embedding to their commit. A note may be released halfway:
/// the provider became unavailable after some of its requests, or an application holds its
/// row. The next attempt then embeds only the missing texts. Over the memory limit the oldest
/// vectors are forgotten.
#[derive(Debug, Default)]
pub struct UncommittedVectors {
    vectors: Mutex<Vectors>,
}

#[derive(Debug, Default)]
struct Vectors {
    by_hash: HashMap<TextHash, Arc<[f32]>>,
    /// Hashes in order of arrival; may name vectors that were removed.
    order: VecDeque<TextHash>,
    floats: usize,
}

impl UncommittedVectors {
    /// The vector of a text, if it is embedded and not yet committed.
    pub fn get(&self, hash: &TextHash) -> Option<Arc<[f32]>> {
        self.lock().by_hash.get(hash).cloned()
    }

    /// Remembers a vector.
    pub fn remember(&self, hash: TextHash, vector: Arc<[f32]>) {
        let mut kept = self.lock();
        kept.floats += vector.len();
        match kept.by_hash.insert(hash, vector) {
            Some(same) => kept.floats -= same.len(),
            None => kept.order.push_back(hash),
        }
        while kept.floats > MAX_FLOATS {
            let Some(oldest) = kept.order.pop_front() else {
                break;
            };
            kept.forget(&oldest);
        }
    }

    /// Forgets vectors that Postgres has now.
    pub fn forget_committed<'a>(&self, hashes: impl Iterator<Item = &'a TextHash>) {
        let mut kept = self.lock();
        hashes.for_each(|hash| kept.forget(hash));
        kept.tidy();
    }

    fn lock(&self) -> MutexGuard<'_, Vectors> {
        self.vectors.lock().expect("no holder panics")
    }
}

impl Vectors {
    fn forget(&mut self, hash: &TextHash) {
        if let Some(vector) = self.by_hash.remove(hash) {
            self.floats -= vector.len();
        }
    }

    /// Drops the hashes of removed vectors once they are most of the queue. A vector at the
    /// front that is never committed, a dead note's, would otherwise keep them for ever.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.by_hash.len() {
            let Self { by_hash, order, .. } = self;
            order.retain(|hash| by_hash.contains_key(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_committed_vectors_are_forgotten() {
        let (one, two) = (TextHash::of("one"), TextHash::of("two"));
        let uncommitted = UncommittedVectors::default();
        uncommitted.remember(one, Arc::new([1.0]));
        uncommitted.remember(two, Arc::new([2.0]));
        uncommitted.forget_committed([one].iter());
        assert_eq!(uncommitted.get(&one), None);
        assert_eq!(uncommitted.get(&two).as_deref(), Some(&[2.0f32][..]));
    }

    #[test]
    fn the_oldest_vectors_are_dropped_beyond_the_limit() {
        let uncommitted = UncommittedVectors::default();
        let half: Arc<[f32]> = vec![0.0; MAX_FLOATS / 2].into();
        for text in ["a", "b", "c"] {
            uncommitted.remember(TextHash::of(text), half.clone());
        }
        assert!(uncommitted.get(&TextHash::of("a")).is_none());
        assert!(uncommitted.get(&TextHash::of("c")).is_some());
    }

    #[test]
    fn a_vector_that_is_never_committed_does_not_make_the_others_pile_up() {
        let uncommitted = UncommittedVectors::default();
        uncommitted.remember(TextHash::of("of a dead note"), Arc::new([1.0]));
        for i in 0..1_000 {
            let hash = TextHash::of(&i.to_string());
            uncommitted.remember(hash, Arc::new([1.0]));
            uncommitted.forget_committed([hash].iter());
        }
        let kept = uncommitted.lock();
        assert_eq!((kept.by_hash.len(), kept.floats), (1, 1));
        assert!(
            kept.order.len() <= 2,
            "{} names for one vector",
            kept.order.len()
        );
    }
}
