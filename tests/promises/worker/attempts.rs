//! A failure counts against its own note alone: after its last attempt that note is a dead
//! letter. An outage of the provider is no attempt.

use crate::support::embedding_server::Behaviour;
use crate::support::eventually;
use crate::support::harness::{Harness, spawn};

#[tokio::test]
async fn a_poison_note_harms_no_other_and_is_dead_lettered_alone() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let poison = h.insert("a spoon of arsenic").await;
    for i in 0..15 {
        h.insert(&format!("wholesome note {i}")).await;
    }
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    assert_eq!(h.points().await.len(), 15);
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].note_id, poison);
    assert_eq!(letters[0].attempts, 3);
    let reason = letters[0].last_error.clone().unwrap();
    assert!(reason.contains("cannot be embedded"), "{reason}");
    assert!(
        !reason.contains("arsenic"),
        "the reason holds the note's text: {reason}"
    );

    h.provider.heal();
    assert_eq!(
        h.pipeline
            .serving
            .store
            .retry_dead(Some(&[poison]))
            .await
            .unwrap(),
        1
    );
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn an_edit_revives_a_dead_letter() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("a spoon of arsenic").await;
    assert_eq!(h.drain_with_retries().await.dead, 1);
    h.edit(note, "a spoon of sugar").await;
    h.drain().await;
    h.assert_converged().await;
}

#[tokio::test]
async fn a_note_without_any_token_is_dead_lettered_at_once() {
    let h = Harness::start().await;
    h.insert("\u{1}\u{2}\u{3}").await;
    h.insert("fine").await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.dead), (1, 1));
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!(letters[0].attempts, 1);
}

#[tokio::test]
async fn a_stretch_without_any_token_costs_its_note_nothing_else() {
    let h = Harness::start().await;
    // Zero-width spaces: the tokenizer removes them.
    let invisible = "\u{200b}".repeat(50_000);
    h.insert(&format!(
        "{invisible} Before it. {invisible} After it. {invisible}"
    ))
    .await;
    let report = h.drain().await;
    assert_eq!((report.notes, report.dead), (1, 0));
    let texts: Vec<String> = sqlx::query_scalar("select text from memory_note_chunks")
        .fetch_all(&h.pool)
        .await
        .unwrap();
    for words in ["Before it.", "After it."] {
        assert!(texts.iter().any(|text| text.contains(words)), "{words}");
    }
    let visible = |text: &String| text.contains(['B', 'A']);
    assert!(texts.iter().all(visible), "{} chunks", texts.len());
    assert_eq!(h.points().await.len(), texts.len());
}

#[tokio::test]
async fn an_outage_of_the_provider_spends_no_attempts() {
    let h = Harness::start().await;
    h.provider.always(Behaviour::Status(503));
    for i in 0..20 {
        h.insert(&format!("note {i}")).await;
    }
    let (_, stop, running) = spawn(h.worker());
    let before = h.provider.requests();
    h.provider.arrived(before + 4).await;
    assert_eq!(
        h.count("indexing_outbox where attempts > 0 or status <> 'PENDING'")
            .await,
        0
    );
    assert_eq!(h.count("indexing_outbox").await, 20);
    h.provider.heal();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
}

/// Works until the note with `word` alone is left, dead-lettered.
async fn is_dead_lettered_alone(h: &Harness, word: &str) {
    let working = h.work();
    let others = format!("memory_notes where text not like '%{word}%'");
    let others = h.count(&others).await;
    eventually(async || h.points().await.len() as i64 == others).await;
    eventually(async || h.count("indexing_outbox where status <> 'DEAD'").await == 0).await;
    working.stop().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    let dead: String =
        sqlx::query_scalar("select text from memory_notes join indexing_outbox using (note_id)")
            .fetch_one(&h.pool)
            .await
            .unwrap();
    assert!(dead.contains(word), "{dead}");
}

