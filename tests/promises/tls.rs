//! TLS to every server, with an authority that the test makes: which certificates ELF
//! trusts, and which it does not.

use crate::support::database::TestDatabase;
use crate::support::site::{Done, Site, elf, run};
use crate::support::tls::{Authority, Handshake};

async fn elf_with(site: &Site, args: &[&str], variables: &[(&str, &str)]) -> Done {
    let mut command = elf(site.folder.path());
    command.args(args).envs(variables.iter().copied());
    run(command, b"").await
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().unwrap().parse().unwrap()
}

fn encrypted(database: &TestDatabase, port: u16, options: &str) -> String {
    let url = database.url_through(port).replace("127.0.0.1", "localhost");
    let (url, _) = url.split_once('?').unwrap_or((&url, ""));
    format!("{url}?{options}")
}

#[tokio::test]
async fn a_postgres_is_verified_by_its_authority_and_its_name() {
    let site = Site::start().await;
    let authority = Authority::new();
    let ca = authority.ca_file();
    let ca = ca.to_str().unwrap();
    let right = authority
        .serve(
            "localhost",
            site.database.server(),
            Handshake::Postgres,
            false,
        )
        .await;
    let misnamed = authority
        .serve(
            "other.example",
            site.database.server(),
            Handshake::Postgres,
            false,
        )
        .await;
    let mut dsn = site.database.url();
    let mut use_dsn = |new: String| {
        site.configure(&dsn, &new);
        dsn = new;
    };

    use_dsn(encrypted(
        &site.database,
        right.port(),
        &format!("sslmode=verify-full&sslrootcert={ca}"),
    ));
    site.elf(&["status"]).await.exits(0);
    assert!(right.accepted() > 0);

    // The system's authorities are those of SSL_CERT_FILE where it is set.
    use_dsn(encrypted(
        &site.database,
        right.port(),
        "sslmode=verify-full",
    ));
    elf_with(&site, &["status"], &[("SSL_CERT_FILE", ca)])
        .await
        .exits(0);
    let done = site.elf(&["status"]).await;
    assert_ne!(done.code, Some(0), "an unknown authority is trusted");
    use_dsn(encrypted(
        &site.database,
        right.port(),
        "sslrootcert=system",
    ));
    elf_with(&site, &["status"], &[("SSL_CERT_FILE", ca)])
        .await
        .exits(0);
    let done = site.elf(&["status"]).await;
    assert_ne!(done.code, Some(0), "an unknown authority is trusted");
    // As with libpq: who names an authority wants it asked.
    let another = Authority::new();
    site.write("right.pem", std::fs::read(ca).unwrap());
    site.write("another.pem", std::fs::read(another.ca_file()).unwrap());
    for (file, is_trusted) in [("right.pem", true), ("another.pem", false)] {
        let file = site.path(file).display().to_string();
        let options = format!("sslmode=require&sslrootcert={file}");
        use_dsn(encrypted(&site.database, right.port(), &options));
        let done = site.elf(&["status"]).await;
        assert_eq!(done.code == Some(0), is_trusted, "{file}: {}", done.stderr);
    }

    use_dsn(encrypted(
        &site.database,
        misnamed.port(),
        &format!("sslmode=verify-full&sslrootcert={ca}"),
    ));
    let done = site.elf(&["status"]).await;
    assert_ne!(done.code, Some(0), "another host's certificate is taken");
}

#[tokio::test]
async fn what_is_wrong_with_a_url_of_postgres_is_named() {
    let site = Site::empty().await;
    let mut dsn = site.database.url();
    let mut use_dsn = |new: &str| {
        site.configure(&dsn, new);
        dsn = new.to_owned();
    };
    for (url, code, words) in [
        (
            "postgres://db/d?sslmode=verify-full&sslrootcert=/no/such/ca.pem",
            78,
            ["/no/such/ca.pem", "sslrootcert"],
        ),
        (
            "postgres://db/d?sslcert=/no/such.pem&sslkey=/no/such.key",
            78,
            ["/no/such.pem", "sslcert"],
        ),
        (
            "postgres://a:5432,b:5432/d?target_session_attrs=read-write",
            78,
            ["dsn", "several hosts"],
        ),
        ("postgres://db/d?service=notes", 78, ["dsn", "service file"]),
        (
            "postgres://db/d?sslmod=verify-full",
            78,
            ["dsn", "the parameter sslmod"],
        ),
        (
            "postgres://u@%2Fno%2Fsuch/d",
            1,
            ["unavailable", "/no/such/.s.PGSQL.5432"],
        ),
        ("postgres://u@[::1]:1/d", 1, ["unavailable", "::1:1"]),
    ] {
        use_dsn(url);
        site.elf(&["status"]).await.exits(code).says(&words);
    }
    // The tests' Postgres has no TLS. A worker does not wait for it.
    let (_, port) = site.database.server();
    use_dsn(&encrypted(&site.database, port, "sslmode=require"));
    for args in [&["status"][..], &["worker"]] {
        let done = site.elf(args).await.exits(78);
        done.says(&["sslmode", &format!("localhost:{port}"), "has no TLS"]);
    }
}

