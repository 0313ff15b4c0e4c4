//! Vectors that are embedded and not yet committed to Postgres.

use std::sync::Arc;

use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::note::TextHash;

/// Memory for them, in floats: 64 MB.
const MAX_FLOATS: u64 = 16 << 20;

/// Vectors from their embedding to their commit. A note may be released halfway: the provider
/// became unavailable after some of its requests, or an application holds its row. The next
/// attempt then embeds only the missing texts.
pub type UncommittedVectors = Cache<TextHash, Arc<[f32]>>;

/// Room for them. Over the memory limit it forgets the least recently used: moka's other policy
/// would turn new ones away.
pub fn uncommitted_vectors() -> UncommittedVectors {
    Cache::builder()
        .max_capacity(MAX_FLOATS)
        .weigher(|_, vector: &Arc<[f32]>| u32::try_from(vector.len()).unwrap_or(u32::MAX))
        .eviction_policy(EvictionPolicy::lru())
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_committed_vectors_are_forgotten() {
        let (one, two) = (TextHash::of("one"), TextHash::of("two"));
        let uncommitted = uncommitted_vectors();
        uncommitted.insert(one, Arc::new([1.0]));
        uncommitted.insert(two, Arc::new([2.0]));
        uncommitted.invalidate(&one);
        assert_eq!(uncommitted.get(&one), None);
        assert_eq!(uncommitted.get(&two).as_deref(), Some(&[2.0f32][..]));
    }

    #[test]
    fn the_oldest_vectors_are_dropped_beyond_the_limit() {
        let uncommitted = uncommitted_vectors();
        let half: Arc<[f32]> = vec![0.0; 8 << 20].into();
        for text in ["a", "b", "c"] {
            uncommitted.insert(TextHash::of(text), half.clone());
        }
        uncommitted.run_pending_tasks();
        assert!(uncommitted.get(&TextHash::of("a")).is_none());
        assert!(uncommitted.get(&TextHash::of("b")).is_some());
        assert!(uncommitted.get(&TextHash::of("c")).is_some());
    }

    #[test]
    fn a_vector_that_is_never_committed_does_not_make_the_others_pile_up() {
        let uncommitted = uncommitted_vectors();
        uncommitted.insert(TextHash::of("of a dead note"), Arc::new([1.0]));
        for i in 0..1_000 {
            let hash = TextHash::of(&i.to_string());
            uncommitted.insert(hash, Arc::new([1.0]));
            uncommitted.invalidate(&hash);
        }
        uncommitted.run_pending_tasks();
        assert_eq!(
            (uncommitted.entry_count(), uncommitted.weighted_size()),
            (1, 1)
        );
    }
}
