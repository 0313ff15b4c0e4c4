//! Files that a model may lack. Only a local model has them.

use std::path::PathBuf;

use super::{HubError, ModelFiles, Source, is_inside, repository};

impl ModelFiles {
    /// [`ModelFiles::file`], or `None` where the model has no such file. The cache
    /// remembers that, so that a cached model opens without the hub.
    pub async fn optional(&self, name: &str) -> Result<Option<PathBuf>, HubError> {
        if is_inside(name)
            && self
                .absence_marker(name)
                .is_some_and(|marker| marker.exists())
        {
            return Ok(None);
        }
        match self.file(name).await {
            Ok(path) => Ok(Some(path)),
            Err(HubError::Missing { .. }) => Ok(None),
            Err(HubError::Download {
                status: Some(404), ..
            }) => {
                self.remember_absence(name);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// `.no_exist/<commit>/<name>` in the cache, as `huggingface_hub` keeps it.
    /// `None` until the first downloaded file of the model has shown its commit.
    fn absence_marker(&self, name: &str) -> Option<PathBuf> {
        let Source::Hub { hub, .. } = &self.source else {
            return None;
        };
        let model = repository(&self.model);
        let repo = hub.cache.join(model.folder_name());
        let commit = std::fs::read_to_string(repo.join("refs").join(model.revision())).ok()?;
        Some(repo.join(".no_exist").join(commit.trim()).join(name))
    }

    fn remember_absence(&self, name: &str) {
        let Some(marker) = self.absence_marker(name) else {
            return;
        };
        // A failed write is harmless: ELF then asks the hub again next time.
        let _ = marker.parent().map(std::fs::create_dir_all);
        let _ = std::fs::write(marker, b"");
    }
}
