//! Compares Postgres with the index without ELF's code: SQL of its own, Qdrant's REST API,
//! and vectors that are computed from the present text of each note.

use std::collections::{BTreeMap, HashMap, HashSet};

use chrono::{DateTime, Utc};
use elf::index::{Filter, VectorIndex};
use serde_json::{Map, Value, json};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::embedding_server::vector_of;
use super::harness::{Harness, sentences};

/// Points in one request.
const PAGE: usize = 1_000;

/// A point as an application would read it.
pub struct Point {
    pub id: Uuid,
    pub payload: Map<String, Value>,
    /// Of length 1.
    pub dense: Vec<f32>,
}

impl Point {
    fn number(&self, field: &str) -> Option<usize> {
        Some(self.payload.get(field)?.as_u64()? as usize)
    }

    fn note_id(&self) -> Option<Uuid> {
        self.payload.get("note_id")?.as_str()?.parse().ok()
    }
}

/// All points behind `alias`, over Qdrant's REST API.
pub async fn points_over_rest(url: &str, alias: &str) -> Vec<Point> {
    let client = reqwest::Client::new();
    let mut points = Vec::new();
    let mut offset = Value::Null;
    loop {
        let page: Value = client
            .post(format!("{url}/collections/{alias}/points/scroll"))
            .json(&json!({
                "limit": PAGE, "offset": offset, "with_payload": true, "with_vector": ["dense"],
            }))
            .send()
            .await
            .unwrap()
            .error_for_status()
            .unwrap()
            .json()
            .await
            .unwrap();
        for point in page["result"]["points"].as_array().unwrap() {
            points.push(Point {
                id: point["id"].as_str().unwrap().parse().unwrap(),
                payload: point["payload"].as_object().unwrap().clone(),
                dense: serde_json::from_value(point["vector"]["dense"].clone()).unwrap(),
            });
        }
        offset = page["result"]["next_page_offset"].clone();
        if offset.is_null() {
            return points;
        }
    }
}

/// The same of the engine in this process, which has no API of its own.
pub async fn points_of_engine(index: &dyn VectorIndex, alias: &str) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    loop {
        let after = points.last().map(|point| point.id);
        let page = index.scroll(alias, after, PAGE, true).await.unwrap();
        let is_last = page.len() < PAGE;
        points.extend(page.into_iter().map(|point| Point {
            id: point.chunk_id,
            payload: point.payload,
            dense: point.vector.unwrap(),
        }));
        if is_last {
            return points;
        }
    }
}

/// The differences between the index and the notes.
#[derive(Debug, Default, PartialEq)]
pub struct Differences {
    /// Text of a live note that no point covers, or a chunk without its point.
    pub lost: Vec<String>,
    /// Points that differ from their note as it is now.
    pub stale: Vec<String>,
    /// Points whose note is not live, or which have no chunk.
    pub orphaned: Vec<String>,
    /// Points with other labels than their note's.
    pub mislabelled: Vec<String>,
    /// Notes that were dead-lettered.
    pub dead: Vec<Uuid>,
    /// How many live notes and points were compared.
    pub notes: usize,
    pub points: usize,
}

impl Differences {
    /// Fails unless the index is exact and exactly the notes in `dead` are dead-lettered.
    #[track_caller]
    pub fn assert_none_but_dead(&self, dead: &[Uuid]) {
        let kinds = [
            ("lost", &self.lost),
            ("stale", &self.stale),
            ("orphaned", &self.orphaned),
            ("mislabelled", &self.mislabelled),
        ];
        for (kind, found) in kinds {
            let some: Vec<&String> = found.iter().take(5).collect();
            assert!(found.is_empty(), "{} {kind}: {some:#?}", found.len());
        }
        assert_eq!(self.dead, dead, "wrongly dead, or wrongly not");
        println!("compared {} live notes, {} points", self.notes, self.points);
    }

    /// Fails unless the index is exact.
    #[track_caller]
    pub fn assert_none(&self) {
        self.assert_none_but_dead(&[]);
    }
}

#[derive(sqlx::FromRow)]
struct Note {
    note_id: Uuid,
    text: String,
    tenant_id: String,
    project_id: String,
    agent_id: String,
    scope: String,
    kind: String,
    key: Option<String>,
    status: String,
    importance: f32,
    confidence: f32,
    updated_at: DateTime<Utc>,
    expires_at: Option<DateTime<Utc>>,
    is_live: bool,
}

