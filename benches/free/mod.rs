//! An embedder that costs nothing.

use elf::embed::{EmbedError, Embedder, Limits};
use futures::future::BoxFuture;

pub const DIM: usize = 384;

/// An embedder that costs nothing.
pub struct Free;

impl Embedder for Free {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
    ) -> BoxFuture<'a, std::result::Result<Vec<Vec<f32>>, EmbedError>> {
        Box::pin(async move { Ok(texts.iter().map(|text| free_vector(text)).collect()) })
    }

    fn limits(&self) -> Limits {
        Limits {
            max_inputs: 2048,
            max_tokens: 1_000_000,
        }
    }
}

/// Some vector, always the same for the same text, for a multiplication a float.
pub fn free_vector(text: &str) -> Vec<f32> {
    let seed = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 16_777_216.0 - 0.5
    };
    (0..DIM).map(|_| next()).collect()
}
