//! TLS: the authorities that may sign a provider's certificate, and the client
//! certificate that ELF presents.

use reqwest::{Certificate, ClientBuilder, Identity};

use crate::config;
use crate::embed::EmbedError;

/// Adds `ca_file` to the system's authorities, and the client certificate.
pub fn trust(
    mut client: ClientBuilder,
    settings: &config::Embedding,
) -> Result<ClientBuilder, EmbedError> {
    if let Some(path) = &settings.ca_file {
        let pem = read("ca_file", path)?;
        let authorities = Certificate::from_pem_bundle(&pem)
            .ok()
            .filter(|authorities| !authorities.is_empty())
            .ok_or_else(|| unusable("ca_file", path, "it holds no certificate in PEM"))?;
        client = authorities
            .into_iter()
            .fold(client, ClientBuilder::add_root_certificate);
    }
    if let (Some(cert), Some(key)) = (&settings.client_cert_file, &settings.client_key_file) {
        let mut pem = read("client_cert_file", cert)?;
        pem.push(b'\n');
        pem.extend(read("client_key_file", key)?);
        let identity = Identity::from_pem(&pem).map_err(|_| {
            unusable(
                "client_cert_file",
                cert,
                "it and client_key_file hold no certificate and private key in PEM",
            )
        })?;
        client = client.identity(identity);
    }
    Ok(client)
}

fn read(key: &str, path: &str) -> Result<Vec<u8>, EmbedError> {
    std::fs::read(path).map_err(|error| unusable(key, path, error))
}

fn unusable(key: &str, path: &str, reason: impl std::fmt::Display) -> EmbedError {
    EmbedError::config(format!(
        "`providers.embedding.{key}` is {path}, which cannot be used: {reason}"
    ))
}
