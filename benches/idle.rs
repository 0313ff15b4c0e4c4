//! The CPU of a daemon that has nothing to do: with no notes, and with many that do not change.

use std::time::{Duration, Instant};

use crate::daemon::{Site, Worker, execute};
use crate::engine::Engine;
use crate::process::Cpu;
use crate::report::{Report, Target};
use crate::stand_in::StandIn;
use crate::{Options, Result};

const DIM: usize = 8;

/// Of [`Cpu::NAMES`].
const TARGETS: [Target; 3] = [Target::AtMost(0.2), Target::None, Target::None];

pub async fn run(options: Options) -> Result<()> {
    let engine = Engine::find().await?;
    let mut report = Report::new("idle", options, &engine.name);
    let provider = StandIn::start(DIM, Duration::ZERO)?;
    let notes = options.size(10_000_000, 1000);
    let secs = options.size(120, 2);
    report.fact("settings", "defaults, a verify of the index is just over");
    for notes in [0, notes] {
        let mut site = Site::start(&engine.url, &provider.url, "").await?;
        // It registers the version.
        let worker = Worker::start(site.folder.path())?;
        site.insert(&["the first note".to_owned()]).await?;
        site.wait_until_drained(Instant::now()).await?;
        drop(worker);
        execute(&mut site.db, QUIET.replace("{notes}", &notes.to_string())).await?;
        // One by one: a vacuum is no part of a transaction.
        for tidy in ["vacuum analyze", "checkpoint"] {
            execute(&mut site.db, tidy.to_owned()).await?;
        }
        let worker = Worker::start(site.folder.path())?;
        // What it does once after its start, such as the first count of all notes.
        let rest = options.size(30 + notes / 50_000, 1);
        tokio::time::sleep(Duration::from_secs(rest as u64)).await;
        let cpu = Cpu::start(worker.pid())?;
        tokio::time::sleep(Duration::from_secs(secs as u64)).await;
        let millis = cpu.millis_each(secs)?;
        for ((name, millis), target) in Cpu::NAMES.into_iter().zip(millis).zip(TARGETS) {
            report.value(
                &format!("{notes} quiet notes, CPU over {secs} s, {name}"),
                "% of a core",
                vec![millis / 10.0],
                target,
            );
        }
        drop(worker);
        site.end().await?;
    }
    report.write()
}

/// Notes that are indexed, with one chunk each.
const QUIET: &str = "
alter table memory_notes disable trigger user;
insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
select md5('quiet' || n)::uuid, 't', 'p', 'a', 's', 'n', 'quiet note ' || n from generate_series(1, {notes}) n;
alter table memory_notes enable trigger user;
insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256,
                                embedding_version, revision)
select note_id, note_id, 0, 0, octet_length(n.text), n.text, sha256(n.text::bytea), v.embedding_version, 1
  from memory_notes n cross join index_versions v where n.text like 'quiet%';
insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
select chunk_id, embedding_version, 8, '[1,2,3,4,5,6,7,8]' from memory_note_chunks where text like 'quiet%';
insert into note_index_state (note_id, embedding_version, lease_token, revision, text_sha256, chunk_count, indexed_at)
select n.note_id, v.embedding_version, 1, 1, sha256(n.text::bytea), 1, now()
  from memory_notes n cross join index_versions v where n.text like 'quiet%';
update index_versions set verify_started_at = now(), verify_lease_until = null,
                          verify_chunks_cursor = null, verify_notes_cursor = null, verify_requested = false;
";
