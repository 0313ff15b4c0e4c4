//! Whether the provider cuts texts off, by the tokens that it counts.
//!
//! A server that reads 512 tokens of 1,024 makes a vector of half a text and says nothing. Its
//! `usage` tells: it counts fewer tokens than were sent. That is no failure of a note, because the
//! provider may only count in another way: its tokenizer need not be the one that ELF has.

use std::sync::atomic::{AtomicBool, Ordering};

/// Two tokenizers count the same text differently by less than this share of its tokens.
const NOTICEABLE: f64 = 0.25;

/// Fewer tokens in a request say nothing: special tokens make a difference.
const ENOUGH_TOKENS: usize = 64;

/// Warns once.
#[derive(Debug, Default)]
pub struct Truncation(AtomicBool);

impl Truncation {
    /// Looks at a request of `sent` tokens of which the provider counted `counted`.
    pub fn watch(&self, sent: usize, counted: Option<u64>) {
        let Some(counted) = counted.filter(|counted| is_cut(sent, *counted)) else {
            return;
        };
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                sent,
                counted,
                "the provider counts fewer tokens than were sent: it may cut texts off, so that \
                 their ends are not found by meaning; set chunking.max_tokens to what the model \
                 reads, and chunking.tokenizer_repo to its tokenizer"
            );
        }
    }
}

/// 0 is what servers write that do not count.
fn is_cut(sent: usize, counted: u64) -> bool {
    let least = sent as f64 * (1.0 - NOTICEABLE);
    sent >= ENOUGH_TOKENS && counted > 0 && (counted as f64) < least
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_cut_off_is_noticed() {
        assert!(is_cut(1024, 512));
        for (sent, counted) in [(1024, 1022), (1024, 800), (1024, 2000), (1024, 0), (60, 10)] {
            assert!(!is_cut(sent, counted), "{sent} {counted}");
        }
    }
}
