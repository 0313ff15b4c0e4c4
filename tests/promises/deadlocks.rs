//! An application that changes two notes in any order is never the victim of a deadlock with ELF: ELF waits
//! for no row that an application may have locked while it has locked another one.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use elf::config::VectorType;
use elf::rebuild;
use elf::reindex::{self, Then};
use elf::store::{
    AddedNote, ClaimScope, Field, ImportedNote, JobLease, Lifecycle, Outcome, Reach, Store,
    StoreError,
};
use elf::verify;
use elf::worker::Worker;
use futures::future::BoxFuture;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::database::notes_table;
use crate::support::harness::{Harness, sentences};
use crate::support::site::Site;

/// What an application does with a note in a transaction.
const CHANGES: [&str; 5] = [
    "delete from memory_notes where note_id = $1",
    "update memory_notes set text = text || ' again' where note_id = $1",
    "update memory_notes set tenant_id = 'moved' where note_id = $1",
    "insert into memory_notes (note_id, tenant_id, project_id, agent_id, scope, type, text)
     values ($1, 't', 'p', 'a', 's', 'n', 'upserted')
     on conflict (note_id) do update set text = excluded.text",
    "select from memory_notes where note_id = $1 for update",
];

/// A statement of ELF that touches two notes: what prepares it, and what runs it.
struct Statement {
    name: &'static str,
    prepare: &'static str,
    run: fn(Acting) -> BoxFuture<'static, Result<(), StoreError>>,
}

/// What ELF acts with.
#[derive(Clone)]
struct Acting {
    store: Store,
    version: String,
    notes: [Uuid; 2],
}

const NOTHING: &str = "select 1";

/// Another version of both notes.
const OLD_VERSION: &str = "
    insert into index_versions (embedding_version, embedding_dim, settings, state)
    select 'old', embedding_dim, settings, 'retired' from index_versions where state = 'active';
    insert into note_index_state (note_id, embedding_version, lease_token)
    select note_id, 'old', 0 from memory_notes;
    insert into memory_note_chunks
           (chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256, embedding_version, revision)
    select chunk_id, note_id, chunk_index, start_offset, end_offset, text, text_sha256, 'old', 0
      from memory_note_chunks;
    insert into note_chunk_embeddings (chunk_id, embedding_version, embedding_dim, vec)
    select chunk_id, 'old', embedding_dim, vec from note_chunk_embeddings;
    insert into note_embeddings (note_id, embedding_version, embedding_dim, vec)
    select note_id, 'old', embedding_dim, vec from note_embeddings;";

fn imported(note_id: Uuid) -> ImportedNote {
    let label = |value: &str| Field::or(Some(value.to_owned()), String::new());
    ImportedNote {
        note_id,
        is_keyed: false,
        text: format!("imported {}", Uuid::new_v4()),
        tenant_id: label("t"),
        project_id: label("p"),
        agent_id: label("a"),
        scope: label("s"),
        kind: label("n"),
        key: Field::default(),
        importance: Field::or(None, 0.5),
        confidence: Field::or(None, 1.0),
        expires_at: Field::default(),
        source_ref: Field::or(None, serde_json::json!({})),
        title: Field::default(),
        metadata: Field::or(None, serde_json::json!({})),
        origin: None,
    }
}

fn added(note_id: Uuid) -> AddedNote {
    AddedNote {
        note_id: Uuid::new_v4(),
        tenant_id: "t".to_owned(),
        project_id: "p".to_owned(),
        agent_id: "a".to_owned(),
        scope: "s".to_owned(),
        kind: "n".to_owned(),
        key: Some(note_id.to_string()),
        text: format!("added {}", Uuid::new_v4()),
        importance: 0.5,
        confidence: 1.0,
        expires_at: None,
        source_ref: serde_json::value::to_raw_value(&serde_json::json!({})).unwrap(),
        title: None,
        has_given_id: false,
        metadata: serde_json::Map::new(),
    }
}

