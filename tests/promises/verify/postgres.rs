//! Verify of Postgres alone: chunks, hashes and vectors against the texts.

use elf::store::Depth;
use uuid::Uuid;

use super::{repairing, with_notes};
use crate::support::embedding_server::Behaviour;
use crate::support::harness::{Findings, Harness, sentences};

/// Runs statements about a note without any trigger, as an accident would.
async fn without_triggers(h: &Harness, statements: &str, note: Uuid) {
    let statements = statements.replace("$1", &format!("'{note}'"));
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica; {statements}; commit"
    )))
    .execute(&h.pool)
    .await
    .unwrap();
}

#[tokio::test]
async fn an_inconsistent_note_is_named_and_indexed_again() {
    let h = Harness::start().await;
    with_notes(&h).await;
    let accidents = [
        (
            "update memory_notes set text = text || ' And more.' where note_id = $1",
            "its text is not the one that was indexed",
        ),
        (
            "update memory_note_chunks set text = overlay(text placing 'X' from 1)
              where note_id = $1 and chunk_index = 0",
            "1 of its chunks are not what its text says there",
        ),
        (
            "update memory_note_chunks set start_offset = start_offset + 1
              where note_id = $1 and chunk_index = 0",
            "1 of its chunks are not what its text says there",
        ),
        (
            "update memory_note_chunks set text_sha256 = sha256('x')
              where note_id = $1 and chunk_index = 0",
            "1 of its chunks are not what its text says there",
        ),
        (
            "delete from note_chunk_embeddings where chunk_id in
                (select chunk_id from memory_note_chunks where note_id = $1 and chunk_index = 1);
             delete from memory_note_chunks where note_id = $1 and chunk_index = 1",
            "chunks, not",
        ),
        (
            "delete from note_chunk_embeddings where chunk_id in
                (select chunk_id from memory_note_chunks where note_id = $1 and chunk_index < 2)",
            "2 of its chunks have no vector",
        ),
        (
            "update note_embeddings set vec = '[9,9,9,9,9,9,9,9]' where note_id = $1",
            "its pooled vector is not the mean of its chunks",
        ),
        (
            "delete from note_embeddings where note_id = $1",
            "it has no pooled vector",
        ),
        (
            "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
             values (gen_random_uuid(), 't', 'p', 'a', 's', 'n', 'never told ' || $1)",
            "it was never indexed",
        ),
    ];
    let mut hurt = Vec::new();
    for (i, (accident, words)) in accidents.into_iter().enumerate() {
        let note = h.insert(&sentences(8, &format!("accident {i}"))).await;
        h.drain().await;
        hurt.push((accident, note, words));
    }
    h.assert_exact().await;
    for (accident, note, _) in &hurt {
        without_triggers(&h, accident, *note).await;
    }
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert_eq!(report.inconsistent, hurt.len() as u64, "{:?}", found.all());
    for (accident, note, words) in &hurt {
        let note = match *words {
            "it was never indexed" => "note".to_owned(),
            _ => note.to_string(),
        };
        assert!(found.have(&[&note, words]), "{accident}: {:?}", found.all());
    }
    assert_eq!(h.count("indexing_outbox").await, 0);

    let report = h.verify(&repairing(true)).await;
    assert_eq!(report.unrepaired(), 0);
    assert_eq!(h.count("indexing_outbox").await, hurt.len() as i64);
    h.drain_with_retries().await;
    h.assert_exact().await;
}

/// Dead letters wait for an operator.
#[tokio::test]
async fn dead_letters_are_no_problem_of_verify() {
    let h = Harness::start().await;
    let note = h.insert("Fine at first.").await;
    h.drain().await;
    h.provider.poison("hemlock", Behaviour::Status(400));
    h.edit(note, "Then hemlock.").await;
    h.insert("Nothing but hemlock.").await;
    h.drain_with_retries().await;
    assert_eq!(h.count("indexing_outbox where status = 'DEAD'").await, 2);
    let found = Findings::default();
    let report = h.verify(&found.deep()).await;
    assert_eq!(report.drift(), 0, "{:?}", found.all());
    assert_eq!(h.verify(&repairing(true)).await.repaired, 0);
    assert_eq!(h.count("indexing_outbox").await, 2);
}

