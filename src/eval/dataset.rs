//! A folder in the format of BEIR (Thakur et al. 2021): `corpus.jsonl` and `queries.jsonl` with
//! `_id` and `text`, and `qrels/<split>.tsv` with the columns query, document and grade.
//!
//! It reads the sets as they are: the qrels with or without names of the columns, grades like `1.0`, titles and
//! texts that are `null`, ids that are numbers.
//!
//! Two additions make a set of one's own easy to write. `corpus` may be a folder of text files,
//! whose paths in it are their ids. A fourth column of the qrels may quote the words that answer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::unicode::composed;

/// The grade of every relevant document of a query. Only grades above 0 are in it.
pub type Relevant = BTreeMap<String, u32>;

/// Documents, queries and which documents answer which query.
#[derive(Debug)]
pub struct Dataset {
    /// The documents, in the order of the file.
    pub documents: Vec<Document>,
    /// Id and text of the queries that have a relevant document, in the order of the file.
    pub queries: Vec<(String, String)>,
    /// Likewise, those whose grades are all 0: nothing answers them.
    pub unanswered: Vec<(String, String)>,
    /// By query id.
    pub relevant: BTreeMap<String, Relevant>,
    /// The quoted answers, by query id.
    pub quotes: BTreeMap<String, Vec<Quote>>,
    /// The ids of queries that are documents themselves, which answer no query: a document has the same id, and
    /// no grade for the query.
    pub queried_documents: HashSet<String>,
}

/// The words of a document that answer a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    pub document: String,
    /// Where the words are: UTF-8 byte offsets into [`Document::text`].
    pub range: Range<usize>,
}

/// A document of the corpus.
#[derive(Debug, Deserialize)]
pub struct Document {
    #[serde(rename = "_id", deserialize_with = "id")]
    pub id: String,
    #[serde(default, deserialize_with = "or_empty")]
    title: String,
    #[serde(deserialize_with = "or_empty")]
    text: String,
}

#[derive(Deserialize)]
pub(super) struct Query {
    #[serde(rename = "_id", deserialize_with = "id")]
    pub id: String,
    #[serde(deserialize_with = "or_empty")]
    pub text: String,
    /// Of a golden question.
    #[serde(default)]
    pub tenant_id: Option<String>,
}

fn id<'d, D: Deserializer<'d>>(value: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Id {
        Text(String),
        Number(serde_json::Number),
    }
    Ok(match Id::deserialize(value)? {
        Id::Text(text) => text,
        Id::Number(number) => number.to_string(),
    })
}

/// An empty string for `null`.
fn or_empty<'d, D: Deserializer<'d>>(value: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

impl Document {
    /// Title and text.
    pub fn text(&self) -> String {
        match self.title.trim() {
            "" => self.text.clone(),
            title => format!("{title}\n\n{}", self.text),
        }
    }
}

impl Dataset {
    /// Reads a folder. `split` names the file in `qrels`.
    pub fn read(folder: &Path, split: &str) -> anyhow::Result<Self> {
        let documents = match folder.join("corpus") {
            corpus if corpus.is_dir() => files(&corpus)?,
            _ => lines(&folder.join("corpus.jsonl"))?,
        };
        let queries: Vec<Query> = lines(&folder.join("queries.jsonl"))?;
        distinct(documents.iter().map(|d| d.id.as_str()), "corpus.jsonl")?;
        distinct(queries.iter().map(|q| q.id.as_str()), "queries.jsonl")?;
        let Qrels { relevant, quoted } = Qrels::read(&folder.join("qrels"), split)?;
        let queries = queries.into_iter().map(|query| (query.id, query.text));
        let asked: Vec<(String, String)> = queries
            .filter(|(id, _)| relevant.contains_key(id))
            .collect();
        if let Some((id, _)) = asked.iter().find(|(_, text)| text.trim().is_empty()) {
            anyhow::bail!("query {id:?} of queries.jsonl has no text");
        }
        let is_answered = |(id, _): &(String, String)| !relevant[id].is_empty();
        let (queries, unanswered): (Vec<_>, Vec<_>) = asked.into_iter().partition(is_answered);
        anyhow::ensure!(
            !queries.is_empty(),
            "no query of {} has a relevant document in qrels/{split}.tsv",
            folder.display()
        );
        let ids: HashSet<&str> = documents.iter().map(|d| d.id.as_str()).collect();
        let mut graded = queries.iter().flat_map(|(id, _)| relevant[id].keys());
        anyhow::ensure!(
            graded.any(|id| ids.contains(id.as_str())),
            "no document of qrels/{split}.tsv is in the corpus: its columns must be query, document and grade"
        );
        let quotes = find_quotes(&documents, quoted)?;
        let is_document = |(id, _): &&(String, String)| {
            ids.contains(id.as_str()) && !relevant[id].contains_key(id)
        };
        let queried_documents = queries.iter().filter(is_document);
        let queried_documents = queried_documents.map(|(id, _)| id.clone()).collect();
        Ok(Self {
            documents,
            queries,
            unanswered,
            relevant,
            quotes,
            queried_documents,
        })
    }
}

/// The text files of a folder and of the folders in it.
fn files(folder: &Path) -> anyhow::Result<Vec<Document>> {
    let (mut documents, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        let name = next.display().to_string();
        for entry in fs::read_dir(&next).with_context(|| format!("failed to read {name}"))? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            // A link may lead back into the folder for ever.
            if kind.is_symlink() || entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path)
                .with_context(|| format!("failed to read {}", path.display()))?;
            documents.push(Document {
                id: composed(&path.strip_prefix(folder)?.to_string_lossy()).into_owned(),
                title: String::new(),
                text,
            });
        }
    }
    documents.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(documents)
}