fn given(note_id: Uuid) -> AddedNote {
    AddedNote {
        note_id,
        has_given_id: true,
        key: None,
        ..added(note_id)
    }
}

fn reach() -> Reach {
    Reach {
        tenant_id: "t".to_owned(),
        project_id: None,
        agent_id: None,
    }
}

const STATEMENTS: [Statement; 14] = [
    Statement {
        name: "drop a version",
        prepare: OLD_VERSION,
        run: |elf| {
            Box::pin(async move {
                let lease = Duration::from_secs(60);
                let job = elf.store.take_job("drop", "old", "me", lease).await?;
                let job = JobLease::of(&job.holder);
                elf.store.drop_version(&job, "old").await.map(drop)
            })
        },
    },
    Statement {
        name: "import",
        prepare: NOTHING,
        run: |elf| {
            Box::pin(async move {
                let notes = elf.notes.map(imported);
                let notes = notes.each_ref();
                elf.store.import(&notes, Outcome::Commit).await.map(drop)
            })
        },
    },
    Statement {
        name: "delete notes whose files are gone",
        prepare: "update memory_notes set source = 'folder:x', source_id = note_id::text",
        run: |elf| {
            Box::pin(async move {
                let gone = elf.notes.map(|id| (id, id.to_string()));
                let tenant = imported(gone[0].0).tenant_id.value;
                let delete = elf.store.delete_synced("folder:x", &tenant, &gone);
                delete.await.map(drop)
            })
        },
    },
    Statement {
        name: "write notes of the same keys over HTTP",
        prepare: "update memory_notes set key = note_id::text",
        run: |elf| {
            Box::pin(async move {
                let notes = elf.notes.map(added);
                elf.store.put_notes(&notes, &reach()).await.map(drop)
            })
        },
    },
    Statement {
        name: "write notes of the same ids over HTTP",
        prepare: NOTHING,
        run: |elf| {
            Box::pin(async move {
                let notes = elf.notes.map(given);
                elf.store.put_notes(&notes, &reach()).await.map(drop)
            })
        },
    },
    Statement {
        name: "delete notes by a filter",
        prepare: NOTHING,
        run: |elf| {
            Box::pin(async move {
                let wanted = serde_json::json!({"agent_id": "a"});
                let delete =
                    elf.store
                        .delete_listed(&wanted, "t", Uuid::nil(), Duration::ZERO, false);
                delete.await.map(drop)
            })
        },
    },
    Statement {
        name: "delete what an evaluation wrote",
        prepare: NOTHING,
        run: |elf| {
            Box::pin(async move { elf.store.delete_evaluated("t", "a", &[]).await.map(drop) })
        },
    },
    Statement {
        name: "claim and release",
        prepare: "insert into indexing_outbox (note_id) select note_id from memory_notes",
        run: |elf| {
            Box::pin(async move {
                let lease = Duration::from_secs(5);
                let (store, version) = (&elf.store, &elf.version);
                let claim = store.claim(version, "me", lease, 9, 1 << 20, ClaimScope::ALL);
                let claim = claim.await?.expect("both are due");
                let (token, notes) = (claim.token, claim.note_ids());
                store.renew_leases(version, token, &notes, lease).await?;
                store.take_over_chunks(version, token, &notes).await?;
                let released = store.release(version, token, &notes, Duration::ZERO, true);
                released.await.map(drop)
            })
        },
    },
    Statement {
        name: "enqueue",
        prepare: NOTHING,
        run: |elf| Box::pin(async move { elf.store.enqueue(&Default::default()).await.map(drop) }),
    },
    Statement {
        name: "expire",
        prepare: "update memory_notes set expires_at = now()",
        run: |elf| {
            Box::pin(async move {
                elf.store
                    .expire(&elf.version, None, None, true)
                    .await
                    .map(drop)
            })
        },
    },
    Statement {
        name: "enqueue the notes of a version again",
        prepare: NOTHING,
        run: |elf| {
            Box::pin(async move {
                elf.store
                    .enqueue_version_again(&elf.version)
                    .await
                    .map(drop)
            })
        },
    },
    Statement {
        name: "requeue",
        prepare: NOTHING,
        run: |elf| Box::pin(async move { elf.store.requeue(&elf.version, &elf.notes).await }),
    },
    Statement {
        name: "clean up",
        prepare: "insert into indexing_outbox (note_id, embedding_version, available_at)
                  select note_id, v.embedding_version, now() + t * interval '1 hour'
                    from memory_notes, index_versions v, unnest(array[0, 0, 1]) t",
        run: |elf| {
            Box::pin(async move {
                let (store, version) = (&elf.store, &elf.version);
                store.enqueue_gone(version, Uuid::nil()).await?;
                let first = (chrono::DateTime::UNIX_EPOCH, Uuid::nil());
                store.coalesce_building(version, first).await?;
                store.reschedule_ahead(version, None).await?;
                store.drop_done(Duration::ZERO).await.map(drop)
            })
        },
    },
    Statement {
        name: "retry and purge dead letters",
        prepare: "insert into indexing_outbox (note_id, status) select note_id, 'DEAD' from memory_notes",
        run: |elf| {
            Box::pin(async move {
                elf.store.retry_dead(None).await?;
                elf.store.purge_dead(None).await.map(drop)
            })
        },
    },
];

