//! Warnings about secrets that would pass a network without encryption.

use reqwest::Url;

use super::{Config, Dsn, is_loopback};

impl Config {
    /// One sentence for each setting under which a secret passes a network without encryption.
    pub(super) fn clear_text_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |key: &str, what: &str, remedy: &str| {
            warnings.push(format!(
                "{key} sends {what} over the network without encryption: {remedy}"
            ));
        };
        let dsn = Dsn::parse(self.storage.postgres.dsn.expose());
        if dsn.as_ref().is_ok_and(Dsn::is_clear) {
            warn(
                "storage.postgres.dsn",
                "a password and notes",
                "append ?sslmode=verify-full",
            );
        }
        let qdrant = &self.storage.qdrant;
        if qdrant.api_key.is_some() && is_clear(&qdrant.url) {
            warn("storage.qdrant.url", "the api_key", "use https://");
        }
        let embedding = &self.providers.embedding;
        let has_secret = embedding.api_key.is_some() || !embedding.headers.is_empty();
        if has_secret && is_clear(&embedding.api_base) {
            warn(
                "providers.embedding.api_base",
                "the api_key or a header",
                "use https://",
            );
        }
        if let Some(rerank) = &self.search.rerank
            && rerank.api_key.is_some()
            && is_clear(&rerank.url)
        {
            warn("search.rerank.url", "the api_key", "use https://");
        }
        if let Some(bind) = &self.service.http_bind
            && !is_loopback(bind)
        {
            warnings.push(
                "service.http_bind takes keys and notes from the network without encryption: put a proxy with TLS \
                 before it, and let other machines reach only the proxy"
                    .into(),
            );
        }
        warnings
    }
}

/// Whether a URL is plain HTTP to another machine.
fn is_clear(url: &str) -> bool {
    Url::parse(url).is_ok_and(|url| {
        url.scheme() == "http" && url.host_str().is_some_and(|host| !is_loopback(host))
    })
}
