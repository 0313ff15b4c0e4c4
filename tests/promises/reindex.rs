//! Two embedding versions side by side: built, swapped, rolled back, dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::embedding_server::{Behaviour, EmbeddingServer, vector_of};
use crate::support::eventually;
use crate::support::harness::{Barrier, Harness, distance, sentences, unit};
use crate::support::site::{Site as Folder, elf};
use elf::cli::wiring::{self, EmbeddingSetup};
use elf::config::Config;
use elf::embed::EmbedError;
use elf::embed::provider::Provider;
use elf::index::{Filter, StoredPoint};
use elf::note::chunk_id;
use elf::registry::{self, IndexContext, Job, JobError, SetupError};
use elf::reindex::{self, ReindexError, Report, Then};
use elf::store::{Lifecycle, Selection};
use elf::verify;
use elf::worker::{Stage, Worker, WorkerContext};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Another configuration over the same database and the same engine.
struct Beside {
    context: WorkerContext,
    config: Config,
}

async fn beside(h: &Harness, change: impl FnOnce(&mut Config)) -> Beside {
    let mut config = h.config.clone();
    change(&mut config);
    let EmbeddingSetup {
        store,
        chunker,
        embedder,
        version,
    } = wiring::setup(&config).await.unwrap();
    let context = WorkerContext {
        stores: IndexContext {
            store,
            ..h.context.stores.clone()
        },
        provider: Arc::new(Provider::new(embedder, &config.providers.embedding)),
        chunker,
        version,
        document_prefix: config.providers.embedding.document_prefix.clone(),
    };
    Beside { context, config }
}

async fn smaller_chunks(h: &Harness) -> Beside {
    beside(h, |config| config.chunking.max_tokens = 24).await
}

impl Beside {
    fn worker(&self) -> Worker {
        Worker::new(
            self.context.clone(),
            &self.config.worker,
            &self.config.outbox,
        )
    }

    async fn run(&self, then: Then) -> Result<Report, ReindexError> {
        self.run_with(&self.worker(), then).await
    }

    async fn run_with(&self, worker: &Worker, then: Then) -> Result<Report, ReindexError> {
        let options = verify::Options {
            repair: false,
            ..verify::Options::repairing()
        };
        reindex::run(
            &self.context,
            worker,
            then,
            &options,
            CancellationToken::new(),
        )
        .await
    }

    async fn drain(&self) {
        self.worker().drain(CancellationToken::new()).await.unwrap();
    }

    async fn state(&self) -> Option<Lifecycle> {
        state_of(&self.context).await
    }
}

async fn state_of(context: &WorkerContext) -> Option<Lifecycle> {
    let known = context
        .stores
        .store
        .version(&context.version.name)
        .await
        .unwrap();
    known.map(|known| known.state)
}

async fn collection_of(context: &WorkerContext) -> String {
    let all = context
        .stores
        .store
        .collections(&context.version.name)
        .await
        .unwrap();
    all[0].name.clone()
}

async fn points_in(context: &WorkerContext, collection: &str) -> Vec<StoredPoint> {
    let mut points: Vec<StoredPoint> = Vec::new();
    loop {
        let after = points.last().map(|p| p.chunk_id);
        let page = context
            .stores
            .index
            .scroll(collection, after, 500, true)
            .await
            .unwrap();
        let end = page.len() < 500;
        points.extend(page);
        if end {
            return points;
        }
    }
}

/// The points of a version are the chunks that its chunker cuts the live notes into,
/// with the vectors of their texts, and its outbox is empty.
#[track_caller]
fn assert_points(points: &[StoredPoint], context: &WorkerContext, notes: &[(Uuid, String)]) {
    let mut expected = BTreeMap::new();
    for (note, text) in notes {
        for (i, chunk) in context.chunker.chunk(text).unwrap().iter().enumerate() {
            expected.insert(chunk_id(*note, i as u32), &text[chunk.start..chunk.end]);
        }
    }
    assert_eq!(
        points.iter().map(|p| p.chunk_id).collect::<BTreeSet<_>>(),
        expected.keys().copied().collect(),
        "the points of {} are not its chunks",
        context.version.name
    );
    for point in points {
        assert_eq!(point.payload["embedding_version"], context.version.name);
        let wanted = vector_of(expected[&point.chunk_id], context.version.dim);
        let found = point.vector.as_deref().unwrap();
        assert!(distance(&unit(&wanted), &unit(found)) < 1e-5);
    }
}

