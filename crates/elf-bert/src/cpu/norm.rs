//! Layer normalisation, with the addition that comes before it.

use pulp::{Arch, Simd, WithSimd};

/// Scale and shift of a layer normalisation, `dim` floats each.
pub struct LayerNorm {
    arch: Arch,
    scale: Vec<f32>,
    shift: Vec<f32>,
    epsilon: f32,
}

impl LayerNorm {
    /// `epsilon` is added to the variance.
    pub fn new(arch: Arch, scale: Vec<f32>, shift: Vec<f32>, epsilon: f32) -> Self {
        Self {
            arch,
            scale,
            shift,
            epsilon,
        }
    }

    /// `rows` = norm(`rows` + `added`), both (rows, dim).
    pub fn add_and_normalize(&self, rows: &mut [f32], added: &[f32]) {
        self.arch.dispatch(Forward {
            norm: self,
            rows,
            added,
        });
    }
}

struct Forward<'a> {
    norm: &'a LayerNorm,
    rows: &'a mut [f32],
    added: &'a [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let dim = self.norm.scale.len();
        let added = self.added.chunks_exact(dim);
        for (row, added) in self.rows.chunks_exact_mut(dim).zip(added) {
            normalize(simd, self.norm, row, added);
        }
    }
}

#[inline(always)]
fn normalize<S: Simd>(simd: S, norm: &LayerNorm, row: &mut [f32], added: &[f32]) {
    let dim = row.len() as f32;
    let (wide, narrow) = S::as_mut_simd_f32s(row);
    let (wide_added, narrow_added) = S::as_simd_f32s(added);
    let (wide_scale, narrow_scale) = S::as_simd_f32s(&norm.scale);
    let (wide_shift, narrow_shift) = S::as_simd_f32s(&norm.shift);

    let mut sums = simd.splat_f32s(0.0);
    for (value, added) in wide.iter_mut().zip(wide_added) {
        *value = simd.add_f32s(*value, *added);
        sums = simd.add_f32s(sums, *value);
    }
    let mut sum = simd.reduce_sum_f32s(sums);
    for (value, added) in narrow.iter_mut().zip(narrow_added) {
        *value += added;
        sum += *value;
    }
    let mean = sum / dim;

    // The mean goes first: a variance from the sum of squares would lose digits.
    let means = simd.splat_f32s(mean);
    let mut squares = simd.splat_f32s(0.0);
    for value in wide.iter_mut() {
        *value = simd.sub_f32s(*value, means);
        squares = simd.mul_add_f32s(*value, *value, squares);
    }
    let mut square = simd.reduce_sum_f32s(squares);
    for value in narrow.iter_mut() {
        *value -= mean;
        square += *value * *value;
    }
    let factor = 1.0 / (square / dim + norm.epsilon).sqrt();

    let factors = simd.splat_f32s(factor);
    for ((value, scale), shift) in wide.iter_mut().zip(wide_scale).zip(wide_shift) {
        *value = simd.mul_add_f32s(simd.mul_f32s(*value, factors), *scale, *shift);
    }
    for ((value, scale), shift) in narrow.iter_mut().zip(narrow_scale).zip(narrow_shift) {
        *value = *value * factor * scale + shift;
    }
}