fn find_quotes(
    documents: &[Document],
    quoted: Vec<Quoted>,
) -> anyhow::Result<BTreeMap<String, Vec<Quote>>> {
    let by_id: HashMap<&str, &Document> = documents.iter().map(|d| (d.id.as_str(), d)).collect();
    let mut quotes: BTreeMap<String, Vec<Quote>> = BTreeMap::new();
    for Quoted {
        query,
        document,
        words,
    } in quoted
    {
        let text = by_id.get(document.as_str()).map(|found| found.text());
        let start = text.and_then(|text| text.find(&words));
        let start = start.with_context(|| {
            format!("the quote {words:?} of query {query:?} is not in document {document:?}")
        })?;
        quotes.entry(query).or_default().push(Quote {
            document,
            range: start..start + words.len(),
        });
    }
    Ok(quotes)
}

fn distinct<'a>(ids: impl Iterator<Item = &'a str>, file: &str) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for id in ids {
        anyhow::ensure!(seen.insert(id), "{file} has the _id {id:?} twice");
    }
    Ok(())
}

pub(super) fn lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let name = path.display();
    let text = read(path)?;
    let numbered = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    numbered
        .map(|(i, line)| serde_json::from_str(line).with_context(|| format!("{name}:{}", i + 1)))
        .collect()
}