async fn assert_in_step(h: &Harness, context: &WorkerContext) {
    let left = context
        .stores
        .store
        .outbox_counts(Some(&context.version.name))
        .await
        .unwrap();
    assert_eq!(
        (left.pending, left.leased, left.failed, left.dead),
        (0, 0, 0, 0)
    );
    let notes: Vec<(Uuid, String)> = sqlx::query_as(
        "select note_id, text from memory_notes
          where status = 'active' and (expires_at is null or expires_at > now())",
    )
    .fetch_all(&h.pool)
    .await
    .unwrap();
    let points = points_in(context, &collection_of(context).await).await;
    assert_points(&points, context, &notes);
}

/// Expires the leases and the job of a dead process.
async fn expire_leases_and_job(on: impl sqlx::PgExecutor<'_>) {
    sqlx::query(
        "with job as (update index_job set lease_until = now() - interval '1 second')
         update note_index_state set lease_until = now() - interval '1 second'
          where lease_until is not null",
    )
    .execute(on)
    .await
    .unwrap();
}

async fn alias_of(h: &Harness) -> String {
    h.context
        .stores
        .index
        .resolve(&h.context.stores.alias)
        .await
        .unwrap()
        .unwrap()
}

fn spawn(worker: Worker) -> (Arc<Worker>, CancellationToken, tokio::task::JoinHandle<()>) {
    let (worker, stop) = (Arc::new(worker), CancellationToken::new());
    let running = tokio::spawn({
        let (worker, stop) = (worker.clone(), stop.clone());
        async move { worker.run(stop).await }
    });
    (worker, stop, running)
}

