//! A layer `x · Wᵀ + b`, with the weights laid out once for the inner loop.

use pulp::{Arch, Simd, WithSimd};

use super::Activation;
use super::tile::{self, OnRows};

/// The weights and the bias of a layer.
pub struct Linear {
    arch: Arch,
    inputs: usize,
    outputs: usize,
    /// (panels, inputs, panel width): what the inner loop reads, in its order. The last panel is
    /// filled up with zeros.
    panels: Vec<f32>,
    /// (panels, panel width)
    bias: Vec<f32>,
}

impl Linear {
    /// A layer of `weights` (outputs, inputs), as a file of PyTorch has them, and `bias` (outputs).
    pub fn new(arch: Arch, weights: &[f32], bias: &[f32]) -> Self {
        let width = tile::width_of(arch);
        let (outputs, inputs) = (bias.len(), weights.len() / bias.len());
        let count = outputs.div_ceil(width);
        let mut panels = vec![0.0; count * inputs * width];
        for (output, row) in weights.chunks_exact(inputs).enumerate() {
            let panel = &mut panels[output / width * inputs * width..];
            let column = panel[output % width..].iter_mut().step_by(width);
            column.zip(row).for_each(|(place, weight)| *place = *weight);
        }
        let mut padded = bias.to_vec();
        padded.resize(count * width, 0.0);
        Self {
            arch,
            inputs,
            outputs,
            panels,
            bias: padded,
        }
    }

    /// Numbers that the layer gives for each row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// `out` = `activation`(`rows` · Wᵀ + b), from (rows, inputs) to (rows, outputs).
    pub fn forward(&self, rows: &[f32], activation: Activation, out: &mut [f32]) {
        self.arch.dispatch(Forward {
            layer: self,
            rows,
            activation,
            out,
        });
    }
}

struct Forward<'a> {
    layer: &'a Linear,
    rows: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Linear {
            inputs,
            outputs,
            panels,
            bias,
            ..
        } = self.layer;
        let width = tile::panel_width::<S>();
        let count = self.out.len() / outputs;
        let panels = panels.chunks_exact(inputs * width);
        for (index, (panel, bias)) in panels.zip(bias.chunks_exact(width)).enumerate() {
            let mut columns = Columns {
                rows: self.rows,
                inputs: *inputs,
                panel,
                bias,
                activation: self.activation,
                out: self.out,
                outputs: *outputs,
                first: index * width,
            };
            tile::by_tiles(simd, count, &mut columns);
        }
    }
}

/// One panel's columns of the answer.
struct Columns<'a> {
    rows: &'a [f32],
    inputs: usize,
    panel: &'a [f32],
    bias: &'a [f32],
    activation: Activation,
    out: &'a mut [f32],
    outputs: usize,
    first: usize,
}

impl<S: Simd> OnRows<S> for Columns<'_> {
    #[inline(always)]
    fn compute<const ROWS: usize>(&mut self, simd: S, first: usize) {
        let left = &self.rows[first * self.inputs..];
        let sums = tile::product::<S, ROWS>(simd, left, self.inputs, self.panel);
        let (bias, _) = S::as_simd_f32s(self.bias);
        let last = self.outputs.min(self.first + tile::panel_width::<S>());
        for (row, sums) in sums.iter().enumerate() {
            let start = (first + row) * self.outputs;
            let values = [
                self.activation.apply(simd, simd.add_f32s(sums[0], bias[0])),
                self.activation.apply(simd, simd.add_f32s(sums[1], bias[1])),
            ];
            tile::store(
                simd,
                &mut self.out[start + self.first..start + last],
                values,
            );
        }
    }
}
