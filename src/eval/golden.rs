//! Golden questions: an operator's questions with known answers, which one worker asks of the index that
//! is served, beside the searches of others. Their measures are metrics.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::Utc;
use metrics::gauge;

use super::dataset::{self, Qrels, Query};
use super::measures::{Scores, of_ranking};
use crate::index::Filter;
use crate::search::{Answer, Item, Request, SearchError, Searcher};

/// Notes of each answer that count.
const K: usize = 10;

/// The longest time between two looks whether this worker has to ask.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Questions with known answers.
#[derive(Debug)]
pub struct Golden(Vec<Question>);

#[derive(Debug)]
struct Question {
    request: Request,
    /// The grade of each note that answers, by key or id.
    relevant: dataset::Relevant,
}

/// What the questions found.
#[derive(Debug)]
pub struct Quality {
    /// Questions that were asked.
    pub questions: usize,
    /// The means over them, of the first ten notes.
    pub mean: Scores,
    /// The share of questions without any result.
    pub zero_results: f64,
    /// How long each search took, the shortest first.
    pub times: Vec<Duration>,
}

/// Why the questions were not asked to the end.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A search failed.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// A search did without a part: that is no quality of the index.
    #[error("a search was answered without {missing}: {reason}")]
    InPart {
        missing: &'static str,
        reason: String,
    },
}

impl Golden {
    /// Reads `queries.jsonl` and `qrels/test.tsv` of a folder, in the format of BEIR. The documents of the
    /// qrels are notes, by their key or id. A query may name its `tenant_id`.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let queries: Vec<Query> = dataset::lines(&folder.join("queries.jsonl"))?;
        let Qrels { mut relevant, .. } = Qrels::read(&folder.join("qrels"), "test")?;
        let question = |query: Query| {
            let relevant = relevant
                .remove(&query.id)
                .filter(|notes| !notes.is_empty())?;
            let tenant = query
                .tenant_id
                .map(|tenant| ("tenant_id".to_owned(), tenant));
            let mut request = Request::hybrid(&query.text, K);
            request.filter = Filter {
                keywords: BTreeMap::from_iter(tenant),
                ..Filter::default()
            };
            Some(Question { request, relevant })
        };
        let questions: Vec<Question> = queries.into_iter().filter_map(question).collect();
        anyhow::ensure!(
            !questions.is_empty(),
            "no query of {} has a note in qrels/test.tsv that answers it",
            folder.display()
        );
        Ok(Self(questions))
    }

    /// Asks all questions, one after the other.
    pub async fn ask(&self, searcher: &Searcher) -> Result<Quality, GoldenError> {
        let (mut scores, mut times, mut empty) = (Vec::new(), Vec::new(), 0_usize);
        for Question { request, relevant } in &self.0 {
            let began = Instant::now();
            let answer = searcher.search_uncounted(request).await?;
            times.push(began.elapsed());
            check_whole(&answer)?;
            empty += usize::from(answer.items.is_empty());
            let ranking: Vec<String> = answer
                .items
                .iter()
                .map(|item| name(item, relevant))
                .collect();
            scores.push(of_ranking(&ranking, relevant, K));
        }
        times.sort_unstable();
        Ok(Quality {
            questions: self.0.len(),
            mean: Scores::mean(&scores),
            zero_results: empty as f64 / self.0.len() as f64,
            times,
        })
    }
}

fn check_whole(answer: &Answer) -> Result<(), GoldenError> {
    match answer.degraded.first() {
        Some(missing) => Err(GoldenError::InPart {
            missing: missing.code.as_str(),
            reason: missing.reason.clone(),
        }),
        None => Ok(()),
    }
}

/// The name by which the qrels call a note.
fn name(item: &Item, relevant: &dataset::Relevant) -> String {
    let key = item
        .note
        .key
        .as_ref()
        .filter(|key| relevant.contains_key(*key));
    key.cloned().unwrap_or_else(|| item.note_id.to_string())
}

/// Asks the questions of a folder whenever the interval is over and it is this worker's turn. Runs
/// until dropped.
pub async fn watch(
    searcher: Searcher,
    folder: PathBuf,
    interval: Duration,
    is_mine: impl Fn() -> bool,
) {
    let mut ticks = tokio::time::interval(LOOK_EVERY.min(interval));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last: Option<Instant> = None;
    loop {
        ticks.tick().await;
        let is_due = last.is_none_or(|last| last.elapsed() >= interval);
        if !is_due || !is_mine() {
            continue;
        }
        last = Some(Instant::now());
        match ask(&searcher, &folder).await {
            Ok(quality) => publish(&quality),
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "golden questions not asked");
            }
        }
    }
}

/// Reads the folder each time: its owner may have changed it.
async fn ask(searcher: &Searcher, folder: &Path) -> anyhow::Result<Quality> {
    let golden = Golden::read(folder)?;
    Ok(golden.ask(searcher).await?)
}

fn publish(quality: &Quality) {
    let Quality {
        questions,
        mean,
        zero_results,
        times,
    } = quality;
    for (measure, value) in [
        ("recall", mean.recall),
        ("precision", mean.precision),
        ("mrr", mean.mrr),
        ("ndcg", mean.ndcg),
        ("zero_results", *zero_results),
    ] {
        gauge!("elf_quality", "measure" => measure).set(value);
    }
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    gauge!("elf_quality_search_seconds", "quantile" => "0.5").set(at(0.5).as_secs_f64());
    gauge!("elf_quality_search_seconds", "quantile" => "0.99").set(at(0.99).as_secs_f64());
    gauge!("elf_quality_questions").set(*questions as f64);
    gauge!("elf_quality_timestamp_seconds").set(Utc::now().timestamp() as f64);
    tracing::info!(
        questions,
        recall = mean.recall,
        mrr = mean.mrr,
        zero_results,
        "golden questions asked"
    );
}
