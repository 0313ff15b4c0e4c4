//! Reads `model.safetensors`.

use half::{bf16, f16};
use pulp::Arch;
use safetensors::{Dtype, SafeTensors};

use super::cpu::{LayerNorm, Linear};

/// The tensors of a file, by name. Its errors finish "the model …".
pub struct Weights<'a> {
    tensors: SafeTensors<'a>,
    /// What layers are laid out for.
    arch: Arch,
}

impl<'a> Weights<'a> {
    /// Reads where each tensor lies. Layers will compute with the instructions of `arch`.
    pub fn read(file: &'a [u8], arch: Arch) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(file)
            .map_err(|error| format!("has a model.safetensors that cannot be read: {error}"))?;
        Ok(Self { tensors, arch })
    }

    /// The instructions that layers compute with.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    /// A tensor of this shape, as 32-bit floats, row by row.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let misfit = |reason: String| {
            format!("has a model.safetensors that does not fit its config.json: {reason}")
        };
        let tensor = self
            .tensors
            .tensor(name)
            .map_err(|error| misfit(format!("{name}: {error}")))?;
        if tensor.shape() != shape {
            let found = tensor.shape();
            return Err(misfit(format!(
                "{name} has the shape {found:?}, not {shape:?}"
            )));
        }
        let data = tensor.data();
        match tensor.dtype() {
            Dtype::F32 => Ok(numbers(data, f32::from_le_bytes)),
            Dtype::F16 => Ok(numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32())),
            Dtype::BF16 => Ok(numbers(data, |bytes| bf16::from_le_bytes(bytes).to_f32())),
            Dtype::F64 => Ok(numbers(data, |bytes| f64::from_le_bytes(bytes) as f32)),
            other => Err(format!(
                "has weights of the type {other:?} ({name}); elf reads F64, F32, F16 and BF16"
            )),
        }
    }

    /// The layer `name` of this many inputs and outputs.
    pub fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, String> {
        self.stacked(&[name.to_owned()], inputs, outputs)
    }

    /// Layers over the same `inputs` as one; the first layer's `outputs` come first.
    pub fn stacked(
        &self,
        names: &[String],
        inputs: usize,
        outputs: usize,
    ) -> Result<Linear, String> {
        let (mut weights, mut bias) = (Vec::new(), Vec::new());
        for name in names {
            weights.extend(self.tensor(&format!("{name}.weight"), &[outputs, inputs])?);
            bias.extend(self.tensor(&format!("{name}.bias"), &[outputs])?);
        }
        Ok(Linear::new(self.arch, &weights, &bias))
    }

    /// The layer normalisation `name` of vectors of `dim` floats.
    pub fn norm(&self, name: &str, dim: usize, epsilon: f32) -> Result<LayerNorm, String> {
        let scale = self.tensor(&format!("{name}.weight"), &[dim])?;
        let shift = self.tensor(&format!("{name}.bias"), &[dim])?;
        Ok(LayerNorm::new(self.arch, scale, shift, epsilon))
    }
}

fn numbers<const N: usize>(data: &[u8], number: fn([u8; N]) -> f32) -> Vec<f32> {
    let (numbers, _) = data.as_chunks::<N>();
    numbers.iter().map(|bytes| number(*bytes)).collect()
}
