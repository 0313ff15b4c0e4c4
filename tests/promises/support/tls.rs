//! A certificate authority of the test's own, and a TLS server in front of a plain one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// A certificate authority that no system trusts.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// When TLS begins.
#[derive(Clone, Copy, PartialEq)]
pub enum Handshake {
    /// At once.
    First,
    /// After Postgres's request for it.
    Postgres,
}

/// A port that speaks TLS and passes the decrypted bytes on.
pub struct TlsServer {
    port: u16,
    /// Handshakes that succeeded, and that failed.
    handshakes: watch::Receiver<(usize, usize)>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Its certificate, as a file.
    pub fn ca_file(&self) -> PathBuf {
        self.file("ca.pem", &self.issuer.pem())
    }

    /// A certificate for `name` with its key, as files.
    pub fn certify(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (
            self.file(&format!("{name}.pem"), &certificate.pem()),
            self.file(&format!("{name}.key"), &key.serialize_pem()),
        )
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A server with a certificate for `name` in front of `target`; `asks` whether it takes
    /// only clients with a certificate of this authority.
    pub async fn serve(
        &self,
        name: &str,
        target: (&str, u16),
        handshake: Handshake,
        asks: bool,
    ) -> TlsServer {
        let (certificate, key) = self.certify(name);
        let config = self.server_config(&certificate, &key, asks);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, handshakes) = watch::channel((0, 0));
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let target = (target.0.to_owned(), target.1);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (acceptor, target, sender) = (acceptor.clone(), target.clone(), sender.clone());
                tokio::spawn(async move {
                    let accepted = pass(client, acceptor, target, handshake, &sender).await;
                    if accepted.is_none() {
                        sender.send_modify(|(_, failed)| *failed += 1);
                    }
                });
            }
        });
        TlsServer { port, handshakes }
    }

    fn server_config(&self, certificate: &Path, key: &Path, asks: bool) -> ServerConfig {
        let provider = Arc::new(crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match asks {
            false => builder.with_no_client_auth(),
            true => {
                let mut roots = RootCertStore::empty();
                roots.add(self.issuer.der().clone()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
        let key = PrivateKeyDer::from_pem_file(key).unwrap();
        let mut config = builder.with_single_cert(chain, key).unwrap();
        // The server behind it speaks HTTP/1.1; a gRPC client accepts only h2.
        config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
        config
    }
}

/// `None` where the handshake fails.
async fn pass(
    mut client: TcpStream,
    acceptor: TlsAcceptor,
    target: (String, u16),
    handshake: Handshake,
    handshakes: &watch::Sender<(usize, usize)>,
) -> Option<()> {
    if handshake == Handshake::Postgres {
        // SSLRequest: its length, and 1234 5679.
        let mut request = [0; 8];
        client.read_exact(&mut request).await.ok()?;
        assert_eq!(request, [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f]);
        client.write_all(b"S").await.ok()?;
    }
    let mut client = acceptor.accept(client).await.ok()?;
    handshakes.send_modify(|(done, _)| *done += 1);
    if let Ok(mut server) = TcpStream::connect(target).await {
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
    Some(())
}

impl TlsServer {
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many handshakes have succeeded.
    pub fn accepted(&self) -> usize {
        self.handshakes.borrow().0
    }
}