/// The text of a file, without a byte order mark.
fn read(path: &Path) -> anyhow::Result<String> {
    let failed = || {
        let packed = path.with_added_extension("gz");
        let hint = match packed.exists() {
            true => format!(": unpack {}", packed.display()),
            false => String::new(),
        };
        format!("failed to read {}{hint}", path.display())
    };
    let text = fs::read_to_string(path).with_context(failed)?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

/// What a file of qrels says.
#[derive(Default)]
pub(super) struct Qrels {
    /// Of each query that the file names; empty if all its grades are 0.
    pub relevant: BTreeMap<String, Relevant>,
    quoted: Vec<Quoted>,
}

struct Quoted {
    query: String,
    document: String,
    words: String,
}

impl Qrels {
    pub fn read(folder: &Path, split: &str) -> anyhow::Result<Self> {
        let path = folder.join(format!("{split}.tsv"));
        let name = path.display();
        let text = read(&path).with_context(|| {
            let splits = splits(folder).join(", ");
            format!("failed to read {name}; the folder has these splits: {splits}")
        })?;
        let mut qrels = Self::default();
        for (i, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let columns: Vec<&str> = line.split('\t').map(str::trim).collect();
            let &[query, document, grade, ref quote @ ..] = columns.as_slice() else {
                anyhow::bail!(
                    "{name}:{}: not query, document and grade with tabs between",
                    i + 1
                );
            };
            let grade = match grade.parse::<f64>() {
                Ok(number) if number.fract() == 0.0 => number as i64,
                // The names of the columns.
                Err(_) if i == 0 => continue,
                _ => anyhow::bail!("{name}:{}: the grade {grade:?} is no whole number", i + 1),
            };
            let of_query = qrels.relevant.entry(query.to_owned()).or_default();
            if let Some(grade) = u32::try_from(grade).ok().filter(|grade| *grade > 0) {
                of_query.insert(document.to_owned(), grade);
                if let Some(words) = quote.first().filter(|words| !words.is_empty()) {
                    qrels.quoted.push(Quoted {
                        query: query.to_owned(),
                        document: document.to_owned(),
                        words: (*words).to_owned(),
                    });
                }
            }
        }
        Ok(qrels)
    }
}

fn splits(qrels: &Path) -> Vec<String> {
    let entries = fs::read_dir(qrels).into_iter().flatten().flatten();
    let mut splits: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".tsv").map(str::to_owned))
        .collect();
    splits.sort();
    splits
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    fn folder(qrels: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let corpus =
            "{\"_id\":\"a\",\"title\":\"T\",\"text\":\"x\"}\n\n{\"_id\":\"b\",\"text\":\"y\"}\n";
        fs::write(dir.path().join("corpus.jsonl"), corpus).unwrap();
        let queries = "{\"_id\":\"1\",\"text\":\"q\"}\n{\"_id\":\"2\",\"text\":\"r\"}\n";
        fs::write(dir.path().join("queries.jsonl"), queries).unwrap();
        fs::create_dir(dir.path().join("qrels")).unwrap();
        fs::write(dir.path().join("qrels/test.tsv"), qrels).unwrap();
        dir
    }

    #[test]
    fn only_queries_with_a_relevant_document_are_asked() {
        let dir = folder("query-id\tcorpus-id\tscore\n1\ta\t2\n1\tb\t0\n2\tb\t-1\n");
        let set = Dataset::read(dir.path(), "test").unwrap();
        assert_eq!(set.queries, [("1".to_owned(), "q".to_owned())]);
        assert_eq!(set.relevant["1"], Relevant::from([("a".to_owned(), 2)]));
        assert_eq!(set.documents[0].text(), "T\n\nx");
        assert_eq!(set.documents[1].text(), "y");
    }

    #[test]
    fn a_corpus_may_be_a_folder_and_an_answer_a_quote() {
        let dir = folder("query-id\tcorpus-id\tscore\tquote\n1\tb/c.md\t1\tworld\n2\ta.txt\t1\n");
        fs::create_dir_all(dir.path().join("corpus/b")).unwrap();
        fs::write(dir.path().join("corpus/b/c.md"), "Größe, world").unwrap();
        fs::write(dir.path().join("corpus/a.txt"), "x").unwrap();
        let set = Dataset::read(dir.path(), "test").unwrap();
        let ids: Vec<&str> = set.documents.iter().map(|d| d.id.as_str()).collect();
        assert_eq!(ids, ["a.txt", "b/c.md"]);
        let quote = Quote {
            document: "b/c.md".into(),
            range: 9..14,
        };
        assert_eq!(set.quotes, BTreeMap::from([("1".to_owned(), vec![quote])]));

        let wrong = "query-id\tcorpus-id\tscore\tquote\n1\ta.txt\t1\tworld\n";
        fs::write(dir.path().join("qrels/test.tsv"), wrong).unwrap();
        let error = Dataset::read(dir.path(), "test").unwrap_err().to_string();
        assert!(
            error.contains("world") && error.contains("a.txt"),
            "{error}"
        );
    }

    #[test]
    fn a_wrong_line_is_named() {
        let dir = folder("query-id\tcorpus-id\tscore\n1 a 2\n");
        let error = Dataset::read(dir.path(), "test").unwrap_err();
        assert!(error.to_string().contains("test.tsv:2"), "{error}");
        let error = Dataset::read(dir.path(), "dev").unwrap_err();
        assert!(error.to_string().contains("dev.tsv"), "{error}");
    }

    #[test]
    fn a_set_is_read_as_it_is() {
        let dir = folder("1\ta\t1.0\r\n1\tb\t0\r\n7\tgone\t1\r\n");
        let corpus = "\u{feff}{\"_id\":\"a\",\"title\":null,\"text\":\"x\"}\r\n\
                      {\"_id\":7,\"title\":\"T\",\"text\":null}\r\n";
        fs::write(dir.path().join("corpus.jsonl"), corpus).unwrap();
        let queries = "{\"_id\":1,\"text\":\"q\"}\n{\"_id\":\"unasked\",\"text\":null}\n";
        fs::write(dir.path().join("queries.jsonl"), queries).unwrap();
        let set = Dataset::read(dir.path(), "test").unwrap();
        assert_eq!(set.queries, [("1".to_owned(), "q".to_owned())]);
        assert_eq!(set.relevant["1"], Relevant::from([("a".to_owned(), 1)]));
        let texts: Vec<String> = set.documents.iter().map(Document::text).collect();
        assert_eq!(texts, ["x", "T\n\n"]);
        assert_eq!(set.documents[1].id, "7");
    }

    #[test]
    fn what_is_no_set_is_named() {
        let wrong = |qrels: &str, split: &str| {
            let error = Dataset::read(folder(qrels).path(), split).unwrap_err();
            format!("{error:#}")
        };
        let header = "query-id\tcorpus-id\tscore\n";
        for (qrels, word) in [
            ("1\ta\t1\n1\tb\tgood\n", "test.tsv:2: the grade \"good\""),
            ("1\ta\t0.5\n2\tb\t0.5\n", "test.tsv:1: the grade \"0.5\""),
            // As TREC writes it.
            ("1\t0\ta\t1\n1\t0\tb\t1\n", "test.tsv:2: the grade \"b\""),
            (
                "1\t0\t184\t1\n",
                "no document of qrels/test.tsv is in the corpus",
            ),
        ] {
            assert!(
                wrong(qrels, "test").contains(word),
                "{}",
                wrong(qrels, "test")
            );
        }
        let error = wrong(header, "dev");
        assert!(
            error.contains("dev.tsv") && error.contains("splits: test"),
            "{error}"
        );

        let packed = folder("1\ta\t1\n");
        let corpus = packed.path().join("corpus.jsonl");
        fs::rename(&corpus, packed.path().join("corpus.jsonl.gz")).unwrap();
        let error = Dataset::read(packed.path(), "test").unwrap_err();
        assert!(error.to_string().contains("unpack"), "{error:#}");
    }
}