#[tokio::test]
async fn an_application_is_no_victim_of_statements_on_several_notes() {
    let h = Harness::start().await;
    for statement in &STATEMENTS {
        for change in CHANGES {
            for order in [[0, 1], [1, 0]] {
                let acting = acting_on_two_notes(&h).await;
                execute(&h, statement.prepare).await;
                let elf = tokio::spawn((statement.run)(acting.clone()));
                let what = format!("{}, and: {change}", statement.name);
                let (url, order) = (h.database.url(), order.map(|i| acting.notes[i]));
                against(&url, elf, [change; 2], order, &what).await;
            }
        }
    }
}

/// What a worker does with both notes from the claim to the ack, and what a verify repairs.
#[tokio::test]
async fn an_application_is_no_victim_of_a_worker_or_a_verify() {
    let h = Harness::start().await;
    for change in CHANGES {
        for order in [[0, 1], [1, 0]] {
            for is_verify in [false, true] {
                let acting = acting_on_two_notes(&h).await;
                let context = h.pipeline.clone();
                let elf = if is_verify {
                    execute(&h, "update memory_note_chunks set text = 'wrong'").await;
                    tokio::spawn(async move {
                        let options = verify::Options::repairing();
                        let verified = verify::run(&context.serving, &options).await;
                        verified.map(drop).map_err(|error| error.to_string())
                    })
                } else {
                    execute(&h, "update memory_notes set text = 'edited by the test'").await;
                    let worker = h.worker();
                    tokio::spawn(async move {
                        let drained = worker.drain(CancellationToken::new()).await;
                        drained.map(drop).map_err(|error| error.to_string())
                    })
                };
                let (url, order) = (h.database.url(), order.map(|i| acting.notes[i]));
                against(&url, elf, [change; 2], order, change).await;
                h.drain_with_retries().await;
                h.assert_converged().await;
            }
        }
    }
}

/// Jobs lock tables too. An application that changed its first note in one way may change the second in
/// another, which takes locks on more tables.
const PAIRS: [[&str; 2]; 5] = [
    [CHANGES[0], CHANGES[0]],
    [CHANGES[0], CHANGES[1]],
    [CHANGES[1], CHANGES[0]],
    [CHANGES[3], CHANGES[2]],
    [CHANGES[4], CHANGES[0]],
];