#[tokio::test]
async fn both_versions_stay_in_step_while_one_is_served_and_the_other_is_built() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for i in 0..30 {
        notes.push(
            h.insert(&sentences(1 + i % 7, &format!("matter {i}")))
                .await,
        );
    }
    h.drain().await;
    let next = smaller_chunks(&h).await;
    let served = alias_of(&h).await;

    let (_, stop, running) = spawn(h.worker());
    let application = async {
        for round in 0..6 {
            for (i, note) in notes.iter().enumerate().skip(round).step_by(3) {
                h.edit(
                    *note,
                    &sentences(1 + (i + round) % 5, &format!("round {round} of {i}")),
                )
                .await;
            }
            h.delete(notes[round]).await;
            h.insert(&format!("born in round {round}")).await;
            h.execute(
                "update memory_notes set status = $2 where note_id = $1",
                notes[10 + round],
                "archived",
            )
            .await;
        }
    };
    let (built, ()) = tokio::join!(next.run(Then::Wait), application);
    let built = built.unwrap();
    assert_eq!(built.state, Lifecycle::Building);
    assert_eq!(alias_of(&h).await, served, "the old version is served");

    // The old daemon claims the last changes, and hands a copy of each on.
    eventually(async || {
        let left = h
            .context
            .stores
            .store
            .outbox_counts(Some(&h.context.version.name))
            .await
            .unwrap();
        left.pending + left.leased + left.failed == 0
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    next.drain().await;
    assert_in_step(&h, &h.context).await;
    assert_in_step(&h, &next.context).await;
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn a_change_that_was_claimed_before_the_registration_is_seen() {
    let h = Harness::start().await;
    let note = h.insert("first words").await;
    h.drain().await;
    h.edit(note, "second words").await;
    // A claim that knows only one version takes the row without a version.
    let barrier = Barrier::at(Stage::Claimed);
    let (_, stop, running) = spawn(h.worker().with_breakpoint(barrier.breakpoint()));
    barrier.reached().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    barrier.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    stop.cancel();
    running.await.unwrap();
    assert_in_step(&h, &next.context).await;
    assert_in_step(&h, &h.context).await;
}

#[tokio::test]
async fn a_change_between_the_registration_and_the_enqueueing_is_seen() {
    let h = Harness::start().await;
    let note = h.insert("first words").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    // As a reindex that died before it came to put every note into the outbox.
    let spec = registry::spec(&next.context.stores, &next.context.version);
    h.context
        .stores
        .index
        .create_collection("notes__7", &spec)
        .await
        .unwrap();
    let store = &h.context.stores.store;
    store
        .begin_version(&next.context.version, "notes__7", "notes")
        .await
        .unwrap();
    h.edit(note, "second words").await;
    h.insert("another one").await;
    h.drain().await;
    assert_eq!(
        h.count("indexing_outbox where embedding_version is null")
            .await,
        0
    );
    assert_eq!(
        h.count("indexing_outbox").await,
        2,
        "one copy for each change"
    );
    next.run(Then::Wait).await.unwrap();
    assert_in_step(&h, &next.context).await;
    assert_in_step(&h, &h.context).await;
}

#[tokio::test]
async fn many_rows_of_a_note_are_one_copy() {
    let h = Harness::start().await;
    let note = h.insert("hot").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    sqlx::query("insert into indexing_outbox (note_id) select $1 from generate_series(1, 500)")
        .bind(note)
        .execute(&h.pool)
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    next.drain().await;
    assert_in_step(&h, &next.context).await;
}

#[tokio::test]
async fn a_change_of_the_overlap_embeds_only_texts_never_seen() {
    let h = Harness::start().await;
    for i in 0..6 {
        h.insert(&sentences(1 + 3 * i, &format!("topic {i}"))).await;
    }
    h.drain().await;
    let paid: BTreeSet<String> = h.provider.texts_seen().into_iter().collect();
    let requests = h.provider.texts_seen().len();

    let next = beside(&h, |config| config.chunking.overlap_tokens = 0).await;
    let counts = elf::registry::Progress::default();
    let WorkerContext {
        stores: IndexContext { store, .. },
        chunker,
        version,
        ..
    } = &next.context;
    let estimate = reindex::estimate(store, chunker, version, &counts)
        .await
        .unwrap();
    assert_eq!(next.state().await, None, "an estimate registers nothing");
    let report = next.run(Then::Wait).await.unwrap();
    assert_in_step(&h, &next.context).await;

    let new = h.provider.texts_seen()[requests..].to_vec();
    assert!(!new.is_empty() && report.work.reused > 0, "{report:?}");
    for text in &new {
        assert!(!paid.contains(text), "{text:?} was paid for before");
    }
    assert_eq!(new.iter().collect::<BTreeSet<_>>().len(), new.len());
    assert_eq!(report.work.embedded, new.len() as u64);
    assert_eq!(
        (
            estimate.notes,
            estimate.chunks,
            estimate.known,
            estimate.to_embed,
            estimate.tokens
        ),
        (
            6,
            report.work.chunks,
            report.work.reused,
            report.work.embedded,
            report.work.tokens
        )
    );
    assert!(report.work.tokens > report.work.embedded);
}

#[tokio::test]
async fn versions_of_different_dimension_live_side_by_side() {
    let h = Harness::start().await;
    h.insert(&sentences(9, "two sizes")).await;
    h.drain().await;
    let larger = EmbeddingServer::start_with_dim(12).await;
    let next = beside(&h, |config| {
        config.providers.embedding.api_base = larger.url().to_owned();
        config.providers.embedding.model = "larger".to_owned();
    })
    .await;
    assert_eq!(
        next.context.version.dim, 12,
        "asked of the new model, not of the old version"
    );
    let report = next.run(Then::Swap).await.unwrap();
    assert_eq!(report.state, Lifecycle::Active);
    assert_eq!(report.work.reused, 0, "vectors of another model are no use");
    assert_in_step(&h, &next.context).await;
    let dims: Vec<i32> =
        sqlx::query_scalar("select distinct embedding_dim from note_chunk_embeddings order by 1")
            .fetch_all(&h.pool)
            .await
            .unwrap();
    assert_eq!(dims, [8, 12]);
    // The dimension is registered now: ELF need not ask the provider.
    let asked = larger.requests();
    let again = beside(&h, |config| config.clone_from(&next.config)).await;
    assert_eq!((again.context.version.dim, larger.requests()), (12, asked));
}

#[tokio::test]
async fn an_answer_of_another_dimension_is_a_configuration_error_and_writes_no_point() {
    let h = Harness::start().await;
    for i in 0..5 {
        h.insert(&format!("note {i}")).await;
    }
    h.drain().await;
    let next = beside(&h, |config| {
        config.providers.embedding.model = "fickle".into()
    })
    .await;
    h.provider.always(Behaviour::WrongDimension);
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Embed(EmbedError::Config { reason }) if reason.contains("9 dimensions where 8")),
        "{error:?}"
    );
    assert_eq!(
        points_in(&next.context, &collection_of(&next.context).await)
            .await
            .len(),
        0
    );
    assert_eq!(h.count("indexing_outbox where attempts > 0").await, 0);
    assert_eq!(state_of(&h.context).await, Some(Lifecycle::Active));

    h.provider.heal();
    let again = beside(&h, |config| config.clone_from(&next.config)).await;
    again.run(Then::Swap).await.unwrap();
    assert_in_step(&h, &again.context).await;
}

