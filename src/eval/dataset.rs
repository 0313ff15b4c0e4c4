//! A folder in the format of BEIR (Thakur et al. 2021): `corpus.jsonl` and `queries.jsonl` with
//! `_id` and `text`, and `qrels/<split>.tsv` with the columns query, document and grade.
//!
//! Two additions make a set of one's own easy to write. `corpus` may be a folder of text files,
//! whose paths in it are their ids. A fourth column of the qrels may quote the words that answer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The grade of every relevant document of a query. Only grades above 0 are in it.
pub type Relevant = BTreeMap<String, u32>;

/// Documents, queries and which documents answer which query.
#[derive(Debug)]
pub struct Dataset {
    /// The documents, in the order of the file.
    pub documents: Vec<Document>,
    /// Id and text of the queries that have a relevant document, in the order of the file.
    pub queries: Vec<(String, String)>,
    /// By query id.
    pub relevant: BTreeMap<String, Relevant>,
    /// The quoted answers, by query id.
    pub quotes: BTreeMap<String, Vec<Quote>>,
}

/// The words of a document that answer a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quote {
    /// The document's id.
    pub document: String,
    /// Where the words are: UTF-8 byte offsets into [`Document::text`].
    pub range: Range<usize>,
}

/// A document of the corpus.
#[derive(Debug, Deserialize)]
pub struct Document {
    /// Its id.
    #[serde(rename = "_id")]
    pub id: String,
    #[serde(default)]
    title: String,
    text: String,
}

#[derive(Deserialize)]
struct Query {
    #[serde(rename = "_id")]
    id: String,
    text: String,
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
        if let Some(query) = queries.iter().find(|query| query.text.trim().is_empty()) {
            anyhow::bail!("query {:?} of queries.jsonl has no text", query.id);
        }
        let Qrels { relevant, quoted } =
            Qrels::read(&folder.join("qrels").join(format!("{split}.tsv")))?;
        let quotes = find_quotes(&documents, quoted)?;
        let queries: Vec<(String, String)> = queries
            .into_iter()
            .filter(|query| relevant.contains_key(&query.id))
            .map(|query| (query.id, query.text))
            .collect();
        anyhow::ensure!(
            !queries.is_empty(),
            "no query of {} has a relevant document in qrels/{split}.tsv",
            folder.display()
        );
        Ok(Self {
            documents,
            queries,
            relevant,
            quotes,
        })
    }
}

/// The text files of a folder and of the folders in it.
fn files(folder: &Path) -> anyhow::Result<Vec<Document>> {
    let (mut documents, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        let name = next.display().to_string();
        for entry in fs::read_dir(&next).with_context(|| format!("failed to read {name}"))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path)
                .with_context(|| format!("failed to read {}", path.display()))?;
            documents.push(Document {
                id: path.strip_prefix(folder)?.to_string_lossy().into_owned(),
                title: String::new(),
                text,
            });
        }
    }
    documents.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(documents)
}

/// Where the quotes are in their documents.
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

fn lines<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Vec<T>> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
    let numbered = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty());
    numbered
        .map(|(i, line)| serde_json::from_str(line).with_context(|| format!("{name}:{}", i + 1)))
        .collect()
}

/// What a file of qrels says.
#[derive(Default)]
struct Qrels {
    relevant: BTreeMap<String, Relevant>,
    quoted: Vec<Quoted>,
}

struct Quoted {
    query: String,
    document: String,
    words: String,
}

impl Qrels {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("failed to read {name}"))?;
        let mut qrels = Self::default();
        // The first line has the names of the columns.
        for (i, line) in text.lines().enumerate().skip(1) {
            if line.trim().is_empty() {
                continue;
            }
            let columns: Vec<&str> = line.split('\t').collect();
            let grade = columns
                .get(2)
                .and_then(|grade| grade.trim().parse::<i64>().ok());
            let (&[query, document, _, ref quote @ ..], Some(grade)) = (columns.as_slice(), grade)
            else {
                anyhow::bail!(
                    "{name}:{}: not query, document and grade with tabs between",
                    i + 1
                );
            };
            if let Some(grade) = u32::try_from(grade).ok().filter(|grade| *grade > 0) {
                let of_query = qrels.relevant.entry(query.to_owned()).or_default();
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
}
