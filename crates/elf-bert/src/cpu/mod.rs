//! The arithmetic of an encoder on this processor, in its widest registers.
//!
//! `pulp` chooses the instruction set at run time. Everything below a `with_simd` is written in
//! its explicit vector operations and inlined: so it is as fast in a build without
//! auto-vectorisation, such as the one of `make demo`.
//!
//! Matrices are row by row in one slice. A function here computes on one thread; the encoder gives
//! each thread its rows.

mod activation;
mod attention;
mod linear;
mod norm;
mod tile;

pub use activation::Activation;
#[cfg(test)]
pub use activation::exact_gelu;
pub use attention::{Heads, Projected, Scratch as AttentionScratch};
pub use linear::Linear;
pub use norm::LayerNorm;