#[tokio::test]
async fn an_application_is_no_victim_of_a_rebuild() {
    let h = Harness::start().await;
    for changes in PAIRS {
        for order in [[0, 1], [1, 0]] {
            let acting = acting_on_two_notes(&h).await;
            let serving = h.pipeline.serving.clone();
            let elf = tokio::spawn(async move {
                let options = rebuild::Options {
                    swap_last: false,
                    take_alias: false,
                    keep_old: false,
                    restart: false,
                    notice: Arc::new(|_| {}),
                };
                let stop = CancellationToken::new();
                let rebuilt = rebuild::run(&serving, &options, Arc::default(), stop).await;
                rebuilt.map(drop)
            });
            let (url, order) = (h.database.url(), order.map(|i| acting.notes[i]));
            against(&url, elf, changes, order, &format!("rebuild: {changes:?}")).await;
            h.drain_with_retries().await;
            h.assert_exact().await;
        }
    }
}

/// It builds the version, compares it and serves it.
#[tokio::test]
async fn an_application_is_no_victim_of_a_reindex() {
    for changes in PAIRS {
        for order in [[0, 1], [1, 0]] {
            let h = Harness::start().await;
            let acting = acting_on_two_notes(&h).await;
            let mut config = h.config.clone();
            config.chunking.settings.max_tokens = 24;
            let new = h.pipeline_of(&config).await;
            let worker = Worker::new(new.clone(), &config.worker, &config.outbox);
            // Changes of the application are first for the old version.
            let old = h.work();
            let elf = tokio::spawn({
                let new = new.clone();
                async move {
                    let options = verify::Options {
                        repair: false,
                        ..verify::Options::repairing()
                    };
                    let stop = CancellationToken::new();
                    let run = reindex::run(&new, &worker, Then::Swap, &options, stop);
                    run.await.map(drop)
                }
            });
            let (url, order) = (h.database.url(), order.map(|i| acting.notes[i]));
            against(&url, elf, changes, order, &format!("reindex: {changes:?}")).await;
            old.stop().await;
            let served = new.serving.store.version(&new.version.name).await.unwrap();
            assert_eq!(served.unwrap().state, Lifecycle::Active, "{changes:?}");
        }
    }
}

/// The schema comes to a table of an application, and the vectors get another type.
#[tokio::test]
async fn an_application_is_no_victim_of_a_migration() {
    for changes in PAIRS {
        for order in [[0, 1], [1, 0]] {
            let site = Site::empty().await;
            let url = site.database.url();
            let notes = [Uuid::new_v4(), Uuid::new_v4()];
            let mut db = site.connect().await;
            sqlx::raw_sql(notes_table()).execute(&mut db).await.unwrap();
            for note in notes {
                let insert = sqlx::query(CHANGES[3]).bind(note);
                insert.execute(&mut db).await.unwrap();
            }
            let store = Store::connect(&url, 4).await.unwrap();
            let order = order.map(|i| notes[i]);
            let elf = tokio::spawn({
                let store = store.clone();
                async move { store.migrate().await.map(drop) }
            });
            against(&url, elf, changes, order, &format!("migrate: {changes:?}")).await;
            for note in notes {
                let insert = sqlx::query(CHANGES[3]).bind(note);
                insert.execute(&mut db).await.unwrap();
            }
            let elf = tokio::spawn(async move {
                let changed = store.change_vector_type(VectorType::Halfvec).await;
                changed.map(drop)
            });
            against(&url, elf, changes, order, &format!("halfvec: {changes:?}")).await;
        }
    }
}

