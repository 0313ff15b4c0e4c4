//! Another model, drift, a rebuild that died.

use super::machine::{Machine, Section};
use crate::support::eventually;

#[tokio::test]
async fn a_model_change_and_the_way_back_work_as_written() {
    let Some(m) = Machine::working("model change", 5).await else {
        return;
    };
    let new = m.site.toml().replace("max_tokens = 32", "max_tokens = 24");
    m.site.write("new.toml", new);
    let mut change = Section::of("Model change");
    m.shows(
        change.next(),
        &["5 notes, ", "to embed: ", "nothing was written"],
    )
    .await;
    m.shows(
        change.next(),
        &["it is complete, and the old version is still served"],
    )
    .await;
    let status = m.run("elf status").await.exits(0).stdout;
    assert!(
        status.contains("(building since ")
            && status.contains("; 0 pending, 0 leased, 0 failed, 0 dead)"),
        "{status}"
    );
    m.shows(
        change.next(),
        &["it is served now", "(retired since ", "5 live, 5 indexed"],
    )
    .await;
    eventually(async || m.get("/readyz").await.contains("is retired: ")).await;
    m.shows(
        change.next(),
        &["is served again", "chunking.max_tokens = 32"],
    )
    .await;
    m.is_ready(true).await;
    m.wait_until_drained().await;
    let dropped = m
        .shows(change.next(), &["dropped test-8-", "5 live, 5 indexed"])
        .await;
    assert!(!dropped.stdout.contains("(retired"), "{dropped:?}");
    change.end();
    m.run("elf verify --deep").await.exits(0);
}

#[tokio::test]
async fn drift_is_found_and_repaired_as_written() {
    let Some(m) = Machine::working("drift", 5).await else {
        return;
    };
    let gone: Vec<String> =
        sqlx::query_scalar("select chunk_id::text from memory_note_chunks order by 1 limit 2")
            .fetch_all(&mut m.db().await)
            .await
            .unwrap();
    let body = serde_json::json!({ "points": gone }).to_string();
    m.run(&format!(
        "curl -sf \"$QDRANT/collections/notes/points/delete?wait=true\" -H 'content-type: application/json' -d '{body}'"
    ))
    .await
    .exits(0);
    let mut drift = Section::of("Drift");
    let found = m.does(drift.next()).await.exits(3);
    assert!(
        found.stdout.contains("2 missing, 0 stale, 0 orphaned"),
        "{found:?}"
    );
    found.says(&[
        &format!("missing: point {}", gone[0]),
        "run `elf verify --repair`",
    ]);
    m.shows(
        drift.next(),
        &["; 2 repaired", ": 0 missing, 0 stale, 0 orphaned"],
    )
    .await;
    drift.end();
}

#[tokio::test]
async fn a_rebuild_that_died_is_seen_and_resumes_as_written() {
    let Some(m) = Machine::working("rebuild stalled", 1).await else {
        return;
    };
    m.execute(MANY_CHUNKS).await;
    let rebuild = m.site.begin(&["rebuild"]);
    eventually(async || m.count("index_rebuild_ranges where points > 0").await > 0).await;
    rebuild.kill().await;
    let mut stalled = Section::of("Rebuild stalled");
    m.shows(
        stalled.next(),
        &["rebuild | notes", "| building |", "| active "],
    )
    .await;
    let done = m
        .shows(stalled.next(), &["embedding calls: 0", "notes__2, "])
        .await;
    done.says(&["resumed=true"]);
    m.shows(stalled.next(), &["nothing to drop"]).await;
    stalled.end();
    m.run("elf verify").await.exits(0);
}

/// So many that a rebuild takes seconds.
const MANY_CHUNKS: &str = "
    alter table memory_notes disable trigger elf_note_replicated; set session_replication_role = replica;
    insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
    select md5('note' || n)::uuid, 't', 'p', 'a', 's', 'n', 'Note ' || n from generate_series(1, 8000) n;
    insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256,
                                    embedding_version, revision)
    select md5('chunk' || note_id::text)::uuid, note_id, 0, 0, octet_length(text), text,
           sha256(convert_to(text, 'UTF8')), v.embedding_version, 1
      from memory_notes, index_versions v where tenant_id = 't';
    insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
    select c.chunk_id, v.embedding_version, 8, '[1,0,0,0,0,0,0,1]'
      from memory_note_chunks c join memory_notes n using (note_id), index_versions v where n.tenant_id = 't';
    insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
    select n.note_id, v.embedding_version, 8, '[1,0,0,0,0,0,0,1]'
      from memory_notes n, index_versions v where n.tenant_id = 't';
    insert into note_index_state (note_id, embedding_version, lease_token, revision, text_sha256, chunk_count, indexed_at)
    select n.note_id, v.embedding_version, 1, 1, sha256(convert_to(n.text, 'UTF8')), 1, now()
      from memory_notes n, index_versions v where n.tenant_id = 't';
";