#[tokio::test]
async fn killed_at_any_stage_a_reindex_resumes() {
    for stage in [
        Stage::Claimed,
        Stage::Embedded,
        Stage::Committed,
        Stage::Upserted,
        Stage::Pruned,
        Stage::Acked,
    ] {
        let h = Harness::start().await;
        for i in 0..20 {
            h.insert(&sentences(1 + i % 4, &format!("number {i}")))
                .await;
        }
        h.drain().await;
        let next = smaller_chunks(&h).await;
        let barrier = Barrier::at(stage);
        let worker = next.worker().with_breakpoint(barrier.breakpoint());
        tokio::select! {
            _ = next.run_with(&worker, Then::Wait) => panic!("{stage:?}: it was to stand still"),
            () = barrier.reached() => {}
        }
        let again = beside(&h, |config| config.clone_from(&next.config)).await;
        expire_leases_and_job(&h.pool).await;
        let report = again.run(Then::Swap).await.unwrap();
        assert_eq!(report.state, Lifecycle::Active, "{stage:?}");
        assert_in_step(&h, &again.context).await;
        assert_eq!(alias_of(&h).await, collection_of(&again.context).await);

        // The stopped worker was not killed after all, and resumes.
        drop(worker);
        barrier.open();
        eventually(async || Arc::strong_count(&h.context.stores.index) == 3).await;
        again.drain().await;
        assert_in_step(&h, &again.context).await;
    }
}

#[tokio::test]
async fn killed_between_any_two_steps_the_same_command_finishes_the_job() {
    let h = Harness::start().await;
    h.insert(&sentences(5, "steps")).await;
    h.drain().await;
    let old = collection_of(&h.context).await;
    let next = smaller_chunks(&h).await;

    // Killed after the engine made the collection and before Postgres knows it: ELF uses it.
    let spec = registry::spec(&next.context.stores, &next.context.version);
    h.context
        .stores
        .index
        .create_collection("notes__2", &spec)
        .await
        .unwrap();
    next.run(Then::Wait).await.unwrap();
    assert_eq!(collection_of(&next.context).await, "notes__2");

    // Killed after Postgres has swapped and before the alias has.
    let store = &h.context.stores.store;
    let name = &next.context.version.name;
    assert!(
        store
            .serve_version(name, Lifecycle::Building)
            .await
            .unwrap()
    );
    assert_eq!(alias_of(&h).await, old);
    next.run(Then::Swap).await.unwrap();
    assert_eq!(alias_of(&h).await, "notes__2");

    // The same on the way back: it is finished, and not undone.
    let old_version = &h.context.version.name;
    assert!(
        store
            .serve_version(old_version, Lifecycle::Retired)
            .await
            .unwrap()
    );
    let done = reindex::rollback(&h.context.stores).await.unwrap();
    assert_eq!((&done.version, done.retired), (old_version, None));
    assert_eq!(alias_of(&h).await, old);
    h.drain().await;
    assert_in_step(&h, &h.context).await;
}

#[tokio::test]
async fn a_rollback_brings_the_old_answers_back() {
    let h = Harness::start().await;
    let edited = h.insert(&sentences(6, "what will change")).await;
    let deleted = h.insert("what will go").await;
    h.insert("what stays").await;
    h.drain().await;
    let before = points_in(&h.context, &h.context.stores.alias).await;
    let paid = h.provider.texts_seen().len();
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    assert_eq!(alias_of(&h).await, collection_of(&next.context).await);
    assert!(h.provider.texts_seen().len() > paid);

    h.edit(edited, "changed meanwhile").await;
    h.delete(deleted).await;
    next.drain().await;
    assert_in_step(&h, &next.context).await;
    assert_eq!(
        points_in(&h.context, &collection_of(&h.context).await).await,
        before,
        "what is retired is frozen"
    );

    let done = reindex::rollback(&h.context.stores).await.unwrap();
    assert_eq!(done.version, h.context.version.name);
    assert_eq!(done.retired.as_ref(), Some(&next.context.version.name));
    assert_eq!(done.due, 3, "two notes, and one that is gone");
    let changed: Vec<_> = done
        .settings
        .iter()
        .map(|c| (c.key.as_str(), &c.to))
        .collect();
    assert_eq!(changed, [("chunking.max_tokens", &32.into())]);
    assert_eq!(
        points_in(&h.context, &h.context.stores.alias).await,
        before,
        "at once"
    );

    h.drain().await;
    assert_in_step(&h, &h.context).await;
    assert_eq!(h.points_of(deleted).await, 0);
    let again = reindex::rollback(&h.context.stores).await.unwrap();
    assert_eq!(
        again.version, next.context.version.name,
        "and forward again"
    );
}