/// It locks whole tables, in an order of its own.
#[tokio::test]
async fn an_application_that_truncates_is_no_victim() {
    let h = Harness::start().await;
    for _ in 0..3 {
        for i in 0..20 {
            h.insert(&sentences(5, &format!("matter {i}"))).await;
        }
        h.drain().await;
        execute(&h, OLD_VERSION).await;
        execute(&h, "update memory_notes set text = text || ' edited'").await;
        let worker = h.worker();
        let serving = h.pipeline.serving.clone();
        // Both come to the tables while the application waits for them.
        let mut holder = PgConnection::connect(&h.database.url()).await.unwrap();
        let mut held = holder.begin().await.unwrap();
        sqlx::query("select from index_collections for update")
            .execute(&mut *held)
            .await
            .unwrap();
        let working = tokio::spawn(async move { worker.drain(CancellationToken::new()).await });
        let dropping = tokio::spawn(async move { reindex::drop(&serving, Some("old")).await });
        let truncated = {
            let url = h.database.url();
            tokio::spawn(async move {
                let mut application = application(&url).await;
                sqlx::raw_sql("truncate memory_notes cascade")
                    .execute(&mut application)
                    .await
            })
        };
        let mut observer = PgConnection::connect(&h.database.url()).await.unwrap();
        waits_or_ends(&mut observer, || truncated.is_finished()).await;
        held.commit().await.unwrap();
        truncated
            .await
            .unwrap()
            .expect("the application is no victim");
        working.await.unwrap().unwrap();
        dropping.await.unwrap().unwrap();
        h.drain_with_retries().await;
        h.assert_converged().await;
    }
}

/// Two notes that are indexed.
async fn acting_on_two_notes(h: &Harness) -> Acting {
    // A row for later would keep the drain from its end.
    execute(
        h,
        "delete from indexing_outbox; delete from memory_notes;
         delete from index_versions where embedding_version = 'old'",
    )
    .await;
    let notes = [
        h.insert(&sentences(9, "one matter")).await,
        h.insert(&sentences(9, "another matter")).await,
    ];
    h.drain_with_retries().await;
    execute(h, "delete from indexing_outbox").await;
    Acting {
        store: h.pipeline.serving.store.clone(),
        version: h.pipeline.version.name.clone(),
        notes,
    }
}

/// An application changes the first note, ELF comes to both, and the application changes the second one.
async fn against<E: Display>(
    url: &str,
    elf: JoinHandle<Result<(), E>>,
    changes: [&'static str; 2],
    [first, second]: [Uuid; 2],
    what: &str,
) {
    let mut observer = PgConnection::connect(url).await.unwrap();
    let mut application = application(url).await;
    let mut transaction = application.begin().await.unwrap();
    let did = sqlx::query(changes[0])
        .bind(first)
        .execute(&mut *transaction)
        .await;
    did.unwrap_or_else(|error| panic!("{what}: {error}"));
    waits_or_ends(&mut observer, || elf.is_finished()).await;
    let did = sqlx::query(changes[1])
        .bind(second)
        .execute(&mut *transaction)
        .await;
    did.unwrap_or_else(|error| panic!("{what}: {error}"));
    transaction.commit().await.unwrap();
    if let Err(error) = elf.await.unwrap() {
        // On a slow machine ELF gives way: its wait for the application has a limit.
        let error = error.to_string();
        assert!(error.contains("lock timeout"), "{what}: {error}");
    }
}

/// An application that looks for a deadlock before ELF does, so that it is the victim of each that lasts.
async fn application(url: &str) -> PgConnection {
    let mut application = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql("set deadlock_timeout = '100ms'")
        .execute(&mut application)
        .await
        .unwrap();
    application
}

/// Waits until a session of this database waits for a lock, or something has ended. What waits without a
/// lock has come as far as it can after a moment.
async fn waits_or_ends(observer: &mut PgConnection, has_ended: impl Fn() -> bool) {
    let waiting = "select exists (select from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock')";
    for _ in 0..30 {
        let waits: bool = sqlx::query_scalar(waiting)
            .fetch_one(&mut *observer)
            .await
            .unwrap();
        if waits || has_ended() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn execute(h: &Harness, statements: &'static str) {
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(&h.pool)
        .await
        .unwrap();
}
