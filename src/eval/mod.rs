//! Measures how well a search finds: queries with known answers, in the format of BEIR, and the
//! field's measures over them.

mod dataset;
mod measures;
mod report;

pub use dataset::{Dataset, Document, Quote, Relevant};
pub use measures::{Scores, of_ranking};
pub use report::{Comparison, Measured, Report};
