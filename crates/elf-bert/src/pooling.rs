//! How the vectors of a text's tokens become one.

/// The kinds that are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token's.
    Cls,
    /// The maximum over all tokens, for each dimension.
    Max,
}

impl Pooling {
    /// `tokens` (tokens, dim) → (dim); there is at least one token.
    pub fn pool(self, tokens: &[f32], dim: usize) -> Vec<f32> {
        let mut rows = tokens.chunks_exact(dim);
        let mut pooled = rows.next().map(<[f32]>::to_vec).unwrap_or_default();
        let mut fold = |combine: fn(f32, f32) -> f32| {
            for row in rows.by_ref() {
                for (all, value) in pooled.iter_mut().zip(row) {
                    *all = combine(*all, *value);
                }
            }
        };
        match self {
            Self::Cls => {}
            Self::Max => fold(f32::max),
            Self::Mean => {
                fold(|sum, value| sum + value);
                let count = (tokens.len() / dim) as f32;
                pooled.iter_mut().for_each(|sum| *sum /= count);
            }
        }
        pooled
    }
}
