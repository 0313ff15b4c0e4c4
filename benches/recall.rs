//! What the settings of dense vectors cost in recall: vectors of the demo's model, of lines of this
//! repository. Of random vectors, all are about equally far apart, and the best ten mean nothing.

use std::path::Path;

use elf::config::{Bm25Options, Config};
use elf::embed::Limits;
use elf::embed::local::Local;
use elf::index::{self, CollectionSpec};
use qdrant_client::Qdrant;
use qdrant_client::qdrant::point_id::PointIdOptions;
use qdrant_client::qdrant::{
    NamedVectors, PointId, PointStruct, QueryPointsBuilder, UpsertPointsBuilder, Vector,
};

use crate::corpus::files;
use crate::engine::{self, Engine};
use crate::report::{Report, Target};
use crate::{Options, Result};

const LIMIT: usize = 10;

/// The share of the ten nearest lines that a search finds, with each of these settings of
/// `[storage.qdrant]`.
pub async fn run(
    report: &mut Report,
    options: Options,
    engine: &Engine,
    settings: &[(&str, &str)],
) -> Result<()> {
    let lines = lines(options.size(20_000, 200))?;
    report.fact(
        "recall",
        format!("{} lines of this repository", lines.len()),
    );
    let all = embedded(&lines).await?;
    // A query that is stored would find itself.
    let every = (all.len() / 200).max(2);
    let (queries, vectors): (Vec<_>, Vec<_>) = all
        .into_iter()
        .enumerate()
        .partition(|(n, _)| n % every == 0);
    let [queries, vectors] = [queries, vectors].map(|vectors| -> Vec<Vec<f32>> {
        vectors.into_iter().map(|(_, vector)| vector).collect()
    });
    let rounded = rounded(&vectors).await?;
    let as_embedded = settings.iter().map(|&(name, toml)| (name, toml, &vectors));
    let halfvec = ("halfvec in Postgres", "", &rounded);
    for (name, settings, stored) in as_embedded.chain([halfvec]) {
        let alias = format!("elf_bench_{}", uuid::Uuid::new_v4().simple());
        let text = format!(
            "[storage.postgres]\ndsn = \"postgres://none@none/none\"\n\
             [storage.qdrant]\nurl = {:?}\nalias = {alias:?}\n{settings}",
            engine.url
        );
        let config = Config::parse(&text, "bench", &|_| None)?;
        let index = index::connect(&config.storage.qdrant).await?;
        let spec = CollectionSpec {
            dim: vectors[0].len(),
            bm25: Bm25Options::default(),
            embedding_version: "bench".into(),
        };
        index.create_collection(&alias, &spec).await?;
        index.begin_load(&alias).await?;
        let client = engine::client(&engine.url)?;
        fill(&client, &alias, stored).await?;
        index.end_load(&alias).await?;
        engine::wait_for_graphs(&client, &alias).await?;
        let mut shares = Vec::new();
        for query in &queries {
            let found = found(&client, &alias, query).await?;
            let exact = exact(&vectors, query);
            let common = found.iter().filter(|id| exact.contains(id)).count();
            shares.push(common as f64 / LIMIT as f64);
        }
        let recall = shares.iter().sum::<f64>() / shares.len() as f64;
        report.value(
            &format!(
                "{name}: recall of the best {LIMIT}, mean of {}",
                shares.len()
            ),
            "",
            vec![recall],
            Target::None,
        );
        index.drop_collection(&alias).await?;
    }
    Ok(())
}

/// Different lines of the repository's documents and source.
fn lines(count: usize) -> Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut lines = std::collections::BTreeSet::new();
    for (folder, extension) in [
        ("docs", "md"),
        ("src", "rs"),
        ("tests", "rs"),
        ("benches", "rs"),
    ] {
        for path in files(&root.join(folder), extension)? {
            let text = std::fs::read_to_string(path)?;
            let long = text
                .lines()
                .map(str::trim)
                .filter(|line| (51..400).contains(&line.len()));
            lines.extend(long.map(str::to_owned));
        }
    }
    Ok(lines.into_iter().take(count).collect())
}

async fn embedded(lines: &[String]) -> Result<Vec<Vec<f32>>> {
    let model = crate::model()?;
    let limits = Limits {
        max_inputs: 64,
        max_tokens: usize::MAX,
    };
    let local = Local::open(
        model.to_str().ok_or("the model's path is no UTF-8")?,
        limits,
    )
    .await?;
    let mut vectors = Vec::with_capacity(lines.len());
    for request in lines.chunks(64) {
        let texts: Vec<&str> = request.iter().map(String::as_str).collect();
        vectors.extend(local.vectors(&texts).await?);
    }
    Ok(vectors)
}

/// The vectors as a `halfvec` of Postgres keeps them.
async fn rounded(vectors: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let mut rounded = Vec::with_capacity(vectors.len());
    let mut connection = pool.begin().await?;
    sqlx::query("create extension if not exists vector")
        .execute(&mut *connection)
        .await?;
    for vector in vectors {
        let row = sqlx::query_scalar("select $1::real[]::halfvec::real[]").bind(vector);
        rounded.push(row.fetch_one(&mut *connection).await?);
    }
    Ok(rounded)
}

async fn fill(client: &Qdrant, collection: &str, vectors: &[Vec<f32>]) -> Result<()> {
    for (batch, vectors) in vectors.chunks(256).enumerate() {
        let points = vectors.iter().enumerate().map(|(place, vector)| {
            let dense =
                NamedVectors::default().add_vector("dense", Vector::new_dense(vector.clone()));
            let id = PointId::from((256 * batch + place) as u64);
            PointStruct::new(id, dense, qdrant_client::Payload::new())
        });
        let upsert = UpsertPointsBuilder::new(collection, points.collect::<Vec<_>>()).wait(true);
        client.upsert_points(upsert).await?;
    }
    Ok(())
}

/// The ids that a search finds.
async fn found(client: &Qdrant, collection: &str, vector: &[f32]) -> Result<Vec<usize>> {
    let query = QueryPointsBuilder::new(collection)
        .query(vector.to_vec())
        .using("dense")
        .limit(LIMIT as u64);
    let answer = client.query(query).await?;
    let ids = answer
        .result
        .into_iter()
        .filter_map(|point| point.id?.point_id_options);
    Ok(ids
        .filter_map(|id| match id {
            PointIdOptions::Num(id) => usize::try_from(id).ok(),
            PointIdOptions::Uuid(_) => None,
        })
        .collect())
}

/// The nearest ones, by the cosine of all.
fn exact(vectors: &[Vec<f32>], query: &[f32]) -> Vec<usize> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let norm = |vector: &[f32]| dot(vector, vector).sqrt();
    let likeness = |vector: &[f32]| dot(vector, query) / norm(vector);
    let all = vectors.iter().map(|vector| likeness(vector)).enumerate();
    let mut all: Vec<(usize, f32)> = all.collect();
    all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    all.iter().take(LIMIT).map(|(id, _)| *id).collect()
}
