//! Measures how well a search finds: queries with known answers, in the format of BEIR, and the
//! field's measures over them.

mod certainty;
mod dataset;
pub mod golden;
mod measures;
mod report;

pub use certainty::Certainty;
pub use dataset::{Dataset, Document, Quote, Relevant};
pub use golden::Golden;
pub use measures::{Scores, interval, of_ranking};
pub use report::{Comparison, Measured, Report};
