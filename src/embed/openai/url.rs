//! The address of the embeddings endpoint.

use reqwest::Url;

use crate::embed::EmbedError;

/// `path` below `base`. A query of the base stays behind the path: Azure's address ends with
/// `?api-version=…`.
pub fn endpoint(base: &str, path: &str) -> Result<Url, EmbedError> {
    let (base, query) = match base.split_once('?') {
        Some((base, query)) => (base, Some(query)),
        None => (base, None),
    };
    let joined = format!(
        "{}/{}",
        base.trim_end_matches('/'),
        path.trim_start_matches('/')
    );
    let mut url = Url::parse(joined.trim_end_matches('/')).map_err(|error| {
        EmbedError::config(format!(
            "`providers.embedding.api_base` and `path` do not form a URL ({joined}): {error}"
        ))
    })?;
    if let Some(base) = query {
        let query = match url.query() {
            Some(of_path) => format!("{base}&{of_path}"),
            None => base.to_owned(),
        };
        url.set_query(Some(&query));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(EmbedError::config(format!(
            "`providers.embedding.api_base` must begin with http:// or https://, not {}:",
            url.scheme()
        )));
    }
    if url.password().is_some() || !url.username().is_empty() {
        return Err(EmbedError::config(
            "`providers.embedding.api_base` holds a user or password, which logs would show; \
             put them into `providers.embedding.headers`",
        ));
    }
    Ok(url)
}

/// The URL for messages: a query may hold a key.
pub fn without_query(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.into()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[test]
    fn the_path_goes_below_the_base_whatever_the_slashes() {
        for (base, path) in [
            ("https://api.openai.com/v1", "embeddings"),
            ("https://api.openai.com/v1/", "/embeddings"),
            ("https://api.openai.com", "/v1/embeddings"),
            ("https://api.openai.com/v1/embeddings", ""),
        ] {
            let url = endpoint(base, path).unwrap();
            assert_eq!(url.as_str(), "https://api.openai.com/v1/embeddings");
        }
    }

    #[test]
    fn a_query_of_the_base_stays_behind_the_path() {
        let azure = "https://x.openai.azure.com/openai/deployments/small";
        for base in ["?api-version=2024-02-01", "/?api-version=2024-02-01"] {
            let url = endpoint(&format!("{azure}{base}"), "/embeddings").unwrap();
            let expected = format!("{azure}/embeddings?api-version=2024-02-01");
            assert_eq!(url.as_str(), expected);
            assert_eq!(without_query(&url), format!("{azure}/embeddings"));
        }
        let both = endpoint("http://h/?a=1", "/e?b=2").unwrap();
        assert_eq!(both.as_str(), "http://h/e?a=1&b=2");
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_with_its_key() {
        for base in [
            "",
            "localhost:8080",
            "ftp://host/",
            "http://me:secret@host/",
        ] {
            let error = endpoint(base, "/v1/embeddings").unwrap_err();
            assert!(matches!(&error, EmbedError::Config { reason }
                if reason.contains("providers.embedding.api_base") && !reason.contains("secret")));
        }
    }
}
