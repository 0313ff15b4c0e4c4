//! Every metric: name, kind, unit, labels and description. ELF records no metric that is not
//! listed here. `docs/inside/architecture.md` says how to add one.

/// A metric of ELF's own.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The name in Prometheus, without the suffixes of a histogram.
    pub name: &'static str,
    /// Counter, gauge or histogram.
    pub kind: Kind,
    /// The description, without a full stop.
    pub help: &'static str,
    /// Each series has one value of each.
    pub labels: &'static [Label],
    /// Whether each process has its own value.
    pub scope: Scope,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only rises, from 0 at the start of the process.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counted in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

/// Whether each process has its own value of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The work of this process: add the values of all processes.
    Process,
    /// The state of Postgres or the index: every worker reports the same value, so take the
    /// maximum.
    Shared,
}

/// A label and every value that it can have.
#[derive(Debug, Clone, Copy)]
pub struct Label {
    /// As Prometheus has it.
    pub name: &'static str,
    /// The telemetry reports each from the start.
    pub values: &'static [&'static str],
}

/// From a request in the data centre to a backlog of an hour.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
const LONG_SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];
const NOTES: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
];

const OUTBOX_STATE: &[Label] = &[label("state", &["pending", "leased", "failed", "dead"])];
const NOTE_STATE: &[Label] = &[label("state", &["live", "indexed"])];
const COLLECTION_STATE: &[Label] = &[label("state", &["active", "building", "retired"])];
const REASON: &[Label] = &[label(
    "reason",
    &[
        "text", "provider", "postgres", "index", "process", "unknown",
    ],
)];
const DRIFT_KIND: &[Label] = &[label(
    "kind",
    &["missing", "stale", "orphaned", "inconsistent"],
)];
const QUALITY_MEASURE: &[Label] = &[label(
    "measure",
    &["recall", "precision", "mrr", "ndcg", "zero_results"],
)];
const QUANTILE: &[Label] = &[label("quantile", &["0.5", "0.99"])];
/// The jobs that report progress. A swap, a rollback and a drop hold the same lease, but have no
/// progress to show and no series.
const JOB: &[Label] = &[label("kind", &["rebuild", "reindex"])];
const CHECK: &[Label] = &[label(
    "check",
    &[
        "config", "postgres", "schema", "index", "alias", "provider", "worker",
    ],
)];
const STAGE: &[Label] = &[label(
    "stage",
    &[
        "load",
        "chunk",
        "lookup",
        "embed",
        "commit",
        "take_over",
        "relabel",
        "upsert",
        "prune",
        "check",
        "ack",
    ],
)];
const CLAIM_OUTCOME: &[Label] = &[label("outcome", &["notes", "empty", "error"])];
const SEARCH_OUTCOME: &[Label] = &[label("outcome", &["found", "weak", "empty", "failed"])];
const MISSING: &[Label] = &[label("missing", &["query_vector", "index", "rerank"])];
const REFUSED: &[Label] = &[label(
    "reason",
    &[
        "connection",
        "slow_reader",
        "keys",
        "requests",
        "memory",
        "statements",
        "waiting",
    ],
)];
const REQUEST_OUTCOME: &[Label] = &[label("outcome", &["ok", "input", "unavailable", "config"])];
const POSTGRES_OPERATION: Label = label(
    "operation",
    &[
        "claim", "load", "lookup", "commit", "ack", "fail", "release", "requeue", "renew",
        "expire", "upkeep", "observe", "search", "trace",
    ],
);
const INDEX_OPERATION: Label = label(
    "operation",
    &[
        "upsert", "relabel", "delete", "search", "scroll", "points", "count", "describe", "change",
    ],
);
const POSTGRES_ERROR: Label = label("kind", &["unavailable", "locked", "schema", "rejected"]);
const INDEX_ERROR: Label = label("kind", &["unavailable", "not_found", "denied", "refused"]);

const fn label(name: &'static str, values: &'static [&'static str]) -> Label {
    Label { name, values }
}

const fn metric(name: &'static str, kind: Kind, help: &'static str) -> Metric {
    Metric {
        name,
        kind,
        help,
        labels: &[],
        scope: Scope::Process,
    }
}

const fn counter(name: &'static str, help: &'static str) -> Metric {
    metric(name, Kind::Counter, help)
}

const fn gauge(name: &'static str, help: &'static str) -> Metric {
    metric(name, Kind::Gauge, help)
}

const fn shared(name: &'static str, help: &'static str) -> Metric {
    Metric {
        scope: Scope::Shared,
        ..gauge(name, help)
    }
}

const fn histogram(name: &'static str, bounds: &'static [f64], help: &'static str) -> Metric {
    metric(name, Kind::Histogram(bounds), help)
}

impl Metric {
    const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }
}