/// Compares `points` with the database at `url`. Dead letters' notes are left out: they
/// keep the points that they had.
pub async fn compare(url: &str, points: &[Point]) -> Differences {
    let mut db = PgConnection::connect(url).await.unwrap();
    let dead: Vec<Uuid> = sqlx::query_scalar(
        "select distinct note_id from indexing_outbox where status = 'DEAD' order by note_id",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    let notes: Vec<Note> = sqlx::query_as(
        "select note_id, text, tenant_id, project_id, agent_id, scope, type as kind, key, status,
                importance, confidence, updated_at, expires_at,
                status = 'active' and coalesce(expires_at > now(), true) as is_live
           from memory_notes",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    let chunks: Vec<(Uuid, Uuid, i64)> = sqlx::query_as(
        "select c.chunk_id, c.note_id, s.revision
           from memory_note_chunks c
           join note_index_state s
                 on (s.note_id, s.embedding_version) = (c.note_id, c.embedding_version)
           join index_versions v on v.embedding_version = c.embedding_version
          where v.state = 'active'",
    )
    .fetch_all(&mut db)
    .await
    .unwrap();
    let mut found = Differences {
        points: points.len(),
        dead,
        ..Differences::default()
    };
    let notes: HashMap<Uuid, Note> = notes.into_iter().map(|n| (n.note_id, n)).collect();
    let chunks: HashMap<Uuid, (Uuid, i64)> =
        chunks.into_iter().map(|(c, n, r)| (c, (n, r))).collect();
    found.look_at_points(points, &notes, &chunks);
    found.look_for_lost(points, &notes, &chunks);
    found
}

impl Differences {
    fn look_at_points(
        &mut self,
        points: &[Point],
        notes: &HashMap<Uuid, Note>,
        chunks: &HashMap<Uuid, (Uuid, i64)>,
    ) {
        for point in points {
            let name = format!("{} {}", point.id, Value::from(point.payload.clone()));
            let note = point.note_id().and_then(|note| notes.get(&note));
            let Some(note) = note.filter(|note| note.is_live) else {
                let is_dead = point
                    .note_id()
                    .is_some_and(|note| self.dead.contains(&note));
                if !is_dead {
                    self.orphaned.push(name);
                }
                continue;
            };
            if self.dead.contains(&note.note_id) {
                continue;
            }
            let (says, labels) = (note.what_differs(point), note.labels_that_differ(point));
            if let Some(what) = says {
                self.stale.push(format!("{what}: {name}"));
            }
            if !labels.is_empty() {
                self.mislabelled.push(format!("{labels:?}: {name}"));
            }
            match chunks.get(&point.id) {
                None => self.orphaned.push(format!("no chunk: {name}")),
                Some((_, revision)) if point.payload["revision"] != json!(revision) => {
                    self.stale.push(format!("revision is {revision}: {name}"));
                }
                Some(_) => {}
            }
        }
    }

    fn look_for_lost(
        &mut self,
        points: &[Point],
        notes: &HashMap<Uuid, Note>,
        chunks: &HashMap<Uuid, (Uuid, i64)>,
    ) {
        let mut slices: BTreeMap<Uuid, Vec<(usize, usize, usize)>> = BTreeMap::new();
        for point in points {
            let slice = (|| {
                let index = point.number("chunk_index")?;
                let (start, end) = (point.number("start_offset")?, point.number("end_offset")?);
                Some((point.note_id()?, (index, start, end)))
            })();
            if let Some((note, slice)) = slice {
                slices.entry(note).or_default().push(slice);
            }
        }
        let live = notes
            .values()
            .filter(|n| n.is_live && !self.dead.contains(&n.note_id));
        for note in live {
            self.notes += 1;
            let mut slices = slices.remove(&note.note_id).unwrap_or_default();
            slices.sort_unstable();
            if let Some(gap) = first_gap(&note.text, &slices) {
                let id = note.note_id;
                self.lost
                    .push(format!("{id}: from byte {gap} of {}", note.text.len()));
            }
        }
        let ids: HashSet<Uuid> = points.iter().map(|point| point.id).collect();
        for (chunk, (note, _)) in chunks {
            let is_live = notes.get(note).is_some_and(|note| note.is_live);
            if is_live && !self.dead.contains(note) && !ids.contains(chunk) {
                self.lost
                    .push(format!("chunk {chunk} of {note} has no point"));
            }
        }
    }
}

impl Note {
    /// How a point differs from what the note says now.
    fn what_differs(&self, point: &Point) -> Option<&'static str> {
        if point.payload.contains_key("text") {
            return Some("the payload has the text");
        }
        let (start, end) = (point.number("start_offset")?, point.number("end_offset")?);
        let Some(slice) = self.text.get(start..end) else {
            return Some("the note has no such slice");
        };
        let expected = vector_of(slice, point.dense.len());
        let cosine: f32 = expected.iter().zip(&point.dense).map(|(a, b)| a * b).sum();
        (cosine < 0.999).then_some("the vector is another text's")
    }

    fn labels_that_differ(&self, point: &Point) -> Vec<&'static str> {
        let of = |field: &str| point.payload.get(field);
        let text = |field: &str| of(field).and_then(Value::as_str);
        let number = |field: &str| of(field).and_then(Value::as_f64).map(|x| x as f32);
        let time = |field: &str| text(field).and_then(|t| t.parse::<DateTime<Utc>>().ok());
        let same = [
            ("tenant_id", text("tenant_id") == Some(&self.tenant_id)),
            ("project_id", text("project_id") == Some(&self.project_id)),
            ("agent_id", text("agent_id") == Some(&self.agent_id)),
            ("scope", text("scope") == Some(&self.scope)),
            ("type", text("type") == Some(&self.kind)),
            ("key", text("key") == self.key.as_deref()),
            ("status", text("status") == Some(&self.status)),
            ("importance", number("importance") == Some(self.importance)),
            ("confidence", number("confidence") == Some(self.confidence)),
            ("updated_at", time("updated_at") == Some(self.updated_at)),
            ("expires_at", time("expires_at") == self.expires_at),
        ];
        same.into_iter()
            .filter_map(|(field, is_same)| (!is_same).then_some(field))
            .collect()
    }
}

