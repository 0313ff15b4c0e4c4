//! A database for one test.

use std::path::Path;
use std::str::FromStr;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use uuid::Uuid;

/// What makes `memory_notes` as `elf migrate` does.
pub fn notes_table() -> &'static str {
    notes_until("-- With the id: notes that expire")
}

/// The same with its indexes, and without triggers.
pub fn notes_with_indexes() -> &'static str {
    notes_until("-- The trigger functions")
}

fn notes_until(comment: &str) -> &'static str {
    let file = include_str!("../../../sql/tables/memory_notes.sql");
    file.split_once(comment).expect("the comment").0
}

/// An empty database of the test's own on the test server. The end of the test drops it
/// and its open connections.
pub struct TestDatabase {
    server: PgConnectOptions,
    name: String,
}

impl TestDatabase {
    /// Makes it on the server that `DATABASE_URL` names, else on the one that
    /// `make setup` starts.
    pub async fn create() -> Self {
        Self::create_with("").await
    }

    /// The same, with `options` of `CREATE DATABASE`.
    pub async fn create_with(options: &str) -> Self {
        Self::create_on(server(), options).await
    }

    /// The same, on another server.
    pub async fn create_on(server: PgConnectOptions, options: &str) -> Self {
        let name = format!("elf_test_{}", Uuid::new_v4().simple());
        execute(&server, format!("CREATE DATABASE {name} {options}"))
            .await
            .unwrap_or_else(|error| {
                panic!("the test server gives no database, see `make setup`: {error}")
            });
        Self { server, name }
    }

    /// `postgres://…`, with user and password.
    pub fn url(&self) -> String {
        self.server
            .clone()
            .database(&self.name)
            .to_url_lossy()
            .to_string()
    }

    /// The same, through a port of this machine that leads to [`Self::server`].
    pub fn url_through(&self, port: u16) -> String {
        self.server
            .clone()
            .host("127.0.0.1")
            .port(port)
            .database(&self.name)
            .to_url_lossy()
            .to_string()
    }

    /// The same, as another role.
    pub fn url_as(&self, role: &Role) -> String {
        self.server
            .clone()
            .database(&self.name)
            .username(&role.name)
            .password(&role.name)
            .to_url_lossy()
            .to_string()
    }

    /// Host and port of the server.
    pub fn server(&self) -> (&str, u16) {
        (self.server.get_host(), self.server.get_port())
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        remove(
            self.server.clone(),
            &self.name,
            format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name),
        );
    }
}

/// A role of the test server, whose password is its name. Postgres drops a role only after
/// the databases in which it has rights: declare it before them.
pub struct Role {
    pub name: String,
}

impl Role {
    /// Makes it with `options`, `login createrole` for one.
    pub async fn create(options: &str) -> Self {
        let name = format!("elf_test_{}", Uuid::new_v4().simple());
        let statement = format!("CREATE ROLE {name} PASSWORD '{name}' {options}");
        execute(&server(), statement).await.unwrap();
        Self { name }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        remove(
            server(),
            &self.name,
            format!("DROP ROLE IF EXISTS {}", self.name),
        );
    }
}

fn remove(server: PgConnectOptions, name: &str, statement: String) {
    // A runtime cannot wait inside another one, so it gets a thread.
    let dropping = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime
            .block_on(execute(&server, statement))
            .map_err(std::io::Error::other)
    });
    if let Ok(Err(error)) = dropping.join() {
        eprintln!("{name} is left behind: {error}");
    }
}

async fn execute(server: &PgConnectOptions, statement: String) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect_with(server).await?;
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(&mut connection)
        .await?;
    connection.close().await
}

fn server() -> PgConnectOptions {
    let url = std::env::var("DATABASE_URL")
        .ok()
        .filter(|url| !url.is_empty())
        .unwrap_or_else(|| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(".elf/postgres.url");
            std::fs::read_to_string(file)
                .expect("the tests need Postgres: run `make setup`, or set DATABASE_URL")
        });
    PgConnectOptions::from_str(url.trim())
        .expect("the URL of the test server is postgres://user:password@host:port/db")
}
