//! The counts behind the metrics and the admin page: backlog, collections, notes, the running job.

use std::time::Instant;

use chrono::Utc;
use metrics::gauge;

use super::checks::Registered;
use super::{Collection, Job, Observer};
use crate::lock::lock;
use crate::store::{CollectionRow, Lifecycle, NoteCounts, StoreError};

impl Observer {
    /// Reads the backlog of the served version, the dead letters and the running job.
    pub(super) async fn count_backlog(&self) -> Result<(), StoreError> {
        let store = &self.pipeline.serving.store;
        let outbox = store.outbox_counts(self.served().as_deref()).await?;
        // It counts those of a version that is being built too.
        let reasons = match outbox.dead == 0 && !self.is_building() {
            true => Vec::new(),
            false => store.dead_reasons().await?,
        };
        let left_out = store.count_left_out().await?;
        let job = store.running_job().await?;
        for (state, rows) in [
            ("pending", outbox.pending),
            ("leased", outbox.leased),
            ("failed", outbox.failed),
            ("dead", outbox.dead),
        ] {
            gauge!("elf_outbox_rows", "state" => state).set(rows as f64);
        }
        gauge!("elf_outbox_oldest_pending_seconds").set(outbox.oldest_pending_secs.unwrap_or(0.0));
        for reason in [
            "text", "provider", "postgres", "index", "process", "unknown",
        ] {
            let letters = reasons.iter().find(|(name, _)| name == reason);
            gauge!("elf_dead_letters", "reason" => reason)
                .set(letters.map_or(0.0, |(_, letters)| *letters as f64));
        }
        gauge!("elf_rows_left_out").set(left_out as f64);
        gauge!("elf_observed_timestamp_seconds").set(Utc::now().timestamp_millis() as f64 / 1e3);
        let mut seen = lock(&self.seen);
        seen.at = Some(Utc::now());
        seen.outbox = Some(outbox);
        seen.job = job.map(|running| seen.speed.of(running, Instant::now()));
        publish_job(seen.job.as_ref());
        Ok(())
    }

    /// The version that searches read, as of the last check.
    fn served(&self) -> Option<String> {
        let seen = lock(&self.seen);
        let served = seen.versions.iter().find(|v| v.state == Lifecycle::Active);
        served.map(|v| v.version.name.clone())
    }

    fn is_building(&self) -> bool {
        let seen = lock(&self.seen);
        seen.versions.iter().any(|v| v.state == Lifecycle::Building)
    }

    /// Publishes what is registered. Of a collection that was known before, the figures of the
    /// engine stay until it is asked again.
    pub(super) fn show_registered(&self, registered: Registered, target: Option<&str>) {
        let Registered {
            versions,
            collections: rows,
        } = registered;
        for state in [Lifecycle::Active, Lifecycle::Building, Lifecycle::Retired] {
            let of_it = rows.iter().filter(|row| row.state == state);
            gauge!("elf_collections", "state" => state.as_str()).set(of_it.count() as f64);
        }
        let mut seen = lock(&self.seen);
        let with_figures = |row: CollectionRow| {
            let known = seen.collections.iter().find(|c| c.name == row.name);
            Collection {
                served: target == Some(row.name.as_str()),
                points: known.and_then(|c| c.points),
                status: known.and_then(|c| c.status),
                name: row.name,
                alias: row.alias,
                version: row.version,
                state: row.state,
            }
        };
        let collections = rows.into_iter().map(with_figures).collect();
        seen.versions = versions;
        seen.collections = collections;
    }

    /// Asks the engine about every registered collection. It counts points one by one.
    pub(super) async fn describe_collections(&self) {
        let names: Vec<String> = {
            let seen = lock(&self.seen);
            seen.collections.iter().map(|c| c.name.clone()).collect()
        };
        for name in names {
            let info = self.pipeline.serving.index.collection(&name).await;
            let (points, status) = info
                .unwrap_or_default()
                .map(|info| (info.points, info.status))
                .unzip();
            let mut seen = lock(&self.seen);
            let Some(shown) = seen.collections.iter_mut().find(|c| c.name == name) else {
                continue;
            };
            (shown.points, shown.status) = (points, status);
            if let (true, Some(points)) = (shown.served, points) {
                gauge!("elf_index_points").set(points as f64);
            }
        }
    }

    /// Counts notes, chunks and the outbox's dead tuples.
    pub(super) async fn count_notes(&self) -> Result<(), StoreError> {
        let store = &self.pipeline.serving.store;
        let served = self.served().unwrap_or_default();
        let table = store.outbox_table().await?;
        let notes = store.note_counts(&served).await?;
        gauge!("elf_outbox_dead_tuples").set(table.dead_tuples as f64);
        gauge!("elf_outbox_size_bytes").set(table.size_bytes as f64);
        gauge!("elf_notes", "state" => "live").set(notes.live as f64);
        gauge!("elf_notes", "state" => "indexed").set(notes.indexed as f64);
        gauge!("elf_coverage_ratio").set(coverage(&notes));
        gauge!("elf_live_chunks").set(notes.chunks as f64);
        let mut seen = lock(&self.seen);
        seen.table = Some(table);
        seen.notes = Some(notes);
        Ok(())
    }
}

fn coverage(notes: &NoteCounts) -> f64 {
    match notes.live {
        0 => 1.0,
        live => notes.indexed as f64 / live as f64,
    }
}

fn publish_job(job: Option<&Job>) {
    for kind in ["rebuild", "reindex"] {
        let job = job.filter(|job| job.running.kind == kind);
        let value = |of: fn(&Job) -> f64| job.map_or(0.0, of);
        gauge!("elf_job_running", "kind" => kind).set(value(|_| 1.0));
        gauge!("elf_job_items_done", "kind" => kind).set(value(|job| job.running.done as f64));
        gauge!("elf_job_items", "kind" => kind).set(value(|job| job.running.total as f64));
        gauge!("elf_job_rate_per_second", "kind" => kind)
            .set(value(|job| job.rate_per_sec.unwrap_or(0.0)));
        gauge!("elf_job_eta_seconds", "kind" => kind).set(value(|job| job.eta_secs.unwrap_or(0.0)));
    }
}
