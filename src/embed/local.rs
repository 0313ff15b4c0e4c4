//! Models in this process, on its CPU, by the crate `elf-bert`: one that embeds, and one that reranks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use elf_bert::{BiEncoder, Wanted, files_of_bi_encoder, files_of_cross_encoder};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::check::{self, Indexed};
use super::{EmbedError, Embedded, Embedder, Limits, Purpose};
use crate::hub::{HubError, ModelFiles};

/// A model, and one place for each core: more requests at once would only take more memory.
struct OnCores<M> {
    model: Arc<M>,
    cores: Arc<Semaphore>,
}

/// A model that embeds.
pub struct Local {
    model: OnCores<BiEncoder>,
    limits: Limits,
}

/// A model that gives scores to a query and texts.
pub struct CrossEncoder(OnCores<elf_bert::CrossEncoder>);

impl Local {
    /// Loads the model `name`: a folder, or a repository on the Hugging Face hub.
    /// One request may hold what `limits` allow; memory does not depend on them.
    ///
    /// # Errors
    ///
    /// `Config` when a file is missing or the model is of a kind that `elf-bert` does
    /// not compute.
    pub async fn open(name: &str, limits: Limits) -> Result<Self, EmbedError> {
        let blame = |reason: elf_bert::LoadError| {
            EmbedError::config(format!(
                "the model {name} {reason}; choose another one in `providers.embedding.model`"
            ))
        };
        let files = ModelFiles::open(name).await.map_err(unavailable)?;
        let modules = match files.optional("modules.json").await.map_err(unavailable)? {
            Some(path) => Some(tokio::fs::read(&path).await.map_err(|error| {
                EmbedError::config(format!("cannot read {}: {error}", path.display()))
            })?),
            None => None,
        };
        let wanted = files_of_bi_encoder(modules.as_deref()).map_err(blame)?;
        let folder = fetch(&files, &wanted).await?;
        let model = OnCores::load(move || BiEncoder::open(&folder)).await?;
        Ok(Self {
            model: model.map_err(blame)?,
            limits,
        })
    }

    /// Floats in each vector.
    pub fn dim(&self) -> usize {
        self.model.model.dim()
    }

    /// Tokens that the model reads of a text, special ones included.
    pub fn window(&self) -> usize {
        self.model.model.window()
    }

    /// The SHA-256 of the weights, the pooling, the normalisation and the lowercasing.
    pub fn weights(&self) -> [u8; 32] {
        self.model.model.fingerprint()
    }

    /// One vector for each text, in their order.
    pub async fn vectors(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let count = texts.len();
        let vectors = self.model.run(move |model| model.vectors(texts)).await?;
        let answer = vectors.into_iter().map(|vector| Indexed {
            index: None,
            vector,
        });
        check::answer(answer.collect(), count, Some(self.dim()))
    }
}

impl Embedder for Local {
    fn embed<'a>(
        &'a self,
        texts: &'a [&'a str],
        _: Purpose,
    ) -> BoxFuture<'a, Result<Embedded, EmbedError>> {
        let embedded = |vectors| Embedded {
            vectors,
            tokens: None,
        };
        async move { self.vectors(texts).await.map(embedded) }.boxed()
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

impl CrossEncoder {
    /// Loads the model `name`: a folder, or a repository on the Hugging Face hub.
    ///
    /// # Errors
    ///
    /// `Config` when a file is missing, or the model is of a kind that `elf-bert` does not
    /// compute.
    pub async fn open(name: &str) -> Result<Self, EmbedError> {
        let files = ModelFiles::open(name).await.map_err(unavailable)?;
        let folder = fetch(&files, &files_of_cross_encoder()).await?;
        let model = OnCores::load(move || elf_bert::CrossEncoder::open(&folder)).await?;
        let blame = |reason| {
            EmbedError::config(format!(
                "the model {name} {reason}; choose another one in `search.rerank.model`"
            ))
        };
        Ok(Self(model.map_err(blame)?))
    }

    /// How well each of the texts answers the query: [`elf_bert::CrossEncoder::scores`].
    ///
    /// If the caller is dropped, the work ends after the pass in progress.
    pub async fn scores(&self, query: &str, texts: &[&str]) -> Result<Vec<f32>, EmbedError> {
        let dropped = CancellationToken::new();
        let _at_the_end = dropped.clone().drop_guard();
        let query = query.to_owned();
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let scores = move |model: &elf_bert::CrossEncoder| {
            model.scores(&query, &texts, || dropped.is_cancelled())
        };
        self.0.run(scores).await
    }
}

impl<M: Send + Sync + 'static> OnCores<M> {
    async fn load<E: Send + 'static>(
        open: impl FnOnce() -> Result<M, E> + Send + 'static,
    ) -> Result<Result<Self, E>, EmbedError> {
        let loaded = tokio::task::spawn_blocking(open).await;
        let loaded = loaded.map_err(|error| {
            EmbedError::config(format!("the model could not be loaded: {error}"))
        })?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(loaded.map(|model| Self {
            model: Arc::new(model),
            cores: Arc::new(Semaphore::new(cores)),
        }))
    }

    /// Runs `work` on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&M) -> Result<T, elf_bert::Error> + Send + 'static,
    ) -> Result<T, EmbedError> {
        let core = self.cores.clone().acquire_owned().await;
        let core = core.expect("the semaphore is never closed");
        let model = self.model.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&model);
            // Released when the work ends: the caller may be cancelled before.
            drop(core);
            done
        });
        match done.await {
            Ok(done) => done.map_err(|error| match error {
                elf_bert::Error::Input(reason) => EmbedError::input(reason),
                error @ elf_bert::Error::Failed(_) => EmbedError::failed(error.to_string()),
            }),
            Err(error) => Err(EmbedError::failed(format!("the model failed: {error}"))),
        }
    }
}

/// Fetches the files that are not there yet, and returns the folder of the model.
async fn fetch(files: &ModelFiles, wanted: &[Wanted]) -> Result<PathBuf, EmbedError> {
    let mut folder = None;
    for Wanted {
        any_of,
        is_required,
    } in wanted
    {
        for name in any_of {
            let found = match is_required {
                true => Some(files.file(name).await.map_err(unavailable)?),
                false => files.optional(name).await.map_err(unavailable)?,
            };
            if let Some(path) = found {
                let depth = Path::new(name).components().count();
                folder = path.ancestors().nth(depth).map(Path::to_owned);
                break;
            }
        }
    }
    folder.ok_or_else(|| EmbedError::config("the model has no files"))
}

fn unavailable(error: HubError) -> EmbedError {
    if error.class().may_pass() {
        EmbedError::unavailable(error.to_string())
    } else {
        EmbedError::config(error.to_string())
    }
}

#[cfg(test)]
mod tests;