/// Ten megabytes in 40,000 chunks: one statement checks them, and no chunk makes it read
/// the whole text.
#[tokio::test]
async fn a_note_of_ten_megabytes_is_looked_at_in_bounded_time() {
    let h = Harness::start().await;
    let note = h.insert("x").await;
    h.drain().await;
    let version = &h.pipeline.version.name;
    without_triggers(
        &h,
        &format!(
            "update memory_notes set text = (select string_agg(md5(i::text) || repeat('é', 112), '')
                                               from generate_series(1, 40000) i)
              where note_id = $1;
             delete from note_chunk_embeddings; delete from memory_note_chunks;
             insert into memory_note_chunks (chunk_id, note_id, chunk_index, start_offset, end_offset,
                                             text, text_sha256, embedding_version, revision)
             select gen_random_uuid(), $1, i - 1, (i - 1) * 256, i * 256, text,
                    sha256(convert_to(text, 'UTF8')), '{version}', 1
               from (select i, md5(i::text) || repeat('é', 112) as text
                       from generate_series(1, 40000) i) pieces;
             insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
             select chunk_id, '{version}', 8, '[1,0,0,0,0,0,0,0]' from memory_note_chunks;
             update note_embeddings set vec = '[1,0,0,0,0,0,0,0]';
             update note_index_state set chunk_count = 40000, text_sha256 =
                (select sha256(convert_to(text, 'UTF8')) from memory_notes)"
        ),
        note,
    )
    .await;
    assert_eq!(
        h.count("memory_notes where octet_length(text) > 10000000")
            .await,
        1
    );
    let nil = Uuid::nil();
    let look = h
        .pipeline
        .serving
        .store
        .note_problems(version, 8, nil, 200, 1 << 20, 1.0);
    let (last, problems) = tokio::time::timeout(crate::support::DEADLINE, look)
        .await
        .expect("it ends")
        .unwrap();
    assert_eq!(problems, []);
    assert_eq!(last, Some((note, 1)));
    without_triggers(
        &h,
        "update memory_note_chunks set text = 'X' || substr(text, 2) where chunk_index = 39999 and note_id = $1",
        note,
    )
    .await;
    let (_, problems) = h
        .pipeline
        .serving
        .store
        .note_problems(version, 8, nil, 200, 1 << 20, 1.0)
        .await
        .unwrap();
    assert_eq!(problems.len(), 1);
}

/// Postgres holds the texts of a page in memory.
async fn with_ten_notes() -> Harness {
    let h = Harness::start().await;
    for i in 0..10 {
        h.insert(&sentences(4, &format!("matter {i}"))).await;
    }
    h.drain().await;
    h
}

#[tokio::test]
async fn a_page_of_notes_is_bounded_in_bytes() {
    let h = with_ten_notes().await;
    let (version, mut after, mut pages) = (&h.pipeline.version.name, Uuid::nil(), Vec::new());
    loop {
        let page = h
            .pipeline
            .serving
            .store
            .note_problems(version, 8, after, 200, 300, 1.0);
        let (looked_at, problems) = page.await.unwrap();
        assert_eq!(problems, []);
        let Some((last, count)) = looked_at else {
            break;
        };
        (after, pages) = (last, [pages, vec![count]].concat());
    }
    assert_eq!(pages.iter().sum::<u64>(), 10);
    assert!(
        pages.len() > 1 && pages.iter().all(|count| (1..=3).contains(count)),
        "{pages:?}"
    );
}

#[tokio::test]
async fn a_page_of_chunks_is_bounded_in_bytes() {
    let h = with_ten_notes().await;
    let (version, mut after, mut pages) = (&h.pipeline.version.name, Uuid::nil(), Vec::new());
    loop {
        let upto = Uuid::max();
        let page =
            h.pipeline
                .serving
                .store
                .live_chunks(version, after, upto, 200, 300, Depth::Whole);
        let page = page.await.unwrap();
        let Some(last) = page.last() else {
            break;
        };
        let bytes: usize = page.iter().map(|c| c.text.as_ref().unwrap().len()).sum();
        assert!(page.len() == 1 || bytes < 600, "{bytes}");
        after = last.chunk_id;
        pages.push(page.len() as i64);
    }
    assert!(pages.len() > 1);
    assert_eq!(
        pages.iter().sum::<i64>(),
        h.count("memory_note_chunks").await
    );
}