#[tokio::test]
async fn a_daemon_whose_version_is_retired_says_so_and_resumes_after_a_rollback() {
    let h = Harness::start().await;
    h.insert("as it was").await;
    h.drain().await;
    let (old, stop, running) = spawn(h.worker());
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    eventually(async || {
        old.outage()
            .is_some_and(|o| o.reason.contains("is retired"))
    })
    .await;
    let note = h.insert("written for the new version").await;
    next.drain().await;
    assert_in_step(&h, &next.context).await;
    assert_eq!(
        h.count("note_index_state where lease_until is not null")
            .await,
        0
    );

    reindex::rollback(&h.context.stores).await.unwrap();
    eventually(async || old.outage().is_none() && h.points_of(note).await == 1).await;
    eventually(async || {
        let left = h
            .context
            .stores
            .store
            .outbox_counts(Some(&h.context.version.name))
            .await
            .unwrap();
        left.pending + left.leased + left.failed == 0
    })
    .await;
    stop.cancel();
    running.await.unwrap();
    assert_in_step(&h, &h.context).await;
}

#[tokio::test]
async fn a_swap_is_refused_while_notes_are_dead_lettered() {
    let h = Harness::start().await;
    let note = h
        .insert(&format!("{} arsenic", sentences(4, "good things")))
        .await;
    h.insert("wholesome").await;
    h.drain().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let next = beside(&h, |config| {
        config.providers.embedding.model = "picky".into()
    })
    .await;
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(matches!(error, ReindexError::DeadLetters(1)), "{error:?}");
    assert_eq!(next.state().await, Some(Lifecycle::Building));
    assert_eq!(alias_of(&h).await, collection_of(&h.context).await);

    // An operator who purges the dead letter decides to swap without the note.
    h.context
        .stores
        .store
        .purge_dead(Some(&[note]))
        .await
        .unwrap();
    next.run(Then::Swap).await.unwrap();
    assert_eq!(next.state().await, Some(Lifecycle::Active));
    assert_eq!(h.points_of(note).await, 0);
    h.provider.heal();
    h.edit(note, "sugar").await;
    next.drain().await;
    assert_in_step(&h, &next.context).await;
}

#[tokio::test]
async fn a_swap_is_refused_on_drift() {
    let h = Harness::start().await;
    let note = h.insert("soon to be missing").await;
    h.insert("another").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    let collection = collection_of(&next.context).await;
    let of_note = Filter {
        note_ids: Some(vec![note]),
        ..Filter::default()
    };
    h.context
        .stores
        .index
        .delete(&collection, &of_note)
        .await
        .unwrap();
    let error = next.run(Then::Swap).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Drift(found) if found.missing == 1),
        "{error:?}"
    );
    assert_eq!(next.state().await, Some(Lifecycle::Building));
    assert_eq!(alias_of(&h).await, collection_of(&h.context).await);
}

#[tokio::test]
async fn a_drop_frees_all_that_is_not_served_and_nothing_else() {
    let h = Harness::start().await;
    for i in 0..10 {
        h.insert(&sentences(3, &format!("to be freed {i}"))).await;
    }
    h.drain().await;
    let old = (
        h.context.version.name.clone(),
        collection_of(&h.context).await,
    );
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let name = next.context.version.name.clone();
    let refused = reindex::drop(&h.context.stores, Some(&name))
        .await
        .unwrap_err();
    assert!(matches!(refused, ReindexError::Refused(_)), "{refused:?}");

    // A drop that died halfway: no rollback to the rest of that version.
    assert!(
        h.context
            .stores
            .store
            .retire_for_good(&old.0)
            .await
            .unwrap()
    );
    let refused = reindex::rollback(&h.context.stores).await.unwrap_err();
    assert!(refused.to_string().contains("is gone"), "{refused}");

    let dropped = reindex::drop(&h.context.stores, None).await.unwrap();
    assert_eq!(dropped.len(), 1);
    assert_eq!(
        (&dropped[0].version, &dropped[0].collections),
        (&old.0, &vec![old.1.clone()])
    );
    assert!(dropped[0].chunks > 10);
    assert!(
        h.context
            .stores
            .index
            .collection(&old.1)
            .await
            .unwrap()
            .is_none()
    );
    for table in [
        "memory_note_chunks",
        "note_chunk_embeddings",
        "note_embeddings",
        "note_index_state",
        "indexing_outbox",
        "index_versions",
        "index_collections",
    ] {
        let of_old = format!("{table} where embedding_version = '{}'", old.0);
        assert_eq!(h.count(&of_old).await, 0, "{table}");
    }
    assert_in_step(&h, &next.context).await;
    assert_eq!(reindex::drop(&h.context.stores, None).await.unwrap(), []);
    let refused = reindex::rollback(&h.context.stores).await.unwrap_err();
    assert!(
        refused.to_string().contains("nothing to roll back to"),
        "{refused}"
    );

    // A worker of the old version that still runs finds nothing and writes nothing.
    h.insert("for the new one only").await;
    let error = registry::ensure_ready(&h.context.stores, &h.context.version)
        .await
        .unwrap_err();
    assert!(matches!(error, SetupError::Mismatch(_)), "{error:?}");
    let store = &h.context.stores.store;
    let claim = store
        .claim(
            &old.0,
            "late",
            h.config.worker.lease(),
            16,
            1 << 20,
            elf::store::ClaimScope::ALL,
        )
        .await;
    assert!(claim.unwrap().is_none());
    store.requeue(&old.0, &[Uuid::new_v4()]).await.unwrap();
    next.drain().await;
    assert_in_step(&h, &next.context).await;
}

