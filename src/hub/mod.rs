//! The files of a model: from a folder, or from the Hugging Face hub, kept in
//! its usual cache so that they are downloaded once.

mod download;
#[cfg(any(feature = "local", test))]
mod optional;

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use hf_hub::api::tokio::{ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::error_class::ErrorClass;
use download::{STALL, download_error};

const PUBLIC_HUB: &str = "https://huggingface.co";

/// Why a file of a model is not available: what ELF tried, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a path on this machine nor a possible name of a repository.
    #[error(
        "there is no file or folder {model:?}, and it is not a Hugging Face repository \
         (`organisation/name`) either; give the model an existing folder or a repository"
    )]
    Name {
        /// The model as it was given.
        model: String,
    },
    /// The folder exists, the file does not.
    #[error(
        "there is no {file} in the model folder {}; download the model completely",
        folder.display()
    )]
    Missing { folder: PathBuf, file: String },
    /// A file of the model, such as `modules.json`, names a path outside of the model.
    #[error(
        "the model {model} names the file {file:?}, which is outside of it; choose another model"
    )]
    Outside {
        /// The model as it was given.
        model: String,
        /// The path outside of it.
        file: String,
    },
    /// The hub did not deliver the file.
    #[error("there is no folder {model:?}, and {url} {reason}; {advice}")]
    Download {
        model: String,
        /// The URL of the file.
        url: String,
        /// The hub's answer; `None` when it gave none.
        status: Option<u16>,
        /// Finishes a sentence that begins with the URL.
        reason: String,
        /// What to do about it.
        advice: &'static str,
    },
    /// A file or folder could not be read or written.
    #[error("failed to read or write {}: {source}; check the folder's permissions and free space", path.display())]
    Disk {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

impl HubError {
    /// What has to change before the same work can succeed. A hub that did not answer, is busy
    /// or failed recovers by itself.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Download { status, .. }
                if status.is_none_or(|status| status == 429 || status >= 500) =>
            {
                ErrorClass::Provider
            }
            _ => ErrorClass::Configuration,
        }
    }
}

/// Where repositories come from and where their files are kept.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Scheme and host of the hub or a mirror, without a slash at the end.
    pub endpoint: String,
    /// The cache folder, laid out as all Hugging Face tools do.
    pub cache: PathBuf,
    /// Sent as a bearer token; private and gated repositories need one.
    pub token: Option<String>,
}

impl Hub {
    /// `HF_ENDPOINT`, `HF_HOME` and `HF_TOKEN`, else the public hub,
    /// `~/.cache/huggingface` and the token that `huggingface-cli login` saved.
    pub fn from_env() -> Self {
        let set = |name| {
            std::env::var(name)
                .ok()
                .filter(|value: &String| !value.trim().is_empty())
        };
        // An empty HF_HOME would put the cache into the working directory.
        let cache = set("HF_HOME").map_or_else(Cache::default, |home| {
            Cache::new(Path::new(&home).join("hub"))
        });
        Self {
            endpoint: set("HF_ENDPOINT")
                .unwrap_or_else(|| PUBLIC_HUB.to_owned())
                .trim_end_matches('/')
                .to_owned(),
            token: set("HF_TOKEN")
                .map(|token| token.trim().to_owned())
                .or_else(|| cache.token()),
            cache: cache.path().clone(),
        }
    }
}

/// The files of one model.
#[derive(Debug)]
pub struct ModelFiles {
    model: String,
    source: Source,
    stall: Duration,
}

#[derive(Debug)]
enum Source {
    Folder(PathBuf),
    /// The path is a file, used as `tokenizer.json`; ELF reads other files beside it.
    File(PathBuf),
    Hub {
        hub: Hub,
        // The client is large and moves with every `ModelFiles`.
        api: Box<ApiRepo>,
    },
}

