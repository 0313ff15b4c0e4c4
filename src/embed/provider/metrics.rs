//! The metrics of embedding.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::embed::EmbedError;

/// A request ended after `took`. `tokens` are those of its texts, and each costs
/// `usd_per_token`.
pub fn request<T>(
    result: &Result<T, EmbedError>,
    took: Duration,
    tokens: usize,
    usd_per_token: Option<f64>,
) {
    let outcome = match result {
        Ok(_) => "ok",
        Err(EmbedError::Input { .. } | EmbedError::TooMuch { .. }) => "input",
        Err(EmbedError::Unavailable { .. } | EmbedError::TimedOut { .. }) => "unavailable",
        Err(EmbedError::Config { .. }) => "config",
    };
    counter!("elf_embedding_requests_total", "outcome" => outcome).increment(1);
    histogram!("elf_embedding_request_seconds").record(took);
    if result.is_ok() {
        counter!("elf_embedding_tokens_total").increment(tokens as u64);
        gauge!("elf_embedding_cost_usd").increment(tokens as f64 * usd_per_token.unwrap_or(0.0));
    }
}

/// A request with `tokens` got no answer. The provider may have computed and charged it.
pub fn abandoned(tokens: usize, usd_per_token: Option<f64>) {
    counter!("elf_embedding_tokens_abandoned_total").increment(tokens as u64);
    gauge!("elf_embedding_cost_usd").increment(tokens as f64 * usd_per_token.unwrap_or(0.0));
}

/// A request with `texts` texts is sent.
pub fn request_size(texts: usize) {
    gauge!("elf_embedding_request_texts").set(texts as f64);
}

/// At most `requests` may be in flight.
pub fn in_flight_limit(requests: usize) {
    gauge!("elf_embedding_in_flight_limit").set(requests as f64);
}

/// `requests` will be sent for texts that were sent before.
pub fn retries(requests: u64) {
    counter!("elf_embedding_retries_total").increment(requests);
}

pub fn circuit(open: bool) {
    gauge!("elf_embedding_circuit_open").set(f64::from(u8::from(open)));
}