#[tokio::test]
async fn a_retired_version_can_be_built_again_from_where_it_stood() {
    let h = Harness::start().await;
    let note = h.insert(&sentences(5, "to and fro")).await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    h.edit(note, &sentences(6, "to and fro")).await;
    next.drain().await;
    let paid = h.provider.texts_seen().len();

    let back = beside(&h, |_| {}).await;
    assert_eq!(back.state().await, Some(Lifecycle::Retired));
    let report = back.run(Then::Swap).await.unwrap();
    assert_eq!(report.state, Lifecycle::Active);
    assert!(report.work.reused > 0);
    assert!(
        h.provider.texts_seen().len() <= paid + 2,
        "only what is new"
    );
    assert_in_step(&h, &back.context).await;
    assert_eq!(next.state().await, Some(Lifecycle::Retired));
}

#[tokio::test]
async fn a_refused_reindex_leaves_the_rollback_possible() {
    let h = Harness::start().await;
    h.insert("to and fro").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();

    let mut back = beside(&h, |_| {}).await;
    back.context.stores.bm25.language = "german".into();
    let refused = back.run(Then::Wait).await.unwrap_err();
    assert!(
        refused.to_string().contains("elf reindex drop"),
        "{refused}"
    );
    assert_eq!(back.state().await, Some(Lifecycle::Retired));
    assert_eq!(h.count("indexing_outbox").await, 0, "nothing was written");
    reindex::rollback(&h.context.stores).await.unwrap();
    assert_eq!(back.state().await, Some(Lifecycle::Active));
}

