//! Logs, traces and metrics.

pub mod catalog;
mod logs;
#[cfg(feature = "otlp")]
mod otlp;
mod record;

pub use logs::{AUDIT, Logging, Reader, init_logging};
pub use record::{Metrics, init_metrics, timed};
