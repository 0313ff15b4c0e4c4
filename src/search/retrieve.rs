//! Finds candidates: in the index, and without it in Postgres.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

use super::answer::{Degradation, Missing};
use super::{SearchError, Searcher};
use crate::error_class::ErrorClass;
use crate::index::{Answer, Candidate, Filter, IndexError, Query, StoredPoint};
use crate::serving::{self, ServingError};
use crate::shares::Holder;
use crate::store::{PostgresQuery, Scan, StoreError};

const INDEX_TIMEOUT: Duration = Duration::from_secs(5);

/// How long searches do without an index that passed its time limit. Otherwise each would wait.
const INDEX_PAUSE: Duration = Duration::from_secs(5);

/// How long a search waits for its turn to scan Postgres.
const SCAN_WAIT: Duration = Duration::from_secs(10);

impl Searcher {
    /// The candidates of the index. If it does not answer, those of Postgres.
    pub(super) async fn candidates(
        &self,
        query: &Query,
        degraded: &mut Vec<Degradation>,
    ) -> Result<Vec<Candidate>, SearchError> {
        if is_without_index(degraded) {
            return self.candidates_of_postgres(query).await;
        }
        let error = match self.candidates_of_index(query).await {
            Ok(candidates) if !candidates.is_empty() => return Ok(candidates),
            Ok(none) if self.collection.is_some() => return Ok(none),
            Ok(none) => match self.alias_trouble().await {
                Some(trouble) => trouble,
                None => return Ok(none),
            },
            Err(error) if error.class() == ErrorClass::Item => {
                return Err(SearchError::Index(error));
            }
            Err(error) => reason(&error),
        };
        degraded.push(Degradation {
            code: Missing::Index,
            reason: error,
        });
        self.candidates_of_postgres(query).await
    }

    /// What is wrong when Postgres knows none of the candidates of the index.
    pub(super) async fn unknown_index(&self, degraded: &[Degradation]) -> Option<Degradation> {
        if self.collection.is_some() || is_without_index(degraded) {
            return None;
        }
        let reason = self.alias_trouble().await?;
        Some(Degradation {
            code: Missing::Index,
            reason,
        })
    }

    /// Why the alias finds none of these notes, if it is to blame: it points at the collection of another
    /// database, or at nothing.
    async fn alias_trouble(&self) -> Option<String> {
        match serving::alias_problem(&self.serving).await {
            Ok(Some(problem)) => Some(format!("the alias {:?} {problem}", self.serving.alias)),
            Err(error @ ServingError::ForeignAlias { .. }) => Some(error.to_string()),
            Ok(None) | Err(_) => None,
        }
    }

    async fn candidates_of_index(&self, query: &Query) -> Result<Vec<Candidate>, IndexError> {
        let index = &self.serving.index;
        self.in_time(index.search(self.searched(), query)).await
    }

    pub(super) async fn count_of_index(&self, filter: &Filter) -> Result<u64, IndexError> {
        let index = &self.serving.index;
        self.in_time(index.count(self.searched(), filter)).await
    }

    /// The revisions of points, without those that the index does not have. `None` if Postgres
    /// has found the candidates.
    pub(super) async fn revisions(
        &self,
        points: &[Uuid],
        degraded: &[Degradation],
    ) -> Result<Option<HashMap<Uuid, i64>>, Degradation> {
        if is_without_index(degraded) {
            return Ok(None);
        }
        let index = &self.serving.index;
        let reading = index.points(self.searched(), points, false);
        let found = self.in_time(reading).await.map_err(|error| Degradation {
            code: Missing::Index,
            reason: reason(&error),
        })?;
        let revision = |point: &StoredPoint| Some((point.chunk_id, point.revision()?));
        Ok(Some(found.iter().filter_map(revision).collect()))
    }

    fn searched(&self) -> &str {
        self.collection.as_deref().unwrap_or(&self.serving.alias)
    }

    /// What the index answers within the time limit.
    async fn in_time<T>(&self, asking: Answer<'_, T>) -> Result<T, IndexError> {
        let late = || IndexError::Unavailable {
            engine: self.serving.index.describe(),
            reason: format!("no answer within {INDEX_TIMEOUT:?}"),
        };
        if self.index_pause.is_on() {
            return Err(late());
        }
        let Ok(answer) = tokio::time::timeout(INDEX_TIMEOUT, asking).await else {
            self.pause_unless_it_works();
            return Err(late());
        };
        answer
    }

    /// One search may be slow by itself. A search for one word in all notes is not, unless the index
    /// is.
    fn pause_unless_it_works(&self) {
        let index = self.serving.index.clone();
        let searched = self.searched().to_owned();
        let query = Query {
            words: Some("a".to_owned()),
            candidates: 1,
            ..Query::default()
        };
        let works = async move {
            let asking = index.search(&searched, &query);
            tokio::time::timeout(INDEX_TIMEOUT, asking).await.is_ok()
        };
        self.index_pause.begin_unless(works, INDEX_PAUSE);
    }

    /// One search at a time may make the full scan. The others make a small one, and so does a search
    /// whose full scan did not end in time: few notes are better than none, and other work of the
    /// process goes on.
    async fn candidates_of_postgres(&self, query: &Query) -> Result<Vec<Candidate>, SearchError> {
        let holder = Holder::of_tenant(query.filter.keywords.get("tenant_id"));
        let query = PostgresQuery {
            vector: query.vector.as_deref(),
            words: query.words.as_deref(),
            stopwords: &self.serving.bm25.stopwords,
            wanted: &query.filter.of_note(),
            candidates: query.candidates,
        };
        let store = &self.serving.store;
        let mut found = None;
        if let Ok(_full) = self.full_scans.try_acquire() {
            let scanned = store.search(&self.version, query, Scan::FULL).await;
            found = scanned.inspect_err(warn_of_scan).ok();
        }
        let found = match found {
            Some(found) => found,
            None => {
                let turn = self.small_scans.take_within(&holder, 1, SCAN_WAIT).await;
                let late = || StoreError::Unavailable("too many searches without the index".into());
                let _turn = turn.ok_or_else(late)?;
                store.search(&self.version, query, Scan::SMALL).await?
            }
        };
        let candidates = found.into_iter().map(|found| Candidate {
            chunk_id: found.chunk_id,
            dense: found.dense,
            bm25: found.words,
        });
        Ok(candidates.collect())
    }
}

fn warn_of_scan(error: &StoreError) {
    tracing::warn!(%error, "scan without the index failed, scanning fewer notes");
}

pub(super) fn is_without_index(degraded: &[Degradation]) -> bool {
    degraded.iter().any(|part| part.code == Missing::Index)
}

fn reason(error: &IndexError) -> String {
    match error {
        IndexError::NotFound { .. } => format!(
            "{error}: the index is lost, or no worker has run yet; `elf rebuild` rebuilds it \
             from Postgres, a first `elf worker` creates it"
        ),
        error => error.to_string(),
    }
}
