//! What this process may use, and how much of it its clients get. Set once, when it starts: bounds
//! that are chosen apart from each other let a client of one take what another needs.

use crate::config::Config;
use crate::store;

/// File descriptors that ELF asks for: enough for the most connections.
const WANTED_DESCRIPTORS: u64 = 16_384;

/// Least memory for bodies and answers, where the longest note is short.
const LEAST_BYTES: u64 = 128 << 20;

/// How many times as much memory as the bytes of a note a request takes: the body and the parsed
/// text, and what the driver of Postgres sends or has received.
pub const COPIES: u64 = 4;

/// How much of a process its clients get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub admin_connections: usize,
    pub api_connections: usize,
    /// Requests with a key that are answered at once.
    pub requests: u64,
    /// Writes that wait for the index at once.
    pub waiting: u64,
    /// Connections to Postgres that statements of clients may hold for long.
    pub statements: u64,
    /// Bytes of memory for bodies and answers.
    pub bytes: u64,
}

impl Bounds {
    /// Those of this process. Raises its limit of open files to what the system allows.
    pub fn of_this_process(config: &Config) -> Self {
        let descriptors = raise_descriptors();
        let bounds = Self::of(
            descriptors,
            store::pool_sizes(config.storage.postgres.pool_max_conns)
                .0
                .into(),
            config.worker.max_note_bytes,
        );
        tracing::info!(
            open_files = descriptors,
            api_connections = bounds.api_connections,
            admin_connections = bounds.admin_connections,
            memory_mb = bounds.bytes >> 20,
            "bounds for clients"
        );
        bounds
    }

    /// A half of the descriptors stays for Postgres, the index, the provider and files. Most
    /// connections of the API may only wait for their client; the rest have a request.
    fn of(descriptors: u64, pool: u64, max_note_bytes: u64) -> Self {
        let api_connections = (descriptors / 2).clamp(16, 4096);
        Self {
            admin_connections: (descriptors / 16).clamp(8, 64) as usize,
            api_connections: api_connections as usize,
            requests: (api_connections / 4).min(64),
            waiting: (api_connections / 4).min(256),
            // The others look up keys and notes.
            statements: (pool - pool.div_ceil(5)).max(1),
            // While two tenants write their longest notes, others still write.
            bytes: (3 * COPIES * max_note_bytes).max(LEAST_BYTES),
        }
    }
}

fn raise_descriptors() -> u64 {
    let now = || rlimit::getrlimit(rlimit::Resource::NOFILE).map_or(1024, |(soft, _)| soft);
    rlimit::increase_nofile_limit(WANTED_DESCRIPTORS.max(now())).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to raise the limit of open files (ulimit -n)");
        now()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_a_half_of_the_descriptors_and_most_of_them_may_only_wait() {
        let of = |descriptors| Bounds::of(descriptors, 10, 32 << 20);
        let usual = of(1024);
        assert_eq!(usual.api_connections, 512);
        assert_eq!(usual.admin_connections, 64);
        assert_eq!((usual.requests, usual.waiting), (64, 128));
        assert_eq!(usual.bytes, 384 << 20);
        let large = of(1 << 30);
        assert_eq!(large.api_connections, 4096);
        assert_eq!((large.requests, large.waiting), (64, 256));
        let small = of(128);
        assert_eq!(small.api_connections, 64);
        assert_eq!(small.admin_connections, 8);
        for bounds in [usual, large, small] {
            // As many again may be refused.
            let busy = 2 * bounds.requests + bounds.waiting;
            assert!(busy < bounds.api_connections as u64, "{bounds:?}");
        }
        assert_eq!(Bounds::of(1024, 10, 1).bytes, LEAST_BYTES);
    }

    #[test]
    fn statements_of_clients_leave_connections() {
        for pool in 2..100 {
            let statements = Bounds::of(1024, pool, 1).statements;
            assert!(
                statements >= 1 && statements < pool,
                "{statements} of {pool}"
            );
        }
    }
}