/// The first byte that is no whitespace and in no slice; `slices` are (index, start, end)
/// in their order. Indexes that are not 0, 1, 2 … are a gap too.
fn first_gap(text: &str, slices: &[(usize, usize, usize)]) -> Option<usize> {
    let mut upto = 0;
    for (position, (index, start, end)) in slices.iter().enumerate() {
        let between = text.get(upto..(*start).max(upto))?;
        if position != *index || !between.trim().is_empty() {
            return Some(upto);
        }
        upto = upto.max(*end);
    }
    let rest = text.get(upto..).unwrap_or_default();
    (!rest.trim().is_empty()).then_some(upto)
}

/// The comparison reports every kind of difference. No worker runs that could repair one.
#[tokio::test]
async fn the_comparison_finds_each_kind_of_difference() {
    let h = Harness::start().await;
    let mut notes = Vec::new();
    for about in [
        "lost",
        "stale",
        "orphaned",
        "mislabelled",
        "unindexed",
        "dead",
    ] {
        notes.push(h.insert(&sentences(6, about)).await);
    }
    h.drain().await;
    h.compare().await.assert_none();
    let lost = Filter {
        note_ids: Some(vec![notes[0]]),
        ..Filter::default()
    };
    let index = &h.pipeline.serving.index;
    index
        .delete(&h.pipeline.serving.alias, &lost)
        .await
        .unwrap();
    // The triggers are off, so no outbox row follows.
    let changes = "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
        update memory_notes set text = text || ' And more.' where text like '%stale%';
        delete from memory_notes where text like '%orphaned%';
        update memory_notes set tenant_id = 'another', expires_at = '2999-01-01' where text like '%mislabelled%';
        delete from memory_note_chunks where text like '%unindexed%';
        update memory_notes set text = 'Something else.' where text like '%dead%';
        insert into indexing_outbox (note_id, status) select note_id, 'DEAD' from memory_notes
         where text = 'Something else.';
        commit";
    sqlx::raw_sql(changes).execute(&h.pool).await.unwrap();
    let found = h.compare().await;
    let all_of = |found: &[String], notes: &[Uuid]| {
        let of_one = |line: &String| notes.iter().any(|note| line.contains(&note.to_string()));
        !found.is_empty() && found.iter().all(of_one)
    };
    // A longer text that no point covers is lost; one whose slices moved would be stale.
    assert!(all_of(&found.lost, &notes[..2]), "{:?}", found.lost);
    assert!(
        found
            .lost
            .iter()
            .any(|line| line.contains(&notes[1].to_string()))
    );
    assert!(
        all_of(&found.orphaned, &[notes[2], notes[4]]),
        "{:?}",
        found.orphaned
    );
    assert!(
        all_of(&found.mislabelled, &notes[3..4]),
        "{:?}",
        found.mislabelled
    );
    assert!(
        found.mislabelled[0].contains("tenant_id") && found.mislabelled[0].contains("expires_at")
    );
    assert_eq!(found.dead, notes[5..]);
    assert!(found.stale.is_empty(), "{:?}", found.stale);

    sqlx::raw_sql(
        "begin; alter table memory_notes disable trigger elf_note_replicated; set local session_replication_role = replica;
         update memory_notes set text = 'Q' || substr(text, 2) where text like '%mislabelled%';
         update note_index_state set revision = revision + 1
          where note_id in (select note_id from memory_notes where text like '%stale%');
         commit",
    )
    .execute(&h.pool)
    .await
    .unwrap();
    let stale = h.compare().await.stale;
    assert!(all_of(&stale, &[notes[1], notes[3]]), "{stale:?}");
    for note in [notes[1], notes[3]] {
        assert!(stale.iter().any(|line| line.contains(&note.to_string())));
    }
}

#[test]
fn a_text_that_is_covered_has_no_gap() {
    let text = "one two  three";
    assert_eq!(first_gap(text, &[(0, 0, 7), (1, 4, 14)]), None);
    assert_eq!(
        first_gap(text, &[(0, 0, 7), (1, 9, 14)]),
        None,
        "only a space"
    );
    assert_eq!(
        first_gap(text, &[(0, 0, 7), (2, 9, 14)]),
        Some(7),
        "one is missing"
    );
    assert_eq!(
        first_gap(text, &[(0, 0, 3), (1, 9, 14)]),
        Some(3),
        "two is missing"
    );
    assert_eq!(first_gap(text, &[(0, 0, 7)]), Some(7));
    assert_eq!(first_gap(text, &[]), Some(0));
    assert_eq!(first_gap(" \n", &[]), None);
}