/// It is the oldest, so that each batch begins with it.
#[tokio::test]
async fn a_text_that_is_never_answered_holds_no_queue_up() {
    let h =
        Harness::start_with(|toml| toml.replace("timeout_ms = 6000", "timeout_ms = 1000")).await;
    h.provider.poison("arsenic", Behaviour::Never);
    let before = h.provider.requests();
    h.insert("a spoon of arsenic").await;
    let working = h.work();
    // The text, and a probe after it timed out.
    h.provider.arrived(before + 2).await;
    for i in 0..40 {
        h.insert(&format!("wholesome note {i}")).await;
    }
    eventually(async || h.points().await.len() == 40).await;
    working.stop().await;
    is_dead_lettered_alone(&h, "arsenic").await;
}

/// As a rate limiter or an overloaded server says it of all texts.
#[tokio::test]
async fn a_text_that_the_provider_is_too_busy_for_each_time_stops_no_other_note() {
    let busy = |status, retry_after: &str| {
        let body = String::from("{}");
        Behaviour::Answer(status, "retry-after", retry_after.into(), body)
    };
    for behaviour in [Behaviour::Status(429), busy(429, "0"), busy(503, "0")] {
        let h = Harness::start().await;
        h.provider.poison("arsenic", behaviour);
        h.insert("a spoon of arsenic").await;
        for i in 0..40 {
            h.insert(&format!("wholesome note {i}")).await;
        }
        let working = h.work();
        eventually(async || h.points().await.len() == 40).await;
        // Without other texts it may be the provider. They go on to pass.
        let dead = "indexing_outbox where status = 'DEAD'";
        let mut i = 40;
        while h.count(dead).await == 0 {
            assert!(i < 400, "{i} notes passed, and it is not found");
            h.insert(&format!("wholesome note {i}")).await;
            i += 1;
            eventually(async || h.points().await.len() == i).await;
        }
        working.stop().await;
        assert_eq!(h.count("indexing_outbox").await, 1);
    }
}

#[tokio::test]
async fn a_note_that_postgres_rejects_is_dead_lettered_alone() {
    let h = Harness::start().await;
    sqlx::raw_sql(
        "create function no_secrets() returns trigger language plpgsql as $$
         begin
             if new.text like '%secret%' then raise exception 'this is not for everybody'; end if;
             return new;
         end $$;
         create trigger no_secrets before insert on memory_note_chunks
             for each row execute function no_secrets();",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let secret = h.insert("a secret").await;
    for i in 0..12 {
        h.insert(&format!("open note {i}")).await;
    }
    let report = h.drain_with_retries().await;
    assert_eq!(report.dead, 1);
    assert_eq!(h.points().await.len(), 12);
    let letters = h.pipeline.serving.store.dead_letters(10).await.unwrap();
    assert_eq!(letters[0].note_id, secret);
    assert_eq!(letters[0].attempts, 3);
    let reason = letters[0].last_error.clone().unwrap();
    assert!(reason.contains("this is not for everybody"), "{reason}");
}

#[tokio::test]
async fn touching_a_poison_note_resets_no_attempts() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("a spoon of arsenic").await;
    for i in 0..3 {
        h.insert(&format!("wholesome {i}")).await;
        h.drain().await;
        h.execute(
            "update memory_notes set scope = $2 where note_id = $1",
            note,
            &format!("s{i}"),
        )
        .await;
    }
    let report = h.drain_with_retries().await;
    let tries = h
        .provider
        .texts_seen()
        .iter()
        .filter(|text| text.contains("arsenic"))
        .count();
    assert_eq!(
        h.count("indexing_outbox where status = 'DEAD'").await,
        1,
        "{report:?}"
    );
    assert_eq!(h.points_of(note).await, 0);
    let attempts: i32 = sqlx::query_scalar("select attempts from indexing_outbox")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert!(attempts >= 3, "{attempts} attempts, {tries} tries");

    h.edit(note, "a spoon of sugar").await;
    h.drain().await;
    h.assert_converged().await;
}
