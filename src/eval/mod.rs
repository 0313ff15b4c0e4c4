//! Measures how well a search finds: queries with known answers, in the format of BEIR, and the
//! field's measures over them.

mod dataset;
mod measures;

pub use dataset::{Dataset, Document, Relevant};
pub use measures::{Scores, of_ranking, p_value};