/// The metrics, under the headings of `docs/reference/metrics.md`.
pub const CATALOG: &[(&str, &[Metric])] = &[
    (
        "Freshness and backlog",
        &[
            histogram(
                "elf_commit_to_searchable_seconds",
                LONG_SECONDS,
                "Time from the commit of a change until it is searchable; of a scheduled \
                 change, from when it was due",
            ),
            shared(
                "elf_outbox_rows",
                "Outbox rows of the served version, by state",
            )
            .by(OUTBOX_STATE),
            shared(
                "elf_outbox_oldest_pending_seconds",
                "Time since the oldest pending outbox row of the served version became due; \
                 0 when no row is due",
            ),
            shared(
                "elf_outbox_dead_tuples",
                "Dead tuples in the outbox table, from the statistics of Postgres",
            ),
            shared(
                "elf_outbox_size_bytes",
                "Size of the outbox table with its indexes",
            ),
            shared(
                "elf_dead_letters",
                "Dead-lettered notes that wait for an operator, by what rejected them",
            )
            .by(REASON),
            shared(
                "elf_rows_left_out",
                "Rows of sources that are no notes, for a reason that `elf source left-out` lists",
            ),
            shared(
                "elf_notes",
                "Live notes, and those of them that are indexed under the served version",
            )
            .by(NOTE_STATE),
            shared(
                "elf_coverage_ratio",
                "Share of the live notes that are indexed, 0 to 1; 1 when no note is live",
            ),
            shared("elf_live_chunks", "Chunks of live notes in Postgres"),
            shared(
                "elf_observed_timestamp_seconds",
                "When this process last read the shared values, in Unix time",
            ),
        ],
    ),
    (
        "The worker",
        &[
            counter("elf_claims_total", "Claims, by whether they found notes").by(CLAIM_OUTCOME),
            histogram("elf_claim_seconds", SECONDS, "Time that a claim took"),
            histogram("elf_batch_notes", NOTES, "Notes in a claimed batch"),
            gauge("elf_batches_in_flight", "Batches between claim and ack"),
            histogram(
                "elf_stage_seconds",
                SECONDS,
                "Time that a batch spent in a stage",
            )
            .by(STAGE),
            counter(
                "elf_notes_indexed_total",
                "Notes converged, deleted ones included",
            ),
            counter(
                "elf_notes_without_vectors_total",
                "Notes indexed without their vectors, found by keyword until these come \
                 (worker.bm25_first)",
            ),
            counter(
                "elf_note_attempts_failed_total",
                "Failed attempts that count against a note; an outage is no attempt",
            ),
            counter(
                "elf_notes_dead_total",
                "Notes dead-lettered, by what rejected them",
            )
            .by(REASON),
            counter(
                "elf_text_bytes_total",
                "UTF-8 bytes of the notes that were converged",
            ),
            counter(
                "elf_chunks_total",
                "Chunks of the notes that were converged",
            ),
            counter(
                "elf_chunks_embedded_total",
                "Chunks whose text was sent to the model",
            ),
            counter(
                "elf_chunks_reused_total",
                "Chunks whose vector was in Postgres already",
            ),
            counter("elf_points_written_total", "Points written to the index"),
            counter(
                "elf_leases_lost_total",
                "Notes whose lease was lost while a worker had them in flight",
            ),
            counter(
                "elf_postgres_rollbacks_total",
                "Times that this worker found a rolled-back Postgres: one that lost its \
                 newest transactions",
            ),
        ],
    ),
    (
        "The embedding provider",
        &[
            counter("elf_embedding_requests_total", "Requests, by outcome").by(REQUEST_OUTCOME),
            histogram(
                "elf_embedding_request_seconds",
                SECONDS,
                "Time that a request took",
            ),
            counter(
                "elf_embedding_retries_total",
                "Requests with texts that were sent before: half of a rejected batch, part \
                 of a request that timed out, or a retry",
            ),
            gauge(
                "elf_embedding_circuit_open",
                "1 while ELF sends nothing but probes: the provider is unavailable, or \
                 rejects the configuration",
            ),
            counter(
                "elf_embedding_tokens_total",
                "Tokens of the texts that were embedded, by ELF's own count",
            ),
            counter(
                "elf_embedding_tokens_abandoned_total",
                "Tokens of requests that timed out; the provider may charge for them",
            ),
            gauge("elf_embedding_request_texts", "Texts in the latest request"),
            gauge(
                "elf_embedding_in_flight_limit",
                "Most requests that may be in flight now; it follows the pace of the \
                 provider, up to providers.embedding.concurrency",
            ),
            counter(
                "elf_embedding_tokens_saved_total",
                "Tokens of chunks whose vector was in Postgres already",
            ),
            gauge(
                "elf_embedding_cost_usd",
                "Cost of the tokens since the start of the process, abandoned ones included, \
                 at providers.embedding.usd_per_million_tokens; only rises",
            ),
        ],
    ),
    (
        "Postgres and the index",
        &[
            histogram(
                "elf_postgres_operation_seconds",
                SECONDS,
                "Time that an operation on Postgres took",
            )
            .by(&[POSTGRES_OPERATION]),
            counter(
                "elf_postgres_errors_total",
                "Operations on Postgres that failed",
            )
            .by(&[POSTGRES_OPERATION, POSTGRES_ERROR]),
            gauge(
                "elf_postgres_lock_waits",
                "Statements of ELF that wait for a lock of another session",
            ),
            gauge(
                "elf_postgres_lock_wait_seconds",
                "Longest time that one of these statements has waited",
            ),
            histogram(
                "elf_index_operation_seconds",
                SECONDS,
                "Time that an operation on the vector engine took",
            )
            .by(&[INDEX_OPERATION]),
            counter(
                "elf_index_errors_total",
                "Operations on the vector engine that failed",
            )
            .by(&[INDEX_OPERATION, INDEX_ERROR]),
        ],
    ),
    (
        "Searches",
        &[
            counter(
                "elf_searches_total",
                "Searches that this process answered, by outcome",
            )
            .by(SEARCH_OUTCOME),
            histogram("elf_search_seconds", SECONDS, "Time that a search took"),
            counter(
                "elf_search_degraded_total",
                "Searches that were answered without a part of ELF, by that part",
            )
            .by(MISSING),
            counter(
                "elf_search_traces_lost_total",
                "Records of searches that ELF dropped, because Postgres did not take them in \
                 time",
            ),
            counter(
                "elf_http_refused_total",
                "Refused to clients of the two ports, so that others get their share: a \
                 connection closed for a new one, or of a slow reader; a look-up of a key; a \
                 request; memory; a long statement; a wait for the index",
            )
            .by(REFUSED),
            counter(
                "elf_http_keys_refused_total",
                "Requests to the HTTP API with a key that does not exist or was revoked",
            ),
        ],
    ),
    (
        "Is it exact",
        &[
            shared(
                "elf_index_points",
                "Points in the collection that the alias points at",
            ),
            shared(
                "elf_collections",
                "Collections by state; a rebuild fills the building ones",
            )
            .by(COLLECTION_STATE),
            gauge(
                "elf_drift",
                "Points and notes that differed from Postgres in the last verify of this \
                 worker, before it repaired them; absent before the first",
            )
            .by(DRIFT_KIND),
            counter(
                "elf_drift_repaired_total",
                "Points repaired and notes enqueued by the worker's verify",
            ),
            gauge(
                "elf_verify_timestamp_seconds",
                "When the last verify of this worker ended, in Unix time; 0 before the first",
            ),
        ],
    ),
    (
        "Quality",
        &[
            gauge(
                "elf_quality",
                "What the golden questions found when this worker last asked them: means of \
                 the first ten notes, 0 to 1",
            )
            .by(QUALITY_MEASURE),
            gauge("elf_quality_search_seconds", "How long these searches took").by(QUANTILE),
            gauge("elf_quality_questions", "Golden questions"),
            gauge(
                "elf_quality_timestamp_seconds",
                "When this worker last asked them to the end, in Unix time; 0 before the first",
            ),
        ],
    ),
    (
        "Rebuild and reindex",
        &[
            shared(
                "elf_job_running",
                "1 while a rebuild or a reindex runs, in any process",
            )
            .by(JOB),
            shared("elf_job_items_done", "Points or notes done so far").by(JOB),
            shared("elf_job_items", "Points or notes in all").by(JOB),
            shared(
                "elf_job_rate_per_second",
                "Points or notes done per second, over the last minute",
            )
            .by(JOB),
            shared(
                "elf_job_eta_seconds",
                "Time left at the rate of the last minute; 0 when no job runs",
            )
            .by(JOB),
        ],
    ),
    (
        "The process",
        &[
            gauge("elf_ready", "1 while every check of /readyz holds"),
            gauge(
                "elf_check_ok",
                "1 while this check of /readyz holds; NaN or absent before it has run",
            )
            .by(CHECK),
            gauge(
                "elf_build_info",
                "Always 1; the label says which version runs",
            )
            .by(&[label("version", &[env!("CARGO_PKG_VERSION")])]),
        ],
    ),
];

/// In the order of the reference.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    CATALOG.iter().flat_map(|(_, metrics)| metrics.iter())
}
