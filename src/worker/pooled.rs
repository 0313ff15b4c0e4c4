//! The vector of a whole note: the mean of its chunks' vectors.

use std::sync::Arc;

/// The component-wise mean; `None` for no vectors. Not normalised: the length shows how much
/// the chunks agree, and cosine similarity ignores it.
pub fn mean(vectors: &[Arc<[f32]>]) -> Option<Vec<f32>> {
    let dim = vectors.first()?.len();
    // In f64, because rounding errors add up over the thousands of chunks of a long note.
    let mut sum = vec![0f64; dim];
    for vector in vectors {
        for (total, x) in sum.iter_mut().zip(vector.iter()) {
            *total += f64::from(*x);
        }
    }
    Some(
        sum.into_iter()
            .map(|total| (total / vectors.len() as f64) as f32)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pooled_vector_is_the_mean_of_the_chunks() {
        let vectors: Vec<Arc<[f32]>> = vec![Arc::new([1.0, 0.0]), Arc::new([0.0, 0.5])];
        assert_eq!(mean(&vectors), Some(vec![0.5, 0.25]));
        assert_eq!(mean(&[]), None);
    }
}