#[tokio::test]
async fn an_alias_elsewhere_is_pointed_back_or_refused() {
    let h = Harness::start().await;
    h.insert("here").await;
    h.drain().await;
    let own = alias_of(&h).await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    let index = &h.context.stores.index;
    let theirs = collection_of(&next.context).await;
    index
        .point_alias(&h.context.stores.alias, &theirs)
        .await
        .unwrap();
    registry::ensure_ready(&next.context.stores, &next.context.version)
        .await
        .unwrap();
    assert_eq!(
        alias_of(&h).await,
        theirs,
        "not for a version that is not served to say"
    );
    registry::ensure_ready(&h.context.stores, &h.context.version)
        .await
        .unwrap();
    assert_eq!(alias_of(&h).await, own);

    index
        .create_collection(
            "foreign",
            &registry::spec(&h.context.stores, &h.context.version),
        )
        .await
        .unwrap();
    index
        .point_alias(&h.context.stores.alias, "foreign")
        .await
        .unwrap();
    let error = registry::ensure_ready(&h.context.stores, &h.context.version)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, SetupError::Mismatch(m) if m.contains("foreign")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_rebuild_whose_collection_is_lost_blocks_no_worker() {
    let h = Harness::start().await;
    h.insert("written to one").await;
    h.drain().await;
    let store = &h.context.stores.store;
    let WorkerContext {
        stores: IndexContext { alias, .. },
        version,
        ..
    } = &h.context;
    // As after a rebuild whose collection was lost: registered, and not in the engine.
    store
        .begin_rebuild("notes__9", alias, &version.name, &[], &[])
        .await
        .unwrap();
    let (worker, stop, running) = spawn(h.worker());
    h.insert("meets it").await;
    eventually(async || h.count("indexing_outbox").await == 0).await;
    assert!(worker.outage().is_none());
    stop.cancel();
    running.await.unwrap();
    assert_eq!(h.count("index_collections").await, 1);
    h.assert_converged().await;
}

/// Its rows were committed while it was a target, and are written when it is none.
#[tokio::test]
async fn a_collection_deleted_between_commit_and_write_is_no_outage() {
    let h = Harness::start().await;
    let store = &h.context.stores.store;
    let WorkerContext {
        stores: IndexContext { alias, index, .. },
        version,
        ..
    } = &h.context;
    index
        .create_collection(
            "notes__9",
            &registry::spec(&h.context.stores, &h.context.version),
        )
        .await
        .unwrap();
    store
        .begin_rebuild("notes__9", alias, &version.name, &[], &[])
        .await
        .unwrap();
    h.insert("written to two").await;
    let barrier = Barrier::at(Stage::Committed);
    let (worker, stop, running) = spawn(h.worker().with_breakpoint(barrier.breakpoint()));
    barrier.reached().await;
    store.forget_collection("notes__9").await.unwrap();
    index.drop_collection("notes__9").await.unwrap();
    let token: i64 = sqlx::query_scalar("select lease_token from note_index_state")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    barrier.open();
    eventually(async || h.count("indexing_outbox").await == 0).await;
    assert!(worker.outage().is_none());
    stop.cancel();
    running.await.unwrap();
    h.assert_converged().await;
    let revision: i64 = sqlx::query_scalar("select revision from note_index_state")
        .fetch_one(&h.pool)
        .await
        .unwrap();
    assert_eq!(revision, token, "at the first try");
}

#[tokio::test]
async fn one_job_at_a_time() {
    let h = Harness::start().await;
    h.insert("busy").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    let job = Job::take(
        &h.context.stores.store,
        "rebuild",
        "notes__2",
        Arc::default(),
    )
    .await
    .unwrap();
    let error = next.run(Then::Wait).await.unwrap_err();
    assert!(
        matches!(&error, ReindexError::Job(JobError::Running(other)) if other.kind == "rebuild"),
        "{error:?}"
    );
    assert_eq!(next.state().await, None, "nothing was begun");
    job.end().await;
    next.run(Then::Wait).await.unwrap();
}

#[tokio::test]
async fn a_reindex_to_the_served_version_has_nothing_to_do() {
    let h = Harness::start().await;
    h.insert("content").await;
    h.drain().await;
    let same = beside(&h, |_| {}).await;
    let report = same.run(Then::Swap).await.unwrap();
    assert_eq!((report.state, report.work.notes), (Lifecycle::Active, 0));
    assert_eq!(h.count("index_versions").await, 1);
}

#[tokio::test]
async fn dead_letters_without_a_version_stay_with_the_one_they_died_under() {
    let h = Harness::start().await;
    h.provider.poison("arsenic", Behaviour::Status(400));
    let note = h.insert("arsenic").await;
    h.drain_with_retries().await;
    h.insert("sugar").await;
    h.drain().await;
    h.provider.heal();
    let next = smaller_chunks(&h).await;
    next.run(Then::Swap).await.unwrap();
    let counts = h
        .context
        .stores
        .store
        .outbox_counts(Some(&next.context.version.name))
        .await
        .unwrap();
    assert_eq!(counts.dead, 0, "it was indexed under the new version");
    assert_eq!(h.points_of(note).await, 1);
    reindex::drop(&h.context.stores, None).await.unwrap();
    assert_eq!(h.count("indexing_outbox").await, 0);
}

#[tokio::test]
async fn an_enqueued_note_is_due_for_both() {
    let h = Harness::start().await;
    let note = h.insert("again").await;
    h.drain().await;
    let next = smaller_chunks(&h).await;
    next.run(Then::Wait).await.unwrap();
    h.context
        .stores
        .store
        .enqueue(&Selection::default())
        .await
        .unwrap();
    h.drain().await;
    assert_eq!(h.count("indexing_outbox").await, 1);
    next.drain().await;
    let states: i64 =
        sqlx::query_scalar("select count(*) from note_index_state where note_id = $1")
            .bind(note)
            .fetch_one(&h.pool)
            .await
            .unwrap();
    assert_eq!(states, 2);
    assert_in_step(&h, &next.context).await;
}

/// A folder whose notes are indexed, and whose `elf.toml` then asks for other chunks.
async fn changed_configuration() -> Folder {
    let site = Folder::start().await;
    let mut database = site.connect().await;
    for i in 0..8 {
        sqlx::query(
            "insert into memory_notes (tenant_id, project_id, agent_id, scope, type, text)
             values ('t', 'p', 'a', 's', 'n', $1)",
        )
        .bind(sentences(1 + i, &format!("chapter {i}")))
        .execute(&mut database)
        .await
        .unwrap();
    }
    site.elf(&["worker", "--once"]).await.exits(0);
    site.configure("max_tokens = 32", "max_tokens = 24");
    site.configure(
        "model = \"test\"",
        "model = \"test\"\nusd_per_million_tokens = 100",
    );
    site
}

async fn count(site: &Folder, from: &str) -> i64 {
    let statement = format!("select count(*) from {from}");
    sqlx::query_scalar(sqlx::AssertSqlSafe(statement))
        .fetch_one(&mut site.connect().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_change_of_the_chunking_is_reindexed_on_the_command_line() {
    let site = changed_configuration().await;
    for command in [&["worker", "--once"][..], &["search", "chapter"]] {
        let done = site.elf(command).await.exits(78);
        let done = done.says(&["chunking.max_tokens", "24", "32", "elf reindex"]);
        assert!(!done.stderr.contains("in this version"), "{}", done.stderr);
    }

    let estimate = site.json(&["reindex", "--dry-run"]).await;
    assert_eq!(count(&site, "index_versions").await, 1);
    assert_eq!(estimate["notes"], 8);
    let built = site.json(&["reindex"]).await;
    for (key, of_estimate) in [
        ("chunks", "chunks"),
        ("reused", "known"),
        ("embedded", "to_embed"),
    ] {
        assert_eq!(
            built[key], estimate[of_estimate],
            "{key}: {built} {estimate}"
        );
    }
    for key in ["version", "tokens", "estimated_cost_usd"] {
        assert_eq!(built[key], estimate[key], "{key}: {built} {estimate}");
    }
    let tokens = built["tokens"].as_f64().unwrap();
    let cost = built["estimated_cost_usd"].as_f64().unwrap();
    assert!(
        tokens > 0.0 && (cost - tokens / 1e4).abs() < 1e-9,
        "{built}"
    );
    assert_eq!(built["state"], "building");

    // Workers may help, searches may not see it yet.
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["search", "chapter"])
        .await
        .exits(78)
        .says(&["elf reindex --swap"]);
    let swapped = site.json(&["reindex", "--swap"]).await;
    assert_eq!(
        (&swapped["state"], &swapped["embedded"]),
        (&"active".into(), &0.into())
    );
    assert_eq!(swapped["verified"]["missing"], 0);
    site.elf(&["search", "chapter"]).await.exits(0);
    let again = site.json(&["reindex", "--swap"]).await;
    assert_eq!(
        (&again["state"], &again["verified"]),
        (&"active".into(), &serde_json::Value::Null)
    );

    site.configure("max_tokens = 24", "max_tokens = 32");
    site.elf(&["worker", "--once"])
        .await
        .exits(78)
        .says(&["retired", "elf reindex"]);
    let back = site.json(&["reindex", "rollback"]).await;
    assert_eq!(
        (&back["retired"], &back["due"]),
        (&swapped["version"], &8.into())
    );
    assert_eq!(back["settings"][0]["key"], "chunking.max_tokens");
    assert_eq!(back["settings"][0]["to"], 32);
    site.elf(&["worker", "--once"]).await.exits(0);
    site.elf(&["search", "chapter"]).await.exits(0);
    let dropped = site.json(&["reindex", "drop"]).await;
    assert_eq!(dropped["dropped"][0]["version"], swapped["version"]);
    assert_eq!(
        site.json(&["reindex", "drop"]).await["dropped"],
        serde_json::json!([])
    );
    site.elf(&["reindex", "rollback"])
        .await
        .exits(1)
        .says(&["nothing to roll back to"]);
    assert_eq!(site.json(&["reindex"]).await["version"], back["version"]);
    site.elf(&["reindex", "--dry-run", "--swap"]).await.exits(2);
}

#[tokio::test]
async fn drift_ends_a_swap_with_code_3() {
    let site = changed_configuration().await;
    let built = site.json(&["reindex"]).await;
    sqlx::query("delete from note_embeddings where embedding_version = $1")
        .bind(built["version"].as_str().unwrap())
        .execute(&mut site.connect().await)
        .await
        .unwrap();
    let done = site.elf(&["reindex", "--swap", "--verbose"]).await.exits(3);
    done.says(&["inconsistent", "no pooled vector"]);
    assert_eq!(
        count(&site, "index_versions where state = 'building'").await,
        1
    );
}

#[tokio::test]
async fn a_reindex_that_is_killed_pays_for_no_text_twice() {
    let site = changed_configuration().await;
    site.configure(
        "timeout_ms = 2000",
        "timeout_ms = 2000\nmax_batch_inputs = 2\nconcurrency = 1",
    );
    site.configure("batch_notes = 16", "batch_notes = 1");
    let before = site.provider.texts_seen().len();
    let requests = site.provider.requests();
    let mut killed = elf(site.folder.path())
        .arg("reindex")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The probe, and then a few requests of the reindex.
    site.provider.arrived(requests + 4).await;
    killed.kill().await.unwrap();
    expire_leases_and_job(&mut site.connect().await).await;
    site.json(&["reindex", "--swap"]).await;
    let paid = site.provider.texts_seen()[before..].to_vec();
    let texts: BTreeSet<&String> = paid.iter().collect();
    // Texts in flight at the kill are paid for again: two notes at most.
    assert!(
        paid.len() <= texts.len() + 8,
        "{} for {}",
        paid.len(),
        texts.len()
    );
    assert_eq!(count(&site, "indexing_outbox").await, 0);
    site.elf(&["verify", "--deep"]).await.exits(0);
}