impl ModelFiles {
    /// The files of `model`: a folder or a `tokenizer.json` if such a path
    /// exists, else a repository on the hub (see [`Hub::from_env`]). Nothing is
    /// downloaded yet.
    pub async fn open(model: &str) -> Result<Self, HubError> {
        Self::open_from(model, Hub::from_env()).await
    }

    /// [`ModelFiles::open`] with a hub that does not come from the environment.
    pub async fn open_from(model: &str, hub: Hub) -> Result<Self, HubError> {
        let source = match tokio::fs::metadata(model).await {
            Ok(found) if found.is_dir() => Source::Folder(model.into()),
            Ok(_) => Source::File(model.into()),
            Err(_) if is_repository_name(model) => {
                let api = ApiBuilder::from_cache(Cache::new(hub.cache.clone()))
                    .with_endpoint(hub.endpoint.clone())
                    .with_token(hub.token.clone())
                    .with_progress(false)
                    .build()
                    .map_err(|error| download_error(model, hub.endpoint.clone(), &error))?
                    .repo(repository(model));
                Source::Hub {
                    hub,
                    api: Box::new(api),
                }
            }
            Err(_) => {
                return Err(HubError::Name {
                    model: model.to_owned(),
                });
            }
        };
        Ok(Self {
            model: model.to_owned(),
            source,
            stall: STALL,
        })
    }

    /// Where the file `name` (`tokenizer.json`, `1_Pooling/config.json`) lies on
    /// this machine; downloads it when it is not in the cache yet.
    pub async fn file(&self, name: &str) -> Result<PathBuf, HubError> {
        if !is_inside(name) {
            return Err(HubError::Outside {
                model: self.model.clone(),
                file: name.to_owned(),
            });
        }
        let (hub, api) = match &self.source {
            Source::File(path) if name == "tokenizer.json" => return Ok(path.clone()),
            Source::File(path) => return in_folder(path.parent().unwrap_or(path), name).await,
            Source::Folder(folder) => return in_folder(folder, name).await,
            Source::Hub { hub, api } => (hub, api),
        };
        if let Some(path) = self.cached(hub, name) {
            return Ok(path);
        }
        self.download(hub, api, name).await
    }

    fn cached(&self, hub: &Hub, name: &str) -> Option<PathBuf> {
        Cache::new(hub.cache.clone())
            .repo(repository(&self.model))
            .get(name)
    }
}

/// Whether a name stays below its folder, both as a path and in a URL.
fn is_inside(name: &str) -> bool {
    let is_plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
    Path::new(name).components().all(is_plain) && !name.contains(['\\', '?', '#', '%'])
}

/// `organisation/name@revision` names the repository and a branch, a tag or a commit of it.
/// Without a revision it is `main`, which its owner can move.
fn repository(model: &str) -> Repo {
    match model.split_once('@') {
        Some((name, revision)) => {
            Repo::with_revision(name.to_owned(), RepoType::Model, revision.to_owned())
        }
        None => Repo::model(model.to_owned()),
    }
}

/// Whether this is `name` or `organisation/name`, with or without `@revision`, in the
/// characters that the hub allows.
fn is_repository_name(model: &str) -> bool {
    let is_revision = |revision: &str| {
        revision.starts_with(|c: char| c.is_ascii_alphanumeric())
            && revision
                .split('/')
                .all(|part| !part.is_empty() && part != "..")
            && revision
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c))
    };
    let name = match model.split_once('@') {
        Some((name, revision)) if is_revision(revision) => name,
        Some(_) => return false,
        None => model,
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2
        && parts.iter().all(|part| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                && part
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        })
}

async fn in_folder(folder: &Path, name: &str) -> Result<PathBuf, HubError> {
    let path = folder.join(name);
    match tokio::fs::try_exists(&path).await {
        Ok(true) => Ok(path),
        Ok(false) => Err(HubError::Missing {
            folder: folder.to_owned(),
            file: name.to_owned(),
        }),
        Err(source) => Err(HubError::Disk { path, source }),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests;
