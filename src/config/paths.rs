//! Relative paths start at the folder of the file that has them. Otherwise the same file would name
//! another index in another current directory.

use std::path::{Path, PathBuf};

use super::{Config, Dsn, ProviderKind, RerankApi, Secret};

/// The absolute path of the folder that holds a file.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.parent().unwrap_or(&absolute).to_owned()
}

impl Config {
    /// Makes the relative paths absolute. What may be a repository on the hub is a path if there is
    /// something.
    pub(super) fn start_paths_at(&mut self, folder: &Path) {
        let postgres = &mut self.storage.postgres;
        postgres.dsn = Secret::new(Dsn::with_files_in(postgres.dsn.expose(), folder));
        if let Some(dir) = self.storage.qdrant.url.strip_prefix("embedded:") {
            self.storage.qdrant.url = format!("embedded:{}", folder.join(dir).display());
        }
        let embedding = &mut self.providers.embedding;
        let paths = [
            &mut embedding.ca_file,
            &mut embedding.client_cert_file,
            &mut embedding.client_key_file,
            &mut self.quality.folder,
            &mut self.quality.canary.config,
        ];
        for path in paths.into_iter().flatten() {
            *path = folder.join(&*path).display().to_string();
        }
        let rerank = self.search.rerank.as_mut();
        let models = [
            Some(&mut self.chunking.tokenizer_repo),
            (embedding.provider == ProviderKind::Local).then_some(&mut embedding.model),
            rerank
                .filter(|rerank| rerank.api == RerankApi::Local)
                .map(|rerank| &mut rerank.model),
        ];
        for model in models.into_iter().flatten() {
            let path = folder.join(&*model);
            if !model.is_empty() && path.exists() {
                *model = path.display().to_string();
            }
        }
    }
}