#[tokio::test]
async fn a_postgres_that_asks_is_shown_a_certificate() {
    let site = Site::start().await;
    let authority = Authority::new();
    let server = authority
        .serve(
            "localhost",
            site.database.server(),
            Handshake::Postgres,
            true,
        )
        .await;
    let (certificate, key) = authority.certify("elf");
    let ca = authority.ca_file();
    let options = format!(
        "sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}",
        ca.display(),
        certificate.display(),
        key.display()
    );
    let dsn = encrypted(&site.database, server.port(), &options);
    site.configure(&site.database.url(), &dsn);
    site.elf(&["status"]).await.exits(0);
}

#[tokio::test]
async fn a_provider_is_verified_by_the_system_or_a_ca_file_and_shown_a_certificate() {
    let site = Site::start().await;
    let authority = Authority::new();
    let ca = authority.ca_file();
    let ca = ca.to_str().unwrap();
    let target = ("127.0.0.1", port_of(site.provider.url()));
    let plain = authority
        .serve("localhost", target, Handshake::First, false)
        .await;
    let asking = authority
        .serve("localhost", target, Handshake::First, true)
        .await;
    let url = format!("https://localhost:{}", plain.port());
    site.configure(site.provider.url(), &url);
    site.note("The lighthouse is green.").await;

    let once = &["worker", "--once"];
    let refused = site.elf(once).await;
    assert_ne!(refused.code, Some(0), "an unknown authority is trusted");
    assert!(refused.stderr.contains("certificate"), "{}", refused.stderr);
    assert_eq!(site.provider.requests(), 0);
    elf_with(&site, once, &[("SSL_CERT_FILE", ca)])
        .await
        .exits(0);
    assert!(site.provider.requests() > 0);

    let embedding = "[providers.embedding]";
    let with_ca = format!("{embedding}\nca_file = \"{ca}\"");
    site.configure(embedding, &with_ca);
    site.note("The harbour is blue.").await;
    site.elf(once).await.exits(0);

    site.configure(&url, &format!("https://localhost:{}", asking.port()));
    site.note("The pier is red.").await;
    assert_ne!(
        site.elf(once).await.code,
        Some(0),
        "no certificate was shown"
    );
    let (certificate, key) = authority.certify("elf");
    let shown = format!(
        "{with_ca}\nclient_cert_file = \"{}\"\nclient_key_file = \"{}\"",
        certificate.display(),
        key.display()
    );
    site.configure(&with_ca, &shown);
    site.elf(once).await.exits(0);
    assert!(asking.accepted() > 0);

    site.configure(key.to_str().unwrap(), "/no/such.key");
    site.elf(once)
        .await
        .exits(78)
        .says(&["client_key_file", "/no/such.key"]);
}

/// For the hub and Qdrant, ELF trusts the system's authorities.
#[tokio::test]
async fn a_hub_and_a_qdrant_are_verified_by_the_system() {
    let site = Site::start().await;
    let authority = Authority::new();
    let ca = authority.ca_file();
    let ca = ca.to_str().unwrap();
    // Neither server speaks the expected protocol: this tests only the handshake.
    let target = ("127.0.0.1", port_of(site.provider.url()));
    let server = authority
        .serve("localhost", target, Handshake::First, false)
        .await;
    let url = format!("https://localhost:{}", server.port());
    let folder = crate::support::harness::model().display().to_string();
    let toml = site.toml();

    site.configure(&folder, "org/model");
    let cache = site.path("cache");
    let cache = cache.to_str().unwrap();
    let chunk = &["chunk", "elf.toml"];
    let hub = [("HF_ENDPOINT", url.as_str()), ("HF_HOME", cache)];
    assert_ne!(elf_with(&site, chunk, &hub).await.code, Some(0));
    assert_eq!(server.accepted(), 0, "an unknown authority is trusted");
    let trusted = [hub[0], hub[1], ("SSL_CERT_FILE", ca)];
    let done = elf_with(&site, chunk, &trusted).await;
    assert!(server.accepted() > 0, "{}", done.stderr);

    let before = server.accepted();
    site.write("elf.toml", toml);
    site.use_server(&url);
    let status = &["verify"];
    assert_ne!(elf_with(&site, status, &[]).await.code, Some(0));
    assert_eq!(server.accepted(), before, "an unknown authority is trusted");
    let done = elf_with(&site, status, &[("SSL_CERT_FILE", ca)]).await;
    assert!(server.accepted() > before, "{}", done.stderr);
}

#[cfg(feature = "otlp")]
#[tokio::test]
async fn a_collector_is_verified_by_the_authority_that_is_named() {
    use crate::support::eventually;

    let site = Site::start().await;
    let authority = Authority::new();
    let ca = authority.ca_file();
    let target = ("127.0.0.1", port_of(site.provider.url()));
    let server = authority
        .serve("localhost", target, Handshake::First, false)
        .await;
    let endpoint = format!("https://localhost:{}", server.port());
    site.note("The lighthouse is green.").await;
    let trusting = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca.to_str().unwrap()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
    ];
    let worker = site.worker_with(&trusting);
    worker.says("sending traces").await;
    eventually(async || server.accepted() > 0).await;
    worker.kill().await;
    let none = authority
        .serve("localhost", target, Handshake::First, false)
        .await;
    let endpoint = format!("https://localhost:{}", none.port());
    let done = elf_with(
        &site,
        &["worker", "--once"],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint)],
    )
    .await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(none.accepted(), 0, "an unknown authority is trusted");
}
