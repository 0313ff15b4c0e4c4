//! What both engines promise.

pub mod aliases;
pub mod collections;
pub mod filters;
pub mod points;
pub mod revisions;
pub mod search;

use crate::setup::DIM;

const EAST: [f32; DIM] = [1.0, 0.0, 0.0, 0.0];
const NORTH: [f32; DIM] = [0.0, 1.0, 0.0, 0.0];
const UP: [f32; DIM] = [0.0, 0.0, 1.0, 0.0];
