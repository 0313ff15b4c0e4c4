//! What each token takes from the others of its text: softmax(Q · Kᵀ / √size) · V, for one head.
//!
//! A few tokens at a time: their scores stay in the nearest cache between the two products, and
//! memory is linear in the text.

use pulp::{Arch, Simd, WithSimd};

use super::activation::exp2;
use super::tile::{self, MAX_ROWS, OnRows};

/// How many heads there are, and the floats of each.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Heads of a layer.
    pub count: usize,
    /// Floats of a head's query, key and value.
    pub size: usize,
}

/// Queries, keys and values of a text's tokens.
#[derive(Clone, Copy)]
pub struct Projected<'a> {
    /// (tokens, 3 · heads · size): of each token the queries of all heads, the keys, the values.
    pub rows: &'a [f32],
    /// How to read them.
    pub heads: Heads,
}

/// Buffers of a thread, kept from one text and head to the next.
#[derive(Default)]
pub struct Scratch {
    /// (panels, size, panel width): a token is a column.
    keys: Vec<f32>,
    /// (panels, tokens, panel width): a token is a row.
    values: Vec<f32>,
    /// ([`MAX_ROWS`], tokens in whole panels)
    scores: Vec<f32>,
}

impl Projected<'_> {
    /// Writes (tokens, size) to `out` for the head of this index.
    pub fn attend(&self, arch: Arch, head: usize, scratch: &mut Scratch, out: &mut [f32]) {
        arch.dispatch(Attend {
            projected: *self,
            head,
            scratch,
            out,
        });
    }

    fn stride(&self) -> usize {
        3 * self.heads.count * self.heads.size
    }

    /// One head's part of each token: queries are `kind` 0, keys 1, values 2.
    #[inline(always)]
    fn part(&self, kind: usize, head: usize) -> impl Iterator<Item = &[f32]> {
        let Heads { count, size } = self.heads;
        let first = (kind * count + head) * size;
        let rows = self.rows.chunks_exact(self.stride());
        rows.map(move |row| &row[first..first + size])
    }
}

impl Scratch {
    /// Lays out the head's keys and values for the inner loop. Keys are scaled such that powers
    /// of 2 of the scores are the softmax's terms.
    #[inline(always)]
    fn pack(&mut self, projected: Projected<'_>, head: usize, width: usize) {
        let size = projected.heads.size;
        let tokens = projected.rows.len() / projected.stride();
        let scale = std::f32::consts::LOG2_E / (size as f32).sqrt();
        refill(&mut self.keys, tokens.div_ceil(width) * width * size);
        for (token, key) in projected.part(1, head).enumerate() {
            let panel = &mut self.keys[token / width * width * size..];
            let column = panel[token % width..].iter_mut().step_by(width);
            for (place, value) in column.zip(key) {
                *place = value * scale;
            }
        }
        refill(&mut self.values, size.div_ceil(width) * width * tokens);
        for (token, value) in projected.part(2, head).enumerate() {
            for (panel, part) in value.chunks(width).enumerate() {
                let first = (panel * tokens + token) * width;
                self.values[first..first + part.len()].copy_from_slice(part);
            }
        }
        self.scores
            .resize(MAX_ROWS * tokens.div_ceil(width) * width, 0.0);
    }
}

/// Zeros, `len` of them.
fn refill(buffer: &mut Vec<f32>, len: usize) {
    buffer.clear();
    buffer.resize(len, 0.0);
}

struct Attend<'a> {
    projected: Projected<'a>,
    head: usize,
    scratch: &'a mut Scratch,
    out: &'a mut [f32],
}

impl WithSimd for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let size = self.projected.heads.size;
        let tokens = self.out.len() / size;
        self.scratch
            .pack(self.projected, self.head, tile::panel_width::<S>());
        let mut head = Head {
            queries: &self.projected.rows[self.head * size..],
            stride: self.projected.stride(),
            size,
            tokens,
            keys: &self.scratch.keys,
            values: &self.scratch.values,
            scores: &mut self.scratch.scores,
            out: self.out,
        };
        tile::by_tiles(simd, tokens, &mut head);
    }
}

struct Head<'a> {
    queries: &'a [f32],
    stride: usize,
    size: usize,
    tokens: usize,
    keys: &'a [f32],
    values: &'a [f32],
    scores: &'a mut [f32],
    out: &'a mut [f32],
}

impl<S: Simd> OnRows<S> for Head<'_> {
    #[inline(always)]
    fn compute<const ROWS: usize>(&mut self, simd: S, first: usize) {
        let width = tile::panel_width::<S>();
        let padded = self.tokens.div_ceil(width) * width;
        let queries = &self.queries[first * self.stride..];
        for (index, panel) in self.keys.chunks_exact(self.size * width).enumerate() {
            let sums = tile::product::<S, ROWS>(simd, queries, self.stride, panel);
            for (row, sums) in sums.iter().enumerate() {
                let start = row * padded + index * width;
                tile::store(simd, &mut self.scores[start..start + width], *sums);
            }
        }
        let mut factors = [0.0; ROWS];
        for (row, factor) in self.scores.chunks_exact_mut(padded).zip(&mut factors) {
            // Columns beyond the text weigh nothing.
            row[self.tokens..].fill(f32::NEG_INFINITY);
            *factor = 1.0 / weigh(simd, row);
        }
        for (index, panel) in self.values.chunks_exact(self.tokens * width).enumerate() {
            let sums = tile::product::<S, ROWS>(simd, self.scores, padded, panel);
            let (column, last) = (index * width, self.size.min((index + 1) * width));
            for (row, sums) in sums.iter().enumerate() {
                let factor = simd.splat_f32s(factors[row]);
                let start = (first + row) * self.size;
                tile::store(
                    simd,
                    &mut self.out[start + column..start + last],
                    sums.map(|sum| simd.mul_f32s(sum, factor)),
                );
            }
        }
    }
}

/// Replaces scores by powers of 2, the largest by 1, and gives their sum.
#[inline(always)]
fn weigh<S: Simd>(simd: S, row: &mut [f32]) -> f32 {
    let (row, _) = S::as_mut_simd_f32s(row);
    let mut largest = simd.splat_f32s(f32::NEG_INFINITY);
    for scores in row.iter() {
        largest = simd.max_f32s(largest, *scores);
    }
    let largest = simd.splat_f32s(simd.reduce_max_f32s(largest));
    let mut sum = simd.splat_f32s(0.0);
    for scores in row {
        *scores = exp2(simd, simd.sub_f32s(*scores, largest));
        sum = simd.add_f32s(sum, *scores);
    }
    simd.reduce_sum_f32s(sum)
}
