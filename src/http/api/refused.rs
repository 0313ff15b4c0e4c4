//! Requests whose key was refused: counted, and told to the operator now and then.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request};
use metrics::counter;

use crate::lock::lock;
use crate::telemetry::AUDIT;

/// Whoever tries keys must not fill the log.
const SILENCE: Duration = Duration::from_secs(10);

/// What the log has not said yet.
#[derive(Default)]
pub struct Refused(Mutex<Untold>);

#[derive(Default)]
struct Untold {
    refused: u64,
    told: Option<Instant>,
}

impl Refused {
    /// Counts a request. The log has where it came from, and never the key.
    pub fn count(&self, request: &Request) {
        counter!("elf_http_keys_refused_total").increment(1);
        let mut untold = lock(&self.0);
        if let Some(refused) = untold.after(Instant::now()) {
            let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
            let peer = peer.map(|ConnectInfo(peer)| peer.to_string());
            let (method, path) = (request.method(), request.uri().path());
            tracing::warn!(target: AUDIT, peer, %method, path, refused, "unknown API key refused");
        }
    }
}

impl Untold {
    /// After one more: how many to tell of now.
    fn after(&mut self, now: Instant) -> Option<u64> {
        self.refused += 1;
        if self.told.is_some_and(|told| now < told + SILENCE) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_at_once_and_those_after_it_together() {
        let (mut untold, now) = (Untold::default(), Instant::now());
        assert_eq!(untold.after(now), Some(1));
        for _ in 0..1000 {
            assert_eq!(untold.after(now + SILENCE / 2), None);
        }
        assert_eq!(untold.after(now + SILENCE), Some(1001));
        assert_eq!(untold.after(now + SILENCE), None);
    }
}
