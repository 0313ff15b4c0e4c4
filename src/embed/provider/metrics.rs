//! What is counted about embedding, and under which names.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::embed::EmbedError;

const REQUESTS: &str = "elf_embedding_requests_total";
const SECONDS: &str = "elf_embedding_request_seconds";
const RETRIES: &str = "elf_embedding_retries_total";
const TOKENS: &str = "elf_embedding_tokens_total";
const CIRCUIT_OPEN: &str = "elf_embedding_circuit_open";

/// Tells the recorder what each name means; once, after it is installed.
pub fn describe() {
    describe_counter!(
        REQUESTS,
        "Requests to the embedding provider, by outcome: ok, input, unavailable, config"
    );
    describe_histogram!(
        SECONDS,
        Unit::Seconds,
        "Time that a request to the embedding provider took"
    );
    describe_counter!(
        RETRIES,
        "Requests sent for texts that were sent before: halves of a rejected batch, and second tries"
    );
    describe_counter!(
        TOKENS,
        "Tokens of the texts that were embedded, by ELF's own count"
    );
    describe_gauge!(
        CIRCUIT_OPEN,
        "1 while nothing is sent to the embedding provider because it is away or refuses"
    );
}

/// A request came back after `took`; `tokens` are those of its texts.
pub fn request<T>(result: &Result<T, EmbedError>, took: Duration, tokens: usize) {
    let outcome = match result {
        Ok(_) => "ok",
        Err(EmbedError::Input { .. }) => "input",
        Err(EmbedError::Unavailable { .. }) => "unavailable",
        Err(EmbedError::Config { .. }) => "config",
    };
    counter!(REQUESTS, "outcome" => outcome).increment(1);
    histogram!(SECONDS).record(took.as_secs_f64());
    if result.is_ok() {
        counter!(TOKENS).increment(tokens as u64);
    }
}

/// `requests` will be sent for texts that were sent before.
pub fn retries(requests: u64) {
    counter!(RETRIES).increment(requests);
}

/// The circuit opened or closed.
pub fn circuit(open: bool) {
    gauge!(CIRCUIT_OPEN).set(f64::from(u8::from(open)));
}
